"""The iproto protocol: bytes ↔ messages. No I/O, no clock.

**Greeting**, server to client, 128 bytes: two lines of 64, filled with spaces up to byte 62, ended
by LF. First ``Tarantool 2.11.0 (Binary) <instance uuid>``, then 44 letters of base64 of 32 random
bytes, of which the first 20 are the salt of AUTH. Connectors ask for features (ID) from 2.10 on; to
masters we say 2.6.0, whose replication we speak.

**Frame**: length, header map, and mostly a body map. The length counts what comes after itself; we
write it as ``ce`` and 4 bytes, and take any unsigned form. Anything else there is error 20 "packet
length", and the connection ends, since nothing after it can be found.

====  ================  =====  =====================================================================
key   in the header     type   notes
====  ================  =====  =====================================================================
00    request type      uint   answers: 0, or 8000 + number of the error; 80: out of band
01    sync              uint   chosen by the client, repeated in the answer
02    replica id        uint   rows; answer to SUBSCRIBE: id of the server
03    lsn               uint   rows
04    timestamp         f64    rows, heartbeats
05    schema version    uint   request: 0 or absent: do not compare
0a    stream id         uint   request: 0 or absent: of no stream
====  ================  =====  =====================================================================

An answer's header always has the same 23 bytes, ``83 00 ce <code> 01 cf <sync> 05 ce <version>``,
and its body is ``80``, or ``81 30 dd <count> <tuples>``, or the error: 31 the message, 52 the stack
``{0: [{0: type, 2: line, 1: file, 3: message, 4: errno, 5: number, 6: fields}]}``.
Frames of a replication stream have the shortest header, with absent zero keys.

What is refused, and with which words, is as Tarantool 2.6.0 does it (observed): the header is not a
map with unsigned keys below 53, or a key has a value of another type: 20 "packet header"; more or
less than one value follows it, that is no map, or a key has a value of another type: 20 "packet
body"; a mandatory key is missing: 69; keys that the request does not know are passed over. One
thing is refused that 2.6.0 takes: the byte c1, which MsgPack never uses.
"""

from __future__ import annotations

import base64
import binascii
import struct
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from logweir.errors import DecodeError, ErrorCode, LimitExceeded, RemoteProtocolError, RequestError
from logweir.limits import IPROTO_FRAME_BYTES, VCLOCK_COMPONENTS
from logweir.replication.iproto.wire import headkernel
from logweir.wal.mp import Ext, Value, pack, unpack_at
from logweir.wal.vclock import VClock

GREETING_BYTES: Final = 128
SALT_BYTES: Final = 20
VERSION: Final = (2, 11, 0)
REPLICA_VERSION_ID: Final = 2 << 16 | 6 << 8
ERROR_BIT: Final = 0x8000
U32_MAX: Final = 0xFFFFFFFF


class RequestType(IntEnum):
    """Kinds of requests that have a name here; all others are answered with error 48."""

    OK = 0
    SELECT = 1
    INSERT = 2
    REPLACE = 3
    UPDATE = 4
    DELETE = 5
    CALL_16 = 6
    AUTH = 7
    EVAL = 8
    UPSERT = 9
    CALL = 10
    NOP = 12
    BEGIN = 14
    COMMIT = 15
    ROLLBACK = 16
    RAFT = 30
    PING = 64
    JOIN = 65
    SUBSCRIBE = 66
    VOTE = 68
    FETCH_SNAPSHOT = 69
    REGISTER = 70
    ID = 73
    WATCH = 74
    UNWATCH = 75
    EVENT = 76
    WATCH_ONCE = 77


class IprotoKey(IntEnum):
    """Keys of header and body maps."""

    TYPE = 0x00
    SYNC = 0x01
    REPLICA_ID = 0x02
    LSN = 0x03
    TIMESTAMP = 0x04
    SCHEMA_VERSION = 0x05
    SERVER_VERSION = 0x06
    GROUP_ID = 0x07
    TSN = 0x08
    FLAGS = 0x09
    STREAM_ID = 0x0A
    SPACE_ID = 0x10
    INDEX_ID = 0x11
    LIMIT = 0x12
    OFFSET = 0x13
    ITERATOR = 0x14
    INDEX_BASE = 0x15
    FETCH_POSITION = 0x1F
    KEY = 0x20
    TUPLE = 0x21
    FUNCTION_NAME = 0x22
    USER_NAME = 0x23
    INSTANCE_UUID = 0x24
    REPLICASET_UUID = 0x25
    VCLOCK = 0x26
    EXPR = 0x27
    OPS = 0x28
    BALLOT = 0x29
    AFTER_POSITION = 0x2E
    AFTER_TUPLE = 0x2F
    DATA = 0x30
    ERROR = 0x31
    POSITION = 0x35
    REPLICA_ANON = 0x50
    ID_FILTER = 0x51
    ERROR_STACK = 0x52
    VERSION = 0x54
    FEATURES = 0x55
    TIMEOUT = 0x56
    EVENT_KEY = 0x57
    EVENT_DATA = 0x58
    TXN_ISOLATION = 0x59
    AUTH_TYPE = 0x5B
    SPACE_NAME = 0x5E
    INDEX_NAME = 0x5F
    IS_SYNC = 0x61


