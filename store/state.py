"""The materialised state: what the spaces hold now, in LMDB.

The log is the truth; this can be deleted at any time and is rebuilt from snapshot and logs. One
LMDB transaction holds the rows of a commit, their index entries and the position in the log up to
which they are applied, so a state is always that of one position, never in between.

Layout of the folder `state/`:

* `epoch`: one JSON object, written and synced before LMDB is opened and after it is closed: `boot`
  (the boot id of the machine), `clean` (closed in order), `format`. LMDB runs without sync, so
  after a power cut it may hold anything; then it is thrown away **before** it is opened. It is
  kept where it was closed in order or the machine has not been restarted since.
* `data.mdb`, `lock.mdb`: LMDB, which opens them by itself: they are on the real disk whatever the
  file system of the store is. One named database for each index, `<space id>/<index id>`: in
  index 0 the key's memcomparable bytes (`store.keys`) give the tuple, or say where in the log it
  stands (`store.references`), in the others the index key gives the primary key. `meta` holds the
  position, `references` where references were made.

Keys longer than LMDB takes (511 bytes) are kept in pieces, the further ones in a second database of
the index (`store.longkeys`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import lt
from pathlib import Path
from typing import Any, Final, TypeAlias

import lmdb

from logweir.errors import WalError
from logweir.limits import STATE_MAP_START_BYTES
from logweir.store import collation
from logweir.store.diskroom import DiskRoom
from logweir.store.keys import KEY_VERSION
from logweir.store.longkeys import PIECE_BYTES, LongKeys
from logweir.store.references import REFERENCE, LogFiles, file_of, file_part
from logweir.wal.filesystem import (
    FILE_MODE,
    OS,
    FileSystem,
    FolderGone,
    explain,
    make_folders,
    replace_file,
)
from logweir.wal.mp import pack, unpack
from logweir.wal.vclock import VClock

__all__ = ["MapFull", "Position", "SortedPart", "Spoiled", "State", "Tree", "Txn", "takes_length"]

_DATABASES_MAX: Final = 65_000
_DATABASES_FIRST: Final = 256  # each transaction of a reader clears memory for as many as may be
_READERS_MAX: Final = 1024
_LMDB_FILES: Final = ("data.mdb", "lock.mdb")
_META: Final = b"meta"
_POSITION: Final = b"position"
_LONG: Final = b"long/"
_REFERRING: Final = b"referring/"
_REFERENCES: Final = b"references"
_PLACE: Final = struct.Struct(">QI")  # file, space
_MOVED_BYTES: Final = 16 * 1024 * 1024
_MOVED_ENTRIES: Final = 10_000
_LONG_NAME: Final = b"/long"
_ROOM_BYTES: Final = 64 * 1024 * 1024
_STEP_VALUES: Final = 16
_SMALL_BYTES: Final = 1024

MapFull = lmdb.MapFullError
"""The memory map is full, or there are too many databases: abort the transaction, call
`State.grow`, run it again."""

SortedPart: TypeAlias = tuple[list[bytes], list[bytes]]
"""Some keys, ascending, and the value of each."""


@dataclass(frozen=True, slots=True)
class Position:
    """Up to where the state is applied. `vclock`: all rows that it covers; `file`, `offset`: name
    of the log file and byte behind the last of them, "" and 0 where that is not known; `unlogged`:
    whether rows up to it were applied without being logged (durability "none")."""

    vclock: VClock
    file: str = ""
    offset: int = 0
    unlogged: bool = False


def state_format() -> str:
    """What must be the same for a state to be used again: its layout, and how keys are made."""
    return f"2/{KEY_VERSION}/{collation.version()}"


def boot_id() -> str:
    """What changes with every start of the machine; "" where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Spoiled(Exception):
    """A rollback would have to undo a drop or a bulk load: the whole transaction must go."""


