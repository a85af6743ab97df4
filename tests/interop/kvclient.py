"""A plain client of memcached's binary protocol and TAP for tests: blocking, one socket."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from logweir.replication.memcached.wire.codec import (
    Opcode,
    Packet,
    PacketBuffer,
    encode_ack,
    encode_request,
)
from logweir.replication.memcached.wire.messages import (
    Connect,
    TapMessage,
    decode_tap,
    encode_connect,
)


def store(
    key: bytes, value: bytes = b"v", opcode: int = Opcode.SET, *, flags: int = 0,
    expiry: int = 0, vbucket: int = 0, cas: int = 0,
) -> Packet:  # fmt: skip
    """A request that stores."""
    extras = struct.pack(">II", flags, expiry)
    return Packet(opcode, key, value, extras, vbucket=vbucket, cas=cas)


class KvClient:
    """One connection. `close` it, or use it as a context."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), 20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = PacketBuffer()
        self._found: list[Packet] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cut the connection."""
        self.socket.close()

    def send(self, *requests: Packet) -> None:
        """Send without waiting."""
        self.socket.sendall(b"".join(map(encode_request, requests)))

    def receive(self) -> Packet | None:
        """The next packet; None at the end of the connection."""
        while not self._found:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:  # the server had not read all that was sent
                return None
            if not data:
                return None
            found, problem = self._buffer.feed(data)
            assert problem is None
            self._found += found
        return self._found.pop(0)

    def ask(self, *requests: Packet) -> list[Packet]:
        """Send loud requests and wait for as many answers."""
        self.send(*requests)
        answers = [self.receive() for _ in requests]
        assert None not in answers
        return [answer for answer in answers if answer is not None]

    def batch(self, *requests: Packet) -> list[Packet]:
        """Send requests, some quiet, and NOOP behind them; the answers before its."""
        self.send(*requests, Packet(Opcode.NOOP, opaque=0xFFFFFFFF))
        answers = []
        while (answer := self.receive()) is not None:
            if answer.opcode == Opcode.NOOP and answer.opaque == 0xFFFFFFFF:
                return answers
            answers.append(answer)
        raise AssertionError("the server closed the connection")

    def statistics(self, group: bytes = b"") -> dict[str, str]:
        """Those of a group, which the server has to know."""
        self.send(Packet(Opcode.STAT, group))
        found: dict[str, str] = {}
        while (answer := self.receive()) is not None:
            assert answer.status == 0, group
            if not answer.key:
                return found
            found[answer.key.decode()] = answer.value.decode()
        raise AssertionError("the server closed the connection")

    def stream(self, connect: Connect, *, acknowledge: bool = True) -> Iterator[TapMessage]:
        """The messages of a stream, each acknowledged when the next one is asked for."""
        self.socket.sendall(encode_connect(connect))
        while (packet := self.receive()) is not None:
            if packet.opcode == Opcode.NOOP:
                continue
            assert not packet.is_response, packet
            message = decode_tap(packet)
            yield message
            if message.wants_ack and acknowledge:
                self.socket.sendall(encode_ack(message.opcode, message.opaque))
