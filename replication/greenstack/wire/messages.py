"""The payloads of Greenstack's frames: FlatBuffers ↔ values.

Slots are numbered from 0 in the order in which they stand here; `req`: the payload is refused where
it is missing; in brackets what a slot has that was left out.

======================  ============================================================================
table                   slots
======================  ============================================================================
HelloRequest            agent text req, version text req, comment text, *features u16s*
HelloResponse           agent text req, version text req, mechanisms text, *features u16s*
SaslRequest             mechanism text, challenge bytes
SaslResponse            challenge bytes
Keepalive               interval u16 [10], minutes
SelectBucket            bucket text req
ListBuckets (answer)    buckets texts req
CreateBucket            name text req, config text req, type i8 [0]: memcached 0, Couchbase 1, 2
DeleteBucket            bucket text req, force bool [false]
AssumeRole              role text req
Mutation                document Document, operation i8 [2]: see `Operation`
MutationResponse        cas u64 [0], size u32 [0], seqno u64 [0], vbucket uuid u64 [0]
Get                     id text req
GetResponse             document Document
Document                info DocumentInfo, value bytes
DocumentInfo            id text, flags u32 [0], expiration text, compression i8 [0]: Snappy 1, Gzip
                        2, Bzip 3; datatype i8 [0]: JSON 1; cas u64 [0]
*StreamOpen*            start Positions, snapshot bool [false], buckets texts, window u32 [1048576],
                        follow bool [true], heartbeat u16 [10]
*StreamOpened*          position Positions, instance text
*StreamClose*           status u16 [0], reason text
*Remove*                id text req, cas u64 [0]
*StreamMark*            kind i8 [0], position Positions, time u64 [0]
*StreamAck*             position Positions, credit u32 [0]
*Notice*                code u16 [0], text text, detail text
*Truncate*              bucket text req
*Position*              origin u32 [0], lsn u64 [0]
======================  ============================================================================

What is in italics is logweir's own. A Document without info, id or value is refused here, though
the libraries' verifier takes it (and crashes them). Ids are bytes; other texts are UTF-8. Source:
the schemas of both reference libraries.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from logweir.errors import DecodeError
from logweir.limits import GREENSTACK_BUCKETS, VCLOCK_COMPONENTS
from logweir.replication.greenstack.wire.flat import Kind, Slot, Table, read, write
from logweir.wal.vclock import VClock

__all__ = [
    "Document",
    "Feature",
    "Hello",
    "HelloAnswer",
    "Mark",
    "MarkKind",
    "MutationAnswer",
    "NoticeCode",
    "Operation",
    "StreamOpen",
]


class Operation(IntEnum):
    """What a MUTATION does."""

    ADD = 1
    SET = 2
    REPLACE = 3
    APPEND = 4
    PREPEND = 5
    PATCH = 6


class Feature(IntEnum):
    """What a client may ask for in HELLO beyond what Greenstack has."""

    CHANGE_STREAM = 0x0C00
    REMOVE = 0x0C01
    NOTICES = 0x0C02


class MarkKind(IntEnum):
    """What a STREAM_MARK tells."""

    HEARTBEAT = 0
    SNAPSHOT_BEGINS = 1
    SNAPSHOT_ENDS = 2
    CAUGHT_UP = 3


class NoticeCode(IntEnum):
    """What a NOTICE tells."""

    SLOW_DOWN = 1
    SPEED_UP = 2
    SHUTTING_DOWN = 3
    BUCKET_REMOVED = 4
    CONFIGURATION_CHANGED = 5
    WARMING_UP = 6
    READY = 7
    PROTOCOL_ERROR = 8


def _req(name: str) -> Slot:
    return Slot(name, Kind.TEXT, required=True)


_POSITION: Final = Table("Position", (Slot("origin", Kind.U32, 0), Slot("lsn", Kind.U64, 0)))


def _positions(name: str) -> Slot:
    return Slot(name, Kind.TABLES, (), limit=VCLOCK_COMPONENTS, table=_POSITION)


_INFO: Final = Table(
    "DocumentInfo",
    (
        _req("id"),
        Slot("flags", Kind.U32, 0),
        Slot("expiration", Kind.TEXT),
        Slot("compression", Kind.I8, 0),
        Slot("datatype", Kind.I8, 0),
        Slot("cas", Kind.U64, 0),
    ),
)
_DOCUMENT: Final = Table(
    "Document",
    (
        Slot("info", Kind.TABLE, required=True, table=_INFO),
        Slot("value", Kind.BYTES, required=True),
    ),
)
_HELLO: Final = Table(
    "HelloRequest",
    (_req("agent"), _req("version"), Slot("comment", Kind.TEXT), Slot("features", Kind.U16S, ())),
)
_HELLO_ANSWER: Final = Table(
    "HelloResponse",
    (
        _req("agent"),
        _req("version"),
        Slot("mechanisms", Kind.TEXT),
        Slot("features", Kind.U16S, ()),
    ),
)
_SASL: Final = Table("SaslRequest", (Slot("mechanism", Kind.TEXT), Slot("challenge", Kind.BYTES)))
_SASL_ANSWER: Final = Table("SaslResponse", (Slot("challenge", Kind.BYTES),))
_KEEPALIVE: Final = Table("Keepalive", (Slot("interval", Kind.U16, 10),))
_SELECT: Final = Table("SelectBucket", (_req("bucket"),))
_BUCKETS: Final = Table(
    "ListBuckets", (Slot("buckets", Kind.TEXTS, required=True, limit=GREENSTACK_BUCKETS),)
)
_CREATE: Final = Table("CreateBucket", (_req("name"), _req("config"), Slot("type", Kind.I8, 0)))
_DELETE: Final = Table("DeleteBucket", (_req("bucket"), Slot("force", Kind.BOOL, False)))
_ROLE: Final = Table("AssumeRole", (_req("role"),))
_MUTATION: Final = Table(
    "Mutation",
    (
        Slot("document", Kind.TABLE, required=True, table=_DOCUMENT),
        Slot("operation", Kind.I8, int(Operation.SET)),
    ),
)
_MUTATION_ANSWER: Final = Table(
    "MutationResponse",
    (
        Slot("cas", Kind.U64, 0),
        Slot("size", Kind.U32, 0),
        Slot("seqno", Kind.U64, 0),
        Slot("vbucket_uuid", Kind.U64, 0),
    ),
)
_GET: Final = Table("Get", (_req("id"),))
_GET_ANSWER: Final = Table(
    "GetResponse", (Slot("document", Kind.TABLE, required=True, table=_DOCUMENT),)
)
_OPEN: Final = Table(
    "StreamOpen",
    (
        _positions("start"),
        Slot("snapshot", Kind.BOOL, False),
        Slot("buckets", Kind.TEXTS, (), limit=GREENSTACK_BUCKETS),
        Slot("window", Kind.U32, 1024 * 1024),
        Slot("follow", Kind.BOOL, True),
        Slot("heartbeat", Kind.U16, 10),
    ),
)
_OPENED: Final = Table("StreamOpened", (_positions("position"), Slot("instance", Kind.TEXT)))
_CLOSE: Final = Table("StreamClose", (Slot("status", Kind.U16, 0), Slot("reason", Kind.TEXT)))
_REMOVE: Final = Table("Remove", (_req("id"), Slot("cas", Kind.U64, 0)))
_MARK: Final = Table(
    "StreamMark", (Slot("kind", Kind.I8, 0), _positions("position"), Slot("time", Kind.U64, 0))
)
_ACK: Final = Table("StreamAck", (_positions("position"), Slot("credit", Kind.U32, 0)))
_NOTICE: Final = Table(
    "Notice",
    (Slot("code", Kind.U16, 0), Slot("text", Kind.TEXT), Slot("detail", Kind.TEXT)),
)
_TRUNCATE: Final = Table("Truncate", (_req("bucket"),))

TABLES: Final = (
    *(_HELLO, _HELLO_ANSWER, _SASL, _SASL_ANSWER, _KEEPALIVE, _SELECT, _BUCKETS, _CREATE, _DELETE),
    *(_ROLE, _INFO, _DOCUMENT, _MUTATION, _MUTATION_ANSWER, _GET, _GET_ANSWER),
    *(_POSITION, _OPEN, _OPENED, _CLOSE, _REMOVE, _MARK, _ACK, _NOTICE, _TRUNCATE),
)
"""All of them."""


def _text(data: bytes | None) -> str:
    try:
        return (data or b"").decode()
    except UnicodeDecodeError as error:
        raise DecodeError("a text that is not UTF-8") from error


def _pairs(vclock: VClock) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((origin, lsn) for origin, lsn in vclock.items() if origin and lsn))


def _vclock(pairs: tuple[tuple[int, int], ...]) -> VClock:
    if any(not 0 < origin < VCLOCK_COMPONENTS for origin, _ in pairs):
        raise DecodeError(f"a position with an origin that is not 1 … {VCLOCK_COMPONENTS - 1}")
    if any(lsn >= 1 << 63 for _, lsn in pairs) or len({origin for origin, _ in pairs}) < len(pairs):
        raise DecodeError("a position with an lsn above 2^63 or an origin twice")
    return VClock(dict(pairs))


# --- the core -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """HELLO of a client."""

    agent: str
    version: str
    comment: str = ""
    features: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """The payload."""
        texts = (self.agent.encode(), self.version.encode(), self.comment.encode())
        return write(_HELLO, (*texts, self.features))

    @classmethod
    def decode(cls, payload: bytes) -> Hello:
        """Raises `DecodeError`."""
        agent, version, comment, features = read(_HELLO, payload)
        return cls(_text(agent), _text(version), _text(comment), features)


@dataclass(frozen=True, slots=True)
class HelloAnswer:
    """The server's answer to it. `mechanisms`: of SASL, a blank between."""

    agent: str
    version: str
    mechanisms: str = ""
    features: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """The payload."""
        texts = (self.agent.encode(), self.version.encode(), self.mechanisms.encode())
        return write(_HELLO_ANSWER, (*texts, self.features))

    @classmethod
    def decode(cls, payload: bytes) -> HelloAnswer:
        """Raises `DecodeError`."""
        agent, version, mechanisms, features = read(_HELLO_ANSWER, payload)
        return cls(_text(agent), _text(version), _text(mechanisms), features)


