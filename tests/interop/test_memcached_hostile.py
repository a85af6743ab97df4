"""Bad input on sockets: what is answered, who is closed, and that nobody else notices."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from interop.kvclient import KvClient, store
from interop.test_memcached_endpoint import ACK, FUTURE, data, serve, set_state, take_until
from logweir.replication.bucket.item import VbucketState
from logweir.replication.memcached.push.stream import StreamOptions
from logweir.replication.memcached.wire.codec import (
    Opcode,
    Packet,
    Status,
    encode_ack,
    encode_request,
)
from logweir.replication.memcached.wire.messages import (
    Connect,
    Opaque,
    Option,
    TapMessage,
    decode_tap,
    encode_connect,
    encode_tap,
)


def connect(extras: str, value: str = "") -> bytes:
    """TAP_CONNECT of any content."""
    return encode_request(
        Packet(Opcode.TAP_CONNECT, b"n", bytes.fromhex(value), bytes.fromhex(extras), opaque=7)
    )


def raw(opcode: int, key: int, extras: int, body: int, rest: bytes, magic: int = 0x80) -> bytes:
    """A packet whose lengths say what they like."""
    return struct.pack(">BBHBBHIIQ", magic, opcode, key, extras, 0, 0, body, 7, 0) + rest


def pushed(message: TapMessage) -> bytes:
    """A packet of a producer that wants an answer."""
    return encode_tap(replace(message, opaque=7, wants_ack=True))


MUTATION = TapMessage(Opcode.TAP_MUTATION, b"k", b"v")
INVALID, REFUSED = Status.INVALID, Status.NOT_SUPPORTED

# what is sent, the status of the answer (None: there is none), whether the connection ends
BAD: dict[str, tuple[bytes, int | None, bool]] = {
    "extras of 8": (connect("0000000000000001"), INVALID, True),
    "extras of 1": (connect("00"), INVALID, True),
    "as many extras as flags": (connect("00" * 0x11), INVALID, True),
    "no date": (connect("00000001"), None, True),
    "a short date": (connect("00000001", "00000000000000"), None, True),
    "no list": (connect("00000004"), REFUSED, True),
    "a short list": (connect("00000004", "00030001"), REFUSED, True),
    "short checkpoints": (connect("00000040", "0001000000000000000000"), REFUSED, True),
    "extras and key longer than the body": (raw(0x01, 9, 8, 10, b"0123456789"), None, True),
    "private bytes longer than the body": (
        raw(0x41, 1, 16, 18, b"\xff\xff" + bytes(16)),
        None,
        True,
    ),
    "a magic that is none": (raw(0, 1, 0, 1, b"k", magic=0x55), None, True),
    "text": (b"get k\r\n" * 4, None, True),
    "an answer to nothing": (raw(0x41, 0, 0, 0, b"", magic=0x81), None, True),
    "a body that nobody means": (raw(0x01, 1, 8, 0x7FFFFFFF, bytes(9)), None, True),
    "a key of 251": (raw(0x00, 251, 0, 251, b"k" * 251), INVALID, True),
    "no key": (raw(0x00, 0, 0, 0, b""), INVALID, True),
    "set without extras": (raw(0x01, 1, 0, 2, b"kv"), INVALID, True),
    "get with a value": (raw(0x00, 1, 0, 2, b"kv"), INVALID, True),
    "an unknown opcode": (raw(0x77, 0, 0, 0, b""), Status.UNKNOWN_COMMAND, False),
    "an unknown opcode with a body": (raw(0x77, 1, 0, 5, b"kabcd"), 0x81, False),
    "a value above the limit": (raw(0x01, 1, 8, 2_000_000, bytes(2_000_000)), 3, False),
    "a mutation with short extras": (raw(0x41, 1, 8, 9, bytes(9)), None, False),
    "a mutation of a key of 251": (pushed(replace(MUTATION, key=b"k" * 251)), INVALID, False),
    "a vbucket that is not ours": (pushed(replace(MUTATION, vbucket=9)), 7, False),
    "a vbucket that is dead": (pushed(replace(MUTATION, vbucket=4)), 7, False),
    "ttl 0": (pushed(replace(MUTATION, ttl=0)), INVALID, False),
    "a state that is none": (
        pushed(TapMessage(Opcode.TAP_VBUCKET_SET, vbucket=2, number=9)),
        INVALID,
        False,
    ),
    "a checkpoint": (pushed(TapMessage(Opcode.TAP_CHECKPOINT_END, number=5)), 0, False),
    "an unknown subtype": (pushed(TapMessage(Opcode.TAP_OPAQUE, number=99)), 0, False),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_answered_as_by_a_real_server(tmp_path: Path, name: str) -> None:
    """The status, the same opcode and opaque, the end or not; what was stored before it in the
    same pipeline is there, and a stream of somebody else goes on."""
    sent, status, ends = BAD[name]
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        set_state(client, 4, VbucketState.DEAD)
        with KvClient(server.port) as watcher, KvClient(server.port) as hostile:
            stream = watcher.stream(Connect(b"w", ACK | Option.BACKFILL, backfill=FUTURE))
            next(stream)
            server.wait(lambda: server.server.settled.readers == 1)
            before = encode_request(store(b"before"))
            with contextlib.suppress(ConnectionError):  # it may be closed before all is sent
                hostile.socket.sendall(before + sent)
            first = hostile.receive()
            assert first is not None
            assert (first.opcode, first.status) == (Opcode.SET, 0)
            if status is not None:
                answer = hostile.receive()
                assert answer is not None
                assert (answer.opcode, answer.status, answer.opaque) == (sent[1], status, 7)
            if ends:
                with contextlib.suppress(ConnectionResetError):
                    assert hostile.receive() is None
            else:
                assert hostile.ask(Packet(Opcode.GET, b"before"))[0].value == b"v"
            client.ask(store(b"after"))
            seen = data(take_until(stream, b"after"))
        assert seen == [(Opcode.TAP_MUTATION, b"before"), (Opcode.TAP_MUTATION, b"after")]
        assert {row[0] for row in server.log.select("b")} == {b"before", b"after"}


def test_answers_of_a_consumer_that_is_busy_or_refuses(tmp_path: Path) -> None:
    """Busy: that packet and those behind it come again under new opaques, none before it; any
    other status ends the connection, and the name goes on behind what was acknowledged."""
    wanted = Connect(b"n", ACK | Option.BACKFILL, backfill=FUTURE)
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        (tap,) = server.server.protocol("tap").made
        tap.options = StreamOptions(backoff_seconds=0.05, ack_interval_packets=2)
        with KvClient(server.port) as consumer:
            consumer.socket.sendall(encode_connect(wanted))
            opening = consumer.receive()
            assert opening is not None
            assert decode_tap(opening).number == Opaque.ENABLE_AUTO_NACK
            consumer.socket.sendall(encode_ack(opening.opcode, opening.opaque))
            server.wait(lambda: server.server.settled.readers == 1)
            client.batch(*(store(b"k%d" % n, opcode=Opcode.SETQ) for n in range(4)))

            def take(count: int) -> list[TapMessage]:
                found: list[TapMessage] = []
                while len(found) < count:
                    packet = consumer.receive()
                    assert packet is not None
                    found.append(decode_tap(packet))
                return found

            first = take(4)
            assert [m.key for m in first] == [b"k0", b"k1", b"k2", b"k3"]
            busy = encode_ack(Opcode.TAP_MUTATION, first[1].opaque, Status.TEMPORARY_FAILURE)
            consumer.socket.sendall(busy)
            again = take(3)
            assert [m.key for m in again] == [b"k1", b"k2", b"k3"]
            assert min(m.opaque for m in again) > max(m.opaque for m in first)
            assert again[-1].wants_ack
            consumer.socket.sendall(encode_ack(Opcode.TAP_MUTATION, again[0].opaque))
            stale = encode_ack(Opcode.TAP_MUTATION, first[3].opaque, Status.INVALID)
            consumer.socket.sendall(stale)  # an opaque that is known no more changes nothing
            refusal = encode_ack(Opcode.TAP_MUTATION, again[1].opaque, Status.INVALID)
            consumer.socket.sendall(refusal)
            assert consumer.receive() is None
        server.wait(lambda: server.server.settled.readers == 0)
        with KvClient(server.port) as consumer:
            left = take_until(consumer.stream(wanted), b"k3")
        assert [key for _, key in data(left)] == [b"k2", b"k3"]


def test_a_consumer_that_stops_acknowledging_is_cut_off_and_goes_on_later(tmp_path: Path) -> None:
    """After the grace time, with a full window; the next connection of that name gets everything
    that it had not acknowledged."""
    wanted = Connect(b"n", ACK | Option.BACKFILL, backfill=FUTURE)
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        (tap,) = server.server.protocol("tap").made
        tap.options = StreamOptions(grace_seconds=0.3, window_packets=5)
        with KvClient(server.port) as consumer:
            stream = consumer.stream(wanted)
            next(stream)
            server.wait(lambda: server.server.settled.readers == 1)
            client.ask(store(b"first"))
            take_until(stream, b"first")
            client.ask(*(store(b"k%d" % n) for n in range(50)))
            taken: list[tuple[int, bytes]] = []
            while (packet := consumer.receive()) is not None:
                taken += data([decode_tap(packet)])
            assert len(taken) <= 5
        server.wait(lambda: server.server.settled.readers == 0)
        with KvClient(server.port) as consumer:
            left = take_until(consumer.stream(wanted), b"k49")
        keys = [key for _, key in data(left) if key != b"first"]  # perhaps acknowledged in time
        assert keys == [b"k%d" % n for n in range(50)]


def test_many_connections_that_send_garbage_leave_the_server_as_it_was(tmp_path: Path) -> None:
    """All of the above at once, again and again; clients and names are as before."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(store(b"kept"))
        for _ in range(5):
            with contextlib.ExitStack() as stack:
                for sent, _, _ in BAD.values():
                    hostile = stack.enter_context(KvClient(server.port))
                    with contextlib.suppress(ConnectionError):
                        hostile.socket.sendall(sent[: len(sent) - 1])
        server.wait(lambda: len(server.server.listener.links) == 1)
        assert client.ask(Packet(Opcode.GET, b"kept"))[0].value == b"v"
        assert server.server.status()["streams"] == []


def test_duplicate_names_leave_one_stream(tmp_path: Path) -> None:
    """Twenty consumers that all take the same name: the last one has the stream, all others are
    closed, and each change reaches it."""
    wanted = Connect(b"n", ACK | Option.BACKFILL, backfill=FUTURE)
    with (
        serve(tmp_path / "s") as server,
        KvClient(server.port) as client,
        contextlib.ExitStack() as stack,
    ):
        consumers = [stack.enter_context(KvClient(server.port)) for _ in range(20)]
        for consumer in consumers:
            stream = consumer.stream(wanted)
            next(stream)
        server.wait(lambda: len(server.server.listener.links) == 2)
        server.wait(lambda: server.server.settled.readers == 1)
        client.ask(store(b"k"))
        assert data(take_until(stream, b"k")) == [(Opcode.TAP_MUTATION, b"k")]
        assert len(server.server.status()["streams"]) == 1
