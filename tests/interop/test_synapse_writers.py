"""Homeservers with several writers: where their missed rows come from, and what one that cannot
give them costs the others. Over Redis, with processes of HTTP that keep a real one's rules."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from support.loops import until

import logweir
from interop.realsynapse import RedisServer
from interop.serving import Serving
from interop.synapsehttp import listening
from logweir.replication.metrics import Metrics
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.runner import Runner, SourceState
from logweir.replication.stream import positions
from logweir.replication.synapse.follow import catchup, channel
from logweir.replication.synapse.follow.channel import SynapseRedisSource
from logweir.replication.urls import Url

CHANNEL = "logweir.test"
Rows = dict[int, list[Any]]


def updates(rows: Rows, after: int, upto: int, **more: Any) -> tuple[int, bytes]:
    """The answer of a process that has these rows: those of others are not its business."""
    found = [[token, row] for token, row in sorted(rows.items()) if after < token <= upto]
    body = {"updates": found, "upto_token": upto, "limited": False, **more}
    return 200, json.dumps(body).encode()


class Upstream:
    """What a homeserver publishes, and a store of ours that follows it."""

    def __init__(
        self, broker: RedisServer, stack: ExitStack, folder: Path, options: str, *listen: Url
    ) -> None:
        self._redis = stack.enter_context(redis.Redis(port=broker.port))
        url = parse_url(f"synapse+redis://127.0.0.1:{broker.port}/{CHANNEL}?{options}")
        self.serving = stack.enter_context(Serving(folder, follow=[url], listen=listen))
        self.log = self.serving.log
        self.serving.wait(lambda: self._redis.pubsub_numsub(CHANNEL)[0][1] == 1)

    def publish(self, *lines: str) -> None:
        """Lines, in this order."""
        for line in lines:
            self._redis.publish(CHANNEL, line)

    def rows(self, stream: str) -> list[tuple[str, int, Any]]:
        """(writer, token, row)."""
        if self.log.schema.get(f"synapse_{stream}") is None:
            return []
        return [(row[0], row[1], row[3]) for row in self.log.select(f"synapse_{stream}")]

    def gaps(self) -> list[tuple[str, str, int, int]]:
        """Without their reasons."""
        return [(one.stream, one.instance, one.start, one.end) for one in positions.gaps(self.log)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis."""
    with RedisServer(tmp_path, Path(sys.executable)) as running:
        yield running


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch, broker: RedisServer) -> Iterator[ExitStack]:
    """What is closed at the end, while Redis is there; a failed fetch is made again at once."""
    monkeypatch.setattr(catchup, "_WAITS", (0.01, 0.02))
    with ExitStack() as opened:
        yield opened


def test_each_writer_is_asked_at_its_own_address(
    tmp_path: Path, stack: ExitStack, broker: RedisServer
) -> None:
    """The main process answers 200 without rows for those of p1: its address would lose them."""
    main = {1: ["m1"], 4: ["m4"]}
    p1 = {2: ["p2"], 5: ["p5"]}
    home = stack.enter_context(listening(lambda _s, _w, after, upto: updates(main, after, upto)))
    worker = stack.enter_context(listening(lambda _s, _w, after, upto: updates(p1, after, upto)))
    options = f"start=all&http={home}&http.p1={worker}"
    upstream = Upstream(broker, stack, tmp_path / "data", options)
    upstream.publish("POSITION events master 4 4", "POSITION events p1 5 5")
    upstream.serving.wait(lambda: len(upstream.rows("events")) == 4)
    assert upstream.rows("events") == [
        ("master", 1, ["m1"]),
        ("master", 4, ["m4"]),
        ("p1", 2, ["p2"]),
        ("p1", 5, ["p5"]),
    ]
    assert not upstream.gaps()


@pytest.mark.parametrize("more", ["", "&http={home}"])
def test_rows_of_a_writer_without_address_are_a_gap(
    tmp_path: Path, stack: ExitStack, broker: RedisServer, more: str
) -> None:
    """Whether the main process answers for it or nobody does: "nothing" is not believed."""
    home = stack.enter_context(listening(lambda _s, _w, after, upto: updates({}, after, upto)))
    options = "start=all" + more.format(home=home)
    upstream = Upstream(broker, stack, tmp_path / "data", options)
    upstream.publish("POSITION events p1 5 5", 'RDATA events p1 6 ["live"]')
    upstream.serving.wait(lambda: len(upstream.rows("events")) == 1)
    assert upstream.rows("events") == [("p1", 6, ["live"])]
    assert upstream.gaps() == [("events", "p1", 1, 5)]
    (gap,) = positions.gaps(upstream.log)
    assert "no address for writer p1 (http.p1=HOST:PORT" in gap.reason


