"""Examples of Greenstack's frames, as bytes with what they mean: docs/vectors/greenstack.json.

``python -m logweir.tools.docs`` writes that file with the pages. A test reads it with the client in
C++ (docs/examples/greenstack.cc), and has that one's frames read by logweir.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final

from logweir.replication.greenstack.wire import many, messages
from logweir.replication.greenstack.wire.codec import Flag, FlexKey, Frame, Opcode, encode_frame
from logweir.replication.greenstack.wire.codec import Status as S
from logweir.replication.greenstack.wire.flat import Kind, Table, read, write

_ABOUT: Final = (
    "Frames of Greenstack and of logweir's extension, and what is in them: see Vectors in "
    "greenstack-wire.md."
)

_REQUESTS: Final = {
    Opcode.HELLO: "HelloRequest",
    Opcode.SASL_AUTH: "SaslRequest",
    Opcode.KEEPALIVE: "Keepalive",
    Opcode.SELECT_BUCKET: "SelectBucket",
    Opcode.CREATE_BUCKET: "CreateBucket",
    Opcode.DELETE_BUCKET: "DeleteBucket",
    Opcode.ASSUME_ROLE: "AssumeRole",
    Opcode.MUTATION: "Mutation",
    Opcode.GET: "Get",
    Opcode.STREAM_OPEN: "StreamOpen",
    Opcode.STREAM_CLOSE: "StreamClose",
    Opcode.REMOVE: "Remove",
    Opcode.STREAM_MARK: "StreamMark",
    Opcode.STREAM_ACK: "StreamAck",
    Opcode.NOTICE: "Notice",
    Opcode.TRUNCATE: "Truncate",
    Opcode.GET_MANY: "GetMany",
}
_ANSWERS: Final = {
    Opcode.HELLO: "HelloResponse",
    Opcode.SASL_AUTH: "SaslResponse",
    Opcode.LIST_BUCKETS: "ListBuckets",
    Opcode.MUTATION: "MutationResponse",
    Opcode.GET: "GetResponse",
    Opcode.STREAM_OPEN: "StreamOpened",
    Opcode.REMOVE: "MutationResponse",
    Opcode.GET_MANY: "GetManyResponse",
}


def _plain(table: Table) -> Table:
    """The same, with the values that are on the wire."""
    slots = tuple(
        replace(
            slot, shown=None, kept=None, table=None if slot.table is None else _plain(slot.table)
        )
        for slot in table.slots
    )
    return Table(table.name, slots)


_TABLES: Final = {table.name: _plain(table) for table in (*messages.TABLES, *many.TABLES)}


@dataclass(frozen=True, slots=True)
class _Vector:
    """One frame. `fields`: of its payload, those that are not as they are by default."""

    name: str
    frame: Frame
    fields: dict[str, Any] | None = None

    @property
    def table(self) -> str:
        """The payload's table."""
        return (_ANSWERS if self.frame.is_response else _REQUESTS)[Opcode(self.frame.opcode)]


def _given(table: Table, fields: dict[str, Any]) -> list[Any]:
    """The values of a table's slots. `fields`: as they stand in the file."""
    assert set(fields) <= {slot.name for slot in table.slots}, (table.name, fields)
    values = []
    for slot in table.slots:
        value = fields.get(slot.name)
        if value is None:
            value = slot.default
        elif slot.kind is Kind.TEXT:
            value = value.encode()
        elif slot.kind is Kind.BYTES:
            value = bytes.fromhex(value)
        elif slot.kind is Kind.TEXTS:
            value = tuple(text.encode() for text in value)
        elif slot.table is not None and slot.kind is Kind.TABLE:
            value = _given(slot.table, value)
        elif slot.table is not None:
            value = tuple(_given(slot.table, one) for one in value)
        values.append(value)
    return values


def _told(table: Table, values: tuple[Any, ...]) -> dict[str, Any]:
    """The reverse of `_given`, with defaults."""
    fields: dict[str, Any] = {}
    for slot, value in zip(table.slots, values, strict=True):
        if slot.kind is Kind.TEXT and value is not None:
            value = value.decode()
        elif slot.kind is Kind.BYTES and value is not None:
            value = value.hex()
        elif slot.kind is Kind.TEXTS:
            value = [text.decode() for text in value]
        elif slot.kind is Kind.U16S:
            value = list(value)
        elif slot.table is not None and slot.kind is Kind.TABLE and value is not None:
            value = _told(slot.table, value)
        elif slot.table is not None and value is not None:
            value = [_told(slot.table, one) for one in value]
        if value is not None:
            fields[slot.name] = value
    return fields


def payload_fields(name: str, payload: bytes) -> dict[str, Any]:
    """A payload as it stands in the file. `name`: of its table. Raises `DecodeError`."""
    table = _TABLES[name]
    return _told(table, read(table, payload))


def payload_of(name: str, fields: dict[str, Any]) -> bytes:
    """The reverse of it. `fields`: others are as by default."""
    table = _TABLES[name]
    return write(table, _given(table, fields))


