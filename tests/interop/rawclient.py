"""A blocking iproto client for tests, which sends any bytes and shows every answer."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any, Self

from logweir.replication.iproto.wire import auth, codec
from logweir.wal.mp import pack


class RawClient:
    """One connection to a server on loopback."""

    def __init__(self, port: int, user: str = "", password: str = "") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._data = b""
        self._sync = 0
        greeting = b""
        while len(greeting) < codec.GREETING_BYTES:
            greeting += self.socket.recv(codec.GREETING_BYTES - len(greeting))
        self.greeting = codec.decode_greeting(greeting)
        if user:
            self.login(user, password)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def login(self, user: str, password: str) -> None:
        """Be somebody, or somebody else, from now on."""
        proof = auth.scramble(password, self.greeting.salt).decode("utf-8", "surrogateescape")
        answer = self.ask(7, {0x23: user, 0x21: ["chap-sha1", proof]})
        assert not answer.is_error, answer.error()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def frame(self, kind: int, body: bytes, stream: int = 0) -> bytes:
        """The next request, as it is to be sent. `body`: encoded; `stream`: its id, 0 for none."""
        self._sync += 1
        head = {0: kind, 1: self._sync} | ({0x0A: stream} if stream else {})
        return codec.frame(pack(head) + body)

    def ask(self, kind: int, body: Any = None, stream: int = 0) -> codec.Answer:
        """One request, one answer."""
        return self.ask_raw(kind, b"" if body is None else pack(body), stream)

    def ask_raw(self, kind: int, body: bytes, stream: int = 0) -> codec.Answer:
        """One request with a body in bytes, one answer."""
        self.send(self.frame(kind, body, stream))
        answer = self.receive()
        assert answer.header.sync == self._sync
        return answer

    def receive(self) -> codec.Answer:
        """The next frame. Raises `EOFError` where the server has closed."""
        while True:
            spans, _, _ = codec.Splitter().split(self._data)
            if spans:
                start, end = spans[0]
                answer = codec.decode_answer(self._data, start, end)
                self._data = self._data[end:]
                return answer
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionError:
                data = b""
            if not data:
                raise EOFError
            self._data += data
