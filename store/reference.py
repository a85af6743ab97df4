"""The reference engine on layers: statements that the compiled ones do not know, one at a time.

`Engine` works on trees of a transaction of the state; here its trees are the memtables of a
space's layers with the base below, and what it changes goes into the open layer.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

from logweir.errors import ErrorCode
from logweir.store.definition import SpaceDef
from logweir.store.engine import Engine, Plans
from logweir.store.fieldtype import MpType, mp_type
from logweir.store.layerkernel import Space
from logweir.store.memtable import Memtable, merged_ascending, merged_descending
from logweir.store.refusal import refusal
from logweir.store.request import Request, encode_body
from logweir.store.schema import Schema
from logweir.store.state import Txn
from logweir.store.statementkernel import COLUMNS
from logweir.store.values import read_array, read_int, skip
from logweir.wal.xrow import RowType

__all__ = [
    "LayerTree",
    "LayerTxn",
    "Reference",
    "found_by",
    "is_expected",
    "reference_engine",
    "reference_of",
    "request_of",
]

_ABSENT: Final = 1
_VALUE: Final = 3

Answer = tuple[bool, bytes | None, bytes | None, bytes | None]
"""Whether what is expected is so, old tuple, new tuple, body to be logged."""

Reference = Callable[[int], Answer]
"""What executes a statement of a batch, given by its number. Raises `RequestError`."""


class LayerTree:
    """The entries of one index, seen through the layers of its space: ordered bytes → bytes."""

    def __init__(self, space: Space, place: int) -> None:
        self._space = space
        self._place = place
        self._name = (space.plan.space_id, space.plan.index_ids[place])

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`."""
        return self._space.get(self._place, key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value under `key`, which is not empty."""
        self._space.set(self._place, key, value)

    def delete(self, key: bytes) -> None:
        """Remove `key`."""
        self._space.set(self._place, key, b"")

    def ascending(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Entries from `start` on."""
        base = self._space.base.scan(*self._name, start, None, False)
        return merged_ascending(self._tables(), start, base)

    def descending(self, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Entries below `stop` (None: all), the greatest first."""
        base = self._space.base.scan(*self._name, b"", stop, True)
        return merged_descending(self._tables(), stop, base)

    def _tables(self) -> list[Memtable]:
        return [layer[self._place] for layer in self._space.layers]


class LayerTxn:
    """What `Engine` wants of a transaction, of some spaces in their layers."""

    def __init__(self, spaces: Sequence[Space]) -> None:
        self._trees = {
            (space.plan.space_id, index_id): LayerTree(space, place)
            for space in spaces
            for place, index_id in enumerate(space.plan.index_ids)
        }

    def tree(self, space_id: int, index_id: int) -> LayerTree | None:
        """The entries of an index; None where it is not kept."""
        return self._trees.get((space_id, index_id))


def reference_engine(spaces: Sequence[Space], schema: Schema, plans: Plans) -> Engine:
    """The engine on the layers of these spaces."""
    return Engine(cast(Txn, LayerTxn(spaces)), schema, plans)


def request_of(data: bytes, columns: array[int], number: int, spaces: Sequence[Space]) -> Request:
    """A statement of a batch as a request."""
    at = number * COLUMNS
    kind, place, index, base, first, first_end, ops, ops_end = columns[at : at + 8]
    given = data[first:first_end] if first_end else None
    by_key = kind in (RowType.UPDATE, RowType.DELETE)
    return Request(
        RowType(kind),
        spaces[place].plan.space_id,
        key=given if by_key else None,
        tuple=None if by_key else given,
        ops=data[ops:ops_end] if ops_end else None,
        index_id=index,
        index_base=base,
    )


def reference_of(
    data: bytes, columns: array[int], spaces: Sequence[Space], schema: Schema, plans: Plans
) -> Reference:
    """What executes the statements of a batch that the compiled ones do not know."""
    engine = reference_engine(spaces, schema, plans)

    def execute(number: int) -> Answer:
        request = request_of(data, columns, number, spaces)
        space = schema.space(request.space_id)
        expect, field, value, as_replace = columns[number * COLUMNS + 9 : (number + 1) * COLUMNS]
        found = found_by(engine, space, request) if expect else None
        if not is_expected(found, expect, field, value):
            return False, found, None, None
        old, new, logged = engine.execute(space, request)
        if as_replace and request.ops is not None and new is not None:
            logged = Request(RowType.REPLACE, space.id, tuple=new)
        return True, old, new, encode_body(logged)

    return execute


def found_by(engine: Engine, space: SpaceDef, request: Request) -> bytes | None:
    """The tuple that a statement finds. Raises `RequestError`."""
    if request.tuple is None:
        index = engine.schema.index(space, request.index_id)
        if not index.is_unique:
            raise refusal(space, ErrorCode.MORE_THAN_ONE_TUPLE, 0, 0, b"")
        return engine.get(space, index, request.key or b"")
    primary = engine.schema.index(space, 0)
    (image,) = engine.plans.get(space, primary, check=True).key(request.tuple)
    tree = engine.txn.tree(space.id, 0)
    return None if tree is None else tree.get(image)


def is_expected(found: bytes | None, expect: int, field: int, value: int) -> bool:
    """Whether what a statement expects (see `statementkernel`) is so of the tuple found."""
    if expect == 0 or found is None:
        return expect in (0, _ABSENT)
    if expect != _VALUE:
        return expect != _ABSENT
    count, at = read_array(found, 0)
    if field >= count:
        return False
    for _ in range(field):
        at = skip(found, at)
    return mp_type(found, at) is MpType.UINT and read_int(found, at) == value
