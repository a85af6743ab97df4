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


TABLES: Final[list[Table]] = []
"""All of them but those of `many`."""


def _table(name: str, *slots: Slot) -> Table:
    made = Table(name, slots)
    TABLES.append(made)
    return made


_POSITION: Final = _table("Position", Slot("origin", Kind.U32, 0), Slot("lsn", Kind.U64, 0))


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

    def __init__(self, name: str, *slots: Slot) -> None:
        self._table = _table(name, *slots)

    def encode(self, *values: *Values) -> bytes:
        """The payload."""
        return write(self._table, values)

    def decode(self, payload: bytes) -> tuple[*Values]:
        """Raises `DecodeError`."""
        return read(self._table, payload)


class _Single(Generic[V]):
    """One of a single slot: its value, None if that is left out."""

    def __init__(self, name: str, slot: Slot) -> None:
        self._table = _table(name, slot)

    def encode(self, value: V | None = None) -> bytes:
        """The payload."""
        return write(self._table, (value,))

    def decode(self, payload: bytes) -> V:
        """Raises `DecodeError`."""
        value: V = read(self._table, payload)[0]
        return value


# --- the core -------------------------------------------------------------------------------------

_ID: Final = Slot("id", Kind.TEXT, required=True)
_CAS: Final = Slot("cas", Kind.U64, 0)
_BUCKET: Final = _text("bucket", required=True)
_NAMES: Final = (_text("agent", required=True), _text("version", required=True))
_FEATURES: Final = Slot("features", Kind.U16S, ())


@dataclass(frozen=True, slots=True)
class Hello(_Payload):
    """HELLO of a client."""

    table = _table("HelloRequest", *_NAMES, _text("comment"), _FEATURES)
    agent: str
    version: str
    comment: str = ""
    features: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HelloAnswer(_Payload):
    """The server's answer to it. `mechanisms`: of SASL, a blank between."""

    table = _table("HelloResponse", *_NAMES, _text("mechanisms"), _FEATURES)
    agent: str
    version: str
    mechanisms: str = ""
    features: tuple[int, ...] = ()


_sasl = _Form[str, bytes]("SaslRequest", _text("mechanism"), _bytes("challenge"))
encode_sasl, decode_sasl = _sasl.encode, _sasl.decode
"""SASL_AUTH: mechanism and challenge; "" and b"" if they are missing. A step has no mechanism."""

_sasl_answer = _Single[bytes]("SaslResponse", _bytes("challenge"))
encode_sasl_answer, decode_sasl_answer = _sasl_answer.encode, _sasl_answer.decode
"""The answer to SASL_AUTH, whatever its status: the challenge, b"" if there is none."""

_keepalive = _Single[int]("Keepalive", Slot("interval", Kind.U16, 10))
encode_keepalive, decode_keepalive = _keepalive.encode, _keepalive.decode
"""KEEPALIVE: the interval in minutes."""

_bucket = _Single[str]("SelectBucket", _BUCKET)
encode_bucket, decode_bucket = _bucket.encode, _bucket.decode
"""SELECT_BUCKET: the bucket's name; TRUNCATE has the same form."""
_table("Truncate", _BUCKET)

_buckets = _Single[tuple[str, ...]]("ListBuckets", _texts("buckets", None, required=True))
encode_buckets, decode_buckets = _buckets.encode, _buckets.decode
"""The answer to LIST_BUCKETS: the names."""

_create = _Form[str, str, int](
    "CreateBucket",
    _text("name", required=True),
    _text("config", required=True),
    Slot("type", Kind.I8, 0),
)
encode_create, decode_create = _create.encode, _create.decode
"""CREATE_BUCKET: name, configuration and type."""

_delete = _Form[str, bool]("DeleteBucket", _BUCKET, Slot("force", Kind.BOOL, False))
encode_delete, decode_delete = _delete.encode, _delete.decode
"""DELETE_BUCKET: name and force."""

_role = _Single[str]("AssumeRole", _text("role", required=True))
encode_role, decode_role = _role.encode, _role.decode
"""ASSUME_ROLE: the role."""

