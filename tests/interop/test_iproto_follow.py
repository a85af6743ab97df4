"""We follow real masters: copy, go on, restarts, several masters, conflicts, chains."""

from __future__ import annotations

import asyncio
import shutil
import signal
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest
from support.nursery import LOGWEIR
from support.waiting import until

import logweir
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from logweir.replication.iproto.follow.join import join
from logweir.replication.protocols import parse_url
from logweir.replication.runner import SourceState
from logweir.replication.urls import Url

pytestmark = pytest.mark.tarantool

SETUP = """
box.schema.user.grant('guest', 'replication')
box.schema.space.create('t', {format = {{'id', 'unsigned'}, {'v', 'any', is_nullable = true}}})
box.space.t:create_index('p')
"""
SELECT = "return box.space.t:select({}, {limit = 100000})"
PUT = "for i = ..., select(2, ...) do box.space.t:replace{i, 'row ' .. i} end"


def address(box: RealTarantool, **options: str) -> Url:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return parse_url(f"tarantool://127.0.0.1:{box.port}" + (f"?{query}" if query else ""))


def copy(box: RealTarantool, folder: Path) -> None:
    asyncio.run(join(address(box), folder))


def following(folder: Path, *boxes: RealTarantool, **options: Any) -> Serving:
    return Serving(folder, follow=[address(box) for box in boxes], **options)


def global_clock(box: RealTarantool) -> dict[int, int]:
    return {key: lsn for key, lsn in box.eval("return box.info.vclock")[0].items() if key}


def equal(serving: Serving, *boxes: RealTarantool) -> bool:
    """Whether all have the same vclock; then they must hold the same."""
    ours = dict(serving.log.vclock.without_local())
    if any(global_clock(box) != ours for box in boxes):
        return False
    rows = [list(row) for row in serving.log.select("t")]
    assert all(box.eval(SELECT) == [rows] for box in boxes)
    return True


def state(serving: Serving) -> SourceState:
    return serving.server.runners[0].status.state


def test_large_tuples_are_followed(tmp_path: Path) -> None:
    """Of a master with a larger `memtx_max_tuple_size`, copied and taken later; and those that are
    over our limit stop the source with the name of the option."""
    large = 16 * 1024 * 1024
    insert = "box.space.t:insert{..., string.rep('x', 1000 * 1000 * ...)}"
    with RealTarantool(tmp_path / "master", cfg={"memtx_max_tuple_size": large}) as master:
        master.eval(SETUP)
        master.eval(insert, [3])
        copy(master, tmp_path / "ours")
        options = {"tuple_bytes": 8 * 1024 * 1024}
        with following(tmp_path / "ours", master, open_options=options) as serving:
            master.eval(insert, [5])
            until(lambda: serving.log.count("t") == 2)
            assert [len(str(row[1])) for row in serving.log.select("t")] == [3_000_000, 5_000_000]
            master.eval(insert, [9])
            until(lambda: state(serving) == SourceState.STOPPED)
            assert "--tuple-bytes" in serving.server.runners[0].status.last_error
            assert serving.log.count("t") == 2


def test_copy_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Data, definitions, transactions with local rows, users; restarts of both sides."""
    with RealTarantool(tmp_path / "master") as master:
        master.eval(SETUP)
        master.eval(PUT, [1, 3000])
        copy(master, tmp_path / "ours")
        with following(tmp_path / "ours", master) as serving:
            until(lambda: equal(serving, master))
            until(lambda: state(serving) == SourceState.FOLLOWING)
            master.eval("""
                box.schema.space.create('l', {is_local = true}):create_index('p')
                box.begin()
                box.space.t:delete(5)
                box.space.t:update(6, {{'=', 2, 'changed'}, {'!', 3, 'more'}})
                box.space.t:upsert({7, 0}, {{'=', 3, 'upserted'}})
                box.space.l:insert{1}
                box.commit()
                box.schema.user.create('alice', {password = 'secret'})
                box.space.t:create_index('v', {parts = {1, 'unsigned'}, unique = false})
            """)
            until(lambda: equal(serving, master))
            assert serving.log.get("_user", "alice", index="name") is not None
            assert serving.log.count("l") == 0
            downstream = "return box.info.replication[2].downstream.vclock"
            until(lambda: master.eval(downstream)[0] == global_clock(master))
        master.eval(PUT, [5000, 6000])
        with following(tmp_path / "ours", master) as serving:
            until(lambda: equal(serving, master))
            clock = serving.log.vclock
            rows = [
                row for block in serving.log.rows(after={1: clock[1] - 3}) for row in block.rows
            ]
            assert [(row.replica_id, row.lsn) for row in rows] == [
                (1, clock[1] - 2),
                (1, clock[1] - 1),
                (1, clock[1]),
            ]


def test_rows_are_logged_byte_for_byte(tmp_path: Path) -> None:
    """Same replica id, lsn, time and body as in the master's own log."""
    with RealTarantool(tmp_path / "master") as master:
        master.eval(SETUP)
        copy(master, tmp_path / "ours")
        with following(tmp_path / "ours", master) as serving:
            master.eval(PUT, [1, 50])
            master.eval("box.begin() for i = 60, 70 do box.space.t:insert{i} end box.commit()")
            until(lambda: equal(serving, master))
    stored = []
    for folder in ("master", "ours"):
        rows = [row for row in logweir.read(tmp_path / folder) if row.replica_id == 1]
        stored.append({row.lsn: row for row in rows if row.lsn > 10})
    assert len(stored[1]) > 50
    assert stored[0] == stored[1]


