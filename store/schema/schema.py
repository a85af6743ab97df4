"""The schema: all spaces, sequences and collations, changed by rows of system spaces. No I/O.

A `Schema` starts with the system spaces that must be known before the first row can be read, and
learns the rest from rows of 276 _collation, 280 _space, 284 _sequence, 288 _index, 330 _truncate
and 340 _space_sequence, in the order in which they were made. `copy()` is cheap (definitions are
immutable and shared), so a transaction changes a copy and drops it on rollback.

`apply` checks a row first, then changes the schema, and tells in a `Change` what the caller has to
do with the tuples. What it refuses, besides what `logweir.store.schema.decode` does:

====  ============================================================================================
code  when
====  ============================================================================================
36    the space of an index, a truncation or a sequence is not there
11    a space that still has indexes, grants, a truncation record … is dropped
12    a space's id, engine, group or view flag would change; an index on a view; a secondary index
      before the primary one; the primary key goes while a sequence uses it
15    the primary key of a system space, 17 of a space with secondary indexes, would be dropped
24    … 27, 149, 162, 194: see `logweir.store.schema.format`
65    the replica set's UUID is deleted; 67, 73, 128, 64, 5: a row of `_cluster` is wrong
137   a system space would be truncated
144   a sequence that has data or is in use is dropped; 145 one is not there; 173 collation none
5     an index of type RTREE or BITSET, or computed by a function, is made here or read by: logweir
      does not keep these. Those of `trusted` rows (a log, a snapshot, an upstream) are known only.
====  ============================================================================================

Names of spaces and of a space's indexes are unique by indexes of `_space` and `_index`: the store
refuses a second one with 3. `check_new_space` refuses it with 10, as `box.schema` does.
Source: Tarantool 2.6.0, `alter.cc`, `schema.cc`, observed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import compress, filterfalse
from operator import is_not
from typing import Any, Final, Literal

from logweir.errors import ErrorCode, RequestError
from logweir.limits import TUPLE_BYTES, VCLOCK_COMPONENTS
from logweir.store.schema.decode import (
    decode_collation,
    decode_index,
    decode_sequence,
    decode_sequence_use,
    decode_space,
)
from logweir.store.schema.definition import (
    CollationDef,
    IndexDef,
    IndexType,
    PartDef,
    SequenceDef,
    SequenceUse,
    SpaceDef,
    SystemSpace,
)
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.jsonpath import PathError
from logweir.store.schema.refused import refuse_first, refused, refusing, unsupported
from logweir.store.schema.row import i64, need_uuid, read_row, row_numbers, uuid_of
from logweir.wal.vclock import VClock

ChangeKind = Literal["create", "drop", "alter", "truncate", "sequence", "collation"]

HasRows = Callable[[int, int, list[Any]], bool]
"""Whether a system space has a row: (space id, index id, first parts of its key)."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a row has changed. `old`, `new`: the space before and after, where it is one's.

    `build`: ids of the indexes whose entries must be made anew from the tuples (0: the tuples
    themselves get other keys); `drop`: ids of those whose entries go; `check_tuples`: the tuples
    there must be checked against the new format before it holds.
    """

    kind: ChangeKind
    old: SpaceDef | None = None
    new: SpaceDef | None = None
    build: tuple[int, ...] = ()
    drop: tuple[int, ...] = ()
    check_tuples: bool = False


# Most of these rows are the same in all folders: the 276 collations and 26 spaces of a new one.
_collation_of = lru_cache(maxsize=512)(decode_collation)
_space_of = lru_cache(maxsize=128)(decode_space)

# So is what the first rows of `_space` and `_index` make of system spaces, one after the other: by
# the row, what was there before and the limit of tuples. That stays beside it, for it is known by
# its id. Not of those with collations, which are other rows.
_REMEMBERED: Final[
    dict[tuple[int, bytes, int, int, bool], tuple[SpaceDef | None, Change | None]]
] = {}
_EMPTY: Final = b"\x90"
_REMEMBERED_MOST: Final = 1024
_REMEMBERED_BYTES: Final = 4096
"""Of a row. Those of a new folder have 546 at most."""


_UNSIGNED: Final = FieldType.UNSIGNED
_STRING: Final = FieldType.STRING
_KEYS: Final[dict[SystemSpace, tuple[FieldType, ...]]] = {
    SystemSpace.SCHEMA: (_STRING,),
    SystemSpace.INDEX: (_UNSIGNED, _UNSIGNED),
    SystemSpace.TRIGGER: (_STRING,),
    SystemSpace.FK_CONSTRAINT: (_STRING, _UNSIGNED),
    SystemSpace.CK_CONSTRAINT: (_UNSIGNED, _STRING),
    SystemSpace.FUNC_INDEX: (_UNSIGNED, _UNSIGNED),
}
"""Types of the first fields, which are the primary key, where that is more than an id. Replaced
when their own rows come."""


@cache
def _first_spaces() -> dict[int, SpaceDef]:
    """The system spaces that are there before any row; made once, for they never change."""
    found = {}
    for one in SystemSpace:
        parts = tuple(PartDef(at, kind) for at, kind in enumerate(_KEYS.get(one, (_UNSIGNED,))))
        primary = IndexDef(one, 0, "primary", IndexType.TREE, parts)
        space = SpaceDef(int(one), 1, f"_{one.name.lower()}")
        found[space.id] = space.with_indexes((primary,))
    return found


def _is_alike(space: SpaceDef) -> bool:
    return (
        space.is_system
        and not any(one.collation_id for one in space.fields)
        and all(part.collation is None for index in space.indexes for part in index.parts)
    )


def _nothing(space_id: int, index_id: int, key: list[Any]) -> bool:
    return False


class Schema:
    """All definitions. Not for several threads at once; readers may share a copy.

    `version` rises with each change; `sequences`: id → sequence; `collations`: id → collation;
    `tuple_bytes`: what a tuple may take, but in spaces that have the format of a topic;
    `unlogged`: ids of the sequences of which a temporary space takes numbers, or has.
    """

    __slots__ = (
        *("_by_name", "_spaces", "collations", "sequences", "tuple_bytes", "unlogged", "version"),
    )

    def __init__(self, tuple_bytes: int = TUPLE_BYTES) -> None:
        self.tuple_bytes = tuple_bytes
        self._spaces = dict(_first_spaces())
        self._by_name = {space.name: space.id for space in self._spaces.values()}
        self.sequences: dict[int, SequenceDef] = {}
        self.collations: dict[int, CollationDef] = {}
        self.unlogged: set[int] = set()
        self.version = 1

    def copy(self) -> Schema:
        """Another schema with the same content, changed apart from this one."""
        other = Schema.__new__(Schema)
        for name in self.__slots__:
            setattr(other, name, copy(getattr(self, name)))
        return other

    def changed_since(self, before: Schema) -> set[int]:
        """The ids of spaces that are not as they were in the schema that this was a copy of."""
        mine, theirs = self._spaces, before._spaces
        other = compress(mine, map(is_not, mine.values(), map(theirs.get, mine)))
        return {*other, *filterfalse(mine.__contains__, theirs)}

    def limit_tuples(self, tuple_bytes: int) -> None:
        """From now on a tuple may take so much; those that are there stay."""
        self.tuple_bytes = tuple_bytes
        for space in self._spaces.values():
            self._spaces[space.id] = replace(space, tuple_bytes=tuple_bytes)

    # --- looking up -------------------------------------------------------------------------------
    def __iter__(self) -> Iterator[SpaceDef]:
        return iter(self._spaces.values())

    def __len__(self) -> int:
        return len(self._spaces)

    def get(self, key: int | str) -> SpaceDef | None:
        """The space of that id or name, None if there is none."""
        if isinstance(key, int):
            return self._spaces.get(key)
        space_id = self._by_name.get(key) if isinstance(key, str) else None
        return None if space_id is None else self._spaces.get(space_id)

    def space(self, key: int | str) -> SpaceDef:
        """The space of that id or name. Raises 36."""
        found = self.get(key)
        if found is None:
            hint = "`logweir space list` shows those that there are"
            raise refused(ErrorCode.NO_SUCH_SPACE, hint, space=key)
        return found

    def index(self, space: SpaceDef, key: int | str) -> IndexDef:
        """An index of a space. Raises 35, 148; 5 for one that logweir does not keep."""
        found = space.index(key)
        if found is None:
            by_id = isinstance(key, int)
            raise RequestError(
                ErrorCode.NO_SUCH_INDEX_ID if by_id else ErrorCode.NO_SUCH_INDEX_NAME,
                f"No index {f'#{key}' if by_id else repr(key)} is defined in space '{space.name}'",
                hint=f"its indexes: {', '.join(one.name for one in space.indexes) or 'none'}",
            )
        if not found.is_usable:
            raise _unsupported(found)
        return found

    @property
    def has_synchronous(self) -> bool:
        """Whether there is a space whose changes wait for a CONFIRM."""
        return any(space.is_sync for space in self)

    def is_synchronous(self, space_id: int) -> bool:
        """Whether changes of that space wait for a CONFIRM."""
        space = self._spaces.get(space_id)
        return space is not None and space.is_sync

    def check_new_space(self, name: str) -> None:
        """Raises 10 where a space of that name exists."""
        if name in self._by_name:
            raise RequestError(ErrorCode.SPACE_EXISTS, f"Space '{name}' already exists")

    # --- changing ---------------------------------------------------------------------------------
    def apply(
        self,
        space_id: int,
        old: bytes | None,
        new: bytes | None,
        *,
        is_insert: bool = False,
        trusted: bool = False,
        has_rows: HasRows = _nothing,
    ) -> Change | None:
        """Take over one changed row of a system space.

        `old`, `new`: the tuple before and after, None if there is none (an insert, a delete);
        `is_insert`: the row's type is INSERT (of `_truncate` that says nothing happened yet);
        `trusted`: it is from a log, so index kinds that we do not keep, and any `default`, are let
        in; `has_rows`: looks into other system spaces, for rows that hinder a drop. Returns what
        changed, None where the row defines nothing. Raises `RequestError`, and then nothing has
        changed.
        """
        change: Change | None = None
        if old is None and new and space_id in (SystemSpace.SPACE, SystemSpace.INDEX):
            change = self._first_row(space_id, new, trusted)
        elif space_id == SystemSpace.SPACE:
            change = self._space_row(old, new, trusted, has_rows)
        elif space_id == SystemSpace.INDEX:
            change = self._index_row(old, new, trusted)
        elif space_id == SystemSpace.TRUNCATE:
            change = self._truncate_row(new, is_insert)
        elif space_id == SystemSpace.COLLATION:
            change = self._collation_row(old, new)
        elif space_id == SystemSpace.SEQUENCE:
            change = self._sequence_row(old, new, has_rows)
        elif space_id == SystemSpace.SPACE_SEQUENCE:
            change = self._sequence_use_row(old, new)
        elif space_id == SystemSpace.SEQUENCE_DATA:
            self.sequence(row_numbers(new or old or b"", 1)[0])
            if new is not None and not trusted:
                i64(read_row(new), 1)
        elif space_id == SystemSpace.SCHEMA:
            _check_schema_row(old, new, trusted)
        if change is not None and change.kind in ("create", "drop", "alter"):
            self.version += 1
            after = change.new
            if after is not None and after.is_temporary and after.sequence is not None:
                self.unlogged.add(after.sequence.sequence_id)
        return change

    def sequence(self, sequence_id: int) -> SequenceDef:
        """The sequence of that id. Raises 145."""
        found = self.sequences.get(sequence_id)
        if found is None:
            raise refused(ErrorCode.NO_SUCH_SEQUENCE, sequence=sequence_id)
        return found

    def _put(self, space: SpaceDef) -> None:
        old = self._spaces.get(space.id)
        if old is not None and self._by_name.get(old.name) == old.id:
            del self._by_name[old.name]
        self._spaces[space.id] = space
        self._by_name[space.name] = space.id

    def _first_row(self, space_id: int, new: bytes, trusted: bool) -> Change | None:
        """A row of `_space` or `_index` that was not there before."""
        before = self._spaces.get(row_numbers(new, 1)[0])
        key = (space_id, new, id(before), self.tuple_bytes, trusted)
        _, change = _REMEMBERED.get(key, (None, None))
        if change is not None and change.new is not None:
            self._put(change.new)
            return change
        if space_id == SystemSpace.SPACE:
            change = self._space_row(None, new, trusted, _nothing)
        else:
            change = self._index_row(None, new, trusted)
        is_short = len(new) <= _REMEMBERED_BYTES
        if is_short and change is not None and change.new is not None and _is_alike(change.new):
            if len(_REMEMBERED) >= _REMEMBERED_MOST:
                _REMEMBERED.clear()
            _REMEMBERED[key] = before, change
        return change

    # --- spaces -----------------------------------------------------------------------------------
    def _space_row(
        self, old: bytes | None, new: bytes | None, trusted: bool, has_rows: HasRows
    ) -> Change | None:
        (space_id,) = row_numbers(old or new or b"", 1)
        before = self._spaces.get(space_id)
        if new is None:
            if before is None:
                return None
            _check_drop(before, has_rows)
            del self._spaces[space_id]
            if self._by_name.get(before.name) == space_id:
                del self._by_name[before.name]
            return Change("drop", before, None)
        space = _space_of(new, is_new=before is None, trusted=trusted)
        if before is not None:
            _check_alter(before, space)
        self._check_collations(space)
        if before is None:
            space = replace(space, tuple_bytes=self.tuple_bytes)
            self._put(space)
            return Change("create", None, space)
        space = replace(
            space,
            tuple_bytes=self.tuple_bytes,
            indexes=before.indexes,
            sequence=before.sequence,
        )
        self._put(space)
        return Change(
            "alter", before, space, check_tuples=not space.format.accepts_all_of(before.format)
        )

    def _check_collations(self, space: SpaceDef) -> None:
        for number, one in enumerate(space.fields, 1):
            if one.collation_id and one.collation_id not in self.collations:
                refuse = refusing(ErrorCode.WRONG_COLLATION_OPTIONS, field=number)
                refuse("collation was not found by ID")

    # --- indexes ----------------------------------------------------------------------------------
    def _index_row(self, old: bytes | None, new: bytes | None, trusted: bool) -> Change | None:
        space_id, index_id = row_numbers(old or new or b"", 2)
        space = self.space(space_id)
        if space.is_view:
            raise alter_error(space, "can not add index on a view")
        before = space.index(index_id)
        if index_id == 0 and new is None:
            _check_primary_drop(space)
        if index_id != 0 and space.primary is None:
            raise alter_error(space, "can not add a secondary key before primary")
        kept = tuple(index for index in space.indexes if index.id != index_id)
        if new is None:
            if before is None:
                return None
            return self._alter_indexes(space, kept)
        index = decode_index(new, space, self.collations)
        if not index.is_usable and not trusted:
            raise _unsupported(index)
        if index.id == 0 and space.sequence is not None:
            _check_sequence_part(index, space, space.sequence)
        return self._alter_indexes(space, (*kept, index))

    def _alter_indexes(self, space: SpaceDef, indexes: tuple[IndexDef, ...]) -> Change:
        after = space.with_indexes(indexes)
        self._put(after)
        before = {index.id: index for index in space.indexes if index.is_usable}
        there = {index.id: index for index in after.indexes if index.is_usable}
        build = tuple(
            number
            for number, index in there.items()
            if number not in before or _layout(before[number]) != _layout(index)
        )
        if 0 in build and 0 in before:
            build = tuple(there)  # entries of secondary indexes hold the primary key
        return Change(
            "alter",
            space,
            after,
            build=build,
            drop=tuple(number for number in before if number not in there),
            check_tuples=not after.format.accepts_all_of(space.format),
        )

    # --- the rest ---------------------------------------------------------------------------------
    def _truncate_row(self, new: bytes | None, is_insert: bool) -> Change | None:
        if new is None:
            return None
        space = self.space(row_numbers(new, 1)[0])
        if is_insert:
            return None
        if space.is_system:
            raise refused(ErrorCode.TRUNCATE_SYSTEM_SPACE, space=space.name)
        return Change("truncate", space, space)

    def _collation_row(self, old: bytes | None, new: bytes | None) -> Change:
        if new is None:
            (collation_id,) = row_numbers(old or b"", 1)
            if collation_id == 0:
                raise refused(ErrorCode.DROP_COLLATION)
            self.collations.pop(collation_id, None)
        elif old is not None:
            raise unsupported("collation does not support alter")
        else:
            collation = _collation_of(new)
            self.collations[collation.id] = collation
        return Change("collation")

    def _sequence_row(self, old: bytes | None, new: bytes | None, has_rows: HasRows) -> Change:
        if new is None:
            sequence = self.sequence(row_numbers(old or b"", 1)[0])
            key, granted = [sequence.id], ["sequence", sequence.id]
            refuse_first(
                refusing(ErrorCode.DROP_SEQUENCE, sequence=sequence.name),
                (has_rows(SystemSpace.SEQUENCE_DATA, 0, key), "the sequence has data"),
                (has_rows(SystemSpace.SPACE_SEQUENCE, 1, key), "the sequence is in use"),
                (has_rows(SystemSpace.PRIV, 2, granted), "the sequence has grants"),
            )
            del self.sequences[sequence.id]
            self.unlogged.discard(sequence.id)
        else:
            sequence = decode_sequence(new, is_new=old is None)
            self.sequences[sequence.id] = sequence
        return Change("sequence")

    def _sequence_use_row(self, old: bytes | None, new: bytes | None) -> Change:
        space_id, sequence_id = row_numbers(new or old or b"", 2)
        space = self.space(space_id)
        self.sequence(sequence_id)
        if new is not None and old is not None:
            raise unsupported('space "_space_sequence" does not support update')
        use: SequenceUse | None = None
        if new is not None:
            primary = self.index(space, 0)
            use = decode_sequence_use(new, primary)
            _check_sequence_part(primary, space, use)
            if any(
                other.sequence is not None
                and other.sequence.sequence_id == sequence_id
                and other.sequence.is_generated
                for other in self
            ):
                raise alter_error(space, "can not attach generated sequence")
        after = replace(space, sequence=use)
        self._put(after)
        return Change("alter", space, after)


def check_cluster_row(old: bytes | None, new: bytes | None, own_replica_id: int) -> None:
    """Check a row of `_cluster`. `own_replica_id`: of this instance, 0 while it is joining.

    Raises `RequestError` 67, 73, 128, 64, 5.
    """
    (replica_id,) = row_numbers(new or old or b"", 1)
    if replica_id == 0:
        raise refused(ErrorCode.REPLICA_ID_IS_RESERVED, replica_id=replica_id)
    if replica_id >= VCLOCK_COMPONENTS:
        raise RequestError(ErrorCode.REPLICA_MAX, f"Replica count limit reached: {replica_id}")
    if own_replica_id and replica_id == own_replica_id:
        raise refused(ErrorCode.LOCAL_INSTANCE_ID_IS_READ_ONLY, replica_id=replica_id)
    if new is None:
        return
    instance = need_uuid(new)
    if old is not None and uuid_of(old) != instance:
        raise unsupported("Space _cluster does not support updates of instance uuid")


# --- checks ---------------------------------------------------------------------------------------
def alter_error(space: SpaceDef, reason: str) -> RequestError:
    """12, a change of that space that cannot be."""
    return refused(ErrorCode.ALTER_SPACE, space=space.name, reason=reason)


def _unsupported(index: IndexDef) -> RequestError:
    what = "functional" if index.function_id else index.type.name
    return unsupported(
        f"logweir does not keep {what} indexes, such as '{index.name}'",
        hint="use a TREE or HASH index; the tuples of the space are there",
        index=index.name,
    )


def _check_drop(space: SpaceDef, has_rows: HasRows) -> None:
    refuse_first(
        refusing(ErrorCode.DROP_SPACE, space=space.name),
        (bool(space.indexes), "the space has indexes"),
        (has_rows(SystemSpace.PRIV, 2, ["space", space.id]), "the space has grants"),
        (has_rows(SystemSpace.TRUNCATE, 0, [space.id]), "the space has truncate record"),
        (
            has_rows(SystemSpace.FK_CONSTRAINT, 1, [space.id]),
            "the space has foreign key constraints",
        ),
        (has_rows(SystemSpace.CK_CONSTRAINT, 0, [space.id]), "the space has check constraints"),
    )


def _check_alter(before: SpaceDef, after: SpaceDef) -> None:
    refuse_first(
        refusing(ErrorCode.ALTER_SPACE, space=before.name),
        (after.id != before.id, "space id is immutable"),
        (after.engine != before.engine, "can not change space engine"),
        (after.group_id != before.group_id, "replication group is immutable"),
        (after.is_view != before.is_view, "can not convert a space to a view and vice versa"),
    )


def _check_primary_drop(space: SpaceDef) -> None:
    if space.is_system:
        raise refused(ErrorCode.LAST_DROP, space=space.name)
    if len(space.indexes) > 1:
        raise refused(ErrorCode.DROP_PRIMARY_KEY, space=space.name)
    if space.sequence is not None:
        raise alter_error(space, "can not drop primary key while space sequence exists")


def _check_sequence_part(index: IndexDef, space: SpaceDef, use: SequenceUse) -> None:
    try:
        wanted = PartDef(use.field_no, FieldType.ANY, path=use.path).place
    except PathError:
        wanted = (-1, ())
    part = next((one for one in index.parts if one.place == wanted), None)
    refuse = refusing(ErrorCode.MODIFY_INDEX, index=index.name, space=space.name)
    if part is None:
        refuse("sequence field must be a part of the index")
    if part.type not in (FieldType.UNSIGNED, FieldType.INTEGER):
        refuse("sequence cannot be used with a non-integer key")


def _check_schema_row(old: bytes | None, new: bytes | None, trusted: bool) -> None:
    if read_row(new or old or _EMPTY)[:1] != ["cluster"]:
        return
    if new is not None and not trusted:
        need_uuid(new)
    elif new is None:
        raise refused(ErrorCode.REPLICASET_UUID_IS_RO)


def _layout(index: IndexDef) -> tuple[object, ...]:
    """What decides the bytes of an index's keys: two equal ones need no new entries."""
    parts = tuple(
        (part.place, part.order, part.type in (FieldType.UNSIGNED, FieldType.INTEGER))
        for part in index.sort_parts
    )
    return (parts, index.unique_parts)


@dataclass(frozen=True, slots=True)
class Definitions:
    """What a log defines as of `vclock`. `replicaset`: its UUID, None if nothing tells it."""

    schema: Schema
    replicaset: uuid.UUID | None
    vclock: VClock
