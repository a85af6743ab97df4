"""Saving what is whole of a damaged folder into a new one. The original is never touched.

* **Snapshot**: the newest whole one. If none is whole: the whole blocks of the newest damaged
  one, if they hold the definitions of all system spaces; if not there is nothing that a store could
  start from, and repair refuses.
* **Logs**: every row behind it, block by block, by the rules of a forced opening
  (`recovery.policy`); a block whose length field alone is wrong is kept whole, a log whose
  text header alone is damaged too (`recovery.headerless`). Of an lsn that is there twice the first
  is kept.
* **Holes**: where rows are missing a new log begins that says so in its header
  (`recovery.rewrite`). The vclock of the result is the one that the damaged folder had, so lsns of
  lost rows in the middle are never used again. Of rows lost at the end nobody knows the lsns; a
  row is longer than a byte, so as many lsns of this instance as bytes are lost are left out: the
  last log says ``Hole: {1: 110} {1: 361} ?`` and goes on behind it. Where the instance's number is
  not to be found in `_cluster` it says ``Hole: {1: 110} ?`` and leaves out nothing. A follower that
  had got such rows must be joined anew.

A real Tarantool opens the result, and `examine` finds no damage in it but names the holes.
Not carried over: older snapshots and the logs before the one that was used.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logweir.errors import DecodeError, LimitExceeded, RecoveryRefused
from logweir.limits import VCLOCK_COMPONENTS
from logweir.recovery.examine import Progress, examine
from logweir.recovery.policy import RecoveryPlan, plan_from
from logweir.recovery.replay import Batch, walk
from logweir.recovery.report import FileReport, Hole, RecoveryReport, count_of_rows
from logweir.recovery.rewrite import copy_file, names_in, new_target, rewrite, salvage_snapshot
from logweir.wal.columns import RowColumns
from logweir.wal.damage import Damage, damage_json
from logweir.wal.directory import no_store
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.reader import WalReader
from logweir.wal.render import words
from logweir.wal.vclock import VClock, vclock_json
from logweir.wal.xrow import Row, RowType

_CLUSTER_ID: Final = 320
_SYSTEM_SPACES: Final = frozenset({272, 276, 280, 288, 296, 304, 312, 320})
"""Spaces without whose rows nothing starts: schema, spaces, indexes, functions, users, rights."""


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What was saved and what is lost. `snapshot`: name of the one that was used, and whether it
    was whole; `rows`: saved from the logs; `holes`: where rows are missing; `lost`: the damage that
    cost something; `not_carried`: whole files that the result does not need;
    `bytes_lost`: in damaged places whose rows could not be read; `silent_mark`: why nobody knows
    whether the newest logs are there, "" where that is known."""

    directory: Path
    to: Path
    dry_run: bool
    snapshot: str
    snapshot_is_whole: bool
    vclock: VClock
    rows: int
    holes: tuple[Hole, ...]
    lost: tuple[Damage, ...]
    not_carried: tuple[str, ...]
    files: tuple[str, ...]
    bytes_lost: int
    silent_mark: str = ""

    @property
    def rows_lost(self) -> int | None:
        """Rows that are lost, None if nobody can know."""
        known = [hole.rows for hole in self.holes if hole.rows is not None]
        is_known = self.snapshot_is_whole and not self.silent_mark and len(known) == len(self.holes)
        return sum(known) if is_known else None

    @property
    def summary(self) -> str:
        """One sentence."""
        lost = "nothing is lost" if not self.silent_mark else "what is lost is not known"
        if self.lost and self.rows_lost != 0:
            known = self.rows_lost
            number = (
                count_of_rows(one.rows_lost for one in self.lost)
                if known is None
                else words(known, "row")
            )
            lost = f"lost: {number}, {words(self.bytes_lost, 'damaged byte')}"
        return f"{words(self.rows, 'row')} behind {self.snapshot} saved; {lost}."

    def to_json(self) -> dict[str, Any]:
        """What ``repair --json`` prints."""
        return {
            "to": str(self.to),
            "dry_run": self.dry_run,
            "snapshot": self.snapshot,
            "snapshot_is_whole": self.snapshot_is_whole,
            "vclock": vclock_json(self.vclock),
            "rows": self.rows,
            "rows_lost": self.rows_lost,
            "bytes_lost": self.bytes_lost,
            "silent_mark": self.silent_mark,
            "holes": [hole.to_json() for hole in self.holes],
            "lost": [damage_json(one) for one in self.lost],
            "not_carried": list(self.not_carried),
            "files": list(self.files),
        }


