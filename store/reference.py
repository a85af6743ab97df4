"""Statements of a batch for the reference engine: those that the compiled ones do not know."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from logweir.errors import ErrorCode
from logweir.store.definition import SpaceDef
from logweir.store.engine import Engine
from logweir.store.executing import COLUMNS
from logweir.store.fieldtype import MpType, mp_type
from logweir.store.refusal import refusal
from logweir.store.request import Request
from logweir.store.values import read_array, read_int, skip
from logweir.wal.xrow import RowType

__all__ = ["found_by", "is_expected", "request_of"]

_ABSENT: Final = 1
_VALUE: Final = 3


def request_of(data: bytes, columns: array[int], number: int, ids: Sequence[int]) -> Request:
    """A statement of a batch as a request. `ids`: of the batch's spaces."""
    at = number * COLUMNS
    kind, place, index, base, first, first_end, ops, ops_end = columns[at : at + 8]
    given = data[first:first_end] if first_end else None
    by_key = kind in (RowType.UPDATE, RowType.DELETE)
    return Request(
        RowType(kind),
        ids[place],
        key=given if by_key else None,
        tuple=None if by_key else given,
        ops=data[ops:ops_end] if ops_end else None,
        index_id=index,
        index_base=base,
    )


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