def encode_sasl(mechanism: str, challenge: bytes) -> bytes:
    """SASL_AUTH; a step has the mechanism ""."""
    return write(_SASL, (mechanism.encode(), challenge))


def decode_sasl(payload: bytes) -> tuple[str, bytes]:
    """Mechanism and challenge; "" and b"" also where they are missing. Raises `DecodeError`."""
    mechanism, challenge = read(_SASL, payload)
    return _text(mechanism), challenge or b""


def encode_sasl_answer(challenge: bytes | None = None) -> bytes:
    """The answer to SASL_AUTH, whatever its status."""
    return write(_SASL_ANSWER, (challenge,))


def decode_sasl_answer(payload: bytes) -> bytes:
    """The challenge; b"" where there is none. Raises `DecodeError`."""
    return read(_SASL_ANSWER, payload)[0] or b""


def encode_keepalive(interval_minutes: int) -> bytes:
    """KEEPALIVE."""
    return write(_KEEPALIVE, (interval_minutes,))


def decode_keepalive(payload: bytes) -> int:
    """The interval in minutes. Raises `DecodeError`."""
    number: int = read(_KEEPALIVE, payload)[0]
    return number


def encode_bucket(name: str) -> bytes:
    """SELECT_BUCKET; TRUNCATE has the same form."""
    return write(_SELECT, (name.encode(),))


