"""One follower of our listener must not hold the others up, nor miss what comes while it asks."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.synapseclient import Client

from interop.serving import Serving
from logweir.replication.httpsession import Request
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.runner import SourceState
from logweir.replication.synapse.push import Delivery, Streams
from logweir.replication.synapse.serve import endpoint
from logweir.replication.synapse.serve.endpoint import Conversation
from logweir.replication.synapse.serve.shown import Shown
from logweir.replication.synapse.serve.updates import UpdatesService
from logweir.store.inner import Inner
from logweir.store.log import Log
from logweir.wal.directory import scan_directory

FLOOD = 20_000


def space(log: Log, name: str, rows: int = 0) -> None:
    """A space with rows."""
    log.create_space(name, [("id", "unsigned"), ("v", "any")], primary=["id"])
    if rows:
        log.append(name, ([number, "x" * 20] for number in range(rows)))


@contextmanager
def reading(client: Client) -> Iterator[list[str]]:
    """A client that takes all that comes as fast as it can: its lines but for rows."""
    found: list[str] = []

    def read() -> None:
        with contextlib.suppress(ConnectionResetError):  # it had not read all that was sent
            while line := client.line():
                if not line.startswith("RDATA "):
                    found.append(line)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield found
    client.shut()
    thread.join(30)
    assert not thread.is_alive()


def test_a_question_is_answered_when_its_task_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one look at all connections later: beside a flood each takes the flood's turns."""
    rounds: list[int] = []
    ask, send = Conversation._ask, Conversation._send

    def tick() -> None:
        rounds[-1] += 1
        if len(rounds) == 1:
            asyncio.get_running_loop().call_soon(tick)

    def asked(self: Conversation, event: Any) -> None:
        rounds.append(0)
        asyncio.get_running_loop().call_soon(tick)
        ask(self, event)

    def sent(self: Conversation, lines: bytes) -> None:
        if len(rounds) == 1:
            rounds.append(0)
        send(self, lines)

    with Serving(tmp_path, listen=[parse_listen_url("synapse://:0")]) as serving:
        space(serving.log, "t", 3)
        with Client(serving.port) as client:
            client.send("REPLICATE t NOW")
            assert client.line().startswith("POSITION t ")  # its task waits for news now
            monkeypatch.setattr(Conversation, "_ask", asked)
            monkeypatch.setattr(Conversation, "_send", sent)
            client.send("REPLICATE t NOW")
            assert client.line().startswith("POSITION t ")
    assert rounds[0] == 1


def test_flood_of_questions_is_one_question_and_stops_nobody(tmp_path: Path) -> None:
    """20 000 times the same stream from a quick reader: others are answered meanwhile, and what is
    sent is bounded by what it takes, not by how often it asked."""
    with Serving(tmp_path, listen=[parse_listen_url("synapse://:0")]) as serving:
        space(serving.log, "t", 3000)
        with Client(serving.port) as flood, Client(serving.port) as other, reading(flood) as found:
            flood.send(*["REPLICATE t 0"] * FLOOD, "REPLICATE ALL NOW")
            other.send("REPLICATE t NOW")
            assert other.line().startswith("POSITION t ")
            serving.log.insert("t", [10_000, None])
            assert other.line().startswith("RDATA t ")
            serving.wait(lambda: len(found) > 1)
            assert all(line.startswith("POSITION t ") for line in found)
            assert len(found) < FLOOD / 100


