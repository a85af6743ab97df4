"""Copying a store to a place, again and again: closed logs, the open one's tail, snapshots.

Reads the folder like any other reader, so the store may run in another process. For each object:

1. the bytes are decoded where they lie: every checksum, row, transaction and lsn. Of the open log
   whole blocks are taken, and the log is synced before, so that the place never has rows that a
   power cut takes from the store;
2. they are put;
3. they are read back: a log or snapshot is decoded once more from there, a tail compared;
4. the entry is written: only from now on the object counts.

A kill in between leaves an object that counts nowhere. What is done is told by the entries, so the
next archiver goes on there, this one or another. Two at a time, of one store, do no harm.

It begins with the newest snapshot and what lies behind it. Files that are not archived yet are
leased, so the store does not collect them, up to `hold_bytes`.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from logweir.archive.catalog import DATA, Archived, Catalog, Keep
from logweir.archive.entry import Entry, Kind
from logweir.archive.objects import Objects, digest_of, pieces_of
from logweir.archive.reading import HashedFile, HeldFile, OneFile, Times
from logweir.errors import (
    ChainGap,
    ConfigError,
    CorruptBlock,
    CorruptFile,
    LogweirError,
    RecoveryRefused,
    WalError,
)
from logweir.limits import ARCHIVE_TAIL_BYTES, ARCHIVE_WAIT_SECONDS
from logweir.recovery.chain import border
from logweir.recovery.logscan import LogScan, scan_log, scan_snapshot
from logweir.recovery.report import Hole
from logweir.wal.closing import Closable
from logweir.wal.damage import FileEnd
from logweir.wal.directory import DirectoryIndex, LogFile, scan_directory
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import OS, FileSystem, ReadFile, explain
from logweir.wal.lease import Lease
from logweir.wal.vclock import VClock, vclock_json

_DAMAGE: Final = (CorruptFile, CorruptBlock, ChainGap, RecoveryRefused)
_SEEN_AGAIN_BYTES: Final = 4096
_DOUBT_SECONDS: Final = 0.2


@dataclass(slots=True)
class Progress:
    """How far an archiver is. `started`: when the last look began that archived all that it saw,
    None before; `vclock`, `file`, `offset`: how far both are archived; `objects`, `bytes`,
    `removed`: put and removed by this archiver; `errors`: looks that failed; `error`: why the last
    one did, "" where it did not; `damaged`: files that cannot be archived, and why."""

    started: float | None = None
    vclock: VClock = field(default_factory=VClock)
    file: str = ""
    offset: int = 0
    objects: int = 0
    bytes: int = 0
    removed: int = 0
    errors: int = 0
    error: str = ""
    damaged: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """In plain values."""
        return {**asdict(self), "vclock": vclock_json(self.vclock)}


class Archiver(Closable):
    """Archives the store in `directory` at `objects`.

    `keep`: what is removed there; `hold_bytes`: of closed logs that are kept for it in the folder,
    0 without bound; `tell`: called once for each file that cannot be archived. Raises `ConfigError`
    where the place is another store's or has another history of this one, `WalError`.
    """

    def __init__(
        self,
        directory: Path,
        objects: Objects,
        *,
        keep: Keep | None = None,
        hold_bytes: int = 0,
        filesystem: FileSystem = OS,
        clock: Callable[[], float] = time.time,
        tell: Callable[[LogweirError], object] = lambda error: None,
    ) -> None:
        self.directory = directory
        self.progress = Progress()
        self._keep = keep or Keep()
        self._hold_bytes = hold_bytes
        self._filesystem = filesystem
        self._clock = clock
        self._tell = tell
        self._doubted: tuple[str, int] | None = None
        self._every = 0.0
        self._looked = 0.0  # when the logs were looked at last
        self._in_snapshot = False
        self._lease = Lease(directory)
        try:
            self._lease.hold(0)
            self.catalog = Catalog.load(objects)
            self._begin()
        except BaseException:
            self._lease.close()
            raise

    def close(self) -> None:
        """Give the store's files free."""
        self._lease.close()

    # --- one look, and many -----------------------------------------------------------------------

    def look(self) -> Progress:
        """Archive what there is now. Raises `WalError` if the place or the folder fails; what
        is damaged is told, and left out."""
        started = self._clock()
        index = self._index()
        try:
            self._logs(index)
            self._snapshots(index)
            catalog = self.catalog
            self.progress.removed += catalog.remove(catalog.replaced())
            self.progress.removed += catalog.remove(catalog.unneeded(self._keep, started))
        finally:
            self._hold(index)
        self.progress.started = started
        self.progress.error = ""
        return self.progress

    def follow(
        self, every: float, stop: threading.Event, report: Callable[[Progress], object]
    ) -> None:
        """`look` every so many seconds until `stop` is set; less often while it fails. Raises
        `ConfigError` as the constructor does; all else is told to `report`, after each look."""
        self._every = every
        wait = every
        while True:
            try:
                self.look()
                wait = every
            except ConfigError:
                raise
            except (LogweirError, OSError) as error:
                self.progress.errors += 1
                self.progress.error = str(error)
                wait = min(max(2 * wait, 1.0), max(ARCHIVE_WAIT_SECONDS, every))
            report(self.progress)
            if stop.wait(wait):
                return

    # --- what belongs together --------------------------------------------------------------------

    def _begin(self) -> None:
        """Check that the place is this store's, at an earlier time."""
        index = self._index()
        if self.catalog.instance is not None:
            self.catalog.belong(self._instance)
            self.catalog.settle()
            logs = self.catalog.logs()
            if logs:
                self._check_history(index, logs[-1])
            self._note()
            self.progress.removed += self.catalog.sweep()

    def _index(self) -> DirectoryIndex:
        index = scan_directory(self.directory, self._filesystem)
        if index.instance is None:
            raise index.unusable()
        self._instance = index.instance
        for damage in index.damage:
            self._damaged(Path(damage.file).name, damage.to_error())
        return index

    def _check_history(self, index: DirectoryIndex, newest: Archived) -> None:
        """Raise `ConfigError` if the folder has not what was archived last, and never had."""
        part = newest.parts[-1]
        number = part.signature
        if any(log.path.name == part.file for log in index.xlogs):
            with contextlib.suppress(CorruptFile), self._reading(part.file) as file:
                if digest_of(pieces_of(file, part.offset, part.end)) == part.sha256:
                    return
        elif index.xlogs and index.xlogs[0].signature > number:
            return  # it was collected since
        elif not index.xlogs and index.snaps[-1].vclock.covers(part.vclock):
            return
        raise self._other_history(part.file, part.vclock)

    def _other_history(self, file: str, vclock: VClock) -> ConfigError:
        text = f"{self.catalog.objects.location} has {file} up to {vclock}, {self.directory} not"
        hint = "the store was set back, or lost its end: archive it to another place; the old one "
        return ConfigError("place", text, hint=hint + "restores what it has")

    def _hold(self, index: DirectoryIndex) -> None:
        """Lease what is not archived, and the newest log."""
        failpoint("archive.before_lease")
        waiting = [log for log in index.xlogs[:-1] if self._is_wanted(log, index)]
        size = sum(log.size for log in waiting)
        while waiting and self._hold_bytes and size > self._hold_bytes:
            size -= waiting.pop(0).size
        newest = index.xlogs[-1].signature if index.xlogs else index.snaps[-1].signature
        self._lease.hold(min([newest, *(log.signature for log in waiting)]))

    # --- logs -------------------------------------------------------------------------------------

    def _is_wanted(self, log: LogFile, index: DirectoryIndex) -> bool:
        """Whether a closed log is to be archived and is not."""
        name = log.path.name
        if name in self.catalog.entries or name in self.progress.damaged:
            return False
        oldest = min((one.file for one in self.catalog.logs()), default="")
        if oldest:
            return name >= oldest
        there = self.catalog.snapshots() or index.snaps
        behind = index.xlogs_after(there[-1].vclock) if there else []
        return log in (behind or index.xlogs)

    def _logs(self, index: DirectoryIndex) -> None:
        self._looked = self._clock()
        for log, following in zip(index.xlogs, [*index.xlogs, None][1:], strict=True):
            try:
                if following is None:
                    while self._tail(log):
                        pass
                    self._merge(log)
                elif self._is_wanted(log, index):
                    self._closed(log, following)
            except _DAMAGE as error:
                if following is None:
                    raise
                self._damaged(log.path.name, error)

    def _closed(self, log: LogFile, following: LogFile) -> None:
        scan, times = self._scanned(log, self._filesystem)
        if not scan.is_torn_in_order and scan.tail is not None:
            raise scan.tail.to_error()
        report = scan.report
        if (found := border(log, scan.reached, report.end_offset, following)) is not None:
            raise found.to_error()
        end = report.size if report.end is FileEnd.CLEAN else report.end_offset
        self._check_start(log)
        self._file("log", log, end, scan, times)

    def _tail(self, log: LogFile) -> bool:
        """Archive the next blocks of the newest log. Whether there may be more."""
        name = log.path.name
        before = self.catalog.log(name)
        offset, at = (0, log.vclock) if before is None else (before.end, before.vclock)
        window = ARCHIVE_TAIL_BYTES
        with self._reading(name) as file:
            while True:
                data = file.read(window, offset)
                if not data and file.size() < offset:
                    raise self._other_history(name, at)
                held = OneFile(HeldFile(file, data, offset))
                try:
                    scan, times = self._scanned(log, held, offset or None, at if offset else None)
                except _DAMAGE:
                    # Blocks are written while they are read: damage is what is there twice.
                    if self._doubted == (name, offset):
                        raise
                    self._doubted = name, offset
                    if not self._every:  # no other look comes
                        time.sleep(_DOUBT_SECONDS)
                    return not self._every
                is_full = len(data) == window
                if scan.report.rows or not is_full or scan.report.end is not FileEnd.TORN_TAIL:
                    break
                window *= 4  # one block is larger
            if not scan.report.rows:
                return False
            self._filesystem.sync_file(log.path)
            end = scan.report.end_offset
            data = data[: end - offset]
            again = min(len(data), _SEEN_AGAIN_BYTES)
            if file.read(again, end - again) != data[-again:]:
                return False  # the write failed, and was cut off
        if before is None:
            self._check_start(log)
        self._put_tail(log, offset, None if before is None else at, data, scan, times)
        return is_full

    def _merge(self, log: LogFile) -> None:
        """Put small tails of a log as one, which takes their place."""
        archived = self.catalog.log(log.path.name)
        parts = () if archived is None else archived.mergeable()
        if not parts:
            return
        first, last = parts[0], parts[-1]
        with self._reading(log.path.name) as file:
            data = file.read(last.end - first.offset, first.offset)
            held = OneFile(HeldFile(file, data, first.offset))
            at = first.start if first.offset else None
            scan, times = self._scanned(log, held, first.offset or None, at)
        if (scan.report.end_offset, scan.reached) != (last.end, last.vclock):
            raise self._other_history(log.path.name, last.vclock)
        self._put_tail(log, first.offset, first.start, data, scan, times)

    def _put_tail(
        self,
        log: LogFile,
        offset: int,
        start: VClock | None,
        data: bytes,
        scan: LogScan,
        times: Times,
    ) -> None:
        """Put bytes of a log that were decoded, and read them back."""
        entry = self._entry("tail", log, offset, len(data), scan, times)
        entry = replace(entry, start=start or entry.start, sha256=digest_of([data]))
        self._put(entry, [data])
        with closing(self.catalog.objects.open(DATA + entry.name)) as stored:
            self._check_stored(entry, digest_of(pieces_of(stored, 0, stored.size())))
        self._count(entry)

    def _check_start(self, log: LogFile) -> None:
        """Tell of rows between what is archived and this log that are nowhere."""
        logs = [one for one in self.catalog.logs() if one.file < log.path.name]
        if logs and not logs[-1].vclock.covers(_start(log)):
            found = logs[-1].vclock
            text = f"the log begins at {log.vclock}, archived is what goes to {found}."
            hint = "a snapshot behind it begins a new range; `logweir archive status` tells them"
            self._tell(
                ChainGap(text, path=str(log.path), expected=found, found=log.vclock, hint=hint)
            )

    # --- snapshots --------------------------------------------------------------------------------

    def _snapshots(self, index: DirectoryIndex) -> None:
        there = self.catalog.snapshots()
        usable = [one for one in index.snaps if one.path.name not in self.progress.damaged]
        wanted = usable[-1:] if not there else usable
        for snap in wanted:
            if snap.path.name in self.catalog.entries or (
                there and snap.signature < there[0].signature
            ):
                continue
            self._in_snapshot = True
            try:
                scan, times = self._scanned(snap, self._filesystem)
                self._file("snapshot", snap, scan.report.size, scan, times)
            except _DAMAGE as error:
                self._damaged(snap.path.name, error)
            finally:
                self._in_snapshot = False

    def _between(self, _: int = 0) -> None:
        """While a snapshot is archived, which may take long, the log goes on."""
        if self._in_snapshot and self._every and self._clock() - self._looked >= self._every:
            self._in_snapshot = False
            try:
                self._logs(self._index())
            finally:
                self._in_snapshot = True

    # --- objects ----------------------------------------------------------------------------------

    def _scanned(
        self,
        log: LogFile,
        filesystem: FileSystem,
        offset: int | None = None,
        vclock: VClock | None = None,
    ) -> tuple[LogScan, Times]:
        """Decode a file, or what is behind `offset`. Raises what is wrong with it."""
        times = Times()
        if log.suffix == "snap":
            scan = scan_snapshot(log, filesystem, self._between)
        else:
            scan = scan_log(
                log, filesystem, self._between, offset=offset, vclock=vclock, look=times
            )
        if scan.located:
            raise scan.located[0].damage.to_error()
        return scan, times

    def _file(self, kind: Kind, log: LogFile, end: int, scan: LogScan, times: Times) -> None:
        """Put a whole file, up to `end`, and decode it once more where it was put."""
        entry = self._entry(kind, log, 0, end, scan, times)
        digest = hashlib.sha256()

        def pieces() -> Iterator[bytes]:
            with self._reading(log.path.name) as file:
                for piece in pieces_of(file, 0, end):
                    digest.update(piece)
                    yield piece
                    self._between()

        self._put(entry, pieces())
        entry = replace(entry, sha256=digest.hexdigest())
        with closing(self.catalog.objects.open(DATA + entry.name)) as stored:
            hashed = HashedFile(stored)
            where = replace(log, path=Path(f"{self.catalog.objects.location}/{DATA}{entry.name}"))
            try:
                again, _ = self._scanned(where, OneFile(hashed))
                is_same = (again.report.rows, again.reached) == (entry.rows, entry.vclock)
                found = hashed.sha256() if is_same else ""
            except _DAMAGE as error:
                raise self._not_stored(entry, error) from error
        self._check_stored(entry, found)
        self._count(entry)

    def _entry(
        self, kind: Kind, log: LogFile, offset: int, size: int, scan: LogScan, times: Times
    ) -> Entry:
        return Entry(
            kind=kind,
            instance=self._instance,
            file=log.path.name,
            offset=offset,
            size=size,
            sha256="",
            start=_start(log),
            vclock=log.vclock if kind == "snapshot" else scan.reached,
            rows=scan.report.rows,
            first_time=times.first,
            last_time=times.last,
            archived=self._clock(),
        )

    def _put(self, entry: Entry, pieces: Iterable[bytes]) -> None:
        self.catalog.belong(entry.instance)
        failpoint("archive.before_put")
        self.catalog.objects.put(DATA + entry.name, pieces)
        failpoint("archive.after_put")

    def _check_stored(self, entry: Entry, sha256: str) -> None:
        if sha256 != entry.sha256:
            raise self._not_stored(entry)

    def _not_stored(self, entry: Entry, why: LogweirError | None = None) -> WalError:
        text = "what was read back is not what was stored"
        text += "." if not isinstance(why, WalError) else f": {why.reason}"
        hint = "it is tried again; if that stays so, look at the disk or the object store"
        where = f"{self.catalog.objects.location}/{DATA}{entry.name}"
        return WalError(text, path=where, hint=hint)

    def _count(self, entry: Entry) -> None:
        """Let an object count that was read back."""
        self.catalog.add(entry)
        self.progress.objects += 1
        self.progress.bytes += entry.size
        self._note()

    def _note(self) -> None:
        """Tell how far the archive goes."""
        progress = self.progress
        for one in self.catalog.snapshots()[-1:]:
            progress.vclock = progress.vclock.merge(one.vclock)
        for log in self.catalog.logs()[-1:]:
            progress.vclock = progress.vclock.merge(log.vclock)
            progress.file, progress.offset = log.file, log.end

    def _damaged(self, name: str, error: LogweirError) -> None:
        if name not in self.progress.damaged:
            self.progress.damaged[name] = str(error)
            self._tell(error)

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[ReadFile]:
        path = self.directory / name
        try:
            with closing(self._filesystem.open_read(path)) as file:
                yield file
        except OSError as error:
            raise explain(error, str(path)) from error


def _start(log: LogFile) -> VClock:
    """The state before a log's first row, or where what a repair lost before it begins."""
    if log.suffix == "xlog":
        for hole in Hole.in_header(log.meta):
            if hole.before == log.vclock:
                return hole.after
    return log.vclock
