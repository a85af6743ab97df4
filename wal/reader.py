"""Reading one log file or snapshot: blocks, rows and transactions, in constant memory.

A reader yields what it can read and reports what it cannot, as `Damage` values; it never decides
what damage means. After the last item `end` says how the file ends, and `vclock` what it holds.
`wal.blockfile` reads one place, `wal.endings` says what an unreadable one is.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from logweir.errors import CorruptFile, DecodeError, LimitExceeded
from logweir.limits import BLOCK_RAW_BYTES, META_BYTES
from logweir.wal.block import EOF_MARKER, FIXHEADER_BYTES, MAGIC_ZSTD, FixHeader
from logweir.wal.blockfile import Block, BlockFile, FileCut, Problem
from logweir.wal.columns import RowColumns
from logweir.wal.damage import TAIL_KINDS, Damage, FileEnd
from logweir.wal.endings import classify, salvaged, trailing
from logweir.wal.filesystem import OS, FileSystem, explain
from logweir.wal.filler import FILLER_BYTES
from logweir.wal.meta import Meta, decode_meta
from logweir.wal.vclock import VClock
from logweir.wal.xrow import Transaction

__all__ = ["Block", "Taker", "WalReader", "read_meta"]

_LOOKS: Final = 10
"""How often a file that changes while it is read is looked at again before that is an error."""


class Taker(Protocol):
    """What takes the rows of blocks as bytes."""

    written_bytes: int
    """What it has made of them so far."""

    @property
    def counts_all(self) -> bool:
        """Whether `last_lsns` counts the rows that it left out, too."""

    def begin(self, lsns: array[int]) -> None:
        """Called first. `lsns`: the lsn reached per replica id; only rows above it are taken."""

    def add(self, data: bytes) -> bool:
        """Take the rows of one block, all or, if it cannot, none. What it takes is in order: rows,
        transactions, replica ids, lsns."""

    def last_lsns(self) -> Mapping[int, int]:
        """The highest lsn of each replica id in what it took."""


def read_meta(path: Path, filesystem: FileSystem = OS) -> Meta:
    """The text header of one file. Raises `CorruptFile`, or `WalError` if it cannot be opened."""
    with WalReader(path, filesystem=filesystem) as reader:
        return reader.meta


class WalReader(BlockFile):
    """One log file or snapshot, open for reading.

    `path`: the file; `skip_damage`: go on behind damage instead of stopping there; `header`: takes
    the place of the file's own, which is damaged; its first block is then searched for. Raises
    `CorruptFile` where the text header cannot be used, `WalError` if the file cannot be opened.
    Memory: one block and one window of `limits.READ_WINDOW_BYTES`, whatever the file's size.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: FileSystem = OS,
        skip_damage: bool = False,
        limit_bytes: int = BLOCK_RAW_BYTES,
        header: Meta | None = None,
    ) -> None:
        super().__init__(path, filesystem=filesystem, limit_bytes=limit_bytes)
        self._skip_damage = skip_damage
        try:
            if header is None:
                # No more than that: an index of many files reads nothing but their headers. A small
                # file is in the window now.
                head = self._file.read(min(META_BYTES, self._size), 0)
                self.meta, self.first_block = decode_meta(head)
                self._window = memoryview(head)
            else:
                first = self.find_block(0)
                self.meta, self.first_block = header, self.size if first is None else first
        except OSError as error:
            self._file.close()
            raise explain(error, self.name, 0) from error
        except DecodeError as error:
            self._file.close()
            raise CorruptFile(
                error.reason + ".",
                path=self.name,
                offset=error.offset or 0,
                hint="this is not an xlog or snap file, or its first bytes are damaged; "
                "`logweir verify` shows what else is in the folder",
            ) from error
        except BaseException:
            self._file.close()
            raise
        self.end: FileEnd | None = None
        """How the file ends; None until `blocks` or another iterator has run to its end."""
        self.end_offset = self.first_block
        """Where the last good block ends, in bytes: what follows is damage or the EOF marker."""
        self.unsynced_offset = self.first_block
        """From where on logweir had not synced what was read when it wrote the last good block."""
        self._lsns = array("Q", self.meta.vclock.lsns())
        self._newest: bytes | None = None  # rows of the block before
        self._at = self.first_block
        self._looks = _LOOKS
        self._is_live = False

    @property
    def vclock(self) -> VClock:
        """Of an xlog: the vclock after the last row read."""
        if self.meta.kind != "XLOG":
            return VClock()
        return VClock({i: lsn for i, lsn in enumerate(self._lsns) if lsn})

    # --- iterating --------------------------------------------------------------------------------

    def blocks(
        self, offset: int | None = None, *, is_live: bool = False
    ) -> Iterator[Block | Damage]:
        """Blocks and damage in the order of the file, from `offset` (default: the first block).

        `is_live`: it is being written, so nothing is said of what stands behind a filler. Stops at
        the first damage unless `skip_damage`. Sets `end`.
        """
        self._is_live = is_live
        self._looks = _LOOKS
        start = self.first_block if offset is None else offset
        if start != self.end_offset:  # else it goes on behind the last good block
            self.unsynced_offset = start
        self._at = self.end_offset = start
        while True:
            try:
                yield from self._blocks(self._at)
                return
            except FileCut:
                # Opening a folder cuts the unfinished end of its newest log, behind whole blocks.
                if not self._is_changed() or self._at > self.size:
                    raise

    def _blocks(self, at: int) -> Iterator[Block | Damage]:
        """`blocks` from `at` on; `_at` goes along."""
        self.end = None
        while True:
            self._at = at
            end = self._ending(at)
            if end is not None:
                if self.end is not FileEnd.TRAILING_BYTES:
                    self.end = end
                if end is not FileEnd.TRAILING_BYTES:
                    return
                behind = self.find_block(at + 4)
                after = None if behind is None else self._block_or_none(behind)
                yield self._with_neighbours(trailing(self, at, behind), after)
                if not self._skip_damage or behind is None:
                    return
                at = behind
                continue
            found = self.block_at(at)
            if isinstance(found, Block):
                self._follow(found)
                yield found
                at = found.end
                continue
            damage, resume = classify(self, at, found, is_synced=self.meta.is_synced)
            if damage.kind not in TAIL_KINDS and self._is_other(at, found):
                continue  # a part of what was looked at was replaced meanwhile
            following = None if resume is None else self._block_or_none(resume)
            yield self._with_neighbours(damage, following)
            if damage.kind in TAIL_KINDS:
                self.end = FileEnd(damage.kind.value)
                return
            self.end = FileEnd.CORRUPT
            if not self._skip_damage:
                return
            if block := salvaged(self, damage):
                self._follow(block)
                yield block
                at = block.end
            elif resume is not None:
                at = resume
            else:
                return

    def _is_changed(self) -> bool:
        """Whether the file has another size than when it was looked at; it is looked at again."""
        before = self.size
        if not self._looks:
            return False
        self._looks -= 1
        self.refresh()
        return self.size != before

    def _is_other(self, at: int, problem: Problem) -> bool:
        """Whether the file changed since that problem was found at `at`; it is looked at again."""
        if not self._looks:
            return False
        if self._is_changed() or self._ending(at) is not None:
            return True
        return self.block_at(at) != problem

    def transactions(self) -> Iterator[Transaction | Damage]:
        """Transactions and damage in the order of the file. Sets `end`."""
        for item in self.blocks():
            if isinstance(item, Damage):
                yield item
            else:
                yield from item.transactions()

    def pack(self, offset: int, stop: int, taker: Taker, enough_bytes: int) -> int:
        """Give the blocks that begin from `offset` on and before `stop` to `taker`, until it has
        `enough_bytes`, or was given so many, whether it wants them or not.

        Returns where to go on. If that is `offset`, what stands there is for `blocks`.
        """
        data: bytes | None = None
        given_bytes = 0
        while offset < stop and max(taker.written_bytes, given_bytes) < enough_bytes:
            found = self.stored_at(offset)
            if isinstance(found, Problem):
                break
            header, payload = found
            try:
                unpacked = self.unpack(header, payload)
            except (LimitExceeded, DecodeError):
                break
            if unpacked is None or not taker.add(unpacked):
                break
            data = unpacked
            given_bytes += len(unpacked)
            offset += FIXHEADER_BYTES + header.stored_bytes
        if data is not None:
            if self.meta.kind == "XLOG":
                for replica_id, lsn in taker.last_lsns().items():
                    self._lsns[replica_id] = max(lsn, self._lsns[replica_id])
            self._newest = data
            self.end_offset = offset
        return offset

    def passed(self, offset: int, header: FixHeader, data: bytes, lsns: array[int]) -> None:
        """Others have gone over blocks, as `wal.ordered` does, the last of them at `offset`.
        `data`: its rows; `lsns`: the lsn reached per replica id."""
        if self.meta.kind == "XLOG":
            self._lsns[:] = array("Q", map(max, self._lsns, lsns))
        self._ends_with(offset, header, data)

    # --- what follows a block ---------------------------------------------------------------------

    def _ending(self, at: int) -> FileEnd | None:
        """Whether the file ends in order at `at`."""
        if at >= self.size:
            return FileEnd.UNCLOSED
        magic = bytes(self.bytes_at(at, 4))
        if magic == EOF_MARKER:
            return FileEnd.CLEAN if at + 4 == self.size else FileEnd.TRAILING_BYTES
        if magic == MAGIC_ZSTD and self.is_filler_at(at):
            behind = at + FILLER_BYTES
            if self._is_live or not self.has_nonzero(behind, self.size):
                return FileEnd.UNCLOSED
        return None

    def _follow(self, block: Block) -> None:
        if self.meta.kind == "XLOG":
            block.columns.raise_lsns(self._lsns)
        self._ends_with(block.offset, block.header, block.columns.data)

    def _ends_with(self, offset: int, header: FixHeader, data: bytes) -> None:
        """The last good block."""
        self._newest = data
        self.end_offset = offset + FIXHEADER_BYTES + header.stored_bytes
        self.unsynced_offset = max(offset - header.unsynced_bytes, self.first_block)

    def _block_or_none(self, offset: int) -> Block | None:
        if self._ending(offset) is not None:
            return None
        found = self.block_at(offset)
        return found if isinstance(found, Block) else None

    def _with_neighbours(self, damage: Damage, following: Block | None) -> Damage:
        before = after = None
        if self._newest is not None:
            newest = RowColumns.scan(self._newest)
            before = (newest.replica_id[-1], newest.lsn[-1])
        if following is not None:
            after = (following.columns.replica_id[0], following.columns.lsn[0])
        lost = damage.rows_lost
        if before and after and before[0] == after[0] and self.meta.kind == "XLOG":
            lost = max(after[1] - before[1] - 1, 0)
        return replace(
            damage,
            replica_id=before[0] if before else None,
            lsn_before=before[1] if before else None,
            lsn_after=after[1] if after else None,
            rows_lost=lost,
        )
