"""Writing a new folder from what a plan reads: what restore and repair have in common.

Logs first, the snapshot last: a folder without its snapshot is opened by nothing, and one that has
the mark of `recovery.unfinished`, which goes when all is durable, not by us. Rows are framed anew
in blocks of our own; they keep their bytes, their lsns and their transactions.

Where rows are missing a new log begins. Its `VClock` is where the rows go on, its `PrevVClock` the
log before, and its header says ``Hole: {1: 39} {1: 41}`` (see `recovery.report`). So the chain is
whole for a real Tarantool, which opens it, and every later examination still names the hole.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Final, Self, TypeVar

from logweir.errors import ConfigError, WalError
from logweir.limits import READ_WINDOW_BYTES
from logweir.recovery.replay import Batch
from logweir.recovery.report import HOLE_ITEM, Hole
from logweir.recovery.unfinished import UNFINISHED_NAME, mark_unfinished, unmark
from logweir.wal.block import EOF_MARKER, encode_block
from logweir.wal.endmark import END_MARK_NAME
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import FileSystem, explaining, make_folders
from logweir.wal.lease import LOCK_NAME
from logweir.wal.newfile import create_file
from logweir.wal.reader import Block, WalReader
from logweir.wal.vclock import VClock
from logweir.wal.writer import INPROGRESS, PROGRAM, AppendPoint, WalWriter, WriterOptions

T = TypeVar("T")
_ATTEMPTS: Final = 5
_DIGEST_BYTES: Final = 16
_OURS: Final = re.compile(rf"\d{{20}}\.(xlog|snap)({re.escape(INPROGRESS)})?")
_SYNC_BYTES: Final = 64 * 1024 * 1024
_GROUP_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What was read, and written anew. `vclock`: the state after it; `holes`: where rows are
    missing; `digest`: of the bytes of all rows."""

    vclock: VClock
    rows: int
    holes: tuple[Hole, ...]
    digest: bytes


def rewrite(
    items: Generator[Batch | Hole],
    to: Path | None,
    instance: uuid.UUID,
    start: VClock,
    filesystem: FileSystem,
) -> Rewritten:
    """Write batches and holes, which begin at `start`, as the logs of the folder `to`.

    `to`: None to only count. Raises `WalError`.
    """
    vclock, rows, digest = start, 0, blake2b(digest_size=_DIGEST_BYTES)
    holes: list[Hole] = []
    with ExitStack() as stack:
        stack.enter_context(closing(items))  # the file it reads, also when writing fails
        writer = None
        if to is not None:
            writer = stack.enter_context(LogRewriter(to, instance, start, filesystem))
        for item in items:
            if isinstance(item, Hole):
                holes.append(item)
                vclock = item.before or vclock
                if writer is not None:
                    writer.add_hole(item)
            else:
                vclock = item.vclock
                rows += item.last - item.first
                digest.update(item.data)
                if writer is not None:
                    writer.add(item)
        if writer is not None:
            writer.finish()
    return Rewritten(vclock, rows, tuple(holes), digest.digest())


@contextmanager
def new_target(source: Path, to: Path, what: str, filesystem: FileSystem) -> Iterator[None]:
    """Make the new folder, in which `what` is made from the folder `source`; it is locked and has
    the mark of `recovery.unfinished` meanwhile. What an earlier one left that was broken off is
    removed. Empties the folder where what is done in the context fails.

    Raises `ConfigError` if it holds anything else or is inside of `source`, `DirectoryLocked`, or
    `WalError`.
    """
    if to.resolve().is_relative_to(source.resolve()):
        hint = "name a folder beside it"
        raise ConfigError("to", f"{to} is inside of what is read, {source}.", hint=hint)
    with explaining(to):
        make_folders(filesystem, to)
    _check_free(to, filesystem)
    making = f"{what} of {source}"
    with explaining(to), filesystem.lock(to / LOCK_NAME):
        _check_free(to, filesystem)  # nobody has begun in it in between
        try:
            _remove_all_but_mark(to, filesystem)
            mark_unfinished(to, making, filesystem)
            yield
            failpoint("rewrite.before_unmark")
            unmark(to, filesystem)
        except BaseException:
            with suppress(OSError, WalError):
                if UNFINISHED_NAME not in (names := names_in(to, filesystem)) and len(names) > 1:
                    # It is whole, and has lost its mark: a half of it would have none.
                    mark_unfinished(to, making, filesystem)
                _remove_all_but_mark(to, filesystem)
                unmark(to, filesystem)
            raise
        finally:
            with suppress(OSError):
                filesystem.remove(to / LOCK_NAME)


def _check_free(to: Path, filesystem: FileSystem) -> None:
    """That a folder is empty, or holds what was broken off and nothing else."""
    names = names_in(to, filesystem)
    begun = {UNFINISHED_NAME, f"{UNFINISHED_NAME}.new"}
    if not names or begun >= set(names):
        return
    if UNFINISHED_NAME not in names:
        raise ConfigError("to", f"{to} is not empty.", hint="name a folder that does not exist yet")
    for name in names:
        if name not in begun and not name.startswith(END_MARK_NAME) and not _OURS.fullmatch(name):
            hint = "move it away, or name a folder that does not exist yet"
            raise ConfigError("to", f"{to} is unfinished, but {name} is no part of it.", hint=hint)


