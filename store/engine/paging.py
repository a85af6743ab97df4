"""Selections that go on where another one ended.

A *position* is a word for an entry of an index, that of the last tuple given: base64, without its
filling, of the MsgPack array [id of the index, entry]. Only who made it can read it (Tarantool's
are made otherwise), and it stays good whatever is changed; of a tuple that is gone it is the place
where that was. A HASH index, whose order here is that of its keys, has positions too.

Source: Tarantool 2.11 (read): `box_select`, `iterator_position_validate`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence

from logweir.errors import DecodeError, ErrorCode, LimitExceeded, RequestError
from logweir.store.engine.engine import Engine
from logweir.store.engine.select import Select, pairs, pieces
from logweir.store.schema.definition import IndexDef, SpaceDef
from logweir.store.schema.fieldtype import MpType, mp_type
from logweir.store.schema.keys import index_keys
from logweir.store.schema.refused import unsupported
from logweir.wal.mp import pack, unpack


class Walk:
    """The tuples of a selection, once, in pieces (`reads.pieces`); it knows where it stands."""

    def __init__(self, engine: Engine, wanted: Select) -> None:
        self._engine = engine
        self._wanted = wanted
        self._entry = b""
        self._last = b""

    def __iter__(self) -> Iterator[Sequence[bytes]]:
        if not self._wanted.index.is_multikey:
            for piece in pieces(self._engine, self._wanted):
                found = piece.tuples()
                self._last = found[-1] if found else self._last
                yield found
            return
        for part in pairs(self._engine, self._wanted):  # a tuple has several entries
            self._entry, self._last = part[-1] if part else (self._entry, self._last)
            yield [data for _, data in part]

    def end_at(self, data: bytes) -> None:
        """It stands at that tuple of the last piece, whose index is no multikey one."""
        self._last = data

    @property
    def position(self) -> str:
        """Of the last tuple that was given; there was one."""
        index = self._wanted.index
        entry = self._entry or index_keys(self._last, index)[0]
        return base64.b64encode(pack([index.id, entry])).rstrip(b"=").decode()


def entry_at(position: str, index: IndexDef) -> bytes | None:
    """The entry of a position, None for "". Raises error 247."""
    if not position:
        return None
    try:
        filled = position + "=" * (-len(position) % 4)
        found = unpack(base64.b64decode(filled, validate=True))
    except (binascii.Error, ValueError, DecodeError, LimitExceeded) as error:
        raise _invalid() from error
    match found:
        case [index.id, bytes() as entry]:
            return entry
    raise _invalid()


def behind(given: bytes) -> Callable[[SpaceDef, IndexDef], bytes | None]:
    """What finds the entry of what a request goes on behind, in MsgPack: a position or a tuple;
    nothing: none."""

    def find(space: SpaceDef, index: IndexDef) -> bytes | None:
        if mp_type(given, 0) is MpType.ARRAY:
            return entry_of(given, space, index)
        return entry_at(str(unpack(given)), index)

    return find if given else lambda space, index: None


def entry_of(data: bytes, space: SpaceDef, index: IndexDef) -> bytes:
    """The entry of a tuple, which need not be there. Raises error 247; 5 for a multikey index."""
    if index.is_multikey:
        raise unsupported("Multikey index does not support position by tuple")
    try:
        space.format.check(data)
        return index_keys(data, index)[0]
    except RequestError as error:
        raise _invalid() from error


def _invalid() -> RequestError:
    return RequestError(ErrorCode.ITERATOR_POSITION, "Iterator position is invalid")
