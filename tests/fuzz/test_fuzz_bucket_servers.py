"""Whole servers of memcached, TAP and Greenstack, driven with random sequences of valid and odd
requests: whatever comes, nothing fails inside, and others are served.

The seed is fixed and shown on failure; `FUZZ_ROUNDS` in the environment asks for more rounds.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop import gsraw
from interop.kvclient import KvClient, store
from interop.serving import Serving
from logweir.replication.bucket.store import Buckets
from logweir.replication.greenstack.wire import messages
from logweir.replication.greenstack.wire.codec import Flag, FlexKey, Frame, encode_frame
from logweir.replication.greenstack.wire.codec import Opcode as GsOpcode
from logweir.replication.greenstack.wire.messages import Feature, Hello, Operation, StreamOpen
from logweir.replication.memcached.wire.codec import Opcode, Packet, encode_request
from logweir.replication.memcached.wire.messages import (
    Connect,
    Opaque,
    Option,
    TapMessage,
    encode_connect,
    encode_tap,
)
from logweir.replication.protocols import parse_listen_url
from logweir.testing.damage import damaged
from logweir.wal.vclock import VClock

SEED = 11213
ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "60"))
KEYS = (b"a", b"b", b"c", b"long" * 62, b"x" * 251)
NAMES = (b"one", b"two", b"")
OPTIONS = (
    *(Option(0), Option.DUMP, Option.SUPPORT_ACK, Option.SUPPORT_ACK | Option.CHECKPOINT),
    *(Option.BACKFILL, Option.TAKEOVER_VBUCKETS | Option.LIST_VBUCKETS, Option.REGISTERED_CLIENT),
    Option.REGISTERED_CLIENT | Option.SUPPORT_ACK | Option.CHECKPOINT,
)


class Chance(random.Random):
    """Requests at random."""

    def tap(self) -> bytes:
        """A packet or two of memcached or TAP."""
        make = self.choice(
            (self._change, self._change, self._look, self._vbucket, self._connect, self._message)
        )
        data = make()
        return damaged(data, self) if self.random() < 0.05 else data

    def _key(self) -> bytes:
        return self.choice(KEYS)

    def _change(self) -> bytes:
        opcode = self.choice(
            (*range(0x01, 0x07), 0x08, *range(0x0E, 0x10), *range(0x11, 0x17), 0x18, 0x1C, 0x1D)
        )
        extras = {0x01: 8, 0x02: 8, 0x03: 8, 0x11: 8, 0x12: 8, 0x13: 8, 0x05: 20, 0x06: 20}
        extras |= {0x15: 20, 0x16: 20, 0x1C: 4, 0x1D: 4}
        size = extras.get(opcode, 0)
        value = b"1" * self.choice((0, 1, 1000)) if size in (0, 8) and opcode != 0x04 else b""
        key = b"" if opcode in (0x08, 0x18) else self._key()
        vbucket = self.choice((0, 0, 0, 1, 2, 9))
        packet = Packet(opcode, key, value, bytes(size), vbucket=vbucket)
        return encode_request(packet) * self.choice((1, 1, 3))

    def _look(self) -> bytes:
        opcode = self.choice((0x00, 0x09, 0x0C, 0x0A, 0x0B, 0x10, 0x20, 0x21, 0x22, 0x3E, 0x77))
        key = self._key() if opcode in (0x00, 0x09, 0x0C) else b""
        return encode_request(Packet(opcode, key, vbucket=self.choice((0, 1, 2))))

    def _vbucket(self) -> bytes:
        names = (b"b", b"other", b"space:_space", b"space:none", b"none")
        return self.choice(
            (
                encode_request(
                    Packet(
                        Opcode.SET_VBUCKET,
                        extras=struct.pack(">I", self.choice((1, 1, 1, 2, 3, 4, 9))),
                        vbucket=self.choice((1, 2)),
                    )
                ),
                encode_request(Packet(0x3F, vbucket=2)),
                encode_request(Packet(Opcode.SELECT_BUCKET, self.choice(names))),
                encode_request(Packet(Opcode.DEREGISTER_TAP_CLIENT, self.choice(NAMES))),
                encode_request(
                    Packet(Opcode.CHANGE_VB_FILTER, self.choice(NAMES), b"\0\1\0\1", b"")
                ),
            )
        )

    def _connect(self) -> bytes:
        if self.random() < 0.5:
            return b""
        options = self.choice(OPTIONS)
        vbuckets = self.choice(((), (0,), (1, 2))) if options & Option.LIST_VBUCKETS else ()
        backfill = self.choice((0, 1, 2**64 - 1)) if options & Option.BACKFILL else None
        pairs = ((0, 3),) if options & Option.CHECKPOINT and self.random() < 0.5 else ()
        connect = Connect(
            self.choice(NAMES), options, backfill=backfill, vbuckets=vbuckets, checkpoints=pairs
        )
        return encode_connect(connect)

    def _message(self) -> bytes:
        opcode = self.choice((Opcode.TAP_MUTATION, Opcode.TAP_DELETE, Opcode.TAP_OPAQUE))
        number = self.choice(tuple(Opaque)) if opcode == Opcode.TAP_OPAQUE else None
        key = b"" if number is not None else self._key()
        message = TapMessage(
            opcode, key, number=number, wants_ack=True, ttl=self.choice((0, 1, 255))
        )
        data = bytearray(encode_tap(message))
        if self.random() < 0.3:
            data[0] = 0x81
        return bytes(data)

    def greenstack(self) -> bytes:
        """A frame or several."""
        frame = self.choice((self._mutation, self._mutation, self._plain, self._stream))()
        if self.random() < 0.4:
            lane = {FlexKey.LANE.value: self.choice((b"", b"x", b"y"))}
            frame = Frame(
                frame.opcode, frame.opaque, frame.payload, frame.status, frame.flags,
                {**lane, **frame.flex},
            )  # fmt: skip
        data = encode_frame(frame) * self.choice((1, 1, 4))
        return damaged(data, self) if self.random() < 0.03 else data

    def _flags(self) -> int:
        return self.choice((0, 0, Flag.QUIET, Flag.MORE, Flag.FENCE, Flag.MORE | Flag.QUIET))

    def _mutation(self) -> Frame:
        key = self.choice((b"a", b"b", b"long" * 62, b"x" * 251))
        operation = self.choice(tuple(Operation))
        return gsraw.mutation(
            key,
            b"1" * self.choice((0, 1, 1000)),
            self.choice((Operation.SET, operation)),
            flags=self._flags(),
            flex=gsraw.vbucket(self.choice((0, 0, 1))),
            expiration=self.choice(("", "", "2001-01-01T00:00:00", "no date")),
        )

    def _plain(self) -> Frame:
        payload, flex = b"", {}
        opcode = self.choice(
            (*tuple(GsOpcode)[:11], GsOpcode.REMOVE, GsOpcode.GET, GsOpcode.NOOP, 0x0FFF)
        )
        if opcode == GsOpcode.HELLO:
            payload = Hello("fuzz", "1", "", tuple(Feature)).encode()
        elif opcode == GsOpcode.SELECT_BUCKET:
            payload = messages.encode_bucket(self.choice(("default", "b", "none")))
        elif opcode in (GsOpcode.GET, GsOpcode.REMOVE):
            payload, flex = messages.encode_get(b"a"), gsraw.vbucket(self.choice((0, 1)))
        status = 0 if self.random() < 0.05 else None
        return Frame(opcode, self.getrandbits(32), payload, status, self._flags(), flex)

    def _stream(self) -> Frame:
        opcode = self.choice((GsOpcode.STREAM_OPEN, GsOpcode.STREAM_CLOSE, GsOpcode.STREAM_ACK))
        flex = {FlexKey.DCP_ID.value: self.choice(NAMES)}
        payload = b""
        if opcode == GsOpcode.STREAM_OPEN:
            start = self.choice((VClock(), VClock({1: 3}), VClock({1: 2**40})))
            payload = StreamOpen(
                start, snapshot=self.random() < 0.5, buckets=self.choice(((), ("default",)))
            ).encode()
        elif opcode == GsOpcode.STREAM_ACK:
            payload = messages.encode_ack(VClock({1: 3}), self.choice((0, 10, 2**32 - 1)))
        return Frame(opcode, 5, payload, flags=self.choice((0, Flag.QUIET)), flex=flex)


@contextlib.contextmanager
def peers(port: int, greeting: bytes) -> Iterator[Callable[[int, bytes], None]]:
    """Several connections to a server, made anew where it has closed one; what it says is read
    away. Called with the number of one and what to send there."""
    known: dict[int, socket.socket] = {}

    def say(number: int, data: bytes) -> None:
        if number not in known:
            known[number] = socket.create_connection(("127.0.0.1", port), 20)
            data = greeting + data
        peer = known[number]
        try:
            peer.sendall(data)
            peer.setblocking(False)
            while peer.recv(1 << 16):
                pass
            raise ConnectionResetError
        except BlockingIOError:
            peer.setblocking(True)
        except OSError:
            known.pop(number).close()

    try:
        yield say
    finally:
        for peer in known.values():
            peer.close()


def check_calm(caplog: pytest.LogCaptureFixture, where: str) -> None:
    """Nothing failed inside."""
    failed = [one.getMessage() for one in caplog.records if "link.failed" in one.getMessage()]
    failed += [one.getMessage() for one in caplog.records if one.name == "asyncio"]
    assert not failed, f"{where} seed {SEED}: {failed[0]}"


def test_nothing_that_a_tap_client_says_fails_inside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Commands, streams, names, vbuckets and buckets, several connections at a time."""
    chance = Chance(SEED)
    listen = [parse_listen_url("tap://:0/b")]
    with Serving(tmp_path / "s", listen=listen, guest="all") as server:
        Buckets(server.log).make("other")
        for round_number in range(ROUNDS):
            with peers(server.port, b"") as say:
                for _ in range(25):
                    parts = (chance.tap() for _ in range(chance.randint(1, 5)))
                    say(chance.randrange(3), b"".join(parts))
            with KvClient(server.port) as client:
                (answer,) = client.ask(Packet(Opcode.SET_VBUCKET, extras=b"\0\0\0\1"))
                assert answer.status == 0
                (answer,) = client.ask(store(b"still", b"%d" % round_number))
                assert answer.status == 0
            check_calm(caplog, f"round {round_number}")


def test_nothing_that_a_greenstack_client_says_fails_inside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Lanes, transactions, streams and buckets, several connections at a time."""
    chance = Chance(SEED)
    listen = [parse_listen_url("greenstack://:0")]
    hello = encode_frame(
        Frame(GsOpcode.HELLO, payload=Hello("fuzz", "1", "", tuple(Feature)).encode())
    ) + encode_frame(Frame(GsOpcode.SELECT_BUCKET, payload=messages.encode_bucket("default")))
    with Serving(tmp_path / "s", listen=listen, guest="all") as server:
        Buckets(server.log).make("b")
        for round_number in range(ROUNDS):
            with peers(server.port, hello) as say:
                for _ in range(25):
                    parts = (chance.greenstack() for _ in range(chance.randint(1, 5)))
                    say(chance.randrange(3), b"".join(parts))
            with gsraw.RawClient(server.port) as client:
                assert client.ask(gsraw.mutation(b"still")).status == 0
            check_calm(caplog, f"round {round_number}")
