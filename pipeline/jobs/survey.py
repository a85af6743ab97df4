"""The first look at an archive: what there is to fold, and up to where.

Each task reads its ranges once, makes no objects of rows, and tells the driver:

* of each range: how far the lsns of every replica go, and the first transaction that is not wanted;
* the rows of system spaces, whole;
* every so many rows a key, from which the driver cuts the output into parts of about one size.

The driver then knows where the cut is (the first unwanted transaction in the order of the files),
what is applied at the begin of each range, and whether a file is missing: the rules are those of
`logweir.recovery`, whose `restore` gives the same state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa

from logweir.errors import ChainGap, ConfigError, PositionUnavailable
from logweir.limits import VCLOCK_COMPONENTS
from logweir.pipeline.arrow import Group
from logweir.pipeline.jobs.history import (
    POSITION_ROWS,
    Place,
    SystemRow,
    is_definition,
    position,
)
from logweir.pipeline.jobs.keyed import Keyer, Known
from logweir.pipeline.options import ScanOptions
from logweir.pipeline.plan import Range, Source, Split
from logweir.pipeline.reading import groups
from logweir.store.schema.definition import SYSTEM_ID_MAX, SYSTEM_ID_MIN
from logweir.wal.damage import Damage
from logweir.wal.vclock import VClock
from logweir.wal.xrow import FLAG_COMMIT, RowType

Until = Mapping[int, int] | float | None
"""Up to where: a vclock, a time in seconds since the epoch, or the end."""

SURVEY_SCHEMA: Final = pa.schema(
    [
        pa.field("what", pa.int32()),
        pa.field("file", pa.int32()),
        pa.field("position", pa.int64()),
        pa.field("payload", pa.binary()),
    ]
)
SURVEY_DDL: Final = "what INT, file INT, position BIGINT, payload BINARY"
RANGE: Final = 0
SYSTEM_ROW: Final = 1
SAMPLE: Final = 2
_SAMPLE_ROWS: Final = 997
_BY_KEY: Final = (RowType.UPDATE, RowType.DELETE)


@dataclass(slots=True)
class Found:
    """What a survey found. `ranges`: by place, each [rows, bytes of them, {replica: lsn}, position
    behind, cut, lsns before the cut …]; `definitions`: by place; `samples`: (place, space id, kind,
    bytes)."""

    ranges: list[tuple[Place, dict[str, Any]]] = field(default_factory=list)
    definitions: list[SystemRow] = field(default_factory=list)
    samples: list[tuple[Place, int, int, bytes]] = field(default_factory=list)

    def joined(self, other: Found) -> Found:
        """What both found."""
        return Found(
            sorted(self.ranges + other.ranges, key=lambda one: one[0]),
            sorted(self.definitions + other.definitions, key=lambda row: row.place),
            sorted(self.samples + other.samples, key=lambda one: one[0]),
        )

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int, bytes]]) -> Found:
        """Gather what tasks told, which come in any order."""
        found = cls()
        for what, file, at, payload in rows:
            value = msgpack.unpackb(bytes(payload), strict_map_key=False)
            if what == RANGE:
                found.ranges.append(((file, at), value))
            elif what == SYSTEM_ROW:
                found.definitions.append(SystemRow(file, at, *value))
            else:
                found.samples.append(((file, at), *value))
        found.ranges.sort(key=lambda one: one[0])
        found.definitions.sort(key=lambda row: row.place)
        found.samples.sort(key=lambda one: one[0])
        return found


# --- in a task ------------------------------------------------------------------------------------


def survey(split: Split, options: ScanOptions, until: Until) -> Iterator[pa.RecordBatch]:
    """Look at the ranges of one split. Raises `WalError` and its kinds where they are damaged."""
    rows = list(looked(split, options, until))
    if rows:
        columns = zip(zip(*rows, strict=True), SURVEY_SCHEMA.types, strict=True)
        made = [pa.array(column, kind) for column, kind in columns]
        yield pa.RecordBatch.from_arrays(made, schema=SURVEY_SCHEMA)


def looked(
    split: Split, options: ScanOptions, until: Until
) -> Iterator[tuple[int, int, int, bytes]]:
    """The rows of `survey`."""
    for one in split.ranges:
        yield from _range(one, options, until)


def _range(one: Range, options: ScanOptions, until: Until) -> Iterator[tuple[int, int, int, bytes]]:
    file = one.source.number
    is_log = one.source.kind == "XLOG"
    lsns = np.zeros(VCLOCK_COMPONENTS, np.int64)
    before_cut: Any = None
    first = cut = None
    last = count = size = 0
    for group in groups(one, options):
        if isinstance(group, Damage):
            raise group.to_error()
        at = _positions(group)
        if first is None:
            first = int(at[0])
        if is_log:
            stop = None if cut is not None else _stop(group, until)
            replicas = group.number("replica_id").astype(np.int64)
            numbers = group.number("lsn").astype(np.int64)
            if stop is not None:
                before_cut = lsns.copy()
                np.maximum.at(before_cut, replicas[:stop], numbers[:stop])
                cut = int(at[stop])
            np.maximum.at(lsns, replicas, numbers)
        yield from _told(group, at, file, count)
        count += len(group)
        size += len(group.columns.data)
        last = int(at[-1])
    if first is not None:
        reached = lsns if before_cut is None else before_cut
        told = {
            "rows": count,
            "bytes": size,
            "last": last,
            "cut": cut,
            "lsns": {i: int(lsn) for i, lsn in enumerate(reached.tolist()) if lsn},
            "furthest": {i: int(lsn) for i, lsn in enumerate(lsns.tolist()) if lsn},
        }
        yield RANGE, file, first, msgpack.packb(told)


def _positions(group: Group) -> Any:
    rows = np.arange(len(group)) - group.firsts[group.block]
    offsets = group.offsets.astype(np.int64)
    position(int(offsets[-1]), int(rows.max()))  # checks the largest
    return offsets[group.block] * POSITION_ROWS + rows


def _stop(group: Group, until: Until) -> int | None:
    """The first row of the first transaction that is not wanted."""
    if until is None:
        return None
    if isinstance(until, Mapping):
        upto = np.zeros(VCLOCK_COMPONENTS, np.int64)
        for replica_id, lsn in until.items():
            upto[replica_id] = lsn
        if 0 not in until:
            upto[0] = np.iinfo(np.int64).max
        over = group.number("lsn").astype(np.int64) > upto[group.number("replica_id")]
    else:
        over = group.number("timestamp").view(np.float64) > until
    rows = np.flatnonzero(over)
    if not len(rows):
        return None
    ends = np.flatnonzero(group.number("flags") & np.uint64(FLAG_COMMIT))
    before = ends[ends < rows[0]]
    return int(before[-1]) + 1 if len(before) else 0


def _told(group: Group, at: Any, file: int, count: int) -> Iterator[tuple[int, int, int, bytes]]:
    """The system rows of a group, and samples of the others."""
    columns = group.columns
    spaces = group.number("space_id")
    system = np.flatnonzero((spaces >= SYSTEM_ID_MIN) & (spaces <= SYSTEM_ID_MAX))
    for row in system.tolist():
        if is_definition(int(spaces[row])):
            told = [
                columns.replica_id[row],
                columns.lsn[row],
                columns.type[row],
                columns.space_id[row],
                columns.index_base[row],
                columns.index_id(row),
                columns.key_bytes(row),
                columns.tuple_bytes(row),
                columns.ops_bytes(row),
            ]
            yield SYSTEM_ROW, file, int(at[row]), msgpack.packb(told)
    for row in range(-count % _SAMPLE_ROWS, len(group), _SAMPLE_ROWS):
        kind = columns.type[row]
        data = columns.key_bytes(row) if kind in _BY_KEY else columns.tuple_bytes(row)
        if data is not None and spaces[row] > SYSTEM_ID_MAX:
            sample = msgpack.packb([int(spaces[row]), kind, data])
            yield SAMPLE, file, int(at[row]), sample


# --- in the driver --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judged:
    """What is to be folded: rows in front of `end`, of which each `known` says which are applied
    already; `vclock`: the state after them; `furthest`: what the log has, wanted or not."""

    end: Place
    known: tuple[Known, ...]
    vclock: VClock
    furthest: VClock
    rows: int


def judge(found: Found, sources: Sequence[Source], start: VClock, until: Until) -> Judged:
    """Where folding begins and ends, from `start`, what the snapshot holds.

    `sources`: the logs behind it, in order. Raises `ChainGap` if rows on the way are missing.
    """
    logs = {source.number: source for source in sources if source.kind == "XLOG"}
    reached = start
    known: list[Known] = []
    seen: set[int] = set()
    end: Place = (max(logs, default=0) + 1, 0)
    rows = 0
    for place, told in found.ranges:
        log = logs.get(place[0])
        if log is None:
            continue
        for number in [one for one in logs if one <= place[0] and one not in seen]:
            _check_border(logs[number], reached, until)
            seen.add(number)
        known.append(Known(place, reached))
        reached = reached.merge(told["lsns"])
        rows += told["rows"]
        if told["cut"] is not None:
            end = (place[0], told["cut"])
            break
        end = (place[0], told["last"] + 1)
    else:
        for number in [one for one in logs if one not in seen]:
            _check_border(logs[number], reached, until)
    furthest = reached
    for place, told in found.ranges:
        furthest = furthest.merge(told["furthest"]) if place[0] in logs else furthest
    return Judged(end, tuple(known), reached, furthest, rows)


def wanted_definitions(found: Found, judged: Judged) -> list[SystemRow]:
    """The rows of system spaces that are not applied yet and stand in front of the end."""
    starts = [one.start for one in judged.known]
    wanted = []
    for row in found.definitions:
        number = bisect_right(starts, row.place) - 1
        if number >= 0 and row.place < judged.end:
            reached = judged.known[number].vclock
            if row.lsn > reached.lsn(row.replica_id):
                wanted.append(row)
    return wanted


def _check_border(log: Source, reached: VClock, until: Until) -> None:
    if reached.covers(log.vclock) or (isinstance(until, Mapping) and reached.covers(until)):
        return
    raise ChainGap(
        f"the log begins at {log.vclock}, what is before it ends at {reached}.",
        path=log.path,
        expected=reached,
        found=log.vclock,
        hint="rows are missing: `logweir verify` shows where",
    )


def check_reached(judged: Judged, until: Until, oldest: VClock) -> None:
    """Raises `PositionUnavailable` if the log does not go as far as was asked."""
    if isinstance(until, Mapping) and not judged.furthest.covers(until):
        raise PositionUnavailable(
            until, oldest, judged.furthest, hint="name a position in between, or wait for the rows"
        )


def cuts_of(found: Found, keyer: Keyer, parts: int) -> tuple[tuple[int, bytes], ...]:
    """The keys at which parts of about one size begin.

    Raises `ConfigError` if `parts` is below 1.
    """
    if parts < 1:
        raise ConfigError("parts", f"{parts} is not at least 1")
    keys = sorted(set(keyer.sample_keys(found.samples)))
    parts = min(parts, len(keys))
    return tuple(sorted({keys[number * len(keys) // parts] for number in range(1, parts)}))


def renumbered(splits: Iterable[Split], numbers: dict[str, int]) -> list[Split]:
    """The ranges of the files in `numbers` (path → number), with these numbers."""
    out = []
    for split in splits:
        ranges = tuple(
            one._replace(source=one.source._replace(number=numbers[one.source.path]))
            for one in split.ranges
            if one.source.path in numbers
        )
        if ranges:
            out.append(Split(ranges))
    return out
