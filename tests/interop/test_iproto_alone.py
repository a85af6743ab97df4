"""Few changes at a time: they are made in the loop's thread, as long as the disk is quick."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import logweir
from interop.rawclient import RawClient
from interop.serving import Serving
from logweir.errors import ErrorCode
from logweir.recovery.faults import Fault, FaultyFileSystem
from logweir.replication.iproto.serve import trial
from logweir.replication.iproto.wire import codec
from logweir.replication.protocols import parse_listen_url
from logweir.replication.service import line, users
from logweir.replication.service.shared import Shared
from logweir.store.commit.jobs import CommitQueue, Job
from logweir.store.schema.access import Privilege
from logweir.store.state import stacked
from logweir.wal.filesystem import OS
from logweir.wal.mp import pack

REPLACE, BEGIN, COMMIT = 3, 14, 15


@pytest.fixture
def made_now(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry for each group of changes that were put in line together: whether it was made at
    once, in the loop's thread. No disk is slow for it."""
    monkeypatch.setattr(line, "_QUICK_SECONDS", 1000.0)
    found: list[bool] = []
    at_once, in_line = Shared._is_made_at_once, Shared._put_in_line

    def noted(self: Shared, jobs: list[Job]) -> bool:
        found[-1] = at_once(self, jobs)
        return found[-1]

    def put(self: Shared) -> None:
        found.append(False)
        in_line(self)

    monkeypatch.setattr(Shared, "_is_made_at_once", noted)
    monkeypatch.setattr(Shared, "_put_in_line", put)
    return found


def make_store(folder: Path) -> Path:
    """With a plain space and one of two indexes."""
    fields = [("id", "unsigned"), ("n", "unsigned")]
    with logweir.open(folder) as log:
        log.create_space("t", fields, primary=["id"])
        log.create_space("u", fields, primary=["id"], indexes={"n": ("n",)})
    return folder


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Serving]:
    """A server of such a store."""
    with Serving(make_store(tmp_path / "s"), guest="all") as serving:
        yield serving


def replace(client: RawClient, space: int, *row: object) -> codec.Answer:
    """REPLACE of one tuple."""
    return client.ask(REPLACE, {0x10: space, 0x21: list(row)})


def alone(client: RawClient, space: int, made_now: list[bool]) -> None:
    """Change the same again until it is made at once."""
    for number in range(1000):
        assert not replace(client, space, 1, number).is_error
        if made_now and made_now[-1]:
            return
    pytest.fail("never made at once")


def test_what_is_made_at_once_is_answered_and_read_as_ever(
    tmp_path: Path, made_now: list[bool]
) -> None:
    """By the same connection, by another one, and after the store was opened again."""
    with Serving(make_store(tmp_path / "s"), guest="all") as served:
        space = served.log.schema.space("t").id
        with RawClient(served.port) as one, RawClient(served.port) as other:
            for number in range(200):
                answer = replace(one, space, number % 7, number)
                assert answer.body == {0x30: [[number % 7, number]]}
                if number % 50 == 49:
                    for client in (one, other):
                        found = client.ask(1, {0x10: space, 0x12: 1, 0x20: [number % 7]})
                        assert found.body == {0x30: [[number % 7, number]]}
    assert any(made_now)
    with logweir.open(tmp_path / "s") as log:
        assert log.select("t") == [(number % 7, number) for number in range(196, 200)] + [
            (number % 7, number) for number in range(193, 196)
        ]


