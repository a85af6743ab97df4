"""Writing the log: blocks at the end of one file, files in a chain.

A batch is one or more blocks, written with one call. After `write` the rows are in the file; after
`sync` they are on stable storage. What stands in the way:

* a failed or short write: the file is cut back to the last good byte and `WriteFailed` raised;
  nothing of the batch is in the log and the next one may be tried;
* a failed sync, or a failed cut: the writer is *poisoned*. What the disk then holds is not known
  (the system may have dropped the data and forgotten that it did), so nothing more is written
  or acknowledged until the folder is opened again;
* zeros that are written ahead (`write_ahead_bytes`), so that a sync of what goes over them need not
  save the file's size too. They are written behind a sync, long before they are needed, and a
  filler (`wal.filler`) behind the last block stands for them. If they cannot be written the log
  goes on without;
* a full file (`max_bytes`, looked at before a batch): EOF marker, sync, and a new file whose
  `PrevVClock` is the old one's `VClock`. A new file is made as `….xlog.inprogress`, gets its
  header, is synced, renamed, and its folder synced, before any row in it may be acknowledged.

The next file is made by the first write after the close, so a folder that nothing is written to
gets no new files.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logweir.errors import ConfigError, UsedAfterFork, WalError, WriteFailed, WriterPoisoned
from logweir.limits import (
    COMPRESS_THRESHOLD_BYTES,
    WAL_MAX_SIZE_BYTES,
    WRITE_AHEAD_BYTES,
    WRITE_AHEAD_MAX_BYTES,
)
from logweir.wal.block import EOF_MARKER, Pieces
from logweir.wal.endmark import EndMarks
from logweir.wal.failpoint import ARMED, failpoint
from logweir.wal.filesystem import OS, FileSystem, explain, give_up
from logweir.wal.filler import FILLER_BYTES, encode_filler, has_spare
from logweir.wal.meta import SYNCED, Meta
from logweir.wal.newfile import create_file
from logweir.wal.process import OfProcess
from logweir.wal.resync import Unsynced
from logweir.wal.tail import Buffer, Tail
from logweir.wal.vclock import VClock

VERSION: Final = "0.1.0"
"""Of logweir."""

PROGRAM: Final = f"logweir {VERSION}"
"""What logweir writes as `Version` into a file's header; see `wal.meta`."""

INPROGRESS: Final = ".inprogress"
_ZEROS: Final = bytes(64 * 1024)

Written = tuple[Path, int, int, Buffer]
"""A file, the bytes in it, where its last block begins, and what begins with that block's header.
See `wal.place`."""


def file_name(vclock: VClock, kind: str) -> str:
    """The name of a file: the signature in 20 digits and the kind (`xlog` or `snap`)."""
    return f"{vclock.signature:020d}.{kind}"


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """`is_synced`: each write is synced before it is acknowledged; the headers of new logs say so,
    and a log that says so is not gone on with where it is not; `max_bytes`: rotate from this size
    on; `compress_threshold_bytes`: zstd from this size of a block on, None never; `compress_level`:
    of zstd, 1 … 22; `write_ahead_bytes`: most zeros behind the last block, 0 none; there are none
    in a log that is not synced."""

    is_synced: bool = False
    max_bytes: int = WAL_MAX_SIZE_BYTES
    compress_threshold_bytes: int | None = COMPRESS_THRESHOLD_BYTES
    compress_level: int = 1
    write_ahead_bytes: int = WRITE_AHEAD_BYTES

    def __post_init__(self) -> None:
        if self.max_bytes < 2:
            raise ConfigError("wal_max_size", f"{self.max_bytes} is not over 1 byte")
        if not 1 <= self.compress_level <= 22:
            raise ConfigError("compress_level", f"{self.compress_level} is not in 1 … 22")
        if not 0 <= self.write_ahead_bytes <= WRITE_AHEAD_MAX_BYTES:
            text = f"{self.write_ahead_bytes} is not in 0 … {WRITE_AHEAD_MAX_BYTES} bytes"
            raise ConfigError("write_ahead", text, hint="0 turns writing ahead off")


