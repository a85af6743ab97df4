"""The state at a vclock or at a time, as a new folder that opens by itself.

The cut is a border between two transactions: the last one in front of which everything belongs to
the wanted state. At a vclock that is in front of the first transaction with a row that the vclock
does not have (local rows, id 0, count only if the vclock names them); at a time, in front of the
first transaction that is later. The new folder holds the newest whole snapshot that is not behind
the cut, and the rows from there to the cut, as logs of our own. A real Tarantool opens it too.

A time is only answered where the logs prove it: the transaction before the cut must be there, or
the log from its very beginning. A snapshot's own time proves nothing: Tarantool 2.6.0 keeps using
that of the first snapshot of the process (read in its source).

The new folder has the instance UUID of the old one: it is the same instance at an earlier time, so
the two must not run in one replica set.
"""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from logweir.errors import CorruptFile, PositionUnavailable, RecoveryRefused
from logweir.recovery.examine import Progress, examine
from logweir.recovery.policy import RecoveryPlan, plan, plan_from
from logweir.recovery.replay import Batch, walk
from logweir.recovery.report import RecoveryReport
from logweir.recovery.rewrite import (
    Rewritten,
    copy_file,
    file_digest,
    names_in,
    new_target,
    rewrite,
    while_files_go,
)
from logweir.wal.damage import DamageKind
from logweir.wal.directory import no_store
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.lease import leased
from logweir.wal.vclock import VClock


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What was restored. `vclock`: the state in the new folder; `wanted`: what was asked for;
    `snapshot`: name of the snapshot that was copied; `rows`: rows in the new logs; `dry_run`:
    nothing was written; `verified`: it was read again and compared."""

    directory: Path
    to: Path
    wanted: VClock | float | None
    vclock: VClock
    snapshot: str
    rows: int
    files: tuple[str, ...]
    dry_run: bool = False
    verified: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether the state is the wanted vclock itself, not the last whole one before it."""
        if not isinstance(self.wanted, VClock):
            return True
        if 0 in self.wanted:
            return self.wanted == self.vclock
        return self.wanted == self.vclock.without_local()


def restore(
    directory: Path,
    to: Path,
    *,
    at: VClock | datetime | float | None = None,
    dry_run: bool = False,
    verify: bool = False,
    filesystem: FileSystem = OS,
    progress: Progress | None = None,
) -> RestoreResult:
    """Write the state of `directory` at `at` into the new folder `to`.

    `at`: a vclock, a time (aware `datetime`, or seconds since the epoch), or None for the end of
    the log; `dry_run`: read everything, but write nothing; `verify`: read the new folder from end
    to end and compare every row of it with what was read.

    Raises `PositionUnavailable` if no snapshot is that old or the log does not go that far,
    `CorruptBlock`, `ChainGap` or `RecoveryRefused` if rows on the way are missing, `ConfigError`
    where `to` is not empty, `CorruptFile` where `verify` finds a difference, `WalError`; then
    nothing is left in `to`. One that was broken off is begun anew.

    In a folder that is written to meanwhile the files are leased; where that cannot be, and one is
    removed, it begins again with the newer snapshot.
    """
    directory, to = Path(directory), Path(to)
    until = at.timestamp() if isinstance(at, datetime) else at
    with leased(directory):
        return while_files_go(
            lambda: _restored(directory, to, until, dry_run, verify, filesystem, progress)
        )


def _restored(
    directory: Path,
    to: Path,
    until: VClock | float | None,
    dry_run: bool,
    verify: bool,
    filesystem: FileSystem,
    progress: Progress | None,
) -> RestoreResult:
    report = examine(directory, filesystem=filesystem, progress=progress)
    if report.is_empty:
        raise no_store(directory)
    source, _ = plan_until(report, until)
    snapshot = source.snapshot
    assert snapshot is not None
    instance = report.instance
    if instance is None:
        raise _no_start(report, "no file names its instance")
    rows = walk(source, until=until)
    with ExitStack() as stack:
        if not dry_run:
            stack.enter_context(new_target(directory, to, "restore", filesystem))
        target = None if dry_run else to
        written = rewrite(rows, target, instance, snapshot.vclock, filesystem)
        if not dry_run:
            copy_file(snapshot.path, to / snapshot.path.name, filesystem)
            if verify:
                _compare(snapshot.path, to, instance, written, filesystem)
    return RestoreResult(
        directory=directory,
        to=to,
        wanted=until,
        vclock=written.vclock,
        snapshot=snapshot.path.name,
        rows=written.rows,
        files=() if dry_run else names_in(to, filesystem),
        dry_run=dry_run,
        verified=verify and not dry_run,
    )


