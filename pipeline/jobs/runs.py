"""Keyed rows on their way from the tasks that read them to those that fold them.

What a task has read is put in order a *stretch* at a time, of `limits.PIPELINE_NARROW_BYTES`. Of
each key only what stands behind its last insert, replace or delete counts (`fold`), so rows in
front of it that are in the same stretch are left out there: a log that changes the same keys again
and again loses most of its rows. What is left of a stretch stays, where that is less than half, to
be looked at with the rows behind it. What is left out is never looked at by the fold either, so
the result, and what is refused, stay the same.

Spark moves and sorts *runs*, not rows: one row of Spark's is up to `RUN_BYTES` of neighbours of one
stretch, as the bytes of an Arrow batch, with the place of the first of them.

==========  ==========  ============================================================================
column      type        holds
==========  ==========  ============================================================================
part        INT         number of the part that the keys belong to
level       INT         round in which the rows are folded (see `history`)
space_id,   as of       of the first row: runs are sorted by these four columns
key, file,  keyed rows
position
rows        BINARY      the keyed rows, in their order
==========  ==========  ============================================================================

Who folds a part gets its runs in the order of their first rows, so what lies in front of the first
row of a run is complete when that run comes. In memory are the runs that overlap there: of each
stretch one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logweir.limits import PIPELINE_BATCH_ROWS, PIPELINE_NARROW_BYTES
from logweir.pipeline.jobs.keyed import KEYED_SCHEMA
from logweir.wal.xrow import RowType

RUN_BYTES: Final = 128 * 1024
"""Of rows in one run at most, unless one has more."""

LEAST_RUN_BYTES: Final = 4 * 1024
"""And at least, unless few go to a part."""

RUN_DDL: Final = (
    "part INT, level INT, space_id INT, key BINARY, file INT, position BIGINT, rows BINARY"
)
RUN_ORDER: Final = ("space_id", "key", "file", "position")
"""The columns that rows, and runs by their first ones, are sorted by."""

Numbers = Any  # a numpy array

FULL: Final = (RowType.INSERT, RowType.REPLACE, RowType.DELETE)
"""Kinds of rows that need nothing before them."""

RUN_SCHEMA: Final = pa.schema(
    [
        pa.field("part", pa.int32()),
        *(KEYED_SCHEMA.field(name) for name in ("level", *RUN_ORDER)),
        pa.field("rows", pa.binary()),
    ]
)
_FIXED_BYTES: Final = sum(one.bit_width // 8 for one in KEYED_SCHEMA.types if one != pa.binary())
_TOGETHER: Final = 64  # runs that are handed to Spark at a time


def stretches(
    batches: Iterable[pa.RecordBatch], stretch_bytes: int = PIPELINE_NARROW_BYTES
) -> Iterator[pa.RecordBatch]:
    """Keyed rows, a stretch at a time, each in order and without the rows that others make void."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        pending.append(batch)
        size += batch.nbytes
        if size >= stretch_bytes:
            pending = [in_order(pending, narrow=True)]
            size = pending[0].nbytes
            if size > stretch_bytes // 2:
                yield pending.pop()
                size = 0
    if pending:
        yield in_order(pending, narrow=True)


def runs(
    ordered: Iterable[pa.RecordBatch],
    parted: Callable[[pa.RecordBatch], Numbers],
    run_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """Stretches as runs. `parted`: the part of each row of one."""
    for batch in ordered:
        parts = parted(batch)
        cuts = _cuts(batch, parts, run_bytes)
        for first in range(0, len(cuts) - 1, _TOGETHER):
            some = cuts[first : first + _TOGETHER + 1]
            heads = pa.array(some[:-1])
            rows = [
                batch.slice(one, other - one).serialize().to_pybytes()
                for one, other in pairwise(some)
            ]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(parts[some[:-1]]),
                    *(batch.column(name).take(heads) for name in ("level", *RUN_ORDER)),
                    pa.array(rows, pa.binary()),
                ],
                schema=RUN_SCHEMA,
            )


