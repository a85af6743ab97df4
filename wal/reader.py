"""Reading one log file or snapshot: blocks, rows and transactions, in constant memory.

A reader yields what it can read and reports what it cannot, as `Damage` values; it never decides
what damage means. After the last item `end` says how the file ends, and `vclock` what it holds.

How an ending is told from corruption (a block's length is covered by no checksum, so one flipped
bit can make the rest of a file look like an unfinished write):

* *torn tail*: the last block passes the file's end, **and** nothing valid follows it, **and** the
  bytes that are there do not match its checksum, **and** the file does not end in the EOF marker.
* *zero tail*: only zeros up to the file's end.
* *unsynced tail*: a disk may keep the 512-byte pieces of what was never synced in any order. Some
  piece is missing (zeros), no EOF marker follows (it is written only behind what was synced), and
  every valid block behind it was not synced either. logweir's own files say which these are: the
  field for the checksum of the block before, which every reader ignores, holds the distance
  back to the end of what was synced. So that zeros mean "missing", its writer packs rows that
  would leave a piece with zeros only.
* anything else is corruption; reading can go on at the next valid block, or, where the length field
  alone is wrong, with the same block (`Damage.salvage`).
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from logweir.errors import CorruptFile, DecodeError, LimitExceeded, WalError
from logweir.limits import BLOCK_RAW_BYTES, META_BYTES, READ_WINDOW_BYTES, VCLOCK_COMPONENTS
from logweir.wal.block import (
    EOF_MARKER,
    FIXHEADER_BYTES,
    MAGIC_PLAIN,
    MAGIC_ZSTD,
    FixHeader,
    decode_fixheader,
    decompress,
)
from logweir.wal.columns import RowColumns
from logweir.wal.crc32c import checksum
from logweir.wal.damage import TAIL_KINDS, Damage, DamageKind, FileEnd
from logweir.wal.filesystem import OS, FileSystem, ReadFile, explain
from logweir.wal.meta import Meta, decode_meta
from logweir.wal.mp import encode_uint
from logweir.wal.vclock import VClock
from logweir.wal.xrow import Row, Transaction

__all__ = ["Block", "Taker", "WalReader", "read_meta"]

_SECTOR_BYTES: Final = 512
_NO_LSNS: Final = array("Q", bytes(8 * VCLOCK_COMPONENTS))
_LOOKS: Final = 10
"""How often a file that changes while it is read is looked at again before that is an error."""
_PROBE_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Block:
    """One block. `offset`, `stored_bytes`: as in the file; `columns`: its rows."""

    path: str
    offset: int
    header: FixHeader
    columns: RowColumns

    @property
    def end(self) -> int:
        """Where the next block begins, in bytes."""
        return self.offset + FIXHEADER_BYTES + self.header.stored_bytes

    @property
    def data(self) -> bytes | bytearray | memoryview:
        """The rows' bytes, unpacked."""
        return self.columns.data

    def above(self, lsns: array[int]) -> Block | None:
        """The block with the rows above `lsns` only, None if there is none; see
        `RowColumns.above`."""
        columns = self.columns.above(lsns)
        if columns is self.columns:
            return self
        return replace(self, columns=columns) if len(columns) else None

    def rows(self) -> Iterator[Row]:
        """The rows as objects."""
        return map(self.columns.row, range(len(self.columns)))

    def transactions(self) -> Iterator[Transaction]:
        """The block's transactions as objects."""
        for first, last in self.columns.transactions():
            rows = tuple(self.columns.row(i) for i in range(first, last))
            yield Transaction(rows, path=self.path, offset=self.offset)


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


@dataclass(frozen=True, slots=True)
class _Problem:
    """Why no block could be read at an offset."""

    kind: DamageKind
    message: str
    header: FixHeader | None = None


def read_meta(path: Path, filesystem: FileSystem = OS) -> Meta:
    """The text header of one file. Raises `CorruptFile`, or `WalError` if it cannot be opened."""
    with WalReader(path, filesystem=filesystem) as reader:
        return reader.meta


