"""Sequences: the next number where an insert leaves a field nil.

A space of `_space_sequence` takes the value of one field from a sequence. What is logged is the
whole tuple, the number included, so `_sequence_data` (the last number given) gets no row of its
own; it follows from the tuples again when they are replayed, and a snapshot holds it.
Source: Tarantool 2.6.0, observed; `sequence.c`.
"""

from __future__ import annotations

from typing import Final

from logweir.errors import ErrorCode, RequestError
from logweir.store.engine.engine import Engine
from logweir.store.engine.request import Request
from logweir.store.engine.update import apply_update
from logweir.store.schema.definition import SequenceDef, SpaceDef, SystemSpace
from logweir.store.schema.keys import tuple_key
from logweir.wal.mp import pack, unpack

SEQUENCE_MOST: Final = 2**63 - 1
"""The highest number of a sequence: one above it is none that it learns."""


def fill_sequence(engine: Engine, space: SpaceDef, request: Request) -> Request:
    """The request with the sequence's number in the field, if that is nil; else the sequence
    learns the number that is there. Raises `RequestError`."""
    use = space.sequence
    assert use is not None
    assert request.tuple is not None
    sequence = engine.schema.sequence(use.sequence_id)
    fields = unpack(request.tuple)
    if not isinstance(fields, list) or len(fields) <= use.field_no or use.path:
        return request  # the format check says what is wrong
    value = fields[use.field_no]
    if value is None:
        number = _next(engine, sequence)
        ops = pack([["=", use.field_no, number]])
        request = Request(
            request.type,
            request.space_id,
            tuple=apply_update(request.tuple, ops, index_base=0, space=space),
        )
    elif isinstance(value, int) and not isinstance(value, bool) and value <= SEQUENCE_MOST:
        _learn(engine, sequence, value)
    return request


def _current(engine: Engine, sequence: SequenceDef) -> int | None:
    data = engine.schema.space(SystemSpace.SEQUENCE_DATA)
    assert data.primary is not None
    found = engine.get(data, data.primary, pack([sequence.id]))
    return None if found is None else int(unpack(found)[1])


def _set(engine: Engine, sequence: SequenceDef, number: int) -> None:
    data = engine.schema.space(SystemSpace.SEQUENCE_DATA)
    assert data.primary is not None
    new = pack([sequence.id, number])
    tree = engine.txn.tree(data.id, 0)
    assert tree is not None
    tree.put(tuple_key(new, data.primary), new)


def _next(engine: Engine, sequence: SequenceDef) -> int:
    last = _current(engine, sequence)
    if last is None:
        number = sequence.start
    elif sequence.step > 0 and last < sequence.min:
        number = sequence.min
    elif sequence.step < 0 and last > sequence.max:
        number = sequence.max
    else:
        number = last + sequence.step
    if not sequence.min <= number <= sequence.max:
        if not sequence.cycle:
            text = f"Sequence '{sequence.name}' has overflowed"
            raise RequestError(ErrorCode.SEQUENCE_OVERFLOW, text)
        number = sequence.min if sequence.step > 0 else sequence.max
    _set(engine, sequence, number)
    return number


def _learn(engine: Engine, sequence: SequenceDef, number: int) -> None:
    last = _current(engine, sequence)
    if last is None or (number > last if sequence.step > 0 else number < last):
        _set(engine, sequence, number)
