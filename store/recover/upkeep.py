"""Snapshots, old files and who still needs them: the part of `Log` about its folder's upkeep."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from logweir.limits import FOLLOWER_NAME_CHARACTERS
from logweir.store.schema.refused import illegal
from logweir.store.state.state import typed
from logweir.wal.vclock import VClock

if TYPE_CHECKING:
    from logweir.store.inner import Inner


class Upkeep:
    """What a log offers over its `Checkpoints`."""

    path: Path
    inner: Inner

    def snapshot(self) -> Path:
        """Write a snapshot of now, then remove what is no longer needed. Returns its path.

        Writers go on while it is written. Without a change since the last one that one's path.
        """
        self.inner.committer.check_open()
        self.inner.committer.check_not_inside()
        with typed(self.path):
            return self.inner.checkpoints.make()

    def backup(self) -> contextlib.AbstractContextManager[list[Path]]:
        """The files to copy for a backup: the newest whole snapshot and the logs behind it. They
        are read from end to end first, and stay where they are while the context is open.

        Raises `CorruptBlock` if a log is damaged, `RequestError` if no snapshot is whole: then
        `snapshot` writes what the store holds.
        """
        self.inner.committer.check_open()
        return self.inner.checkpoints.backup()

    def retain(self, name: str, position: Mapping[int, int]) -> None:
        """Keep the logs behind `position` for the follower `name`; remembered across restarts.

        `name`: 1 to `limits.FOLLOWER_NAME_CHARACTERS` printable characters. Raises `RequestError`
        for another name, `PositionUnavailable` if the log does not reach that far or has no
        longer all that is behind the position.
        """
        self.inner.check_process()
        at = position_of(position)
        if not (0 < len(name) <= FOLLOWER_NAME_CHARACTERS and name.isprintable()):
            hint = f"give 1 to {FOLLOWER_NAME_CHARACTERS} printable characters"
            raise illegal(f"{name[:80]!r} cannot name a follower", hint)
        with typed(self.path):
            self.inner.checkpoints.retain_from(name, at)

    def release(self, name: str) -> None:
        """Forget the follower `name`: its logs may go."""
        self.inner.check_process()
        with typed(self.path):
            self.inner.checkpoints.release(name)


def position_of(given: Mapping[int, int]) -> VClock:
    """A position that a user gave. Raises `RequestError` for what is none."""
    try:
        return VClock(given)
    except (AttributeError, TypeError, ValueError) as error:
        hint = "a vclock maps replica ids to lsns, such as `log.vclock` or {1: 5}"
        raise illegal(f"{given!r} is no vclock: {error}", hint) from error
