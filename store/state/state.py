"""The materialised state: what the spaces hold now, in LMDB.

The log is the truth; this can be deleted at any time and is rebuilt from snapshot and logs. One
LMDB transaction holds the rows of a commit, their index entries and the position in the log up to
which they are applied, so a state is always that of one position, never in between.

Layout of the folder `state/`:

* `epoch`: whether the rest can be trusted: see `store.state.epoch`. LMDB runs without sync, so
  after a power cut it may hold anything; then it is thrown away **before** it is opened.
* `data.mdb`, `lock.mdb`: LMDB. One named database for each index, `<space id>/<index id>`: in
  index 0 the key's memcomparable bytes (`store.schema.keys`) give the tuple, or say where in the
  log it stands (`store.state.references`), in the others the index key gives the primary key.
  `meta` holds the position, with the last block of it (`wal.place`), and the instance, `references`
  where references were made.

Keys longer than LMDB takes (511 bytes) are kept in pieces, the further ones in a second database of
the index (`store.state.longkeys`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from logweir.errors import WalError
from logweir.limits import STATE_MAP_START_BYTES
from logweir.store.state import base, lmdbfile
from logweir.store.state.diskroom import DiskRoom
from logweir.store.state.epoch import (
    DATA_NAME,
    LMDB_FILES,
    Seal,
    read_epoch,
    sync_data,
    write_epoch,
)
from logweir.store.state.references import LogFiles
from logweir.store.state.statetxn import Txn
from logweir.wal.filesystem import (
    FILE_MODE,
    NOT_NOW,
    OS,
    FileSystem,
    FolderGone,
    explain,
    explaining,
    make_folders,
)
from logweir.wal.process import OfProcess, keep_for_ever, start_thread

_MAP_LEAST_BYTES: Final = 16 * 1024 * 1024
_DATABASES_MAX: Final = 65_000
_DATABASES_FIRST: Final = 256  # each transaction of a reader clears memory for as many as may be
_READERS_MAX: Final = 1024
_SPARE_MOST: Final = 2  # transactions that wait to be lent, where several groups are made

MapFull = base.MapFullError
"""The memory map is full, or there are too many databases: abort the transaction, call
`State.grow`, run it again."""


StateError = base.Error
"""What LMDB raises. `explained` makes an error of ours of it."""


def explained(error: base.Error, path: Path) -> WalError:
    """The typed error for what LMDB said about the state in the folder `path`."""
    return WalError(
        f"the state failed: {error}.",
        path=str(path),
        hint="look at the disk, then open the folder again: the state is brought up to the log",
    )


@contextlib.contextmanager
def typed(path: Path) -> Iterator[None]:
    """Around what touches the disk: what the system or LMDB says becomes an error of ours.

    `path`: of the store.
    """
    try:
        yield
    except OSError as error:
        raise explain(error, str(error.filename or path)) from error
    except StateError as error:
        raise explained(error, path / "state") from error


class State(OfProcess):
    """LMDB of one store. One at a time in a process.

    `directory`: the folder `state`; `files`: the logs that it may refer to, by default those
    beside it. `doubt` tells before `open` whether what is there may be trusted; `open` makes an
    empty one if there is none.
    """

    def __init__(
        self, directory: Path, files: LogFiles | None = None, filesystem: FileSystem = OS
    ) -> None:
        self.directory = directory
        self.files = files or LogFiles(directory.parent)
        self._filesystem = filesystem
        self._place = Path(os.path.abspath(directory))  # for LMDB, whatever the current folder is
        self._data: os.stat_result | None = None
        self._env: base.Environment | None = None
        self.databases: dict[bytes, Any] = {}
        """The handles of all databases that were committed."""
        self._map_bytes = STATE_MAP_START_BYTES
        self._databases_max = _DATABASES_FIRST
        self._lacks_databases = False  # one that was wanted could not be had
        self.check_disk = DiskRoom(directory, filesystem).check
        """Raises `WriteFailed` if the disk has no room for that much and what goes with it."""
        self._seal: Seal | None = None  # while nothing is different from what was closed in order
        self._is_noted = False  # that it is not closed in order; it was found like that
        self._check: threading.Thread | None = None
        self.reading = threading.Lock()
        """Held around what is read of `latest`, and around its beginning and end."""
        self.latest: Txn | None = None
        """A transaction on what was committed last, for short reads of all threads; None if one
        has to be begun. It ends with the next commit, so that it keeps no page."""
        self._spare: list[Txn] = []  # at most a few: see `lend`
        self._written = 0  # how many transactions have changed it
        self.shown: Any = None
        """What readers made of `latest`, and of the layers over it: it goes when that ends."""
        self._stop = threading.Event()
        self._damage = ""

    def doubt(self, *, fully: bool = False) -> str:
        """Before `open`: why what is on disk cannot be used; "" if it can, and where there is
        nothing. `fully`: nothing is left to be looked at later. See `store.state.epoch`.

        Raises `WalError` where the system refuses to tell: that says nothing about it."""
        try:
            self._seal, reason = read_epoch(self.directory, self._place, self._filesystem)
            self._is_noted = self._seal is None and not reason
            if self._seal is not None:
                waits = not fully and self._seal.waits(self._place)
                # What is read before it is compared must not end the process.
                reason = (
                    lmdbfile.damage(self._place / DATA_NAME)
                    if waits
                    else self._seal.damage(self._place)
                )
        except FileNotFoundError:
            return ""
        except OSError as error:
            if error.errno in NOT_NOW:
                raise explain(error, str(self.directory)) from error
            reason = f"it cannot be read: {error.strerror or error}"
        return reason

    def discard(self) -> None:
        """Throw the state away (it is closed). It is rebuilt from the log.

        Raises `WalError` if something of it stays: LMDB must not see it.
        """
        try:
            with explaining(self.directory):
                self._filesystem.remove_tree(self.directory)
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(self._place)
        finally:
            self._seal, self._check, self._damage = None, None, ""
            self._is_noted, self._stop = False, threading.Event()

    def open(self) -> None:
        """Open or make the database. Raises `WalError` if the disk does not allow it."""
        with self._opening():
            make_folders(self._filesystem, self.directory)
            if self._is_noted:  # by who was killed, maybe before this
                self._filesystem.sync_directory(self.directory)
            elif self._seal is None:
                write_epoch(self.directory, self._filesystem, None)
            os.makedirs(self._place, exist_ok=True)
            (self._place / "lock.mdb").unlink(missing_ok=True)  # nobody else has it open
            data = self._place / DATA_NAME
            while data.exists() and self._map_bytes < data.stat().st_size:
                self._map_bytes *= 2
            self._env = self._open_environment()
            for name in LMDB_FILES:
                if (self._place / name).stat().st_mode & 0o777 != FILE_MODE:
                    os.chmod(self._place / name, FILE_MODE)  # the umask was in the way
            self._data = data.stat()
            count = int(self._env.stat()["entries"])
            if self._wants_databases(count):
                self._env.close()
                while self._wants_databases(count):
                    self._databases_max *= 2
                self._env = self._open_environment()
            self._open_databases()
            if self._seal is not None and self._seal.waits(self._place):
                start_thread("logweir-state", partial(self._look, self._seal), self._keep_check)
            self._belong()

    def _keep_check(self, thread: threading.Thread | None) -> None:
        self._check = thread

    @contextlib.contextmanager
    def _opening(self) -> Iterator[None]:
        """Around what opens LMDB."""
        try:
            with explaining(self.directory):
                yield
        except base.Error as error:
            raise self.unusable(error) from error

    def open_to_read(self) -> None:
        """Open what is there, changing nothing; nobody may have it open. Raises `WalError`."""
        with self._opening():
            self._map_bytes = (self._place / DATA_NAME).stat().st_size
            self._env = base.Environment(
                os.fsencode(self._place),
                map_size=self._map_bytes,
                max_dbs=_DATABASES_MAX,
                readonly=True,
                lock=False,
                create=False,
            )
            with self._env.begin() as raw, raw.cursor() as cursor:
                names = [bytes(name) for name in cursor.iternext(values=False)]
            self.databases = {name: self._env.open_db(name, create=False) for name in names}

    def unusable(self, error: base.Error) -> WalError:
        """What to raise where LMDB refused."""
        hint = "remove the folder `state`: it is rebuilt from the log"
        if isinstance(error, base.MemoryError):
            hint = "let the process have more memory, or more addresses (ulimit -v)"
        return WalError(
            f"the state cannot be opened: {error}.", path=str(self.directory), hint=hint
        )

    def _open_environment(self) -> base.Environment:
        """With a smaller map where the process may not have so many addresses (`ulimit -v`)."""
        while True:
            try:
                return self._environment_of_now()
            except base.MemoryError:
                data = self._place / DATA_NAME
                needed = max(_MAP_LEAST_BYTES, data.stat().st_size if data.exists() else 0)
                if self._map_bytes // 2 < needed:
                    raise
                self._map_bytes //= 2

    def _environment_of_now(self) -> base.Environment:
        return base.Environment(
            os.fsencode(self._place),  # its name need not be text
            map_size=self._map_bytes,
            max_dbs=min(self._databases_max, _DATABASES_MAX),
            max_readers=_READERS_MAX,
            max_spare_txns=2,
            sync=False,
            metasync=False,
            readahead=False,
            mode=FILE_MODE,
        )

    def _wants_databases(self, count: int) -> bool:
        """Whether `count` databases leave too little room: each may want one for long keys."""
        return 2 * count > self._databases_max < _DATABASES_MAX

    def _open_databases(self) -> None:
        """Open all handles now: one that is opened in a reader's transaction ends with it."""
        env = self._environment
        with env.begin(write=True) as raw:
            with raw.cursor() as cursor:
                names = [bytes(name) for name in cursor.iternext(values=False)]
            self.databases = {name: env.open_db(name, txn=raw) for name in names}

    def _look(self, seal: Seal) -> None:
        """Compare the file with its seal while it is read; nobody writes to it before the end."""
        try:
            self._damage = seal.damage(self._place, self._stop)
        except OSError as error:
            self._damage = f"it cannot be read: {error.strerror or error}"
        if self._damage:
            self.end_latest()  # what begins another one is told
            with contextlib.suppress(OSError):
                write_epoch(self.directory, self._filesystem, None, damage=self._damage)

    def _check_whole(self) -> None:
        if self._damage:
            raise WalError(
                f"the state was damaged on the disk: {self._damage}. What was read since the store "
                "was opened may be wrong; nothing was written.",
                path=str(self.directory),
                hint="open the store again: the state is then rebuilt from snapshot and log",
            )

    def check_fully(self) -> None:
        """Before a change that is made of what stands here: wait until the file was compared with
        its seal. Raises `WalError` if it is damaged."""
        if self._check is not None:
            self._check.join()
            self._check = None
        if self._damage:
            self._check_whole()

    def _break_seal(self) -> None:
        """Before the first change: note that the file is no longer what was closed in order."""
        self.check_fully()
        with explaining(self.directory):
            write_epoch(self.directory, self._filesystem, None)
        self._seal = None

    def close(self, *, clean: bool) -> None:
        """Close; `clean`: it can be trusted after a power cut, and what is on the disk is noted, so
        that damage is found. Raises `WalError`."""
        if self.is_foreign:
            return
        self.files.close()
        self._stop.set()
        if self._check is not None:
            self._check.join()
        if self._env is None:
            return
        with self.reading:
            self._end_latest()
            self.databases = {}
            self._env.close()
            self._env = None
        if not clean or self._seal is not None:
            return
        # It may be removed at any time, the whole folder be renamed.
        with explaining(self.directory), contextlib.suppress(FileNotFoundError, FolderGone):
            sync_data(self._place)
            write_epoch(self.directory, self._filesystem, Seal.of(self._place))

    @property
    def _environment(self) -> base.Environment:
        """LMDB, which is open."""
        if self._env is None:
            self.check_process()
        assert self._env is not None
        return self._env

    def _what(self) -> str:
        return f"the state in {self.directory}"

    def _left_behind(self) -> None:
        # To close it would wait for threads that are not here, and give up its readers' slots.
        keep_for_ever((self._env, self.latest, self.shown, self._spare))
        self._env = self.latest = self.shown = None
        self._spare = []
        self.reading = threading.Lock()
        self.databases = {}

    def grow(self) -> None:
        """Double the memory map, or how many databases there may be, whichever is short. No
        transaction of this process may be open. Raises `WalError`."""
        with self.reading:
            self._end_latest()
            self._grow()

    def _grow(self) -> None:
        env = self._environment
        if not (self._lacks_databases or self._wants_databases(len(self.databases))):
            try:
                env.set_mapsize(2 * self._map_bytes)
            except StateError as error:
                raise explained(error, self.directory) from error
            self._map_bytes *= 2
            return
        self._check_place()
        self._databases_max *= 2
        self._lacks_databases = False
        self._open_again()

    def give_back(self) -> None:
        """Free the pages that LMDB keeps in memory for its next changes, as many as one transaction
        has ever changed: it does so when it is closed. No transaction of this process may be open.
        Raises `WalError`."""
        with self.reading:
            self._end_latest()
            self._check_place()
            self._open_again()

    def _open_again(self) -> None:
        self.databases = {}
        self._environment.close()
        with self._opening():
            self._env = self._open_environment()
            self._open_databases()

    @property
    def used_bytes(self) -> int:
        """Bytes of the map that hold something."""
        env = self._environment
        pages = int(env.info()["last_pgno"]) + 1
        return pages * int(env.stat()["psize"])

    def lacks_room(self, room_bytes: int) -> bool:
        """Whether the map ends before `room_bytes`, or before as much again as there is now."""
        used = self.used_bytes
        return used + max(room_bytes, used) > self._map_bytes

    @property
    def map_bytes(self) -> int:
        """Size of the memory map."""
        return self._map_bytes

    @contextlib.contextmanager
    def read(self) -> Iterator[Txn]:
        """A consistent view of the last commit; writers go on. One thread, short or bounded."""
        txn: Txn | None = None
        try:
            txn = self.begin(write=False)
            yield txn
        finally:
            if txn is not None:
                txn.abort()

    @contextlib.contextmanager
    def write(self) -> Iterator[Txn]:
        """A change, which is committed at the end of the context. Raises what `begin` and
        `Txn.commit` raise."""
        txn = self.begin()
        try:
            yield txn
            txn.commit()
        except BaseException:
            txn.abort()
            raise

    def begin(self, *, write: bool = True) -> Txn:
        """A transaction, to be committed or aborted in the thread that began it. Of those that
        write there is one at a time."""
        raw: Any = None
        if write and self._seal is not None:
            self._break_seal()
        if self._damage:
            self._check_whole()
        try:
            raw = (self._env or self._environment).begin(write=write)
            return Txn(self, raw, write=write)
        except StateError as error:
            raise explained(error, self.directory) from error
        except BaseException:  # an interrupt: who handles it may still hold all these frames
            if raw is not None:
                raw.abort()
            raise

    def lend(self) -> Txn:
        """A transaction on what was committed last, to be ended by `Txn.abort`, after which it may
        be another one's: most changes find the one that the last change had, with what was looked
        up in it. It ends with the next commit, so that it keeps no page; nobody makes one
        meanwhile, or is lent another one."""
        if self._check is not None or self._damage:
            self.check_fully()
        txn: Txn | None = None
        try:
            while self._spare:
                try:
                    txn = self._spare[-1]  # before it is taken: an interrupt may come between
                    self._spare.remove(txn)
                except (IndexError, ValueError):  # another thread has ended it
                    continue
                if txn.lent_at == self._written:
                    txn.is_lent = True
                    return txn
                txn.end()
            txn = self.begin(write=False)
            txn.lent_at, txn.trees, txn.bases = self._written, {}, {}
            txn.is_lent = True
            return txn
        except BaseException:  # an interrupt
            if txn is not None:
                txn.end()
            raise

    def take_back(self, txn: Txn) -> None:
        """What was lent is not used any more. In a child of `fork` it is the parent's."""
        if self.is_foreign:
            return
        if txn.lent_at != self._written or len(self._spare) >= _SPARE_MOST:
            txn.end()
            return
        self._spare.append(txn)
        if txn.lent_at != self._written:  # since it was looked at
            self._end_spare()

    def _end_spare(self) -> None:
        while self._spare:
            try:
                self._spare.pop().end()
            except IndexError:  # another thread was first
                return

    def has_changed(self) -> None:
        """What was begun before shows no longer what was committed last."""
        self._written += 1
        self._end_spare()
        self.end_latest()

    def begin_latest(self) -> Txn:
        """`latest`, begun if there is none; the caller holds `reading`."""
        if self.latest is None:
            self.latest = self.begin(write=False)
        return self.latest

    def end_latest(self) -> None:
        """What it shows is no longer what was committed last."""
        if self.latest is not None:
            with self.reading:
                self._end_latest()

    def _end_latest(self) -> None:
        txn, self.latest, self.shown = self.latest, None, None
        self._end_spare()
        if txn is not None:
            txn.abort()

    def check_databases(self, names: Iterable[bytes]) -> None:
        """Raise `WalError` if there cannot be databases of these indexes, too, and one for the
        long keys of each."""
        indexes = {name for name in self.databases if name.count(b"/") == 1}
        if 2 * len(indexes.union(names)) > _DATABASES_MAX:
            raise explained(base.DbsFullError("MDB_DBS_FULL: too many indexes"), self.directory)

    def new_database(self, name: bytes, raw: Any) -> Any:
        """The handle of a database that is made."""
        try:
            return self._environment.open_db(name, txn=raw, create=True)
        except base.DbsFullError:
            if self._databases_max >= _DATABASES_MAX:
                raise
            self._lacks_databases = True
            raise MapFull("the state has no room for one more database") from None

    def remember(self, handles: dict[bytes, Any]) -> None:
        """Keep handles that a committed write transaction opened."""
        self.databases = {**self.databases, **handles}

    def forget(self, name: bytes) -> None:
        """Drop the handle of a database that no longer exists."""
        self.databases.pop(name, None)

    def _check_place(self) -> None:
        """Raise `WriteFailed` if opening the environment again would open another one."""
        try:
            if self._data is None or os.path.samestat(
                os.stat(self._place / "data.mdb"), self._data
            ):
                return
        except OSError:
            pass
        raise explain(FolderGone(self.directory), str(self.directory))