def _compare(
    snapshot: Path, to: Path, instance: uuid.UUID, written: Rewritten, filesystem: FileSystem
) -> None:
    """Read a new folder back. Raises `CorruptFile` if it is not what was written."""
    copy = to / snapshot.name
    report = examine(to, filesystem=filesystem)
    damage = [one for one in report.damage if one.kind is not DamageKind.UNFINISHED]
    if damage:
        raise CorruptFile(damage[0].message, path=damage[0].file, offset=damage[0].offset)
    found = rewrite(
        walk(plan_from(report, report.snapshot, force=False)),
        None,
        instance,
        VClock() if report.snapshot is None else report.snapshot.vclock,
        filesystem,
    )
    if (found.vclock, found.digest) != (written.vclock, written.digest):
        text = f"{found.rows} rows up to {found.vclock} were read back, not the {written.rows} rows"
        raise CorruptFile(f"{text} up to {written.vclock} that were written.", path=str(to))
    if file_digest(snapshot, filesystem) != file_digest(copy, filesystem):
        raise CorruptFile("the copy of the snapshot differs from it.", path=str(copy))


def plan_until(report: RecoveryReport, until: VClock | float | None) -> tuple[RecoveryPlan, VClock]:
    """What to read for the state at a vclock, a time or the end: from the newest whole snapshot
    that is not behind the cut, which is the second; `replay` or `walk` end there with `until`.

    Raises `PositionUnavailable`, `RecoveryRefused`; damage and gaps in front of the cut are met
    when it is read.
    """
    if until is None:
        cut = report.vclock
    elif isinstance(until, VClock):
        cut = until
        if not report.vclock.covers(until):
            raise _not_found(report, until)
    else:
        found = _cut_at(report, until)
        if found is None:
            raise unavailable(report, until)
        cut = found
    if cut == report.vclock and not isinstance(until, VClock):
        source = plan(report)  # nothing may be missing, logs that cannot be used included
        if source.snapshot is None:
            raise _no_start(report, "it holds no snapshot")
        return source, cut
    free = isinstance(until, VClock) and 0 not in until
    for one in reversed([one for one in report.files if one.kind == "snap"]):
        snap = one.log_file
        if snap is None or one.damage:
            continue
        if cut.covers(snap.vclock.without_local() if free else snap.vclock):
            return plan_from(report, snap, force=False), cut
    raise unavailable(report, until) if report.snapshot else _not_found(report, until)


def _cut_at(report: RecoveryReport, time: float) -> VClock | None:
    """The state at a time; None if the logs do not prove it."""
    if not report.xlogs:
        return None
    begin = report.xlogs[0].vclock
    source = plan_from(report, None, force=True)
    cut = None
    for item in walk(replace(source, start=begin, xlogs=report.xlogs), until=time):
        if isinstance(item, Batch):
            cut = item.vclock
    return begin if cut is None and not begin else cut


def _not_found(report: RecoveryReport, wanted: VClock | float | None) -> PositionUnavailable:
    """`unavailable`. Raises `RecoveryRefused` where that place may be in what cannot be read."""
    if report.blocking:
        plan(report)
    return unavailable(report, wanted)


def unavailable(report: RecoveryReport, wanted: VClock | float | None) -> PositionUnavailable:
    """The error for a place that a folder does not hold, with those that it does."""
    snaps = [one for one in report.files if one.kind == "snap" and not one.damage]
    oldest: object = snaps[0].last_vclock if snaps else "nothing"
    newest: object = report.vclock
    if isinstance(wanted, float | int):
        wanted = float(wanted)
        logs = [one for one in report.files if one.kind == "xlog"]
        times = [time for one in logs for time in (one.first_timestamp, one.last_timestamp) if time]
        # Clocks go back: neither need be that of the first or the last row.
        oldest, newest = min(times, default="nothing"), max(times, default="nothing")
    hint = "name a position in between, or look for an older copy of the folder"
    if newest == "nothing":
        hint = "no row of this folder has a time: restore without one, or to a vclock"
    return PositionUnavailable(wanted, oldest, newest, hint=hint)


def _no_start(report: RecoveryReport, why: str) -> RecoveryRefused:
    return RecoveryRefused(
        f"nothing can be restored from this folder: {why}.",
        path=str(report.directory),
        report=report,
        hint="look at it with `logweir verify`",
    )
