"""Writing a snapshot in parts: blocks by many tasks, one file made of them. Bytes and files.

A part is a run of blocks without header and end marker; blocks do not know where in a file they
stand, so header + parts + end marker is a file. A part's rows have lsns of their own, from its
number x 2^40 on: in a snapshot an lsn is a row number that nothing reads (Tarantool 2.6.0, read in
its source), and it must only rise.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logweir.limits import BLOCK_TARGET_BYTES, COMPRESS_THRESHOLD_BYTES
from logweir.pipeline.cells import packed
from logweir.pipeline.jobs.history import History
from logweir.pipeline.jobs.keyed import bounds_array
from logweir.wal.block import encode_block
from logweir.wal.columns import encode_run
from logweir.wal.snapshot import insert_prefix
from logweir.wal.xrow import GROUP_LOCAL, RowType

_PART_LSNS: Final = 2**40


def first_lsn(part: int) -> int:
    """The lsn of the first row of a part; system rows are part 0, the folded ones 1, 2 …"""
    return part * _PART_LSNS


@dataclass(slots=True)
class PartBlocks:
    """Makes the blocks of one part. `rows`: how many are in so far."""

    lsn: int
    timestamp: float
    level: int = 1
    rows: int = 0

    def of(self, space_id: int, raw: bytes, bounds: array[int], *, local: bool) -> Iterator[bytes]:
        """The blocks of these tuples of one space, in the order of its primary key."""
        ends = np.frombuffer(bounds, np.uint64)
        count = len(ends) - 1
        first = 0
        while first < count:
            # At least one tuple per block, and about as many as fill it.
            last = int(np.searchsorted(ends, ends[first] + BLOCK_TARGET_BYTES))
            last = min(max(last, first + 1), count)
            start, stop = int(ends[first]), int(ends[last])
            rows = encode_run(
                type=RowType.INSERT,
                replica_id=0,
                first_lsn=self.lsn + self.rows,
                timestamp=self.timestamp,
                source=raw[start:stop],
                bounds=bounds_array(ends[first : last + 1] - ends[first]),
                prefix=insert_prefix(space_id),
                group_id=GROUP_LOCAL if local else 0,
            )
            self.rows += last - first
            header, payload = encode_block(
                rows, threshold_bytes=COMPRESS_THRESHOLD_BYTES, level=self.level
            )
            yield b"".join((header, payload))
            first = last


def encode_part(
    part: int, folded: Iterable[pa.RecordBatch], history: History, timestamp: float
) -> Iterator[tuple[bytes, int]]:
    """The blocks of a part, each with the number of rows so far. `folded`: as `Folder.fold`
    gives them; they are gathered up to the size of a block."""
    blocks = PartBlocks(first_lsn(part + 1), timestamp)
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in folded:
        pending.append(batch)
        size += batch.nbytes
        if size >= BLOCK_TARGET_BYTES:
            yield from _encoded(blocks, pending, history)
            pending, size = [], 0
    yield from _encoded(blocks, pending, history)


def _encoded(
    blocks: PartBlocks, pending: list[pa.RecordBatch], history: History
) -> Iterator[tuple[bytes, int]]:
    if not pending:
        return
    whole = pa.Table.from_batches(pending).combine_chunks()
    spaces = whole.column("space_id").combine_chunks().to_numpy()
    tuples: Any = whole.column("tuple").combine_chunks()
    borders = [0, *(np.flatnonzero(np.diff(spaces)) + 1).tolist(), len(spaces)]
    for first, last in pairwise(borders):
        space_id = int(spaces[first])
        space = history.schema.space(space_id)
        raw, bounds = packed(tuples.slice(first, last - first))
        for block in blocks.of(space_id, raw, bounds_array(bounds), local=space.is_local):
            yield block, blocks.rows


def system_blocks(history: History, timestamp: float) -> tuple[bytes, int]:
    """The blocks of all system spaces that a history holds, and how many rows they have."""
    blocks = PartBlocks(first_lsn(0), timestamp)
    out = bytearray()
    for space in history.system_spaces:
        tuples = history.tuples(space.id)
        bounds = array("Q", accumulate(map(len, tuples), initial=0))
        for block in blocks.of(space.id, b"".join(tuples), bounds, local=space.is_local):
            out += block
    return bytes(out), blocks.rows