def test_restart_of_the_master_is_survived(tmp_path: Path) -> None:
    """The source waits, tells why, connects again and loses nothing."""
    cfg = {"listen": "127.0.0.1:0"}
    with RealTarantool(tmp_path / "master", cfg=cfg) as master:
        master.eval(SETUP)
        copy(master, tmp_path / "ours")
        port = master.port
        with following(tmp_path / "ours", master) as serving:
            until(lambda: state(serving) == SourceState.FOLLOWING)
            master.eval(PUT, [1, 100])
            master.kill()
            until(lambda: state(serving) == SourceState.WAITING)
            assert serving.server.runners[0].status.last_error
            again = RealTarantool(tmp_path / "master", listen=f"127.0.0.1:{port}")
            with again:
                again.eval(PUT, [200, 300])
                until(lambda: equal(serving, again))
                until(lambda: state(serving) == SourceState.FOLLOWING)
                assert serving.server.runners[0].status.last_error == ""


def test_killed_in_the_middle_of_a_stream_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    """SIGKILL of our process while rows stream in; then it goes on from its own log."""
    with RealTarantool(tmp_path / "master") as master:
        master.eval(SETUP)
        copy(master, tmp_path / "ours")
        for turn in range(3):
            ours = LOGWEIR.begin("follow", address(master), tmp_path / "ours", stderr=DEVNULL)
            downstream = "return (box.info.replication[2].downstream or {}).status"
            until(lambda status=downstream: master.eval(status) == ["follow"])
            base = turn * 10_000
            master.eval(
                "require('fiber').create(function(a, b) "
                "for i = a, b do box.space.t:replace{i, i} end end, ...)",
                [base, base + 4000],
            )
            reached = f"return box.space.t:get({base + 1500}) ~= nil"
            until(lambda reached=reached: master.eval(reached) == [True])
            ours.send_signal(signal.SIGKILL)
            ours.wait()
        until(lambda: master.eval("return box.space.t:count()") == [3 * 4001])
        with following(tmp_path / "ours", master) as serving:
            until(lambda: equal(serving, master))
            lsns = [
                row.lsn for part in serving.log.rows() for row in part.rows if row.replica_id == 1
            ]
            assert lsns == sorted(set(lsns))


def test_two_masters_that_follow_each_other(tmp_path: Path) -> None:
    """We are the third member: each row once, each under its own id."""
    first = RealTarantool(tmp_path / "one")
    with first:
        first.eval(SETUP)
        one = f"127.0.0.1:{first.port}"
        with RealTarantool(tmp_path / "two", cfg={"replication": one}) as second:
            first.eval(f"box.cfg{{replication = '127.0.0.1:{second.port}'}}")
            copy(first, tmp_path / "ours")
            with following(tmp_path / "ours", first, second) as serving:
                first.eval(PUT, [1, 500])
                second.eval(PUT, [1000, 1500])
                until(lambda: equal(serving, first, second))
                assert set(serving.log.vclock) == {1, 2}
                serving.log.insert("t", (9999, "ours"))
                assert serving.log.vclock[serving.log.replica_id] == 1
                assert serving.log.replica_id == 3


def test_member_of_a_set_of_three_is_restarted_inside(tmp_path: Path) -> None:
    """Two real masters and we follow each other; we are stopped while all write, and come back on
    another port: in the end all three hold the same, and each row once."""
    first, second = RealTarantool(tmp_path / "one"), RealTarantool(tmp_path / "two")
    with first:
        first.eval(SETUP)
        second._options["replication"] = f"127.0.0.1:{first.port}"
        with second:
            copy(first, tmp_path / "ours")
            for number in range(2):
                with following(tmp_path / "ours", first, second, guest="replicate") as serving:
                    ours, start = f"127.0.0.1:{serving.port}", 10_000 * number
                    for box, other in ((first, second), (second, first)):
                        peers = f"{{'127.0.0.1:{other.port}', '{ours}'}}"
                        box.eval(f"box.cfg{{replication = {peers}}}")
                    first.eval(PUT, [start + 1, start + 300])
                    second.eval(PUT, [start + 1000, start + 1300])
                    for key in range(start + 5000, start + 5200):
                        serving.log.insert("t", (key, "ours"))
                    until(lambda: equal(serving, first, second))
                first.eval(PUT, [start + 300, start + 600])
                second.eval(PUT, [start + 1300, start + 1600])
            with following(tmp_path / "ours", first, second) as serving:
                until(lambda: equal(serving, first, second))
                assert set(serving.log.vclock.without_local()) == {1, 2, 3}
                assert serving.log.vclock[3] == 400
                assert serving.log.count("t") == 2 * (600 + 601 + 200)


