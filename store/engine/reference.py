"""Statements of a batch for the reference engine: those that the compiled ones do not know."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from logweir.errors import ErrorCode, RequestError
from logweir.store.engine.computing import KEPT, Computer
from logweir.store.engine.engine import Engine
from logweir.store.engine.executing import COLUMNS, DONE, LAST, Answer
from logweir.store.engine.refusal import refusal
from logweir.store.engine.request import Request
from logweir.store.engine.select import Select, reference
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.fieldtype import MpType, mp_type
from logweir.store.schema.values import read_array, read_int, skip
from logweir.wal.xrow import RowType

__all__ = ["COMPUTED", "bounded", "found_by", "is_expected", "kept", "request_of", "selected"]

COMPUTED: Final = 4
_ABSENT: Final = 1
_GET: Final = 7
_VALUE: Final = 3
_NONE: Final = (None, None, None)


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


def selected(
    engine: Engine,
    data: bytes,
    columns: array[int],
    number: int,
    ids: Sequence[int],
    limit_bytes: int,
) -> bytes:
    """The tuples of a SELECT of a batch as a MsgPack array. Raises `RequestError`, error 2 where
    they have more than `limit_bytes`."""
    at = number * COLUMNS
    _, place, index_id, iterator, first, end = columns[at : at + 6]
    limit, offset = columns[at + LAST + 2 : at + LAST + 4]
    key = data[first:end]
    if iterator == _GET:
        space = engine.schema.space(ids[place])
        index = engine.schema.index(space, index_id)
        if not index.is_unique:
            raise refusal(space, ErrorCode.MORE_THAN_ONE_TUPLE, 0, 0, b"")
        one = engine.get(space, index, key)
        found = [] if one is None or offset or not limit else [one]
        return b"\xdd" + len(found).to_bytes(4, "big") + b"".join(found)
    wanted = Select.packed(
        engine.schema, ids[place], key, iterator, index=index_id, limit=limit, offset=offset
    )
    found = list(bounded(reference(engine, wanted), limit_bytes))
    return b"\xdd" + len(found).to_bytes(4, "big") + b"".join(found)


def kept(
    engine: Engine,
    data: bytes,
    columns: array[int],
    number: int,
    ids: Sequence[int],
    computer: Computer | None,
) -> Answer:
    """A computed statement of a batch that changes nothing. Raises `RequestError`."""
    request = request_of(data, columns, number, ids)
    found = found_by(engine, engine.schema.space(request.space_id), request)
    how, step = columns[number * COLUMNS + LAST + 2 : number * COLUMNS + LAST + 4]
    assert computer is not None
    outcome, made, told = computer.refer(how, step, request.tuple or b"", found)
    assert made is None
    return (DONE, found, None, None, told) if outcome == KEPT else (outcome, *_NONE, told)


def bounded(rows: Iterable[bytes], limit_bytes: int) -> Iterator[bytes]:
    """The same tuples. Raises error 2 where they have more than `limit_bytes` together."""
    size = 0
    for row in rows:
        size += len(row)
        if size > limit_bytes:
            text = f"Failed to allocate {size} bytes in iproto for the answer of a select"
            raise RequestError(ErrorCode.MEMORY_ISSUE, text, hint="ask for less at a time")
        yield row


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
