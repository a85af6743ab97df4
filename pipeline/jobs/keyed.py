"""Rows of a scan → rows with the key that they fold by. Arrow batches in and out; no Spark.

A *plan* says what is wanted and how it is read: the rows of the system spaces (from which each
worker makes the same `History`), which rows are applied already, where to stop, and at which keys
the output is cut into parts. What comes out, a row per wanted row:

=============  ========  =========================================================================
column         type      holds
=============  ========  =========================================================================
level          INT       round in which it is folded (see `history`)
space_id       INT
key            BINARY    the memcomparable primary key (`store.schema.keys`)
file           INT       number of the file
position       BIGINT    place in it (`history.position`)
what           INT       kind of row + 32 x index base + 1024 x number of its era
data           BINARY    the tuple of insert, replace, upsert; null for update and delete
ops            BINARY    operations of update and upsert
=============  ========  =========================================================================

Rows are folded in the order of (space_id, key, file, position). Rows of eras that are dead, of
temporary spaces, and those that found nothing (a secondary index in the body) are left out. A row
of kind `LEARN` says that a sequence has given out a number: `data` is [id, number, step].
"""

from __future__ import annotations

import contextlib
import json
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logweir.errors import CorruptBlock, DecodeError, ErrorCode, RequestError
from logweir.limits import VCLOCK_COMPONENTS
from logweir.pipeline.cells import packed
from logweir.pipeline.jobs.history import (
    POSITION_ROWS,
    Era,
    History,
    Place,
    SystemRow,
    decode_rows,
    encode_rows,
    is_definition,
)
from logweir.store.engine.sequence import SEQUENCE_MOST
from logweir.store.schema.bulk import KeyPlan
from logweir.store.schema.definition import IndexDef, SpaceDef, SystemSpace
from logweir.wal.mp import pack, unpack
from logweir.wal.vclock import VClock
from logweir.wal.xrow import PROMOTIONS, RAFT, RowType

LEARN: Final = 31
"""Kind of a row that a sequence learns from; no row of a log has it."""

SCAN_COLUMNS: Final = (
    *("file_seq", "block_offset", "row_in_block", "type", "replica_id", "lsn", "space_id"),
    *("index_base", "index_id", "key", "tuple", "ops"),
)
"""What `Keyer` wants of a scan."""

