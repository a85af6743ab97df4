"""Copying a real Tarantool into a folder, which a real Tarantool then boots."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from interop.realtarantool import RealTarantool
from logweir.errors import ConfigError, SourceStopped, Unreachable
from logweir.replication.iproto.follow.join import join
from logweir.replication.protocols import parse_url
from logweir.wal.vclock import VClock

pytestmark = pytest.mark.tarantool

FILL = """
box.schema.user.create('rep', {password = 'secret'})
box.schema.user.grant('rep', 'replication')
box.schema.space.create('t'):create_index('p')
box.schema.space.create('l', {is_local = true}):create_index('p')
for i = 1, 3000 do box.space.t:insert{i, string.rep('x', 50)} end
box.space.l:insert{1}
"""
COUNT = "return box.space.t:count(), box.space._cluster:count(), box.info.id"


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
