"""The HTTP address for missed rows: requests in any form, and what they are answered."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest

import logweir
from logweir import limits
from logweir.errors import ConfigError
from logweir.replication.httpsession import HttpSession, Request
from logweir.replication.protocols import parse_listen_url
from logweir.replication.stream.hub import Hub
from logweir.replication.synapse.follow.ingest import Intake
from logweir.replication.synapse.push import Streams
from logweir.replication.synapse.serve.options import read_options
from logweir.replication.synapse.serve.shown import Shown
from logweir.replication.synapse.serve.updates import UpdatesService
from logweir.replication.synapse.wire.codec import Dialect, encode_row
from logweir.replication.synapse.wire.units import Change, Cursor, Moved, Unit
from logweir.store import Log
from logweir.wal.follow import Follower

PATH = "/_synapse/replication/get_repl_stream_updates"


def request(target: str, *headers: str, method: str = "GET") -> bytes:
    """The bytes of a request."""
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def test_requests_in_any_portions_are_the_same_requests() -> None:
    """Whole feed equals byte-by-byte feed; bodies are skipped."""
    data = (
        request("/one")
        + request("/two", "Content-Length: 5", method="POST")
        + b"hello"
        + request("/three", "X-Y:  z ")
    )
    whole = HttpSession(0.0).receive_data(data, 0.0)
    assert [(one.method, one.target) for one in whole] == [
        ("GET", "/one"),
        ("POST", "/two"),
        ("GET", "/three"),
    ]
    assert whole[2].headers == {"host": "x", "x-y": "z"}
    session = HttpSession(0.0)
    single = [one for byte in data for one in session.receive_data(bytes([byte]), 0.0)]
    assert single == whole


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"garbage\r\n\r\n", b"400"),
        (b"GET / SPDY/1\r\n\r\n", b"400"),
        (request("/", "Content-Length: -1"), b"400"),
        (request("/", "Content-Length: 99999999999"), b"400"),
        (request("/", f"Content-Length: {limits.SYNAPSE_MESSAGE_BYTES + 1}"), b"400"),
        (request("/", "Transfer-Encoding: chunked"), b"400"),
        (request("/" + "x" * limits.HTTP_HEAD_BYTES), b"431"),
        (b"x" * (limits.HTTP_HEAD_BYTES + 1), b"431"),
    ],
)
def test_request_that_cannot_be_read_is_refused(data: bytes, status: bytes) -> None:
    """An answer, and the end; nothing that follows is looked at."""
    session = HttpSession(0.0)
    assert list(session.receive_data(data, 0.0)) == []
    assert session.data_to_send().startswith(b"HTTP/1.1 " + status)
    assert session.close_reason
    assert list(session.receive_data(request("/"), 0.0)) == []


def test_connection_ends_when_it_is_asked_to_or_idle() -> None:
    """`Connection: close` and HTTP/1.0 get one answer; idle ones go."""
    for data in (request("/", "Connection: close"), b"GET / HTTP/1.0\r\n\r\n"):
        session = HttpSession(0.0)
        assert len(session.receive_data(data, 0.0)) == 1
        assert not session.close_reason
        session.answer(200, b"{}")
        assert b"Connection: close" in session.data_to_send()
        assert session.close_reason
    session = HttpSession(0.0)
    assert session.next_deadline() == limits.HTTP_IDLE_SECONDS
    session.deadline_passed(limits.HTTP_IDLE_SECONDS - 1)
    assert not session.close_reason
    session.deadline_passed(limits.HTTP_IDLE_SECONDS)
    assert session.close_reason


def test_of_requests_that_come_together_few_wait() -> None:
    """The others are kept as they came, which is counted, and read when these are answered."""
    session = HttpSession(0.0)
    data = request("/") * 20_000
    found, count = session.receive_data(data, 0.0), 0
    while found:
        assert len(found) <= limits.HTTP_WAITING
        count += len(found)
        assert session.kept_bytes == len(data) - len(request("/")) * count
        for _ in found:
            session.answer(200, b"{}")
        found = session.receive_data(b"", 0.0)
    assert count == 20_000
    assert session.data_to_send().count(b"HTTP/1.1 200 OK") == count


class Asker:
    """Answers of a store."""

    def __init__(self, log: Log, secret: str = "") -> None:
        self._log = log
        self._secret = secret

    def __call__(self, target: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
        """Status and body."""

        async def ask() -> tuple[int, bytes]:
            log = self._log
            hub = Hub(
                lambda after: Follower(log.path, after, durable=lambda: log.inner.durable_end)
            )
            streams = Streams(log, Dialect.D3)
            service = UpdatesService(log, hub, streams, secret=self._secret)
            try:
                return await service.respond(Request(method, target, headers), Shown(streams))
            finally:
                hub.close()

        status, body = asyncio.run(ask())
        return status, json.loads(body)

    def rows(self, stream: str, after: int, upto: int, more: str = "") -> Any:
        """The body of an answer that is good."""
        status, body = self(f"{PATH}/{stream}/x?from_token={after}&upto_token={upto}{more}")
        assert status == 200, body
        return body


def unit(stream: str, token: int, *rows: Any, writer: str = "master") -> Unit:
    """A unit of a followed stream."""
    packed = [encode_row(json.dumps(row)) for row in rows]
    return Unit(stream, writer, 1, token, packed, False, Cursor(token, token))


@pytest.fixture
def log(tmp_path: Path) -> Any:
    """A store that follows a homeserver with two writers."""
    with logweir.open(tmp_path / "data", checkpoint_count=1) as opened:
        changes: list[Change] = [unit("typing", 5, ["r", ["@a"]]), unit("typing", 9, ["r", []])]
        changes += [unit("events", token, ["a", token], ["b", token]) for token in range(1, 801)]
        changes += [unit("events", 900, ["w"], writer="w1")]
        changes += [Moved("pushers", "master", Cursor(3, 3))]
        Intake(opened, "logweir.test").store(changes)
        yield opened


def test_range_is_open_below_and_closed_above(log: Log) -> None:
    """As recorded from a real server: the worked example of the protocol."""
    ask = Asker(log)
    assert ask.rows("typing", 4, 9) == {
        "updates": [[5, ["r", ["@a"]]], [9, ["r", []]]],
        "upto_token": 9,
        "limited": False,
    }
    assert ask.rows("typing", 5, 8) == {"updates": [], "upto_token": 8, "limited": False}
    assert ask.rows("typing", 9, 50) == {"updates": [], "upto_token": 50, "limited": False}
    assert ask.rows("typing", 12, 3) == {"updates": [], "upto_token": 3, "limited": False}


def test_pages_together_are_everything_and_units_stay_whole(log: Log) -> None:
    """Asked again from the token told, until `limited` is false."""
    ask, after, found, pages = Asker(log), 0, [], 0
    while True:
        page = ask.rows("events", after, 800)
        found += page["updates"]
        pages += 1
        after = page["upto_token"]
        if not page["limited"]:
            break
        assert len({token for token, _ in page["updates"]}) * 2 == len(page["updates"])
    assert pages > 1
    assert found == [[token, [who, token]] for token in range(1, 801) for who in "ab"]


def test_each_writer_has_rows_of_its_own(log: Log) -> None:
    """Without a name the main process answers, as there."""
    ask = Asker(log)
    assert ask.rows("events", 800, 1000)["updates"] == []
    assert ask.rows("events", 800, 1000, "&instance_name=w1") == {
        "updates": [[900, ["w"]]],
        "upto_token": 1000,
        "limited": False,
        "instance_name": "w1",
    }


def test_only_writers_whose_rows_are_here_are_named(log: Log) -> None:
    """An answer for another one must not look as if that had written nothing."""
    ask = Asker(log)
    assert "instance_name" not in ask.rows("events", 800, 1000, "&instance_name=w2")
    assert "instance_name" not in ask.rows("typing", 0, 1000, "&instance_name=w1")
    log.create_space("s", [("id", "unsigned")], primary=["id"])
    found = ask.rows("s", 1, 10**6, "&instance_name=logweir")
    assert found["instance_name"] == "logweir"


def test_what_cannot_be_answered_is_an_error_of_its_own(log: Log) -> None:
    """Unknown stream, arguments, paths, methods, secrets."""
    ask = Asker(log)
    good = f"{PATH}/typing/x?from_token=4&upto_token=9"
    assert ask(f"{PATH}/nosuch/x?from_token=4&upto_token=9") == (
        400,
        {"errcode": "M_UNKNOWN", "error": "Unknown stream"},
    )
    for query in ("", "?from_token=x&upto_token=9", f"?from_token=1&upto_token={2**63}"):
        assert ask(f"{PATH}/typing/x{query}")[1]["errcode"] == "M_INVALID_PARAM"
    assert ask(good, method="POST")[0] == 405
    assert ask("/_synapse/replication/other/typing/x")[0] == 404
    assert ask("/")[0] == 404
    closed = Asker(log, "secret")
    assert closed(good)[0] == 401
    assert closed(good, authorization="Bearer wrong")[0] == 401
    assert closed(good, authorization="Bearer secret")[0] == 200


def test_spaces_are_answered_from_the_log_or_with_all_that_is_there(log: Log) -> None:
    """Rows with the log's signature; from 0 behind the oldest log as `replace` rows."""
    ask = Asker(log)
    start = log.vclock.signature
    log.create_space("s", [("id", "unsigned")], primary=["id"])
    log.append("s", [[1], [2]])
    end = log.vclock.signature
    assert ask.rows("s", start, end + 5) == {
        "updates": [[end, ["insert", [1], [1]]], [end, ["insert", [2], [2]]]],
        "upto_token": end + 5,
        "limited": False,
    }
    assert ask.rows("s", end, end + 5) == {"updates": [], "upto_token": end + 5, "limited": False}
    for number in range(3, 6):
        log.insert("s", [number])
        log.snapshot()
    assert log.oldest_position.signature > end
    status, body = ask(f"{PATH}/s/x?from_token={end}&upto_token={end + 3}")
    assert (status, body["errcode"]) == (400, "M_UNKNOWN")
    assert "too old" in body["error"]
    state = ask.rows("s", 0, end + 3)
    assert state["updates"] == [[end + 3, ["replace", [i], [i]]] for i in range(1, 6)]