class State:
    """LMDB of one store. One at a time in a process, not to be used across a fork.

    `directory`: the folder `state`; `files`: the logs that it may refer to, by default those
    beside it. `is_usable` tells before `open` whether what is there may be trusted; `open` makes an
    empty one where there is none.
    """

    def __init__(
        self, directory: Path, files: LogFiles | None = None, filesystem: FileSystem = OS
    ) -> None:
        self.directory = directory
        self.files = files or LogFiles(directory.parent)
        self._filesystem = filesystem
        self._place = Path(os.path.abspath(directory))  # for LMDB, whatever the current folder is
        self._data: os.stat_result | None = None
        self._env: lmdb.Environment | None = None
        self._databases: dict[bytes, Any] = {}
        self._map_bytes = STATE_MAP_START_BYTES
        self._databases_max = _DATABASES_FIRST
        self._lacks_databases = False  # one that was wanted could not be had
        self._room = DiskRoom(directory, filesystem)

    def is_usable(self) -> bool:
        """Whether the state on disk is that of a position: closed in order, or same boot."""
        try:
            with contextlib.closing(self._filesystem.open_read(self.directory / "epoch")) as file:
                epoch = json.loads(file.read(file.size(), 0))
            return (
                isinstance(epoch, dict)
                and epoch.get("format") == state_format()
                and (epoch.get("clean") is True or bool(boot_id() and epoch["boot"] == boot_id()))
                and (self._place / "data.mdb").is_file()
                and not any((self._place / name).is_symlink() for name in _LMDB_FILES)
            )
        except (OSError, ValueError, KeyError):
            return False

    def discard(self) -> None:
        """Throw the state away (it is closed). It is rebuilt from the log.

        Raises `WalError` where something of it stays: LMDB must not see it.
        """
        try:
            self._filesystem.remove_tree(self.directory)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self._place)
        except OSError as error:
            raise explain(error, str(self.directory)) from error

    def open(self) -> None:
        """Open or make the database. Raises `WalError` where the disk does not allow it."""
        try:
            make_folders(self._filesystem, self.directory)
            self._write_epoch(clean=False)
            os.makedirs(self._place, exist_ok=True)
            data = self._place / "data.mdb"
            while data.exists() and self._map_bytes < data.stat().st_size:
                self._map_bytes *= 2
            self._env = self._open_environment()
            for name in _LMDB_FILES:
                if (self._place / name).stat().st_mode & 0o777 != FILE_MODE:
                    os.chmod(self._place / name, FILE_MODE)  # the umask was in the way
            self._data = data.stat()
            count = int(self._env.stat()["entries"])
            if self._wants_databases(count):
                self._env.close()
                while self._wants_databases(count):
                    self._databases_max *= 2
                self._env = self._open_environment()
            self._env.reader_check()
            self._open_databases()
        except OSError as error:
            raise explain(error, str(self.directory)) from error
        except lmdb.Error as error:
            raise self._unusable(error) from error

    def _unusable(self, error: lmdb.Error) -> WalError:
        return WalError(
            f"the state cannot be opened: {error}.",
            path=str(self.directory),
            hint="remove the folder `state`: it is rebuilt from the log",
        )

    def _open_environment(self) -> lmdb.Environment:
        return lmdb.open(
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
        assert self._env is not None
        with self._env.begin(write=True) as raw:
            with raw.cursor() as cursor:
                names = [bytes(name) for name in cursor.iternext(values=False)]
            self._databases = {name: self._env.open_db(name, txn=raw) for name in names}

    def close(self, *, clean: bool) -> None:
        """Close; `clean`: sync first and note that the state can be trusted after a power cut."""
        self.files.close()
        if self._env is None:
            return
        if clean:
            self._env.sync(True)
        self._databases.clear()
        self._env.close()
        self._env = None
        if clean:
            # It may be removed at any time, the whole folder be renamed: then it is made anew.
            try:
                self._write_epoch(clean=True)
            except (FileNotFoundError, FolderGone):
                return
            except OSError as error:
                raise explain(error, str(self.directory)) from error

    def grow(self) -> None:
        """Double the memory map, or how many databases there may be, whichever is short. No
        transaction of this process may be open. Raises `WalError`."""
        assert self._env is not None
        if not (self._lacks_databases or self._wants_databases(len(self._databases))):
            self._map_bytes *= 2
            self._env.set_mapsize(self._map_bytes)
            return
        self._check_place()
        self._databases_max *= 2
        self._lacks_databases = False
        self._databases.clear()
        self._env.close()
        try:
            self._env = self._open_environment()
            self._open_databases()
        except lmdb.Error as error:
            raise self._unusable(error) from error

    @property
    def used_bytes(self) -> int:
        """Bytes of the map that hold something."""
        assert self._env is not None
        pages = int(self._env.info()["last_pgno"]) + 1
        return pages * int(self._env.stat()["psize"])

    def has_room(self, wanted_bytes: int) -> bool:
        """Whether a transaction that stores so much surely fits into the map."""
        if self._wants_databases(len(self._databases)):
            return False
        return self.used_bytes + 4 * wanted_bytes + _ROOM_BYTES < self._map_bytes

    def lacks_room(self, room_bytes: int) -> bool:
        """Whether the map ends before `room_bytes`, or before as much again as there is now."""
        used = self.used_bytes
        return used + max(room_bytes, used) > self._map_bytes

    def check_disk(self, wanted_bytes: int) -> None:
        """Raise `WriteFailed` where the disk has no room for that much and what goes with it."""
        self._room.check(wanted_bytes)

    @property
    def map_bytes(self) -> int:
        """Size of the memory map."""
        return self._map_bytes

    @contextlib.contextmanager
    def read(self) -> Iterator[Txn]:
        """A consistent view of the last commit; writers go on. One thread, short or bounded."""
        assert self._env is not None
        with self._env.begin() as raw:
            yield Txn(self, raw, write=False)

    def begin(self) -> Txn:
        """A write transaction. One at a time; commit or abort it in the thread that began it."""
        assert self._env is not None
        return Txn(self, self._env.begin(write=True), write=True)

    def database(self, name: bytes, raw: Any, *, write: bool) -> Any | None:
        """The handle of a named database; None where a reader finds none."""
        handle = self._databases.get(name)
        if handle is None and write:
            assert self._env is not None
            try:
                handle = self._env.open_db(name, txn=raw, create=True)
            except lmdb.DbsFullError:
                if self._databases_max >= _DATABASES_MAX:
                    raise
                self._lacks_databases = True
                raise MapFull("the state has no room for one more database") from None
        return handle

    def remember(self, handles: dict[bytes, Any]) -> None:
        """Keep handles that a committed write transaction opened."""
        self._databases.update(handles)

    def forget(self, name: bytes) -> None:
        """Drop the handle of a database that no longer exists."""
        self._databases.pop(name, None)

    def _write_epoch(self, *, clean: bool) -> None:
        text = json.dumps({"format": state_format(), "boot": boot_id(), "clean": clean})
        replace_file(self._filesystem, self.directory / "epoch", text.encode())

    def _check_place(self) -> None:
        """Raise `WriteFailed` where opening the environment again would open another one."""
        try:
            if self._data is None or os.path.samestat(
                os.stat(self._place / "data.mdb"), self._data
            ):
                return
        except OSError:
            pass
        raise explain(FolderGone(self.directory), str(self.directory))


class Txn:
    """One transaction on the state. A write transaction can be rolled back to a mark."""

    def __init__(self, state: State, raw: Any, *, write: bool) -> None:
        self._state = state
        self.raw = raw
        self.is_write = write
        self._opened: dict[bytes, Any] = {}
        self._undo: list[tuple[Any, bytes, bytes | None]] = []
        self._irreversible = 0
        self._referring: dict[bytes, bool] = {}

    def tree(self, space_id: int, index_id: int) -> Tree | None:
        """The entries of one index; None where a reader finds none (it was never written)."""
        name = b"%d/%d" % (space_id, index_id)
        handle = self.database(name)
        return None if handle is None else Tree(self, name, handle, self._undo)

    def database(self, name: bytes) -> Any | None:
        """The handle of a database; None where a reader finds none."""
        handle = self._opened.get(name)
        if handle is None:
            handle = self._state.database(name, self.raw, write=self.is_write)
            if handle is not None and self.is_write:
                self._opened[name] = handle
        return handle

    def drop(self, space_id: int, index_id: int) -> None:
        """Remove all entries of an index. Only undone with the whole transaction."""
        tree = self.tree(space_id, index_id)
        assert tree is not None
        self.spoil()
        tree.clear()

    def load(self, space_id: int, index_id: int, pairs: list[tuple[bytes, bytes]]) -> None:
        """Set many entries. Only undone with the whole transaction."""
        tree = self.tree(space_id, index_id)
        assert tree is not None
        self.spoil()
        if pairs:
            tree.load(pairs)

    def load_sorted(
        self, space_id: int, index_id: int, parts: Iterable[SortedPart], longest: int
    ) -> None:
        """`load` of keys that are ascending, none of them twice: see `Tree.load_sorted`."""
        tree = self.tree(space_id, index_id)
        assert tree is not None
        self.spoil()
        tree.load_sorted(parts, longest)

    def count(self, space_id: int, index_id: int) -> int:
        """How many entries an index has."""
        tree = self.tree(space_id, index_id)
        return 0 if tree is None else tree.count()

    def spoil(self) -> None:
        """From here on a rollback undoes the whole transaction or raises `Spoiled`."""
        self._irreversible += 1

    def items(self, space_id: int, index_id: int) -> Iterator[tuple[bytes, bytes]]:
        """All entries of an index, in order; none where it was never written."""
        tree = self.tree(space_id, index_id)
        return iter(()) if tree is None else tree.ascending(b"")

    def remove(self, space_id: int, index_id: int, key: bytes) -> None:
        """Remove one entry, which is there."""
        tree = self.tree(space_id, index_id)
        assert tree is not None
        tree.delete(key)

    def mark(self) -> tuple[int, int]:
        """A place to roll back to."""
        return len(self._undo), self._irreversible

    def rollback(self, mark: tuple[int, int]) -> None:
        """Undo what trees did since `mark`. Raises `Spoiled` where that cannot be undone."""
        if self._irreversible != mark[1]:
            raise Spoiled
        while len(self._undo) > mark[0]:
            handle, key, old = self._undo.pop()
            if old is None:
                self.raw.delete(key, db=handle)
            else:
                self.raw.put(key, old, db=handle)

    def position(self) -> Position | None:
        """Up to where the state is applied; None in an empty one."""
        handle = self.database(_META)
        data = None if handle is None else self.raw.get(_POSITION, db=handle)
        if data is None:
            return None
        vclock, file, offset, unlogged = unpack(data)
        return Position(VClock(vclock), file, offset, unlogged)

    def set_position(self, position: Position) -> None:
        """Note up to where this transaction applies the log."""
        data = pack([dict(position.vclock), position.file, position.offset, position.unlogged])
        self.raw.put(_POSITION, data, db=self.database(_META))

    def note_long(self, name: bytes) -> None:
        """Remember that an index has had keys that are kept in pieces."""
        self.raw.put(_LONG + name, b"", db=self.database(_META))

    def has_long(self, name: bytes) -> bool:
        """Whether `note_long` was ever said of that index."""
        handle = self.database(_META)
        return handle is not None and self.raw.get(_LONG + name, db=handle) is not None

    # --- references -------------------------------------------------------------------------------

    def take_large(
        self,
        space_id: int,
        referred: list[tuple[bytes, bytes]],
        held: list[tuple[bytes, bytes]],
    ) -> None:
        """Add entries to a primary index, with references and with tuples: see
        `references.entries`. None of the keys, which are short, is there. Undone as `refer`."""
        if held:
            tree = self.tree(space_id, 0)
            assert tree is not None
            tree.insert(sorted(held))
        if referred:
            self.refer(space_id, sorted(referred))

    def refer(self, space_id: int, pairs: list[tuple[bytes, bytes]]) -> None:
        """Add entries to a primary index, ascending, none of which is there, with references.

        Only undone with the whole transaction.
        """
        tree = self.tree(space_id, 0)
        assert tree is not None
        tree.insert(pairs)
        name = b"%d/0" % space_id
        if not self.is_referring(name):
            self.raw.put(_REFERRING + name, b"", db=self.database(_META))
            self._referring[name] = True
        space = space_id.to_bytes(4, "big")
        places = sorted([(file_part(ref) + space + key, b"") for key, ref in pairs])
        with self.raw.cursor(self.database(_REFERENCES)) as cursor:
            cursor.putmulti(places)

    def is_referring(self, name: bytes) -> bool:
        """Whether entries of an index may hold references."""
        found = self._referring.get(name)
        if found is None:
            handle = self.database(_META)
            found = handle is not None and self.raw.get(_REFERRING + name, db=handle) is not None
            self._referring[name] = found
        return found

    def resolve(self, value: bytes) -> bytes:
        """The tuple of an entry that may hold a reference to it."""
        return self._state.files.read(value) if value[0] == REFERENCE else value

    def log_files(self) -> list[int]:
        """The numbers of the log files that references were made to."""
        handle = self.database(_REFERENCES)
        numbers: list[int] = []
        if handle is not None:
            with self.raw.cursor(handle) as cursor:
                found = cursor.first()
                while found:
                    numbers.append(_PLACE.unpack_from(cursor.key())[0])
                    found = cursor.set_range((numbers[-1] + 1).to_bytes(8, "big"))
        return numbers

    def move_in(self, number: int) -> bool:
        """Put tuples that are referred to in a log file into the state; False: there are more.

        The file is kept open: what views of before refer to is read after it is removed, too.
        """
        places: list[bytes] = []
        size = 0
        with self.raw.cursor(self.database(_REFERENCES)) as cursor:
            if cursor.set_range(number.to_bytes(8, "big")):
                for place in cursor.iternext(values=False):
                    file, space_id = _PLACE.unpack_from(place)
                    if file != number:
                        break
                    if len(places) == _MOVED_ENTRIES or size > _MOVED_BYTES:
                        self._forget(places)
                        return False
                    self._state.files.hold(number)
                    places.append(place)
                    size += self._move_one(number, space_id, place[_PLACE.size :])
        self._forget(places)
        return True

    @property
    def files(self) -> LogFiles:
        """The log files that references are about."""
        return self._state.files

    def _move_one(self, number: int, space_id: int, key: bytes) -> int:
        """Returns how many bytes were moved: none where the entry is another one by now."""
        tree = self.tree(space_id, 0)
        assert tree is not None
        value = self.raw.get(key, db=tree.handle)
        if value is None or value[0] != REFERENCE or file_of(value) != number:
            return 0
        data = self.resolve(value)
        self.raw.put(key, data, db=tree.handle)
        return len(data)

    def _forget(self, places: list[bytes]) -> None:
        for place in places:
            self.raw.delete(place, db=self.database(_REFERENCES))

    def commit(self) -> None:
        """Make it the state. Raises `MapFull`, or `lmdb.Error`; then it is aborted."""
        try:
            self.raw.commit()
        except lmdb.Error:
            self.raw.abort()
            raise
        self._state.remember(self._opened)

    def abort(self) -> None:
        """Forget it."""
        self.raw.abort()


class Tree:
    """The entries of one index in one transaction: ordered bytes → bytes."""

    __slots__ = ("_name", "_raw", "_txn", "_undo", "handle")

    def __init__(
        self, txn: Txn, name: bytes, handle: Any, undo: list[tuple[Any, bytes, bytes | None]]
    ) -> None:
        self._txn = txn
        self._name = name
        self._raw = txn.raw
        self.handle = handle
        self._undo = undo

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`."""
        if len(key) < PIECE_BYTES:
            value: bytes | None = self._raw.get(key, db=self.handle)
            if value and value[0] == REFERENCE:
                return self._txn.resolve(value)
            return value
        return self._long().get(key) if self._txn.has_long(self._name) else None

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value under `key`."""
        if len(key) < PIECE_BYTES:
            self._keep(self.handle, key)
            self._raw.put(key, value, db=self.handle)
        else:
            self._txn.note_long(self._name)
            self._long().put(key, value)

    def delete(self, key: bytes) -> None:
        """Remove `key`, which is there."""
        if len(key) < PIECE_BYTES:
            self._keep(self.handle, key)
            self._raw.delete(key, db=self.handle)
        else:
            self._long().delete(key)

    def clear(self) -> None:
        """Remove all entries. Not undone by `rollback`."""
        self._raw.drop(self.handle, delete=False)
        if self._txn.has_long(self._name):
            self._long().clear()

    def _keep(self, handle: Any, key: bytes) -> None:
        """Note what is under `key`, for a rollback."""
        self._undo.append((handle, key, self._raw.get(key, db=handle)))

    def _long(self) -> LongKeys:
        """The keys in pieces; a reader asks only where there are some."""
        below = self._txn.database(self._name + _LONG_NAME)
        return LongKeys(self._raw, self.handle, below, self._keep)

    def load(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """Set many entries, fastest in ascending order of keys. Not undone by `rollback`."""
        keys = [key for key, _ in pairs]
        if all(map(lt, keys, keys[1:])):
            self.load_sorted([(keys, [value for _, value in pairs])], _longest(keys))
            return
        if not takes_length(_longest(keys)):
            for key, value in pairs:
                self.put(key, value)
            return
        with self._raw.cursor(self.handle) as cursor:
            cursor.putmulti(pairs)

    def load_sorted(self, parts: Iterable[SortedPart], longest: int) -> None:
        """`load` of keys that are ascending, none of them twice.

        `parts`: keys, some at least, and the value of each; `longest`: no key has more bytes.
        """
        if not takes_length(longest):
            for keys, values in parts:
                for key, value in zip(keys, values, strict=True):
                    self.put(key, value)
            return
        last = self.last_key()
        with self._raw.cursor(self.handle) as cursor:
            for keys, values in parts:
                pairs = zip(keys, values, strict=True)
                cursor.putmulti(pairs, append=last is None or keys[0] > last)

    def put_all(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """Set many short keys, fastest in ascending order. Undone as `add_new`."""
        self._txn.spoil()
        with self._raw.cursor(self.handle) as cursor:
            cursor.putmulti(pairs)

    def add_new(self, pairs: list[tuple[bytes, bytes]]) -> bool:
        """Add many entries, ascending; False, with some of them added, if a key is there already.

        Only undone with the whole transaction.
        """
        self._txn.spoil()
        if not takes_length(_longest([key for key, _ in pairs])):
            for key, value in pairs:
                if self.get(key) is not None:
                    return False
                self.put(key, value)
            return True
        with self._raw.cursor(self.handle) as cursor:
            _, added = cursor.putmulti(pairs, overwrite=False)
        return bool(added == len(pairs))

    def append(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Add many short keys, ascending and above all that are there. Undone as `add_new`."""
        self._txn.spoil()
        with self._raw.cursor(self.handle) as cursor:
            cursor.putmulti(pairs, append=True)

    def insert(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """Add many short keys, ascending, none of which is there. Undone as `add_new`."""
        self._txn.spoil()
        last = self.last_key()
        with self._raw.cursor(self.handle) as cursor:
            cursor.putmulti(pairs, append=last is None or pairs[0][0] > last)

    def has_any(self, keys: Sequence[bytes]) -> bool:
        """Whether one of these short keys, ascending, is there."""
        last = self.last_key()
        with self._raw.cursor(self.handle) as cursor:
            return last is not None and any(key <= last and cursor.set_key(key) for key in keys)

    def has_only(self, prefix: bytes) -> bool:
        """Whether all keys begin with `prefix`, as short as a key that is stored as it is."""
        with self._raw.cursor(self.handle) as cursor:
            if not cursor.first():
                return True
            has_first: bool = cursor.key().startswith(prefix)
            return has_first and cursor.last() and cursor.key().startswith(prefix)

    def last_with(self, prefix: bytes) -> bytes | None:
        """The greatest key, as stored, of those that begin with `prefix`, which is short."""
        with self._raw.cursor(self.handle) as cursor:
            found = cursor.set_range(prefix.ljust(PIECE_BYTES, b"\xff"))
            if not (found and cursor.key().startswith(prefix)):
                found = cursor.prev() if found else cursor.last()
            is_such = found and cursor.key().startswith(prefix)
            return bytes(cursor.key()) if is_such else None

    def last_key(self) -> bytes | None:
        """The greatest key as stored; None in an empty tree."""
        with self._raw.cursor(self.handle) as cursor:
            return bytes(cursor.key()) if cursor.last() else None

    def count(self) -> int:
        """How many entries there are."""
        count: int = self._raw.stat(self.handle)["entries"]
        if self._txn.has_long(self._name):
            count += self._long().surplus()
        return count

    def ascending(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries from `start` on, in order of keys."""
        with self._raw.cursor(self.handle) as cursor:
            if not (cursor.set_range(start[:PIECE_BYTES]) if start else cursor.first()):
                return
            resolve = self._resolver()
            for stored, value in cursor.iternext():
                if len(stored) < PIECE_BYTES:
                    yield stored, value if resolve is None else resolve(value)
                else:
                    yield from self._long().ascending(stored, value, start)

    def values(self, start: bytes, limit_items: int, limit_bytes: int) -> tuple[list[bytes], bool]:
        """Values of entries from `start` on, in order of keys, and whether these were the last.

        It stops at `limit_items`, or soon after `limit_bytes`.
        """
        found: list[bytes] = []
        size = 0
        if self._txn.has_long(self._name) or self._txn.is_referring(self._name):
            for _, value in self.ascending(start):
                found.append(value)
                size += len(value)
                if len(found) >= limit_items or size >= limit_bytes:
                    return found, False
            return found, True
        with self._raw.cursor(self.handle) as cursor:
            if not (cursor.set_range(start) if start else cursor.first()):
                return found, True
            ahead = cursor.iternext(keys=False)
            wanted = _STEP_VALUES
            while len(found) < limit_items and size < limit_bytes:
                step = list(islice(ahead, wanted))
                found += step
                size += sum(map(len, step))
                if len(step) < wanted:
                    return found, True
                if size < len(found) * _SMALL_BYTES:
                    wanted = 16 * _STEP_VALUES
        return found, False

    def descending(self, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Entries below `stop` (None: from the greatest), in reverse order of keys."""
        with self._raw.cursor(self.handle) as cursor:
            if stop is None:
                found = cursor.last()
            else:
                bound = stop[:PIECE_BYTES]
                found = cursor.set_range(bound)
                if not found:
                    found = cursor.last()
                elif bytes(cursor.key()) != bound or len(stop) < PIECE_BYTES:
                    found = cursor.prev()
            if not found:
                return
            resolve = self._resolver()
            for stored, value in cursor.iterprev():
                if len(stored) < PIECE_BYTES:
                    yield stored, value if resolve is None else resolve(value)
                else:
                    yield from self._long().descending(stored, value, stop)

    def _resolver(self) -> Callable[[bytes], bytes] | None:
        """What makes tuples of values, where they may be references."""
        return self._txn.resolve if self._txn.is_referring(self._name) else None


def takes_length(key_bytes: int) -> bool:
    """Whether LMDB takes keys of that length, which is not negative, as they are."""
    return 0 <= key_bytes < PIECE_BYTES


def _longest(keys: list[bytes]) -> int:
    return max(map(len, keys), default=0)
