"""Answers of more than a turn: whatever else is answered meanwhile stands before or behind them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logweir
from interop.rawclient import RawClient
from interop.serving import Serving
from logweir.replication.iproto.server_session import ServerSession
from logweir.wal import failpoint
from logweir.wal.mp import pack

LARGE = "x" * 140_000  # more than an event loop writes itself, a third of it, too
BIG = [[number, "z" * 500_000] for number in range(24)]  # more than sockets hold
BEGIN = 14


class Sync:
    """The first sync of the log's thread, which waits until it may go on."""

    def __init__(self) -> None:
        self.waits, self.may_go_on = threading.Event(), threading.Event()
        failpoint.arm("wal.after_write_before_sync", self._hold)

    def _hold(self) -> None:
        self.waits.set()
        self.may_go_on.wait(20)


@pytest.fixture
def sync() -> Iterator[Callable[[], Sync]]:
    """Makes one, once what comes first is synced."""
    made: list[Sync] = []

    def make() -> Sync:
        made.append(Sync())
        return made[-1]

    yield make
    for one in made:
        one.may_go_on.set()
    failpoint.disarm()


def fill(log: logweir.Log) -> dict[str, int]:
    log.create_space("t")
    log.insert("t", (5, "five"))
    log.create_space("big")
    log.append("big", BIG)
    return {space.name: space.id for space in log.schema}


def answers(client: RawClient, count: int) -> dict[int, Any]:
    """What comes, by sync; each once."""
    found: dict[int, Any] = {}
    for _ in range(count):
        one = client.receive()
        assert not one.is_error, one.error()
        assert one.header.sync not in found
        found[one.header.sync] = one.body[0x30]
    return found


def requests(client: RawClient, ids: dict[str, int], *what: str | int) -> bytes:
    """A change, a read of one tuple, or a stream's of all in `big`."""
    made = []
    for one in what:
        if one == "change":
            made.append(client.frame(3, pack({0x10: ids["t"], 0x21: [9, LARGE]})))
        elif one == "read":
            made.append(client.frame(1, pack({0x10: ids["t"], 0x12: 1, 0x20: [5]})))
        else:
            body = {0x10: ids["big"], 0x11: 0, 0x12: 100, 0x13: 0, 0x14: 2, 0x20: []}
            made.append(client.frame(1, pack(body), int(one)))
    return b"".join(made)


def test_answer_to_a_change_waits_for_the_end_of_a_long_one(
    tmp_path: Path, sync: Callable[[], Sync], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is durable between the first byte of that and the next ones."""
    real = ServerSession.begin_answer
    with Serving(tmp_path, guest="all") as serving, RawClient(serving.port) as client:
        ids = fill(serving.log)
        assert not client.ask(BEGIN, {}, 1).is_error
        first = sync()
        finished = serving.server.shared._finished

        def begin(session: ServerSession, number: int, size: int) -> bytes:
            assert first.waits.wait(20)
            first.may_go_on.set()
            serving.wait(lambda: bool(finished))  # it is told in the loop's next turn
            return real(session, number, size)

        monkeypatch.setattr(ServerSession, "begin_answer", begin)
        client.send(requests(client, ids, "change", 1, "read"))
        found = answers(client, 3)
        assert list(found.values()) == [BIG, [[9, LARGE]], [[5, "five"]]]


def test_long_answer_of_a_stream_waits_for_the_batch_before_it(
    tmp_path: Path, sync: Callable[[], Sync], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what comes next would no more wait for it, and a second one begin inside of it."""
    began = threading.Event()
    real = ServerSession.begin_answer

    def begin(session: ServerSession, number: int, size: int) -> bytes:
        began.set()
        return real(session, number, size)

    monkeypatch.setattr(ServerSession, "begin_answer", begin)
    with (
        Serving(tmp_path, guest="all") as serving,
        RawClient(serving.port) as client,
        RawClient(serving.port) as other,
    ):
        ids = fill(serving.log)
        for stream in (1, 2):
            assert not client.ask(BEGIN, {}, stream).is_error
        first = sync()
        client.send(requests(client, ids, "change", "read", 1, 2, "read"))
        assert first.waits.wait(20)
        for _ in range(len(BIG) + 2):  # turns in which it would have begun
            assert not other.ask(64).is_error
        assert not began.is_set()
        first.may_go_on.set()
        found = answers(client, 5)
        assert [found[sync] for sync in sorted(found)] == [
            [[9, LARGE]],
            [[5, "five"]],
            BIG,
            BIG,
            [[5, "five"]],
        ]