def _remove_all_but_mark(to: Path, filesystem: FileSystem) -> None:
    """Empty a folder durably, so that its mark may go."""
    for name in names_in(to, filesystem):
        if name != UNFINISHED_NAME:
            filesystem.remove(to / name)
    filesystem.sync_directory(to)


def while_files_go(make: Callable[[], T]) -> T:
    """What `make` returns; made again where a file went away that it had seen before."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return make()
        except WalError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
    return make()


def names_in(folder: Path, filesystem: FileSystem) -> tuple[str, ...]:
    """The names in a folder, without the lock's. Raises `WalError`."""
    with explaining(folder):
        return tuple(name for name in filesystem.list_directory(folder) if name != LOCK_NAME)


def file_digest(path: Path, filesystem: FileSystem) -> bytes:
    """A digest of a whole file. Raises `WalError`."""
    digest, offset = blake2b(digest_size=_DIGEST_BYTES), 0
    with explaining(path), closing(filesystem.open_read(path)) as file:
        while piece := file.read(READ_WINDOW_BYTES, offset):
            digest.update(piece)
            offset += len(piece)
    return digest.digest()


def copy_file(source: Path, target: Path, filesystem: FileSystem) -> None:
    """Copy a whole file and make the copy durable; it has its name only when it is complete."""
    temporary = target.with_name(target.name + INPROGRESS)
    with explaining(source):
        read = filesystem.open_read(source)
    with explaining(target):
        with closing(read), closing(create_file(filesystem, temporary)) as out:
            offset = 0
            while piece := read.read(READ_WINDOW_BYTES, offset):
                out.write([piece])
                offset += len(piece)
            out.sync()
        filesystem.rename(temporary, target)
        filesystem.sync_directory(target.parent)


def salvage_snapshot(source: Path, target: Path, filesystem: FileSystem) -> None:
    """Write the whole blocks of a damaged snapshot as a new one. Raises `WalError`."""
    temporary = target.with_name(target.name + INPROGRESS)
    with WalReader(source, filesystem=filesystem, skip_damage=True) as reader:
        hole = (HOLE_ITEM, str(Hole(reader.meta.vclock, None)))
        meta = replace(
            reader.meta, program=PROGRAM, version="0.13", unknown=(*reader.meta.unknown, hole)
        )
        with explaining(target):
            with closing(create_file(filesystem, temporary)) as out:
                out.write([meta.encode()])
                for item in reader.blocks():
                    if isinstance(item, Block):
                        out.write(encode_block(item.data))
                out.write([EOF_MARKER])
                out.sync()
            filesystem.rename(temporary, target)
            filesystem.sync_directory(target.parent)


class LogRewriter:
    """Writes batches and holes as a new log. `vclock`: the state before the first row."""

    def __init__(
        self, directory: Path, instance: uuid.UUID, vclock: VClock, filesystem: FileSystem
    ) -> None:
        self.directory = directory
        self._instance = instance
        self._filesystem = filesystem
        self._holes: list[Hole] = []
        self._vclock = vclock
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._unsynced_bytes = 0
        self._writer = self._open(vclock, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.abandon()

    def add(self, batch: Batch) -> None:
        """Write the rows of one batch. Raises `WalError`."""
        if not self._begun:
            self._begin()
        data = bytes(batch.data)
        self._pending.append(data)
        self._pending_bytes += len(data)
        self._vclock = batch.vclock
        if self._pending_bytes >= _GROUP_BYTES:
            self._flush()

    def add_hole(self, hole: Hole) -> None:
        """Record that rows are missing here; what comes next goes into a new file."""
        if hole.before is None or self._vclock.covers(hole.before):
            self._holes.append(hole)
            return
        if not self._begun:
            self._begin()  # a log that begins where the snapshot ends must be there
        self._flush()
        self._writer.close()
        self._holes.append(hole)
        self._writer = self._open(hole.before, self._writer.prev_vclock)

    def finish(self) -> None:
        """Close the last file; everything is durable then. Raises `WalError`."""
        self._flush()
        self._writer.close()
        if self._holes:
            if self._begun:
                self._writer = self._open(self._vclock, self._writer.prev_vclock)
            self._begin()
            self._writer.close()

    def _open(self, vclock: VClock, previous: VClock | None) -> WalWriter:
        self._vclock = vclock
        self._begun = False
        at = AppendPoint(vclock, previous)
        options = WriterOptions(is_synced=True)  # who is told that it is there finds it closed
        return WalWriter(
            self.directory, self._instance, at, options=options, filesystem=self._filesystem
        )

    def _begin(self) -> None:
        self._writer.begin([(HOLE_ITEM, str(hole)) for hole in self._holes])
        self._holes.clear()
        self._begun = True

    def _flush(self) -> None:
        if not self._pending:
            return
        self._writer.write(self._pending, self._vclock)
        self._unsynced_bytes += self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        if self._unsynced_bytes >= _SYNC_BYTES:
            self._writer.sync()
            self._unsynced_bytes = 0