def decode_bucket(payload: bytes) -> str:
    """The bucket's name. Raises `DecodeError`."""
    return _text(read(_SELECT, payload)[0])


def encode_buckets(names: tuple[str, ...]) -> bytes:
    """The answer to LIST_BUCKETS."""
    return write(_BUCKETS, (tuple(name.encode() for name in names),))


def decode_buckets(payload: bytes) -> tuple[str, ...]:
    """The names. Raises `DecodeError`."""
    return tuple(_text(name) for name in read(_BUCKETS, payload)[0])


def encode_create(name: str, config: str = "", kind: int = 1) -> bytes:
    """CREATE_BUCKET."""
    return write(_CREATE, (name.encode(), config.encode(), kind))


def decode_create(payload: bytes) -> tuple[str, str, int]:
    """Name, configuration and type. Raises `DecodeError`."""
    name, config, kind = read(_CREATE, payload)
    return _text(name), _text(config), kind


def encode_delete(name: str, *, force: bool = False) -> bytes:
    """DELETE_BUCKET."""
    return write(_DELETE, (name.encode(), force))


def decode_delete(payload: bytes) -> tuple[str, bool]:
    """Name and force. Raises `DecodeError`."""
    name, force = read(_DELETE, payload)
    return _text(name), force


def encode_role(role: str) -> bytes:
    """ASSUME_ROLE."""
    return write(_ROLE, (role.encode(),))


