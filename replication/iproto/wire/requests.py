"""Requests of the binary protocol of Tarantool: a request's body ↔ `Request`. No I/O, no clock.

`codec` has the header, the answers and the numbers of keys.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from logweir.errors import DecodeError, ErrorCode, LimitExceeded, RequestError
from logweir.limits import VCLOCK_COMPONENTS
from logweir.replication.iproto.wire.codec import (
    U32_MAX,
    IprotoKey,
    RequestType,
    check_header,
    frame,
    malformed,
    map_start,
    read_vclock,
)
from logweir.replication.iproto.wire.headkernel import FIRST_BYTES, FIT, KEY_END, read_header
from logweir.store.schema.definition import LOGIN_METHOD
from logweir.wal import kernel
from logweir.wal.mp import Value, decode_uint, pack, unpack
from logweir.wal.vclock import VClock

REQUEST_BYTES: Final = 400
"""What a request takes in memory beside its frame, about."""
_CALL_BYTES: Final = 9 * 1024  # and one that runs beside the connection


@dataclass(slots=True)
class Request:
    """One request, taken apart; arrays are their exact MsgPack bytes, or None if absent.

    `size_bytes`: about what it takes in memory until it is answered; `name`: function, user,
    expression or key; `vclock` … `id_filter`: of JOIN, SUBSCRIBE and REGISTER; `timeout_seconds`
    (0: none), `isolation`: of BEGIN; `features`: of ID; `fetch_position` …
    `index_name`: of DML and SELECT, the names instead of the ids, and behind what a SELECT goes on:
    a position or else a tuple, in MsgPack.
    """

    type: int
    sync: int = 0
    schema_version: int = 0
    stream_id: int = 0
    size_bytes: int = 0
    space_id: int = 0
    index_id: int = 0
    limit: int = U32_MAX
    offset: int = 0
    iterator: int = 0
    index_base: int = 0
    key: bytes | None = None
    tuple: bytes | None = None
    ops: bytes | None = None
    name: str = ""
    instance: uuid.UUID | None = None
    replicaset: uuid.UUID | None = None
    vclock: VClock | None = None
    server_version: int = 0
    anonymous: bool = False
    id_filter: Sequence[int] = ()
    timeout_seconds: float = 0.0
    isolation: int = 0
    features: Sequence[object] = ()
    fetch_position: bool = False
    after: bytes = b""
    space_name: str | None = None
    index_name: str | None = None


_UINT_FIELDS: Final = {
    0x10: "space_id",
    0x11: "index_id",
    0x12: "limit",
    0x13: "offset",
    0x14: "iterator",
    0x15: "index_base",
}
_ARRAY_FIELDS: Final = {0x20: "key", 0x21: "tuple", 0x28: "ops"}
_NEWER_FIELDS: Final = {
    IprotoKey.FETCH_POSITION: ("fetch_position", FIRST_BYTES["bool"]),
    IprotoKey.AFTER_POSITION: ("after", FIRST_BYTES["str"]),
    IprotoKey.AFTER_TUPLE: ("after", FIRST_BYTES["array"]),
    IprotoKey.SPACE_NAME: ("space_name", FIRST_BYTES["str"]),
    IprotoKey.INDEX_NAME: ("index_name", FIRST_BYTES["str"]),
}
_DML_KEYS: Final = frozenset((*_UINT_FIELDS, *_ARRAY_FIELDS, 0x2A))
"""Keys that DML and SELECT look at. 2.6.0 looks at the low six bits of a key below 53, and refuses
those that then look like one of these."""
# What a request must have, in the order in which a missing one is noticed: (key, its name).
_SPACE: Final = (0x10, "space id")
_LIMIT: Final = (0x12, "limit")
_KEY: Final = (0x20, "key")
_TUPLE: Final = (0x21, "tuple")
_OPS: Final = (0x28, "operations")
_MANDATORY: Final[Mapping[int, Sequence[tuple[int, str]]]] = {
    RequestType.SELECT: (_SPACE, _LIMIT, _KEY),
    RequestType.INSERT: (_SPACE, _TUPLE),
    RequestType.REPLACE: (_SPACE, _TUPLE),
    RequestType.UPDATE: (_SPACE, _KEY, _TUPLE),
    RequestType.DELETE: (_SPACE, _KEY),
    RequestType.UPSERT: (_SPACE, _TUPLE, _OPS),
    RequestType.CALL: ((0x22, "function name"),),
    RequestType.CALL_16: ((0x22, "function name"),),
    RequestType.EVAL: ((0x27, "expression"),),
    RequestType.AUTH: ((0x23, "user name"), _TUPLE),
}
_NAME_KEYS: Final = {
    RequestType.CALL: 0x22,
    RequestType.CALL_16: 0x22,
    RequestType.EVAL: 0x27,
    RequestType.AUTH: 0x23,
}
DML_TYPES: Final = frozenset((1, 2, 3, 4, 5, 9))


STREAM_TYPES: Final = frozenset(
    (RequestType.JOIN, RequestType.SUBSCRIBE, RequestType.FETCH_SNAPSHOT, RequestType.REGISTER)
)
_TRANSACTION_TYPES: Final = frozenset((RequestType.BEGIN, RequestType.COMMIT, RequestType.ROLLBACK))
_NO_STATEMENTS: Final = RequestType.ROLLBACK + 1
"""Types above this one, but PING, are none that a stream takes."""
_BODILESS: Final = frozenset(
    (RequestType.PING, RequestType.VOTE, RequestType.COMMIT, RequestType.ROLLBACK)
)
_KNOWN: Final = frozenset(RequestType)
_ANY: Final = frozenset(range(256))
_EVENT: Final[Mapping[int, tuple[str, frozenset[int]]]] = {
    IprotoKey.EVENT_KEY: ("name", FIRST_BYTES["str"])
}
_BODIES: Final[Mapping[int, Mapping[int, tuple[str, frozenset[int]]]]] = {
    RequestType.BEGIN: {
        IprotoKey.TIMEOUT: ("timeout_seconds", FIRST_BYTES["double"]),
        IprotoKey.TXN_ISOLATION: ("isolation", FIRST_BYTES["uint"]),
    },
    RequestType.ID: {
        IprotoKey.VERSION: ("", FIRST_BYTES["uint"]),
        IprotoKey.FEATURES: ("features", FIRST_BYTES["array"]),
        IprotoKey.AUTH_TYPE: ("", FIRST_BYTES["str"]),
    },
    RequestType.WATCH: _EVENT,
    RequestType.UNWATCH: _EVENT,
    RequestType.WATCH_ONCE: _EVENT,
}
"""Of types that came with 2.10: by key the field, "" if it is only checked, and what it is."""
FEATURES: Final[Sequence[int]] = (0, 1, 2, 3, 4, 5, 6)
"""Streams, transactions, errors as values, watchers, pagination, names of spaces and indexes,
WATCH_ONCE."""
ERROR_VALUES: Final = 2
"""The one of `FEATURES` that also says what a client can read."""
PROTOCOL_VERSION: Final = 6
"""The first one that has all of `FEATURES`."""


def _body_items(
    data: bytes, start: int, what: str = "packet body"
) -> Iterable[tuple[int | None, int, int]]:
    """Keys of a body map with start and end of their values; None for a key that is no uint."""
    opened = map_start(data, start)
    if opened is None:
        raise malformed(what)
    count, at = opened
    for _ in range(count):
        key = decode_uint(data, at)
        value_at = kernel.skip(data, at) if key is None else key[1]
        at = kernel.skip(data, value_at)
        yield (None if key is None else key[0]), value_at, at


def _dml_body(request: Request, data: bytes, start: int) -> set[int]:
    seen: set[int] = set()
    for key, at, stop in _body_items(data, start):
        if key in _NEWER_FIELDS:
            _take_newer(request, key, data, at, stop)
        if key is None or key >= KEY_END or key & 63 not in _DML_KEYS:
            continue
        if key > 63 or data[at] not in FIT[key]:
            raise malformed("packet body")
        if (name := _UINT_FIELDS.get(key)) is not None:
            number = decode_uint(data, at)
            assert number is not None
            setattr(request, name, number[0])
        elif (name := _ARRAY_FIELDS.get(key)) is not None:
            setattr(request, name, data[at:stop])
        seen.add(key)
    if request.space_name is not None:
        seen.add(IprotoKey.SPACE_ID)
    request.limit &= U32_MAX
    request.offset &= U32_MAX
    return seen


def _take_newer(request: Request, key: int, data: bytes, at: int, stop: int) -> None:
    name, first_bytes = _NEWER_FIELDS[IprotoKey(key)]
    if data[at] not in first_bytes:
        raise malformed("packet body")
    value = data[at:stop]
    if key == IprotoKey.AFTER_TUPLE:
        if not request.after or request.after[0] in first_bytes:
            request.after = value
        return
    known = _unpacked(value, "packet body")
    setattr(request, name, value if name == "after" else known)


def _named_body(request: Request, data: bytes, start: int, end: int) -> set[int]:
    name_key = _NAME_KEYS[RequestType(request.type)]
    seen: set[int] = set()
    if start == end:
        raise malformed("missing request body")
    for key, at, stop in _body_items(data, start):
        if key is None or (key in (name_key, 0x21) and data[at] not in FIT[key]):
            raise malformed("packet body")
        if key == name_key:
            request.name = unpack(data[at:stop])
        elif key == 0x21:
            request.tuple = data[at:stop]
        seen.add(key)
    return seen


def _read_uuid(value: Value, what: str) -> uuid.UUID:
    try:
        if isinstance(value, str) and len(value) == 36:
            return uuid.UUID(value)
    except ValueError:
        pass
    raise malformed(f"invalid {what}")


def _stream_body(request: Request, data: bytes, start: int, end: int) -> None:
    if start == end:
        if request.type != RequestType.FETCH_SNAPSHOT:
            raise malformed("request body")
        return
    try:
        for key, at, stop in _body_items(data, start):
            if key not in (0x06, 0x24, 0x25, 0x26, 0x50, 0x51):
                continue
            value = unpack(data[at:stop])
            if key == 0x24:
                request.instance = _read_uuid(value, "UUID")
            elif key == 0x25:
                request.replicaset = _read_uuid(value, "UUID")
            elif key == 0x26:
                request.vclock = read_vclock(value)
            elif key == 0x06:
                if type(value) is not int or value < 0:
                    raise malformed("invalid VERSION")
                request.server_version = value
            elif key == 0x50:
                if type(value) is not bool:
                    raise malformed("invalid REPLICA_ANON flag")
                request.anonymous = value
            else:
                if not isinstance(value, list) or not all(
                    type(one) is int and 0 <= one < VCLOCK_COMPONENTS for one in value
                ):
                    raise malformed("invalid ID_FILTER")
                request.id_filter = value
    except (DecodeError, LimitExceeded) as error:
        raise malformed("request body") from error


def _keyed_body(request: Request, data: bytes, start: int, end: int) -> None:
    """The body of a type in `_BODIES`."""
    fields = _BODIES[request.type]
    if start == end:
        if request.type == RequestType.BEGIN:
            return
        raise malformed("request body")
    seen: set[str] = set()
    for key, at, stop in _body_items(data, start, "request body"):
        name, first_bytes = fields.get(-1 if key is None else key, ("", _ANY))
        if key is None or data[at] not in first_bytes:
            raise malformed("request body")
        if name:
            setattr(request, name, _unpacked(data[at:stop], "request body"))
            seen.add(name)
    if fields is _EVENT and "name" not in seen:
        raise _missing("event key")


def _unpacked(value: bytes, what: str) -> Any:
    try:
        return unpack(value)
    except DecodeError as error:  # a text that is not UTF-8
        raise malformed(what) from error


def _missing(name: str) -> RequestError:
    return RequestError(
        ErrorCode.MISSING_REQUEST_FIELD, f"Missing mandatory field '{name}' in request"
    )


def _check_stream(kind: int, stream_id: int) -> None:
    """Raise errors 229, 230."""
    is_none = kind == RequestType.AUTH or (kind > _NO_STATEMENTS and kind != RequestType.PING)
    if stream_id and is_none:
        name = RequestType(kind).name if kind in _KNOWN else str(kind)
        raise RequestError(
            ErrorCode.UNABLE_TO_PROCESS_IN_STREAM, f"Unable to process {name} request in stream"
        )
    if not stream_id and kind in _TRANSACTION_TYPES:
        name = RequestType(kind).name
        raise RequestError(
            ErrorCode.UNABLE_TO_PROCESS_OUT_OF_STREAM,
            f"Unable to process {name} request out of stream",
        )


def id_body() -> bytes:
    """The body of the answer to ID."""
    return pack(
        {
            int(IprotoKey.VERSION): PROTOCOL_VERSION,
            int(IprotoKey.FEATURES): list(FEATURES),
            int(IprotoKey.AUTH_TYPE): LOGIN_METHOD,
        }
    )


def decode_request(data: bytes, start: int, end: int, request: Request) -> None:
    """Read one frame (without its length) into `request`.

    What was read before an error is in `request`, so that the answer can carry its sync. Raises
    `RequestError`: 20 malformed, 48 unknown type, 69 a mandatory key is missing, 229 not in a
    stream, 230 only in one.
    """
    request.size_bytes = end - start + REQUEST_BYTES
    how, kind, request.sync, _, _, _, request.schema_version, stream_id, at = read_header(
        data, start, end
    )
    request.type, request.stream_id = kind, stream_id
    check_header(how)
    if kind in (RequestType.CALL, RequestType.CALL_16):
        request.size_bytes += _CALL_BYTES
    if stream_id or kind in _TRANSACTION_TYPES:
        _check_stream(kind, stream_id)
    if kind in DML_TYPES:
        seen = _dml_body(request, data, at) if at < end else set()
    elif kind in _BODILESS:
        return
    elif kind in _NAME_KEYS:
        seen = _named_body(request, data, at, end)
    elif kind in STREAM_TYPES:
        _stream_body(request, data, at, end)
        return
    elif kind in _BODIES:
        _keyed_body(request, data, at, end)
        return
    else:
        raise RequestError(ErrorCode.UNKNOWN_REQUEST_TYPE, f"Unknown request type {kind}")
    for key, name in _MANDATORY[kind]:
        if key not in seen:
            raise _missing(name)


def encode_request(kind: int, sync: int, body: Mapping[int, Value] | None = None) -> bytes:
    """A request frame, as a client or a replica sends it; sync 0 is left out."""
    head = {0: kind, 1: sync} if sync else {0: kind}
    return frame(pack(head) + (b"" if body is None else pack(dict(body))))
