"""The payloads of Greenstack's frames: FlatBuffers ↔ values.

Each table is declared here slot by slot, in the order of their numbers; `docs/greenstack.fbs` has
the same for programs, `docs/greenstack-wire.md` for people. A bucket's type is memcached 0 or
Couchbase 1, 2; a compression Snappy 1, Gzip 2, Bzip 3; a datatype JSON 1. Tables of streams,
removals, notices and positions are logweir's own. A Document without info, id or value is refused
here, though the libraries' verifier takes it (and crashes them). Ids are bytes; other texts are
UTF-8. Source: the schemas of both reference libraries.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Final, Generic, Self, TypeVar, TypeVarTuple

from logweir.errors import DecodeError
from logweir.limits import GREENSTACK_BUCKETS, VCLOCK_COMPONENTS
from logweir.replication.bucket.item import Item
from logweir.replication.greenstack.wire.flat import Kind, Slot, Table, read, write
from logweir.wal.vclock import VClock

V = TypeVar("V")
Values = TypeVarTuple("Values")


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
    FILTERS = 0x0C03
    GET_MANY = 0x0C04


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


def _show_text(data: bytes | None) -> str:
    try:
        return (data or b"").decode()
    except UnicodeDecodeError as error:
        raise DecodeError("a text that is not UTF-8") from error


def _keep_vclock(vclock: VClock) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((origin, lsn) for origin, lsn in vclock.items() if origin and lsn))


def _show_vclock(pairs: tuple[tuple[int, int], ...]) -> VClock:
    if any(not 0 < origin < VCLOCK_COMPONENTS for origin, _ in pairs):
        raise DecodeError(f"a position with an origin that is not 1 … {VCLOCK_COMPONENTS - 1}")
    if any(lsn >= 1 << 63 for _, lsn in pairs) or len({origin for origin, _ in pairs}) < len(pairs):
        raise DecodeError("a position with an lsn above 2^63 or an origin twice")
    return VClock(dict(pairs))


def _id() -> Slot:
    return Slot("id", Kind.TEXT, required=True)


def _text(name: str, *, required: bool = False) -> Slot:
    return Slot(name, Kind.TEXT, required=required, shown=_show_text, kept=str.encode)


def _texts(name: str, default: tuple[str, ...] | None, *, required: bool = False) -> Slot:
    return Slot(
        name,
        Kind.TEXTS,
        default,
        required,
        GREENSTACK_BUCKETS,
        shown=lambda found: tuple(map(_show_text, found)),
        kept=lambda texts: tuple(map(str.encode, texts)),
    )


def _bytes(name: str) -> Slot:
    return Slot(name, Kind.BYTES, shown=lambda data: data or b"")


_POSITION: Final = Table("Position", (Slot("origin", Kind.U32, 0), Slot("lsn", Kind.U64, 0)))


def _positions(name: str) -> Slot:
    return Slot(
        name,
        Kind.TABLES,
        (),
        limit=VCLOCK_COMPONENTS,
        table=_POSITION,
        shown=_show_vclock,
        kept=_keep_vclock,
    )


_INFO: Final = Table(
    "DocumentInfo",
    (
        _id(),
        Slot("flags", Kind.U32, 0),
        _text("expiration"),
        Slot("compression", Kind.I8, 0),
        Slot("datatype", Kind.I8, 0),
        Slot("cas", Kind.U64, 0),
    ),
)
DOCUMENT_TABLE: Final = Table(
    "Document",
    (
        Slot("info", Kind.TABLE, required=True, table=_INFO),
        Slot("value", Kind.BYTES, required=True),
    ),
)
_NAMES: Final = (_text("agent", required=True), _text("version", required=True))
_FEATURES: Final = Slot("features", Kind.U16S, ())
_HELLO: Final = Table("HelloRequest", (*_NAMES, _text("comment"), _FEATURES))
_HELLO_ANSWER: Final = Table("HelloResponse", (*_NAMES, _text("mechanisms"), _FEATURES))
_SASL: Final = Table("SaslRequest", (_text("mechanism"), _bytes("challenge")))
_SASL_ANSWER: Final = Table("SaslResponse", (_bytes("challenge"),))
_KEEPALIVE: Final = Table("Keepalive", (Slot("interval", Kind.U16, 10),))
_SELECT: Final = Table("SelectBucket", (_text("bucket", required=True),))
_BUCKETS: Final = Table("ListBuckets", (_texts("buckets", None, required=True),))
_CREATE: Final = Table(
    "CreateBucket",
    (_text("name", required=True), _text("config", required=True), Slot("type", Kind.I8, 0)),
)
_DELETE: Final = Table(
    "DeleteBucket", (_text("bucket", required=True), Slot("force", Kind.BOOL, False))
)
_ROLE: Final = Table("AssumeRole", (_text("role", required=True),))
_MUTATION: Final = Table(
    "Mutation",
    (
        Slot("document", Kind.TABLE, required=True, table=DOCUMENT_TABLE),
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
_GET: Final = Table("Get", (_id(),))
_GET_ANSWER: Final = Table(
    "GetResponse", (Slot("document", Kind.TABLE, required=True, table=DOCUMENT_TABLE),)
)
_OPEN: Final = Table(
    "StreamOpen",
    (
        _positions("start"),
        Slot("snapshot", Kind.BOOL, False),
        _texts("buckets", ()),
        Slot("window", Kind.U32, 1024 * 1024),
        Slot("follow", Kind.BOOL, True),
        Slot("heartbeat", Kind.U16, 10),
        _text("instance"),
        Slot("now", Kind.BOOL, False),
        Slot("prefix", Kind.TEXT, b""),
        Slot("vbuckets", Kind.U16S, ()),
        Slot("keys_only", Kind.BOOL, False),
    ),
)
_OPENED: Final = Table("StreamOpened", (_positions("position"), _text("instance")))
_CLOSE: Final = Table("StreamClose", (Slot("status", Kind.U16, 0), _text("reason")))
_REMOVE: Final = Table("Remove", (_id(), Slot("cas", Kind.U64, 0)))
_MARK: Final = Table(
    "StreamMark", (Slot("kind", Kind.I8, 0), _positions("position"), Slot("time", Kind.U64, 0))
)
_ACK: Final = Table("StreamAck", (_positions("position"), Slot("credit", Kind.U32, 0)))
_NOTICE: Final = Table("Notice", (Slot("code", Kind.U16, 0), _text("text"), _text("detail")))
_TRUNCATE: Final = Table("Truncate", (_text("bucket", required=True),))

TABLES: Final = (
    *(_HELLO, _HELLO_ANSWER, _SASL, _SASL_ANSWER, _KEEPALIVE, _SELECT, _BUCKETS, _CREATE, _DELETE),
    *(_ROLE, _INFO, DOCUMENT_TABLE, _MUTATION, _MUTATION_ANSWER, _GET, _GET_ANSWER),
    *(_POSITION, _OPEN, _OPENED, _CLOSE, _REMOVE, _MARK, _ACK, _NOTICE, _TRUNCATE),
)
"""All of them but those of `many`."""


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One row of a stream. `item`: as it is now, of a removal its tombstone, of which a follower
    gets key, vbucket and CAS; None: the bucket was emptied.

    `lsn`, `origin`: its place in the server's log, 0 in a snapshot; `timestamp`: Unix seconds.
    """

    bucket: str
    item: Item | None
    is_removal: bool = False
    lsn: int = 0
    origin: int = 0
    timestamp: float = 0.0