def test_questions_that_wait_are_bounded_and_the_lowest_token_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that was asked for is left out because more was asked for after it."""
    monkeypatch.setattr(endpoint, "SYNAPSE_STREAMS", 10)  # fewer than come in one turn
    with Serving(tmp_path, listen=[parse_listen_url("synapse://:0")]) as serving:
        start = serving.log.vclock.signature
        space(serving.log, "t", 3)
        with Client(serving.port) as client:
            client.send(*(f"REPLICATE t {token}" for token in ("NOW", 10**6, start, "NOW")))
            assert len(client.until("POSITION")) == 4
        with Client(serving.port) as client:
            client.send(*(f"REPLICATE x{number} 0" for number in range(5000)))
            text = "failed to handle replicate: too many streams are asked for"
            assert client.line() == f"ERROR {text}"
            with contextlib.suppress(ConnectionResetError):  # it did not read all that was sent
                assert client.line() == ""


def test_catch_up_lets_others_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two pieces of it, however quickly its follower reads."""
    monkeypatch.setattr(endpoint, "SYNAPSE_STEP_BYTES", 1000)
    pieces: list[int] = []  # turns of the loop before each
    turns = 0
    deliveries = Streams.deliveries

    def counted(self: Streams, *given: Any, **options: Any) -> list[Delivery]:
        pieces.append(turns)
        if len(pieces) == 1:
            asyncio.get_running_loop().call_soon(turn)
        return deliveries(self, *given, **options)

    def turn() -> None:
        nonlocal turns
        turns += 1
        if len(pieces) < 10:
            asyncio.get_running_loop().call_soon(turn)

    with Serving(tmp_path, listen=[parse_listen_url("synapse://:0")]) as serving:
        start = serving.log.vclock.signature
        space(serving.log, "t")
        for number in range(200):
            serving.log.insert("t", [number, "x" * 20])
        monkeypatch.setattr(Streams, "deliveries", counted)
        with Client(serving.port) as client:
            client.send(f"REPLICATE t {start}")
            client.until("POSITION")
    assert len(pieces) >= 10
    assert len(set(pieces[:10])) == 10


def test_flood_of_acknowledgements_notes_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at a time, and not each of them; others are answered meanwhile."""
    noted: list[Any] = []
    retain = Inner.retain_all

    def counted(log: Inner, positions: Any) -> None:
        noted.extend(positions)
        retain(log, positions)

    monkeypatch.setattr(Inner, "retain_all", counted)
    options = {"checkpoint_count": 100}
    listen = [parse_listen_url("synapse://:0?keep=1")]
    with Serving(tmp_path, listen=listen, open_options=options) as serving:
        space(serving.log, "t")
        for number in range(20):
            serving.log.insert("t", [number, None])
            serving.log.snapshot()
        end = serving.log.vclock.signature
        kept = lambda: serving.log.status()["followers"].get("synapse:x")  # noqa: E731
        with Client(serving.port) as flood, Client(serving.port) as other:
            flood.send("NAME x", *(f"FEDERATION_ACK {token % end}" for token in range(FLOOD)))
            flood.send(f"FEDERATION_ACK {end}")
            other.send("REPLICATE t NOW")
            assert other.line() == f"POSITION t {end}"
            newest = scan_directory(tmp_path).xlogs[-1].vclock
            assert newest.signature > end - 3
            serving.wait(lambda: kept() == dict(newest))
            assert 0 < len(noted) < FLOOD / 20
            flood.send("NAME y", "FEDERATION_ACK 3", "FEDERATION_ACK -1")
            serving.wait(lambda: set(serving.log.status()["followers"]) == {"synapse:x"})


def test_flood_of_requests_over_http_is_answered_in_order_and_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many pages are asked for at once; the line protocol goes on between two of them."""
    made: list[Request] = []
    respond = UpdatesService.respond

    async def counted(self: UpdatesService, request: Request, shown: Shown) -> tuple[int, bytes]:
        made.append(request)
        return await respond(self, request, shown)

    monkeypatch.setattr(UpdatesService, "respond", counted)
    listen = [parse_listen_url("synapse://:0?dialect=D3&http=127.0.0.1:0")]
    with Serving(tmp_path, listen=listen) as serving:
        space(serving.log, "t", 2000)
        end = serving.log.vclock.signature
        asked: list[int] = []
        path = "/_synapse/replication/get_repl_stream_updates/t/x"
        one = f"GET {path}?from_token=0&upto_token={end} HTTP/1.1\r\nHost: x\r\n\r\n"
        connection = http.client.HTTPConnection("127.0.0.1", serving.urls[1].port, timeout=30)
        connection.connect()
        with Client(serving.port) as other:
            connection.sock.sendall(one.encode() * 50)
            other.send("REPLICATE ")
            assert other.until("POSITION t ")[-1] == f"POSITION t logweir {end} {end}"
            assert len(made) < 50
        file = connection.sock.makefile("rb")
        for _ in range(50):
            assert file.readline() == b"HTTP/1.1 200 OK\r\n"
            size = 0
            while (line := file.readline()) != b"\r\n":
                if line.startswith(b"Content-Length: "):
                    size = int(line.split()[1])
            asked.append(json.loads(file.read(size))["upto_token"])
        assert asked == [end] * 50
        file.close()
        connection.close()


