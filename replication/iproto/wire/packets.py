"""The rows of the log as packets for a replica: `ce`, 4 bytes of length, the row as it is stored.

`RowColumns.packets` makes them of a block that was read as columns; `Packets` makes the same of a
block's bytes in one pass, for who wants nothing else of its rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Final

from logweir.limits import VCLOCK_COMPONENTS
from logweir.replication.iproto.wire import kernel

_ZERO: Final = array("Q", (0,))
_ONES: Final = array("Q", (2**64 - 1,))


class Packets:
    """The packets of several blocks, one after the other: a `wal.reader.Taker`.

    `upto`, `sync`: as in `RowColumns.packets`; `size_bytes`: there is no room for more.
    """

    counts_all: Final = True

    def __init__(self, upto: Mapping[int, int], sync: int, size_bytes: int) -> None:
        self._after = _ZERO * VCLOCK_COMPONENTS
        self._upto = _ONES * VCLOCK_COMPONENTS
        for replica_id, lsn in upto.items():
            self._upto[replica_id] = lsn
        self._sync = sync
        self._out = bytearray(size_bytes)
        self._lsns = _ZERO * VCLOCK_COMPONENTS
        self.written_bytes = 0
        """How much of the room is taken."""

    def begin(self, lsns: array[int]) -> None:
        """See `Taker`."""
        self._after = lsns[:]

    def last_lsns(self) -> dict[int, int]:
        """The highest lsn that the blocks' rows have of each replica id, also if left out."""
        return {replica_id: lsn for replica_id, lsn in enumerate(self._lsns) if lsn}

    def add(self, data: bytes) -> bool:
        """Add the rows of a block. False, and nothing done, if it has to be read as columns:
        they do not fit, or are not in order."""
        lsns = self._lsns[:]
        written = kernel.relay(
            data, self._after, self._upto, self._sync, lsns, self._out, self.written_bytes
        )
        if written < 0:
            return False
        self._lsns, self.written_bytes = lsns, written
        return True

    def take(self) -> bytearray:
        """The packets. Nothing can be added any more."""
        out, self._out = self._out, bytearray()
        del out[self.written_bytes :]
        return out
