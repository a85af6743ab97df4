"""One transaction on the state: its trees, the position in the log, references into that.

`store.state.state` says what the databases are.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logweir.store.state import base
from logweir.store.state.references import REFERENCE, LogFiles, file_of, file_part
from logweir.store.state.tree import Tree
from logweir.wal.mp import pack, unpack
from logweir.wal.place import Place
from logweir.wal.vclock import VClock

if TYPE_CHECKING:
    from logweir.store.state.state import State

_META: Final = b"meta"
_POSITION: Final = b"position"
_INSTANCE: Final = b"instance"
_LONG: Final = b"long/"
_REFERRING: Final = b"referring/"
_REFERENCES: Final = b"references"
_PLACE: Final = struct.Struct(">QI")  # file, space
_MOVED_BYTES: Final = 16 * 1024 * 1024
_MOVED_ENTRIES: Final = 10_000
_ENDED: Final = -2  # of what was lent


class Position(NamedTuple):
    """Up to where the state is applied. `vclock`: all rows that it covers; `place`: behind the last
    of them in the log, or the end of the snapshot behind which nothing was written; `unlogged`:
    whether rows up to it were applied without being logged (durability "none"), behind `place`."""

    vclock: VClock
    place: Place | None = None
    unlogged: bool = False


class Txn:
    """One transaction on the state."""

    def __init__(self, state: State, raw: Any, *, write: bool) -> None:
        self.state = state
        self.raw = raw
        self.is_write = write
        self._opened: dict[bytes, Any] = {}
        self._known = state.databases  # a reader must not use those that were made after it began
        self._referring: dict[bytes, bool] = {}
        self.trees: dict[tuple[int, int], Tree | None] | None = None
        self.bases: dict[tuple[int, int], Any] | None = None
        """Of indexes that layers over it have looked at, while it is lent again and again: for
        `store.state.stackkernel`. They know it, so that only `end` lets it go then."""
        self.is_lent = False
        self.lent_at = -1
        """See `State.lend`; below 0: it is not lent."""

    def tree(self, space_id: int, index_id: int) -> Tree | None:
        """The entries of one index; None if a reader finds none (it was never written)."""
        name = b"%d/%d" % (space_id, index_id)
        handle = self._known.get(name) or self.database(name)
        return None if handle is None else Tree(self, name, handle)

    def database(self, name: bytes) -> Any | None:
        """The handle of a database; None if a reader finds none."""
        handle = self._known.get(name) or self._opened.get(name)
        if handle is None:
            self.state.check_process()
            if self.is_write:
                handle = self._opened[name] = self.state.new_database(name, self.raw)
        return handle

    def indexes(self) -> list[tuple[int, int]]:
        """The space and the number of each index that was ever written."""
        names = [name.split(b"/") for name in self._known if name[:1].isdigit()]
        return [(int(name[0]), int(name[1])) for name in names if len(name) == 2]

    def drop(self, space_id: int, index_id: int) -> None:
        """Remove all entries of an index."""
        tree = self.tree(space_id, index_id)
        assert tree is not None
        tree.clear()

    def load(self, space_id: int, index_id: int, pairs: list[tuple[bytes, bytes]]) -> None:
        """Set many entries."""
        tree = self.tree(space_id, index_id)
        assert tree is not None
        if pairs:
            tree.load(pairs)

    def count(self, space_id: int, index_id: int) -> int:
        """How many entries an index has."""
        tree = self.tree(space_id, index_id)
        return 0 if tree is None else tree.count()

    def items(self, space_id: int, index_id: int) -> Iterator[tuple[bytes, bytes]]:
        """All entries of an index, in order; none where it was never written."""
        tree = self.tree(space_id, index_id)
        return iter(()) if tree is None else tree.ascending(b"")

    def position(self) -> Position | None:
        """Up to where the state is applied; None in an empty one."""
        handle = self.database(_META)
        data = None if handle is None else self.raw.get(_POSITION, db=handle)
        if data is None:
            return None
        vclock, unlogged, place = unpack(data)
        return Position(VClock(vclock), Place.unpacked(place), unlogged)

    def set_position(self, position: Position) -> None:
        """Note up to where this transaction applies the log."""
        data = pack([dict(position.vclock), position.unlogged, position.place or ()])
        self.raw.put(_POSITION, data, db=self.database(_META))

    def instance(self) -> uuid.UUID | None:
        """Whose state it is; None if that is not known."""
        handle = self.database(_META)
        data = None if handle is None else self.raw.get(_INSTANCE, db=handle)
        return None if data is None else uuid.UUID(bytes=data)

    def set_instance(self, instance: uuid.UUID | None) -> None:
        """Note whose state it is."""
        if instance is not None:
            self.raw.put(_INSTANCE, instance.bytes, db=self.database(_META))

    def note_long(self, name: bytes) -> None:
        """Remember that an index has had keys that are kept in pieces."""
        self.raw.put(_LONG + name, b"", db=self.database(_META))

    def has_long(self, name: bytes) -> bool:
        """Whether `note_long` was ever said of that index."""
        handle = self.database(_META)
        return handle is not None and self.raw.get(_LONG + name, db=handle) is not None

    # --- references -------------------------------------------------------------------------------

    def refer(self, space_id: int, pairs: list[tuple[bytes, bytes]]) -> None:
        """Note entries of a primary index that are references."""
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
        return self.state.files.read(value) if value[0] == REFERENCE else value

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
        self.state.files.hold(number)
        with self.raw.cursor(self.database(_REFERENCES)) as cursor:
            if cursor.set_range(number.to_bytes(8, "big")):
                for place in cursor.iternext(values=False):
                    file, space_id = _PLACE.unpack_from(place)
                    if file != number:
                        break
                    if len(places) == _MOVED_ENTRIES or size > _MOVED_BYTES:
                        self._forget(places)
                        return False
                    places.append(place)
                    size += self._move_one(number, space_id, place[_PLACE.size :])
        self._forget(places)
        return True

    @property
    def files(self) -> LogFiles:
        """The log files that references are about."""
        return self.state.files

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
        """Make it the state. Raises `MapFull`, or `base.Error`; then it is aborted."""
        self.write()
        self.settle()

    def write(self) -> None:
        """The first part of `commit`, which takes long: who begins a transaction from now on has
        it."""
        self.state.check_process()
        try:
            self.raw.commit()
        except base.Error:
            self.raw.abort()
            raise

    def settle(self) -> None:
        """The rest: let go what shows the state of before."""
        self.state.remember(self._opened)
        if self.is_write:
            self.state.has_changed()

    def abort(self) -> None:
        """Forget it, or give it back. Twice does no harm."""
        if self.state.is_foreign:
            return
        if self.is_lent:
            self.is_lent = False  # first: who has it twice would give it to two
            self.state.take_back(self)
        elif self.lent_at < 0:
            self.end()

    def end(self) -> None:
        """Nobody uses it any more, nor is lent it."""
        if self.lent_at >= 0:
            self.lent_at, self.trees, self.bases = _ENDED, None, None
        self.raw.abort()