def _cuts(batch: pa.RecordBatch, parts: Numbers, run_bytes: int) -> list[int]:
    """Where the runs of a stretch begin, and its end."""
    count = batch.num_rows
    level = batch.column("level").to_numpy()
    apart = np.flatnonzero((np.diff(parts) != 0) | (np.diff(level) != 0)) + 1
    ends = np.arange(1, count + 1) * _FIXED_BYTES
    for column in batch.columns:
        if column.type == pa.binary():
            ends += _ends(column)
    cuts = [0]
    for border in (*apart.tolist(), count):
        while cuts[-1] < border:
            first = cuts[-1]
            before = int(ends[first - 1]) if first else 0
            fits = int(np.searchsorted(ends, before + run_bytes, side="right"))
            cuts.append(min(max(fits, first + 1), border))
    return cuts


def _ends(column: pa.Array) -> Numbers:
    """How many bytes the values have, from the first to each."""
    return np.cumsum(pc.fill_null(pc.binary_length(column), 0).to_numpy(), dtype=np.int64)


def all_in_order(
    batches: Iterable[pa.RecordBatch], most_bytes: int = PIPELINE_NARROW_BYTES
) -> Iterator[pa.RecordBatch]:
    """The keyed rows of the runs of one part and level, in order. `batches`: of runs in the order
    of `RUN_ORDER`; `most_bytes`: of runs that are gathered before those in front are handed on,
    unless more than half of them overlap."""
    pending: list[pa.RecordBatch] = []
    size, limit = 0, most_bytes
    for batch in batches:
        heads = [batch.column(name) for name in RUN_ORDER]
        for number, rows in enumerate(batch.column("rows")):
            if size >= limit:
                whole = in_order(pending)
                at = _before(whole, tuple(column[number].as_py() for column in heads))
                yield from sliced(whole.slice(0, at))
                pending = [whole.slice(at)]
                size = pending[0].nbytes
                limit = max(most_bytes, 2 * size)
            run = pa.ipc.read_record_batch(rows.as_buffer(), KEYED_SCHEMA)
            pending.append(run)
            size += run.nbytes
    if pending:
        yield from sliced(in_order(pending))


def _before(batch: pa.RecordBatch, place: tuple[Any, ...]) -> int:
    """How many rows of an ordered batch are in front of a place."""
    columns = [batch.column(name) for name in RUN_ORDER]
    low, high = 0, batch.num_rows
    while low < high:
        middle = (low + high) // 2
        if tuple(column[middle].as_py() for column in columns) < place:
            low = middle + 1
        else:
            high = middle
    return low


def sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch as some that are not too large for who takes them."""
    for first in range(0, batch.num_rows, PIPELINE_BATCH_ROWS):
        yield batch.slice(first, PIPELINE_BATCH_ROWS)


def in_order(batches: Sequence[pa.RecordBatch], *, narrow: bool = False) -> pa.RecordBatch:
    """These keyed rows as one batch in the order of level and `RUN_ORDER`. `narrow`: without those
    that a later one of the same key makes void."""
    batch = pa.concat_batches(batches)
    keys = batch.column("key")
    by_place = np.lexsort((batch.column("position").to_numpy(), batch.column("file").to_numpy()))
    # Both sorts keep the order of what is alike.
    order = by_place[pc.sort_indices(keys.take(pa.array(by_place))).to_numpy()]
    group = batch.column("level").to_numpy().astype(np.int64) << 32
    group |= batch.column("space_id").to_numpy()
    if (group != group[:1]).any():
        order = order[np.argsort(group[order], kind="stable")]
    if narrow:
        order = order[_kept(keys.take(pa.array(order)), group[order], batch, order)]
    return batch.take(pa.array(order))


def _kept(keys: pa.Array, group: Numbers, batch: pa.RecordBatch, order: Numbers) -> Numbers:
    """Which of the ordered rows stay."""
    kinds = batch.column("what").to_numpy()[order] & 31
    begins = begin_keys(keys, group)
    fulls = np.where(np.isin(kinds, FULL), np.arange(len(order)), -1)
    last = np.maximum.reduceat(fulls, begins) if len(order) else fulls
    return np.arange(len(order)) >= np.repeat(last, np.diff(begins, append=len(order)))


def begin_keys(keys: pa.Array, group: Numbers) -> Numbers:
    """Where the rows of each key begin among ordered ones. `group`: a number for each row; keys
    with other numbers are others."""
    differs = np.ones(len(keys), np.bool_)
    if len(keys) > 1:
        same = pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1))
        differs[1:] = ~same.to_numpy(zero_copy_only=False) | (group[1:] != group[:-1])
    return np.flatnonzero(differs)
