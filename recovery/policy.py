"""From a report to a decision: what is opened, from where, and what must be moved away first.

Without `force` nothing is lost in silence: unless every row behind the snapshot is there, opening
is refused and the error names file, byte, lsn and the number of rows. With `force` it goes as in a
Tarantool with `force_recovery`:

=======================================  =======================================================
damage                                   with force
=======================================  =======================================================
a block, bytes after the EOF marker      skipped up to the next valid block, which goes on
length field alone is wrong              the block is kept (Tarantool 2.6.0 loses it, and in the
                                         worst case everything behind it)
zeros at the end of a foreign log        cut off
a log with an unusable header            ignored; renamed to `….xlog.corrupted` where its name is
                                         not before the end of the log, for the new log wants it
a log is missing, or lost its end        goes on behind the gap
an older log goes on behind the next's   its rows behind that are given up: the newer log is the
begin                                    later history
an lsn twice in the newest log           refused
no whole snapshot                        refused
a file that cannot be read               refused: the system must be asked, not forced
=======================================  =======================================================

After a forced opening the damaged logs are still there, so a checkpoint must follow at once
(`RecoveryPlan.needs_snapshot`); then they are no longer needed. Source: Tarantool 2.6.0, observed.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from logweir.errors import RecoveryRefused
from logweir.recovery.report import LogPosition, RecoveryReport, count_of_rows
from logweir.wal.damage import Damage
from logweir.wal.directory import LogFile
from logweir.wal.filesystem import explaining
from logweir.wal.render import words
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, file_name

_IN_THE_WAY: Final = ".corrupted"


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What opening a folder will do.

    `snapshot`: to load, None for a fresh folder (or where reading began at `start`); `xlogs`: to
    replay, oldest first; `start`: the vclock before the first row to replay; `vclock`: the state
    after the last; `append_point`: for `WalWriter`; `renames`: files that `prepare` moves away;
    `lost`: what is given up, one sentence each; `lsn_reserve`: as in the report, 0 if nothing
    is given up.
    """

    report: RecoveryReport
    force: bool
    snapshot: LogFile | None
    xlogs: tuple[LogFile, ...]
    start: VClock
    vclock: VClock
    append_point: AppendPoint
    renames: tuple[tuple[Path, Path], ...] = ()
    warnings: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    lsn_reserve: int = 0

    @property
    def since(self) -> LogPosition | None:
        """Where reading begins inside the first log, None for its first block."""
        return self.report.since

    @property
    def needs_snapshot(self) -> bool:
        """Whether a checkpoint must follow, since the damaged logs are still there."""
        return bool(self.lost)

    def prepare(self) -> None:
        """Move away what is in the way of the new log. Twice: nothing. Raises `WalError`.

        The only thing in `recovery` that changes the folder it looks at.
        """
        filesystem = self.report.filesystem
        moved = False
        for old, new in self.renames:
            with explaining(old), suppress(FileNotFoundError):  # done before
                filesystem.rename(old, new)
                moved = True
        if moved:
            with explaining(self.report.directory):
                filesystem.sync_directory(self.report.directory)


def plan(report: RecoveryReport, *, force: bool = False) -> RecoveryPlan:
    """Decide how to open the folder that `report` is about.

    Raises `RecoveryRefused` if rows would be lost or doubted and `force` is not given, and where
    even force does not help.
    """
    refused = report.unforceable if force else report.blocking
    if refused:
        raise _refusal(report, refused, force)
    result = plan_from(report, report.snapshot, force=force)
    if not report.blocking:
        return result
    renames, append_point = _clear_the_way(report)
    return replace(
        result,
        append_point=append_point,
        renames=renames,
        lost=tuple(_loss(damage) for damage in report.blocking),
        lsn_reserve=report.lsn_reserve,
    )


def plan_from(report: RecoveryReport, snapshot: LogFile | None, *, force: bool) -> RecoveryPlan:
    """A plan that reads from a snapshot of the caller's choice and refuses nothing beforehand:
    without `force`, reading stops at the first row that is missing."""
    start = VClock() if snapshot is None else snapshot.vclock
    if report.since is not None:
        start = report.since.vclock
    return RecoveryPlan(
        report=report,
        force=force,
        snapshot=None if report.since is not None else snapshot,
        xlogs=_from(report.xlogs, start),
        start=start,
        vclock=report.vclock,
        append_point=report.append_point,
        warnings=report.warnings,
    )


def _from(xlogs: tuple[LogFile, ...], start: VClock) -> tuple[LogFile, ...]:
    """The logs that hold what comes after `start`."""
    covered = [number for number, log in enumerate(xlogs) if start.covers(log.vclock)]
    return xlogs[covered[-1] :] if covered else xlogs


def _refusal(report: RecoveryReport, refused: tuple[Damage, ...], force: bool) -> RecoveryRefused:
    first = refused[0]
    near = ""
    if first.lsn_before is not None:
        near = f" Last good lsn before it: {first.lsn_before}"
        near += "" if first.lsn_after is None else f", next behind it: {first.lsn_after}"
        near += "." if first.replica_id is None else f" (replica {first.replica_id})."
    behind = words(len(refused) - 1, "more damaged place")
    more = f" Behind it: {behind}." if len(refused) > 1 else ""
    even = " even with force" if force else ""
    cost = f"{count_of_rows(one.rows_lost for one in refused)} would be lost or doubted."
    if not report.unforceable and all(one.rows_lost == 0 for one in refused):
        cost = "With force every row is kept, but another program may lose some here."
    return RecoveryRefused(
        f"the folder {report.directory} is not opened{even}: {first.message}{near} {cost}{more}",
        path=first.file,
        offset=first.offset,
        report=report,
        hint=first.hint,
    )


def _loss(damage: Damage) -> str:
    if damage.salvage != (0, 0):
        return f"{damage} Its rows are kept."
    return f"{damage} {count_of_rows([damage.rows_lost])} lost."


def _clear_the_way(
    report: RecoveryReport,
) -> tuple[tuple[tuple[Path, Path], ...], AppendPoint]:
    """Which files must be renamed before a new log can begin, and where it then begins."""
    end = report.vclock
    usable = {log.path for log in report.xlogs}
    taken = set(report.others)
    renames: list[tuple[Path, Path]] = []
    for one in report.files:
        unusable = one.path not in usable and one.kind == "xlog"
        if unusable and int(one.path.name.split(".")[0]) >= end.signature:
            renames.append((one.path, _free_name(one.path, taken)))
    at = report.append_point
    wanted = report.directory / file_name(end, "xlog")
    if at.replaces is not None and any(damage.file == str(wanted) for damage in report.blocking):
        renames.append((wanted, _free_name(wanted, taken)))
        at = replace(at, replaces=None)
    return tuple(renames), at


def _free_name(path: Path, taken: set[str]) -> Path:
    """`….corrupted`, with a number where there is one already."""
    name = path.name + _IN_THE_WAY
    number = 1
    while name in taken:
        number += 1
        name = f"{path.name}{_IN_THE_WAY}.{number}"
    taken.add(name)
    return path.with_name(name)
