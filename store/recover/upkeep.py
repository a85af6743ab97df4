"""Snapshots, old files and who still needs them: the part of `Log` about its folder's upkeep."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from logweir.errors import ErrorCode, RequestError
from logweir.limits import FOLLOWER_NAME_CHARACTERS
from logweir.store.recover.checkpoint import Checkpoints
from logweir.store.state.state import typed
from logweir.wal.vclock import VClock

__all__ = ["Upkeep", "position_of"]


class Upkeep(ABC):
    """What a log offers over its `Checkpoints`."""

    path: Path
    _checkpoints: Checkpoints

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    def _check_not_inside(self) -> None: ...

    @abstractmethod
    def check_process(self) -> None: ...

    def snapshot(self) -> Path:
        """Write a snapshot of now, then remove what is no longer needed. Returns its path.

        Writers go on while it is written. Without a change since the last one that one's path.
        """
        self._check_open()
        self._check_not_inside()
        with typed(self.path):
            return self._checkpoints.make()

    def backup(self) -> contextlib.AbstractContextManager[list[Path]]:
        """The files to copy for a backup: the newest snapshot and the logs behind it. They stay
        where they are while the context is open."""
        self._check_open()
        return self._checkpoints.backup()

    def collect(self) -> list[Path]:
        """Remove old snapshots and logs that nobody needs any more; returns them. A snapshot does
        this by itself."""
        self._check_open()
        self._check_not_inside()
        with typed(self.path):
            return self._checkpoints.collect()

    def pinned_bytes(self) -> dict[str, int]:
        """Of each follower that `retain` names: bytes of the logs that no snapshot needs and that
        it has not read."""
        self.check_process()
        return self._checkpoints.pinned_bytes()

    def retain(self, name: str, position: Mapping[int, int]) -> None:
        """Keep the logs behind `position` for the follower `name`; remembered across restarts.

        `name`: 1 to `limits.FOLLOWER_NAME_CHARACTERS` printable characters. Raises `RequestError`
        for another name, `PositionUnavailable` where the log does not reach that far or has no
        longer all that is behind the position.
        """
        self.check_process()
        at = position_of(position)
        if not (0 < len(name) <= FOLLOWER_NAME_CHARACTERS and name.isprintable()):
            raise RequestError(
                ErrorCode.ILLEGAL_PARAMS,
                f"{name[:80]!r} cannot name a follower",
                hint=f"give 1 to {FOLLOWER_NAME_CHARACTERS} printable characters",
            )
        with typed(self.path):
            self._checkpoints.check_position(at)
            self._checkpoints.retain({name: at})

    def retain_all(self, positions: Mapping[str, VClock]) -> None:
        """`retain` for several followers, with one write, and of positions and names that are known
        to be good."""
        self.check_process()
        with typed(self.path):
            self._checkpoints.retain(positions)

    def release(self, name: str) -> None:
        """Forget the follower `name`: its logs may go."""
        self.check_process()
        with typed(self.path):
            self._checkpoints.release(name)


def position_of(given: Mapping[int, int]) -> VClock:
    """A position that a user gave. Raises `RequestError` for what is none."""
    try:
        return VClock(given)
    except (AttributeError, TypeError, ValueError) as error:
        raise RequestError(
            ErrorCode.ILLEGAL_PARAMS,
            f"{given!r} is no vclock: {error}",
            hint="a vclock maps replica ids to lsns, such as `log.vclock` or {1: 5}",
        ) from error
