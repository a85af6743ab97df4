"""Frames out of what a Tank connection receives: bytes → whole messages' bodies. No I/O, no clock.

Large frames are received into buffers of their own and small ones share one; see `FrameBuffer`.
`Reader` takes the fields of a payload; the messages are those of `codec`.
"""

from __future__ import annotations

import struct
import threading
from enum import IntEnum
from typing import Any, Final, TypeVar

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import TANK_FRAME_BYTES
from logweir.replication.packing import U16_LOW, U32_LOW, U64_LOW
from logweir.replication.topic import kernel
from logweir.replication.topic.bundle import read_varint

FRAME: Final = struct.Struct("<BI")
"""Head of a frame: type and bytes of the payload."""

Buffer = bytes | memoryview
ADDRESS: Final = struct.Struct("<4sH")
Table = TypeVar("Table", bound=IntEnum)


VIEWED_BYTES: Final = 16 * 1024  # smaller bundles are copied: a view keeps all that came with it
_SCRATCH_BYTES: Final = 64 * 1024  # what is received at a time where no large frame is under way
_HEAD_BYTES: Final = 4 * 1024  # the same after a large frame: another one may follow
_OWN_BYTES: Final = 256 * 1024  # of a buffer that large frames stay in, twice as much for a client
_OWN_MOST_BYTES: Final = 1024 * 1024  # that fills it, up to this
_BUFFERS_KEPT_BYTES: Final = 8 * 1024 * 1024  # of each size
_OWN_FRAME_BYTES: Final = 4 * 1024 * 1024  # larger frames are received in pieces
_SMALL_BYTES: Final = 1024  # smaller parts of a frame are gathered: each would cost as much again


class _Buffers(threading.local):
    """Of one thread. `scratch`: what is received here is taken out before anything else is
    received."""

    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        # By size; the one that was taken last, of which the processor's caches may still have
        # something, stands last.
        self._used: dict[int, list[bytearray]] = {}

    def take(self, least_bytes: int, usual_bytes: int) -> memoryview:
        """A buffer of the usual size, or of `least_bytes` if that is more. One of a usual size that
        nobody looks into any more is used again."""
        if least_bytes > usual_bytes:
            return memoryview(bytearray(least_bytes))
        used = self._used.setdefault(usual_bytes, [])
        for at in range(len(used) - 1, -1, -1):
            buffer = used[at]
            try:
                buffer.pop()  # refused while there is a view
            except BufferError:
                continue
            buffer.append(0)
            used.append(used.pop(at))
            return memoryview(buffer)
        buffer = bytearray(usual_bytes)
        if len(used) * usual_bytes < _BUFFERS_KEPT_BYTES:
            used.append(buffer)
        return memoryview(buffer)


_buffers: Final = _Buffers()