@dataclass(frozen=True, slots=True)
class AppendPoint:
    """Where a writer goes on: what reading the folder found.

    `vclock`: of the last row in the log; `prev_vclock`: the `VClock` of the newest xlog, None if
    there is none; `path` and `size`: that file, if the writer is to go on in it after cutting it to
    `size` bytes (its torn tail or EOF marker go), else None, and `meta`: its header; `replaces`: an
    xlog of another program that holds no row and whose name the next file needs; `unsynced`: the
    end of the newest log, which is to be made stable (`wal.resync`) before rows of it are used;
    `is_logged`: whether the log goes that far, and not the state alone (durability "none").
    """

    vclock: VClock
    prev_vclock: VClock | None = None
    path: Path | None = None
    size: int = 0
    meta: Meta | None = None
    replaces: Path | None = None
    unsynced: Unsynced | None = None
    is_logged: bool = True


class WalWriter(OfProcess):
    """Appends blocks to the log of one folder. For one thread at a time.

    `directory`: the folder; `instance`: UUID for new files; `at`: from recovery. Opening cuts the
    file named by `at` and syncs it; raises `WalError` if that cannot be done.
    """

    def __init__(
        self,
        directory: Path,
        instance: uuid.UUID,
        at: AppendPoint,
        *,
        options: WriterOptions | None = None,
        filesystem: FileSystem = OS,
    ) -> None:
        self.directory = directory
        self.options = options or WriterOptions()
        self._instance = instance
        self._filesystem = filesystem
        self._vclock = at.vclock
        self._prev_vclock = at.prev_vclock
        self._replaces = at.replaces
        self._is_logged = at.is_logged
        self._header_items: tuple[tuple[str, str], ...] = ()
        self._current: Tail | None = None
        self._poison: BaseException | None = None
        self._syncing = threading.Lock()  # held by the background sync, and by close
        self.last_block: Written | None = None
        """The end of what this writer wrote, also of a file that is closed by now; None before the
        first write."""
        self.end_marks = EndMarks(directory, instance, filesystem)
        """Says beside the logs how far they went."""
        self.syncs = 0
        """How many times `sync` reached the disk."""
        if at.path is not None:
            self._reopen(at, at.path)
            if at.meta is not None and at.meta.is_synced and not self.options.is_synced:
                try:
                    self._begin_weaker(at.meta)
                except BaseException:
                    self.abandon()
                    raise
        self._belong()

    @property
    def vclock(self) -> VClock:
        """The state after the last batch written."""
        return self._vclock

    @property
    def prev_vclock(self) -> VClock | None:
        """`VClock` of the newest closed log, None if there is none."""
        return self._prev_vclock

    @property
    def path(self) -> Path | None:
        """The file being written, None before the first write."""
        return self._current.path if self._current else None

    @property
    def end(self) -> tuple[Path, int] | None:
        """The file being written and its bytes, None before the first write."""
        current = self._current
        return None if current is None else (current.path, current.size)

    @property
    def size(self) -> int:
        """Bytes in the file being written, 0 if there is none."""
        return self._current.size if self._current else 0

    @property
    def is_poisoned(self) -> bool:
        """Whether a sync failed: see `WriterPoisoned`."""
        return self._poison is not None

    @property
    def is_full(self) -> bool:
        """Whether the next batch closes the current file, or has to make the first."""
        return self._current is None or self._current.size >= self.options.max_bytes

    def write(self, blocks: Sequence[Buffer | Pieces], vclock: VClock) -> int:
        """Append a batch; nothing is synced.

        `blocks`: row bytes, whole transactions in each; `vclock`: the state after the last row.
        Returns the file's size after it. Raises `WriteFailed` (nothing of it is in the log),
        `WriterPoisoned`.
        """
        if self._poison is not None:
            self._check()
        current = self._current
        if current is None or current.size >= self.options.max_bytes:
            try:
                current = self._file_for_write()
            except OSError as error:
                raise self._failed(error, "cannot begin a new log file") from error
        options = self.options
        parts, size = current.framed(
            blocks, options.compress_threshold_bytes, options.compress_level
        )
        if ARMED:
            failpoint("wal.before_write")
        if refused := self._put(current, parts, size, vclock):
            if refused.errno == errno.EFBIG and current.start != self._vclock:
                self.rotate()  # it may fit where nothing is before it
                return self.write(blocks, vclock)
            raise self._failed(refused, "cannot write to the log", current.size) from refused
        if ARMED:
            failpoint("wal.after_write_before_sync")
        return size

    def _put(self, current: Tail, parts: list[Buffer], size: int, vclock: VClock) -> OSError | None:
        """Write blocks, or cut the file and tell why they could not be written."""
        before = current.size
        try:
            try:
                current.put(parts, size)
            except OSError as error:
                self._cut(current, before, error)
                return error
            self._vclock = vclock
            self.last_block = (current.path, size, current.begin, current.head)
        except BaseException as error:
            self._stopped(error)
            raise
        return None

    def begin(self, header_items: Sequence[tuple[str, str]] = ()) -> None:
        """Make the next file now, though it may stay empty. There must be none open.

        `header_items`: further lines of its header, which other readers ignore.
        Raises `WriteFailed`, `WriterPoisoned`.
        """
        self._check()
        assert self._current is None
        self._header_items = tuple(header_items)
        try:
            self._current = self._create()
        except OSError as error:
            raise self._failed(error, "cannot begin a new log file") from error
        self._header_items = ()

    def sync(self) -> None:
        """Return when everything written is on stable storage. Raises `WriterPoisoned`."""
        if self._poison is not None:
            self._check()
        current = self._current
        if current is None or current.synced == current.size:
            return
        self._sync(current)
        if ARMED:
            failpoint("wal.after_sync")
        if step := current.zeros_wanted(self.options.write_ahead_bytes):
            self._write_ahead(current, step)

    @property
    def unsynced_bytes(self) -> int:
        """Bytes in the file being written that are not known to be on stable storage."""
        current = self._current
        return 0 if current is None else current.size - current.synced

    def sync_in_background(self) -> None:
        """Sync what is written by now, in another thread than the one that goes on writing: so that
        closing the file does not take long. Raises `WriterPoisoned`."""
        with self._syncing:
            current = self._current
            if current is None or self._poison is not None:
                return
            size = current.size
            self.syncs += 1
            try:
                current.file.sync()
            except OSError as error:
                raise self._poisoned(error, "a sync of the log failed") from error
            current.synced = max(current.synced, size)

    def rotate(self) -> None:
        """Close the current file; the next write begins a new one. Nothing if it has no rows."""
        with self._syncing:
            self._check()
            if self._current is not None and self._current.start != self._vclock:
                self._close_current()

    def close(self) -> None:
        """Write the EOF marker, sync and close. After poisoning: only close. Twice: nothing."""
        with self._syncing:
            current = self._current
            if current is None:
                return
            if self._poison is not None:
                self._current = None
                give_up(current.file)
            else:
                self._close_current()

    def abandon(self) -> None:
        """Close the file as it is, without EOF marker, as a killed process leaves it."""
        with self._syncing:
            if self._current is not None:
                give_up(self._current.file)
                self._current = None

    # --- inside -----------------------------------------------------------------------------------

    def _what(self) -> str:
        return f"the log in {self.directory}"

    def _left_behind(self) -> None:
        self._syncing = threading.Lock()
        self._current = None  # its file closes itself
        self._poison = UsedAfterFork(self._what())

    def _check(self) -> None:
        self.check_process()
        if self._poison is not None:
            why = f"a sync failed: {self._poison}"
            if not isinstance(self._poison, OSError):
                why = f"{type(self._poison).__name__} stopped a write"
            raise WriterPoisoned(
                f"the log takes nothing more since {why}.",
                path=str(self.path or self.directory),
                first_cause=self._poison,
            )

    def _failed(self, error: OSError, what: str, offset: int | None = None) -> WriteFailed:
        known = explain(error, "")
        return WriteFailed(
            f"{what}: {known.reason}",
            path=str(self.path or self.directory),
            offset=offset,
            errno=error.errno or 0,
            hint=known.hint,
        )

    def _poisoned(self, error: OSError, what: str) -> WriterPoisoned:
        self._poison = error
        where = str(self.path or self.directory)
        return WriterPoisoned(f"{what}: {error.strerror or error}.", path=where, first_cause=error)

    def _cut(self, current: Tail, size: int, cause: OSError) -> None:
        failpoint("wal.before_cut")
        try:
            current.cut(size)
        except OSError as error:
            raise self._poisoned(error, f"after a failed write ({cause}) the cut failed") from cause

    def _write_ahead(self, current: Tail, step: int) -> None:
        """Have so many zeros behind what is synced."""
        options, size = self.options, current.size
        filled = min(size + step, options.max_bytes)
        before = max(current.filled, size + FILLER_BYTES)
        few = not options.is_synced or filled - size <= 2 * FILLER_BYTES
        if few or not has_spare(self._filesystem, current.path, filled - before):
            return
        current.filled = filled  # also if what follows is interrupted
        whole, rest = divmod(filled - before, len(_ZEROS))
        zeros = filled - size - FILLER_BYTES
        try:
            current.file.put([encode_filler(zeros + 1)], size)
            current.file.put([_ZEROS] * whole + [_ZEROS[:rest]], before)
            current.file.put([encode_filler(zeros)], size)
        except OSError as error:
            current.takes_zeros = False  # the disk may be full but for what is to be written
            with contextlib.suppress(WriterPoisoned):  # it is synced; who writes next is told
                self._cut(current, size, error)

    def _sync(self, current: Tail) -> None:
        self.syncs += 1
        try:
            current.sync()
        except OSError as error:
            raise self._poisoned(error, "a sync of the log failed") from error

    def _reopen(self, at: AppendPoint, path: Path) -> None:
        try:
            file = self._filesystem.open_append(path)
        except OSError as error:
            raise explain(error, str(path)) from error
        try:
            if file.size() != at.size:
                file.truncate(at.size)
            file.sync()
        except OSError as error:
            give_up(file)
            raise explain(error, str(path), at.size) from error
        self._current = Tail(file, path, at.prev_vclock or VClock(), at.size)

    def _begin_weaker(self, meta: Meta) -> None:
        """Leave a log whose header promises more than what is written from now on will keep."""
        current = self._current
        assert current is not None
        if current.start != self._vclock:
            self.rotate()
            return
        self.abandon()  # it holds no row, and its name is wanted
        self._prev_vclock, self._replaces = meta.prev_vclock, current.path

    def _file_for_write(self) -> Tail:
        current = self._current
        if current is not None and current.size >= self.options.max_bytes:
            self.rotate()  # not of an empty file: the next one would have its name
        if self._current is None:
            self._current = self._create()
        return self._current

    def _close_current(self) -> None:
        current = self._current
        if current is None:
            return
        try:
            self._finish(current)
        except BaseException as error:
            self._stopped(error)
            raise

    def _stopped(self, error: BaseException) -> None:
        """What has to be ended once it has begun was not, as by an interrupt: unless it is an error
        of ours nobody knows what stands in the file. No more is written, and no mark of its end."""
        if not isinstance(error, WalError):
            self._poison = self._poison or error

    def _finish(self, current: Tail) -> None:
        before = current.size
        is_ahead = current.filled > before
        if is_ahead:
            try:
                current.file.truncate(before)
            except OSError as error:
                raise self._failed(error, "cannot close the log file", before) from error
            current.filled = before
        if current.synced != before or is_ahead:
            # So that an EOF marker says: everything before it was synced, and nothing follows.
            self._sync(current)
        try:
            current.file.write([EOF_MARKER])
        except OSError as error:
            self._cut(current, before, error)
            if error.errno != errno.EFBIG:
                raise self._failed(error, "cannot close the log file", before) from error
            # The file has not even room for that: it stays as a killed process leaves it.
        else:
            current.size = current.filled = before + len(EOF_MARKER)
            failpoint("wal.after_eof_before_sync")
        self._sync(current)
        self._prev_vclock = current.start
        self._current = None
        try:
            current.file.close()
        except OSError as error:
            raise self._poisoned(error, "closing the log file failed") from error
        failpoint("wal.after_close")
        if self._is_logged:
            self.end_marks.put(current.path, before, self._vclock)
        self._is_logged = True  # what comes is in a file that begins here

    def _create(self) -> Tail:
        path = self.directory / file_name(self._vclock, "xlog")
        temporary = path.with_name(path.name + INPROGRESS)
        meta = Meta(
            kind="XLOG",
            vclock=self._vclock,
            instance=self._instance,
            prev_vclock=self._prev_vclock,
            program=PROGRAM + SYNCED if self.options.is_synced else PROGRAM,
            unknown=self._header_items,
        )
        file = create_file(self._filesystem, temporary)
        renamed = False
        try:
            file.write([meta.encode()])
            file.sync()
            failpoint("wal.before_rename")
            taken = path.name in self._filesystem.list_directory(self.directory)
            if taken and path != self._replaces:
                raise FileExistsError(errno.EEXIST, "a log file of that name exists", str(path))
            self._filesystem.rename(temporary, path)
            renamed = True
            failpoint("wal.after_rename_before_directory_sync")
            self._filesystem.sync_directory(self.directory)
        except OSError as error:
            give_up(file)
            if renamed:  # its name may or may not survive: nothing may be written behind it
                raise self._poisoned(error, "a new log file's name could not be synced") from error
            raise
        return Tail(file, path, self._vclock, file.size())
