"""Real Tarantool replicas of our server: join, follow, restart, fall behind, rejoin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.waiting import until

from interop.realtarantool import RealTarantool, TarantoolDied
from interop.serving import Serving
from logweir.replication.service import users
from logweir.store.commit.group import Group
from logweir.store.engine.request import Request, encode_body
from logweir.store.schema.access import Privilege
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

pytestmark = pytest.mark.tarantool

SELECT = "return box.space.t:select({}, {limit = 100000})"
CLOCK = "return box.info.vclock"
STATE = "return box.info.replication[1].upstream.status"


def replica_of(serving: Serving, folder: Path, **cfg: Any) -> RealTarantool:
    options = {
        "replication": f"127.0.0.1:{serving.port}",
        "replication_connect_timeout": 10,
        "replication_timeout": 0.3,
        **cfg,
    }
    return RealTarantool(folder, listen=None, cfg=options)


def fill(serving: Serving, first: int, last: int) -> None:
    with serving.log.transaction() as tx:
        for number in range(first, last):
            tx.replace("t", (number, f"row {number}"))


def equal(serving: Serving, replica: RealTarantool) -> bool:
    """Whether a replica has reached our position; then its contents must be ours."""
    ours = dict(serving.log.vclock.without_local())
    theirs = replica.eval(CLOCK)[0]
    if {key: lsn for key, lsn in theirs.items() if key} != ours:
        return False
    rows = [list(row) for row in serving.log.select("t")]
    assert replica.eval(SELECT) == [rows]
    return True


def test_replica_joins_follows_and_restarts(tmp_path: Path) -> None:
    """All rows, transactions, definitions, also those made while it was away."""
    with Serving(tmp_path / "ours", guest="replicate") as serving:
        log = serving.log
        log.create_space("t")
        log.create_space("l", local=True)
        fill(serving, 0, 2000)
        log.insert("l", (1, "stays here"))
        replica = replica_of(serving, tmp_path / "replica")
        with replica:
            until(lambda: equal(serving, replica))
            assert replica.eval(STATE) == ["follow"]
            assert replica.eval("return box.info.id, box.space.l:count()") == [2, 0]
            fill(serving, 1000, 3000)
            with log.transaction() as tx:
                tx.delete("t", 7)
                tx.update("t", 8, [["=", 1, "new"]])
                tx.insert("l", (2, "local last"))
            log.create_index("t", "name", [(1, "string")])
            log.append("t", [(number, f"x{number}") for number in range(5000, 9000)])
            until(lambda: equal(serving, replica))
            assert replica.eval("return #box.space.t.index, box.space.t.index.name ~= nil")[1]
        fill(serving, 20000, 20100)
        log.truncate("l")
        with replica:
            until(lambda: equal(serving, replica))
            serving.wait(lambda: bool(serving.server.protocol("tarantool").instance.followers))
            (follower,) = serving.server.protocol("tarantool").instance.followers.values()
            serving.wait(lambda: follower.acknowledged == log.vclock.without_local())
            assert follower.replica_id == 2


def test_replica_joins_while_writes_go_on(tmp_path: Path) -> None:
    """Nothing that was committed between the view and the subscription is missing."""
    with Serving(tmp_path / "ours", guest="replicate") as serving:
        serving.log.create_space("t")
        fill(serving, 0, 20_000)
        replica = replica_of(serving, tmp_path / "replica")
        replica.start(wait=False)
        try:
            for turn in range(60):
                fill(serving, 100_000 + turn * 10, 100_010 + turn * 10)
            replica.wait_ready()
            until(lambda: equal(serving, replica))
        finally:
            replica.kill()


def test_replica_that_lost_its_place_in_the_log_rejoins(tmp_path: Path) -> None:
    """An old position is refused truthfully; at its restart the replica copies everything anew."""
    options = {"checkpoint_count": 1}
    with Serving(tmp_path / "ours", guest="replicate", open_options=options) as serving:
        log = serving.log
        log.create_space("t")
        replica = replica_of(serving, tmp_path / "replica")
        with replica:
            until(lambda: equal(serving, replica))
        until(lambda: not serving.server.listener.links)  # else its place may be noted once more
        (name,) = log.status()["followers"]
        fill(serving, 0, 100)
        log.snapshot()
        fill(serving, 100, 200)
        log.snapshot()
        assert not serving.log.oldest_position.covers({1: 6}), "the replica's logs were kept"
        log.release(name)
        fill(serving, 200, 300)
        log.snapshot()
        with replica:
            until(lambda: equal(serving, replica))
            assert "initial data received" in replica.log_text()


def test_anonymous_replica_has_no_place(tmp_path: Path) -> None:
    """It follows without a row in `_cluster`, and registers later."""
    with Serving(tmp_path / "ours", guest="replicate") as serving:
        serving.log.create_space("t")
        fill(serving, 0, 50)
        replica = replica_of(serving, tmp_path / "replica", replication_anon=True, read_only=True)
        with replica:
            until(lambda: equal(serving, replica))
            assert serving.log.count("_cluster") == 1
            fill(serving, 50, 60)
            until(lambda: equal(serving, replica))
            replica.eval("box.cfg{replication_anon = false}")
            until(lambda: equal(serving, replica))
            assert serving.log.count("_cluster") == 2
            fill(serving, 60, 70)
            until(lambda: equal(serving, replica))


def test_replica_with_a_password_and_without_rights(tmp_path: Path) -> None:
    """Users of the store count; what is not granted is refused with error 42."""
    with Serving(tmp_path / "ours") as serving:
        serving.log.create_space("t")
        users.add_user(serving.log, "rep", password="secret")
        address = f"rep:secret@127.0.0.1:{serving.port}"
        replica = replica_of(serving, tmp_path / "replica", replication=address)
        replica.start(wait=False)
        try:
            until(lambda: "Read access to universe '' is denied" in replica.log_text())
            users.grant(serving.log, "rep", Privilege.EXECUTE, users.Target("role", "replication"))
            replica.wait_ready()
            until(lambda: equal(serving, replica))
        finally:
            replica.kill()


def test_a_row_of_no_uuid_hinders_nothing_but_replicas(tmp_path: Path) -> None:
    """Older versions took one: a real replica names it, and joins when it is gone."""
    with Serving(tmp_path / "ours", guest="replicate") as serving:
        log = serving.log
        log.create_space("t")
        wrong = Request(RowType.INSERT, 320, tuple=pack([2, "{b8ee}"]))

        def write(group: Group) -> None:
            space = group.schema.space(320)
            group.engine.execute(space, wrong)
            group.log(RowType.INSERT, encode_body(wrong), space)

        log.inner.run(write)
        told = pytest.raises(TarantoolDied, match=r"Invalid UUID: \{b8ee\}")
        with told, replica_of(serving, tmp_path / "first"):
            pass
        log.delete("_cluster", 2)
        with replica_of(serving, tmp_path / "second") as replica:
            until(lambda: equal(serving, replica))
            assert replica.eval("return box.info.id") == [2]
