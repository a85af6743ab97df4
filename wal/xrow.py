"""Rows: one change each. Bytes ↔ values; no I/O.

A row is a header map and a body map, MsgPack, one behind the other, no length before them. A NOP
has no body: the next map is the next row's header.

Header keys, written in this order, each only if it is not zero (except the type):

====  ==========  ========  ====================================================================
key   name        type      notes
====  ==========  ========  ====================================================================
00    type        uint      2 INSERT, 3 REPLACE, 4 UPDATE, 5 DELETE, 9 UPSERT, 12 NOP, 40, 41 …
02    replica id  uint      absent = 0: a local row
07    group id    uint      1 = replica-local
03    lsn         uint
04    timestamp   float64   seconds since the epoch; all rows of a transaction share it
08    tsn         uint      lsn minus transaction id, **modulo 2^64**; absent: a transaction alone
09    flags       uint      bit 0 COMMIT: last row of its transaction
====  ==========  ========  ====================================================================

The transaction id T is the lsn of the first *global* row. Only row: keys 08 and 09 absent. First
and middle rows: 08 = lsn - T. Last row: that, and 09 = 1. Local rows inside a mixed transaction
count their own lsn (component 0) but carry T of the global sequence, hence the modulo.

Body keys: 10 space id, 11 index id, 15 index base, 20 key, 28 operations, 21 tuple (the operations
of an UPDATE stand under 21). A known header key with a value of another type makes the row invalid;
so does a header key of 53 (35 hexadecimal) and more; other unknown keys are kept.
Source: Tarantool 2.6.0, observed, `xrow.c`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from logweir.errors import DecodeError
from logweir.wal.mp import decode_uint, encode_uint, skip, unpack

_U64: Final = 2**64
UnknownKeys = tuple[tuple[int, bytes], ...]
"""Keys that the format does not define, with the exact MsgPack bytes of their values."""
FLAG_COMMIT: Final = 1
GROUP_LOCAL: Final = 1
HEADER_KEY_END: Final = 0x53


class RowType(IntEnum):
    """Types of rows in files. Requests of a connection are in `replication.iproto`."""

    SELECT = 1
    INSERT = 2
    REPLACE = 3
    UPDATE = 4
    DELETE = 5
    UPSERT = 9
    NOP = 12
    CONFIRM = 40
    ROLLBACK = 41


_NAMES: Final = {int(kind): kind.name for kind in RowType} | {
    30: "RAFT",
    31: "RAFT_PROMOTE",
    32: "RAFT_DEMOTE",
}
"""The last three are of Tarantool 2.8 and newer (read in its `iproto_constants.h`)."""
RAFT: Final = 30
PROMOTIONS: Final = frozenset((31, 32))
"""Types of rows about elections, which change no tuple; these decide about what waits for CONFIRM,
if anything does."""


def type_name(number: int) -> str:
    """What a type of rows is called, or the number as text where it has no name."""
    return _NAMES.get(number, str(number))


class Key(IntEnum):
    """Keys of header and body maps."""

    TYPE = 0x00
    SYNC = 0x01
    REPLICA_ID = 0x02
    LSN = 0x03
    TIMESTAMP = 0x04
    GROUP_ID = 0x07
    TSN = 0x08
    FLAGS = 0x09
    SPACE_ID = 0x10
    INDEX_ID = 0x11
    INDEX_BASE = 0x15
    KEY = 0x20
    TUPLE = 0x21
    OPS = 0x28


@dataclass(frozen=True, slots=True)
class Row:
    """One change, its body still in bytes.

    `tsn`: the transaction's id, absolute (0 … 2^64-1); `commit`: last row of its transaction;
    `flags`: as stored, bit 0 included; `body`: MsgPack map, empty for NOP; `unknown`: header keys
    that are not in the table, with the bytes of their values.
    """

    type: int
    replica_id: int = 0
    lsn: int = 0
    timestamp: float = 0.0
    tsn: int = 0
    commit: bool = True
    group_id: int = 0
    flags: int = 0
    body: bytes = b""
    unknown: UnknownKeys = ()

    @property
    def type_name(self) -> str:
        """See `type_name`."""
        return type_name(self.type)

    @property
    def is_single(self) -> bool:
        """Whether it is a transaction by itself."""
        return self.commit and self.tsn == self.lsn

    @property
    def space_id(self) -> int | None:
        """The space it changes; None where it has no body or names none."""
        return decode_body(self.body).space_id if self.body else None

    def decoded(self) -> dict[str, Any]:
        """The body as Python values: `key`, `tuple`, `ops` and what else is there."""
        if not self.body:
            return {}
        body = decode_body(self.body)
        out: dict[str, Any] = {}
        if body.space_id is not None:
            out["space_id"] = body.space_id
        for name in ("index_id", "index_base"):
            if value := getattr(body, name):
                out[name] = value
        is_update = self.type == RowType.UPDATE and body.tuple is not None
        if body.key is not None:
            out["key"] = unpack(body.key)
        if body.tuple is not None:
            out["ops" if is_update else "tuple"] = unpack(body.tuple)
        if body.ops is not None and not is_update:
            out["ops"] = unpack(body.ops)
        return out


@dataclass(frozen=True, slots=True)
class Transaction:
    """Rows that are applied together or not at all. `offset`: byte of their block in the file."""

    rows: tuple[Row, ...]
    path: str = ""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Body:
    """A body map taken apart; key, tuple and operations are the exact MsgPack bytes, or None."""

    space_id: int | None = None
    index_id: int = 0
    index_base: int = 0
    key: bytes | None = None
    tuple: bytes | None = None
    ops: bytes | None = None
    unknown: UnknownKeys = ()


def _map_items(
    data: bytes | memoryview, at: int, what: str
) -> tuple[list[tuple[int, int, int]], int]:
    """A map with small integer keys: (key, start of value, end of value) …, and where it ends."""
    if at >= len(data):
        raise DecodeError(f"{what} is missing", offset=at)
    end = skip(data, at)
    first = data[at]
    if 0x80 <= first < 0x90:
        count, at = first & 0x0F, at + 1
    elif first in (0xDE, 0xDF):
        width = 2 if first == 0xDE else 4
        count, at = int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width
    else:
        raise DecodeError(f"{what} is not a map", offset=at)
    items = []
    for _ in range(count):
        key = decode_uint(data, at)
        if key is None:
            raise DecodeError(f"{what} has a key that is not an unsigned integer", offset=at)
        at = skip(data, key[1])
        items.append((key[0], key[1], at))
    return items, end


_HEADER_NAMES: Final = {
    Key.TYPE: "type",
    Key.REPLICA_ID: "replica_id",
    Key.LSN: "lsn",
    Key.GROUP_ID: "group_id",
    Key.TSN: "tsn",
    Key.FLAGS: "flags",
}


def decode_row(data: bytes | memoryview, offset: int = 0) -> tuple[Row, int]:
    """Read the row at `offset`. Returns it and where it ends. Raises `DecodeError`."""
    items, at = _map_items(data, offset, "row header")
    numbers: dict[str, int] = {}
    timestamp = 0.0
    unknown: list[tuple[int, bytes]] = []
    for key, start, end in items:
        if key == Key.TIMESTAMP:
            if data[start] != 0xCB:
                raise DecodeError("row header: timestamp is not a 64-bit float", offset=start)
            (timestamp,) = struct.unpack_from(">d", data, start + 1)
        elif key in _HEADER_NAMES:
            number = decode_uint(data, start)
            if number is None:
                name = _HEADER_NAMES[Key(key)]
                raise DecodeError(f"row header: {name} is not unsigned", offset=start)
            numbers[_HEADER_NAMES[Key(key)]] = number[0]
        elif key >= HEADER_KEY_END:
            raise DecodeError(f"row header: key {key:#x} is not known to the format", offset=start)
        else:
            unknown.append((key, bytes(data[start:end])))
    if "type" not in numbers:
        raise DecodeError("row header has no type", offset=offset)
    lsn = numbers.get("lsn", 0)
    flags = numbers.get("flags", 0)
    body = b""
    if numbers["type"] != RowType.NOP:
        body_at = at
        _, at = _map_items(data, at, "row body")
        body = bytes(data[body_at:at])
    row = Row(
        type=numbers["type"],
        replica_id=numbers.get("replica_id", 0),
        lsn=lsn,
        timestamp=timestamp,
        tsn=(lsn - numbers["tsn"]) % _U64 if "tsn" in numbers else lsn,
        commit="tsn" not in numbers or bool(flags & FLAG_COMMIT),
        group_id=numbers.get("group_id", 0),
        flags=flags,
        body=body,
        unknown=tuple(unknown),
    )
    return row, at


def decode_body(data: bytes | memoryview) -> Body:
    """Take a body map apart. Raises `DecodeError`."""
    items, end = _map_items(data, 0, "row body")
    if end != len(data):
        raise DecodeError("bytes follow the row body", offset=end)
    numbers: dict[str, int] = {}
    parts: dict[str, bytes] = {}
    unknown: list[tuple[int, bytes]] = []
    for key, start, stop in items:
        if key in _BODY_NUMBERS:
            number = decode_uint(data, start)
            if number is None:
                raise DecodeError(f"row body: {_BODY_NUMBERS[key]} is not unsigned", offset=start)
            numbers[_BODY_NUMBERS[key]] = number[0]
        elif key in _BODY_ARRAYS:
            if not (0x90 <= data[start] < 0xA0 or data[start] in (0xDC, 0xDD)):
                raise DecodeError(f"row body: {_BODY_ARRAYS[key]} is not an array", offset=start)
            parts[_BODY_ARRAYS[key]] = bytes(data[start:stop])
        else:
            unknown.append((key, bytes(data[start:stop])))
    return Body(**numbers, **parts, unknown=tuple(unknown))  # type: ignore[arg-type]


_BODY_NUMBERS: Final = {
    int(Key.SPACE_ID): "space_id",
    int(Key.INDEX_ID): "index_id",
    int(Key.INDEX_BASE): "index_base",
}
_BODY_ARRAYS: Final = {int(Key.KEY): "key", int(Key.TUPLE): "tuple", int(Key.OPS): "ops"}


def encode_row(row: Row) -> bytes:
    """The bytes of a row as they stand in a file: the reverse of `decode_row`."""
    items: list[tuple[int, bytes]] = [(Key.TYPE, encode_uint(row.type))]
    if row.replica_id:
        items.append((Key.REPLICA_ID, encode_uint(row.replica_id)))
    if row.group_id:
        items.append((Key.GROUP_ID, encode_uint(row.group_id)))
    if row.lsn:
        items.append((Key.LSN, encode_uint(row.lsn)))
    if row.timestamp:
        items.append((Key.TIMESTAMP, b"\xcb" + struct.pack(">d", row.timestamp)))
    flags = row.flags & ~FLAG_COMMIT
    if not row.is_single:
        items.append((Key.TSN, encode_uint((row.lsn - row.tsn) % _U64)))
        flags |= FLAG_COMMIT if row.commit else 0
    if flags:
        items.append((Key.FLAGS, encode_uint(flags)))
    items += row.unknown
    head = (
        bytes((0x80 + len(items),)) if len(items) < 16 else b"\xde" + len(items).to_bytes(2, "big")
    )
    return head + b"".join(encode_uint(key) + value for key, value in items) + row.body


def encode_rows(rows: Iterable[Row]) -> bytes:
    """Several rows, one behind the other."""
    return b"".join(map(encode_row, rows))
