"""Copying a real Tarantool into a folder, which a real Tarantool then boots."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from pathlib import Path

import pytest

from interop.realtarantool import RealTarantool
from interop.test_iproto_hostile import MASTER, NOISE, FakeMaster, row
from logweir.errors import ConfigError, RemoteProtocolError, SourceStopped, Unreachable
from logweir.limits import UPSTREAM_STEP_BYTES
from logweir.replication.iproto.follow.join import join
from logweir.replication.iproto.wire import codec
from logweir.replication.protocols import parse_url
from logweir.wal.columns import RowColumns
from logweir.wal.damage import Damage
from logweir.wal.mp import pack
from logweir.wal.reader import WalReader
from logweir.wal.vclock import VClock

real = pytest.mark.tarantool

FILL = """
box.schema.user.create('rep', {password = 'secret'})
box.schema.user.grant('rep', 'replication')
box.schema.space.create('t'):create_index('p')
box.schema.space.create('l', {is_local = true}):create_index('p')
for i = 1, 3000 do box.space.t:insert{i, string.rep('x', 50)} end
box.space.l:insert{1}
"""
COUNT = "return box.space.t:count(), box.space._cluster:count(), box.info.id"


@real
def test_join_makes_a_folder_that_a_real_one_boots(tmp_path: Path) -> None:
    """All rows, the place in `_cluster`, the vclock and the replica set are there."""
    with RealTarantool(tmp_path / "master") as master:
        master.eval(FILL)
        url = parse_url(f"tarantool://rep:secret@127.0.0.1:{master.port}")
        joined = asyncio.run(join(url, tmp_path / "copy"))
        assert joined.replica_id == 2
        assert joined.rows > 3513
        vclock = master.eval("return box.info.vclock, box.info.cluster.uuid")
        assert joined.vclock == VClock(vclock[0]).without_local()
        assert str(joined.replicaset) == vclock[1]
        names = sorted(os.listdir(tmp_path / "copy"))
        assert [name.split(".")[1] for name in names] == ["snap", "xlog", "end"]
        with RealTarantool(tmp_path / "copy", listen=None) as copy:
            assert copy.eval(COUNT) == [3000, 2, 2]
            assert copy.eval("return box.info.vclock") == [dict(joined.vclock)]
        again = asyncio.run(join(url, tmp_path / "copy2", instance=joined.instance))
        assert again.replica_id == 2
        assert again.vclock == joined.vclock
    assert not (tmp_path / "copy.joining").exists()


@real
def test_anonymous_copy_changes_nothing_on_the_master(tmp_path: Path) -> None:
    """FETCH_SNAPSHOT: the same rows, no registration."""
    with RealTarantool(tmp_path / "master") as master:
        master.eval(FILL)
        before = master.eval("return box.info.vclock")
        url = parse_url(f"tarantool://rep:secret@127.0.0.1:{master.port}?anonymous=1")
        joined = asyncio.run(join(url, tmp_path / "copy"))
        assert joined.replica_id == 0
        assert master.eval("return box.info.vclock") == before
    assert sorted(path.suffix for path in (tmp_path / "copy").iterdir()) == [".snap"]


@real
def test_refusals_say_what_is_wrong_and_leave_nothing(tmp_path: Path) -> None:
    """No grant and a wrong password may pass; a folder with files is never touched."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with RealTarantool(tmp_path / "master") as master:
        master.eval("box.schema.user.create('rep', {password = 'secret'})")
        for who, words in (("", "Read access to universe"), ("rep:bad@", "Incorrect password")):
            url = parse_url(f"tarantool://{who}127.0.0.1:{master.port}")
            with pytest.raises(Unreachable, match=words):
                asyncio.run(join(url, tmp_path / "copy"))
        with pytest.raises(ConfigError, match="not empty"):
            asyncio.run(join(url, tmp_path / "full"))
        master.eval("box.schema.user.grant('guest', 'replication'); box.cfg{read_only = true}")
        url = parse_url(f"tarantool://127.0.0.1:{master.port}")
        with pytest.raises(SourceStopped, match="read-only"):
            asyncio.run(join(url, tmp_path / "copy"))
        closed = parse_url("tarantool://127.0.0.1:1")
        with pytest.raises(Unreachable):
            asyncio.run(join(closed, tmp_path / "copy"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "master"]


OURS = uuid.UUID("dddddddd-0000-4000-8000-000000000001")
OTHER = uuid.UUID("cccccccc-0000-4000-8000-000000000001")


def first_stages() -> bytes:
    """Of a replica set, in which we are number 2; behind them come the rows of the last stage."""
    begin = codec.encode_vclock_answer(VClock({5: 7}))
    first = b"".join(
        codec.frame(pack({0: 2, 4: 1.5}) + pack({0x10: space_id, 0x21: values}))
        for space_id, values in (
            (272, ["cluster", "cccccccc-0000-4000-8000-000000000001"]),
            (320, [2, str(OURS)]),
        )
    )
    return begin + first + begin


def stages(last: bytes, end: int) -> FakeMaster:
    """A master that is changed while it is copied."""
    done = codec.encode_vclock_answer(VClock({5: end}))
    return FakeMaster(b"", replicaset=None, answer=first_stages() + last + done)


def test_rows_of_the_last_stage_are_written_as_they_come(tmp_path: Path) -> None:
    """None waits for the last one; no block of the log is larger than a step and a transaction.
    In one block more than `limits.BLOCK_RAW_BYTES` of them could not be read again."""
    large = "x" * (UPSTREAM_STEP_BYTES // 2)
    last = b"".join(
        codec.frame(pack({0: 2, 2: 5, 3: lsn, 4: 1.5}) + pack({0x10: 512, 0x21: [lsn, large]}))
        for lsn in range(8, 24)
    )
    with stages(last, 23) as master:
        joined = asyncio.run(join(parse_url(master.url), tmp_path / "copy", instance=OURS))
    assert (joined.vclock, joined.rows) == (VClock({5: 23}), 18)
    (log,) = (tmp_path / "copy").glob("*.xlog")
    with WalReader(log) as reader:
        blocks = [block for block in reader.blocks() if not isinstance(block, Damage)]
        assert reader.vclock == joined.vclock
    sizes = [len(block.columns.data) for block in blocks]
    assert sum(sizes) >= len(last) - 16 * 10
    assert max(sizes) <= 2 * UPSTREAM_STEP_BYTES


def test_rows_of_a_long_transaction_are_looked_at_twice_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they come, and when its end is there: not all of them again with each that comes."""
    scanned: list[int] = []
    scan = RowColumns.scan

    def counted(data: bytes) -> RowColumns:
        scanned.append(len(data))
        return scan(data)

    monkeypatch.setattr(RowColumns, "scan", counted)
    large = "x" * 200_000
    last = b"".join(
        codec.frame(
            pack({0: 2, 2: 5, 3: lsn, 4: 1.5, 8: lsn - 8} | ({9: 1} if lsn == 87 else {}))
            + pack({0x10: 512, 0x21: [lsn, large]})
        )
        for lsn in range(8, 88)
    )
    with stages(last, 87) as master:
        joined = asyncio.run(join(parse_url(master.url), tmp_path / "copy", instance=OURS))
    assert (joined.vclock, joined.rows) == (VClock({5: 87}), 82)
    assert len(scanned) > 8
    assert sum(scanned) < 2.1 * len(last)


class SlowMaster(FakeMaster):
    """Says nothing between the stages of a join and its last row, until others have asked it four
    times whether it lives; `answers`: who answers them, None: nobody."""

    answers: uuid.UUID | None = MASTER

    def _talk(self, peer: socket.socket) -> None:
        instance = MASTER if self.connections == 1 else self.answers
        if instance is None:
            return
        peer.sendall(codec.encode_greeting(instance, NOISE))
        peer.recv(1000)
        ballot = codec.Ballot(False, VClock(), VClock(), False)
        peer.sendall(codec.encode_answer(0, 80, ballot.body()))
        if self.connections == 1:
            peer.recv(1000)
            peer.sendall(first_stages())
        elif self.connections == 5:
            self._peers[0].sendall(row(8, 1) + codec.encode_vclock_answer(VClock({5: 8})))


@pytest.mark.parametrize("answers", [MASTER, OTHER, None])
def test_a_master_that_is_silent_in_the_last_stage_is_asked_whether_it_lives(
    tmp_path: Path, answers: uuid.UUID | None
) -> None:
    """The join goes on while it answers another connection itself, and only then."""
    with SlowMaster(b"", replicaset=None) as master:
        master.answers = answers
        url = parse_url(f"{master.url}?stall=3")
        if answers == MASTER:
            joined = asyncio.run(join(url, tmp_path / "copy", instance=OURS))
            assert (joined.vclock, joined.rows) == (VClock({5: 8}), 3)
        else:
            with pytest.raises(Unreachable, match="said nothing"):
                asyncio.run(join(url, tmp_path / "copy", instance=OURS))


def test_transaction_without_its_end_in_the_last_stage_is_refused(tmp_path: Path) -> None:
    """Nothing is left."""
    last = row(8, 1) + row(9, 2, tsn=9, last=False)
    with stages(last, 9) as master, pytest.raises(RemoteProtocolError, match="without its end"):
        asyncio.run(join(parse_url(master.url), tmp_path / "copy", instance=OURS))
    assert not list(tmp_path.iterdir())