def _request(opcode: Opcode, opaque: int, flags: int = 0, **flex: bytes) -> Frame:
    return Frame(opcode, opaque, flags=flags, flex=_flex(flex))


def _answer(opcode: Opcode, opaque: int, status: int = S.SUCCESS, **flex: bytes) -> Frame:
    return Frame(opcode, opaque, status=status, flex=_flex(flex))


def _flex(flex: dict[str, bytes]) -> dict[int, bytes]:
    return {FlexKey[name.upper()].value: value for name, value in flex.items()}


_V0: Final[dict[str, Any]] = {"vbucket": b"\0\0"}
_FEED: Final[dict[str, Any]] = {"dcp_id": b"feed"}
_ROW: Final[dict[str, Any]] = {
    **_FEED,
    "vbucket": b"\0\0",
    "lsn": (1042).to_bytes(8, "big"),
    "origin": (1).to_bytes(4, "big"),
    "time": (1_795_000_000_123_456).to_bytes(8, "big"),
    "bucket": b"default",
}
_JSON: Final = {
    "info": {"id": "order:1", "datatype": 1, "cas": 0x1122334455667788, "flags": 7},
    "value": b'{"qty": 3}'.hex(),
}
_PUSHED: Final = 0x80000001
_AT: Final = {"origin": 1, "lsn": 1042}

