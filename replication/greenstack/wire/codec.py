"""Greenstack's frames: bytes ↔ `Frame`. No I/O, no clock. All numbers are big-endian.

==========  ======  ================================================================================
bytes       field
==========  ======  ================================================================================
4           length  of what follows it; at least 7, of a response 9; at most
                    `limits.GREENSTACK_FRAME_BYTES`
4           opaque  chosen by who asks; the answer has the same
2           opcode
1           flags   1 response, 2 flex, 4 fence, 8 more, 16 quiet; 32, 64 and 128 are never set
2           status  only with `response`
4           flex    only with `flex`: the length of the entries that follow
…           entry   u16 key, u16 length, value; each key once
…           payload a FlatBuffer (`messages`), or nothing
==========  ======  ================================================================================

A frame that breaks this ends the connection: `FrameBuffer.feed` gives the frames before it and the
problem. Whether opcode, keys and payload make sense is not looked at here. Entries are written in
the order of their keys. Opcodes and statuses from 0x0c00 on are logweir's own and only sent to
peers that asked for them (`docs/greenstack.md`). Source: the introduction document of 2015 and both
states of the reference library, observed, which take the opposite for no bit but 64.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Any, Final

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import GREENSTACK_FRAME_BYTES
from logweir.replication.session import InputBuffer

_HEAD: Final = struct.Struct(">IIHB")
_ENTRY: Final = struct.Struct(">HH")
_ANSWER: Final = struct.Struct(">IIHBH")
_REQUEST_MIN: Final = 7
_RESPONSE_MIN: Final = 9
_UNASSIGNED: Final = 0x60
_NEXT: Final = 0x80
_NO_FLEX: Final[Mapping[int, bytes]] = {}


class Opcode(IntEnum):
    """Those that are known. Source: the reference libraries; from 0x0c00 on logweir's own."""

    HELLO = 0x0001
    SASL_AUTH = 0x0002
    NOOP = 0x0003
    KEEPALIVE = 0x0004
    SELECT_BUCKET = 0x0400
    LIST_BUCKETS = 0x0401
    CREATE_BUCKET = 0x0402
    DELETE_BUCKET = 0x0403
    ASSUME_ROLE = 0x0404
    MUTATION = 0x0405
    GET = 0x0406
    STREAM_OPEN = 0x0C00
    STREAM_CLOSE = 0x0C01
    REMOVE = 0x0C02
    STREAM_MARK = 0x0C03
    STREAM_ACK = 0x0C04
    NOTICE = 0x0C05
    TRUNCATE = 0x0C06
    GET_MANY = 0x0C07


class Status(IntEnum):
    """How a request ended. Source: the library of 2017; from 0x0c00 on logweir's own."""

    SUCCESS = 0x0000
    INVALID_ARGUMENTS = 0x0001
    INTERNAL_ERROR = 0x0002
    AUTHENTICATION_ERROR = 0x0003
    AUTHENTICATION_STALE = 0x0004
    NOT_INITIALIZED = 0x0005
    INVALID_STATE = 0x0006
    NO_ACCESS = 0x0007
    NOT_FOUND = 0x0008
    UNKNOWN_COMMAND = 0x0009
    USER_AGENT_BLACKLISTED = 0x000A
    NOT_IMPLEMENTED = 0x000B
    NO_MEMORY = 0x000C
    ALREADY_EXISTS = 0x000D
    OBJECT_TOO_BIG = 0x000E
    TOO_BUSY = 0x000F
    ILLEGAL_RANGE = 0x0010
    TMP_FAILURE = 0x0011
    NOT_MY_VBUCKET = 0x0400
    NO_BUCKET = 0x0401
    ROLLBACK = 0x0402
    NOT_STORED = 0x0403
    POSITION_GONE = 0x0C00
    STREAM_EXISTS = 0x0C01
    READ_ONLY = 0x0C02


