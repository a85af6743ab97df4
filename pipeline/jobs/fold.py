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

from logweir.errors import CorruptBlock, DecodeError, ErrorCode, RequestError
from logweir.pipeline.jobs.history import POSITION_ROWS, Era, History
from logweir.pipeline.jobs.keyed import LEARN
from logweir.pipeline.jobs.runs import FULL, begin_keys
from logweir.store.engine.update import apply_update, apply_upsert, check_ops
from logweir.store.schema.bulk import KeyPlan
from logweir.store.schema.spaceplan import plan_of
from logweir.wal.mp import pack, unpack
from logweir.wal.xrow import RowType

try:
    from logweir.store.engine.updatekernel import Updater
except ImportError:
    Updater = None  # type: ignore[assignment, misc]

STATE_SCHEMA: Final = pa.schema(
    [
        pa.field("space_id", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("era", pa.int32()),
        pa.field("tuple", pa.binary()),
    ]
)
STATE_DDL: Final = "space_id INT, key BINARY, era INT, tuple BINARY"
_STORED: Final = frozenset(map(int, (RowType.INSERT, RowType.REPLACE)))
_IS_STORED: Final = np.isin(np.arange(32), [*_STORED])
_IS_FULL: Final = np.isin(np.arange(32), FULL)

Numbers = Any  # a numpy array


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
    _changers: dict[int, _Changer] = field(default_factory=dict)  # by eras' numbers

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
        starts = begin_keys(keys, spaces)
        ends = np.append(starts[1:], batch.num_rows)
        kinds = batch.column("what").to_numpy() & 31
        # Of each key what stands behind its last row that needs nothing before it, and that row.
        fulls = np.where(_IS_FULL[kinds], np.arange(batch.num_rows), -1)
        starts = np.maximum(starts, np.maximum.reduceat(fulls, starts))
        first = 0
        one = self._open
        if one is not None:
            if one.space_id == spaces[0] and one.key == keys[0].as_py():
                self._hold(batch, starts[:1], ends[:1], one.data)
                first = 1
                if len(starts) == 1:
                    return  # the key may still go on
            last = self._flush()
            if last is not None:
                yield last
        if first < len(starts):
            result = self._closed(batch, kinds, starts[first:-1], ends[first:-1])
            if result.num_rows:
                yield result
            self._hold(batch, starts[-1:], ends[-1:], None)

    def _closed(
        self, batch: pa.RecordBatch, kinds: Numbers, starts: Numbers, ends: Numbers
    ) -> pa.RecordBatch:
        """What is left of keys that go on in no other batch."""
        last = ends - 1
        whole = _IS_STORED[kinds[last]]
        folded = np.flatnonzero(~whole & (kinds[last] != RowType.DELETE))
        places, tuples = last[whole], batch.column("data")
        if not len(folded):
            return self._left(batch, places, tuples.take(pa.array(places)))
        found = self._folded(batch, starts[folded], ends[folded])
        there = np.array([data is not None for data in found])
        more = pa.array([data for data in found if data is not None], pa.binary())
        places = np.concatenate([places, last[folded[there]]])
        order = np.argsort(places)
        both = pa.concat_arrays([tuples.take(pa.array(last[whole])), more])
        return self._left(batch, places[order], both.take(pa.array(order)))

    def _left(self, batch: pa.RecordBatch, last: Numbers, tuples: pa.Array) -> pa.RecordBatch:
        """These tuples, of the keys of these rows."""
        take = pa.array(last)
        eras = (batch.column("what").to_numpy()[last] >> 10).astype(np.int32)
        heads = [batch.column("space_id").take(take), batch.column("key").take(take)]
        return pa.RecordBatch.from_arrays([*heads, pa.array(eras), tuples], schema=STATE_SCHEMA)

    def _hold(
        self, batch: pa.RecordBatch, start: Numbers, end: Numbers, before: bytes | None
    ) -> None:
        """Fold the rows of a key that may go on in the next batch. `before`: what it had."""
        (data,) = self._folded(batch, start, end, before)
        row = int(end[0]) - 1
        era = batch.column("what")[row].as_py() >> 10
        space_id = batch.column("space_id")[row].as_py()
        self._open = _Open(space_id, batch.column("key")[row].as_py(), era, data)

    def _folded(
        self, batch: pa.RecordBatch, starts: Numbers, ends: Numbers, before: bytes | None = None
    ) -> list[bytes | None]:
        """What the rows from each start to its end, of one key, leave; on top of `before` those of
        the first key."""
        counts = ends - starts
        rows = np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)
        some = batch.take(pa.array(rows))
        names = ("what", "key", "data", "ops")
        told, keys, tuples, ops = (some.column(name).to_pylist() for name in names)
        found: list[bytes | None] = []
        first = 0
        for count in counts.tolist():
            data, before = before, None
            for row in range(first, first + count):
                kind = told[row] & 31
                if kind in _STORED:
                    data = tuples[row]
                elif kind == RowType.DELETE:
                    data = None
                elif kind == LEARN:
                    data = _learn(data, tuples[row])
                elif data is not None or kind == RowType.UPSERT:
                    try:
                        data = self._changed(told[row], keys[row], data, tuples[row], ops[row])
                    except (RequestError, DecodeError) as error:
                        raise self._cannot(some, row, error) from error
            found.append(data)
            first += count
        return found

    def _changed(
        self, what: int, key: bytes, old: bytes | None, given: bytes | None, ops: bytes | None
    ) -> bytes | None:
        """A tuple after an update that found it, or an upsert. Raises `RequestError`."""
        changer = self._changers.get(what >> 10)
        if changer is None:
            changer = self._changers[what >> 10] = _Changer(self.history.eras[what >> 10])
        ops, base = ops or b"\xc1", what >> 5 & 31
        if old is None:
            changer.check(ops, base)
            return given
        return changer.changed(old, ops, base, key, is_upsert=what & 31 == RowType.UPSERT)

    def _cannot(
        self, rows: pa.RecordBatch, row: int, error: RequestError | DecodeError
    ) -> CorruptBlock:
        era = self.history.eras[rows.column("what")[row].as_py() >> 10]
        assert era.space is not None
        position = rows.column("position")[row].as_py()
        return CorruptBlock(
            f"row {position % POSITION_ROWS} of the block, of space {era.space.name!r}, cannot be "
            f"applied: {error.message}.",
            path=self.files[rows.column("file")[row].as_py()],
            offset=position // POSITION_ROWS,
            hint=error.hint
            or "the log and the state before it do not belong together; `logweir verify` tells "
            "more",
        )


