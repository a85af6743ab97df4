"""Tailing the log of a live folder, across rotation.

The writer closes a file (EOF marker) **before** it makes the next. So: read whole blocks; a block
that is not wholly there means "no more yet" and the place is kept; an EOF marker means the next
file, which may not be there yet. An unclosed file that a newer one follows was left by a crash: it
ends where its last whole block does. What stands behind the last whole block is never relied on:
after a failed write the writer cuts it off and writes something else there.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from logweir.errors import ChainGap, WalError
from logweir.wal.closing import Closable
from logweir.wal.damage import TAIL_KINDS, Damage, DamageKind
from logweir.wal.directory import DirectoryIndex, LogFile, removed, scan_directory
from logweir.wal.filesystem import OS, FileSystem, explaining
from logweir.wal.lease import Lease
from logweir.wal.reader import Block, Taker, WalReader
from logweir.wal.settled import ALL_SETTLED, Settled
from logweir.wal.vclock import VClock

_ATTEMPTS: Final = 5
"""At opening a file that is removed just then."""


class Follower(Closable):
    """Reads the log of a folder from a position and goes on as it grows. Never waits by itself.

    `directory`: the folder; `after`: exactly the rows above it are yielded; `durable`: tells a
    follower in the writer's own process the newest file that has synced rows and how many of its
    bytes are synced, and nothing behind that is yielded; `settled`: tells what is settled above a
    position, nothing behind that is yielded, and a NOP for what was undone; `place`: a file, a
    byte in it and the log's position there, which `after` covers, so that what is before need not
    be read; `lease`: keeps what is still to be read from being removed, and is closed with the
    follower. One thread at a time.
    """

    def __init__(
        self,
        directory: Path,
        after: VClock,
        *,
        filesystem: FileSystem = OS,
        durable: Callable[[], tuple[Path, int]] | None = None,
        settled: Callable[[VClock], Settled] | None = None,
        place: tuple[Path, int, VClock] | None = None,
        lease: Lease | None = None,
    ) -> None:
        self._lease = lease
        self._place = place
        self._durable = durable
        self._ask_settled = settled
        self._is_all_settled = True  # what stood in this file when it was looked at, is
        self.directory = directory
        self._filesystem = filesystem
        self._reader: WalReader | None = None
        self._offset = 0
        self._safe_end = 0  # what stood before this in the file when it was looked at, stays there
        self._lsns = array("Q", after.lsns())
        self._read = self._lsns  # where the log was read to; the very same once it is equal
        self._passed_local = False  # local rows were passed over that nobody counted
        self.is_given_up = False
        """Set in any thread: `poll` ends at the next block, whatever is there."""

    def close(self) -> None:
        """Close the file that is being read."""
        self._leave()
        if self._lease is not None:
            self._lease.close()

    def _leave(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    @property
    def vclock(self) -> VClock:
        """The position: everything up to it was yielded, or was there before. A component that was
        asked for may be ahead of the log."""
        return VClock({i: lsn for i, lsn in enumerate(self._lsns) if lsn})

    def share(self) -> VClock:
        """Yield from here on whatever is read, also what `after` held already. Not to be called
        before a row was looked for, and while what `poll` iterates over is used.

        Returns the place in the log from which on that is all: where the log was read to.
        """
        assert self._reader is not None
        if self._passed_local:
            self._read[0] = max(self._read[0], self._lsns[0])
        self._lsns = self._read
        return self.vclock

    @property
    def file(self) -> Path | None:
        """The file that is being read, None before the first row."""
        return self._reader.path if self._reader else None

    @property
    def offset(self) -> int:
        """Where in `file` the next block begins, in bytes."""
        return self._offset

    def poll(self) -> Iterator[Block]:
        """All rows above `vclock` that are there now, each once, as blocks of whole transactions.

        Ends when there is no more yet, and at the end of what was the newest file when the first
        one was read, however fast others come. Raises `CorruptBlock`, `ChainGap`,
        `PositionUnavailable`.
        """
        last = ""  # that file
        while True:
            if self._reader is None and not self._open_first():
                return
            reader = self._reader
            assert reader is not None
            limit = self._limit(reader.path.name)
            settled = self._settled()  # asked last: what may be read was told before
            reader.refresh()
            self._safe_end = reader.size if limit is None else min(limit, reader.size)
            for item in reader.blocks(self._offset, is_live=True):
                if limit is not None and item.offset >= limit:
                    return
                if isinstance(item, Damage):
                    is_last = item.kind is DamageKind.CHECKSUM and item.lsn_after is None
                    if limit is None and (item.kind in TAIL_KINDS or is_last):
                        break  # it is being written; what is synced, or what more follows, is not
                    raise item.to_error()
                count = settled.count(item.columns)
                is_whole = count == len(item.columns)
                if is_whole:
                    self._offset = item.end
                elif not count:
                    return
                else:
                    item = item.first_rows(count)
                if self._read is not self._lsns:
                    item.columns.raise_lsns(self._read)
                above = item.above(self._lsns)
                self._level()
                if above is not None:
                    yield above.shown(settled)
                if self.is_given_up or not is_whole:
                    return
            self._safe_end = self._offset  # what is behind is no block, or not yet
            if last and reader.path.name >= last:
                return
            newest = self._open_next(reader)
            if not newest:
                return
            last = last or newest

    @property
    def is_ahead(self) -> bool:
        """Whether there was more in this file at the last `poll` than was taken."""
        return self._reader is not None and self._offset < self._safe_end

    def pack(self, taker: Taker, enough_bytes: int) -> bool:
        """Give `taker` the rows above `vclock` that come next, until it has `enough_bytes`, as far
        as they stand in whole blocks that were there at the last `poll`. What that iterates over
        must not go on then.

        False, and nothing given, where only a new `poll` tells what is next, or would not be known
        where the log was read to.
        """
        reader = self._reader
        if reader is None or not self.is_ahead or not self._is_all_settled:
            return False
        if not taker.counts_all:
            ahead = {i for i, lsn in enumerate(self._read) if lsn < self._lsns[i]}
            if ahead - {0}:
                return False
            self._passed_local |= bool(ahead)
        before = self._offset
        taker.begin(self._lsns)
        self._offset = reader.pack(before, self._safe_end, taker, enough_bytes)
        for replica_id, lsn in taker.last_lsns().items():
            self._lsns[replica_id] = max(lsn, self._lsns[replica_id])
            self._read[replica_id] = max(lsn, self._read[replica_id])
        self._level()
        return self._offset != before

    def _level(self) -> None:
        """Note whether the log was read up to the position."""
        if self._read is not self._lsns and self._read == self._lsns:
            self._read = self._lsns

    def _settled(self) -> Settled:
        """What is settled above the position."""
        if self._ask_settled is None:
            return ALL_SETTLED
        position = self.vclock
        found = self._ask_settled(position)
        self._is_all_settled = found.is_all_above(position)
        return found

    def _limit(self, name: str) -> int | None:
        """How many bytes of that file may be read, None for all."""
        if self._durable is None:
            return None
        newest, synced = self._durable()
        if name == newest.name:
            return synced
        return 0 if name > newest.name else None

    def _index(self) -> DirectoryIndex:
        return scan_directory(self.directory, self._filesystem)

    def _has_newer(self, name: str) -> bool:
        """Whether a later log is there, by names alone."""
        with explaining(self.directory):
            names = self._filesystem.list_directory(self.directory)
        return any(other > name and other.endswith(".xlog") for other in names)

    def _open_first(self) -> bool:
        """Open the last log that is not after the position."""
        if self._open_place():
            return True
        for _ in range(_ATTEMPTS):
            if self._lease is not None:
                self._lease.hold(0)  # nothing goes between the look and the opening
            index = self._index()
            files = index.xlogs_after(self.vclock)
            index.check_logs(files[0].signature if files else -1)
            index.check_start(self.vclock)
            if not files:
                return False
            if self._open(files[0]):
                self._read = array("Q", files[0].vclock.lsns())
                self._level()
                return True
        raise removed(self.vclock, files[0].vclock)

    def _open_place(self) -> bool:
        """Open the place that was given; it may be gone."""
        place, self._place = self._place, None
        if place is None:
            return False
        try:
            self._reader = WalReader(place[0], filesystem=self._filesystem)
        except FileNotFoundError:
            return False
        except WalError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise
        self._offset = place[1]
        self._read = array("Q", place[2].lsns())
        self._level()
        self._safe_end = 0
        return True

    def _open_next(self, reader: WalReader) -> str:
        """Open the file after `reader`'s, if it is there and `reader`'s is finished. Returns the
        name of the newest file, "" if there is nothing to go on with."""
        if not self._has_newer(reader.path.name):
            return ""
        index = self._index()
        index.check_logs(reader.meta.vclock.signature)
        files = index.xlogs
        later = [file for file in files if file.vclock.compare(reader.meta.vclock) == ">"]
        if not later:
            return ""
        following, newest = later[0], later[-1].path.name
        reader.refresh()
        ending = next(iter(reader.blocks(self._offset)), None)
        if isinstance(ending, Block):
            return newest  # it came between the last look and the rotation
        if isinstance(ending, Damage) and ending.kind not in TAIL_KINDS:
            raise ending.to_error()
        if not self.vclock.covers(following.vclock):
            if all(file.path.name != reader.path.name for file in files):
                raise removed(self.vclock, following.vclock)  # the oldest go first, ours did
            read = VClock(dict(enumerate(self._read)))
            raise ChainGap(
                f"the next file begins at {following.vclock}, the log so far ends at {read}.",
                path=str(following.path),
                expected=read,
                found=following.vclock,
                hint="rows are missing: `logweir verify` shows where",
            )
        if not self._open(following):
            return newest if self._open_first() else ""
        for replica_id, lsn in following.vclock.items():
            self._read[replica_id] = max(lsn, self._read[replica_id])
        self._level()
        return newest

    def _open(self, file: LogFile) -> bool:
        """Go on in `file`; False if it was removed since the folder was listed."""
        self._leave()
        if self._lease is not None:
            self._lease.hold(file.signature)
        try:
            self._reader = WalReader(file.path, filesystem=self._filesystem)
        except WalError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise
        self._offset = self._reader.first_block
        self._safe_end = 0
        return True