class Flag(IntFlag):
    """Bits of the flag byte."""

    RESPONSE = 1
    FLEX = 2
    FENCE = 4
    MORE = 8
    QUIET = 16


class FlexKey(IntEnum):
    """Keys of flex entries. Source: the introduction document; from 0x8000 on logweir's own."""

    LANE = 0x0000
    TXID = 0x0004
    PRIORITY = 0x0005
    DCP_ID = 0x0006
    VBUCKET = 0x0007
    HASH = 0x0008
    EXPIRES_MS = 0x0009
    TIMINGS = 0x000A
    LSN = 0x8001
    ORIGIN = 0x8002
    TIME = 0x8003
    BUCKET = 0x8004


FIXED_LENGTHS: Final[Mapping[int, int]] = {
    FlexKey.PRIORITY: 1,
    FlexKey.VBUCKET: 2,
    FlexKey.HASH: 4,
    FlexKey.EXPIRES_MS: 4,
    FlexKey.LSN: 8,
    FlexKey.ORIGIN: 4,
    FlexKey.TIME: 8,
}
"""How long the values of these keys have to be."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. `status`: None in a request; `flags`: fence, more and quiet."""

    opcode: int
    opaque: int = 0
    payload: bytes = b""
    status: int | None = None
    flags: int = 0
    flex: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def is_response(self) -> bool:
        """Whether it answers a request."""
        return self.status is not None

    @property
    def is_quiet(self) -> bool:
        """Whether only a failure is to be answered."""
        return bool(self.flags & Flag.QUIET)

    @property
    def lane(self) -> bytes | None:
        """The lane it belongs to; None: the root lane."""
        return self.flex.get(FlexKey.LANE)

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return len(self.payload) + 128

    def wrong_key(self) -> int | None:
        """A key whose value has not the length that it must have; None: there is none."""
        for key, value in self.flex.items():
            if len(value) != FIXED_LENGTHS.get(key, len(value)):
                return key
        return None

    def number(self, key: FlexKey) -> int | None:
        """The value of a key of fixed length; None: it is not there."""
        value = self.flex.get(key)
        return None if value is None else int.from_bytes(value, "big")


# --- encoding -------------------------------------------------------------------------------------


def encode_frame(frame: Frame) -> bytes:
    """The bytes of a frame, the length before them."""
    flags = frame.flags
    head = b""
    if frame.status is not None:
        flags |= Flag.RESPONSE
        head = frame.status.to_bytes(2, "big")
    if frame.flex:
        flags |= Flag.FLEX
        entries = b"".join(
            _ENTRY.pack(key, len(value)) + value for key, value in sorted(frame.flex.items())
        )
        head += len(entries).to_bytes(4, "big") + entries
    size = _REQUEST_MIN + len(head) + len(frame.payload)
    return _HEAD.pack(size, frame.opaque, frame.opcode, flags) + head + frame.payload


def encode_answer(request: Frame, status: int = Status.SUCCESS, payload: bytes = b"") -> bytes:
    """The answer to a request, in the request's lane."""
    lane = request.flex.get(FlexKey.LANE) if request.flex else None
    if lane is None:
        return (
            _ANSWER.pack(
                _RESPONSE_MIN + len(payload),
                request.opaque,
                request.opcode,
                Flag.RESPONSE,
                status,
            )
            + payload
        )
    return encode_frame(
        Frame(request.opcode, request.opaque, payload, status, flex={FlexKey.LANE: lane})
    )


# --- decoding -------------------------------------------------------------------------------------


def _flex(data: bytes, at: int, end: int) -> tuple[Mapping[int, bytes], int]:
    """The entries of a frame that ends at `end`, and where the payload begins."""
    if at + 4 > end:
        raise DecodeError("flex length is cut", offset=at)
    stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
    if stop > end:
        raise DecodeError("flex overrun: the entries pass the frame's end", offset=at)
    at += 4
    entries: dict[int, bytes] = {}
    while at < stop:
        if at + 4 > stop:
            raise DecodeError("flex entry is cut", offset=at)
        key, size = _ENTRY.unpack_from(data, at)
        at += 4
        if at + size > stop:
            raise DecodeError("flex value passes the entries' end", offset=at)
        if key in entries:
            raise DecodeError(f"dup flex: key {key:#06x} comes twice", offset=at)
        entries[key] = data[at : at + size]
        at += size
    return entries, stop