# --- greeting -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Greeting:
    """A server's first 128 bytes. `salt`: the 20 bytes that AUTH uses."""

    version: tuple[int, ...]
    instance: uuid.UUID
    salt: bytes


def encode_greeting(instance: uuid.UUID, noise: bytes) -> bytes:
    """The greeting of a server. `noise`: 32 random bytes, of which the first 20 are the salt."""
    assert len(noise) == 32
    version = ".".join(map(str, VERSION))
    first = f"Tarantool {version} (Binary) {instance}".ljust(63).encode() + b"\n"
    return first + base64.b64encode(noise).ljust(63) + b"\n"


def decode_greeting(data: bytes) -> Greeting:
    """Read a greeting. `data`: 128 bytes. Raises `RemoteProtocolError`."""
    words = data[:63].decode("latin-1").split()
    try:
        if len(data) != GREETING_BYTES or data[63] != 0x0A or data[127] != 0x0A:
            raise ValueError("its lines do not end where they must")
        if len(words) < 4 or words[0] != "Tarantool" or words[2] != "(Binary)":
            raise ValueError("it is not the greeting of Tarantool's binary protocol")
        version = tuple(int(part.split("-")[0]) for part in words[1].split(".")[:3])
        salt = base64.b64decode(data[64:108], validate=True)[:SALT_BYTES]
        if len(version) != 3 or len(salt) != SALT_BYTES:
            raise ValueError("version or salt is too short")
        return Greeting(version, uuid.UUID(words[3]), salt)
    except (ValueError, binascii.Error) as error:
        raise RemoteProtocolError(
            f"invalid greeting {data[:63]!r}: {error}",
            hint="check that the address is Tarantool's listen address",
        ) from error


# --- frames ---------------------------------------------------------------------------------------


def malformed(where: str) -> RequestError:
    """The error for MsgPack at `where` that cannot be taken."""
    return RequestError(ErrorCode.INVALID_MSGPACK, f"Invalid MsgPack - {where}")


class Splitter:
    """Cuts a stream of bytes into frames. `limit_bytes`: the largest frame that is taken."""

    __slots__ = ("_limit_bytes",)

    def __init__(self, limit_bytes: int = IPROTO_FRAME_BYTES) -> None:
        self._limit_bytes = limit_bytes

    def split(self, data: bytes, at: int = 0) -> tuple[list[tuple[int, int]], int, int]:
        """The whole frames in `data`, from `at` on.

        Returns (start, end) of each without its length, where the first incomplete one begins,
        and how many bytes are needed from there on (0: not known yet).
        Raises `RequestError` 20 if a length is none; the frames before it are in `spans`.
        """
        spans: list[tuple[int, int]] = []
        size = len(data)
        while at < size:
            first = data[at]
            if first == 0xCE:
                if size - at < 5:
                    return spans, at, 5
                start = at + 5
                length = int.from_bytes(data[at + 1 : start], "big")
            elif first < 0x80:
                start, length = at + 1, first
            elif 0xCC <= first <= 0xCF:
                start = at + 1 + (1 << first - 0xCC)
                if size < start:
                    return spans, at, start - at
                length = int.from_bytes(data[at + 1 : start], "big")
            else:
                raise BrokenStream(malformed("packet length"), spans)
            end = start + length
            if length > self._limit_bytes:
                what = f"too big packet size in the header: {length}"
                raise BrokenStream(malformed(what), spans)
            if end > size:
                return spans, at, end - at
            spans.append((start, end))
            at = end
        return spans, at, 0


class BrokenStream(Exception):
    """Nothing after this place can be found. `spans`: the whole frames before it."""

    def __init__(self, cause: RequestError, spans: list[tuple[int, int]]) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.spans = spans


@dataclass(slots=True)
class Header:
    """A decoded header. `body_at`: where the body begins in the buffer."""

    type: int = 0
    sync: int = 0
    replica_id: int = 0
    lsn: int = 0
    timestamp: float = 0.0
    schema_version: int = 0
    stream_id: int = 0
    body_at: int = 0


