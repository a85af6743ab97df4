"""Folding keyed rows to the tuples that are left. Arrow batches in and out; no Spark.

The input comes in the order of (space_id, key, file, position); a key's rows may go on in the next
batch. Of each key only what stands behind its last insert, replace or delete counts. Where that
row is the key's last, its tuple is the result as it is, and the work is done on whole columns; only
keys that end in updates or upserts are folded one by one, as opening a store applies them:

========  ====================================  ================================================
row       there is a tuple                      there is none
========  ====================================  ================================================
update    changed; another primary key: error   nothing
upsert    changed, failing operations left out  its own tuple
          and ignored if the key would change
learn     [id, number] where that is further    [id, number]
========  ====================================  ================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logweir.errors import CorruptBlock, DecodeError, ErrorCode, RequestError
from logweir.pipeline.jobs.history import POSITION_ROWS, Era, History
from logweir.pipeline.jobs.keyed import LEARN
from logweir.store.engine.update import apply_update, apply_upsert, check_ops
from logweir.store.schema.bulk import KeyPlan
from logweir.wal.mp import pack, unpack
from logweir.wal.xrow import RowType

__all__ = ["STATE_DDL", "STATE_SCHEMA", "Folder"]

STATE_SCHEMA: Final = pa.schema(
    [
        pa.field("space_id", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("era", pa.int32()),
        pa.field("tuple", pa.binary()),
    ]
)
STATE_DDL: Final = "space_id INT, key BINARY, era INT, tuple BINARY"
_FULL: Final = frozenset(map(int, (RowType.INSERT, RowType.REPLACE, RowType.DELETE)))
_STORED: Final = frozenset(map(int, (RowType.INSERT, RowType.REPLACE)))


@dataclass(slots=True)
class _Open:
    """The key whose rows may go on in the next batch, and what it has so far."""

    space_id: int
    key: bytes
    era: int
    data: bytes | None


@dataclass(slots=True)
class Folder:
    """Folds the batches of one task. `files`: names by number, for errors."""

    history: History
    files: tuple[str, ...]
    _open: _Open | None = None
    _plans: dict[int, KeyPlan] = field(default_factory=dict)

    def fold(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The tuples that are left, in the order of (space_id, key).

        Raises `CorruptBlock` for a row that cannot be applied.
        """
        for batch in batches:
            if batch.num_rows:
                yield from self._batch(batch)
        last = self._flush()
        if last is not None:
            yield last

    def _flush(self) -> pa.RecordBatch | None:
        one, self._open = self._open, None
        if one is None or one.data is None:
            return None
        return pa.RecordBatch.from_pylist(
            [{"space_id": one.space_id, "key": one.key, "era": one.era, "tuple": one.data}],
            schema=STATE_SCHEMA,
        )

    def _batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        spaces = batch.column("space_id").to_numpy()
        keys = batch.column("key")
        what = batch.column("what").to_numpy()
        count = batch.num_rows
        differs = np.ones(count, bool)
        if count > 1:
            same = pc.equal(keys.slice(1), keys.slice(0, count - 1)).to_numpy(zero_copy_only=False)
            differs[1:] = ~same | (spaces[1:] != spaces[:-1])
        starts = np.flatnonzero(differs)
        ends = np.append(starts[1:], count)
        first = 0
        one = self._open
        if one is not None:
            if one.space_id == spaces[0] and one.key == keys[0].as_py():
                self._open = self._run(batch, what, 0, int(ends[0]), one)
                first = 1
                if len(starts) == 1:
                    return  # the key may still go on
            last = self._flush()
            if last is not None:
                yield last
        if first < len(starts):
            yield from self._groups(batch, what, starts[first:], ends[first:])

    def _groups(
        self, batch: pa.RecordBatch, what: Any, starts: Any, ends: Any
    ) -> Iterator[pa.RecordBatch]:
        """All keys of a batch; the last one stays open."""
        starts, last = starts[:-1], int(starts[-1])
        closing = ends[:-1] - 1
        kinds = what[closing] & 31
        whole = (kinds == RowType.INSERT) | (kinds == RowType.REPLACE)
        folded = np.flatnonzero(~whole & (kinds != RowType.DELETE))
        places, tuples = closing[whole], batch.column("data")
        result = pa.RecordBatch.from_arrays(
            [
                batch.column("space_id").take(pa.array(places)),
                batch.column("key").take(pa.array(places)),
                pa.array((what[places] >> 10).astype(np.int32)),
                tuples.take(pa.array(places)),
            ],
            schema=STATE_SCHEMA,
        )
        if len(folded):
            result = self._merged(batch, what, result, np.flatnonzero(whole), starts, ends, folded)
        if result.num_rows:
            yield result
        self._open = self._run(batch, what, last, batch.num_rows, None)

    def _merged(
        self,
        batch: pa.RecordBatch,
        what: Any,
        result: pa.RecordBatch,
        whole: Any,
        starts: Any,
        ends: Any,
        folded: Any,
    ) -> pa.RecordBatch:
        """`result`, of the keys `whole`, with what the keys `folded` leave in between."""
        numbers: list[int] = []
        rows: list[dict[str, Any]] = []
        for number in folded.tolist():
            one = self._run(batch, what, int(starts[number]), int(ends[number]), None)
            if one.data is not None:
                numbers.append(number)
                rows.append(
                    {"space_id": one.space_id, "key": one.key, "era": one.era, "tuple": one.data}
                )
        more = pa.RecordBatch.from_pylist(rows, schema=STATE_SCHEMA)
        both = pa.Table.from_batches([result, more]).combine_chunks()
        order = np.argsort(np.concatenate([whole, np.array(numbers, np.int64)]), kind="stable")
        (merged,) = both.take(pa.array(order)).combine_chunks().to_batches() or [result]
        return merged

    def _run(
        self, batch: pa.RecordBatch, what: Any, start: int, end: int, before: _Open | None
    ) -> _Open:
        """The rows start … end - 1, of one key, on top of what it had before."""
        told = what[start:end].tolist()
        begin = end - 1
        while begin > start and told[begin - start] & 31 not in _FULL:
            begin -= 1
        data = None if before is None else before.data
        era = told[-1] >> 10
        tuples, operations = batch.column("data"), batch.column("ops")
        for row in range(begin, end):
            kind = told[row - start] & 31
            if kind in _STORED:
                data = tuples[row].as_py()
            elif kind == RowType.DELETE:
                data = None
            elif kind == LEARN:
                data = _learn(data, tuples[row].as_py())
            else:
                data = self._change(
                    batch,
                    row,
                    kind,
                    told[row - start],
                    data,
                    tuples[row].as_py(),
                    operations[row].as_py(),
                )
        return _Open(
            batch.column("space_id")[start].as_py(), batch.column("key")[start].as_py(), era, data
        )

    def _change(
        self,
        batch: pa.RecordBatch,
        row: int,
        kind: int,
        what: int,
        old: bytes | None,
        given: bytes | None,
        ops: bytes | None,
    ) -> bytes | None:
        """A tuple after an update or upsert."""
        era = self.history.eras[what >> 10]
        space = era.space
        assert space is not None
        base = what >> 5 & 31
        try:
            if kind == RowType.UPDATE:
                if old is None:
                    return None
                new = apply_update(old, ops or b"\xc1", index_base=base, space=space)
                if self._key(era, new) != batch.column("key")[row].as_py():
                    raise _other_key(space.name)
                return new
            if old is None:
                check_ops(ops or b"\xc1", index_base=base, space=space)
                return given
            new = apply_upsert(old, ops or b"\xc1", index_base=base, space=space)
            return new if self._key(era, new) == batch.column("key")[row].as_py() else old
        except (RequestError, DecodeError) as error:
            position = batch.column("position")[row].as_py()
            raise CorruptBlock(
                f"row {position % POSITION_ROWS} of the block, of space {space.name!r}, cannot be "
                f"applied: {error.message}.",
                path=self.files[batch.column("file")[row].as_py()],
                offset=position // POSITION_ROWS,
                hint=error.hint
                or "the log and the state before it do not belong together; `logweir verify` tells "
                "more",
            ) from error

    def _key(self, era: Era, data: bytes) -> bytes:
        plan = self._plans.get(era.number)
        if plan is None:
            assert era.space is not None
            assert era.space.primary is not None
            plan = self._plans[era.number] = KeyPlan(era.space, era.space.primary, check=True)
        (key,) = plan.key(data)
        return key


def _other_key(name: str) -> RequestError:
    return RequestError(
        ErrorCode.CANT_UPDATE_PRIMARY_KEY,
        f"Attempt to modify a tuple field which is part of the primary index in space '{name}'",
    )


def _learn(data: bytes | None, told: bytes) -> bytes:
    sequence_id, number, step = unpack(told)
    last = None if data is None else unpack(data)[1]
    if last is not None and not (number > last if step > 0 else number < last):
        assert data is not None
        return data
    return pack([sequence_id, number])
