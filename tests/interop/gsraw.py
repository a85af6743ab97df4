"""A Greenstack client of bare frames, blocking, for tests."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from logweir.replication.greenstack.wire.codec import (
    Flag,
    FlexKey,
    Frame,
    FrameBuffer,
    Opcode,
    encode_frame,
)
from logweir.replication.greenstack.wire.messages import (
    Document,
    Feature,
    Hello,
    Operation,
    encode_bucket,
    encode_get,
    encode_sasl,
)


def vbucket(number: int, **others: bytes) -> dict[int, bytes]:
    """Flex entries: a vbucket and others by the names of their keys."""
    entries = {FlexKey[name.upper()].value: value for name, value in others.items()}
    return {FlexKey.VBUCKET: number.to_bytes(2, "big"), **entries}


def mutation(
    key: bytes,
    value: bytes = b"v",
    operation: int = Operation.SET,
    *,
    opaque: int = 0,
    flags: int = 0,
    flex: Mapping[int, bytes] | None = None,
    **document: object,
) -> Frame:
    """A MUTATION of vbucket 0, unless `flex` says otherwise."""
    payload = Document(key, value, **document).encode(operation)  # type: ignore[arg-type]
    entries = vbucket(0) if flex is None else flex
    return Frame(Opcode.MUTATION, opaque, payload, flags=flags, flex=entries)


def get(
    key: bytes, *, opaque: int = 0, flags: int = 0, flex: Mapping[int, bytes] | None = None
) -> Frame:
    """A GET."""
    entries = vbucket(0) if flex is None else flex
    return Frame(Opcode.GET, opaque, encode_get(key), flags=flags, flex=entries)


class RawClient:
    """One connection. `features`: of its HELLO; `bucket`: selected at once, "" for none."""

    def __init__(
        self,
        port: int,
        *,
        features: tuple[int, ...] = (Feature.CHANGE_STREAM, Feature.REMOVE),
        bucket: str = "default",
        hello: bool = True,
        user: str = "",
        password: str = "",
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.pushed: deque[Frame] = deque()
        self._frames = FrameBuffer()
        self._ready: deque[Frame] = deque()
        self._opaque = 0x1000
        if hello:
            self.ask(Frame(Opcode.HELLO, payload=Hello("test", "1", "", features).encode()))
        if user:
            proof = b"\0" + user.encode() + b"\0" + password.encode()
            login = Frame(Opcode.SASL_AUTH, payload=encode_sasl("PLAIN", proof))
            assert self.ask(login).status == 0
        if bucket:
            select = Frame(Opcode.SELECT_BUCKET, payload=encode_bucket(bucket))
            assert self.ask(select).status == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, *frames: Frame) -> None:
        """Send frames as they are."""
        self.socket.sendall(b"".join(map(encode_frame, frames)))

    def receive(self) -> Frame | None:
        """The next frame, None at the end of the connection."""
        while not self._ready:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not data:
                return None
            frames, problem = self._frames.feed(data)
            assert problem is None, problem
            self._ready.extend(frames)
        return self._ready.popleft()

    def answer(self) -> Frame:
        """The next answer; what is pushed meanwhile is kept in `pushed`."""
        while True:
            frame = self.receive()
            assert frame is not None, "the server closed the connection"
            if frame.is_response:
                return frame
            self.pushed.append(frame)

    def push(self) -> Frame:
        """The next frame that is pushed."""
        while not self.pushed:
            frame = self.receive()
            assert frame is not None, "the server closed the connection"
            assert not frame.is_response, frame
            self.pushed.append(frame)
        return self.pushed.popleft()

    def ask(self, frame: Frame) -> Frame:
        """Send a request under an opaque of its own and wait for its answer."""
        self._opaque += 1
        flags, flex = frame.flags, frame.flex
        self.send(Frame(frame.opcode, self._opaque, frame.payload, None, flags, flex))
        answer = self.answer()
        assert answer.opaque == self._opaque
        return answer

    def barrier(self, lane: bytes | None = None) -> list[Frame]:
        """The answers up to that of a NOOP that is sent now."""
        flex = {} if lane is None else {FlexKey.LANE.value: lane}
        self.send(Frame(Opcode.NOOP, 0xFFFF, flags=Flag.FENCE, flex=flex))
        answers = []
        while (answer := self.answer()).opaque != 0xFFFF:
            answers.append(answer)
        return answers
