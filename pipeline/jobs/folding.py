"""From an archive to the tuples that are left, on Spark.

1. *Look* (`survey`): one task per split; rows of system spaces, how far lsns go, sampled keys.
2. *Key* (`keyed`): one task per split; every wanted row gets its memcomparable key, and the number
   of the part that the key belongs to. Parts are ranges of keys, cut from the samples. Rows are put
   in order, and those that a later one of the same task makes void are left out (`runs`).
3. *Shuffle* once: ordered runs of rows, by part.
4. *Fold* (`fold`): one task per part.

Where the primary key of a space changed on the way, steps 3 and 4 are done once more for each
change: what the rows before it leave is keyed anew and goes in front of the rows behind it. Where
there is one split and one part, one task does it all, and nothing is shuffled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa

from logweir.errors import ConfigError, CorruptFile, PositionUnavailable, WalError
from logweir.limits import PIPELINE_NARROW_BYTES, PIPELINE_PART_BYTES
from logweir.pipeline.jobs.fold import Folder
from logweir.pipeline.jobs.history import History
from logweir.pipeline.jobs.keyed import SCAN_COLUMNS, FoldPlan, Keyer, keyer_of
from logweir.pipeline.jobs.runs import (
    LEAST_RUN_BYTES,
    RUN_BYTES,
    RUN_DDL,
    RUN_ORDER,
    all_in_order,
    in_order,
    runs,
    sliced,
    stretches,
)
from logweir.pipeline.jobs.survey import (
    SURVEY_DDL,
    Found,
    Judged,
    Until,
    check_reached,
    cuts_of,
    judge,
    looked,
    renumbered,
    survey,
    wanted_definitions,
)
from logweir.pipeline.jobs.work import carrying, per_item, typed_errors
from logweir.pipeline.options import ScanOptions, absolute, shown, whole
from logweir.pipeline.plan import Source, Split, plan, together
from logweir.pipeline.reading import scan
from logweir.pipeline.storage import inside, open_storage
from logweir.store.schema.definition import SYSTEM_ID_MAX, SYSTEM_ID_MIN, SystemSpace
from logweir.wal.directory import scan_directory
from logweir.wal.reader import read_meta
from logweir.wal.vclock import VClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is to be folded. `vclock`: the state that comes out; `rows`: rows to read, about, and
    `size` their bytes; `instance`: whose the snapshot is."""

    plan: FoldPlan
    splits: tuple[Split, ...]
    options: ScanOptions
    history: History
    vclock: VClock
    snapshot: Source
    instance: UUID | None
    rows: int
    size: int

    @property
    def is_small(self) -> bool:
        """Whether one task can do all of it: its rows fit into its memory."""
        return (
            len(self.splits) == self.plan.parts == self.history.segments == 1
            and self.size <= PIPELINE_PART_BYTES
        )

    @property
    def run_bytes(self) -> int:
        """How large runs are: so that one of each stretch is no more than a part should have,
        however large parts are; but not so small that each costs more than its rows."""
        count = self.size // PIPELINE_NARROW_BYTES + len(self.splits)
        return min(max(PIPELINE_PART_BYTES // count, LEAST_RUN_BYTES), RUN_BYTES)


Look = Callable[[Sequence[Split], ScanOptions, Until], Found]
"""Runs `survey` on splits, in any order and place, and gathers what it tells."""


def prepare(
    look: Look,
    paths: Sequence[str | Path],
    *,
    until: Until = None,
    snapshot: str | None = None,
    parts: int | None = None,
    split_bytes: int | None = None,
    spaces: Sequence[str | int] | str | int = (),
) -> Prepared:
    """Look at the folders of one instance and decide what to fold.

    `look`: `looking(spark)`, or something that does the same elsewhere; `until`: a vclock or a
    time, as `logweir.recovery.restore` takes it; `snapshot`: name of the one to start from, else
    the newest that is not too new; `parts`: into how many parts of keys the result is cut;
    `spaces`: names or ids of those whose tuples are wanted, all if there are none. Raises
    `WalError` and its kinds, `PositionUnavailable`, `ConfigError`, `RequestError` 36 for a space
    that is not there.
    """
    until = _as_until(until)
    parts = None if parts is None else whole("parts", parts)
    split_bytes = None if split_bytes is None else whole("split_bytes", split_bytes)
    options = ScanOptions(
        paths=tuple(absolute(str(path)) for path in paths), columns=SCAN_COLUMNS, settled=False
    )
    if split_bytes is not None:
        options = replace(options, split_bytes=split_bytes)
    snaps = _snapshots(options, snapshot)
    base, splits, found, logs, judged = _based(look, options, snaps, until)
    if _may_wait(found):
        _check_folder(logs, options)
        options = replace(options, settled=True)
        base, splits, found, logs, judged = _based(look, options, snaps, until)
    check_reached(judged, until, snaps[0].vclock)
    paths_by_number = {0: base.path} | {one.number: one.path for one in logs}
    files = tuple(paths_by_number.get(n, "") for n in range(max(paths_by_number) + 1))
    definitions = [row for row in found.definitions if not row.file]
    definitions += wanted_definitions(found, judged)
    draft = FoldPlan(files, tuple(definitions), judged.known, judged.end)
    keyer = Keyer(draft)
    named = [spaces] if isinstance(spaces, str | int) else spaces
    ids = tuple(keyer.history.schema.space(one).id for one in named)
    if not any(SYSTEM_ID_MIN <= one <= SYSTEM_ID_MAX for one in ids):  # all may change these
        keyer.plan = draft = replace(draft, only=ids)
    size = sum(told["bytes"] for _, told in found.ranges)
    wanted = parts or size // PIPELINE_PART_BYTES + 1
    decided = replace(draft, cuts=cuts_of(found, keyer, wanted))
    filesystem, _ = open_storage(base.location)
    return Prepared(
        plan=decided,
        splits=tuple(splits),
        options=options,
        history=keyer.history,
        vclock=judged.vclock,
        snapshot=base,
        instance=read_meta(Path(base.path), filesystem).instance,
        rows=judged.rows + sum(told["rows"] for (file, _), told in found.ranges if not file),
        size=size,
    )


def _may_wait(found: Found) -> bool:
    """Whether a definition says that a space is synchronous: which of the rows behind it hold is
    decided by rows behind them (`store.engine.settling`)."""
    return any(
        row.space_id == SystemSpace.SPACE and b"is_sync" in (row.tuple or b"") + (row.ops or b"")
        for row in found.definitions
    )


def _check_folder(logs: Sequence[Source], options: ScanOptions) -> None:
    """Refuse logs of synchronous spaces in several folders: each is judged by itself."""
    if len({Path(log.path).parent for log in logs}) > 1:
        raise WalError(
            "there are synchronous spaces, and rows that decide about them may be in another "
            "folder.",
            path=", ".join(map(shown, options.paths)),
            hint="put the logs and a snapshot before them into one folder",
        )


def _as_until(until: object) -> Until:
    """A bound as it is compared. Raises `ConfigError` for what is none."""
    if until is None or isinstance(until, VClock):
        return until
    try:
        if isinstance(until, Mapping):
            return VClock(until)
        if isinstance(until, Real | Decimal) and not math.isnan(until):
            return float(until)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError("until", f"{until!r} is no vclock: {error}") from error
    text = f"is {until!r}, which is no vclock and no time"
    raise ConfigError("until", text, hint="give {1: 50}, or seconds since 1970")


def by_store(paths: Sequence[str | Path]) -> list[list[str | Path]]:
    """The folders, those of each store together. Raises `WalError`."""
    found: dict[UUID | None, list[str | Path]] = {}
    for path in paths:
        filesystem, folder = open_storage(str(path))
        instance = scan_directory(folder, filesystem).instance if len(paths) > 1 else None
        found.setdefault(instance, []).append(path)
    return [*found.values()]


def _check_store(sources: Iterable[Source]) -> None:
    """Refuse files of several stores: one's rows are no changes of what another one holds. Those of
    one folder are alike, or planning refused them."""
    found: dict[UUID, str] = {}
    for one in {one.location: one for one in sources}.values():
        filesystem, _ = open_storage(one.location)
        if (instance := read_meta(Path(one.path), filesystem).instance) is not None:
            found.setdefault(instance, one.path)
    if len(found) > 1:
        (first, _), (other, path), *_ = found.items()
        text = f"the header names instance {other}, that of another folder {first}."
        hint = "a state is that of one store: name the folders of one"
        raise CorruptFile(text, path=shown(path), hint=hint)


def _snapshots(options: ScanOptions, name: str | None) -> list[Source]:
    """The snapshots to choose from, oldest first."""
    planned = plan(replace(options, kinds=("snap",), split_mode="none"))
    snaps = [one for one in planned.sources if name is None or Path(one.path).name == name]
    if not snaps:
        what = "there is no snapshot to start from." if name is None else f"no snapshot is {name}."
        raise CorruptFile(
            what,
            path=", ".join(map(shown, options.paths)),
            hint="put a snapshot back, or name the folder that has one too",
        )
    return sorted(snaps, key=lambda one: one.vclock.signature)


def _based(
    look: Look, options: ScanOptions, snaps: list[Source], until: Until
) -> tuple[Source, list[Split], Found, list[Source], Judged]:
    """The snapshot to start from, its splits and those of the logs behind it, what is in these, and
    the logs."""
    base: Source | None
    if until is None or isinstance(until, Mapping):
        wanted = None if until is None else VClock(until)
        base = snaps[-1] if wanted is None else _newest(snaps, wanted, free=0 not in wanted)
        if base is None:
            raise _too_old(until, snaps)
        logs, behind = _logs(options, snaps, base.vclock)
        splits = _joined([*_of_snapshot(options, base), *behind], options)
        found = look(splits, options, until)
        return base, splits, found, logs, judge(found, logs, base.vclock, until)
    logs, behind = _logs(options, snaps, VClock())
    found = look(behind, options, until)
    before = judge_only_cut(found, logs[0].vclock if logs else VClock())
    base = None if before is None else _newest(snaps, before, free=False)
    if base is None:
        raise _too_old(until, snaps)
    kept = _behind(logs, base.vclock)
    behind = renumbered(behind, {one.path: one.number for one in kept})
    splits = _of_snapshot(options, base)
    found = found.joined(look(splits, options, None))
    splits = _joined([*splits, *behind], options)
    return base, splits, found, kept, judge(found, kept, base.vclock, until)


def _joined(splits: Iterable[Split], options: ScanOptions) -> list[Split]:
    """The ranges of splits, small ones of all of them together."""
    ranges = [one for split in splits for one in split.ranges]
    return [Split(some) for some in together(ranges, lambda one: one.size, options.split_bytes)]


def _of_snapshot(options: ScanOptions, source: Source) -> list[Split]:
    path, name = source.location, Path(source.path).name
    if not shown(path).endswith(name):
        path = inside(path, name)
    return renumbered(plan(replace(options, paths=(path,))).splits, {source.path: 0})


def judge_only_cut(found: Found, start: VClock) -> VClock | None:
    """The state in front of the first unwanted transaction; None where no row is before it."""
    reached, any_rows = start, not start
    for _, told in found.ranges:
        reached = reached.merge(told["lsns"])
        any_rows = any_rows or bool(told["lsns"])
        if told["cut"] is not None:
            break
    return reached if any_rows else None


def _newest(snaps: list[Source], vclock: VClock, *, free: bool) -> Source | None:
    for one in reversed(snaps):
        if vclock.covers(one.vclock.without_local() if free else one.vclock):
            return one
    return None


def _too_old(until: Until, snaps: list[Source]) -> PositionUnavailable:
    return PositionUnavailable(
        until,
        snaps[0].vclock,
        "the end of the log",
        hint="name a later position, or look for an older copy of the folder",
    )


def _behind(logs: list[Source], vclock: VClock) -> list[Source]:
    """The logs that hold what comes after `vclock`."""
    covered = [number for number, log in enumerate(logs) if vclock.covers(log.vclock)]
    return logs[covered[-1] :] if covered else logs


def _logs(
    options: ScanOptions, snaps: list[Source], start: VClock
) -> tuple[list[Source], list[Split]]:
    """The logs behind `start`, numbered from 1 in their order, and their splits. `snaps`: beside
    which they stand."""
    planned = plan(replace(options, kinds=("xlog",)), waits=options.settled)
    _check_store([*snaps, *planned.sources])
    ordered = sorted(planned.sources, key=lambda one: one.vclock.signature)
    wanted = _behind(ordered, start)
    numbers = {one.path: number for number, one in enumerate(wanted, 1)}
    sources = [one._replace(number=numbers[one.path]) for one in wanted]
    return sources, renumbered(planned.splits, numbers)


def looking(spark: SparkSession) -> Look:
    """A look on Spark, a task per split; one split is looked at here, which takes less long."""

    def look(splits: Sequence[Split], options: ScanOptions, until: Until) -> Found:
        if len(splits) == 1:
            return look_here(splits, options, until)

        def work(split: Split) -> Iterator[pa.RecordBatch]:
            return survey(split, options, until)

        if not splits:
            return Found()
        with typed_errors():
            rows = per_item(spark, splits, work, SURVEY_DDL).collect()
        return Found.of((row[0], row[1], row[2], bytes(row[3])) for row in rows)

    return look


def look_here(splits: Sequence[Split], options: ScanOptions, until: Until) -> Found:
    """A look in this process, one split after the other."""
    return Found.of(row for split in splits for row in looked(split, options, until))


# --- rows, in order and folded --------------------------------------------------------------------

Work = Callable[[int, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a task makes of a part: its number, and its keyed rows in the order of folding."""


def keyed_rows(split: Split, options: ScanOptions, keyer: Keyer) -> Iterator[pa.RecordBatch]:
    """The keyed rows of one split. Raises what scanning and keying raise."""
    for batch in scan(split, options):
        keyed = keyer.keyed(batch)
        if keyed is not None:
            yield keyed


def by_part(spark: SparkSession, prepared: Prepared, work: Work, ddl: str) -> DataFrame:
    """What `work` makes of the rows of each part that has some. `ddl`: the columns of that."""
    text, options, run_bytes = prepared.plan.to_text(), prepared.options, prepared.run_bytes

    def fold_all(split: Split) -> Iterator[pa.RecordBatch]:
        ordered = [*stretches(keyed_rows(split, options, keyer_of(text)))]
        if ordered:
            yield from work(0, sliced(in_order(ordered)))

    if prepared.is_small:
        return per_item(spark, prepared.splits, fold_all, ddl)

    def key(split: Split) -> Iterator[pa.RecordBatch]:
        keyer = keyer_of(text)
        ordered = stretches(keyed_rows(split, options, keyer))
        yield from runs(ordered, keyer.parted, run_bytes)

    def rekey(_: int, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keyer = keyer_of(text)
        left = Folder(keyer.history, keyer.plan.files).fold(rows)
        again = chain.from_iterable(map(keyer.rekeyed, left))
        yield from runs(stretches(again), keyer.parted, run_bytes)

    rows = per_item(spark, prepared.splits, key, RUN_DDL)
    rounds, parts = prepared.history.segments, prepared.plan.parts
    if rounds == 1:
        return _worked(rows, parts, work, ddl)
    carried = _worked(rows.filter("level = 0"), parts, rekey, RUN_DDL)
    for level in range(1, rounds - 1):
        mine = rows.filter(f"level = {level}")
        carried = _worked(mine.unionByName(carried), parts, rekey, RUN_DDL)
    return _worked(rows.filter(f"level = {rounds - 1}").unionByName(carried), parts, work, ddl)


def _worked(rows: DataFrame, parts: int, work: Work, ddl: str) -> DataFrame:
    """What `work` makes of the runs of each part."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        some = (batch for batch in batches if batch.num_rows)
        for first in some:
            yield from work(first.column("part")[0].as_py(), all_in_order(chain((first,), some)))

    shuffled = rows.repartitionById(parts, "part").sortWithinPartitions(*RUN_ORDER)
    return shuffled.mapInArrow(carrying(run), ddl)