_FLOAT64: Final = struct.Struct(">d")
_U64: Final = struct.Struct(">Q")


def map_start(data: bytes, at: int) -> tuple[int, int] | None:
    """How many items the map at `at`, which is whole, has, and where they begin."""
    first = data[at]
    if 0x80 <= first < 0x90:
        return first & 0x0F, at + 1
    if first in (0xDE, 0xDF):
        width = 2 if first == 0xDE else 4
        return int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width
    return None


def decode_header(data: bytes, start: int, end: int, header: Header) -> None:
    """Read the header at `start` into `header`, as far as it goes, and check that one value at
    most follows. Raises `RequestError` 20."""
    (
        how,
        header.type,
        header.sync,
        header.replica_id,
        header.lsn,
        bits,
        header.schema_version,
        header.stream_id,
        header.body_at,
    ) = headkernel.read_header(data, start, end)
    (header.timestamp,) = _FLOAT64.unpack(_U64.pack(bits))
    check_header(how)


def check_header(how: int) -> None:
    """Raise `RequestError` 20 if a header is not whole."""
    if how != headkernel.WHOLE:
        raise malformed("packet body" if how == headkernel.BEHIND else "packet header")


# --- requests -------------------------------------------------------------------------------------


def read_vclock(value: Value) -> VClock:
    """A vclock from the wire; ids that cannot be are passed over, as 2.6.0 does."""
    if not isinstance(value, dict):
        raise malformed("invalid VCLOCK")
    if not all(type(key) is int and type(lsn) is int for key, lsn in value.items()):
        raise malformed("invalid VCLOCK")
    known = {key: lsn for key, lsn in value.items() if key < VCLOCK_COMPONENTS}
    try:
        return VClock(known).without_local()
    except ValueError as error:
        raise malformed("invalid VCLOCK") from error


# --- answers --------------------------------------------------------------------------------------

_ANSWER: Final = struct.Struct(">cI3sI2sQ2sI")
"""``ce`` length ``83 00 ce`` code ``01 cf`` sync ``05 ce`` version, before the body."""
_ANSWER_HEADER_BYTES: Final = 23
EMPTY_BODY: Final = b"\x80"
_ERROR_TYPES: Final = {
    ErrorCode.ACCESS_DENIED: "AccessDeniedError",
    ErrorCode.MEMORY_ISSUE: "OutOfMemory",
}


_ERROR_CODE: Final = 3  # of the extension type


def frame(payload: bytes) -> bytes:
    """`payload` with its length before it."""
    return b"\xce" + len(payload).to_bytes(4, "big") + payload


def encode_answer(sync: int, schema_version: int, body: bytes, code: int = 0) -> bytes:
    """An answer with a body that is already encoded. `code`: 0, or 8000 + error number."""
    return answer_head(sync, schema_version, len(body), code) + body


def answer_head(sync: int, schema_version: int, body_bytes: int, code: int = 0) -> bytes:
    """What stands before the body of an answer."""
    size, version = _ANSWER_HEADER_BYTES + body_bytes, schema_version & U32_MAX
    return _ANSWER.pack(b"\xce", size, b"\x83\0\xce", code, b"\x01\xcf", sync, b"\x05\xce", version)


def data_body(tuples: Sequence[bytes]) -> bytes:
    """The body of an answer that carries data. `tuples`: values already encoded."""
    return b"".join(data_parts(len(tuples), tuples))


def data_parts(count: int, parts: Sequence[bytes], position: str | None = None) -> list[bytes]:
    """The same in parts. `parts`: of the encoded values, of which there are `count`; `position`:
    of the last one."""
    first = b"\x81" if position is None else b"\x82"
    behind = b"" if position is None else b"\x35" + pack(position)
    return [first + b"\x30\xdd" + count.to_bytes(4, "big"), *parts, behind]


def _stack_of(error: RequestError) -> dict[int, Value]:
    """An error as it stands in answers. Its file and line say only that it is ours."""
    type_name = _ERROR_TYPES.get(error.code, "ClientError")
    entry: dict[int, Value] = {0: type_name, 2: 0, 1: "logweir", 3: error.message, 4: 0}
    entry[5] = int(error.code)
    details = error.details
    if error.code == ErrorCode.ACCESS_DENIED and "object" in details:
        entry[6] = {
            "object_type": str(details["object_type"]),
            "object_name": str(details["object"]),
            "access_type": str(details["privilege"]).capitalize(),
        }
    return {0: [entry]}


def error_value(error: RequestError) -> Ext:
    """An error as a value, as those read it who say so (`ERROR_VALUES`). Source: Tarantool
    2.6.0, observed."""
    return Ext(_ERROR_CODE, pack(_stack_of(error)))