@pytest.mark.parametrize("durability", ["write", "none"])
def test_changes_beside_an_open_transaction_are_made_at_once(
    tmp_path: Path, made_now: list[bool], monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """Whose view is in nobody's way as long as the state has room; else the log's thread does."""
    monkeypatch.setattr(trial, "TRIAL_SECONDS", 600.0)
    options = {"durability": durability}
    with Serving(make_store(tmp_path / "s"), open_options=options, guest="all") as served:
        space = served.log.schema.space("t").id
        with RawClient(served.port) as client:
            alone(client, space, made_now)
            made_now.clear()
            client.ask(BEGIN, stream=1)
            assert client.ask(REPLACE, {0x10: space, 0x21: [2, 2]}, stream=1).body
            assert replace(client, space, 1, 5).body == {0x30: [[1, 5]]}
            with monkeypatch.context() as patch:
                patch.setattr(stacked, "LAYER_BYTES", 0)
                assert replace(client, space, 1, 6).body == {0x30: [[1, 6]]}
            assert not client.ask(COMMIT, stream=1).is_error
        assert made_now == [True, False, True]
        assert served.log.select("t") == [(1, 6), (2, 2)]


def test_what_is_refused_is_refused_as_ever(served: Serving, made_now: list[bool]) -> None:
    """With the errors of the ordinary way, and what comes next is made."""
    plain, indexed = (served.log.schema.space(name).id for name in "tu")
    with RawClient(served.port) as client:
        alone(client, plain, made_now)
        for space, row, code in (
            (plain, [1, "text"], ErrorCode.FIELD_TYPE),
            (plain, [], ErrorCode.FIELD_MISSING),
            (9999, [1, 1], ErrorCode.NO_SUCH_SPACE),
        ):
            before = served.log.vclock
            assert replace(client, space, *row).error().code == code
            assert served.log.vclock == before
            assert replace(client, plain, 1, 5).body == {0x30: [[1, 5]]}
        assert replace(client, indexed, 1, 6).body == {0x30: [[1, 6]]}
        answer = replace(client, indexed, 2, 6)
        assert answer.error().code == ErrorCode.TUPLE_FOUND
        request = pack({0: REPLACE, 1: 77, 5: 3}) + pack({0x10: plain, 0x21: [1, 1]})
        client.send(codec.frame(request))
        assert client.receive().error().code == ErrorCode.WRONG_SCHEMA_VERSION


def test_changes_of_two_connections_that_came_together_are_one_group(
    served: Serving, made_now: list[bool]
) -> None:
    """What came while the loop was busy; in turn each is made by itself."""
    space = served.log.schema.space("t").id
    entered, gate = threading.Event(), threading.Event()

    def busy() -> None:
        entered.set()
        gate.wait(30)

    with RawClient(served.port) as one, RawClient(served.port) as other:
        alone(one, space, made_now)
        made_now.clear()
        before = served.log.inner.commits
        for number in range(50):
            assert replace(one, space, 1, number).body == {0x30: [[1, number]]}
            assert replace(other, space, 2, number).body == {0x30: [[2, number]]}
        assert served.log.inner.commits == before + 100
        assert served.log.select("t") == [(1, 49), (2, 49)]
        made_now.clear()
        served._loop.call_soon_threadsafe(busy)
        assert entered.wait(30)
        for sync, client in ((71, one), (72, other)):
            body = pack({0x10: space, 0x21: [sync, sync]})
            client.send(codec.frame(pack({0: REPLACE, 1: sync}) + body))
        gate.set()
        for sync, client in ((71, one), (72, other)):
            assert client.receive().body == {0x30: [[sync, sync]]}
        assert served.log.inner.commits == before + 101
        assert made_now == [True]


def test_a_failed_write_is_told_and_the_next_change_made(
    tmp_path: Path, made_now: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    """Error 40 and a line in the log, nothing in the space, and the connection stays."""
    faulty = FaultyFileSystem(OS)
    with logweir.open(tmp_path / "s") as log:
        log.create_space("t", [("id", "unsigned"), ("n", "unsigned")], primary=["id"])
    options = {"filesystem": faulty}
    with Serving(tmp_path / "s", open_options=options, guest="all") as serving:
        space = serving.log.schema.space("t").id
        with RawClient(serving.port) as client:
            alone(client, space, made_now)
            faulty.fault = Fault(faulty._counted + 1, {"write"}, errno.ENOSPC)
            answer = replace(client, space, 2, 2)
            assert answer.error().code == ErrorCode.WAL_IO
            assert "no space left on device" in caplog.text
            assert serving.log.get("t", 2) is None
            assert replace(client, space, 2, 3).body == {0x30: [[2, 3]]}
            assert serving.log.get("t", 2) == (2, 3)


@pytest.mark.parametrize("odd", [{}, {0x1F: False}])  # what is odd is no part of a run
def test_reads_behind_changes_that_fail_are_answered(tmp_path: Path, odd: dict[int, bool]) -> None:
    """In one write, behind a change that the failed log refuses, and behind one that the rights
    do, whose user has none to change."""
    faulty = FaultyFileSystem(OS)
    listen, options = [parse_listen_url("tarantool://:0")], {"filesystem": faulty}
    with Serving(make_store(tmp_path / "s"), listen=listen, open_options=options) as serving:
        space, other = (serving.log.schema.space(name).id for name in "tu")
        serving.log.insert("t", (1, 1))
        users.grant(serving.log, "guest", Privilege.READ, users.Target("space", "t"))
        users.grant(serving.log, "guest", Privilege.WRITE, users.Target("space", "u"))
        faulty.fault = Fault(1, {"sync"}, errno.EIO, lasts=True)
        change = {0x10: other, 0x21: [1, 1]}
        read = {0x10: space, 0x12: 10, 0x20: [1], **odd}
        asked = [(REPLACE, change), (1, read), (REPLACE, {**change, 0x10: space})]
        asked += [(1, read), (2, change), (1, read)]
        with RawClient(serving.port) as client:
            client.send(b"".join(client.frame(one, pack(body)) for one, body in asked))
            answers = {one.header.sync: one for one in (client.receive() for _ in asked)}
            found = [answers[sync] for sync in sorted(answers)]
            assert [one.body for one in found if not one.is_error] == [{0x30: [[1, 1]]}] * 3
            codes = [one.error().code for one in found if one.is_error]
            assert codes == [40, 42, 40]


def test_who_has_the_log_meanwhile_is_waited_for(served: Serving, made_now: list[bool]) -> None:
    """A transaction of the program itself: the change is made behind it, not refused."""
    space = served.log.schema.space("t").id
    with RawClient(served.port) as client:
        alone(client, space, made_now)
        with served.log.transaction() as tx:
            tx.replace("t", (5, 1))
            client.send(codec.frame(pack({0: REPLACE, 1: 77}) + pack({0x10: space, 0x21: [5, 2]})))
            queue: CommitQueue = served.log.inner.queue
            served.wait(lambda: queue._line)
        assert client.receive().body == {0x30: [[5, 2]]}
        assert served.log.get("t", 5) == (5, 2)


def test_a_slow_disk_is_left_to_another_thread_until_it_is_quick_again(
    served: Serving, made_now: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One slow change tells nothing, two do, and some quick ones make up for it."""
    monkeypatch.setattr(line, "_ASIDE_SECONDS", 1000.0)
    space = served.log.schema.space("t").id
    with RawClient(served.port) as client:
        alone(client, space, made_now)
        made_now.clear()
        monkeypatch.setattr(line, "_QUICK_SECONDS", -1.0)
        for number in range(20):
            assert replace(client, space, 1, number).body == {0x30: [[1, number]]}
        assert made_now == [True] * 2 + [False] * 18
        monkeypatch.setattr(line, "_QUICK_SECONDS", 1000.0)
        made_now.clear()
        alone(client, space, made_now)
        assert len(made_now) > 16