_VECTORS: Final = (
    _Vector(
        "hello",
        _request(Opcode.HELLO, 1),
        {"agent": "a", "version": "1", "comment": "", "features": [0xC00, 0xC01, 0xC03, 0xC04]},
    ),
    _Vector(
        "hello answered",
        _answer(Opcode.HELLO, 1),
        {
            "agent": "logweir",
            "version": "0",
            "mechanisms": "PLAIN SCRAM-SHA-256",
            "features": [0xC00, 0xC01, 0xC03, 0xC04],
        },
    ),
    _Vector(
        "login by PLAIN",
        _request(Opcode.SASL_AUTH, 2),
        {"mechanism": "PLAIN", "challenge": b"\0ada\0secret".hex()},
    ),
    _Vector("logged in", _answer(Opcode.SASL_AUTH, 2), {}),
    _Vector("login refused", _answer(Opcode.SASL_AUTH, 2, S.AUTHENTICATION_ERROR), {}),
    _Vector("noop in a lane", _request(Opcode.NOOP, 3, lane=b"L")),
    _Vector("noop in a lane answered", _answer(Opcode.NOOP, 3, lane=b"L")),
    _Vector("keepalive every 10 minutes, the default", _request(Opcode.KEEPALIVE, 4), {}),
    _Vector("keepalive no more", _request(Opcode.KEEPALIVE, 5), {"interval": 0}),
    _Vector("bucket selected", _request(Opcode.SELECT_BUCKET, 6), {"bucket": "default"}),
    _Vector("bucket not there", _answer(Opcode.SELECT_BUCKET, 6, S.NOT_FOUND)),
    _Vector("buckets listed", _request(Opcode.LIST_BUCKETS, 7)),
    _Vector("buckets told", _answer(Opcode.LIST_BUCKETS, 7), {"buckets": ["default", "orders"]}),
    _Vector(
        "bucket made",
        _request(Opcode.CREATE_BUCKET, 8),
        {"name": "orders", "config": "", "type": 1},
    ),
    _Vector("bucket removed", _request(Opcode.DELETE_BUCKET, 9), {"bucket": "orders"}),
    _Vector("role assumed", _request(Opcode.ASSUME_ROLE, 10), {"role": "admin"}),
    _Vector(
        "document set",
        _request(Opcode.MUTATION, 11, **_V0),
        {"document": {"info": {"id": "k"}, "value": b"v".hex()}, "operation": 2},
    ),
    _Vector(
        "document replaced on a CAS, with all that it may have",
        _request(Opcode.MUTATION, 12, lane=b"L", priority=b"\x05", vbucket=b"\0\x09"),
        {
            "document": {
                "info": {**_JSON["info"], "expiration": "2031-04-05T06:07:08Z", "compression": 1},  # type: ignore[dict-item]
                "value": _JSON["value"],
            },
            "operation": 3,
        },
    ),
    _Vector(
        "quiet, and first of a transaction",
        _request(Opcode.MUTATION, 13, Flag.QUIET | Flag.MORE, **_V0),
        {"document": {"info": {"id": "a"}, "value": ""}, "operation": 1},
    ),
    _Vector(
        "document changed",
        _answer(Opcode.MUTATION, 11),
        {"cas": 0x1122334455667788, "size": 1, "seqno": 1042, "vbucket_uuid": 0x0102030405060708},
    ),
    _Vector("document is there already", _answer(Opcode.MUTATION, 13, S.ALREADY_EXISTS)),
    _Vector("document asked for", _request(Opcode.GET, 14, **_V0), {"id": "k"}),
    _Vector("document told", _answer(Opcode.GET, 14), {"document": _JSON}),
    _Vector("document not there", _answer(Opcode.GET, 14, S.NOT_FOUND)),
    _Vector(
        "many documents asked for",
        _request(Opcode.GET_MANY, 15, **_V0),
        {"ids": ["order:1", "none", "large"]},
    ),
    _Vector(
        "many documents told",
        _answer(Opcode.GET_MANY, 15),
        {
            "found": [
                {"document": _JSON},
                {"status": int(S.NOT_FOUND)},
                {"status": int(S.TOO_BUSY)},
            ]
        },
    ),
    _Vector("document removed", _request(Opcode.REMOVE, 16, **_V0), {"id": "k", "cas": 1 << 60}),
    _Vector(
        "stream from a position, of another lane",
        _request(Opcode.STREAM_OPEN, 17, lane=b"L", **_FEED),
        {
            "start": [_AT, {"origin": 2, "lsn": 7}],
            "buckets": ["default", "space:orders"],
            "window": 4194304,
            "heartbeat": 30,
            "instance": "6f1c2f5e-8f0e-4d0b-9d5b-3a1d0a4b8c11",
        },
    ),
    _Vector(
        "stream of what comes, by prefix and vbucket, of keys alone",
        _request(Opcode.STREAM_OPEN, 18, **_FEED),
        {"now": True, "prefix": "order:", "vbuckets": [0, 9], "keys_only": True},
    ),
    _Vector(
        "snapshot and no more",
        _request(Opcode.STREAM_OPEN, 19, **_FEED),
        {"snapshot": True, "follow": False},
    ),
    _Vector(
        "stream opened",
        _answer(Opcode.STREAM_OPEN, 18),
        {"position": [_AT], "instance": "6f1c2f5e-8f0e-4d0b-9d5b-3a1d0a4b8c11"},
    ),
    _Vector("position not reached here", _answer(Opcode.STREAM_OPEN, 17, S.ROLLBACK)),
    _Vector(
        "row of a transaction that goes on",
        _request(Opcode.MUTATION, _PUSHED, Flag.QUIET | Flag.MORE, **_ROW),
        {"document": _JSON, "operation": 2},
    ),
    _Vector(
        "removal, the transaction's last row",
        _request(Opcode.REMOVE, _PUSHED + 1, Flag.QUIET, **_ROW),
        {"id": "order:2", "cas": 1 << 60},
    ),
    _Vector(
        "bucket emptied",
        _request(
            Opcode.TRUNCATE,
            _PUSHED + 2,
            Flag.QUIET,
            **{key: value for key, value in _ROW.items() if key != "vbucket"},
        ),
        {"bucket": "default"},
    ),
    _Vector(
        "heartbeat",
        _request(Opcode.STREAM_MARK, _PUSHED + 3, Flag.QUIET, **_FEED),
        {"kind": 0, "position": [_AT], "time": 1_795_000_000_123_456},
    ),
    _Vector(
        "rows acknowledged",
        _request(Opcode.STREAM_ACK, 20, Flag.QUIET, **_FEED),
        {"position": [_AT], "credit": 262144},
    ),
    _Vector("row refused", _answer(Opcode.MUTATION, _PUSHED, S.INTERNAL_ERROR)),
    _Vector(
        "notice",
        _request(Opcode.NOTICE, _PUSHED + 4, Flag.QUIET),
        {"code": 3, "text": "the server stops"},
    ),
    _Vector(
        "stream closed",
        _request(Opcode.STREAM_CLOSE, _PUSHED + 5, Flag.QUIET, **_FEED),
        {"status": int(S.TOO_BUSY), "reason": "no credit came for too long"},
    ),
)


def _entry(vector: _Vector) -> dict[str, Any]:
    frame = vector.frame
    payload = b""
    if vector.fields is not None:
        payload = payload_of(vector.table, vector.fields)
    is_servers = frame.is_response == (frame.opaque < _PUSHED)
    entry: dict[str, Any] = {
        "name": vector.name,
        "from": "server" if is_servers else "client",
        "opaque": frame.opaque,
        "opcode": frame.opcode,
        "flags": frame.flags | (frame.is_response * Flag.RESPONSE) | (bool(frame.flex) * Flag.FLEX),
    }
    if frame.status is not None:
        entry["status"] = frame.status
    if frame.flex:
        entry["flex"] = {f"{key:#06x}": value.hex() for key, value in sorted(frame.flex.items())}
    if payload:
        entry["payload"] = {"table": vector.table, **payload_fields(vector.table, payload)}
    entry["hex"] = encode_frame(replace(frame, payload=payload)).hex()
    return entry


def vectors_file() -> str:
    """The text of docs/vectors/greenstack.json."""
    made = {"about": _ABOUT, "vectors": [_entry(vector) for vector in _VECTORS]}
    return json.dumps(made, indent=1) + "\n"
