"""SELECTs beside changes of one batch: what these do not touch is answered while they are written;
all else once they are durable, or refused with them."""

from __future__ import annotations

import errno
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logweir
from interop.rawclient import RawClient
from interop.serving import Serving
from logweir.recovery.faults.faulty import Fault, FaultyFileSystem
from logweir.replication.iproto.serve.statements import Outcome, execute_all
from logweir.replication.iproto.wire.requests import encode_request
from logweir.replication.iproto.wire.runs import take_run
from logweir.store.commit.group import Group
from logweir.store.engine import definitions, executing
from logweir.store.engine.request import Request
from logweir.wal import failpoint
from logweir.wal.filesystem import OS

LARGE = "x" * 40_000  # more than an event loop writes itself
BY_GROUP = {"parts": [1], "unique": False}
ROWS = [(1, 10, "old"), (2, 20, "two"), (4, 40, "four")]
ASKED: list[tuple[int, dict[int, Any]]] = [
    (3, {0x21: [9, 90, LARGE]}),
    (3, {0x21: [1, 10, "new"]}),
    (1, {0x20: [2]}),
    (1, {0x20: [1]}),
    (1, {0x20: [3]}),
    (1, {0x20: [4]}),
    (1, {0x12: 2, 0x14: 5, 0x20: [2]}),
]
FREE = {3: [[2, 20, "two"]], 5: [], 6: [[4, 40, "four"]]}
BOUND = {4: [[1, 10, "new"]], 7: [[2, 20, "two"], [4, 40, "four"]]}
"""A range says something of the whole index."""

compiled = pytest.mark.skipif(not executing.COMPILED, reason="nothing was compiled")


def stream(asked: list[tuple[int, dict[int, Any]]]) -> bytes:
    return b"".join(
        encode_request(kind, sync, {0x10: 512, **({0x12: 1} if kind == 1 else {}), **body})
        for sync, (kind, body) in enumerate(asked, 1)
    )


def fill(log: logweir.Log) -> None:
    log.create_space("t", indexes={"group": BY_GROUP})
    for row in ROWS:
        log.insert("t", row)


@pytest.fixture
def at_failpoint() -> Iterator[Callable[[str, Callable[[], None]], None]]:
    """Arms failpoints of this process, and disarms them."""
    yield failpoint.arm
    failpoint.disarm()


@compiled
def test_reads_do_not_wait_for_changes_that_they_do_not_see(
    tmp_path: Path, at_failpoint: Callable[[str, Callable[[], None]], None]
) -> None:
    """While the log's sync waits they are answered, in their order, and nothing else is."""
    waits, may_sync = threading.Event(), threading.Event()

    def hold() -> None:
        waits.set()
        may_sync.wait(20)

    with Serving(tmp_path, guest="all") as serving, RawClient(serving.port) as client:
        fill(serving.log)
        at_failpoint("wal.after_write_before_sync", hold)
        client.send(stream(ASKED))
        assert waits.wait(20)
        found = {one.header.sync: one.body[0x30] for one in (client.receive() for _ in FREE)}
        assert found == FREE
        assert list(found) == sorted(found)
        assert not select.select([client.socket], [], [], 0)[0], "answered before it was synced"
        assert serving.log.get("t", 1) == ROWS[0]
        may_sync.set()
        rest = [client.receive() for _ in range(len(ASKED) - len(FREE))]
        assert [one.header.sync for one in rest] == [1, 2, 4, 7]
        assert {one.header.sync: one.body[0x30] for one in rest[2:]} == BOUND
        assert client.ask(1, {0x10: 512, 0x12: 1, 0x20: [1]}).body[0x30] == [[1, 10, "new"]]


@compiled
def test_each_request_has_one_answer_where_the_disk_is_full(tmp_path: Path) -> None:
    """The reads keep theirs, which was true; what saw the changes is read again without them."""
    disk = FaultyFileSystem(OS)
    options = {"filesystem": disk}
    with (
        Serving(tmp_path, guest="all", open_options=options) as serving,
        RawClient(serving.port) as client,
    ):
        fill(serving.log)
        disk.fault = Fault(1, {"write"}, errno.ENOSPC, part=0.5, lasts=True)
        client.send(stream(ASKED))
        answers = {one.header.sync: one for one in (client.receive() for _ in ASKED)}
        disk.fault = None
        assert {sync for sync, one in answers.items() if one.is_error} == {1, 2}
        assert {sync: answers[sync].body[0x30] for sync in FREE} == FREE
        assert answers[4].body[0x30] == [[1, 10, "old"]]
        assert answers[7].body[0x30] == BOUND[7]
        assert client.ask(3, {0x10: 512, 0x21: [5, 50, ""]}).body[0x30] == [[5, 50, ""]]
        assert serving.log.select("t") == [*ROWS, (5, 50, "")]


def free_of(folder: Path, asked: list[tuple[int, dict[int, Any]]], **how: bool) -> set[int]:
    """The syncs of the answers that are free, in a group that is given up then."""
    run = take_run(stream(asked), 0, 0)
    assert run is not None
    assert run.count == len(asked)
    found: list[Outcome] = []

    class GivenUp(Exception):
        pass

    def apply(group: Group) -> None:
        if how.get("truncates"):
            requests, _ = definitions.truncate(group.engine, "t")
            for request in requests:
                assert isinstance(request, Request)
                group.execute(request)
        is_aside = how.get("is_aside", True)
        found.append(execute_all(group, [run], None, lambda schema: 0, lambda: is_aside))
        raise GivenUp

    with logweir.open(folder) as log:
        fill(log)
        with pytest.raises(GivenUp):
            log.inner.run(apply)
    (outcome,) = found
    assert outcome.count == run.count
    assert not outcome.left
    return {run.syncs[number] for number in outcome.numbers(run)}


READS: list[tuple[int, dict[int, Any]]] = [
    (1, {0x20: [1]}),
    (1, {0x12: 9, 0x14: 2, 0x20: []}),
    (1, {0x12: 9, 0x11: 1, 0x20: [10]}),
    (1, {0x12: 9, 0x11: 1, 0x20: [20]}),
    (1, {0x20: [3]}),
]


@compiled
@pytest.mark.parametrize(
    ("change", "free"),
    [
        ((2, {0x21: [1, 10, "refused"]}), {2, 3, 4, 5, 6}),
        ((3, {0x21: [1, 10, "new"]}), {5, 6}),  # another entry of its index is not touched
        ((3, {0x21: [1, 30, "new"]}), {6}),
        ((4, {0x20: [1], 0x21: [["=", 2, "new"]]}), {5, 6}),
        ((5, {0x20: [1]}), {6}),
        ((5, {0x20: [3]}), {2, 3, 4, 5, 6}),
        ((9, {0x21: [3, 20, ""], 0x28: [["=", 2, ""]]}), {2}),
    ],
    ids=["refused", "replace", "moved", "update", "delete", "nothing", "upsert"],
)
def test_free_is_what_saw_no_change_of_the_group(
    tmp_path: Path, change: tuple[int, dict[int, Any]], free: set[int]
) -> None:
    """By key exactly, of a range by its index and by the tuples that it found."""
    assert free_of(tmp_path, [change, *READS]) == free


@compiled
def test_nothing_is_free_where_it_would_go_out_no_earlier_or_was_cleared(tmp_path: Path) -> None:
    """In the event loop's own thread; and of a space that this very group empties."""
    asked = [(3, {0x21: [1, 10, "new"]}), *READS]
    assert free_of(tmp_path / "here", asked, is_aside=False) == set()
    assert free_of(tmp_path / "cleared", READS, truncates=True) == set()