class FrameBuffer:
    """Bytes as they arrive → frames. Keeps at most one frame that is not complete.

    Two ways in: `feed` takes what has arrived; or `room` returns the place to receive into and
    `received` is told how much came. With the second a large frame is received into a buffer of
    its own, where it stays: frames after it follow in the same buffer. A payload that lies whole
    in one buffer is a view of it; another one is joined once, when its last byte is there.
    """

    def __init__(self, limit_bytes: int = TANK_FRAME_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._parts: list[Buffer | bytearray] = []
        self._size_bytes = 0
        self._needed_bytes = 0
        self._room: memoryview | None = None  # that was given out
        self._own: memoryview | None = None  # where the frame under way stands whole
        self._own_start = self._own_end = 0
        self._own_bytes = _OWN_BYTES  # of the next one
        self._after_large = False

    def __len__(self) -> int:
        return self._size_bytes

    @property
    def held_bytes(self) -> int:
        """Memory that is kept for the frame under way."""
        return self._size_bytes if self._own is None else len(self._own)

    def feed(self, data: Buffer) -> tuple[list[tuple[int, memoryview]], LimitExceeded | None]:
        """(type, payload) of each frame that is complete now, and what is wrong after them.

        `data` must not change any more. A frame that is too long is seen at its header, before its
        bytes are kept.
        """
        frames: list[tuple[int, memoryview]] = []
        view = memoryview(data)
        position = 0
        while self._parts:  # a frame under way
            missing = self._needed_bytes - self._size_bytes
            part = view[position : position + missing]
            position += len(part)
            self._add(part)
            if len(part) < missing:
                return frames, None
            whole = memoryview(b"".join(self._parts))
            problem = self._take(whole, 0, frames)
            if problem is not None:
                return frames, problem
        return frames, self._split(view, position, frames)[1]

    def room(self) -> memoryview:
        """Where the next bytes are to be received. Nothing but `received` may be called next."""
        missing = self._needed_bytes - self._size_bytes if self._parts else 0
        if self._own is not None:
            self._room = self._own[self._own_end :]
        elif missing < VIEWED_BYTES:
            self._room = _buffers.scratch[: _HEAD_BYTES if self._after_large else _SCRATCH_BYTES]
        elif self._needed_bytes > _OWN_FRAME_BYTES:
            self._room = memoryview(bytearray(min(missing, _OWN_BYTES)))
        else:
            self._own = _buffers.take(self._needed_bytes, self._own_bytes)
            self._own_start = self._own_end = 0
            for part in self._parts:
                start, self._own_end = self._own_end, self._own_end + len(part)
                self._own[start : self._own_end] = part
            self._parts = []
            self._room = self._own[self._own_end :]
        return self._room

    def received(self, count: int) -> tuple[list[tuple[int, memoryview]], LimitExceeded | None]:
        """So many bytes stand in what `room` gave. Returns what `feed` does."""
        room, self._room = self._room, None
        assert room is not None
        own = self._own
        if own is None:
            is_kept = 2 * count > len(room) and room.obj is not _buffers.scratch.obj
            self._after_large = False
            return self.feed(room[:count] if is_kept else bytes(room[:count]))
        self._own_end += count
        self._size_bytes = self._own_end - self._own_start
        frames: list[tuple[int, memoryview]] = []
        if self._size_bytes < self._needed_bytes:
            return frames, None
        rest, problem = self._split(own[: self._own_end], self._own_start, frames)
        missing = self._needed_bytes - self._size_bytes if self._parts else 0
        if missing >= VIEWED_BYTES and rest + self._needed_bytes <= len(own):
            self._own_start = rest
            self._parts = []
            return frames, problem
        self._own = None
        self._own_bytes = (
            min(2 * len(own), _OWN_MOST_BYTES) if 4 * self._own_end > 3 * len(own) else _OWN_BYTES
        )
        self._after_large = not self._parts
        return frames, problem

    def _split(
        self, view: memoryview, position: int, frames: list[tuple[int, memoryview]]
    ) -> tuple[int, LimitExceeded | None]:
        """Take the frames from `position` on, keep the rest; returns where that begins."""
        position = kernel.frames(view, position, self._limit_bytes, frames)
        problem = None
        self._parts, self._size_bytes = [], 0
        if position < len(view):
            problem = self._take(view, position, frames)
        return position, problem

    def _add(self, part: memoryview) -> None:
        self._size_bytes += len(part)
        if len(part) >= _SMALL_BYTES:
            self._parts.append(part)
        elif isinstance(self._parts[-1], bytearray):
            self._parts[-1] += part
        else:
            self._parts.append(bytearray(part))

    def _take(
        self, view: memoryview, position: int, frames: list[tuple[int, memoryview]]
    ) -> LimitExceeded | None:
        """Take the frame that begins at `position`, or keep what there is of it."""
        self._parts, self._size_bytes = [], 0
        needed = FRAME.size
        if len(view) - position >= needed:
            kind, size = FRAME.unpack_from(view, position)
            if size > self._limit_bytes:
                return LimitExceeded("TANK_FRAME_BYTES", self._limit_bytes, size)
            needed += size
            if len(view) - position >= needed:
                frames.append((kind, view[position + FRAME.size : position + needed]))
                return None
        rest = view[position:]
        # A view keeps all of what arrived alive: not worth it for a small end of it.
        self._parts = [rest if 2 * len(rest) >= len(view) else bytes(rest)]
        self._size_bytes = len(rest)
        self._needed_bytes = needed
        return None


class Reader:
    """Fields of one payload, in order. Raises `DecodeError` if one is cut."""

    __slots__ = ("data", "position")

    def __init__(self, data: Buffer, position: int = 0) -> None:
        self.data = data
        self.position = position

    def take(self, size: int) -> bytes:
        return bytes(self.view(size))

    def view(self, size: int) -> Buffer:
        stop = self.position + size
        if stop > len(self.data):
            raise DecodeError("a field runs past the end of its frame", offset=self.position)
        out = self.data[self.position : stop]
        self.position = stop
        return out

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        stop = self.position + form.size
        if stop > len(self.data):
            raise DecodeError("a field runs past the end of its frame", offset=self.position)
        found = form.unpack_from(self.data, self.position)
        self.position = stop
        return found

    def u8(self) -> int:
        if self.position >= len(self.data):
            raise DecodeError("a field runs past the end of its frame", offset=self.position)
        self.position += 1
        return self.data[self.position - 1]

    def u16(self) -> int:
        return int(self.unpack(U16_LOW)[0])

    def u32(self) -> int:
        return int(self.unpack(U32_LOW)[0])

    def u64(self) -> int:
        return int(self.unpack(U64_LOW)[0])

    def varint(self) -> int:
        value, self.position = read_varint(self.data, self.position)
        return value

    def text(self) -> str:
        return self.take(self.u8()).decode("utf-8", "surrogateescape")

    def address(self) -> tuple[str, int]:
        ip, port = ADDRESS.unpack(self.take(ADDRESS.size))
        return ".".join(map(str, ip)), int(port)

    def known(self, table: type[Table], what: str) -> Table:
        value = self.u8()
        try:
            return table(value)
        except ValueError:
            raise DecodeError(f"{value:#04x} is no {what}", offset=self.position - 1) from None

    def left(self) -> int:
        return len(self.data) - self.position

    def finish(self) -> None:
        if self.left():
            raise DecodeError(f"{self.left()} bytes too many in a frame", offset=self.position)
