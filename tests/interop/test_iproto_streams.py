"""Streams and their transactions: our server, real connectors of today, raw frames."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.rawclient import RawClient
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from logweir.errors import StateFailed
from logweir.limits import TRIAL_BYTES, TRIALS
from logweir.replication import link
from logweir.replication.iproto.serve import trial
from logweir.replication.iproto.wire.requests import FEATURES, PROTOCOL_VERSION
from logweir.replication.service.shared import Shared
from logweir.replication.turns import Turn
from logweir.store.commit.jobs import Job
from logweir.wal.mp import pack

asynctnt = pytest.importorskip("asynctnt", reason="asynctnt is not installed")
tarantool = pytest.importorskip("tarantool", reason="tarantool-python is not installed")

SELECT, INSERT, REPLACE, UPDATE, DELETE, CALL, AUTH, EVAL = 1, 2, 3, 4, 5, 10, 7, 8
BEGIN, COMMIT, ROLLBACK, PING, VOTE, ID = 14, 15, 16, 64, 68, 73


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path / "store", functions="interop.functions", guest="all") as made:
        made.log.create_space("t", [("id", "unsigned"), ("n", "unsigned")], primary=["id"])
        made.log.create_index("t", "n", {"parts": ["n"], "unique": False})
        yield made


class Client(RawClient):
    """Statements on the space, in a stream."""

    def __init__(self, serving: Serving) -> None:
        super().__init__(serving.port)
        self.space = serving.log.schema.space("t").id

    def put(self, stream: int, *row: int, kind: int = REPLACE) -> int:
        """The error number of a change, 0 for none."""
        return self.code(stream, kind, {0x10: self.space, 0x21: list(row)})

    def add(self, stream: int, key: int, more: int) -> int:
        body = {0x10: self.space, 0x20: [key], 0x21: [["+", 1, more]]}
        return self.code(stream, UPDATE, body)

    def rows(self, stream: int, key: list[int] | None = None, index: int = 0) -> Any:
        body = {0x10: self.space, 0x11: index, 0x12: 1000, 0x20: key or []}
        answer = self.ask(SELECT, body, stream=stream)
        return int(answer.error().code) if answer.is_error else answer.body[0x30]

    def code(self, stream: int, kind: int, body: Any = None) -> int:
        answer = self.ask(kind, body, stream=stream)
        return int(answer.error().code) if answer.is_error else 0


def test_id_is_answered_before_login(tmp_path: Path) -> None:
    """With what we do, and nothing else; and so are its forms that cannot be."""
    with Serving(tmp_path / "store", guest="none") as serving, RawClient(serving.port) as client:
        assert client.greeting.version == (2, 11, 0)
        asked = {0x54: 6, 0x55: [0, 1, 2, 3, 999], 0x5B: "pap-sha256", 0x77: "?"}
        body = client.ask(ID, asked).body
        assert body == {0x54: PROTOCOL_VERSION, 0x55: list(FEATURES), 0x5B: "chap-sha1"}
        for wrong in (None, {0x54: "6"}, {0x55: 3}, {0x5B: 1}):
            assert int(client.ask(ID, wrong).error().code) == 20


def test_asynctnt_runs_transactions(serving: Serving) -> None:
    """In its own words: what a stream sees, what others see, commit, rollback, conflict."""

    async def main() -> None:
        async with asynctnt.Connection(host="127.0.0.1", port=serving.port) as connection:
            assert connection.features.streams
            assert connection.features.transactions
            async with connection.stream() as stream:
                await stream.insert("t", [1, 10])
                await stream.insert("t", {"id": 2, "n": 20})
                assert [tuple(row) for row in await stream.select("t")] == [(1, 10), (2, 20)]
                assert len(await connection.select("t")) == 0
            assert [tuple(row) for row in await connection.select("t")] == [(1, 10), (2, 20)]
            with contextlib.suppress(ZeroDivisionError):
                async with connection.stream() as stream:
                    await stream.delete("t", [1])
                    assert 1 / 0
            assert len(await connection.select("t")) == 2
            stream = connection.stream()
            await stream.begin(asynctnt.api.Isolation.READ_CONFIRMED, 30.0)
            assert [tuple(row) for row in await stream.select("t")] == [(1, 10), (2, 20)]
            await connection.update("t", [2], [["+", "n", 1]])
            await stream.update("t", [1], [["+", "n", 1]])
            with pytest.raises(asynctnt.exceptions.TarantoolDatabaseError) as caught:
                await stream.commit()
            assert caught.value.code == 97
            assert [tuple(row) for row in await connection.select("t")] == [(1, 10), (2, 21)]

    asyncio.run(main())


def test_tarantool_python_finds_the_protocol(serving: Serving) -> None:
    """It connects when it demands what we say, and refuses to when it demands more."""

    def connect(**demands: Any) -> Any:
        return tarantool.Connection("127.0.0.1", serving.port, **demands)

    connection = connect(required_protocol_version=PROTOCOL_VERSION, required_features=FEATURES)
    connection.insert("t", (1, 1))
    assert connection.select("t", 1).data == [[1, 1]]
    connection.close()
    with pytest.raises(tarantool.error.NetworkError, match="is required"):
        connect(required_protocol_version=PROTOCOL_VERSION + 1)


def test_a_transaction_is_one_in_the_log(serving: Serving) -> None:
    before = serving.log.vclock
    with Client(serving) as client:
        assert client.code(7, BEGIN) == 0
        for number in range(5):
            assert client.put(7, number, number, kind=INSERT) == 0
        assert client.put(7, 3, 3, kind=INSERT) == 3  # and the transaction goes on
        assert serving.log.vclock == before
        assert client.code(7, COMMIT) == 0
    transactions = list(serving.log.rows(before))
    assert [len(one.rows) for one in transactions] == [5]


def test_one_of_two_that_meet_is_refused(serving: Serving) -> None:
    """Lost updates, write skew and phantoms: who commits second has nothing done."""
    with Client(serving) as client:
        for key in (1, 2):
            client.put(0, key, 1)
        for stream in (1, 2):
            client.code(stream, BEGIN)
        assert [client.add(stream, 1, 10) for stream in (1, 2)] == [0, 0]
        assert client.put(2, 50, 50) == 0
        assert [client.code(stream, COMMIT) for stream in (2, 1)] == [0, 97]
        assert client.rows(0) == [[1, 11], [2, 1], [50, 50]]
        for stream, other in ((1, 2), (2, 1)):  # each writes what the other has read
            client.code(stream, BEGIN)
            assert len(client.rows(stream, [other])) == 1
            client.put(stream, stream, 0)
        assert [client.code(stream, COMMIT) for stream in (1, 2)] == [0, 97]
        for stream in (1, 2):
            client.code(stream, BEGIN)
            assert client.rows(stream, [77], index=1) == []
            client.put(stream, 100 + stream, 77)
        assert [client.code(stream, COMMIT) for stream in (1, 2)] == [0, 97]
        assert client.rows(0, [77], index=1) == [[101, 77]]
        client.code(1, BEGIN)
        assert client.put(1, 60, 1, kind=INSERT) == 0
        client.code(2, BEGIN)
        assert client.put(2, 60, 2, kind=INSERT) == 0
        assert client.put(2, 60, 2, kind=INSERT) == 3
        assert [client.code(stream, COMMIT) for stream in (1, 2)] == [0, 97]


def test_commits_that_come_together_share_a_job(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a transaction of its own in the log, or refused alone; of two connections, too."""
    monkeypatch.setattr(link, "Turn", lambda sent_bytes: Turn(sent_bytes, 1000.0))
    monkeypatch.setattr(trial, "TRIAL_SECONDS", 600.0)
    jobs: list[Job] = []
    submit = Shared.submit

    def noted(self: Shared, job: Job, *given: Any) -> None:
        jobs.append(job)
        submit(self, job, *given)

    monkeypatch.setattr(Shared, "submit", noted)
    streams = (1, 2, 3, 4)
    with Client(serving) as client:
        for stream in streams:
            client.code(stream, BEGIN)
            client.put(stream, 10 + stream, 0)
            client.put(stream, stream, 0, kind=INSERT)
        serving.log.insert("t", (3, 9))
        before = serving.log.vclock
        client.send(b"".join(client.frame(COMMIT, b"", stream=stream) for stream in streams))
        answers = sorted((client.receive() for _ in streams), key=lambda one: one.header.sync)
    assert [int(one.error().code) if one.is_error else 0 for one in answers] == [0, 0, 97, 0]
    assert [len(one.rows) for one in serving.log.rows(before)] == [2, 2, 2]
    assert [row[0] for row in serving.log.select("t")] == [1, 2, 3, 4, 11, 12, 14]
    assert len(jobs) == 1