def repair(
    directory: Path,
    to: Path,
    *,
    dry_run: bool = False,
    filesystem: FileSystem = OS,
    progress: Progress | None = None,
) -> RepairResult:
    """Save what is whole of `directory` into the new folder `to`.

    `dry_run`: only say what would be saved and lost; nothing is written. Raises `RecoveryRefused`
    where there is nothing to start from, `ConfigError` if `to` is not empty, `WalError`; then
    nothing is left in `to`.
    """
    directory, to = Path(directory), Path(to)
    report = examine(directory, filesystem=filesystem, progress=progress, headerless=True)
    if report.is_empty:
        raise no_store(directory)
    snapshot = _snapshot(report)
    assert snapshot.meta is not None
    instance = report.instance or snapshot.meta.instance
    if instance is None:
        raise _refusal(report, "no file names its instance")
    source = plan_from(report, snapshot.log_file, force=True)
    items = _items(source, _OwnNumber(str(instance), snapshot))
    with ExitStack() as stack:
        if not dry_run:
            stack.enter_context(new_target(directory, to, "repair", filesystem))
        saved = rewrite(items, None if dry_run else to, instance, source.start, filesystem)
        if not dry_run:
            copy = salvage_snapshot if snapshot.damage else copy_file
            copy(snapshot.path, to / snapshot.path.name, filesystem)
    used = {snapshot.path, *(log.path for log in source.xlogs)}
    lost = tuple(dict.fromkeys([*snapshot.damage, *report.blocking]))
    return RepairResult(
        directory=directory,
        to=to,
        dry_run=dry_run,
        snapshot=snapshot.path.name,
        snapshot_is_whole=not snapshot.damage,
        vclock=saved.vclock,
        rows=saved.rows,
        holes=saved.holes,
        lost=lost,
        not_carried=tuple(
            one.path.name for one in report.files if one.path not in used and not one.damage
        ),
        files=() if dry_run else names_in(to, filesystem),
        bytes_lost=sum(report.damaged_bytes(one) for one in lost if one.salvage == (0, 0)),
        silent_mark=report.silent_mark,
    )


def _snapshot(report: RecoveryReport) -> FileReport:
    """The snapshot to start from: the newest whole one, else the newest that can be saved."""
    snaps = [one for one in report.files if one.kind == "snap"]
    whole = [one for one in snaps if not one.damage]
    if whole:
        return whole[-1]
    for one in reversed(snaps):
        if one.meta is not None and _is_enough(one.path, report.filesystem):
            return one
    why = "no snapshot in it has the definitions of all system spaces"
    raise _refusal(report, why if snaps else "it holds no snapshot")


def _is_enough(path: Path, filesystem: FileSystem) -> bool:
    """Whether the whole blocks of a damaged snapshot hold rows of every system space."""
    found: set[int] = set()
    with WalReader(path, filesystem=filesystem, skip_damage=True) as reader:
        for item in reader.blocks():
            if not isinstance(item, Damage):
                found.update(item.columns.space_id)
            if found >= _SYSTEM_SPACES:
                return True
    return False


def _items(source: RecoveryPlan, own: _OwnNumber) -> Generator[Batch | Hole]:
    """The rows and the holes, the one of unknown size at the end included."""
    vclock = source.start
    lost_at_end = bool(source.report.lost_at_end)
    if lost_at_end:
        own.learn_snapshot(source.report.filesystem)
    for item in walk(source):
        vclock = item.vclock if isinstance(item, Batch) else item.before or vclock
        if lost_at_end and isinstance(item, Batch):
            own.learn(item.block.columns, range(item.first, item.last))
        yield item
    mark = source.report.end_mark
    if mark is not None and not vclock.covers(mark.vclock):
        after = vclock.merge(mark.vclock)
        yield Hole(vclock, after)
        vclock = after
    if lost_at_end:
        yield _hole_at_end(vclock, own.number, source.report.lsn_reserve)


def _hole_at_end(vclock: VClock, number: int | None, reserve: int) -> Hole:
    if number is None or not reserve:
        return Hole(vclock, None)
    try:
        behind = vclock.with_lsn(number, vclock.lsn(number) + reserve)
    except ValueError:  # there are not that many lsns
        return Hole(vclock, None)
    return Hole(vclock, behind, is_bound=True)


class _OwnNumber:
    """The replica id of the instance, by the rows of `_cluster`; None if they do not say it."""

    def __init__(self, instance: str, snapshot: FileReport) -> None:
        self._instance = instance
        self._snapshot = snapshot.path
        self.number: int | None = None

    def learn_snapshot(self, filesystem: FileSystem) -> None:
        """Take what the whole blocks of the snapshot say."""
        with WalReader(self._snapshot, filesystem=filesystem, skip_damage=True) as reader:
            for item in reader.blocks():
                if not isinstance(item, Damage):
                    self.learn(item.columns, range(len(item.columns)))

    def learn(self, columns: RowColumns, rows: range) -> None:
        """Take what some rows of a block say."""
        if _CLUSTER_ID in columns.space_id:
            for at in rows:
                if columns.space_id[at] == _CLUSTER_ID:
                    self._learn_row(columns.row(at))

    def _learn_row(self, row: Row) -> None:
        try:
            body = row.decoded()
            number, *rest = body.get("tuple") or body["key"]
        except (DecodeError, LimitExceeded, KeyError, TypeError, ValueError):
            return
        names_it = [str(one).lower() for one in rest[:1]] == [self._instance]
        is_own = names_it and row.type in (RowType.INSERT, RowType.REPLACE)
        if is_own and isinstance(number, int) and 0 < number < VCLOCK_COMPONENTS:
            self.number = number
        elif number == self.number:
            self.number = None  # another one has the number now


def _refusal(report: RecoveryReport, why: str) -> RecoveryRefused:
    return RecoveryRefused(
        f"the folder cannot be repaired: {why}.",
        path=str(report.directory),
        report=report,
        hint="put a snapshot from a copy into it, then try again",
    )
