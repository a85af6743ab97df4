"""Synchronous replication: rows wait for their CONFIRM, and are undone by a ROLLBACK."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import uuid
from pathlib import Path
from subprocess import DEVNULL
from types import SimpleNamespace
from typing import cast

import pytest
from property.test_synchronous_rows import decision, feed, replace_row
from support.nursery import LOGWEIR
from support.waiting import until

import logweir
from interop.rawclient import RawClient
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from logweir.errors import ErrorCode, RequestError, Unreachable
from logweir.replication.iproto.follow.join import join
from logweir.replication.iproto.push import _last_rows
from logweir.replication.iproto.serve.endpoint import Conversation
from logweir.replication.iproto.wire.codec import RequestType
from logweir.replication.protocols import parse_url
from logweir.replication.stream.hub import Hub
from logweir.replication.urls import Url
from logweir.wal.columns import RowColumns
from logweir.wal.follow import Follower
from logweir.wal.mp import pack
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

pytestmark = pytest.mark.tarantool

SETUP = """
box.schema.user.grant('guest', 'replication')
box.schema.space.create('s', {is_sync = true}):create_index('p')
box.schema.space.create('a'):create_index('p')
box.cfg{replication_synchro_quorum = 1, replication_synchro_timeout = 1000}
"""
LATER = """
fiber = require('fiber')
function later(name, ...)
    local row = {...}
    fiber.create(function() pcall(box.space[name].insert, box.space[name], row) end)
