"""Reading the log of a store piece by piece: what is there now, and later what came since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from logweir.errors import ErrorCode, RequestError
from logweir.wal.follow import Follower
from logweir.wal.process import OfProcess
from logweir.wal.vclock import VClock
from logweir.wal.xrow import Transaction

__all__ = ["LogCursor", "position_of"]


class LogCursor(OfProcess):
    """A place in the log of a store. A context manager; for one thread at a time."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._belong()

    def __enter__(self) -> LogCursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file that is being read."""
        self._follower.close()

    def ready(self) -> Iterator[Transaction]:
        """The durable transactions behind the last one given, oldest first; ends where there are
        no more yet. To be used up before it is asked for again. Raises `CorruptBlock`, `ChainGap`,
        `PositionUnavailable`."""
        self.check_process()
        for block in self._follower.poll():
            for transaction in block.transactions():
                yield transaction
                self.check_process()


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
