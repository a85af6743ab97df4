"""Requests: one change, as a client asks for it and as it goes into the log. No I/O.

What is logged is not always what was asked (Tarantool 2.6.0, observed): a row that was found
through a secondary index is logged with its primary key; index id and index base only where they
are not zero; the operations of an UPDATE stand under key 21, of an UPSERT under 28.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from logweir.errors import RequestError
from logweir.store.schema.refused import illegal
from logweir.wal.mp import Value, encode_uint, pack
from logweir.wal.xrow import Key, RowType

ITERATORS: Final = ("EQ", "REQ", "ALL", "LT", "LE", "GE", "GT")
"""Which tuples a selection takes, each by its number; see `store.engine.select`."""

UNPACKABLE: Final = (TypeError, ValueError, OverflowError)
"""What `wal.mp.pack` raises."""


def cannot_store(what: str, error: Exception) -> RequestError:
    """The error for a program's value that has no MsgPack form."""
    hint = "MsgPack has nil, bool, int, float, str, bytes, list, dict, Decimal and UUID"
    return illegal(f"{what} cannot be stored: {error}", hint)


def pack_value(value: Value, what: str) -> bytes:
    """One value as MsgPack. Raises `RequestError` ILLEGAL_PARAMS that names what cannot be
    stored."""
    try:
        return pack(value)
    except UNPACKABLE as error:
        raise cannot_store(what, error) from error


def key_bytes(key: Value) -> bytes:
    """A key as MsgPack: a list or tuple holds its parts, anything else is its only part."""
    return pack_value(key if isinstance(key, list | tuple) else [key], "the key")


def listed(ops: Iterable[Iterable[Value]]) -> list[list[Value]]:
    """Operations as lists. Raises `RequestError` ILLEGAL_PARAMS."""
    try:
        return [list(op) for op in ops]
    except TypeError as error:
        hint = 'write them as [["=", "name", "x"], ["+", 2, 1]]'
        raise illegal(f"the operations are no list of lists: {error}", hint) from error


class Request(NamedTuple):
    """One change of one space. Keys, tuples and operations are MsgPack arrays in bytes.

    `index_base`: what the first field has for a number in `ops`, 0 or 1.
    """

    type: RowType
    space_id: int
    key: bytes | None = None
    tuple: bytes | None = None
    ops: bytes | None = None
    index_id: int = 0
    index_base: int = 0

    @property
    def size_bytes(self) -> int:
        """About how many bytes of log it makes."""
        return len(self.key or b"") + len(self.tuple or b"") + len(self.ops or b"") + 64

    def told(self, old: bytes | None, new: bytes | None) -> bytes | None:
        """What it is answered with: the new tuple, a DELETE with the old one, an UPSERT with
        none."""
        if self.type is RowType.UPSERT:
            return None
        return old if self.type is RowType.DELETE else new


@dataclass(frozen=True, slots=True)
class Done:
    """What became of several changes. `count`: how many are made; `refused`: the number, from 0, of
    the first that was not, and `error` why."""

    count: int
    refused: int = -1
    error: RequestError | None = None


def encode_body(request: Request) -> bytes:
    """The body map that goes into the log, its keys in the order Tarantool writes them."""
    tuple_, ops = request.tuple, request.ops
    if request.type == RowType.UPDATE:
        tuple_, ops = ops, None
    items: list[tuple[int, bytes]] = [(Key.SPACE_ID, encode_uint(request.space_id))]
    if request.index_id:
        items.append((Key.INDEX_ID, encode_uint(request.index_id)))
    if request.index_base:
        items.append((Key.INDEX_BASE, encode_uint(request.index_base)))
    for key, value in ((Key.KEY, request.key), (Key.OPS, ops), (Key.TUPLE, tuple_)):
        if value is not None:
            items.append((key, value))
    return bytes((0x80 + len(items),)) + b"".join(encode_uint(key) + value for key, value in items)