def decode_role(payload: bytes) -> str:
    """The role. Raises `DecodeError`."""
    return _text(read(_ROLE, payload)[0])


# The three tables of a document with all slots, as `write` could lay them out, for speed: what is
# pushed most. Root at 16, Document at 32, DocumentInfo at 60, the id behind it at 88.
_FIXED: Final = struct.Struct("<I6x3HiI4HiII8HiQIIIbb2x")
_FIXED_ROOT: Final = (16, 6, 8, 4, 6, 12, 8, 12, 4, 8, 8, 24)
_FIXED_INFO: Final = (16, 28, 12, 16, 20, 24, 25, 4, 16)

DOCUMENT_HEAD: Final = _FIXED.pack(*_FIXED_ROOT, 0, *_FIXED_INFO, 0, 16, 0, 0, 0, 0)
"""The begin of a MUTATION's payload, up to the id's length. To be filled in: at 40 where the value
is, counted from there; at 64 CAS, at 76 flags, at 80 where the expiration is, at 84 compression, at
85 datatype."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document as it is on the wire. `cas` 0 in a request: no condition."""

    id: bytes
    value: bytes = b""
    flags: int = 0
    expiration: str = ""
    compression: int = 0
    datatype: int = 0
    cas: int = 0

    def _values(self) -> tuple[Any, ...]:
        info = (
            self.id,
            self.flags,
            self.expiration.encode(),
            self.compression,
            self.datatype,
            self.cas,
        )
        return (info, self.value)

    def encode(self, operation: int = Operation.SET) -> bytes:
        """As the payload of a MUTATION."""
        if operation != Operation.SET:
            return write(_MUTATION, (self._values(), operation))
        return self.encode_answer()

    def encode_answer(self) -> bytes:
        """As the payload of the answer to a GET, whose only slot is the first of a MUTATION."""
        expiration = self.expiration.encode()
        key_end = (len(self.id) + 8) & ~3  # length, NUL and padding
        text_end = (len(expiration) + 8) & ~3
        head = _FIXED.pack(
            *_FIXED_ROOT,
            key_end + text_end + 48,
            *_FIXED_INFO,
            self.cas,
            16,
            self.flags,
            key_end + 8,
            self.compression,
            self.datatype,
        )
        return b"".join(
            (
                head,
                len(self.id).to_bytes(4, "little"),
                self.id.ljust(key_end - 4, b"\0"),
                len(expiration).to_bytes(4, "little"),
                expiration.ljust(text_end - 4, b"\0"),
                len(self.value).to_bytes(4, "little"),
                self.value,
            )
        )


def _document(values: tuple[Any, ...]) -> Document:
    (key, flags, expiration, compression, datatype, cas), value = values
    return Document(key, value, flags, _text(expiration), compression, datatype, cas)


def decode_mutation(payload: bytes) -> tuple[int, Document]:
    """Operation and document. Raises `DecodeError`."""
    document, operation = read(_MUTATION, payload)
    return operation, _document(document)


def decode_get_answer(payload: bytes) -> Document:
    """Raises `DecodeError`."""
    return _document(read(_GET_ANSWER, payload)[0])


@dataclass(frozen=True, slots=True)
class MutationAnswer:
    """What a change that succeeded is told."""

    cas: int
    size: int
    seqno: int
    vbucket_uuid: int

    def encode(self) -> bytes:
        """The payload."""
        return write(_MUTATION_ANSWER, (self.cas, self.size, self.seqno, self.vbucket_uuid))

    @classmethod
    def decode(cls, payload: bytes) -> MutationAnswer:
        """Raises `DecodeError`."""
        return cls(*read(_MUTATION_ANSWER, payload))


