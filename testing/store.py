"""A logweir store to crash: its log is on a simulated disk, its clock stands still.

`CrashStore.open` opens it. Then it can be killed (what was written stays), lose its power (what
was not synced may be lost), have calls to its disk fail, and be opened again. Two loops do that at
every place of a piece of work::

    for cut in store.power_cuts(work):          # at each call to the disk, and behind each promise
        with cut.open() as log:
            assert set(cut.promised) <= {row[0] for row in log.select("orders")}

    for run in store.failing_calls(work):       # the 1st, 2nd, … call fails
        ...

The state, LMDB, is on the real disk, below `path`: behind a power cut it is of another start of the
machine (`SimFileSystem.boot_id`), so opening throws it away and makes it anew from the log; those
of `power_cuts` begin without. What decides is `seed`; it repeats a run as far as
the work makes the same calls in the same order, and not those of several threads.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

import logweir
from logweir.errors import LogweirError
from logweir.recovery.faults import Fault, FaultyFileSystem, SimFileSystem, every_fault
from logweir.recovery.faults.cuts import Image, Recorder
from logweir.recovery.faults.faulty import WRITING
from logweir.testing.clock import SimClock
from logweir.tools.crash.replay import put
from logweir.wal.closing import Closable
from logweir.wal.filesystem import make_folders

_EACH: Final = 4
"""Disks that one power cut may leave, at each place."""


class CrashStore(Closable):
    """A store in `folder`, None: in a folder of its own, which goes with `close`.

    `seed`: all random choices follow from it; `states`: disks that `power_cuts` gives at most,
    drawn from all; `only`: the number of the one that it gives, None: all.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        seed: int = 0,
        states: int = 100,
        only: int | None = None,
    ) -> None:
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="logweir-crash-")
        self.path = (folder or Path(self._temporary.name if self._temporary else "")) / "store"
        """The folder of the store, on the simulated disk; of its state, on the real one."""
        self.seed, self.states, self.only = seed, states, only
        self.clock = SimClock()
        self.disk = SimFileSystem(seed=seed)
        make_folders(self.disk, self.path.parent)
        self.promised: list[Any] = []
        """What was given to `promise`: for one that a power cut left, before that cut."""
        self.where = ""
        """What was done to it last, for people."""
        self.error: LogweirError | OSError | None = None
        """What the work raised, of one that `failing_calls` gave."""
        self.current: CrashStore = self
        """The store that one of the loops gave last, else this one."""
        self._calls: FaultyFileSystem = FaultyFileSystem(self.disk)
        self._log: logweir.Log | None = None

    def open(self, **options: Any) -> logweir.Log:
        """Open the store, as `logweir.open` does with these options, and with its errors."""
        chosen: dict[str, Any] = {"filesystem": self._calls, "clock": self.clock} | options
        self._log = logweir.open(self.path, **chosen)
        return self._log

    def promise(self, value: Any) -> None:
        """Say that this is safe now: every crash from here on has to leave it."""
        self.promised.append(value)
        if isinstance(self._calls, Recorder):
            self._calls.cut(f"behind the promise of {value!r}")

    @property
    def fault(self) -> Fault | None:
        """Which of the calls to the disk fails, of those that come once it is set."""
        return self._calls.fault

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        self._calls.fault = fault

    @property
    def failed(self) -> str:
        """The first call that failed since the disk was made or its power was cut, "" for none."""
        return self._calls.failed

    def kill(self) -> None:
        """End the program that has the store open, as SIGKILL does."""
        self._abandon()
        self.where = "it was killed"

    def power_cut(self, *, seed: int | None = None) -> None:
        """Cut the power: what was not synced may be lost. `seed`: decides what, None: a new one."""
        after = self.disk.crash(seed=seed)
        self._abandon()
        self._put(after, "its power was cut", keeps_state=after.has_name(self.path / "state"))

    def power_cuts(self, work: Work) -> Iterator[CrashStore]:
        """Let `work` use this store to its end, and give the stores that power cuts meanwhile would
        have left, one after the other: with what was promised by then. Raises what `work`
        raises."""
        recorder = Recorder(
            self.disk,
            lambda: list(self.promised),
            seed=self.seed,
            each=_EACH,
            most=self.states,
            only=self.only,
        )
        self._calls = recorder
        try:
            work(self)
        finally:
            self._abandon()
            self._calls = FaultyFileSystem(self.disk)
        for image in sorted(recorder.images, key=lambda image: image.number):
            with self._left(image) as left:
                yield left
        self.current = self

    def cut_at(self, work: Work, number: int) -> CrashStore | None:
        """The store that `power_cuts` would give with that number; None if there are fewer."""
        self.only, before = number, self.only
        try:
            return next(self.power_cuts(work), None)
        finally:
            self.only = before

    def failing_calls(
        self,
        work: Work,
        *,
        kinds: Collection[str] = WRITING,
        number: int = errno.EIO,
        part: float = 0.0,
        lasts: bool = False,
    ) -> Iterator[CrashStore]:
        """Let `work` use a copy of this store with the 1st, 2nd, … call to the disk failing, until
        none does; gives each of them, killed behind the work, with its `error`. The options are
        those of `Fault`. Raises what is neither of logweir's errors nor the system's."""
        self._abandon()
        kept = self.path.with_name("state-before")
        shutil.rmtree(kept, ignore_errors=True)
        if (self.path / "state").is_dir():
            shutil.copytree(self.path / "state", kept)
        copies: list[CrashStore] = []

        def scenario(calls: FaultyFileSystem) -> None:
            copy = self._copy()
            copies.append(copy)
            if kept.is_dir():
                shutil.copytree(kept, self.path / "state")
            copy._calls = calls
            try:
                work(copy)
            finally:
                copy._abandon()

        for run in every_fault(
            self.disk.copy, scenario, kinds=kinds, number=number, part=part, lasts=lasts
        ):
            copy = copies.pop()
            disk = run.filesystem.inner
            assert isinstance(disk, SimFileSystem)
            copy.error = run.error
            copy.disk, copy._calls = disk, FaultyFileSystem(disk)
            copy.where = f"call {run.number} failed: {run.failed}" if run.failed else "none failed"
            with copy:
                yield copy
        shutil.rmtree(kept, ignore_errors=True)
        self.current = self

    def lay(self, folder: Path) -> None:
        """Copy what is on the simulated disk into a new folder of the real one, for `logweir
        verify` and for eyes."""
        files: list[tuple[str, bytes | None]] = []
        with contextlib.suppress(FileNotFoundError):  # before it was made
            files = self.disk.files(self.path)
        put(files, folder)

    def close(self) -> None:
        """Let go of everything: the store is left as if it were killed."""
        self._abandon()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _abandon(self) -> None:
        if self._log is not None and not self._log.is_closed:
            self._log.inner.abandon()
        self._log = None

    def _put(self, disk: SimFileSystem, where: str, *, keeps_state: bool = False) -> None:
        self.disk, self.where = disk, where
        self._calls = FaultyFileSystem(disk)
        if not keeps_state:
            shutil.rmtree(self.path, ignore_errors=True)

    def _copy(self) -> CrashStore:
        """Another store of the same name, without a state."""
        copy = CrashStore(self.path.parent, seed=self.seed, states=self.states)
        copy.clock.now = self.clock.now
        copy.promised = list(self.promised)
        shutil.rmtree(self.path, ignore_errors=True)
        self.current = copy
        return copy

    def _left(self, image: Image[list[Any]]) -> CrashStore:
        """The store that a power cut left."""
        left = self._copy()
        left.promised = list(image.noted)
        left._put(image.disk, f"power cut {image.number}, {image.where}")
        left.only = image.number
        return left


Work = Callable[[CrashStore], object]
"""What uses a store: `CrashStore.open`, changes, `CrashStore.promise` behind what is safe."""
