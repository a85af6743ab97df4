"""A TAP server for tests that says what it is told to: blocking, in a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from logweir.replication.memcached.wire.codec import (
    Opcode,
    Packet,
    PacketBuffer,
    Status,
    encode_answer,
    encode_request,
)
from logweir.replication.memcached.wire.messages import (
    Connect,
    TapMessage,
    decode_connect,
    encode_tap,
)


class Peer:
    """One connection of a client."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(20)
        self.socket = connection
        self._buffer = PacketBuffer()
        self._found: list[Packet] = []
        self.connects: list[Connect] = []

    def receive(self) -> Packet | None:
        """The next packet; None at the end."""
        while not self._found:
            try:
                data = self.socket.recv(65536)
            except ConnectionError:
                return None
            if not data:
                return None
            found, _ = self._buffer.feed(data)
            self._found += found
        return self._found.pop(0)

    def connect(self) -> Connect:
        """TAP_CONNECT, which has to be next; SELECT_BUCKET before it is not known."""
        packet = self.receive()
        assert packet is not None
        if packet.opcode == Opcode.SELECT_BUCKET:
            self.socket.sendall(encode_answer(packet, Status.UNKNOWN_COMMAND, value=b""))
            packet = self.receive()
            assert packet is not None
        assert packet.opcode == Opcode.TAP_CONNECT
        self.connects.append(decode_connect(packet))
        return self.connects[-1]

    def send(self, *messages: TapMessage) -> None:
        """Packets of a stream."""
        self.socket.sendall(b"".join(map(encode_tap, messages)))

    def answer(self, packet: Packet) -> None:
        """Any packet."""
        self.socket.sendall(encode_request(packet))


class TapServer:
    """`scripts`: what is done with the first, the second … connection; the last one with all that
    follow. Errors of scripts are raised at the end."""

    def __init__(self, *scripts: Callable[[Peer], None]) -> None:
        self._scripts: Sequence[Callable[[Peer], None]] = scripts
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.connects: list[Connect] = []
        self.connections = 0
        self._errors: list[BaseException] = []
        self._peers: list[Peer] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            script = self._scripts[min(self.connections, len(self._scripts) - 1)]
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection, script), daemon=True).start()

    def _serve(self, connection: socket.socket, script: Callable[[Peer], None]) -> None:
        peer = Peer(connection)
        peer.connects = self.connects
        self._peers.append(peer)
        with connection:
            try:
                script(peer)
            except (AssertionError, TimeoutError) as error:
                self._errors.append(error)
            except OSError:
                return  # the client is gone, or the test is over

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for peer in self._peers:
            peer.socket.close()
        if self._errors and error is None:
            raise self._errors[0]