def test_what_does_not_meet_is_committed(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blind writes of one key, and transactions that only read, are no conflict."""
    monkeypatch.setattr(trial, "TRIAL_SECONDS", 600.0)
    with Client(serving) as client:
        client.put(0, 1, 1)
        for stream in (1, 2, 3):
            client.code(stream, BEGIN)
        assert client.rows(3) == [[1, 1]]
        for stream in (1, 2):
            client.put(stream, 1, stream)
        assert [client.code(stream, COMMIT) for stream in (1, 2)] == [0, 0]
        assert client.rows(3) == [[1, 1]]  # of one moment
        assert client.code(3, COMMIT) == 0
        assert client.rows(3) == [[1, 2]]


def test_others_go_on_while_one_is_open(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same connection, of another one, and in the process itself."""
    monkeypatch.setattr(trial, "TRIAL_SECONDS", 600.0)
    with Client(serving) as client, Client(serving) as other:
        client.code(1, BEGIN)
        client.put(1, 1, 1)
        for number in range(10, 60):
            assert client.put(0, number, 0) == 0
            assert other.put(0, number + 100, 0) == 0
        serving.log.insert("t", (5, 5))
        assert len(other.rows(0)) == 101
        assert client.rows(1, [1]) == [[1, 1]]
        assert client.rows(1, [5]) == []
        assert client.code(1, COMMIT) == 97
        client.code(1, BEGIN)
        client.put(1, 1, 1)
        assert client.code(1, COMMIT) == 0
        assert len(other.rows(0)) == 102


def test_it_ends_with_its_connection(serving: Serving) -> None:
    with Client(serving) as client:
        client.code(1, BEGIN)
        client.put(1, 1, 1)
        assert serving.open_views == 1
    serving.wait(lambda: serving.open_views == 0)
    assert serving.log.count("t") == 0
    assert serving.server.listener.budget.requests_bytes == 0


def test_it_ends_with_its_time(serving: Serving) -> None:
    """Then statements and COMMIT are refused, and the stream can begin anew."""
    with Client(serving) as client:
        for end, code in ((COMMIT, 231), (ROLLBACK, 0)):
            assert client.code(1, BEGIN, {0x56: 0.05}) == 0
            client.put(1, 1, 1)
            serving.wait(lambda: serving.open_views == 0)
            assert client.rows(1) == 231
            assert client.put(1, 2, 2) == 231
            assert client.code(1, end) == code
        assert client.rows(1) == []


def test_what_cannot_be_is_refused(serving: Serving) -> None:
    with Client(serving) as client:
        assert [client.code(0, kind) for kind in (BEGIN, COMMIT, ROLLBACK)] == [230] * 3
        body = {0x23: "guest", 0x21: []}
        assert [client.code(1, kind, body) for kind in (AUTH, VOTE, ID, 65, 99)] == [229] * 5
        assert [client.code(1, kind) for kind in (PING, COMMIT, ROLLBACK)] == [0] * 3
        for wrong in ({0x56: 1}, {0x56: "1"}, {0x59: -1}, {0x59: 1.5}, []):
            assert client.code(1, BEGIN, wrong) == 20
        for wrong in ({0x56: -1.0}, {0x56: float("nan")}, {0x59: 5}):
            assert client.code(1, BEGIN, wrong) == 1
        assert client.code(1, BEGIN, {0x59: 4}) == 5
        for isolation in range(4):
            assert client.code(1, BEGIN, {0x59: isolation, 0x56: float("inf")}) == 0
            assert client.code(1, BEGIN) == 79
            assert client.code(1, CALL, {0x22: "add", 0x21: [1, 2]}) == 5
            assert client.code(1, EVAL, {0x27: "return 1", 0x21: []}) == 5
            for system in (272, 280, 288, 304, 312):
                assert client.code(1, INSERT, {0x10: system, 0x21: ["x", 1]}) == 5
            assert client.code(1, INSERT, {0x10: 9999, 0x21: [1]}) == 36
            assert client.put(1, 1, 1, kind=INSERT) == 0  # none of these has ended it
            assert client.code(1, ROLLBACK) == 0


@pytest.mark.tarantool
def test_a_tarantool_2_6_knows_no_streams(tmp_path: Path) -> None:
    """It passes over the id of a stream, and refuses what begins and ends transactions."""
    with RealTarantool(tmp_path / "box") as box:
        box.eval("box.schema.user.grant('guest', 'super')")
        assert box.port is not None
        with RawClient(box.port) as client:
            for kind in (BEGIN, COMMIT, ROLLBACK, ID):
                assert int(client.ask(kind, {}, stream=1).error().code) == 48
            answer = client.ask(EVAL, {0x27: "return 7", 0x21: []}, stream=1)
            assert answer.body[0x30] == [7]


def test_a_stream_is_in_order(serving: Serving) -> None:
    """What was sent at once: each request of the stream sees those before it, CALL too."""
    with Client(serving) as client:
        space = client.space
        asked: list[tuple[int, Any]] = []
        for number in range(20):
            asked.append((INSERT, {0x10: space, 0x21: [number, 0]}))
            asked.append((CALL, {0x22: "count", 0x21: ["t"]}))
            asked.append((BEGIN, None))
            asked.append((INSERT, {0x10: space, 0x21: [100 + number, 0]}))
            asked.append((COMMIT, None))
        frames = [client.frame(kind, pack(body) if body else b"", 9) for kind, body in asked]
        client.send(b"".join(frames))
        answers = [client.receive() for _ in asked]
        assert [answer.header.sync for answer in answers] == list(range(1, len(asked) + 1))
        counts = [answer.body[0x30][0] for answer in answers[1::5]]
        assert counts == [2 * number + 1 for number in range(20)]
    assert serving.log.count("t") == 40


def test_a_stream_without_a_transaction_is_no_slower_road(serving: Serving) -> None:
    """What is sent at once in streams, by name, is committed together, as what is in none."""
    rows = [(stream, number) for number in range(200) for stream in (0, 1, 2)]
    with Client(serving) as client:
        for body in ({0x10: client.space}, {0x5E: "t"}):
            frames = [
                client.frame(REPLACE, pack(body | {0x21: [number, stream]}), stream)
                for stream, number in rows
            ]
            before = serving.log.inner.commits
            client.send(b"".join(frames))
            found = [client.receive().body[0x30] for _ in rows]
            assert sorted(found) == sorted([[number, stream]] for stream, number in rows)
            assert serving.log.inner.commits - before <= 30


def test_statements_of_a_transaction_are_run_together(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once more together: what is sent at once is kept as a few runs."""
    kept: list[int] = []
    repeat = trial.Trial.repeat

    def counted(self: trial.Trial, group: Any) -> None:
        kept.append(len(self._statements))
        repeat(self, group)

    monkeypatch.setattr(trial.Trial, "repeat", counted)
    with Client(serving) as client:
        client.code(1, BEGIN)
        client.put(1, 7, 7, kind=INSERT)
        bodies = [
            *((INSERT, {0x5E: "t", 0x21: [number, number]}) for number in range(300)),
            *((SELECT, {0x10: client.space, 0x12: 9, 0x20: [n], 0x1F: True}) for n in range(300)),
        ]
        client.send(b"".join([client.frame(kind, pack(body), 1) for kind, body in bodies]))
        answers = [client.receive() for _ in bodies]
        assert [int(one.error().code) for one in answers if one.is_error] == [3]
        assert [one.body[0x30] for one in answers[300:]] == [[[n, n]] for n in range(300)]
        assert serving.log.count("t") == 0
        assert client.code(1, COMMIT) == 0
    assert serving.log.count("t") == 300
    assert kept[0] < 100


def test_a_run_in_a_transaction_is_answered_as_its_parts(serving: Serving) -> None:
    """Of several streams in one, some of which have a transaction, with a SELECT that is long."""
    serving.log.create_space("wide", [("id", "unsigned"), ("text", "string")], primary=["id"])
    wide = serving.log.schema.space("wide").id
    text = "x" * 100_000
    for number in range(8):
        serving.log.insert("wide", (number, text))
    with Client(serving) as client:
        client.put(0, 1, 1)
        for stream in (1, 2):
            assert client.code(stream, BEGIN) == 0
        asked: list[tuple[int, int, Any]] = []
        for number in range(6):
            for stream in (0, 1, 2, 3):
                body = {0x10: client.space, 0x21: [10 * stream + number, number]}
                asked.append((stream, INSERT, body))
            asked.append((1 + number % 2, SELECT, {0x10: wide, 0x12: 9, 0x20: []}))
        for stream in (0, 1, 2, 3):
            asked.append((stream, SELECT, {0x10: client.space, 0x12: 99, 0x20: [], 0x14: 5}))
        asked += [(1, COMMIT, None), (2, ROLLBACK, None)]
        client.send(
            b"".join(
                [client.frame(kind, pack(body) if body else b"", s) for s, kind, body in asked]
            )
        )
        first = client._sync - len(asked) + 1
        answers = {one.header.sync - first: one for one in (client.receive() for _ in asked)}
        bad = {at: int(one.error().code) for at, one in answers.items() if one.is_error}
        assert bad == {asked.index((0, INSERT, {0x10: client.space, 0x21: [1, 1]})): 3, 34: 97}
        for at, (stream, kind, body) in enumerate(asked):
            if kind == SELECT and body[0x10] == wide:
                assert [row[0] for row in answers[at].body[0x30]] == list(range(8))
            elif kind == SELECT and stream in (1, 2):
                own = [[10 * stream + number, number] for number in range(6)]
                assert answers[at].body[0x30] == [[1, 1], *own]


def test_a_long_read_in_a_stream_keeps_its_place(serving: Serving) -> None:
    """Behind a request that others of the stream wait for, without and in a transaction."""
    serving.log.create_space("wide", [("id", "unsigned"), ("text", "string")], primary=["id"])
    wide = serving.log.schema.space("wide").id
    for number in range(8):
        serving.log.insert("wide", (number, "x" * 100_000))
    with Client(serving) as client:
        read = (SELECT, {0x10: wide, 0x12: 99, 0x20: []})
        put = [(REPLACE, {0x10: wide, 0x21: [8 + number, ""]}) for number in range(4)]
        asked: list[tuple[int, Any]] = [(CALL, {0x22: "count", 0x21: ["t"]})]
        asked += [read, (ROLLBACK, None), put[0], read, read, put[1], (BEGIN, None)]
        asked += [put[2], read, read, put[3], (COMMIT, None)]
        frames = [client.frame(kind, pack(body) if body else b"", 5) for kind, body in asked]
        client.send(b"".join(frames))
        answers = sorted((client.receive() for _ in asked), key=lambda one: one.header.sync)
        assert not [one.error() for one in answers if one.is_error]
        found = [
            len(one.body[0x30])
            for one, (kind, _) in zip(answers, asked, strict=True)
            if kind == SELECT
        ]
        assert found == [8, 9, 9, 11, 11]


@pytest.mark.parametrize("beside", [[], [2], [0, 2]])
def test_names_are_those_that_a_stream_has_changed_before(
    serving: Serving, beside: list[int]
) -> None:
    """Also of requests that were sent at once, alone or among those of others; nothing of them
    counts as unanswered behind that."""
    serving.log.create_space("u", [("id", "unsigned")])
    with Client(serving) as client:
        rename = {0x10: 280, 0x20: [client.space], 0x21: [["=", 2, "renamed"]]}
        asked: list[tuple[int, int, Any]] = [(1, UPDATE, rename)]
        for number in range(3):
            asked += [(other, REPLACE, {0x5E: "u", 0x21: [other + number]}) for other in beside]
            asked.append((1, REPLACE, {0x5E: "t", 0x21: [number, 1]}))
            asked.append((1, REPLACE, {0x5E: "renamed", 0x21: [number, 2]}))
            asked.append((1, SELECT, {0x5E: "renamed", 0x5F: "n", 0x12: 9, 0x20: [2]}))
        client.send(b"".join([client.frame(kind, pack(body), s) for s, kind, body in asked]))
        answers = sorted((client.receive() for _ in asked), key=lambda one: one.header.sync)
        found = [
            int(answer.error().code) if answer.is_error else answer.body[0x30]
            for answer, (stream, _, _) in zip(answers, asked, strict=True)
            if stream == 1
        ]
        rows = [[number, 2] for number in range(3)]
        assert found[1:] == [
            one for number in range(3) for one in (36, [rows[number]], rows[: number + 1])
        ]
        assert client.code(0, PING) == 0
        assert serving.server.listener.budget.requests_bytes == 0


def test_what_is_read_before_a_transaction_goes_on_is_answered_once(serving: Serving) -> None:
    """It is sent at once with reads of the transaction, which sees its own changes."""
    with Client(serving) as client:
        client.code(1, BEGIN)
        client.put(1, 1, 1)
        read = {0x10: client.space, 0x12: 9, 0x20: []}
        streams = [0, 2, 0, 1, 0, 1, 1, 2]
        client.send(b"".join([client.frame(SELECT, pack(read), stream) for stream in streams]))
        first = client._sync - len(streams) + 1
        answers = {one.header.sync - first: one for one in (client.receive() for _ in streams)}
        found = [answers[at].body[0x30] for at in range(len(streams))]
        assert found == [[[1, 1]] if stream == 1 else [] for stream in streams]
        assert client.code(0, PING) == 0  # nothing else came


def test_what_cannot_be_run_is_refused_and_leaves_nothing(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction and its connection go on without it."""
    execute_run = trial.execute_run

    def broken(*given: Any, **how: Any) -> int:
        execute_run(*given, **how)
        raise StateFailed("it is broken")

    with Client(serving) as client:
        client.code(1, BEGIN)
        client.put(1, 1, 1)
        with monkeypatch.context() as patch:
            patch.setattr(trial, "execute_run", broken)
            assert client.put(1, 2, 2) == 40
        assert client.rows(1) == [[1, 1]]
        assert client.code(1, COMMIT) == 0
        assert client.rows(0) == [[1, 1]]


def test_a_transaction_that_has_failed_says_so_before_all_else(serving: Serving) -> None:
    with Client(serving) as client:
        client.code(1, BEGIN, {0x56: 0.01})
        serving.wait(lambda: serving.open_views == 0)
        assert client.code(1, REPLACE, {0x10: 9999, 0x21: [1]}) == 231
        assert client.code(1, ROLLBACK) == 0


@pytest.mark.parametrize("changed", [False, True])
def test_one_that_rests_has_no_view(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    """It is woken by its next statement, where all before still hold; else it has failed."""
    monkeypatch.setattr(trial, "TRIAL_SECONDS", 0.02)
    with Client(serving) as client:
        client.put(0, 1, 1)
        client.code(1, BEGIN)
        assert client.rows(1, [1]) == [[1, 1]]
        client.put(1, 2, 2)
        serving.wait(lambda: serving.open_views == 0)
        serving.log.replace("t", (1 if changed else 9, 9))
        if changed:
            assert client.rows(1) == 97
            assert client.put(1, 3, 3) == 97
            assert client.code(1, COMMIT) == 97
            assert client.rows(0) == [[1, 9]]
        else:
            assert client.rows(1, [2]) == [[2, 2]]
            assert client.code(1, COMMIT) == 0
            assert client.rows(0) == [[1, 1], [2, 2], [9, 9]]


def test_a_failed_log_begins_nothing(serving: Serving) -> None:
    """BEGIN is refused as a change is, and so is what would wake a transaction; nothing is left."""
    serving.log.insert("t", (1, 1))
    with Client(serving) as client:
        client.code(1, BEGIN)
        client.put(1, 2, 2)
        serving.log._committer.failure = StateFailed("it is broken")
        try:
            assert client.code(2, BEGIN) == 40
            assert client.rows(1, [1]) == [[1, 1]]
            assert client.code(1, COMMIT) == 40
        finally:
            serving.log._committer.failure = None
        assert client.rows(0) == [[1, 1]]
    serving.wait(lambda: serving.open_views == 0)


def test_the_state_grows_while_one_is_open(serving: Serving) -> None:
    """It gives its view back, and goes on with another one."""
    with Client(serving) as client:
        client.code(1, BEGIN)
        client.put(1, 1, 1)
        growing = threading.Thread(target=serving.log._committer.viewers.grow)
        growing.start()
        growing.join(10)
        assert not growing.is_alive()
        assert client.rows(1) == [[1, 1]]
        assert client.code(1, COMMIT) == 0


def test_many_are_open(serving: Serving) -> None:
    """More than there are views."""
    with Client(serving) as client:
        streams = range(1, 2 * TRIALS)
        for stream in streams:
            assert client.code(stream, BEGIN) == 0
            assert client.put(stream, stream, stream, kind=INSERT) == 0
            assert serving.open_views <= TRIALS
        assert [client.code(stream, COMMIT) for stream in streams] == [0] * len(streams)
    assert serving.log.count("t") == len(streams)


def test_memory_of_one_is_bounded(serving: Serving) -> None:
    """One statement more is refused, and what was done before can be committed."""
    serving.log.create_space("wide", [("id", "unsigned"), ("text", "string")], primary=["id"])
    space = serving.log.schema.space("wide").id
    with Client(serving) as client:
        client.code(1, BEGIN)
        codes = [
            client.code(1, INSERT, {0x10: space, 0x21: [number, "x" * 500_000]})
            for number in range(TRIAL_BYTES // 500_000)
        ]
        assert set(codes) == {0, 2}
        assert serving.server.listener.budget.requests_bytes <= TRIAL_BYTES
        assert client.code(1, COMMIT) == 0
        assert serving.log.count("wide") == codes.count(0)
        assert serving.server.listener.budget.requests_bytes == 0