KEYED_SCHEMA: Final = pa.schema(
    [
        pa.field("level", pa.int32()),
        pa.field("space_id", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("file", pa.int32()),
        pa.field("position", pa.int64()),
        pa.field("what", pa.int32()),
        pa.field("data", pa.binary()),
        pa.field("ops", pa.binary()),
    ]
)
_TUPLES: Final = (RowType.INSERT, RowType.REPLACE, RowType.UPSERT)
_BY_KEY: Final = (RowType.UPDATE, RowType.DELETE)
_CUT_BYTES: Final = 32
"""Keys are told apart by so many bytes when parts are chosen."""

Numbers = Any  # a numpy array


def _flags(kinds: Iterable[int]) -> Numbers:
    """For each number that the column `type` can hold, whether it is one of these."""
    found = np.zeros(2**15, bool)
    found[list(kinds)] = True
    return found


_IS_BY_KEY: Final = _flags(_BY_KEY)
_IS_CHANGE: Final = _flags((*_TUPLES, *_BY_KEY))
_IS_KNOWN: Final = _flags((*RowType, RAFT, *PROMOTIONS))


@dataclass(frozen=True, slots=True)
class Known:
    """From a place on, the rows that need not be applied: those that `vclock` holds."""

    start: Place
    vclock: VClock


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """What to fold. `files`: names by number, the snapshot first ("" for none); `known`: by
    ascending start; `end`: rows from this place on are not wanted; `cuts`: (space id, key) at which
    parts 1, 2 … begin; `only`: ids of the spaces that are wanted, all if there are none."""

    files: tuple[str, ...]
    definitions: tuple[SystemRow, ...]
    known: tuple[Known, ...]
    end: Place
    cuts: tuple[tuple[int, bytes], ...] = ()
    only: tuple[int, ...] = ()

    def to_text(self) -> str:
        """As text, for the way to a worker."""
        return json.dumps(
            {
                "files": self.files,
                "definitions": encode_rows(self.definitions),
                "known": [[*one.start, str(one.vclock)] for one in self.known],
                "end": self.end,
                "cuts": [[space_id, key.hex()] for space_id, key in self.cuts],
                "only": self.only,
            }
        )

    @classmethod
    def from_text(cls, text: str) -> FoldPlan:
        """The reverse of `to_text`."""
        found = json.loads(text)
        return cls(
            files=tuple(found["files"]),
            definitions=tuple(decode_rows(found["definitions"])),
            known=tuple(
                Known((file, at), VClock.parse(vclock)) for file, at, vclock in found["known"]
            ),
            end=(found["end"][0], found["end"][1]),
            cuts=tuple((space_id, bytes.fromhex(key)) for space_id, key in found["cuts"]),
            only=tuple(found["only"]),
        )

    def history(self) -> History:
        """The definitions over time, up to `end`."""
        rows = (row for row in self.definitions if row.place < self.end)
        return History.of(rows, dict(enumerate(self.files)))

    def wants(self, space_id: int) -> bool:
        """Whether the tuples of a space are wanted."""
        return not self.only or space_id in self.only

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return len(self.cuts) + 1

    def part_of(self, space_id: int, key: bytes) -> int:
        """The part that a key belongs to."""
        cuts = [(one, cut[:_CUT_BYTES]) for one, cut in self.cuts]
        return bisect_right(cuts, (space_id, key[:_CUT_BYTES]))


@lru_cache(maxsize=4)
def keyer_of(plan_text: str) -> Keyer:
    """The keyer of a plan; kept, since one worker process runs many tasks of one job."""
    return Keyer(FoldPlan.from_text(plan_text))


def bounds_array(bounds: Numbers) -> array[int]:
    """Boundaries as the kernel takes them."""
    out = array("Q")
    out.frombytes(np.ascontiguousarray(bounds, dtype=np.uint64).tobytes())
    return out


def binary(data: bytes, bounds: array[int]) -> pa.Array:
    """A binary column of these values."""
    offsets = np.frombuffer(bounds, np.uint64).astype(np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def key_space(space: SpaceDef) -> SpaceDef:
    """A space whose tuples are the keys of requests on `space`: the same parts in a row."""
    assert space.primary is not None
    parts = tuple(
        replace(part, field_no=number, path=None) for number, part in enumerate(space.primary.parts)
    )
    index = IndexDef(space.id, 0, space.primary.name, space.primary.type, parts)
    return SpaceDef(space.id, space.owner, space.name).with_indexes((index,))


@dataclass(slots=True)
class _Reader:
    """Key plans of one era."""

    tuples: KeyPlan
    keys: KeyPlan

    @classmethod
    def of(cls, era: Era) -> _Reader:
        space = era.space
        assert space is not None
        assert space.primary is not None
        named = key_space(space)
        assert named.primary is not None
        return cls(
            KeyPlan(space, space.primary, check=False), KeyPlan(named, named.primary, check=False)
        )


@dataclass(slots=True)
class _Rows:
    """The rows of one space and one era, of one kind: with a tuple, or with a key."""

    era: Era
    where: Numbers  # numbers of the rows in the batch
    by_key: bool


@dataclass(slots=True)
class Keyer:
    """Makes keyed rows of scanned ones; see the module. One per plan and process."""

    plan: FoldPlan
    history: History = field(init=False)
    _readers: dict[int, _Reader] = field(init=False, default_factory=dict)
    _cuts: dict[int, tuple[int, Numbers]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.history = self.plan.history()

    def keyed(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The wanted rows of one batch of a scan, which is of one file; None where there is none.

        Raises `CorruptBlock` for a row that cannot be applied.
        """
        if batch.num_rows == 0:
            return None
        file = batch.column("file_seq")[0].as_py()
        at = (
            batch.column("block_offset").to_numpy(zero_copy_only=False) * POSITION_ROWS
            + batch.column("row_in_block").to_numpy(zero_copy_only=False)
        ).astype(np.int64)
        wanted = self._wanted(batch, file, at)
        pieces: list[list[pa.Array]] = []
        for rows in self._groups(batch, file, at, wanted):
            try:
                pieces.append(self._piece(batch, file, at, rows))
            except (RequestError, DecodeError) as error:
                if isinstance(error, RequestError) and error.code == ErrorCode.UNSUPPORTED:
                    raise  # a collation without its library, named in the error
                raise self._cannot(file, at, rows, error) from error
        if not pieces:
            return None
        whole = [pa.concat_arrays(column) for column in zip(*pieces, strict=True)]
        made = pa.RecordBatch.from_arrays(whole, schema=KEYED_SCHEMA)
        return made if made.num_rows else None  # rows that are gone may teach nothing

    def parted(self, batch: pa.RecordBatch) -> Numbers:
        """The part that the key of each row belongs to."""
        spaces = batch.column("space_id").to_numpy()
        found = np.zeros(len(spaces), np.int32)
        for space_id in np.unique(spaces).tolist():
            where = np.flatnonzero(spaces == space_id)
            keys = batch.column("key")
            if len(where) < len(spaces):
                keys = keys.take(pa.array(where))
            found[where] = self._parts(space_id, keys)
        return found

    def sample_keys(
        self, samples: Sequence[tuple[Place, int, int, bytes]]
    ) -> Iterator[tuple[int, bytes]]:
        """Space and key of sampled rows: of those that stand in eras whose rows are kept."""
        for place, space_id, kind, data in samples:
            era = self.history.at(space_id, place) if self.plan.wants(space_id) else None
            if era is None or not era.keeps_rows:
                continue
            reader = self._readers.setdefault(era.number, _Reader.of(era))
            plan = reader.keys if kind in _BY_KEY else reader.tuples
            with contextlib.suppress(RequestError):  # the task that reads the row says where it is
                yield space_id, plan.key(data)[0]

    def rekeyed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """What the fold of a segment left, as rows in front of all of the next segment.

        Raises `CorruptBlock` where a tuple has no key of the new kind.
        """
        numbers = batch.column("era").to_numpy()
        for number in np.unique(numbers).tolist():
            era = self._next_segment(self.history.eras[number])
            tuples = batch.column("tuple").take(pa.array(np.flatnonzero(numbers == number)))
            raw, bounds = packed(tuples)
            reader = self._readers.setdefault(era.number, _Reader.of(era))
            assert era.space is not None
            try:
                keys = reader.tuples.keys(raw, bounds_array(bounds))
            except RequestError as error:
                raise CorruptBlock(
                    f"a tuple of space {era.space.name!r} has no key of the new primary index: "
                    f"{error.message}.",
                    path=self.plan.files[era.start[0]],
                    offset=era.start[1] // POSITION_ROWS,
                    hint="the log and the snapshot before it do not belong together",
                ) from error
            key = binary(keys.data, keys.bounds)
            count = len(tuples)
            made = [
                pa.array(np.full(count, self.history.level(era), np.int32)),
                pa.array(np.full(count, era.space.id, np.int32)),
                key,
                pa.array(np.full(count, -1, np.int32)),
                pa.array(np.zeros(count, np.int64)),
                pa.array(np.full(count, RowType.INSERT + 1024 * era.number, np.int32)),
                tuples,
                pa.nulls(count, pa.binary()),
            ]
            yield pa.RecordBatch.from_arrays(made, schema=KEYED_SCHEMA)

    def _next_segment(self, era: Era) -> Era:
        assert era.space is not None
        eras = self.history.by_space[era.space.id]
        return next(one for one in eras if one.keeps_rows and one.segment > era.segment)

    def _wanted(self, batch: pa.RecordBatch, file: int, at: Numbers) -> Numbers:
        """Which rows are not applied yet and stand in front of the end."""
        kinds = batch.column("type").to_numpy(zero_copy_only=False)
        wanted = np.ones(len(at), bool)
        end_file, end_at = self.plan.end
        if file > end_file:
            return np.zeros(len(at), bool)
        if file == end_file:
            wanted &= at < end_at
        if file > 0:
            wanted &= self._is_new(batch, file, at)
        if not _IS_KNOWN[kinds[wanted]].all():
            unknown = np.flatnonzero(wanted & ~_IS_KNOWN[kinds])[0]
            raise self._unknown(file, int(at[unknown]), int(kinds[unknown]))
        wanted &= _IS_CHANGE[kinds]
        if file > 0:
            by_index = batch.column("index_id").to_numpy(zero_copy_only=False) > 0
            wanted &= ~(by_index & _IS_BY_KEY[kinds])
        return wanted

    def _is_new(self, batch: pa.RecordBatch, file: int, at: Numbers) -> Numbers:
        replicas = batch.column("replica_id").to_numpy(zero_copy_only=False)
        lsns = batch.column("lsn").to_numpy(zero_copy_only=False)
        starts = [one.start for one in self.plan.known]
        is_new = np.ones(len(at), bool)
        first = max(bisect_right(starts, (file, int(at[0]))) - 1, 0)
        last = bisect_right(starts, (file, int(at[-1])))
        for number in range(first, last):
            known = self.plan.known[number]
            lsn_of = np.zeros(VCLOCK_COMPONENTS, np.int64)
            for replica_id, lsn in known.vclock.items():
                lsn_of[replica_id] = lsn
            begin = known.start[1] if known.start[0] == file else -1
            inside = at >= begin
            is_new = np.where(inside, lsns > lsn_of[replicas], is_new)
        return is_new

    def _groups(
        self, batch: pa.RecordBatch, file: int, at: Numbers, wanted: Numbers
    ) -> Iterator[_Rows]:
        """The wanted rows by era and kind."""
        spaces = batch.column("space_id").to_numpy(zero_copy_only=False)
        kinds = batch.column("type").to_numpy(zero_copy_only=False)
        by_key = _IS_BY_KEY[kinds]
        for space_id in np.unique(spaces[wanted]).tolist():
            space_id = int(space_id)
            if is_definition(space_id) or not self.plan.wants(space_id):
                continue
            of_space = wanted & (spaces == space_id)
            for era, inside in self._eras(space_id, file, at, of_space):
                for is_key in (False, True) if era.keeps_rows else (False,):
                    where = np.flatnonzero(inside & (by_key if is_key else ~by_key))
                    if len(where):
                        yield _Rows(era, where, is_key)

    def _eras(
        self, space_id: int, file: int, at: Numbers, rows: Numbers
    ) -> Iterator[tuple[Era, Numbers]]:
        places = np.flatnonzero(rows)
        first, last = int(at[places[0]]), int(at[places[-1]])
        eras = self.history.by_space.get(space_id, [])
        begin = bisect_right(eras, (file, first), key=lambda era: era.start) - 1
        if begin < 0:
            raise self._no_space(file, first, space_id)
        number = begin
        while number < len(eras) and (number == begin or eras[number].start <= (file, last)):
            era = eras[number]
            inside = rows
            if number > begin:
                inside = inside & (at > era.start[1])
            if number + 1 < len(eras) and eras[number + 1].start <= (file, last):
                inside = inside & (at < eras[number + 1].start[1])
            if era.keeps_rows or self._teaches(era, file):
                yield era, inside
            elif (
                not era.is_dead
                and inside.any()
                and (era.space is None or era.space.primary is None)
            ):
                raise self._no_space(file, int(at[np.flatnonzero(inside)[0]]), space_id)
            number += 1

    def _piece(self, batch: pa.RecordBatch, file: int, at: Numbers, rows: _Rows) -> list[pa.Array]:
        """The columns of the result for rows of one era and kind."""
        made = [self._kept(batch, file, at, rows)] if rows.era.keeps_rows else []
        if self._teaches(rows.era, file) and not rows.by_key:
            made.append(self._learned(rows, batch, file, at))
        return [pa.concat_arrays(column) for column in zip(*made, strict=True)]

    def _teaches(self, era: Era, file: int) -> bool:
        """Whether a sequence that is wanted learns from rows; what those of a snapshot taught is in
        it."""
        return era.teaches and file > 0 and self.plan.wants(SystemSpace.SEQUENCE_DATA)

    def _kept(self, batch: pa.RecordBatch, file: int, at: Numbers, rows: _Rows) -> list[pa.Array]:
        """The rows themselves."""
        reader = self._readers.get(rows.era.number)
        if reader is None:
            reader = self._readers[rows.era.number] = _Reader.of(rows.era)
        take = pa.array(rows.where)
        source = batch.column("key" if rows.by_key else "tuple").take(take)
        raw, bounds = packed(source)
        plan = reader.keys if rows.by_key else reader.tuples
        keys = plan.keys(raw, bounds_array(bounds))
        count = len(rows.where)
        kinds = batch.column("type").to_numpy(zero_copy_only=False)[rows.where].astype(np.int32)
        bases = batch.column("index_base").to_numpy(zero_copy_only=False)[rows.where]
        if int(bases.max()) > 31:
            raise DecodeError(f"index base {int(bases.max())} is not 0 or 1")
        what = kinds + 32 * bases.astype(np.int32) + 1024 * rows.era.number
        space = rows.era.space
        assert space is not None
        key = binary(keys.data, keys.bounds)
        data = pa.nulls(count, pa.binary()) if rows.by_key else source
        ops = batch.column("ops").take(take)
        return [
            pa.array(np.full(count, self.history.level(rows.era), np.int32)),
            pa.array(np.full(count, space.id, np.int32)),
            key,
            pa.array(np.full(count, file, np.int32)),
            pa.array(at[rows.where]),
            pa.array(what.astype(np.int32)),
            data,
            ops,
        ]

    def _parts(self, space_id: int, keys: pa.Array) -> Numbers:
        """The part of each key."""
        cuts = self._cuts.get(space_id)
        if cuts is None:
            first = sum((one, cut) <= (space_id, b"") for one, cut in self.plan.cuts)
            inner = [cut[:_CUT_BYTES] for one, cut in self.plan.cuts if one == space_id and cut]
            cuts = self._cuts[space_id] = (first, np.array(inner, dtype=f"S{_CUT_BYTES}"))
        first, borders = cuts
        if not len(borders):
            return first
        raw, bounds = packed(keys)
        whole = np.frombuffer(raw + bytes(_CUT_BYTES), np.uint8)
        sizes = np.diff(bounds)
        places = bounds[:-1, None] + np.arange(_CUT_BYTES)[None, :]
        heads = np.where(np.arange(_CUT_BYTES)[None, :] < sizes[:, None], whole[places], 0)
        named = np.ascontiguousarray(heads.astype(np.uint8)).view(f"S{_CUT_BYTES}").ravel()
        return first + np.searchsorted(borders, named, side="right")

    def _learned(
        self, rows: _Rows, batch: pa.RecordBatch, file: int, at: Numbers
    ) -> list[pa.Array]:
        """What the sequence of a space learns from its rows: the highest number suffices, unless
        the sequence itself is set in the same batch."""
        space = rows.era.space
        assert space is not None
        assert space.sequence is not None
        field_no, step = space.sequence.field_no, rows.era.step
        kinds = batch.column("type").to_numpy(zero_copy_only=False)[rows.where]
        found: list[tuple[int, int]] = []
        source = batch.column("tuple").take(pa.array(rows.where))
        for number, data in enumerate(source.to_pylist()):
            if kinds[number] == RowType.UPSERT or data is None:
                continue
            values = unpack(data)
            value = values[field_no] if len(values) > field_no else None
            if isinstance(value, int) and not isinstance(value, bool) and value <= SEQUENCE_MOST:
                found.append((int(at[rows.where[number]]), value))
        set_here = SystemSpace.SEQUENCE_DATA in batch.column("space_id").to_pylist()
        if found and not set_here:
            best = max(one[1] for one in found) if step > 0 else min(one[1] for one in found)
            found = [(found[-1][0], best)]
        sequence_id = space.sequence.sequence_id
        era = self.history.last(SystemSpace.SEQUENCE_DATA)
        assert era is not None
        reader = self._readers.setdefault(era.number, _Reader.of(era))
        (key,) = reader.tuples.key(pack([sequence_id, 0]))
        count = len(found)
        return [
            pa.array(np.full(count, self.history.level(era), np.int32)),
            pa.array(np.full(count, int(SystemSpace.SEQUENCE_DATA), np.int32)),
            pa.array([key] * count, pa.binary()),
            pa.array(np.full(count, file, np.int32)),
            pa.array([one[0] for one in found], pa.int64()),
            pa.array(np.full(count, LEARN + 1024 * era.number, np.int32)),
            pa.array([pack([sequence_id, one[1], step]) for one in found], pa.binary()),
            pa.nulls(count, pa.binary()),
        ]

    def _unknown(self, file: int, at: int, kind: int) -> CorruptBlock:
        return CorruptBlock(
            f"row {at % POSITION_ROWS} of the block is of the unknown type {kind}: what it changes "
            "cannot be told.",
            path=self.plan.files[file],
            offset=at // POSITION_ROWS,
            hint="`logweir cat` shows the row",
        )

    def _no_space(self, file: int, at: int, space_id: int) -> CorruptBlock:
        return CorruptBlock(
            f"row {at % POSITION_ROWS} of the block is of space {space_id}, which is not there.",
            path=self.plan.files[file],
            offset=at // POSITION_ROWS,
            hint="the log and the snapshot before it do not belong together",
        )

    def _cannot(
        self, file: int, at: Numbers, rows: _Rows, error: RequestError | DecodeError
    ) -> CorruptBlock:
        row = error.details.get("row", 0) if isinstance(error, RequestError) else 0
        assert isinstance(row, int)
        place = int(at[rows.where[row]])
        assert rows.era.space is not None
        return CorruptBlock(
            f"row {place % POSITION_ROWS} of the block, of space {rows.era.space.name!r}, has no "
            f"usable key: {error.message}.",
            path=self.plan.files[file],
            offset=place // POSITION_ROWS,
            hint=error.hint or "`logweir cat` shows the row",
        )