def test_logweir_answers_for_all_writers_at_one_address(
    tmp_path: Path, stack: ExitStack, broker: RedisServer
) -> None:
    """A relay names the writer in its answer, so its `http` is enough for each of them."""
    p1 = {2: ["p2"], 5: ["p5"]}
    worker = stack.enter_context(listening(lambda _s, _w, after, upto: updates(p1, after, upto)))
    options = f"start=all&http={worker}&http.p1={worker}"
    listen = parse_listen_url("synapse://:0?dialect=D3&http=127.0.0.1:0")
    upstream = Upstream(broker, stack, tmp_path / "data", options, listen)
    upstream.publish("POSITION events master 5 5", "POSITION events p1 5 5")
    upstream.serving.wait(lambda: len(upstream.rows("events")) == 4)
    line, pages = upstream.serving.urls
    relay = f"synapse://127.0.0.1:{line.port}?http=127.0.0.1:{pages.port}&start=all"
    with Serving(tmp_path / "copy", follow=[parse_url(relay)], listen=[]) as copy:
        has_all = lambda: copy.log.schema.get("synapse_events") and copy.log.count("synapse_events")  # noqa: E731
        copy.wait(lambda: has_all() == 4)
        assert copy.log.select("synapse_events") == upstream.log.select("synapse_events")
        assert not [one for one in positions.gaps(copy.log) if one.stream == "events"]


def test_stream_that_is_answered_with_500_takes_nothing_else_down(
    tmp_path: Path, stack: ExitStack, broker: RedisServer
) -> None:
    """It is asked for a few times, then a gap; other streams, its own live rows, and the
    subscription go on."""

    def answer(stream: str, _writer: str, after: int, upto: int) -> tuple[int, bytes]:
        asked.append(stream)
        if stream == "presence":
            return 500, b"no id generator"
        if stream == "caches":
            return 200, b"{}"
        return updates({3: ["e"]}, after, upto)

    asked: list[str] = []
    home = stack.enter_context(listening(answer))
    upstream = Upstream(broker, stack, tmp_path / "data", f"start=all&http={home}")
    streams = ("presence", "caches", "events")
    upstream.publish(*(f"POSITION {stream} master 3 3" for stream in streams))
    upstream.publish(*(f'RDATA {stream} master 4 ["live"]' for stream in streams))
    upstream.serving.wait(lambda: all(upstream.rows(stream) for stream in streams))
    assert upstream.rows("events") == [("master", 3, ["e"]), ("master", 4, ["live"])]
    assert upstream.rows("presence") == upstream.rows("caches") == [("master", 4, ["live"])]
    assert upstream.gaps() == [("caches", "master", 1, 3), ("presence", "master", 1, 3)]
    assert asked.count("presence") == 3
    reasons = {one.stream: one.reason for one in positions.gaps(upstream.log)}
    assert "500 no id generator" in reasons["presence"]
    upstream.serving.wait(
        lambda: upstream.serving.server.runners[0].status.state == SourceState.FOLLOWING
    )
    assert upstream.serving.server.runners[0].status.attempts == 1


def test_writer_that_is_away_is_waited_for_and_told(
    tmp_path: Path, stack: ExitStack, broker: RedisServer
) -> None:
    """Nobody listens there: that is no answer, so no gap; the others go on meanwhile."""
    with listening(lambda _s, _w, after, upto: updates({}, after, upto)) as address:
        pass
    home = stack.enter_context(listening(lambda _s, _w, after, upto: updates({}, after, upto)))
    upstream = Upstream(
        broker, stack, tmp_path / "data", f"start=all&http={home}&http.p1={address}"
    )
    upstream.publish("POSITION events p1 5 5", "POSITION typing master 3 3")
    upstream.publish('RDATA events p1 6 ["waits"]', 'RDATA typing master 4 ["goes on"]')
    upstream.serving.wait(lambda: upstream.rows("typing"))
    status = lambda: upstream.serving.server.runners[0].status  # noqa: E731
    upstream.serving.wait(lambda: "events/p1 WAITS (" in status().position)
    assert address in status().position
    assert status().state == SourceState.SYNCING
    assert status().attempts == 1
    assert not upstream.gaps()
    assert not upstream.rows("events")
    told = upstream.serving.server.metrics.render().decode()
    where = 'stream="events",url="' + status().url + '",writer="p1"}'
    assert f"logweir_source_stream_token{{{where} 0.0" in told
    assert f"logweir_source_stream_behind_tokens{{{where} 5.0" in told
    assert f"logweir_source_stream_waits{{{where} 1.0" in told
    typing = where.replace('"events"', '"typing"').replace('"p1"', '"master"')
    assert f"logweir_source_stream_token{{{typing} 4.0" in told
    assert f"logweir_source_stream_waits{{{typing} 0.0" in told


