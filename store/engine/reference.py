"""Statements of a batch for the reference engine: those that the compiled ones do not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from logweir.store.engine.batches import Asked
from logweir.store.engine.computing import KEPT
from logweir.store.engine.engine import Engine
from logweir.store.engine.executing import COLUMNS, DONE, HALTED, LAST, Answer
from logweir.store.engine.paging import Walk, behind
from logweir.store.engine.reads import PIECE_BYTES
from logweir.store.engine.request import Request
from logweir.store.engine.select import Select
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.fieldtype import MpType, mp_type
from logweir.store.schema.values import read_array, read_int, skip
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

COMPUTED: Final = 4
_ABSENT: Final = 1
_GET: Final = 7
_VALUE: Final = 3
_NONE: Final = (None, None, None)
_NOTHING: Final = (0, 0, 0)


def request_of(asked: Asked, number: int) -> Request:
    """A statement of a batch as a request."""
    data, columns, at = asked.data, asked.columns, number * COLUMNS
    kind, place, index, base, first, first_end, ops, ops_end = columns[at : at + 8]
    given = data[first:first_end] if first_end else None
    by_key = kind in (RowType.UPDATE, RowType.DELETE)
    return Request(
        RowType(kind),
        asked.ids[place],
        key=given if by_key else None,
        tuple=None if by_key else given,
        ops=data[ops:ops_end] if ops_end else None,
        index_id=index,
        index_base=base,
    )


def selected(engine: Engine, asked: Asked, number: int) -> Answer:
    """A SELECT of a batch: its tuples as a MsgPack array, or that it halts the batch, for it is
    more than a piece (`reads.pieces`). Raises `RequestError`."""
    columns, at = asked.columns, number * COLUMNS
    _, place, index_id, iterator, first, end, after, after_end = columns[at : at + 8]
    limit, offset, has_position = columns[at + LAST + 2 : at + LAST + 5]
    key, space_id = asked.data[first:end], asked.ids[place]
    if iterator == _GET:
        space = engine.schema.space(space_id)
        one = engine.only(space, engine.schema.index(space, index_id), key)
        return _found([] if one is None or offset or not limit else [one])
    wanted = Select.packed(
        engine.schema,
        space_id,
        key,
        iterator,
        index=index_id,
        limit=limit,
        offset=offset,
        after=behind(asked.data[after:after_end]),
    )
    walk = Walk(engine, wanted)
    parts = iter(walk)
    found = next(parts, ())
    if sum(map(len, found)) > PIECE_BYTES or next(parts, None) is not None:
        return HALTED, None, None, None, _NOTHING
    return _found(found, pack(walk.position) if has_position and found else None)


def _found(tuples: Sequence[bytes], position: bytes | None = None) -> Answer:
    data = b"\xdd" + len(tuples).to_bytes(4, "big") + b"".join(tuples)
    return DONE, position, data, None, _NOTHING


def kept(engine: Engine, asked: Asked, number: int) -> Answer:
    """A computed statement of a batch that changes nothing. Raises `RequestError`."""
    request = request_of(asked, number)
    found = found_by(engine, engine.schema.space(request.space_id), request)
    at = number * COLUMNS + LAST + 2
    how, step = asked.columns[at : at + 2]
    assert asked.computer is not None
    outcome, made, told = asked.computer.refer(how, step, request.tuple or b"", found)
    assert made is None
    return (DONE, found, None, None, told) if outcome == KEPT else (outcome, *_NONE, told)


def found_by(engine: Engine, space: SpaceDef, request: Request) -> bytes | None:
    """The tuple that a statement finds. Raises `RequestError`."""
    if request.tuple is None:
        index = engine.schema.index(space, request.index_id)
        return engine.only(space, index, request.key or b"")
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