def test_options_of_the_listener_are_checked(tmp_path: Path) -> None:
    """`http` belongs to D3; the secret is read from its file."""
    (tmp_path / "secret").write_text("abc\n")
    url = parse_listen_url(
        f"synapse://:0?dialect=D3&http=127.0.0.1:0&auth_file={tmp_path / 'secret'}"
    )
    options = read_options(url)
    assert options.secret == "abc"
    assert options.http is not None
    assert (options.http.host, options.http.port) == ("127.0.0.1", 0)
    with pytest.raises(ConfigError, match="D3"):
        read_options(parse_listen_url("synapse://:0?http=127.0.0.1:0"))
    with pytest.raises(ConfigError):
        read_options(parse_listen_url("synapse://:0?dialect=D3&http=a:b"))
    with pytest.raises(ConfigError, match="auth_file"):
        read_options(parse_listen_url(f"synapse://:0?auth_file={tmp_path / 'none'}"))


@pytest.mark.parametrize("of", ["log", "state"])
def test_a_long_page_lets_others_have_their_turn(tmp_path: Path, of: str) -> None:
    """What is read for one answer is read in turns: none of them is most of the work."""
    turns: list[float] = []  # when they ended, in processor time

    async def main(log: logweir.Log) -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()

        def tick() -> None:
            turns.append(time.thread_time())
            loop.call_soon(tick)

        hub = Hub(lambda after: Follower(log.path, after, durable=lambda: log.inner.durable_end))
        service = UpdatesService(log, hub, Streams(log, Dialect.D3))
        tick()
        try:
            target = f"{PATH}/t/x?from_token=0&upto_token=9999999"
            return await service.respond(Request("GET", target, {}), Shown(service.streams))
        finally:
            turns.append(time.thread_time())
            hub.close()

    with logweir.open(tmp_path, durability="write", checkpoint_count=1) as log:
        log.create_space("t", format=[("id", "unsigned"), ("text", "string")])
        log.append("t", [(number, "x" * 20) for number in range(20_000)], one_transaction=False)
        if of == "state":
            for number in range(20_000, 20_003):
                log.insert("t", (number, "x"))
                log.snapshot()
            assert log.oldest_position.signature > 0
        status, body = asyncio.run(main(log))
    assert status == 200
    assert len(json.loads(body)["updates"]) >= (20_003 if of == "state" else 1000)
    longest = max(end - begin for begin, end in itertools.pairwise(turns))
    assert longest < (turns[-1] - turns[0]) / 2
