"""Flushes that wait: in their time, over restarts, and put off."""

from __future__ import annotations

import time
from pathlib import Path

import logweir
from interop.kvclient import KvClient, store
from interop.serving import Serving
from interop.test_memcached_endpoint import ACK, FUTURE, data, serve, take_until
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status
from logweir.replication.memcached.wire.messages import (
    Connect,
    Opaque,
    Option,
)

CLOSED = (Opcode.TAP_OPAQUE, Opaque.CLOSE_BACKFILL)


def flush_at(server: Serving) -> list[float]:
    """When its bucket is to be emptied."""
    return [row[1] for row in server.log.select("logweir_tap_flush")]


def flush(seconds: int, opcode: int = Opcode.FLUSH) -> Packet:
    """FLUSH with a delay."""
    return Packet(opcode, extras=seconds.to_bytes(4, "big"))


def test_a_delayed_flush_is_done_in_its_time(tmp_path: Path) -> None:
    """With what was stored since; the last one counts, one without delay makes it void; each is
    one row for followers."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(store(b"a"), flush(1), flush(1000))
        assert flush_at(server)[0] > time.time() + 900
        client.ask(Packet(Opcode.FLUSH), store(b"b"))
        assert flush_at(server) == []
        client.batch(flush(1, Opcode.FLUSHQ), store(b"c", opcode=Opcode.SETQ))
        with KvClient(server.port) as consumer:
            stream = consumer.stream(Connect(b"n", ACK | Option.BACKFILL, backfill=FUTURE))
            next(stream)
            server.wait(lambda: server.log.count("b") == 0)
            assert flush_at(server) == []
            assert client.ask(Packet(Opcode.GET, b"c"))[0].status == Status.NOT_FOUND
            client.ask(store(b"end"))
            seen = data(take_until(stream, b"end"))
        assert seen == [(Opcode.TAP_FLUSH, b""), (Opcode.TAP_MUTATION, b"end")]


def test_a_delayed_flush_outlives_a_restart(tmp_path: Path) -> None:
    """Not yet due it waits on; one that fell due meanwhile is done before the first command; a
    bucket that is gone costs nothing."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(store(b"a"), flush(1000))
        (at,) = flush_at(server)
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        assert flush_at(server) == [at]
        assert client.ask(Packet(Opcode.GET, b"a"))[0].status == 0
    with logweir.open(tmp_path / "s") as log:
        log.replace("logweir_tap_flush", ("b", 1_000_000.0))
        log.replace("logweir_tap_flush", ("gone", 1_000_000.0))
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        answers = client.ask(Packet(Opcode.GET, b"a"), store(b"b"), Packet(Opcode.GET, b"b"))
        assert [answer.status for answer in answers] == [Status.NOT_FOUND, 0, 0]
        server.wait(lambda: flush_at(server) == [])
    with serve(tmp_path / "s") as server:
        assert [row[0] for row in server.log.select("b")] == [b"b"]


def test_a_delayed_flush_that_was_put_off_waits_for_its_time(tmp_path: Path) -> None:
    """Also across a restart; a server that only reads leaves it alone."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(store(b"a"), flush(1))
        client.ask(flush(2_000_000_000))
        assert flush_at(server) == [2_000_000_000.0]
    with logweir.open(tmp_path / "s") as log:
        log.replace("logweir_tap_flush", ("b", 1_000_000.0))
    with serve(tmp_path / "s", read_only=True) as server, KvClient(server.port) as client:
        assert client.ask(Packet(Opcode.GET, b"a"))[0].status == 0
        assert flush_at(server) == [1_000_000.0]


def test_a_flush_inside_a_backfill_loses_nothing_behind_it(tmp_path: Path) -> None:
    """What is stored behind it may be in the rest of the backfill, before the flush is told. There
    is more than the server makes ahead and the sockets between may hold."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(*(store(b"k%03d" % number, bytes(100_000)) for number in range(150)))
        held = set[bytes]()
        with KvClient(server.port) as consumer:
            stream = consumer.stream(Connect(b"n", ACK))
            take_until(stream, b"k000")
            client.ask(Packet(Opcode.FLUSH), store(b"z"))
            for message in stream:
                if message.opcode == Opcode.TAP_FLUSH:
                    held.clear()
                elif message.opcode == Opcode.TAP_MUTATION:
                    held.add(message.key)
                elif (message.opcode, message.number) == CLOSED:
                    break
        assert held == {b"z"}