def encode_get(key: bytes) -> bytes:
    """GET."""
    return write(_GET, (key,))


def decode_get(payload: bytes) -> bytes:
    """The id. Raises `DecodeError`."""
    key: bytes = read(_GET, payload)[0]
    return key


# --- logweir's own --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamOpen:
    """What a client asks of a stream. `buckets`: () for all that it may read; `window_bytes`: see
    `stream`; `heartbeat_seconds`: 0 for none."""

    start: VClock = VClock()  # noqa: RUF009 - it cannot be changed
    snapshot: bool = False
    buckets: tuple[str, ...] = ()
    window_bytes: int = 1024 * 1024
    follow: bool = True
    heartbeat_seconds: int = 10

    def encode(self) -> bytes:
        """The payload."""
        names = tuple(name.encode() for name in self.buckets)
        return write(
            _OPEN,
            (
                _pairs(self.start),
                self.snapshot,
                names,
                self.window_bytes,
                self.follow,
                self.heartbeat_seconds,
            ),
        )

    @classmethod
    def decode(cls, payload: bytes) -> StreamOpen:
        """Raises `DecodeError`."""
        start, snapshot, buckets, window, follow, heartbeat = read(_OPEN, payload)
        names = tuple(_text(name) for name in buckets)
        return cls(_vclock(start), snapshot, names, window, follow, heartbeat)


def encode_opened(position: VClock, instance: str) -> bytes:
    """The answer to STREAM_OPEN."""
    return write(_OPENED, (_pairs(position), instance.encode()))


def decode_opened(payload: bytes) -> tuple[VClock, str]:
    """Position and UUID of the instance. Raises `DecodeError`."""
    position, instance = read(_OPENED, payload)
    return _vclock(position), _text(instance)


def encode_close(status: int = 0, reason: str = "") -> bytes:
    """STREAM_CLOSE."""
    return write(_CLOSE, (status, reason.encode()))


def decode_close(payload: bytes) -> tuple[int, str]:
    """Status and reason. Raises `DecodeError`."""
    status, reason = read(_CLOSE, payload)
    return status, _text(reason)


def encode_remove(key: bytes, cas: int = 0) -> bytes:
    """REMOVE."""
    return write(_REMOVE, (key, cas))


REMOVE_HEAD: Final = encode_remove(b"", 1)[:16] + bytes(8) + encode_remove(b"", 1)[24:28]
"""The begin of the payload of a REMOVE that has a CAS, up to the id's length; the CAS is at 16."""


def decode_remove(payload: bytes) -> tuple[bytes, int]:
    """Id and CAS. Raises `DecodeError`."""
    key, cas = read(_REMOVE, payload)
    return key, cas


@dataclass(frozen=True, slots=True)
class Mark:
    """STREAM_MARK. `time_us`: microseconds since 1970."""

    kind: int
    position: VClock
    time_us: int = 0

    def encode(self) -> bytes:
        """The payload."""
        return write(_MARK, (self.kind, _pairs(self.position), self.time_us))

    @classmethod
    def decode(cls, payload: bytes) -> Mark:
        """Raises `DecodeError`."""
        kind, position, time_us = read(_MARK, payload)
        return cls(kind, _vclock(position), time_us)


def encode_ack(position: VClock, credit_bytes: int) -> bytes:
    """STREAM_ACK."""
    return write(_ACK, (_pairs(position), credit_bytes))


def decode_ack(payload: bytes) -> tuple[VClock, int]:
    """Position and bytes processed. Raises `DecodeError`."""
    position, credit = read(_ACK, payload)
    return _vclock(position), credit


def encode_notice(code: int, text: str = "", detail: str = "") -> bytes:
    """NOTICE. `detail`: JSON."""
    return write(_NOTICE, (code, text.encode(), detail.encode()))


def decode_notice(payload: bytes) -> tuple[int, str, str]:
    """Code, text and detail. Raises `DecodeError`."""
    code, text, detail = read(_NOTICE, payload)
    return code, _text(text), _text(detail)
