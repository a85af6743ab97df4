"""Going over blocks that are in order, without anything made of a block or a row.

Most of a log that is only to be checked is in order, so a reader asks here how far that goes from
a block on (`wal.orderkernel` says what it is), and reads the one behind as any other: what is wrong
is said by `wal.reader` and whoever reads, as if this was not there.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import PIPELINE_WINDOW_BYTES
from logweir.wal import orderkernel
from logweir.wal.block import FIXHEADER_BYTES, decode_fixheader, decompress
from logweir.wal.filler import filler_zeros
from logweir.wal.reader import WalReader
from logweir.wal.walk import Walked

__all__ = ["Ordered"]

_ROWS, _TRANSACTIONS, _TIMESTAMP = range(len(orderkernel.TOLD))


class Ordered:
    """What was gone over in one file. `lsns`: the lsn reached per replica id (32 of them), which
    the rows of a log raise."""

    def __init__(self, reader: WalReader, lsns: array[int]) -> None:
        self.blocks = 0
        """How many were gone over."""
        self.end = 0
        """Where the last one ends."""
        self._reader = reader
        self._lsns = lsns
        self._told = array("Q", bytes(8 * len(orderkernel.TOLD)))
        self._walked: Walked | None = None
        self._whole = 0  # of these blocks, with their checksums
        self._until = 0  # no other window is taken before

    @property
    def rows(self) -> int:
        """Rows in these blocks."""
        return self._told[_ROWS]

    @property
    def transactions(self) -> int:
        """Transactions in these blocks."""
        return self._told[_TRANSACTIONS]

    @property
    def timestamp(self) -> float:
        """Of the last row."""
        time: float = struct.unpack("d", struct.pack("Q", self._told[_TIMESTAMP]))[0]
        return time

    def behind(self, at: int) -> int:
        """Where the first block from `at` on begins that is not in order, or is not sure to be.

        Raises `WalError` where the disk cannot read.
        """
        while at + FIXHEADER_BYTES <= self._reader.size:
            if at >= self._until:
                self._look(at)
            walked = self._walked
            if walked is None:
                return at
            first = bisect_left(walked.table, at - walked.at, 0, self._whole)
            if first == self._whole or walked.table[first] != at - walked.at:
                return at
            done = self._pass(walked, first)
            at = walked.at + walked.table[done]
            if done < walked.blocks:
                return at
        return at

    def _look(self, at: int) -> None:
        """Take the window that begins at `at`."""
        self._walked, self._until = None, at + PIPELINE_WINDOW_BYTES
        walked = next(self._reader.walked(at), None)
        if walked is not None:
            room = self._reader.size - walked.at
            ended = bisect_right(walked.table, room, 0, walked.blocks + 1) - 1
            self._walked, self._until = walked, walked.end
            self._whole = min(walked.first_wrong(), ended)

    def _pass(self, walked: Walked, first: int) -> int:
        """The first block from `first` on, of those that are whole, that is not in order."""
        is_log = self._reader.meta.kind == "XLOG"
        table, told, lsns = walked.table, self._told, self._lsns
        starts, sizes, _, packed = (walked.column(number) for number in range(4))
        view = memoryview(walked.window)
        done, newest = first, b""
        while True:
            done = orderkernel.run(
                walked.window, table, walked.stride, done, self._whole, lsns, told, is_log
            )
            if done == self._whole or not packed[done]:
                break
            block = view[starts[done] : starts[done] + FIXHEADER_BYTES + sizes[done]]
            if filler_zeros(block) is not None:
                break
            try:
                data = decompress(block[FIXHEADER_BYTES:], self._reader.limit_bytes)
            except (DecodeError, LimitExceeded):
                break
            if not orderkernel.in_order(data, lsns, told, is_log):
                break
            done, newest = done + 1, data
        if done > first:
            self.blocks += done - first
            start = starts[done - 1]
            payload = start + FIXHEADER_BYTES
            if not packed[done - 1]:
                newest = bytes(view[payload : payload + sizes[done - 1]])
            self.end = walked.at + table[done]
            header = decode_fixheader(view[start:payload])
            self._reader.passed(walked.at + start, header, newest, lsns)
        return done
