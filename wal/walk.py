"""The headers of many blocks at once, a window of the file at a time; no payload is looked at."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, NamedTuple

from logweir.limits import BLOCK_RAW_BYTES, PIPELINE_WINDOW_BYTES
from logweir.wal import kernel
from logweir.wal.block import FIXHEADER_BYTES
from logweir.wal.crc32c import first_wrong
from logweir.wal.filesystem import ReadFile

try:
    from logweir.wal.zstdkernel import holds, odd
except ImportError:
    COMPILED = False
else:
    COMPILED = True

_WALK_BLOCKS: Final = 16_384
_MANY_BLOCKS: Final = 16  # of more than so many in a window a larger one is read in less time


class Walked(NamedTuple):
    """Some blocks, one behind the other. `at`: where `window` begins in the file; `table`: as
    `wal.kernel.walk` wrote it, with offsets in the window; `stride`: after how many numbers its
    next column begins; `blocks`: how many."""

    at: int
    window: bytes
    table: array[int]
    stride: int
    blocks: int

    def column(self, number: int) -> memoryview:
        """One column of the table: offset, payload bytes, checksum, 1 if compressed."""
        start = number * self.stride
        return memoryview(self.table)[start : start + self.blocks]

    def first_wrong(self) -> int:
        """Which is the first block whose payload, which stands in the window, has not its checksum;
        `blocks` if none."""
        return first_wrong(self.window, self.table, self.stride, self.blocks, FIXHEADER_BYTES)

    def holds(self, wanted: bytes) -> bool:
        """Whether some bytes are in the window, as it is stored. Others may run meanwhile."""
        return holds(self.window, wanted) if COMPILED else wanted in self.window

    def odd(self, last: int, wanted: bytes = b"") -> Iterator[int]:
        """Of the first `last` blocks those that are compressed and have to be looked at: all that
        may not be one whole frame, or may have `wanted` in it. Their payloads stand in the window;
        others may run meanwhile."""
        if not COMPILED:
            yield from (number for number, packed in enumerate(self.column(3)[:last]) if packed)
            return
        first = 0
        while first < last:
            found = odd(self.window, self.table, self.stride, first, last, BLOCK_RAW_BYTES, wanted)
            if found < last:
                yield found
            first = found + 1

    @property
    def end(self) -> int:
        """Where the last block ends in the file."""
        return self.at + self.table[self.blocks]


def walk_blocks(
    file: ReadFile,
    start: int,
    end: int,
    *,
    whole: bool = False,
    most: int | None = None,
    least: int | None = None,
) -> Iterator[Walked]:
    """The headers of the blocks that begin from `start` on and before `end`, a window at a time.

    No payload is looked at. `whole`: only blocks whose payload stands in the window too; `most`:
    bytes of a window, unless one block has more, else `PIPELINE_WINDOW_BYTES`; `least`: the same
    where few blocks begin in one, so that of large ones little more than headers is read. Stops
    before what is no header as Tarantool writes it, and before a block that passes the file's end.
    What is yielded is used again by the next step.
    """
    stride = min(_WALK_BLOCKS, max(end - start, 0) // FIXHEADER_BYTES + 2)  # files may be small
    table = array("Q", bytes(8 * 4 * stride))
    most = most or PIPELINE_WINDOW_BYTES
    least = least or most
    at, size, want = start, file.size(), least
    while at < end:
        window = file.read(min(want, size - at), at)
        count = kernel.walk(window, table, stride)
        count = bisect_left(table, end - at, 0, count)
        if whole and count and table[count] > len(window):
            count -= 1
            if not count:
                want = FIXHEADER_BYTES + table[stride]
                if want <= len(window) or want > min(size - at, BLOCK_RAW_BYTES):
                    return
                continue
        if not count:
            return
        yield Walked(at, window, table, stride, count)
        at += table[count]
        want = min(4 * want, most) if count > _MANY_BLOCKS else max(want // 4, least)
