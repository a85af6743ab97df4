"""Selecting: iterator types on ordered and hash indexes.

=====  ====================================================  =========  =========
name   TREE                                                  number     HASH
=====  ====================================================  =========  =========
EQ     ascending, the key's parts equal; all without a key   0          full key
REQ    the same backwards                                    1          no
ALL    all; with a key as GE                                 2          all, always
LT     descending, below the key                             3          no
LE     descending, up to the key                             4          no
GE     ascending, from the key                               5          no
GT     ascending, behind the key                             6          yes
=====  ====================================================  =========  =========

A key may have fewer parts than a TREE index. The order of a HASH index is not defined; GT goes on
behind the tuple with the key. Source: Tarantool 2.6.0, observed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

from logweir.errors import ErrorCode, RequestError
from logweir.store.engine import reads
from logweir.store.engine.engine import Engine
from logweir.store.engine.reads import ALL, Piece, Row
from logweir.store.engine.request import ITERATORS, key_bytes
from logweir.store.schema.definition import IndexDef, IndexType, SpaceDef
from logweir.store.schema.keys import search_key
from logweir.store.schema.refused import illegal
from logweir.store.schema.schema import Schema
from logweir.wal.mp import Value, unpack

_ALL_ITERATORS: Final = (
    *ITERATORS,
    *("BITS_ALL_SET", "BITS_ANY_SET", "BITS_ALL_NOT_SET", "OVERLAPS", "NEIGHBOR"),
)
_HASH_ITERATORS: Final = frozenset(("EQ", "ALL", "GT"))


_NUMBERS: Final[dict[str | None, int]] = {name: number for number, name in enumerate(ITERATORS)}
_BY_EQ: Final = 0
_BY_ALL: Final = 2
_NO_KEY: Final = b"\x90"


def numbers(
    key: Value, iterator: str | None, limit: int | None, offset: int
) -> tuple[int, int, int, bytes] | None:
    """Iterator, limit, offset and key of a selection given in Python values, as a request has them;
    None if `Select.of` has to look, which may refuse it."""
    by = _NUMBERS.get(iterator)
    if iterator is None:
        by = _BY_ALL if key is None else _BY_EQ
    if by is None or type(offset) is not int or not 0 <= offset <= ALL:
        return None
    if limit is None:
        limit = ALL
    elif type(limit) is not int or not 0 <= limit <= ALL:
        return None
    return by, limit, offset, _NO_KEY if key is None else key_bytes(key)


class Options(TypedDict, total=False):
    """Of a selection, as `Log.select` has them."""

    iterator: str | None
    index: int | str
    limit: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class Select:
    """One checked selection. `image`: the memcomparable key, empty for none; `after`: the entry
    behind which it goes on (`store.engine.paging`), None for none."""

    space: SpaceDef
    index: IndexDef
    iterator: str
    image: bytes
    limit: int | None
    offset: int
    after: bytes | None = None

    @classmethod
    def of(
        cls,
        schema: Schema,
        space: int | str,
        key: Value,
        *,
        iterator: str | None = None,
        index: int | str = 0,
        limit: int | None = None,
        offset: int = 0,
    ) -> Select:
        """A selection given in Python values. Raises `RequestError`."""
        packed = _NO_KEY if key is None else key_bytes(key)
        name = str(iterator).upper() if iterator else "ALL" if key is None else "EQ"
        if name not in _ALL_ITERATORS:
            raise RequestError(
                ErrorCode.ITERATOR_TYPE,
                f"Unknown iterator type '{iterator}'",
                hint=f"one of {', '.join(ITERATORS)}",
            )
        number = _ALL_ITERATORS.index(name)
        return cls.packed(schema, space, packed, number, index=index, limit=limit, offset=offset)

    @classmethod
    def packed(
        cls,
        schema: Schema,
        space: int | str,
        key: bytes,
        iterator: int,
        *,
        index: int | str = 0,
        limit: int | None = None,
        offset: int = 0,
        after: Callable[[SpaceDef, IndexDef], bytes | None] = lambda space, index: None,
    ) -> Select:
        """A selection given as in a request: `key` in MsgPack, `iterator` by number; `after`:
        tells behind which entry it goes on. Raises `RequestError`."""
        found = schema.space(space)
        which = schema.index(found, index)
        if not 0 <= iterator < len(_ALL_ITERATORS):
            raise illegal("Illegal parameters, Invalid iterator type")
        name = _ALL_ITERATORS[iterator]
        image, _ = search_key(key, which, all_allowed=name in ("ALL", "GT"))
        allowed = _HASH_ITERATORS if which.type == IndexType.HASH else frozenset(ITERATORS)
        if name not in allowed:
            raise RequestError(
                ErrorCode.UNSUPPORTED_INDEX_FEATURE,
                f"Index '{which.name}' ({which.type.name}) of space '{found.name}' (memtx) does "
                "not support requested iterator type",
            )
        for given in (offset, 0 if limit is None else limit):
            if not isinstance(given, int) or given < 0:
                raise illegal(f"limit and offset are whole numbers from 0 on, not {given!r}")
        entry = after(found, which)
        if entry is not None and not _meets(name, image, entry):
            raise RequestError(ErrorCode.ITERATOR_POSITION, "Iterator position is invalid")
        return cls(found, which, name, image, limit, offset, entry)


def _meets(iterator: str, image: bytes, entry: bytes) -> bool:
    """Whether an entry is on the way of a selection."""
    beginning = entry[: len(image)]
    if iterator in ("EQ", "REQ"):
        return beginning == image
    return beginning <= image if iterator in ("LT", "LE") else beginning >= image


def select(engine: Engine, wanted: Select) -> Iterator[bytes]:
    """The tuples, as MsgPack, of a selection, in order."""
    return (data for piece in pieces(engine, wanted) for data in piece.tuples())


def pieces(engine: Engine, wanted: Select) -> Iterator[Piece]:
    """`select` in pieces, see `reads.pieces`."""
    found = _limits(wanted)
    if found is None:
        return iter(())
    start, stop, reverse = found
    return reads.pieces(
        engine,
        wanted.space,
        wanted.index,
        start,
        stop,
        reverse=reverse,
        limit=ALL if wanted.limit is None else min(wanted.limit, ALL),
        offset=min(wanted.offset, ALL),
    )


def rows(
    engine: Engine,
    space: int | str,
    key: Value,
    *,
    iterator: str | None = None,
    index: int | str = 0,
    limit: int | None = None,
    offset: int = 0,
) -> list[Row]:
    """The tuples of a selection given in Python values. Raises `RequestError`."""
    asked = numbers(key, iterator, limit, offset)
    if asked is not None:
        definition = engine.schema.space(space)
        index_id = engine.schema.index(definition, index).id
        found = reads.rows(engine, definition, index_id, *asked)
        if found is not None:
            return found
    wanted = Select.of(
        engine.schema, space, key, iterator=iterator, index=index, limit=limit, offset=offset
    )
    return [tuple(unpack(data)) for data in reference(engine, wanted)]


def reference(engine: Engine, wanted: Select) -> Iterator[bytes]:
    """The same by the reference engine alone."""
    return (found for piece in pairs(engine, wanted) for _, found in piece)


def pairs(engine: Engine, wanted: Select) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    """`reference` in pieces, each tuple with its entry."""
    limits = _limits(wanted)
    if limits is None:
        return iter(())
    start, stop, reverse = limits
    found = engine.pairs(wanted.space, wanted.index, start, stop, reverse=reverse)
    end = sys.maxsize if wanted.limit is None else wanted.offset + wanted.limit
    start_at = min(wanted.offset, sys.maxsize)
    return reads.parted(found, start_at, min(end, sys.maxsize), lambda pair: len(pair[1]))


def _limits(wanted: Select) -> tuple[bytes, bytes | None, bool] | None:
    """Which entries it selects: from the first on, below the second, whether in reverse. None:
    there cannot be one."""
    found = _bounds(wanted)
    if found is None or wanted.after is None:
        return found
    start, stop, reverse = found
    if reverse:
        stop = wanted.after if stop is None else min(stop, wanted.after)
    else:
        start = max(start, wanted.after + b"\0")
    return None if stop is not None and start >= stop else (start, stop, reverse)


def _bounds(wanted: Select) -> tuple[bytes, bytes | None, bool] | None:
    """`_limits`, wherever it goes on."""
    image = wanted.image
    behind = _successor(image)
    start, stop, reverse = b"", None, False
    match wanted.iterator:
        case "EQ":
            start, stop = image, behind
        case "REQ":
            start, stop, reverse = image, behind, True
        case "ALL" if wanted.index.type == IndexType.HASH:
            pass  # whatever the key is
        case "ALL" | "GE":
            start = image
        case "GT" if image:
            if behind is None:
                return None
            start = behind
        case "LE":
            stop, reverse = behind, True
        case "LT":
            stop, reverse = image or None, True
    return start, stop, reverse


def _successor(image: bytes) -> bytes | None:
    """The least bytes above everything that begins with `image`; None if there are none."""
    stripped = image.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None