def test_row_that_cannot_be_applied_stops_the_source(tmp_path: Path) -> None:
    """Clearly, for good, and with nothing skipped."""
    with RealTarantool(tmp_path / "master") as master:
        master.eval(SETUP)
        copy(master, tmp_path / "ours")
        with logweir.open(tmp_path / "ours") as log:
            log.insert("t", (2, "mine"))
        with following(tmp_path / "ours", master) as serving:
            until(lambda: state(serving) == SourceState.FOLLOWING)
            master.eval("for i = 1, 3 do box.space.t:insert{i, 'theirs'} end")
            until(lambda: state(serving) == SourceState.STOPPED)
            error = serving.server.runners[0].status.last_error
            assert "Duplicate key exists in unique index 'p' in space 't'" in error
            assert "error 3" in error
            assert serving.log.select("t") == [(1, "theirs"), (2, "mine")]


def test_old_position_and_foreign_replica_set_stop_the_source(tmp_path: Path) -> None:
    """A new copy is needed for the one; for the other, another address."""
    with RealTarantool(tmp_path / "master", cfg={"checkpoint_count": 1}) as master:
        master.eval(SETUP)
        copy(master, tmp_path / "ours")
        master.eval(PUT, [1, 10])
        master.eval("box.snapshot()")
        master.eval(PUT, [10, 20])
        master.eval("box.space._cluster:delete(2); box.snapshot()")
        with following(tmp_path / "ours", master) as serving:
            until(lambda: state(serving) == SourceState.STOPPED)
            assert "--rejoin" in serving.server.runners[0].status.last_error
        with following(tmp_path / "other", master) as serving:
            until(lambda: state(serving) == SourceState.STOPPED)


def test_chain_of_master_ours_and_replica(tmp_path: Path) -> None:
    """A real replica follows us, who follow a real master: contents and vclocks are equal."""
    with RealTarantool(tmp_path / "master") as master:
        master.eval(SETUP)
        master.eval(PUT, [1, 500])
        copy(master, tmp_path / "ours")
        with following(tmp_path / "ours", master, guest="replicate") as serving:
            cfg = {"replication": f"127.0.0.1:{serving.port}"}
            replica = RealTarantool(tmp_path / "replica", listen=None, cfg=cfg)
            with replica:
                master.eval(PUT, [400, 900])
                master.eval("box.begin() for i = 1, 50 do box.space.t:delete(i) end box.commit()")
                until(lambda: serving.log.vclock[1] == global_clock(master)[1])
                until(lambda: equal(serving, replica))
                assert master.eval(SELECT) == replica.eval(SELECT)


def test_own_rows_that_were_lost_are_asked_back(tmp_path: Path) -> None:
    """A folder put back from an older copy gets what it wrote since then from the master, and
    writes on behind it."""
    with RealTarantool(tmp_path / "master") as master:
        master.eval(SETUP)
        copy(master, tmp_path / "ours")
        shutil.copytree(tmp_path / "ours", tmp_path / "backup")
        with following(tmp_path / "ours", master, guest="replicate") as serving:
            master.eval("box.cfg{replication = ...}", [f"127.0.0.1:{serving.port}"])
            for number in range(100, 110):
                serving.log.insert("t", (number, "ours"))
            until(lambda: equal(serving, master))
            master.eval("box.cfg{replication = {}}")
            (last,) = master.eval("return box.info.vclock[2]")
        assert last == 10
        shutil.rmtree(tmp_path / "ours")
        shutil.copytree(tmp_path / "backup", tmp_path / "ours")
        with following(tmp_path / "ours", master) as serving:
            until(lambda: equal(serving, master))
            assert serving.log.count("t") == 10
            serving.log.insert("t", (200, "after"))
            assert serving.log.vclock.lsn(2) == last + 1


def test_own_address_stops_the_source(tmp_path: Path) -> None:
    """Also under another name, as a copy of our folder that is served has our instance."""
    logweir.open(tmp_path / "ours").close()
    shutil.copytree(tmp_path / "ours", tmp_path / "copy")
    with (
        Serving(tmp_path / "copy", guest="replicate") as copied,
        Serving(tmp_path / "ours", follow=[copied.url]) as serving,
    ):
        until(lambda: state(serving) == SourceState.STOPPED)
        assert "is this instance itself" in serving.server.runners[0].status.last_error