def test_commit_between_the_rows_and_the_position_is_sent_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3: POSITION never covers a row that was not sent: its follower would pass that over."""
    made = Conversation._send_positions
    tries: list[bool] = []

    def late(self: Conversation, reached: Any) -> bool:
        if not tries:
            self.service.log.insert("t", [7, None])
        tries.append(made(self, reached))
        return tries[-1]

    monkeypatch.setattr(Conversation, "_send_positions", late)
    listen = [parse_listen_url("synapse://:0?dialect=D3")]
    with Serving(tmp_path, listen=listen) as serving:
        space(serving.log, "t", 3)
        with Client(serving.port) as client:
            client.send("REPLICATE ")
            first = client.line()
            end = serving.log.vclock.signature
            assert first == f'RDATA t logweir {end} ["insert",[7],[7,null]]'
            assert client.line() == f"POSITION t logweir {end} {end}"
            # The client has the line before the server's thread has noted that it sent it.
            serving.wait(lambda: tries == [False, True])


@pytest.mark.parametrize("dialect", ["D1", "D3"])
@pytest.mark.parametrize("start", ["now", "all"])
def test_stream_that_is_made_later_is_followed(tmp_path: Path, dialect: str, start: str) -> None:
    """The upstream has nothing when the connection begins; what it gets is here, once."""
    more = "&http=127.0.0.1:0" if dialect == "D3" else ""
    listen = [parse_listen_url(f"synapse://:0?dialect={dialect}{more}")]
    with Serving(tmp_path / "one", listen=listen) as one:
        space(one.log, "early", 2)
        http = f"&http=127.0.0.1:{one.urls[1].port}" if dialect == "D3" else ""
        url = parse_url(f"synapse://127.0.0.1:{one.port}?start={start}{http}")
        with Serving(tmp_path / "two", follow=[url], listen=[]) as two:
            state = lambda: two.server.runners[0].status.state  # noqa: E731
            two.wait(lambda: state() == SourceState.FOLLOWING)
            space(one.log, "late", 100)
            one.log.insert("late", [1000, None])
            has = lambda: two.log.schema.get("synapse_late") and two.log.count("synapse_late")  # noqa: E731
            two.wait(lambda: has() == 101)
            assert two.server.runners[0].status.attempts == 1
            keys = [row[3][1] for row in two.log.select("synapse_late")]
            assert sorted(keys) == [[number] for number in [*range(100), 1000]]


def test_a_listener_without_streams_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub of it is ready: there is nothing to catch up with."""
    monkeypatch.setattr("logweir.replication.synapse.follow.source._SURVEY_SECONDS", 0.0)
    with Serving(tmp_path / "one", listen=[parse_listen_url("synapse://:0")]) as one:
        url = parse_url(f"synapse://127.0.0.1:{one.port}?start=all")
        with Serving(tmp_path / "two", follow=[url], listen=[]) as two:
            two.wait(lambda: two.server.runners[0].status.state == SourceState.FOLLOWING)
            assert two.server.is_caught_up
            space(one.log, "late", 3)
            two.wait(lambda: bool(two.log.schema.get("synapse_late")))
            two.wait(lambda: two.log.count("synapse_late") == 3)
