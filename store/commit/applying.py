"""Rows that were accepted elsewhere, or before: what replication and recovery do with them.

They go through the compiled statements as columns, many at a time (`rowkernel.pyx`). What those do
not know, rows of system spaces, and if nothing is compiled every row, `apply_row` does by the
reference engine, one at a time, on the same layers.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from logweir.errors import ErrorCode, RequestError
from logweir.limits import VCLOCK_COMPONENTS
from logweir.store.commit.rows import COMPILED
from logweir.store.engine import ddl
from logweir.store.engine.engine import Engine
from logweir.store.engine.executing import Executor
from logweir.store.engine.reads import compiled
from logweir.store.engine.refusal import refusal
from logweir.store.engine.request import Request
from logweir.store.engine.sequence import fill_sequence
from logweir.store.engine.synchro import DECISIONS
from logweir.store.schema.definition import SYSTEM_ID_MAX
from logweir.store.schema.refused import refused
from logweir.store.schema.schema import Schema
from logweir.store.state.stackkernel import LayeredTxn
from logweir.wal.columns import RowColumns
from logweir.wal.vclock import VClock
from logweir.wal.xrow import FLAG_COMMIT, RowType, type_name

if TYPE_CHECKING or COMPILED:
    from logweir.store.commit.rowkernel import apply_rows as apply_columns
    from logweir.store.state.layerkernel import Space

APPLIED: Final = frozenset(
    (RowType.INSERT, RowType.REPLACE, RowType.UPDATE, RowType.DELETE, RowType.UPSERT)
)
"""Types of rows that change tuples."""


class RefusedRow(NamedTuple):
    """A row that cannot be applied. `mark`: where its transaction began, in the layers' undo list;
    what was done since is still there."""

    row: int
    mark: int
    error: RequestError


def apply_rows(
    executor: Executor,
    engine: Engine,
    columns: RowColumns,
    first: int,
    last: int,
    *,
    refer: Callable[[int], object],
    find: Callable[[int], Space | None] | None = None,
) -> RefusedRow | None:
    """Apply rows first … last - 1 in the layers of `engine`, up to one that is refused.

    `refer`: applies one row that the compiled statements do not know, by `apply_row`; `find`: as
    `compiled_space`, for some spaces at most. With rows of system spaces the definitions change.
    """
    txn = engine.txn
    assert isinstance(txn, LayeredTxn)
    if not COMPILED:
        return _one_by_one(txn, columns, first, last, refer)
    data, (table, capacity) = columns.data, columns.table
    refused = apply_columns(
        executor,
        *(data, table, capacity, first, last, txn.undo),
        find or (lambda space_id: compiled_space(engine, space_id)),
        refer,
    )
    if refused is None:
        return None
    row, mark, error, code, one, other = refused
    if error is None:
        space = engine.schema.space(columns.space_id[row])
        error = refusal(space, code, one, other, columns.ops_bytes(row) or b"")
    return RefusedRow(row, mark, error)


def check_new(columns: RowColumns, first: int, last: int, known: dict[int, int]) -> None:
    """Raise `RequestError` if a row of a transaction whose end is new is here already, or
    comes out of order: taken again its lsn would stand in the log twice. `known`: the last lsns."""
    lsns = known.copy()
    rows = slice(first, last)
    for replica_id, lsn in zip(columns.replica_id[rows], columns.lsn[rows], strict=True):
        if lsn <= lsns.get(replica_id, 0):
            raise RequestError(
                ErrorCode.INVALID_MSGPACK,
                f"a transaction has lsn {lsn} of replica {replica_id}, which is here already, "
                "and goes on with rows that are not",
            )
        lsns[replica_id] = lsn


def _one_by_one(
    txn: LayeredTxn, columns: RowColumns, first: int, last: int, refer: Callable[[int], object]
) -> RefusedRow | None:
    start = txn.undo.mark()
    for row in range(first, last):
        try:
            if columns.type[row] != RowType.NOP:
                refer(row)
        except RequestError as error:
            return RefusedRow(row, start, error)
        if columns.flags[row] & FLAG_COMMIT:
            start = txn.undo.mark()
    return None


def compiled_space(engine: Engine, space_id: int) -> Space | None:
    """`compiled`, by the id of a space; None if there is none."""
    space = engine.schema.get(space_id)
    return None if space is None else compiled(engine, space)


def apply_row(engine: Engine, columns: RowColumns, row: int) -> None:
    """Apply one row by the reference engine; `engine.schema` follows. Raises `RequestError`; what
    was done of it is then to be rolled back."""
    kind = columns.type[row]
    if kind not in APPLIED:
        raise refused(ErrorCode.UNKNOWN_REQUEST_TYPE, type=type_name(kind))
    space = engine.schema.space(columns.space_id[row])
    if kind in (RowType.UPDATE, RowType.DELETE) and columns.index_id(row):
        return  # it found nothing
    request = Request(
        RowType(kind),
        space.id,
        key=columns.key_bytes(row),
        tuple=columns.tuple_bytes(row),
        ops=columns.ops_bytes(row),
        index_base=columns.index_base[row],
    )
    if space.sequence is not None and kind in (RowType.INSERT, RowType.REPLACE):
        fill_sequence(engine, space, request)  # the number is there: the sequence learns it
    old, new, _ = engine.execute(space, request)
    if space.is_system and ddl.defines(space.id):
        is_insert = kind == RowType.INSERT
        ddl.apply(engine, space.id, old, new, is_insert=is_insert, trusted=True)


def is_plain(columns: RowColumns, last: int, schema: Schema, vclock: VClock) -> bool:
    """Whether nothing has to be asked of each transaction up to a row, where none waits: all are
    new, none decides or waits, and definitions stay."""
    spaces = set(columns.space_id[:last])
    return not (
        last != len(columns)
        or min(spaces) <= SYSTEM_ID_MAX
        or any(map(schema.is_synchronous, spaces))
        or not DECISIONS.isdisjoint(columns.type)
        or 0 in columns.replica_id
        or max(columns.replica_id) >= VCLOCK_COMPONENTS
        or columns.raise_lsns(array("Q", vclock.lsns())) is not None
    )


def anonymous() -> RequestError:
    """Why rows of ours cannot be signed."""
    return RequestError(
        ErrorCode.READONLY,
        "Can't modify data because this instance is in read-only mode.",
        hint="it is an anonymous replica: only local and temporary spaces can be changed",
    )
