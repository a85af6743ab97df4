"""The changes of a log that were chosen by space and key, taken apart: no I/O.

Definitions are those that are told: at first, and again behind rows that change them. A space that
is gone by then has its id for a name, and no key where its row has only a tuple. Rows of
replica-local spaces are not given: a server does not give them either.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from logweir.errors import ConfigError, RequestError
from logweir.store.commit.applying import APPLIED
from logweir.store.engine.request import key_bytes
from logweir.store.engine.statements import Row
from logweir.store.schema.definition import (
    GROUP_LOCAL,
    SYSTEM_ID_MAX,
    IndexDef,
    SpaceDef,
    SystemSpace,
)
from logweir.store.schema.keys import KEY_END, exact_key, search_key, tuple_key
from logweir.store.schema.schema import Schema
from logweir.wal.columns import RowColumns
from logweir.wal.mp import Value, unpack
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

_DEFINING: Final = frozenset((SystemSpace.COLLATION, SystemSpace.SPACE, SystemSpace.INDEX))
_EMPTYING: Final = frozenset((SystemSpace.SPACE, SystemSpace.TRUNCATE))
_TOLD: Final = _DEFINING | _EMPTYING
_BY_KEY: Final = frozenset((RowType.UPDATE, RowType.DELETE))
_NO_KEY: Final = b"\x90"


Ops = tuple[list[Any], ...]
"""Operations, each a list."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a tuple, or of a whole space.

    `type_name`: INSERT, REPLACE, UPDATE, UPSERT or DELETE, as it is logged; TRUNCATE and DROP where
    the space was emptied or removed, which have no key. `key`: the values of the primary key;
    `tuple`: what is there after it, None for none, and where `is_known` is False. `given`: the
    tuple of an UPSERT; `ops`: the operations of an UPDATE or UPSERT, fields numbered from 0;
    `before`: what was there, where images are kept. `replica_id`, `lsn`: of the row.
    """

    space: str
    space_id: int
    type_name: str
    key: Row | None
    tuple: Row | None
    is_known: bool
    replica_id: int
    lsn: int
    given: Row | None = None
    ops: Ops = ()
    before: Row | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """One transaction: its `changes` that were chosen, in order. `vclock`: the position behind it;
    `timestamp`: of its last row, seconds since the epoch."""

    changes: tuple[Change, ...]
    vclock: VClock
    timestamp: float


class Chooser:
    """Takes rows apart, in the order of the log.

    `spaces`: names or ids, none for all that are not the system's; `key`: of one space, the first
    parts of its primary key, in the place of the last one `{"begins": text}`, or bytes, for all
    that begin so; `schema`: the definitions to begin with; `learn`: gives those of now behind rows
    that define something, up to a position, None if they are known. Raises `ConfigError`, and
    `RequestError` for a space that is not there or a key that does not fit.
    """

    def __init__(
        self,
        spaces: Sequence[int | str],
        key: Value,
        schema: Schema,
        learn: Callable[[VClock], Schema | None],
    ) -> None:
        if key is not None and len(spaces) != 1:
            raise ConfigError("key", "is for one space", hint="name the space it is a key of")
        key, self._is_begun = _whole(key)
        self._key = None if key is None else key_bytes(key)
        self._wanted = frozenset(spaces)
        self._ask = learn
        self._spaces: dict[int, SpaceDef] = {}
        self._ids: set[int] = set()
        self._prefix = b""
        for one in spaces:
            schema.space(one)
        self._learn(schema)

    def _learn(self, schema: Schema) -> None:
        self._spaces |= {space.id: space for space in schema}
        names = {space.name: space.id for space in self._spaces.values()}
        for one in self._wanted:
            self._ids.add(one if isinstance(one, int) else names[one])
        if self._key is not None:
            for space_id in self._ids:
                if primary := self._spaces[space_id].primary:
                    self._prefix = self._prefix_in(primary)

    def _prefix_in(self, primary: IndexDef) -> bytes:
        """With what the keys of the tuples begin that are wanted."""
        prefix, count = search_key(self._key or _NO_KEY, primary)
        if not self._is_begun:
            return prefix
        if primary.parts[count - 1].collation is not None:
            text = f"part {count} of the index {primary.name!r} has a collation, so no beginning"
            raise ConfigError("key", text, hint="give the whole part, or leave it out")
        return prefix[: -len(KEY_END)]

    def taken(self, columns: RowColumns, lsns: array[int]) -> Iterator[Changes]:
        """Each transaction of which something was chosen; at the end one without changes, if what
        comes last was not. `lsns`: what was reached per replica id, 32 of them, which these rows
        raise, transaction by transaction."""
        if not self._concerns(columns.space_id.tolist()):
            columns.raise_lsns(lsns)
            yield _nothing(columns, lsns)
            return
        changes: tuple[Change, ...] = ()
        for first, last in columns.transactions():
            for row in range(first, last):
                at = columns.replica_id[row]
                lsns[at] = max(lsns[at], columns.lsn[row])
            if not _DEFINING.isdisjoint(columns.space_id[first:last]):
                schema = self._ask(VClock.of_lsns(lsns))
                if schema is not None:
                    self._learn(schema)
            found = (self._change(columns, row) for row in range(first, last))
            changes = tuple(change for change in found if change is not None)
            if changes:
                yield Changes(changes, VClock.of_lsns(lsns), columns.timestamp[last - 1])
        if not changes:
            yield _nothing(columns, lsns)

    def space(self, space_id: int) -> SpaceDef | None:
        """The definition of a space as far as it is known."""
        return self._spaces.get(space_id)

    def wants(self, space_id: int, data: bytes | None, packed: bytes | None = None) -> bool:
        """Whether a tuple, or a key, both in MsgPack, is one of those that were chosen."""
        if not (space_id in self._ids or (not self._ids and space_id > SYSTEM_ID_MAX)):
            return False
        return self._is_of_key(self._spaces.get(space_id), data, packed)

    def _concerns(self, spaces: list[int]) -> bool:
        """Whether rows of some spaces may have to be given, or tell something of them."""
        if not self._ids:
            return max(spaces, default=0) > SYSTEM_ID_MAX or not _TOLD.isdisjoint(spaces)
        return not (self._ids.isdisjoint(spaces) and _TOLD.isdisjoint(spaces))

    def _change(self, columns: RowColumns, row: int) -> Change | None:
        """What a row is; None if it was not chosen."""
        kind, space_id = columns.type[row], columns.space_id[row]
        if kind not in APPLIED or columns.group_id[row] == GROUP_LOCAL or columns.index_id(row):
            return None
        if space_id in _EMPTYING:
            return self._emptied(columns, row)
        space = self._spaces.get(space_id)
        data, packed = columns.tuple_bytes(row), columns.key_bytes(row)
        data = None if kind in _BY_KEY else data
        if not self.wants(space_id, data, packed):
            return None
        given = None if data is None else tuple(unpack(data))
        key: Row | None = None
        if packed is not None and given is None:
            key = tuple(unpack(packed))
        elif given is not None and space is not None and space.primary is not None:
            key = tuple(part.value_in(given) for part in space.primary.parts)
        ops = columns.ops_bytes(row)
        is_upsert = kind == RowType.UPSERT
        return Change(
            self._name(space_id),
            space_id,
            RowType(kind).name,
            key,
            None if is_upsert else given,
            kind not in (RowType.UPDATE, RowType.UPSERT),
            columns.replica_id[row],
            columns.lsn[row],
            given if is_upsert else None,
            () if ops is None else _from_zero(unpack(ops), columns.index_base[row]),
        )

    def _is_of_key(self, space: SpaceDef | None, data: bytes | None, packed: bytes | None) -> bool:
        """Whether a row has the wanted beginning of a key."""
        if self._key is None:
            return True
        if space is None or space.primary is None:
            return False
        try:
            if data is not None:
                return tuple_key(data, space.primary).startswith(self._prefix)
            return exact_key(packed or b"\x90", space.primary).startswith(self._prefix)
        except RequestError:
            return False  # the key was made of something else there

    def _emptied(self, columns: RowColumns, row: int) -> Change | None:
        """The change of a whole space that a row of the system's tells, if it does."""
        is_drop = columns.type[row] == RowType.DELETE
        if is_drop != (columns.space_id[row] == SystemSpace.SPACE):
            return None
        told = columns.key_bytes(row) if is_drop else None
        space_id = unpack(told or columns.tuple_bytes(row) or columns.key_bytes(row) or b"\x91\0")[
            0
        ]
        if self._ids and space_id not in self._ids:
            return None
        kind = "DROP" if is_drop else "TRUNCATE"
        at = columns.replica_id[row], columns.lsn[row]
        return Change(self._name(space_id), space_id, kind, None, None, True, *at)

    def _name(self, space_id: int) -> str:
        space = self._spaces.get(space_id)
        return str(space_id) if space is None else space.name


def _whole(key: Value) -> tuple[Value, bool]:
    """A key with the text or bytes in the place of `{"begins": …}`, and whether that was there."""
    *first, last = key if isinstance(key, list | tuple) and key else (key,)
    match last:
        case {"begins": str() | bytes() as text, **more} if not more:
            return [*first, text], True
    return key, False


def _nothing(columns: RowColumns, lsns: array[int]) -> Changes:
    return Changes((), VClock.of_lsns(lsns), columns.timestamp[len(columns) - 1])


def _from_zero(ops: list[list[Any]], base: int) -> Ops:
    """Operations with fields, and places in a string, numbered from 0."""
    found = []
    for op in ops:
        places = (1, 2) if op[0] == ":" else (1,)
        for at in places:
            if isinstance(op[at], int) and op[at] >= base:
                op[at] -= base
        found.append(op)
    return tuple(found)