class _Cut(WalError):
    """The file became shorter while it was read."""

    def __init__(self, path: str, offset: int, got: str) -> None:
        super().__init__(
            f"the file became shorter while it was read: {got}.",
            path=path,
            offset=offset,
            hint="another program cut it; read it again",
        )


class WalReader:
    """One log file or snapshot, open for reading.

    `path`: the file; `skip_damage`: go on behind damage instead of stopping there; `header`: takes
    the place of the file's own, which is damaged; its first block is then searched for. Raises
    `CorruptFile` where the text header cannot be used, `WalError` where the file cannot be opened.
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
        self.path = Path(path)
        self._name = str(path)
        self._skip_damage = skip_damage
        self._limit_bytes = limit_bytes
        try:
            self._file: ReadFile = filesystem.open_read(self.path)
        except OSError as error:
            raise explain(error, self._name) from error
        self._window = memoryview(b"")
        self._window_offset = 0
        try:
            self._size = self._file.size()
            self._probe_left = _PROBE_BYTES + 2 * self._size
            if header is None:
                # Not through the window: an index of many files reads nothing but their headers.
                self.meta, self.first_block = decode_meta(self._file.read(META_BYTES, 0))
            else:
                first = self.find_block(0)
                self.meta, self.first_block = header, self._size if first is None else first
        except OSError as error:
            self._file.close()
            raise explain(error, self._name, 0) from error
        except DecodeError as error:
            self._file.close()
            raise CorruptFile(
                error.reason + ".",
                path=self._name,
                offset=error.offset,
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
        self._lsns = array("Q", self.meta.vclock.lsns())
        self._newest: bytes | None = None  # rows of the block before
        self._at = self.first_block
        self._looks = _LOOKS

    def __enter__(self) -> WalReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Blocks that were read stay usable."""
        self._file.close()

    @property
    def size(self) -> int:
        """Bytes in the file when it was opened, or at the last `refresh`."""
        return self._size

    @property
    def vclock(self) -> VClock:
        """Of an xlog: the vclock after the last row read."""
        if self.meta.kind != "XLOG":
            return VClock()
        return VClock({i: lsn for i, lsn in enumerate(self._lsns) if lsn})

    def refresh(self) -> None:
        """Forget what was read ahead and look at the file's size again: it may have grown."""
        self._window = memoryview(b"")
        try:
            self._size = self._file.size()
        except OSError as error:
            raise explain(error, self._name) from error

    # --- iterating --------------------------------------------------------------------------------

    def blocks(self, offset: int | None = None) -> Iterator[Block | Damage]:
        """Blocks and damage in the order of the file, from `offset` (default: the first block).

        Stops at the first damage unless `skip_damage`. Sets `end`.
        """
        self._at = self.end_offset = self.first_block if offset is None else offset
        while True:
            try:
                yield from self._blocks(self._at)
                return
            except _Cut:
                # Opening a folder cuts the unfinished end of its newest log, behind whole blocks.
                if not self._is_changed() or self._at > self._size:
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
                yield self._with_neighbours(self._trailing(at, behind), after)
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
            damage, resume = self._classify(at, found)
            if damage.kind not in TAIL_KINDS and self._is_changed():
                continue  # a part of what was looked at was replaced meanwhile
            following = None if resume is None else self._block_or_none(resume)
            yield self._with_neighbours(damage, following)
            if damage.kind in TAIL_KINDS:
                self.end = FileEnd(damage.kind.value)
                return
            self.end = FileEnd.CORRUPT
            if not self._skip_damage:
                return
            if salvaged := self._salvage(damage):
                self._follow(salvaged)
                yield salvaged
                at = salvaged.end
            elif resume is not None:
                at = resume
            else:
                return

    def _is_changed(self) -> bool:
        """Whether the file has another size than when it was looked at; it is looked at again."""
        before = self._size
        if not self._looks:
            return False
        self._looks -= 1
        self.refresh()
        return self._size != before

    def transactions(self) -> Iterator[Transaction | Damage]:
        """Transactions and damage in the order of the file. Sets `end`."""
        for item in self.blocks():
            if isinstance(item, Damage):
                yield item
            else:
                yield from item.transactions()

    def block_at(self, offset: int) -> Block | _Problem:
        """The block that begins at `offset`, or why there is none."""
        found = self._stored_at(offset)
        if isinstance(found, _Problem):
            return found
        return self._open(offset, *found)

    def pack(self, offset: int, stop: int, taker: Taker, enough_bytes: int) -> int:
        """Give the blocks that begin from `offset` on and before `stop` to `taker`, until it has
        `enough_bytes`.

        Returns where to go on. If that is `offset`, what stands there is for `blocks`.
        """
        data: bytes | None = None
        while offset < stop and taker.written_bytes < enough_bytes:
            found = self._stored_at(offset)
            if isinstance(found, _Problem):
                break
            header, payload = found
            try:
                unpacked = self._unpack(header, payload)
            except (LimitExceeded, DecodeError):
                break
            if unpacked is None or not taker.add(unpacked):
                break
            data = unpacked
            offset += FIXHEADER_BYTES + header.stored_bytes
        if data is not None:
            if self.meta.kind == "XLOG":
                for replica_id, lsn in taker.last_lsns().items():
                    self._lsns[replica_id] = max(lsn, self._lsns[replica_id])
            self._newest = data
            self.end_offset = offset
        return offset

    def _stored_at(self, offset: int) -> tuple[FixHeader, memoryview] | _Problem:
        """Header and payload of the block at `offset`; its checksum is not looked at."""
        head = self._bytes(offset, FIXHEADER_BYTES)
        try:
            header = decode_fixheader(head)
        except DecodeError as error:
            magic = bytes(head[:4])
            if magic in (MAGIC_PLAIN, MAGIC_ZSTD):
                return _Problem(DamageKind.BLOCK_HEADER, error.reason)
            return _Problem(DamageKind.MAGIC, f"no block begins here: {error.reason}")
        start = offset + FIXHEADER_BYTES
        left = self._size - start
        if header.stored_bytes > left:
            text = (
                f"block length {header.stored_bytes} passes the file's end, {left} bytes are left"
            )
            return _Problem(DamageKind.LENGTH, text, header)
        if header.stored_bytes > self._limit_bytes:
            text = f"block length {header.stored_bytes} is over the limit of {self._limit_bytes}"
            return _Problem(DamageKind.TOO_LARGE, text, header)
        return header, self._bytes(start, header.stored_bytes)

    def _unpack(self, header: FixHeader, payload: memoryview) -> bytes | None:
        """The rows of a block, None where its checksum is wrong."""
        if checksum(payload) != header.crc:
            return None
        return decompress(payload, self._limit_bytes) if header.kind == "zstd" else bytes(payload)

    def _open(self, offset: int, header: FixHeader, payload: memoryview) -> Block | _Problem:
        try:
            data = self._unpack(header, payload)
            if data is None:
                found = checksum(payload)
                text = f"block checksum is {found:08x}, its header says {header.crc:08x}"
                return _Problem(DamageKind.CHECKSUM, text, header)
            columns = RowColumns.scan(data)
            columns.transaction_ends()
            lsns = _NO_LSNS[:]
            columns.raise_lsns(lsns)
        except LimitExceeded as error:
            return _Problem(DamageKind.TOO_LARGE, error.message, header)
        except DecodeError as error:
            kind = DamageKind.COMPRESSION if "zstd" in error.reason else DamageKind.ROWS
            return _Problem(kind, f"checksum matches but {error.message}", header)
        if not len(columns) or max(lsns) >> 63:
            text = "checksum matches but the block holds no rows, or an lsn over 2^63-1"
            return _Problem(DamageKind.ROWS, text, header)
        return Block(self._name, offset, header, columns)

    # --- what follows a block ---------------------------------------------------------------------

    def _ending(self, at: int) -> FileEnd | None:
        """Whether the file ends in order at `at`."""
        if at >= self._size:
            return FileEnd.UNCLOSED
        if bytes(self._bytes(at, 4)) == EOF_MARKER:
            return FileEnd.CLEAN if at + 4 == self._size else FileEnd.TRAILING_BYTES
        return None

    def _trailing(self, at: int, following: int | None) -> Damage:
        count = (self._size if following is None else following) - at - 4
        text = f"{self._size - at - 4} bytes follow the EOF marker"
        if following is not None:
            text += f", a valid block at byte {following} among them"
        return Damage(
            DamageKind.TRAILING_BYTES,
            self._name,
            at + 4,
            count,
            text + ".",
            hint="something else wrote to this file; its rows up to here are whole, "
            "`logweir repair DIR --to NEW` keeps them",
            rows_lost=0 if following is None else None,
        )

    def _follow(self, block: Block) -> None:
        if self.meta.kind == "XLOG":
            block.columns.raise_lsns(self._lsns)
        self._newest = block.columns.data
        self.end_offset = block.end

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

    def _salvage(self, damage: Damage) -> Block | None:
        """The block whose length field alone is wrong."""
        start, end = damage.salvage
        if end <= start:
            return None
        is_plain = bytes(self._bytes(damage.offset, 4)) == MAGIC_PLAIN
        payload = self._bytes(start, end - start)
        right = FixHeader("plain" if is_plain else "zstd", end - start, checksum(payload))
        found = self._open(damage.offset, right, payload)
        return found if isinstance(found, Block) else None

    # --- telling endings from corruption ----------------------------------------------------------

    def _classify(self, at: int, problem: _Problem) -> tuple[Damage, int | None]:
        """What the problem at `at` is, and where reading can go on (None: nowhere)."""
        size = self._size
        header = problem.header
        if not self._has_nonzero(at, size):
            return self._tail(
                DamageKind.ZERO_TAIL, at, f"only zeros follow, {size - at} bytes"
            ), None
        following = self.find_block(at + 1)
        closed = bytes(self._bytes(max(size - 4, 0), 4)) == EOF_MARKER and size - 4 > at
        resume = following if following is not None else size - 4 if closed else None
        stop = size if resume is None else resume
        if self._only_length_is_wrong(at, stop, problem):
            start = at + FIXHEADER_BYTES
            says = "cannot be read" if header is None else f"says {header.stored_bytes}"
            text = f"block length {says}, but its {stop - start} bytes match its checksum."
            damage = self._damage(DamageKind.LENGTH, at, stop - at, text)
            return replace(damage, salvage=(start, stop)), resume
        if resume is None and self._is_cut(at, problem):
            return self._tail(DamageKind.TORN_TAIL, at, problem.message), None
        if self._is_unsynced(at, following, closed):
            text = "pieces of the last write, which was never synced, are missing"
            return self._tail(DamageKind.UNSYNCED_TAIL, at, text), None
        text = problem.message
        if problem.kind is DamageKind.LENGTH:
            text += f", but valid data follows at byte {stop}: the length is damaged"
        return self._damage(problem.kind, at, stop - at, text + "."), resume

    def _only_length_is_wrong(self, at: int, stop: int, problem: _Problem) -> bool:
        """Whether what is there up to `stop` has the checksum that the block's header gives.

        A wrong bit in the length can also change where the header's other fields seem to begin.
        """
        if problem.kind not in (DamageKind.LENGTH, DamageKind.CHECKSUM, DamageKind.BLOCK_HEADER):
            return False
        start = at + FIXHEADER_BYTES
        if not 0 < stop - start <= self._limit_bytes:
            return False
        crc = checksum(self._bytes(start, stop - start))
        if problem.header is not None and problem.header.crc == crc:
            return True
        stored = encode_uint(crc)
        return len(stored) == 5 and stored in bytes(self._bytes(at + 5, FIXHEADER_BYTES - 5))

    def _is_cut(self, at: int, problem: _Problem) -> bool:
        """Whether the last block merely ends too early (nothing valid is known to follow)."""
        if problem.kind is DamageKind.LENGTH:
            return True
        head = bytes(self._bytes(at, FIXHEADER_BYTES))
        if len(head) >= FIXHEADER_BYTES:
            return False
        return any(magic.startswith(head[:4]) for magic in (MAGIC_PLAIN, MAGIC_ZSTD, EOF_MARKER))

    def _is_unsynced(self, at: int, following: int | None, closed: bool) -> bool:
        """Whether a never synced write begins at or before `at` and pieces of it are missing."""
        stop = self._size if following is None else following
        if closed or not self._has_missing_piece(at, stop, last=following is None):
            return False
        while following is not None:
            found = self.block_at(following)
            if isinstance(found, Block):
                back = found.header.unsynced_bytes
                if back == 0 or following - back > at:
                    return False
                following = found.end
            if following >= self._size or not isinstance(self.block_at(following), Block):
                following = self.find_block(following + 1)
        return True

    def _has_missing_piece(self, at: int, stop: int, *, last: bool) -> bool:
        """Whether a sector behind `at` never arrived: zeros from `at`, or from its begin, on.

        A sector that holds something behind `stop` did arrive. `last`: `stop` is the file's end.
        """
        start = at
        while start < stop:
            end = (start // _SECTOR_BYTES + 1) * _SECTOR_BYTES
            if end > stop and not last:
                return False
            if not self._has_nonzero(start, min(end, stop)):
                return True
            start = end
        return False

    def _has_nonzero(self, start: int, stop: int) -> bool:
        while start < stop:
            piece = bytes(self._bytes(start, min(stop - start, READ_WINDOW_BYTES)))
            if piece.count(0) != len(piece):
                return True
            start += len(piece)
        return False

    def find_block(self, start: int) -> int | None:
        """The next place from `start` on where a valid block begins, or None. Not sure: a stored
        value may hold a whole block."""
        while start < self._size - FIXHEADER_BYTES:
            piece = bytes(self._bytes(start, READ_WINDOW_BYTES))
            at = piece.find(MAGIC_PLAIN[:3])
            while at >= 0:
                if self._is_valid_at(start + at):
                    return start + at
                at = piece.find(MAGIC_PLAIN[:3], at + 1)
            start += max(len(piece) - 3, 1)
        return None

    def _is_valid_at(self, offset: int) -> bool:
        head = self._bytes(offset, FIXHEADER_BYTES)
        try:
            header = decode_fixheader(head)
        except DecodeError:
            return False
        start = offset + FIXHEADER_BYTES
        if header.stored_bytes > min(self._size - start, self._limit_bytes):
            return False
        if self._probe_left < header.stored_bytes:
            return True  # a file made to be slow: call it valid, so that the damage is corruption
        self._probe_left -= header.stored_bytes
        return checksum(self._bytes(start, header.stored_bytes)) == header.crc

    def _tail(self, kind: DamageKind, at: int, text: str) -> Damage:
        count = self._size - at
        hint = "the rows before it are whole; nothing that was acknowledged is missing"
        if not self.meta.is_synced:
            hint = (
                f"whole up to byte {at}; an unfinished write of {count} bytes after it, which may "
                "have been acknowledged: the log does not say that its writer synced first"
            )
        return Damage(kind, self._name, at, count, f"{text}: an unfinished write.", hint=hint)

    def _damage(self, kind: DamageKind, at: int, size: int, text: str) -> Damage:
        return Damage(
            kind,
            self._name,
            at,
            size,
            text,
            hint="this is corruption, not an unfinished write: restore from a copy, or keep what "
            "is whole with `logweir repair DIR --to NEW`",
        )

    def _bytes(self, offset: int, count: int) -> memoryview:
        """Up to `count` bytes at `offset`, through the window."""
        count = min(count, self._size - offset)
        at = offset - self._window_offset
        if at >= 0 and at + count <= len(self._window):
            return self._window[at : at + count]
        try:
            piece = memoryview(self._file.read(max(count, READ_WINDOW_BYTES), offset))
        except OSError as error:
            raise explain(error, self._name, offset) from error
        if len(piece) < count:
            raise _Cut(self._name, offset, f"{len(piece)} of {count} bytes")
        self._window, self._window_offset = piece, offset
        return piece[:count]