class _Changer:
    """Applies updates and upserts of one era."""

    def __init__(self, era: Era) -> None:
        space = era.space
        assert space is not None
        assert space.primary is not None
        self._space = space
        self._keys = KeyPlan(space, space.primary, check=True)
        self._plan = None if Updater is None else plan_of(space)
        self._updater = None if self._plan is None else Updater()

    def check(self, ops: bytes, base: int) -> None:
        """Check operations that find nothing, for form. Raises `RequestError`."""
        if self._updater is not None:
            assert self._plan is not None
            if self._updater.knows(self._plan, ops, base):
                return
        check_ops(ops, index_base=base, space=self._space)

    def changed(self, old: bytes, ops: bytes, base: int, key: bytes, *, is_upsert: bool) -> bytes:
        """The tuple that becomes of one. Raises `RequestError`."""
        if self._updater is not None:
            assert self._plan is not None
            quick = self._updater.changed(self._plan, old, ops, base, key, is_upsert)
            if quick is not None:
                return quick
        apply = apply_upsert if is_upsert else apply_update
        new = apply(old, ops, index_base=base, space=self._space)
        if self._keys.key(new) == [key]:
            return new
        if is_upsert:
            return old
        raise RequestError(
            ErrorCode.CANT_UPDATE_PRIMARY_KEY,
            "Attempt to modify a tuple field which is part of the primary index in space "
            f"'{self._space.name}'",
        )


def _learn(data: bytes | None, told: bytes) -> bytes:
    sequence_id, number, step = unpack(told)
    last = None if data is None else unpack(data)[1]
    if last is not None and not (number > last if step > 0 else number < last):
        assert data is not None
        return data
    return pack([sequence_id, number])
