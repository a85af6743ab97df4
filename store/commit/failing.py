# cython: annotation_typing=False
"""What errors of a commit mean for the store: which leave it as it was, and which stop it.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `failing.pxd`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from logweir.errors import (
    LogStopped,
    LogweirError,
    RequestError,
    StateFailed,
    UsedAfterFork,
    WriteFailed,
    WriterPoisoned,
)
from logweir.store.state.state import State, StateError, explained
from logweir.wal.writer import WalWriter

if TYPE_CHECKING:
    from logweir.store.commit.group import Group


class Fails:
    """The part of `Committer` that is told of errors: see `store.commit.jobs.OnError`.

    `failure`: what stopped it; `unsynced`: what a sync that nobody waits for raised; `refused`: why
    the last groups were not written, None once others were.
    """

    def __init__(self, path: Path, state: State, writer: WalWriter) -> None:
        self.path = path
        self.state = state
        self.writer = writer
        self.failure: LogweirError | None = None
        self.unsynced: WriterPoisoned | None = None
        self.refused: WriteFailed | None = None

    def publish(self, groups: tuple[Group, ...]) -> None:
        """The one way to durability: write, sync and publish groups that have ended.

        Raises `WriteFailed` or `WriterPoisoned` with nothing applied.
        """
        raise NotImplementedError

    def wake_followers(self) -> None:
        """Tell who waits for more rows."""
        raise NotImplementedError

    def _fail(self, error: BaseException) -> None:
        """What came between the write and the end of a commit was stopped, maybe by an interrupt:
        rows may be in the log that are not in the state. Their lsns are taken, so only opening
        again goes on."""
        if isinstance(error, WriteFailed):
            return
        if isinstance(error, WriterPoisoned | UsedAfterFork):
            self.stop(error)
            return
        stopped = self.stop(self._stopped_by(error))
        if isinstance(error, StateError | LogStopped):
            raise StateFailed(
                f"the change is in the log, but the state could not take it: {error}.",
                path=str(self.path),
                hint="the change is made: open the folder again to see it",
            ) from error
        if isinstance(error, Exception):
            raise stopped from error

    def _fail_unlogged(self, error: BaseException) -> None:
        """The same if nothing is logged."""
        stopped = self.stop(self._stopped_by(error))
        if isinstance(error, Exception):
            raise stopped from error

    def _fail_taking(self, error: BaseException) -> None:
        """The state did not take rows that are in the log for longer, or in none. Where the disk is
        full, or a view is in the way, it does so later; an interrupt leaves it as it was."""
        if isinstance(error, WriteFailed | RequestError):
            return
        if isinstance(error, Exception):
            raise self.stop(self._stopped_by(error)) from error

    def _stopped_by(self, error: BaseException) -> LogStopped:
        return LogStopped(
            "writing was stopped before log and state were alike: "
            f"{str(error) or type(error).__name__}.",
            path=str(self.path),
            hint="what was acknowledged is there; open the folder again to go on",
        )

    def stop(self, failure: LogweirError) -> LogweirError:
        """Nothing more is written; who follows the log is told."""
        self.failure = failure
        self.wake_followers()
        return failure

    def explained(self, error: Exception) -> Exception:
        """As the program is told of it."""
        return explained(error, self.state.directory) if isinstance(error, StateError) else error

    def _sync_in_background(self) -> None:
        """Sync in the background: who writes next, and who closes, is told what went wrong."""
        try:
            self.writer.sync_in_background()
        except WriterPoisoned as error:
            self.unsynced = error
            self.stop(error)
