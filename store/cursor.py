"""Reading the log of a store piece by piece: what is there now, and later what came since."""

from __future__ import annotations

from collections.abc import Iterator

from logweir.wal.closing import Closable
from logweir.wal.follow import Follower
from logweir.wal.process import OfProcess
from logweir.wal.reader import Block
from logweir.wal.xrow import Transaction


class LogCursor(OfProcess, Closable):
    """A place in the log of a store. A context manager; for one thread at a time."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._belong()

    def close(self) -> None:
        """Close the file that is being read."""
        self._follower.close()

    def ready(self) -> Iterator[Transaction]:
        """The durable transactions behind the last one given, oldest first; ends where there are
        no more yet. To be used up before it is asked for again. Raises `CorruptBlock`, `ChainGap`,
        `PositionUnavailable`."""
        for block in self.blocks():
            for transaction in block.transactions():
                yield transaction
                self.check_process()

    def blocks(self) -> Iterator[Block]:
        """`ready`, as whole blocks."""
        self.check_process()
        for block in self._follower.poll():
            yield block
            self.check_process()
