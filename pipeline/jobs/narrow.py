"""Keyed rows of one task, without those that a later one of the same task makes void.

Of each key only what stands behind its last insert, replace or delete counts (`fold`). Where that
row is in the same stretch of a task's rows, those in front of it need not be shuffled and sorted: a
log that changes the same keys again and again loses most of its rows here. What is left of
`limits.PIPELINE_NARROW_BYTES` of rows stays, where that is less than half, to be looked at with the
rows behind it; so memory does not depend on the size of a split, and what a task with few keys
hands on not on how often they change. What is left out is never looked at by the fold either, so
the result, and what is refused, stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from logweir.limits import PIPELINE_BATCH_ROWS, PIPELINE_NARROW_BYTES
from logweir.pipeline.jobs.keyed import KEYED_SCHEMA, Keyer
from logweir.pipeline.options import ScanOptions
from logweir.pipeline.plan import Split
from logweir.pipeline.reading import scan
from logweir.wal.xrow import RowType

__all__ = ["keyed_rows", "narrowed"]

_FULL = (RowType.INSERT, RowType.REPLACE, RowType.DELETE)


def keyed_rows(
    split: Split, options: ScanOptions, keyer: Keyer, stretch_bytes: int = PIPELINE_NARROW_BYTES
) -> Iterator[pa.RecordBatch]:
    """The keyed rows of one split that may count. Raises what scanning and keying raise."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in scan(split, options):
        keyed = keyer.keyed(batch)
        if keyed is None:
            continue
        if keyed.column("file")[0].as_py() == 0:
            yield keyer.parted(keyed)  # of a snapshot, where a key stands once
            continue
        pending.append(keyed)
        size += keyed.nbytes
        if size >= stretch_bytes:
            pending = list(narrowed(pending))
            size = sum(batch.nbytes for batch in pending)
            if size > stretch_bytes // 2:
                yield from map(keyer.parted, pending)
                pending, size = [], 0
    yield from map(keyer.parted, narrowed(pending))


def narrowed(pending: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """These rows, in any order, without those that others of them make void."""
    if not pending:
        return
    table = pa.Table.from_batches(pending, schema=KEYED_SCHEMA).combine_chunks()
    kept = _kept(table)
    if len(kept) < table.num_rows:
        table = table.take(pa.array(kept))
    yield from table.combine_chunks().to_batches(max_chunksize=PIPELINE_BATCH_ROWS)


def _kept(table: pa.Table) -> Any:
    """The numbers of the rows that stay."""
    what = table.column("what").to_numpy()
    keys = table.column("key").combine_chunks().dictionary_encode()
    # A key of another era is another key, whatever its bytes.
    eras, era = np.unique(what >> 10, return_inverse=True)
    key = era * len(keys.dictionary) + keys.indices.to_numpy()
    order = np.lexsort((table.column("position").to_numpy(), table.column("file").to_numpy()))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    full = np.flatnonzero(np.isin(what & 31, _FULL))
    last = np.full(len(eras) * len(keys.dictionary), -1, np.int64)
    np.maximum.at(last, key[full], place[full])
    return np.flatnonzero(place >= last[key])