class _Payload:
    """A payload with a class of its own, whose fields are the slots of `table`, in their order."""

    __slots__: tuple[str, ...] = ()
    table: ClassVar[Table]

    def encode(self) -> bytes:
        """The payload."""
        return write(self.table, [getattr(self, name) for name in self.__slots__])

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Raises `DecodeError`."""
        return cls(*read(cls.table, payload))


class _Form(Generic[*Values]):
    """Any other payload: the values of its slots."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def decode(self, payload: bytes) -> tuple[*Values]:
        """Raises `DecodeError`."""
        return read(self.table, payload)


class _Single(Generic[V]):
    """One of a single slot: its value."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def encode(self, value: V) -> bytes:
        """The payload."""
        return write(self.table, (value,))

    def decode(self, payload: bytes) -> V:
        """Raises `DecodeError`."""
        value: V = read(self.table, payload)[0]
        return value


# --- the core -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello(_Payload):
    """HELLO of a client."""

    table = _HELLO
    agent: str
    version: str
    comment: str = ""
    features: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HelloAnswer(_Payload):
    """The server's answer to it. `mechanisms`: of SASL, a blank between."""

    table = _HELLO_ANSWER
    agent: str
    version: str
    mechanisms: str = ""
    features: tuple[int, ...] = ()


def encode_sasl(mechanism: str, challenge: bytes) -> bytes:
    """SASL_AUTH; a step has the mechanism ""."""
    return write(_SASL, (mechanism, challenge))


decode_sasl = _Form[str, bytes](_SASL).decode
"""Mechanism and challenge; "" and b"" also if they are missing."""

decode_sasl_answer = _Single[bytes](_SASL_ANSWER).decode
"""The challenge; b"" if there is none."""


def encode_sasl_answer(challenge: bytes | None = None) -> bytes:
    """The answer to SASL_AUTH, whatever its status."""
    return write(_SASL_ANSWER, (challenge,))


_keepalive = _Single[int](_KEEPALIVE)
encode_keepalive, decode_keepalive = _keepalive.encode, _keepalive.decode
"""KEEPALIVE: the interval in minutes."""

_bucket = _Single[str](_SELECT)
encode_bucket, decode_bucket = _bucket.encode, _bucket.decode
"""SELECT_BUCKET: the bucket's name; TRUNCATE has the same form."""

