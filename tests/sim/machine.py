"""What a simulated world needs of a machine: a disk with the files of one store, LMDB's among them,
and what is left of both behind the end of a process, or of the power."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

from sim.ledger import FORMAT, SPACE

import logweir
from logweir.recovery.faults import FaultyFileSystem, SimFileSystem
from logweir.recovery.faults.faulty import WRITING
from logweir.store.schema.schema import Change, Schema
from logweir.store.state.epoch import DATA_NAME
from logweir.store.state.state import State
from logweir.testing.scheduler import Scheduler
from logweir.wal import process
from logweir.wal.filesystem import FileSystem, make_folders
from logweir.wal.writer import WalWriter  # noqa: F401 - loaded, so that its locks are scheduled

__all__ = ["Disk", "Machine", "begun", "define", "small"]

_PAGE: Final = 4096
_ALIKE: Final = 4
"""So many spaces before a row of their definition are known to `_once`."""


class Disk(FaultyFileSystem):
    """A simulated disk each call to which is a place where another thread may go on; a sync lasts
    for a while behind what it saves. `seconds`: for how long
    that of a file lasts besides."""

    def __init__(
        self,
        inner: FileSystem,
        scheduler: Scheduler,
        dice: random.Random,
        seconds: Callable[[Path], float] = lambda _: 0.0,
    ) -> None:
        super().__init__(inner)
        self._scheduler, self._dice, self._seconds = scheduler, dice, seconds

    def call(self, kind: str, path: Path) -> int | None:
        """As `FaultyFileSystem.call`."""
        if kind in WRITING or self._dice.random() < 0.2:
            for _ in range(self._dice.choice((1, 1, 1, 5)) if kind == "sync" else 1):
                self._scheduler.pause(f"{kind} {path.name}")
        if kind == "sync" and (seconds := self._seconds(path)):
            self._scheduler.wait(f"slow sync of {path.name}", lambda: False, seconds)
        self._scheduler.check()
        return super().call(kind, path)


class Machine:
    """See the module. `path`: of the store, below a folder that is there; `dice`: decide what a
    power cut leaves."""

    def __init__(self, path: Path, seed: int, dice: random.Random) -> None:
        self.path, self.dice = path, dice
        self.disk = SimFileSystem(seed=seed)
        make_folders(self.disk, path.parent.parent)
        self._synced: bytes | None = None  # LMDB's file as it was when it was synced last
        self._after: SimFileSystem | None = None
        self._is_power_cut = False

    def begin(self, files: dict[str, bytes]) -> None:
        """Lay a store that was closed in order."""
        (self.path / "state").mkdir(parents=True)
        for name, data in files.items():
            if name.endswith(".mdb"):
                (self.path / name).write_bytes(data)
                self._synced = data
            else:
                self.disk.put(self.path / name, data)

    def cut(self, *, is_power_cut: bool) -> None:
        """The process ends here, or the machine: keep what that leaves."""
        number = self.dice.getrandbits(64)
        self._after = self.disk.crash(seed=number) if is_power_cut else self.disk.killed()
        self._is_power_cut = is_power_cut
        kept = self._kept
        shutil.rmtree(kept, ignore_errors=True)
        if (self.path / "state").is_dir():
            shutil.copytree(self.path / "state", kept)

    @property
    def _kept(self) -> Path:
        return self.path.with_name("kept")

    def let_go(self) -> None:
        """What a process that ends leaves to the system."""
        for one in list(process._OPEN):
            if isinstance(one, State) and one.directory.parent == self.path:
                one.close(clean=False)
        gc.collect()

    def lay(self) -> None:
        """Put the disk there as it is after the end, if there was one."""
        if self._after is None:
            return
        self.disk, self._after = self._after, None
        state, kept = self.path / "state", self._kept
        shutil.rmtree(state, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            self.disk.list_directory(state)
            if kept.is_dir():
                shutil.copytree(kept, state)
        if self._is_power_cut:
            data = state / "data.mdb"
            if data.exists():
                data.write_bytes(self._survived(data.read_bytes()))

    def _survived(self, data: bytes) -> bytes:
        """Each page of LMDB's file: as it was synced, or as it was written later."""
        before = self._synced or b""
        pages = []
        for at in range(0, max(len(data), len(before)), _PAGE):
            pages.append(self.dice.choice((data, before))[at : at + _PAGE].ljust(_PAGE, b"\0"))
        return b"".join(pages)

    def sync_state(self, directory: Path) -> None:
        """In the place of `sync_data`."""
        self._synced = (directory / DATA_NAME).read_bytes()


@contextlib.contextmanager
def small(dice: random.Random, sync_state: Callable[[Path], None]) -> Iterator[None]:
    """Limits that a short history reaches. `sync_state`: in the place of `sync_data`."""
    replaced: dict[str, Callable[..., Any] | int] = {
        "logweir.store.schema.schema.Schema._space_row": _space_row,  # 26 at each opening
        "logweir.store.schema.schema.Schema._index_row": _index_row,  # 54
        "logweir.store.state.state.sync_data": sync_state,
        "logweir.store.state.state.STATE_MAP_START_BYTES": 2**17,
        "logweir.store.state.state._MAP_LEAST_BYTES": 2**17,
        "logweir.store.state.stacked.LAYER_BYTES": dice.choice((2000, 20_000, 2**24)),
        "logweir.store.commit.ahead.GROUP_BYTES": dice.choice((500, 2**23)),
        "logweir.store.commit.jobs.GROUP_BYTES": dice.choice((500, 2**23)),
    }
    with contextlib.ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(mock.patch(name, value))
        gc.disable()
        stack.callback(gc.enable)
        gc.freeze()  # `Machine.let_go` looks at what this world made
        stack.callback(gc.unfreeze)
        yield


def _once(apply: Callable[..., Change | None]) -> Callable[..., Change | None]:
    """A method of `Schema` that takes over a row of a definition: done once for each new row and
    the very space that it is applied to, which never change."""
    known: dict[bytes, list[Change]] = {}

    def applied(schema: Schema, old: bytes | None, new: bytes | None, *rest: Any) -> Change | None:
        if old is not None or new is None:
            return apply(schema, old, new, *rest)
        some = known.setdefault(new, [])
        for change in some:
            assert change.new is not None
            if schema._spaces.get(change.new.id) is change.old:
                schema._put(change.new)
                return change
        done = apply(schema, old, new, *rest)
        if done is not None and done.new is not None and len(some) < _ALIKE:
            some.append(done)
        return done

    return applied


_space_row: Final = _once(Schema._space_row)
_index_row: Final = _once(Schema._index_row)


def define(log: logweir.Log) -> None:
    """The space of the clients."""
    log.create_space(SPACE, FORMAT, if_not_exists=True)
    if len(log.schema.space(SPACE).indexes) == 1:
        log.create_index(SPACE, "text", {"parts": ["text"], "unique": False})


@functools.cache
def begun() -> dict[str, bytes]:
    """The files of a store with that space, by their names."""
    with tempfile.TemporaryDirectory() as folder:
        disk, path = SimFileSystem(), Path(folder) / "store"
        make_folders(disk, path.parent)
        with logweir.open(path, filesystem=disk) as log:
            define(log)
        found = {name: data for name, data in disk.files(path) if data is not None}
        return found | {"state/data.mdb": (path / "state" / "data.mdb").read_bytes()}