_INFO: Final = _table(
    "DocumentInfo",
    _ID,
    Slot("flags", Kind.U32, 0),
    _text("expiration"),
    Slot("compression", Kind.I8, 0),
    Slot("datatype", Kind.I8, 0),
    _CAS,
)
DOCUMENT_TABLE: Final = _table(
    "Document",
    Slot("info", Kind.TABLE, required=True, table=_INFO),
    Slot("value", Kind.BYTES, required=True),
)
_DOCUMENT: Final = Slot("document", Kind.TABLE, required=True, table=DOCUMENT_TABLE)
_mutation = _Form[tuple[Any, ...], int](
    "Mutation", _DOCUMENT, Slot("operation", Kind.I8, int(Operation.SET))
)
_get_answer = _Single[tuple[Any, ...]]("GetResponse", _DOCUMENT)

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

    def encode(self, operation: int = Operation.SET) -> bytes:
        """As the payload of a MUTATION."""
        if operation != Operation.SET:
            info = self.id, self.flags, self.expiration, self.compression, self.datatype, self.cas
            return _mutation.encode((info, self.value), operation)
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
    document, operation = _mutation.decode(payload)
    return operation, document_from(document)


def decode_get_answer(payload: bytes) -> Document:
    """Raises `DecodeError`."""
    return document_from(_get_answer.decode(payload))


@dataclass(frozen=True, slots=True)
class MutationAnswer(_Payload):
    """What a change that succeeded is told."""

    table = _table(
        "MutationResponse",
        _CAS,
        Slot("size", Kind.U32, 0),
        Slot("seqno", Kind.U64, 0),
        Slot("vbucket_uuid", Kind.U64, 0),
    )
    cas: int
    size: int
    seqno: int
    vbucket_uuid: int


_get = _Single[bytes]("Get", _ID)
encode_get, decode_get = _get.encode, _get.decode
"""GET: the id."""


# --- logweir's own --------------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class StreamOpen(_Payload):
    """What a client asks of a stream. `buckets`: () for all that it may read; `window_bytes`: see
    `stream`; `heartbeat_seconds`: 0 for none; `instance`: the UUID that was told with `start`, "":
    any; `now`: begin after what there is, in the place of `start`; `prefix`: how keys begin;
    `vbuckets`: () for all; `keys_only`: documents without their values."""

    table = _table(
        "StreamOpen",
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
    )
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


_opened = _Form[VClock, str]("StreamOpened", _positions("position"), _text("instance"))
encode_opened, decode_opened = _opened.encode, _opened.decode
"""The answer to STREAM_OPEN: position and UUID of the instance."""

_close = _Form[int, str]("StreamClose", Slot("status", Kind.U16, 0), _text("reason"))
encode_close, decode_close = _close.encode, _close.decode
"""STREAM_CLOSE: status and reason."""

_remove = _Form[bytes, int]("Remove", _ID, _CAS)
encode_remove, decode_remove = _remove.encode, _remove.decode
"""REMOVE: id and CAS."""

REMOVE_HEAD: Final = encode_remove(b"", 1)[:16] + bytes(8) + encode_remove(b"", 1)[24:28]
"""The begin of the payload of a REMOVE that has a CAS, up to the id's length; the CAS is at 16."""


@dataclass(frozen=True, slots=True)
class Mark(_Payload):
    """STREAM_MARK. `time_us`: microseconds since 1970."""

    table = _table(
        "StreamMark", Slot("kind", Kind.I8, 0), _positions("position"), Slot("time", Kind.U64, 0)
    )
    kind: int
    position: VClock
    time_us: int = 0


_ack = _Form[VClock, int]("StreamAck", _positions("position"), Slot("credit", Kind.U32, 0))
encode_ack, decode_ack = _ack.encode, _ack.decode
"""STREAM_ACK: position and bytes processed."""

_notice = _Form[int, str, str]("Notice", Slot("code", Kind.U16, 0), _text("text"), _text("detail"))
encode_notice, decode_notice = _notice.encode, _notice.decode
"""NOTICE: code, text and detail, which is JSON."""
