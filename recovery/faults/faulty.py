"""A file system whose k-th call fails, and the loop that tries every k.

Calls are counted by kind (`KINDS`). A `Fault` says which kinds count, the number of the call that
fails, with which error, and how: a failing `write` may leave a part of its bytes in the file, as a
full disk does; a failing `sync` on a `SimFileSystem` makes what was to be synced doubtful. A `read`
can also be made with one bit wrong in what it gives (bit rot), which no error tells of.

`every_fault` is the loop that every durable operation is put through: fail call 1, look; fail call
2, look; … until the scenario passes without any call having failed.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from logweir.errors import LogweirError
from logweir.recovery.faults.sim import SimFile
from logweir.wal.filesystem import AppendFile, FileSystem, ReadFile

Buffer = bytes | bytearray | memoryview

WRITING: Final = frozenset(
    {
        "create",
        "open_append",
        "write",
        "truncate",
        "sync",
        "close",
        "rename",
        "remove",
        "make_directory",
        "remove_directory",
        "remove_tree",
        "sync_file",
        "sync_directory",
    }
)
"""Kinds of calls that change a disk."""

KINDS: Final = WRITING | {"open_read", "read", "size", "list_directory", "free_bytes", "lock"}
"""All kinds of calls."""

_CALLS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class Fault:
    """Which call fails. `at`: its number among the calls of `kinds`, from 1; `errno`: with what;
    `part`: how much of a failing write reaches the file, 0.0 … 1.0; `lasts`: whether all calls of
    these kinds fail from then on; `bit`: a `read` does not fail but gives that bit of its bytes
    flipped, counted from the first and again from there behind the last; None: it fails."""

    at: int
    kinds: Collection[str] = WRITING
    errno: int = errno.EIO
    part: float = 0.0
    lasts: bool = False
    bit: int | None = None


class FaultyFileSystem:
    """`inner`, with one call (or all from one on) failing as `fault` says; None: none fails."""

    def __init__(self, inner: FileSystem, fault: Fault | None = None) -> None:
        self.inner = inner
        self.counts: dict[str, int] = dict.fromkeys(sorted(KINDS), 0)
        """Calls so far, by kind."""
        self.failed = ""
        """The first call that failed, such as "write …/0.xlog", "" while none has."""
        self._whole = self  # that counts: this one also for the one in a folder that is held
        self.fault = fault

    @property
    def fault(self) -> Fault | None:
        """Which call fails, of those that come once it is set."""
        return self._fault

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        self._fault = fault
        self._counted = 0

    @property
    def readers(self) -> int:
        """As `FileSystem.readers`."""
        return self.inner.readers

    def open_read(self, path: Path) -> ReadFile:
        """As `FileSystem.open_read`."""
        self.call("open_read", path)
        return _FaultyReadFile(self._whole, self.inner.open_read(path))

    def create(self, path: Path) -> AppendFile:
        """As `FileSystem.create`."""
        self.call("create", path)
        return _FaultyAppendFile(self._whole, self.inner.create(path))

    def open_append(self, path: Path) -> AppendFile:
        """As `FileSystem.open_append`."""
        self.call("open_append", path)
        return _FaultyAppendFile(self._whole, self.inner.open_append(path))

    def rename(self, old: Path, new: Path) -> None:
        """As `FileSystem.rename`."""
        self.call("rename", old)
        self.inner.rename(old, new)

    def remove(self, path: Path) -> None:
        """As `FileSystem.remove`."""
        self.call("remove", path)
        self.inner.remove(path)

    def make_directory(self, path: Path) -> None:
        """As `FileSystem.make_directory`."""
        self.call("make_directory", path)
        self.inner.make_directory(path)

    def remove_directory(self, path: Path) -> None:
        """As `FileSystem.remove_directory`."""
        self.call("remove_directory", path)
        self.inner.remove_directory(path)

    def remove_tree(self, path: Path) -> None:
        """As `FileSystem.remove_tree`."""
        self.call("remove_tree", path)
        self.inner.remove_tree(path)

    def list_directory(self, path: Path) -> list[str]:
        """As `FileSystem.list_directory`."""
        self.call("list_directory", path)
        return self.inner.list_directory(path)

    def has_name(self, path: Path) -> bool:
        """As `FileSystem.has_name`."""
        self.call("list_directory", path)
        return self.inner.has_name(path)

    def sync_file(self, path: Path) -> None:
        """As `FileSystem.sync_file`."""
        self.call("sync_file", path)
        self.inner.sync_file(path)

    def sync_directory(self, path: Path) -> None:
        """As `FileSystem.sync_directory`."""
        self.call("sync_directory", path)
        self.inner.sync_directory(path)

    def free_bytes(self, path: Path) -> int | None:
        """As `FileSystem.free_bytes`."""
        self.call("free_bytes", path)
        return self.inner.free_bytes(path)

    def boot_id(self) -> str:
        """As `FileSystem.boot_id`; no call to a disk."""
        return self.inner.boot_id()

    @contextlib.contextmanager
    def lock(self, path: Path) -> Iterator[FileSystem]:
        """As `FileSystem.lock`."""
        self.call("lock", path)
        with self.inner.lock(path) as inner:
            held = copy.copy(self)
            held.inner = inner
            yield held

    def call(self, kind: str, path: Path) -> int | None:
        """Count a call; raise `OSError` if it is the one to fail. Returns which bit of what it
        gives has to be flipped, None: none."""
        whole = self._whole
        whole.counts[kind] += 1
        fault = whole.fault
        if fault is None or kind not in fault.kinds:
            return None
        whole._counted += 1
        if whole._counted == fault.at or (fault.lasts and whole._counted > fault.at):
            whole.failed = whole.failed or f"{kind} {path}"
            if fault.bit is not None and kind == "read":
                return fault.bit
            raise OSError(fault.errno, os.strerror(fault.errno), str(path))
        return None


def flipped(data: bytes, bit: int) -> bytes:
    """`data`, which is not empty, with one bit wrong: number `bit`, counted round and round."""
    wrong = bytearray(data)
    wrong[bit // 8 % len(data)] ^= 1 << bit % 8
    return bytes(wrong)


class _FaultyReadFile:
    def __init__(self, filesystem: FaultyFileSystem, inner: ReadFile) -> None:
        self.path = inner.path
        self._filesystem = filesystem
        self._inner = inner

    def size(self) -> int:
        self._filesystem.call("size", self.path)
        return self._inner.size()

    def read(self, count: int, offset: int) -> bytes:
        bit = self._filesystem.call("read", self.path)
        data = self._inner.read(count, offset)
        if bit is None or not data:
            return data
        return flipped(data, bit)

    def close(self) -> None:
        self._inner.close()


class _FaultyAppendFile:
    def __init__(self, filesystem: FaultyFileSystem, inner: AppendFile) -> None:
        self.path = inner.path
        self._filesystem = filesystem
        self._inner = inner

    def size(self) -> int:
        return self._inner.size()

    def write(self, parts: Sequence[Buffer]) -> None:
        self._inner.write(self._parts(parts, self._inner.write))

    def put(self, parts: Sequence[Buffer], offset: int) -> None:
        self._inner.put(self._parts(parts, lambda some: self._inner.put(some, offset)), offset)

    def _parts(
        self, parts: Sequence[Buffer], write: Callable[[Sequence[Buffer]], None]
    ) -> Sequence[Buffer]:
        """What is to be written. Where that is to fail, `write` a part of it and raise."""
        try:
            self._filesystem.call("write", self.path)
        except OSError:
            assert self._filesystem.fault is not None
            data = b"".join(parts)
            write([data[: int(len(data) * self._filesystem.fault.part)]])
            raise
        return parts

    def truncate(self, size: int) -> None:
        self._filesystem.call("truncate", self.path)
        self._inner.truncate(size)

    def sync(self) -> None:
        try:
            self._filesystem.call("sync", self.path)
        except OSError:
            if isinstance(self._inner, SimFile):
                self._inner.fail_sync()
            raise
        self._inner.sync()

    def close(self) -> None:
        self._inner.close()  # even a close that fails gives the descriptor back
        self._filesystem.call("close", self.path)


Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Run(Generic[Outcome]):
    """One pass of a scenario. `number`: which call failed; `failed`: what it was, "" in the last
    run, if none did; `outcome`: what the scenario returned; `error`: or what it raised."""

    number: int
    filesystem: FaultyFileSystem
    failed: str
    outcome: Outcome | None
    error: LogweirError | OSError | None


def every_fault(
    make: Callable[[], FileSystem],
    scenario: Callable[[FaultyFileSystem], Outcome],
    *,
    kinds: Collection[str] = WRITING,
    number: int = errno.EIO,
    part: float = 0.0,
    lasts: bool = False,
    step: int = 1,
) -> Iterator[Run[Outcome]]:
    """Run `scenario` on a fresh file system with its 1st, 2nd, … call failing.

    `make`: a file system as the scenario expects it; the other arguments as in `Fault`; `step`: 3
    for the 1st, 4th, 7th, … call only. Yields each
    run, and last the one in which no call failed. Raises what that last run raises, and whatever is
    neither of logweir's errors nor the system's.
    """
    for at in range(1, _CALLS_MAX, step):
        fault = Fault(at, kinds, number, part, lasts)
        filesystem = FaultyFileSystem(make(), fault)
        outcome, error = None, None
        try:
            outcome = scenario(filesystem)
        except (LogweirError, OSError) as caught:
            if not filesystem.failed:
                raise
            error = caught
        yield Run(at, filesystem, filesystem.failed, outcome, error)
        if not filesystem.failed:
            return
    raise RuntimeError(f"the scenario makes more than {_CALLS_MAX} calls")