_buckets = _Single[tuple[str, ...]](_BUCKETS)
encode_buckets, decode_buckets = _buckets.encode, _buckets.decode
"""The answer to LIST_BUCKETS: the names."""


def encode_create(name: str, config: str = "", kind: int = 1) -> bytes:
    """CREATE_BUCKET."""
    return write(_CREATE, (name, config, kind))


decode_create = _Form[str, str, int](_CREATE).decode
"""Name, configuration and type."""


def encode_delete(name: str, *, force: bool = False) -> bytes:
    """DELETE_BUCKET."""
    return write(_DELETE, (name, force))


decode_delete = _Form[str, bool](_DELETE).decode
"""Name and force."""

_role = _Single[str](_ROLE)
encode_role, decode_role = _role.encode, _role.decode
"""ASSUME_ROLE: the role."""


# The three tables of a document with all slots, as `write` could lay them out, for speed: what is
# pushed most. Root at 16, Document at 32, DocumentInfo at 60, the id after it at 88.
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
        info = self.id, self.flags, self.expiration, self.compression, self.datatype, self.cas
        return info, self.value

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


def document_from(values: tuple[Any, ...]) -> Document:
    """A document of the values of `DOCUMENT_TABLE`."""
    (key, flags, expiration, compression, datatype, cas), value = values
    return Document(key, value, flags, expiration, compression, datatype, cas)


def decode_mutation(payload: bytes) -> tuple[int, Document]:
    """Operation and document. Raises `DecodeError`."""
    document, operation = read(_MUTATION, payload)
    return operation, document_from(document)


def decode_get_answer(payload: bytes) -> Document:
    """Raises `DecodeError`."""
    return document_from(read(_GET_ANSWER, payload)[0])


@dataclass(frozen=True, slots=True)
class MutationAnswer(_Payload):
    """What a change that succeeded is told."""

    table = _MUTATION_ANSWER
    cas: int
    size: int
    seqno: int
    vbucket_uuid: int


_get = _Single[bytes](_GET)
encode_get, decode_get = _get.encode, _get.decode
"""GET: the id."""


# --- logweir's own --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamOpen(_Payload):
    """What a client asks of a stream. `buckets`: () for all that it may read; `window_bytes`: see
    `stream`; `heartbeat_seconds`: 0 for none; `instance`: the UUID that was told with `start`, "":
    any; `now`: begin after what there is, in the place of `start`; `prefix`: how keys begin;
    `vbuckets`: () for all; `keys_only`: documents without their values."""

    table = _OPEN
    start: VClock = VClock()  # noqa: RUF009 - it cannot be changed
    snapshot: bool = False
    buckets: tuple[str, ...] = ()
    window_bytes: int = 1024 * 1024
    follow: bool = True
    heartbeat_seconds: int = 10
    instance: str = ""
    now: bool = False
    prefix: bytes = b""
    vbuckets: tuple[int, ...] = ()
    keys_only: bool = False

    @property
    def is_filtered(self) -> bool:
        """Whether anything is left out."""
        return bool(self.prefix or self.vbuckets or self.keys_only)


def encode_opened(position: VClock, instance: str) -> bytes:
    """The answer to STREAM_OPEN."""
    return write(_OPENED, (position, instance))


decode_opened = _Form[VClock, str](_OPENED).decode
"""Position and UUID of the instance."""


def encode_close(status: int = 0, reason: str = "") -> bytes:
    """STREAM_CLOSE."""
    return write(_CLOSE, (status, reason))


decode_close = _Form[int, str](_CLOSE).decode
"""Status and reason."""


def encode_remove(key: bytes, cas: int = 0) -> bytes:
    """REMOVE."""
    return write(_REMOVE, (key, cas))


REMOVE_HEAD: Final = encode_remove(b"", 1)[:16] + bytes(8) + encode_remove(b"", 1)[24:28]
"""The begin of the payload of a REMOVE that has a CAS, up to the id's length; the CAS is at 16."""

decode_remove = _Form[bytes, int](_REMOVE).decode
"""Id and CAS."""


@dataclass(frozen=True, slots=True)
class Mark(_Payload):
    """STREAM_MARK. `time_us`: microseconds since 1970."""

    table = _MARK
    kind: int
    position: VClock
    time_us: int = 0


def encode_ack(position: VClock, credit_bytes: int) -> bytes:
    """STREAM_ACK."""
    return write(_ACK, (position, credit_bytes))


decode_ack = _Form[VClock, int](_ACK).decode
"""Position and bytes processed."""


def encode_notice(code: int, text: str = "", detail: str = "") -> bytes:
    """NOTICE. `detail`: JSON."""
    return write(_NOTICE, (code, text, detail))


decode_notice = _Form[int, str, str](_NOTICE).decode
"""Code, text and detail."""