def encode_error(sync: int, schema_version: int, error: RequestError) -> bytes:
    """The answer to a request that failed."""
    body = pack({0x31: error.message, int(IprotoKey.ERROR_STACK): _stack_of(error)})
    return encode_answer(sync, schema_version, body, ERROR_BIT | int(error.code))


def encode_event(sync: int, key: str, value: bytes | None) -> bytes:
    """What a key that is watched stands for now; it has no schema version. `sync`: of the WATCH;
    `value`: encoded, None for nothing."""
    head = pack({0: int(RequestType.EVENT), 1: sync})
    if value is None:
        return frame(head + pack({int(IprotoKey.EVENT_KEY): key}))
    return frame(head + b"\x82\x57" + pack(key) + b"\x58" + value)


@dataclass(frozen=True, slots=True)
class Ballot:
    """What a server says of itself before it is joined. `gc_vclock`: of the oldest row it holds."""

    is_ro: bool = False
    vclock: VClock = VClock()  # noqa: RUF009 - immutable
    gc_vclock: VClock = VClock()  # noqa: RUF009 - immutable
    is_loading: bool = False

    def body(self) -> bytes:
        """The body of the answer to VOTE."""
        inner = {
            1: self.is_ro,
            4: self.is_loading,
            2: dict(self.vclock.without_local()),
            3: dict(self.gc_vclock.without_local()),
        }
        return pack({int(IprotoKey.BALLOT): inner})


def decode_ballot(body: Mapping[int, Value]) -> Ballot:
    """Read the body of an answer to VOTE; what is missing has its default."""
    inner = body.get(IprotoKey.BALLOT)
    if not isinstance(inner, dict):
        return Ballot()
    return Ballot(
        bool(inner.get(1, False)),
        read_vclock(inner.get(2, {})),
        read_vclock(inner.get(3, {})),
        bool(inner.get(4, False)),
    )


# --- replication streams --------------------------------------------------------------------------


def encode_vclock_answer(
    vclock: VClock,
    *,
    sync: int = 0,
    replica_id: int = 0,
    replicaset: uuid.UUID | None = None,
) -> bytes:
    """The OK frames of JOIN (only the vclock) and of SUBSCRIBE (with id and replica set)."""
    head = {0: 0} | ({1: sync} if sync else {}) | ({2: replica_id} if replica_id else {})
    body: dict[int, Value] = {int(IprotoKey.VCLOCK): dict(vclock.without_local())}
    if replicaset is not None:
        body[int(IprotoKey.REPLICASET_UUID)] = str(replicaset)
    return frame(pack(head) + pack(body))


def encode_heartbeat(replica_id: int, timestamp: float, *, sync: int = 0) -> bytes:
    """A frame that only says: I live, and it is this time."""
    head: dict[int, Value] = {0: 0} | ({1: sync} if sync else {})
    head |= {2: replica_id, 4: timestamp} if replica_id else {4: timestamp}
    return frame(pack(head))


def encode_ack(vclock: VClock) -> bytes:
    """What a replica sends after each transaction that it has written, and each heartbeat."""
    return frame(b"\x81\x00\x00" + pack({int(IprotoKey.VCLOCK): dict(vclock.without_local())}))


@dataclass(frozen=True, slots=True)
class Answer:
    """A frame that came from a server: header and decoded body. `code`: 0 or an error number."""

    header: Header
    body: dict[int, Value]

    @property
    def is_error(self) -> bool:
        """Whether the request failed."""
        return bool(self.header.type & ERROR_BIT)

    def error(self) -> RequestError:
        """The failure as an error of ours; an unknown number becomes `UNKNOWN`."""
        number = self.header.type & (ERROR_BIT - 1)
        message = self.body.get(IprotoKey.ERROR, "")
        text = message if isinstance(message, str) else repr(message)
        try:
            return RequestError(ErrorCode(number), text)
        except ValueError:
            return RequestError(ErrorCode.UNKNOWN, f"error {number}: {text}")


def decode_answer(data: bytes, start: int, end: int) -> Answer:
    """Read a frame of a server (without its length). Raises `RemoteProtocolError`."""
    header = Header()
    try:
        decode_header(data, start, end, header)
        body: Value = {}
        if header.body_at < end:
            body, stop = unpack_at(memoryview(data)[:end], header.body_at)
            if stop != end or not isinstance(body, dict):
                raise DecodeError("the body is not one map", offset=header.body_at)
    except (RequestError, DecodeError, LimitExceeded) as error:
        raise RemoteProtocolError(f"malformed answer: {error}") from error
    return Answer(header, body)
