"""Going over blocks that are in order, without anything made of a block or a row.

Most of a log that is only to be checked is in order, so a reader asks here how far that goes from
a block on (`wal.orderkernel` says what it is), and reads the one behind as any other: what is wrong
is said by `wal.reader` and whoever reads, as if this was not there.

Parts of a large file are gone over by several at a time: each tells its `Stretch`es, and who reads
the file from end to end jumps over those at whose begin it arrives with the lsns that are wanted
there. So a begin that was found by a search may be wrong: then it is never arrived at.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import PIPELINE_WINDOW_BYTES, VCLOCK_COMPONENTS
from logweir.wal import orderkernel
from logweir.wal.block import FIXHEADER_BYTES, decode_fixheader, decompress
from logweir.wal.blockfile import Block, Problem
from logweir.wal.filler import filler_zeros
from logweir.wal.reader import WalReader
from logweir.wal.walk import Walked

_ROWS, _TRANSACTIONS, _TIMESTAMP = range(len(orderkernel.TOLD))
_NO_LSNS: Final = array("Q", bytes(8 * VCLOCK_COMPONENTS))


@dataclass(frozen=True, slots=True)
class Stretch:
    """Blocks that are in order, from byte `start` to `end`; `last`: where the last one begins.
    `first`: of a log the lsn of each replica id that has to come next at `start`; `reached`: those
    that are reached at `end`; `timestamp`: the bits of that of the last row."""

    start: int
    last: int
    end: int
    blocks: int
    rows: int
    transactions: int
    timestamp: int
    first: Mapping[int, int]
    reached: Mapping[int, int]


class Ordered:
    """What was gone over in one file. `lsns`: the lsn reached per replica id (32 of them), which
    the rows of a log raise; `known`: stretches of the file; `stop`: no block that begins there or
    behind is gone over."""

    def __init__(
        self,
        reader: WalReader,
        lsns: array[int],
        known: Sequence[Stretch] = (),
        stop: int | None = None,
    ) -> None:
        self.blocks = 0
        """How many were gone over."""
        self.last = 0
        """Where the last one begins."""
        self.end = 0
        """Where it ends."""
        self._reader = reader
        self._lsns = lsns
        self._told = array("Q", bytes(8 * len(orderkernel.TOLD)))
        self._walked: Walked | None = None
        self._whole = 0  # of these blocks, with their checksums
        self._until = 0  # no other window is taken before
        self._known = {one.start: one for one in known}
        self._stops = sorted([*self._known, *([] if stop is None else [stop])])
        self._stop = stop

    @property
    def rows(self) -> int:
        """Rows in these blocks."""
        return self._told[_ROWS]

    @property
    def transactions(self) -> int:
        """Transactions in these blocks."""
        return self._told[_TRANSACTIONS]

    @property
    def timestamp_bits(self) -> int:
        """Of the last row."""
        return self._told[_TIMESTAMP]

    @property
    def timestamp(self) -> float:
        """Of the last row."""
        time: float = struct.unpack("d", struct.pack("Q", self.timestamp_bits))[0]
        return time

    def behind(self, at: int) -> int:
        """Where the first block from `at` on begins that is not in order, or is not sure to be.

        Raises `WalError` where the disk cannot read.
        """
        while at + FIXHEADER_BYTES <= self._reader.size:
            if self._stop is not None and at >= self._stop:
                return at
            known = self._known.get(at)
            if known is not None and self._jump(known):
                at = known.end
                continue
            if at >= self._until:
                self._look(at)
            walked = self._walked
            if walked is None:
                return at
            first = bisect_left(walked.table, at - walked.at, 0, self._whole)
            if first == self._whole or walked.table[first] != at - walked.at:
                return at
            last = self._whole
            if (number := bisect_right(self._stops, at)) < len(self._stops):
                last = bisect_left(walked.table, self._stops[number] - walked.at, first + 1, last)
            done = self._pass(walked, first, last)
            at = walked.at + walked.table[done]
            if done < last:
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

    def _pass(self, walked: Walked, first: int, last: int) -> int:
        """The first block from `first` on and before `last` that is not in order; else `last`."""
        is_log = self._reader.meta.kind == "XLOG"
        table, told, lsns = walked.table, self._told, self._lsns
        starts, sizes, _, packed = (walked.column(number) for number in range(4))
        view = memoryview(walked.window)
        done, newest = first, b""
        while True:
            done = orderkernel.run(
                walked.window, table, walked.stride, done, last, lsns, told, is_log
            )
            if done == last or not packed[done]:
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
            start = starts[done - 1]
            payload = start + FIXHEADER_BYTES
            if not packed[done - 1]:
                newest = bytes(view[payload : payload + sizes[done - 1]])
            at, end = walked.at + start, walked.at + table[done]
            self._passed(done - first, at, end, view[start:payload], newest)
        return done

    def _passed(self, blocks: int, last: int, end: int, head: memoryview, data: bytes) -> None:
        """So many blocks were gone over. `head`, `data`: the header and the rows of the last."""
        self.blocks += blocks
        self.last, self.end = last, end
        self._reader.passed(last, decode_fixheader(head), data, self._lsns)

    def _jump(self, known: Stretch) -> bool:
        """Go over a stretch, if it is one here, of which only the last block is looked at."""
        is_log = self._reader.meta.kind == "XLOG"
        if is_log and any(self._lsns[i] + 1 != lsn for i, lsn in known.first.items()):
            return False
        last = self._reader.block_at(known.last)
        if isinstance(last, Problem) or last.end != known.end:
            return False
        for replica_id, lsn in known.reached.items():
            self._lsns[replica_id] = lsn
        self._told[_ROWS] += known.rows
        self._told[_TRANSACTIONS] += known.transactions
        self._told[_TIMESTAMP] = known.timestamp
        head = self._reader.bytes_at(known.last, FIXHEADER_BYTES)
        self._passed(known.blocks, known.last, known.end, head, bytes(last.data))
        return True


def stretches(reader: WalReader, start: int, stop: int) -> Iterator[Stretch]:
    """Stretches among the blocks that begin from byte `start` on and before `stop`, as whoever
    reads the file can use them: the first begins at a block that is found by a search, or behind
    the first block of the file, each other one behind a block that is in no order but can be read.
    What is behind one that cannot be read is not looked at.

    Raises `WalError` where the disk cannot read.
    """
    at: int | None = reader.first_block
    if start > reader.first_block:
        at = reader.find_block(start)
    elif isinstance(one := reader.block_at(reader.first_block), Block):
        at = one.end
    while at is not None and at < stop:
        found, at = _stretch(reader, at, stop)
        if found is not None:
            yield found


def _stretch(reader: WalReader, start: int, stop: int) -> tuple[Stretch | None, int | None]:
    """The stretch that begins at `start`, None if there is none, and where to go on."""
    first: dict[int, int] = {}
    lsns = _NO_LSNS[:]
    ordered = Ordered(reader, lsns, stop=stop)
    at, resume = ordered.behind(start), None
    while at < stop and isinstance(block := reader.block_at(at), Block):
        wanted = _wanted(block, first) if reader.meta.kind == "XLOG" else {}
        for replica_id, lsn in wanted.items():
            lsns[replica_id] = lsn - 1
        behind = ordered.behind(at)
        if behind == at:
            resume = block.end
            break
        first |= wanted
        at = behind
    if not ordered.blocks:
        return None, resume
    found = Stretch(
        start=start,
        last=ordered.last,
        end=ordered.end,
        blocks=ordered.blocks,
        rows=ordered.rows,
        transactions=ordered.transactions,
        timestamp=ordered.timestamp_bits,
        first=first,
        reached={replica_id: lsns[replica_id] for replica_id in first},
    )
    return found, resume


def _wanted(block: Block, known: Mapping[int, int]) -> dict[int, int]:
    """The lsns with which the replica ids begin in a block that are not known yet."""
    found: dict[int, int] = {}
    for replica_id, lsn in zip(block.columns.replica_id, block.columns.lsn, strict=True):
        if lsn and replica_id not in known:
            found.setdefault(replica_id, lsn)
    return found