def test_only_the_streams_that_are_named_are_followed(
    tmp_path: Path, stack: ExitStack, broker: RedisServer
) -> None:
    """Neither rows nor gaps nor a space of the others; who takes more of them later misses none."""
    asked: list[str] = []

    def answer(stream: str, _writer: str, after: int, upto: int) -> tuple[int, bytes]:
        asked.append(stream)
        return updates({2: ["e"]}, after, upto)

    home = stack.enter_context(listening(answer))
    lines = [f"POSITION {stream} master 2 2" for stream in ("events", "typing", "receipts")]
    with ExitStack() as first:
        options = f"start=all&http={home}&streams=events,rec*"
        upstream = Upstream(broker, first, tmp_path / "data", options)
        upstream.publish(*lines, 'RDATA typing master 3 ["t"]', 'RDATA receipts master 3 ["r"]')
        upstream.serving.wait(lambda: len(upstream.rows("receipts")) == 2)
        upstream.serving.wait(lambda: len(upstream.rows("events")) == 1)
        assert upstream.log.schema.get("synapse_typing") is None
        told = upstream.serving.server.metrics.render().decode()
        assert 'stream="receipts"' in told
        assert 'stream="typing"' not in told
    assert set(asked) == {"events", "receipts"}
    upstream = Upstream(broker, stack, tmp_path / "data", f"start=all&http={home}&streams=typing")
    upstream.publish(*lines)
    upstream.serving.wait(lambda: upstream.rows("typing") == [("master", 2, ["e"])])
    assert not upstream.gaps()


@pytest.mark.parametrize("dialect", ["D1", "D3"])
def test_streams_of_a_listener_are_chosen_too(tmp_path: Path, dialect: str) -> None:
    """Of all that a TCP listener sends; it is caught up when these are."""
    listen = parse_listen_url(f"synapse://:0?dialect={dialect}")
    with Serving(tmp_path / "one", listen=[listen]) as one:
        for name in ("a", "b"):
            one.log.create_space(name, [("id", "unsigned")], primary=["id"])
        url = f"synapse://127.0.0.1:{one.port}?streams=a"
        with Serving(tmp_path / "copy", follow=[parse_url(url)], listen=[]) as copy:
            state = lambda: copy.server.runners[0].status.state  # noqa: E731
            copy.wait(lambda: state() == SourceState.FOLLOWING)
            for name in ("b", "a"):
                one.log.insert(name, [1])
            copy.wait(lambda: copy.log.count("synapse_a") == 1)
            assert copy.log.schema.get("synapse_b") is None


def test_row_that_cannot_be_stored_is_a_gap_of_its_token(
    tmp_path: Path, stack: ExitStack, broker: RedisServer
) -> None:
    """In a page of missed rows and live; a number out of 64 bits, a row above a tuple's limit."""
    big = 10**30
    missed = {2: ["a"], 3: [big], 4: ["x" * (1 << 20)], 5: ["b"]}
    home = stack.enter_context(listening(lambda _s, _w, after, upto: updates(missed, after, upto)))
    upstream = Upstream(broker, stack, tmp_path / "data", f"start=all&http={home}")
    upstream.publish("POSITION events master 5 5")
    upstream.publish(f"RDATA events master 6 [{big}]", 'RDATA events master batch ["c"]')
    upstream.publish(f"RDATA events master 7 [{big}]")
    upstream.publish(f'RDATA events master 8 ["{"x" * (1 << 20)}"]', 'RDATA events master 9 ["d"]')
    upstream.serving.wait(lambda: len(upstream.rows("events")) == 4)
    rows = [(token, row) for _, token, row in upstream.rows("events")]
    assert rows == [(2, ["a"]), (5, ["b"]), (7, ["c"]), (9, ["d"])]
    assert [gap[2:] for gap in upstream.gaps()] == [(n, n) for n in (3, 4, 6, 7, 8)]
    assert upstream.serving.server.runners[0].status.attempts == 1


def test_one_that_is_stopped_while_it_closes_leaves_no_connection(
    tmp_path: Path, broker: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those to Redis, of which one was lost."""
    close = redis.asyncio.Redis.aclose
    url = parse_url(f"synapse+redis://127.0.0.1:{broker.port}/{CHANNEL}")

    async def follow() -> None:
        with logweir.open(tmp_path / "data") as log, redis.Redis(port=broker.port) as other:
            source = SynapseRedisSource(url, log)
            attempt = asyncio.create_task(source.attempt(Runner(source, metrics=Metrics())))

            async def stopped(client: Any) -> None:
                attempt.cancel()
                await close(client)

            monkeypatch.setattr(redis.asyncio.Redis, "aclose", stopped)
            await until(lambda: len(other.client_list()) == 3)
            other.client_kill_filter(_type="pubsub")
            with pytest.raises(asyncio.CancelledError):
                await attempt
            await until(lambda: len(other.client_list()) == 1)

    asyncio.run(follow())


class Unclosable:
    """A client whose connections break as they are closed."""

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        raise redis.exceptions.ConnectionError("broken")


def test_one_that_is_stopped_while_closing_fails_is_stopped() -> None:
    """It would try again otherwise, as if nobody had stopped it."""

    async def close() -> None:
        closing = asyncio.create_task(channel._closed(Unclosable()))
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    asyncio.run(close())