end
"""
NEVER = "box.cfg{replication_synchro_quorum = 9}"
"""So many replicas there are not: rows wait."""

ALWAYS = "box.cfg{replication_synchro_quorum = 1}"
SPACES = ("s", "a")


def address(box: RealTarantool) -> Url:
    return parse_url(f"tarantool://127.0.0.1:{box.port}")


def following(folder: Path, box: RealTarantool) -> Serving:
    return Serving(folder, follow=[address(box)])


def rows_of(log: logweir.Log) -> list[list[list[object]]]:
    return [[list(row) for row in log.select(name)] for name in SPACES]


def rows_in(box: RealTarantool) -> list[list[list[object]]]:
    return box.eval("return box.space.s:select(), box.space.a:select()")


def clock_of(box: RealTarantool) -> dict[int, int]:
    return {key: lsn for key, lsn in box.eval("return box.info.vclock")[0].items() if key}


def has_all(log: logweir.Log, master: RealTarantool) -> bool:
    """Whether we have all rows of a master; ours may not be there."""
    return all(log.vclock.lsn(i) == lsn for i, lsn in clock_of(master).items())


def test_rows_wait_are_undone_and_confirmed(tmp_path: Path) -> None:
    """Behind a row that waits everything waits, over restarts; a ROLLBACK by a timeout undoes all
    of it, a CONFIRM applies it; what the master has at the end, we have."""
    with RealTarantool(tmp_path / "master") as master:
        master.eval(SETUP + LATER)
        asyncio.run(join(address(master), tmp_path / "ours"))
        with following(tmp_path / "ours", master) as serving:
            log = serving.log
            master.eval("box.space.s:insert{1} box.space.a:insert{1}")
            serving.wait(lambda: rows_of(log) == [[[1]], [[1]]])
            master.eval(NEVER + " later('s', 2) later('a', 2) later('s', 3)")
            serving.wait(lambda: log.waiting == 3 and has_all(log, master))
            assert rows_of(log) == [[[1]], [[1]]]
            with pytest.raises(RequestError) as refused:
                log.insert("a", (100,))
            assert refused.value.code == ErrorCode.UNCOMMITTED_FOREIGN_SYNC_TXNS
            downstream = "return box.info.replication[2].downstream.vclock"
            until(lambda: master.eval(downstream)[0] == clock_of(master))
        with following(tmp_path / "ours", master) as serving:
            log = serving.log
            assert log.waiting == 3
            assert rows_of(log) == [[[1]], [[1]]]
            master.eval("box.cfg{replication_synchro_timeout = 0.01} later('s', 4)")
            until(lambda: rows_in(master) == [[[1]], [[1]]])
            serving.wait(lambda: has_all(log, master) and log.waiting == 0)
            assert rows_of(log) == [[[1]], [[1]]]
            master.eval("box.cfg{replication_synchro_timeout = 1000} later('s', 5) later('a', 5)")
            serving.wait(lambda: log.waiting == 2)
            master.eval(ALWAYS)
            master.eval("box.space.s:insert{6}")
            serving.wait(lambda: has_all(log, master) and log.waiting == 0)
            assert rows_of(log) == rows_in(master) == [[[1], [5], [6]], [[1], [5]]]
            log.insert("a", (100,))
    with logweir.open(tmp_path / "ours") as log:
        assert rows_of(log) == [[[1], [5], [6]], [[1], [5], [100]]]


def replica_of(serving: Serving, folder: Path) -> RealTarantool:
    options = {
        "replication": f"127.0.0.1:{serving.port}",
        "replication_connect_timeout": 10,
        "replication_timeout": 0.3,
    }
    return RealTarantool(folder, listen=None, cfg=options)


def is_like(log: logweir.Log, box: RealTarantool) -> bool:
    """Whether a replica has reached our position; then its contents must be ours."""
    if dict(log.vclock.without_local()) != clock_of(box):
        return False
    assert rows_in(box) == rows_of(log)
    return True


def make_spaces(log: logweir.Log) -> None:
    for number, (name, options) in enumerate((("s", {"is_sync": True}), ("a", {})), 600):
        log.insert("_space", (number, 1, name, "memtx", 0, options, []))
        log.insert("_index", (number, 0, "p", "tree", {"unique": True}, [[0, "unsigned"]]))


def test_our_own_changes_are_confirmed_at_once(tmp_path: Path) -> None:
    """A real replica that joins, follows and restarts sees each change, can change others itself
    and can make a snapshot: nothing stays in its queue."""
    with Serving(tmp_path / "ours", guest="replicate") as serving:
        log = serving.log
        make_spaces(log)
        log.insert("s", (1000,))
        replica = replica_of(serving, tmp_path / "replica")
        with replica:
            until(lambda: is_like(log, replica))
            log.append("s", [(number,) for number in range(100)])
            with log.transaction() as tx:
                tx.insert("a", (1,))
                tx.insert("s", (100,))
            log.update("s", 7, [["!", 1, "x"]])
            with log.transaction() as tx:
                tx.delete("s", 8)
                tx.insert("a", (2,))
            log.insert("a", (3,))
            until(lambda: is_like(log, replica))
        log.append("s", [(number,) for number in range(200, 300)], one_transaction=True)
        log.delete("a", 1)
        with replica:
            until(lambda: is_like(log, replica))
            assert replica.eval("return box.info.replication[1].upstream.status") == ["follow"]
            # It waits for an empty queue, and so does a change of another instance.
            assert replica.eval("return (pcall(box.snapshot)), box.space.a:insert{50}") == [
                True,
                [50],
            ]
        kinds = [row.type_name for row in logweir.read(tmp_path / "ours")]
        assert kinds.count("CONFIRM") == 6
    with logweir.open(tmp_path / "ours") as log:
        assert (log.waiting, log.count("s")) == (0, 201)


def test_replica_joins_while_synchronous_changes_are_made(tmp_path: Path) -> None:
    """The end of a join may be anywhere among rows and their CONFIRMs."""
    with Serving(tmp_path / "ours", guest="replicate") as serving:
        log = serving.log
        make_spaces(log)
        log.append("a", [(number,) for number in range(20_000)])
        replica = replica_of(serving, tmp_path / "replica")
        replica.start(wait=False)
        try:
            for number in range(300):
                log.insert("s", (number,))
            replica.wait_ready()
            until(lambda: is_like(log, replica))
            log.insert("s", (1000,))
            until(lambda: is_like(log, replica))
        finally:
            replica.kill()


def test_chain_relays_rows_that_wait(tmp_path: Path) -> None:
    """A real replica behind us gets rows and decisions as they are, and does with them what it does
    with its master's; who joins while rows wait comes again until they do not, and what was rolled
    back during a join is not part of it."""
    with RealTarantool(tmp_path / "master") as master:
        master.eval(SETUP + LATER)
        asyncio.run(join(address(master), tmp_path / "ours"))
        options = {"follow": [address(master)], "guest": "replicate"}
        with Serving(tmp_path / "ours", **options) as serving:
            log = serving.log
            master.eval("box.space.s:insert{1} box.space.a:insert{1}")
            serving.wait(lambda: has_all(log, master) and log.waiting == 0)
            with replica_of(serving, tmp_path / "replica") as replica:
                until(lambda: is_like(log, replica))
                master.eval(NEVER + " later('s', 2) later('a', 2)")
                serving.wait(lambda: log.waiting == 2)
                until(lambda: clock_of(replica) == dict(log.vclock.without_local()))
                later = replica_of(serving, tmp_path / "later")
                later.start(wait=False)
                try:
                    until(lambda: "wait for their CONFIRM" in later.log_text())
                    master.eval("box.cfg{replication_synchro_timeout = 0.01}")
                    master.eval("later('s', 3)")
                    until(lambda: log.waiting == 0 and is_like(log, replica))
                    assert rows_of(log) == [[[1]], [[1]]]
                    later.wait_ready()
                    until(lambda: is_like(log, later))
                    master.eval("box.cfg{replication_synchro_timeout = 1000}" + ALWAYS)
                    master.eval("box.space.s:insert{4} box.space.a:insert{4}")
                    until(lambda: has_all(log, master) and rows_of(log) == rows_in(master))
                    until(lambda: is_like(log, replica) and is_like(log, later))
                    assert rows_of(log) == [[[1], [4]], [[1], [4]]]
                finally:
                    later.kill()


def test_final_rows_of_a_join_hold_nothing_that_was_undone(tmp_path: Path) -> None:
    """A replica of 2.6.0 shows what it joins with: so it is not sent what a ROLLBACK undid since,
    of any space, nor the decisions themselves."""
    with Serving(tmp_path / "ours", guest="replicate") as serving:
        log = serving.log
        make_spaces(log)
        start = log.vclock
        for lsn, space in enumerate("sasa", 1):
            feed(log, replace_row(lsn, space, lsn))
        feed(log, decision(RowType.ROLLBACK, 5, 3))
        feed(log, decision(RowType.CONFIRM, 6, 1))
        log.insert("a", (9, 0))
        with RawClient(serving.port) as client:
            body = {0x24: str(uuid.uuid4()), 0x26: dict(start)}
            answer = client.ask(RequestType.REGISTER, body)
            kinds = []
            while answer.header.type != RequestType.OK:
                kinds.append((answer.header.replica_id, answer.header.lsn, answer.header.type))
                answer = client.receive()
    ours, first = RowType.INSERT, start.lsn(1) + 1
    kept = [(5, lsn, RowType.REPLACE) for lsn in (1, 2)]
    nops = [(5, lsn, RowType.NOP) for lsn in (5, 6)]
    assert kinds == [*kept, *nops, (1, first, ours), (1, first + 1, ours)]


def test_final_rows_of_a_join_come_before_all_of_them_are_read(tmp_path: Path) -> None:
    """A replica that heard nothing until the log was looked through would give up; it still gets
    nothing that is undone further on."""
    with logweir.open(tmp_path) as log:
        make_spaces(log)
        start = log.vclock
        for number in range(100):
            log.insert("a", (number,))
        for lsn in range(1, 50):
            feed(log, replace_row(lsn, "s" if lsn == 1 else "a", 1000 + lsn))
        feed(log, decision(RowType.ROLLBACK, 50, 1))
        for number in range(100, 200):
            log.insert("a", (number,))
        end, schema = log.vclock, log.schema
    sent: list[tuple[bytes, VClock]] = []

    async def main() -> None:
        hub = Hub(lambda after: Follower(tmp_path, after))
        reader, ahead = (hub.reader(start, step_bytes=300) for _ in range(2))
        link = SimpleNamespace(write=lambda data: sent.append((bytes(data), ahead.vclock)))
        shared = SimpleNamespace(log=SimpleNamespace(schema=schema))
        conversation = cast(Conversation, SimpleNamespace(link=link, shared=shared))
        for _ in _last_rows(conversation, reader, ahead, start, end, 0):
            pass
        hub.close()

    asyncio.run(main())
    assert not sent[0][1].covers(end)
    packets = b"".join(data for data, _ in sent)
    rows = []
    while packets:
        size = 5 + int.from_bytes(packets[1:5], "big")
        row = RowColumns.scan(packets[5:size]).row(0)
        rows.append((row.replica_id, row.lsn, row.type))
        packets = packets[size:]
    first, ours = start.lsn(1) + 1, RowType.INSERT
    assert [one for one in rows if one[0] == 1] == [(1, first + n, ours) for n in range(200)]
    assert [one for one in rows if one[0] != 1] == [(5, 50, RowType.NOP)]


def test_join_in_which_rows_begin_to_wait_is_to_be_made_again(tmp_path: Path) -> None:
    """It is told so as one that comes while rows wait, and not by an error that ends a replica."""
    with Serving(tmp_path / "ours", guest="replicate") as serving:
        log = serving.log
        make_spaces(log)
        log.append("a", [(number, "x" * 500_000) for number in range(40)])  # more than sockets take
        with RawClient(serving.port) as client:
            client.send(client.frame(RequestType.JOIN, pack({0x24: str(uuid.uuid4())})))
            answer = client.receive()
            feed(log, replace_row(1, "s", 1))
            while not answer.is_error:
                answer = client.receive()
        assert answer.error().code == ErrorCode.LOADING
        assert "join again" in answer.error().message


TRAFFIC = """
local seed, base = ...
math.randomseed(seed)
fiber.create(function()
    for i = base, base + 100000 do
        if done then return end
        local quorum = (calm or math.random() < 0.6) and 1 or 9
        box.cfg{replication_synchro_quorum = quorum, replication_synchro_timeout = 0.02}
        pcall(box.space.s.insert, box.space.s, {i * 2})
        pcall(box.space.a.insert, box.space.a, {i * 2 + 1})
        fiber.sleep(math.random() * 0.005)
    end
end)
"""


def log_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.xlog"))


@pytest.mark.kill
def test_kills_amid_timeouts(tmp_path: Path) -> None:
    """A follower is killed at any moment amid rows that wait and are undone; afterwards it holds
    what its master does, also when its state is made anew from the log; and so says the folder of
    the master, when that is killed.

    The master is killed only at the end: 2.6.0 that has recovered rows which wait ends with a
    signal of its own (`txn_limbo_ack`) when they are acknowledged.
    """
    dice = random.Random(20261122)
    ours = tmp_path / "ours"
    waited = 0
    with RealTarantool(tmp_path / "master", cfg={"log_level": 4}) as master:
        master.eval(SETUP + LATER)
        asyncio.run(join(address(master), ours))
        master.eval(TRAFFIC, [1, 1_000_000])
        for _ in range(8):
            before = log_bytes(ours)
            words = ("follow", address(master), ours)
            follower = LOGWEIR.begin(*words, stdout=DEVNULL, stderr=DEVNULL)
            try:
                until(lambda before=before: log_bytes(ours) > before)
                master.eval("fiber.sleep(...)", [dice.random() / 2])
            finally:
                follower.kill()
                follower.wait()
            with logweir.open(ours) as log:
                waited += log.waiting
        master.eval("calm = true fiber.sleep(0.1)")
        with following(ours, master) as serving:
            master.eval("done = true fiber.sleep(0.1) box.space.s:insert{1}")
            serving.wait(lambda: has_all(serving.log, master) and serving.log.waiting == 0)
            held = rows_in(master)
            assert rows_of(serving.log) == held
        master.kill()
    assert len(held[0]) > 100
    assert waited, "no kill found anything that waits"
    shutil.rmtree(ours / "state")
    for folder in (ours, tmp_path / "master"):
        with logweir.open(folder) as log:
            assert rows_of(log) == held
        kinds = {row.type_name for row in logweir.read(folder)}
        assert {"CONFIRM", "ROLLBACK"} <= kinds


@pytest.mark.kill
def test_master_killed_amid_rows_that_wait(tmp_path: Path) -> None:
    """A master is killed while rows wait; a real replica of it decides about them in its place, and
    we, who follow both, hold then what it does. Before that nothing of them is seen.

    2.6.0 itself cannot go on: it shows what it has recovered as if it were confirmed, never decides
    about it, and ends with a signal at its next synchronous change.
    """
    dice = random.Random(20261122)
    outcomes = set()
    for number in range(6):
        folder = tmp_path / str(number)
        master = RealTarantool(folder / "master", cfg={"log_level": 4})
        with master, contextlib.ExitStack() as stack:
            master.eval(SETUP + LATER)
            options = {"replication": f"127.0.0.1:{master.port}", "replication_connect_timeout": 10}
            replica = stack.enter_context(RealTarantool(folder / "replica", cfg=options))
            asyncio.run(join(address(master), folder / "ours"))
            serving = stack.enter_context(
                Serving(folder / "ours", follow=[address(master), address(replica)])
            )
            log = serving.log
            master.eval("box.space.s:insert{1} box.space.a:insert{1}")
            serving.wait(lambda log=log: rows_of(log) == [[[1]], [[1]]])
            master.eval(
                NEVER + " later('s', 2)" + " later('a', 2) later('s', 3)" * dice.randrange(2)
            )
            serving.wait(lambda log=log: log.waiting > 0)
            until(lambda r=replica, m=master: clock_of(r) == clock_of(m))
            master.kill()
            assert rows_of(log) == [[[1]], [[1]]]
            quorum = (1, 9)[number % 2]
            replica.eval(
                "box.cfg{replication_synchro_quorum = ..., replication_synchro_timeout = 0.1}",
                [quorum],
            )
            replica.eval("box.ctl.clear_synchro_queue()")
            serving.wait(lambda log=log: log.waiting == 0)
            serving.wait(lambda log=log, r=replica: has_all(log, r))
            assert rows_of(log) == rows_in(replica)
            outcomes.add(log.count("s") > 1)
    assert outcomes == {True, False}


def test_a_join_of_a_master_whose_rows_wait_is_made_again(tmp_path: Path) -> None:
    """It says nothing to JOIN until its rows are decided; nothing was copied until then."""
    with RealTarantool(tmp_path / "master") as master:
        master.eval(SETUP + LATER + NEVER)
        master.eval("later('s', 1)")
        url = parse_url(f"{address(master)}?stall=1")
        with pytest.raises(Unreachable, match=r"said nothing for .* \(join\)"):
            asyncio.run(join(url, tmp_path / "ours"))
        assert not (tmp_path / "ours").exists()
        master.eval(ALWAYS)
        asyncio.run(join(url, tmp_path / "ours"))
        with logweir.open(tmp_path / "ours") as log:
            assert rows_of(log) == rows_in(master) == [[[1]], []]
