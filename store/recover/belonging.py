"""Whether a state belongs to the log beside it; what does not is thrown away, and said.

A state holds the instance whose it is and, with its position, the last block that it has applied
(`wal.place`). It is used where the folder is of that instance and has that block there.

==========================  ====================  ==================================================
block at the place          rows of the log       then
==========================  ====================  ==================================================
the same                    reach the position    used
the same, none              do not reach it       opening is refused: the newest rows are gone
another one                 reach it or not       rebuilt: it is the state of another history
none                        reach it              rebuilt: likewise, or nothing tells
==========================  ====================  ==================================================

Where the newest snapshot is further than both, or than it and there is no place, it is rebuilt from
that: it did not get what was never logged (durability "none"). A state with such rows is used where
the block is the same, else rebuilt. With `force_recovery` what would be refused is rebuilt, too. A
block that is damaged in the log is none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from logweir.errors import LogweirError, RecoveryRefused, WalError, WriteFailed
from logweir.recovery import LogPosition, RecoveryPlan, RecoveryReport
from logweir.store.state import base
from logweir.store.state.state import State
from logweir.store.state.statetxn import Position, Txn
from logweir.wal.filesystem import NOT_NOW, FileSystem, explaining
from logweir.wal.place import Found, Place, find
from logweir.wal.vclock import VClock

if TYPE_CHECKING:
    from logweir.store.inner import Inner

BROKEN: Final = (base.Error, LogweirError, struct.error, ValueError, LookupError, TypeError)
"""What comes of reading a state that is not one."""

_REFUSED: Final = (
    WriteFailed,
    base.DiskError,
    base.MemoryError,
    base.ReadonlyError,
    base.LockError,
)


def is_refusal(error: BaseException | None) -> bool:
    """Whether one of `BROKEN` says nothing about the state: that the disk is full, or that this
    process may not have what it asks for. It stays then."""
    if isinstance(error, OSError):
        return error.errno in NOT_NOW
    return isinstance(error, _REFUSED) or (
        isinstance(error, WalError) and is_refusal(error.__cause__)
    )


@dataclass(frozen=True, slots=True)
class Kept:
    """A state that was found on the disk, open. `position`: its own; `found`: what the folder has
    at its place."""

    position: Position
    _instance: object
    _found: Found

    @property
    def since(self) -> LogPosition | None:
        """From where on the log is to be looked at; None for all of it."""
        place = self.position.place
        if place is None or not place.is_in_log or self._found is not Found.SAME:
            return None
        return LogPosition(place.file, place.offset, self.position.vclock)

    def behind(self, report: RecoveryReport) -> str:
        """Why a snapshot has to take its place, "" if none has: it stands before the newest,
        and no rows lead there (they were never logged: durability "none")."""
        newest = report.snapshot
        if self.since is None or newest is None or report.vclock.covers(newest.vclock):
            return ""
        return f"{newest.path.name} holds what neither it nor the log has"

    def before(self, decided: RecoveryPlan) -> str:
        """The same where no place of its own says from where on the log is to be looked at."""
        if self.position.vclock.covers(decided.start):
            return ""
        return f"it ends at {self.position.vclock}, the newest snapshot is at {decided.start}"

    def is_ahead(self, decided: RecoveryPlan) -> bool:
        """Whether it holds rows that are gone from its log."""
        return (
            self._instance == decided.report.instance
            and self._found is not Found.OTHER
            and not self.position.unlogged
            and not decided.vclock.covers(self.position.vclock)
        )

    def misfit(self, decided: RecoveryPlan, *, force: bool) -> str:
        """Why it must be rebuilt; "" if it need not. Raises `RecoveryRefused` if it is ahead
        of the log, unless the rows are to be given up."""
        report, position, place = decided.report, self.position, self.position.place
        where = f"byte {place.block} of {place.file}" if place else "a place that it does not name"
        if self._instance != report.instance:
            return f"it is of instance {self._instance}, the folder is of {report.instance}"
        if self._found is Found.OTHER:
            return f"another block than the one that it applied last stands at {where}"
        if not self.is_ahead(decided):
            missing = self._found is Found.NOTHING
            return f"the block that it applied last is not at {where}" if missing else ""
        if force:
            return f"the log ends at {decided.vclock}, it at {position.vclock}"
        raise self.refusal(report)

    def refusal(self, report: RecoveryReport) -> RecoveryRefused:
        """The error for a folder that lacks rows which are here."""
        return RecoveryRefused(
            f"the log ends at {report.vclock}, but rows up to {self.position.vclock} were written "
            "and applied: the newest rows are gone from the log.",
            path=str(report.directory),
            report=report,
            hint="bring the missing log files back; or give the rows up with force_recovery, or "
            "`logweir repair DIR --to NEW`; where an older folder was put here on purpose, remove "
            "the folder `state`, which is not of it",
        )


def trusted(state: State, path: Path, filesystem: FileSystem) -> Kept | None:
    """Open the state if it can be trusted so far. None, with the state thrown away, if it cannot,
    and if there is none. Raises `WalError` where the disk is full, or refuses."""
    if not state.directory.exists():
        return None
    kept, reason = _kept(state, path, filesystem, state.doubt, state.open)
    if kept is None:
        discard(state, reason)
    return kept


def opened_to_read(state: State, path: Path, filesystem: FileSystem) -> tuple[Kept | None, str]:
    """The same, changing nothing: also why it cannot be trusted. All of it is looked at first."""
    return _kept(state, path, filesystem, lambda: state.doubt(fully=True), state.open_to_read)


def _kept(
    state: State,
    path: Path,
    filesystem: FileSystem,
    doubt: Callable[[], str],
    opening: Callable[[], None],
) -> tuple[Kept | None, str]:
    reason = doubt()
    if reason:
        return None, reason
    try:
        opening()
        with state.read() as txn:
            position, instance = txn.position(), txn.instance()
            state.files.check(txn.log_files())
        if position is None:
            return None, "it was never complete"
        return Kept(position, instance, _found(position.place, path, filesystem)), ""
    except BROKEN as error:
        if is_refusal(error):
            if isinstance(error, base.Error):
                raise state.unusable(error) from error
            raise
        return None, f"it cannot be read: {error}"


def _found(place: Place | None, path: Path, filesystem: FileSystem) -> Found:
    if place is None:
        return Found.NOTHING
    with explaining(path / place.file, place.block):
        return find(place, path, filesystem)


def discard(state: State, reason: str) -> None:
    """Throw a state away, which may be open, and say why. Raises `WalError` if it stays."""
    from logweir.wal.logs import get_logger  # takes longer than opening a store

    state.close(clean=False)
    state.discard()
    get_logger("logweir.store").warning("state.rebuilt", path=str(state.directory), reason=reason)


def anchor(log: Inner, snapshot: VClock, end: Place, going: Container[str]) -> None:
    """Before the files `going` are removed: a state whose place is in one of them gets that at the
    end of the newest snapshot, behind which nothing was logged. Raises `WalError`."""

    def move(txn: Txn) -> None:
        position = txn.position()
        if position is None or position.place is None or position.place.file not in going:
            return
        if position.vclock == snapshot or position.unlogged:
            txn.set_position(position._replace(place=end))
            log.anchor = end

    log.change_base(move)