def _frame(data: bytes, at: int, size: int) -> Frame:
    """The frame at `at`, whose length is `size` and which is all there."""
    _, opaque, opcode, flags = _HEAD.unpack_from(data, at)
    end = at + 4 + size
    if flags & _NEXT:
        raise DecodeError("next flag byte: none is defined", offset=at + 10)
    if flags & _UNASSIGNED:
        raise DecodeError(f"unassigned flag in {flags:#04x}", offset=at + 10)
    status: int | None = None
    begin = at + 11
    if flags & Flag.RESPONSE:
        if size < _RESPONSE_MIN:
            raise DecodeError(f"short response of {size} bytes", offset=at)
        status = data[begin] << 8 | data[begin + 1]
        begin += 2
    flex: Mapping[int, bytes] = _NO_FLEX
    if flags & Flag.FLEX:
        flex, begin = _flex(data, begin, end)
    return Frame(opcode, opaque, data[begin:end], status, flags & ~3, flex)


def decode_frames(
    data: bytes,
    limit_bytes: int = GREENSTACK_FRAME_BYTES,
    take_run: Callable[[bytes, int], Any | None] | None = None,
) -> tuple[Sequence[Any], int, int, DecodeError | LimitExceeded | None]:
    """The frames at the begin of `data`. `take_run`: finds what is to be taken in one piece, `stop`
    is where it ends.

    Returns them, how many bytes they take, how many the next one needs in all (0: not known yet),
    and what is wrong with it, if anything.
    """
    frames: list[Any] = []
    at = 0
    end = len(data)
    while end - at >= 4:
        if take_run is not None and (run := take_run(data, at)) is not None:
            frames.append(run)
            at = run.stop
            continue
        size = int.from_bytes(data[at : at + 4], "big")
        if size < _REQUEST_MIN:
            return frames, at, 0, DecodeError(f"short body of {size} bytes", offset=at)
        if size > limit_bytes:
            problem = LimitExceeded("GREENSTACK_FRAME_BYTES", limit_bytes, size)
            return frames, at, 0, problem
        if end - at < 4 + size:
            return frames, at, 4 + size, None
        try:
            frames.append(_frame(data, at, size))
        except DecodeError as error:
            return frames, at, 0, error
        at += 4 + size
    return frames, at, 0, None


class FrameBuffer:
    """Frames out of bytes that come in any portions."""

    def __init__(self, limit_bytes: int = GREENSTACK_FRAME_BYTES) -> None:
        self._limit = limit_bytes
        self.rest = InputBuffer("GREENSTACK_FRAME_BYTES", limit_bytes + 4)
        """What has come of a frame that is not whole yet."""

    def __len__(self) -> int:
        return self.rest.size_bytes

    def join(self, data: bytes) -> bytes:
        """Bytes with what is kept before them, of which nothing is kept then; b"" while the frame
        that they are of is not whole."""
        return self.rest.join(data)

    def feed(
        self, data: bytes, take_run: Callable[[bytes, int], Any | None] | None = None
    ) -> tuple[Sequence[Any], DecodeError | LimitExceeded | None]:
        """Take bytes; returns the frames that are whole, and what is wrong with what follows them:
        then nothing more may be fed. `take_run`: see `decode_frames`."""
        data = self.rest.join(data)
        if not data:
            return (), None
        frames, taken, needed, problem = decode_frames(data, self._limit, take_run)
        if problem is None and taken < len(data):
            self.rest.keep(data[taken:], needed)
        return frames, problem
