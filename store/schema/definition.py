"""What a space is: its fields, index parts, indexes, collations, sequences. Values only; no I/O.

These stand in rows of Tarantool's system spaces, from where `logweir.store.schema.decode` reads
them:

======  ===============  =======================================================================
space   holds            tuple
======  ===============  =======================================================================
276     collations       id, name, owner, type, locale, options
280     spaces           id, owner, name, engine, field count, options, format
284     sequences        id, owner, name, step, min, max, start, cache, cycle
288     indexes          space id, index id, name, type, options, parts
340     sequence uses    space id, sequence id, is generated, field number, path
======  ===============  =======================================================================

Field numbers count from 0 here as they do there. A part is a map {field, type, is_nullable,
collation, path, sort_order, nullable_action}; older rows have [field, type]. A nullable part or
field is one whose nullable action is `none`. Sort order is kept, but 2.6 sorts upwards always.
Source: Tarantool 2.6.0, `schema_def.h`, `key_def.c`, observed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from itertools import chain
from typing import Any, Final

from logweir.errors import RequestError
from logweir.limits import TOPIC_TUPLE_BYTES, TUPLE_BYTES
from logweir.store.schema import jsonpath
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.format import TupleFormat
from logweir.wal.mp import Value, encode_uint

SYSTEM_ID_MIN: Final = 256
SYSTEM_ID_MAX: Final = 511
GROUP_LOCAL: Final = 1

LOGIN_METHOD: Final = "chap-sha1"
"""How users prove who they are, in rows of `_user` and in requests."""

TOPIC_FIELDS: Final = (
    ("partition", "unsigned"),
    ("first", "unsigned"),
    ("last", "unsigned"),
    ("time", "unsigned"),
    ("bundle", "varbinary"),
)
"""Names and types of the fields of a topic: a tuple per bundle of messages."""


class SystemSpace(IntEnum):
    """Ids of the system spaces whose rows define something."""

    SCHEMA = 272
    COLLATION = 276
    SPACE = 280
    SEQUENCE = 284
    SEQUENCE_DATA = 285
    INDEX = 288
    FUNC = 296
    USER = 304
    PRIV = 312
    CLUSTER = 320
    TRIGGER = 328
    TRUNCATE = 330
    SPACE_SEQUENCE = 340
    FK_CONSTRAINT = 356
    CK_CONSTRAINT = 364
    FUNC_INDEX = 372


class IndexType(IntEnum):
    """Kinds of indexes. TREE and HASH work; the other two can only be loaded."""

    HASH = 0
    TREE = 1
    BITSET = 2
    RTREE = 3


@dataclass(frozen=True, slots=True)
class CollationDef:
    """How strings are ordered. `kind`: "ICU" or "BINARY"; `options`: ICU's, as given."""

    id: int
    name: str
    owner: int = 1
    kind: str = "BINARY"
    locale: str = ""
    options: tuple[tuple[str, str], ...] = ()

    @property
    def is_binary(self) -> bool:
        """Whether it orders by bytes, as no collation does."""
        return self.kind == "BINARY"

    @property
    def rule(self) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        """What decides the order: two collations with the same rule order alike."""
        options = sorted((option, value.upper()) for option, value in self.options)
        return (self.kind, self.locale, tuple(options))


@dataclass(frozen=True, slots=True)
class FieldDef:
    """One field of a space's format. `collation_id`: 0 for none."""

    name: str
    type: FieldType = FieldType.ANY
    is_nullable: bool = False
    collation_id: int = 0
    nullable_action: str = ""
    default: str | None = None

    def __post_init__(self) -> None:
        if not self.nullable_action:
            object.__setattr__(self, "nullable_action", "none" if self.is_nullable else "default")

    def to_map(self) -> dict[str, Any]:
        """The field as it stands in the format of a `_space` row."""
        out: dict[str, Any] = {"name": self.name, "type": self.type.label}
        if self.is_nullable:
            out["is_nullable"] = True
        if self.collation_id:
            out["collation"] = self.collation_id
        if self.nullable_action not in ("none", "default"):
            out["nullable_action"] = self.nullable_action
        if self.default is not None:
            out["default"] = self.default
        return out


@dataclass(frozen=True)
class PartDef:
    """One part of an index. `field_no`: from 0; `path`: into that field, None for all of it."""

    field_no: int
    type: FieldType
    is_nullable: bool = False
    collation: CollationDef | None = None
    path: str | None = None
    sort_order: str = "asc"
    nullable_action: str = ""

    def __post_init__(self) -> None:
        if not self.nullable_action:
            object.__setattr__(self, "nullable_action", "none" if self.is_nullable else "default")

    @cached_property
    def steps(self) -> tuple[jsonpath.Step, ...]:
        """The path taken apart; empty without one."""
        return jsonpath.parse(self.path) if self.path else ()

    @property
    def place(self) -> tuple[int, tuple[jsonpath.Step, ...]]:
        """What it points to: two parts with the same place are the same value."""
        return (self.field_no, self.steps)

    def value_in(self, row: Sequence[Value]) -> Value:
        """The value that a tuple has there; nil where it has none."""
        value: Any = row
        for step in chain([self.field_no], self.steps):
            try:
                value = value[step.decode() if isinstance(step, bytes) else step]
            except (LookupError, TypeError):
                return None
        return value

    @property
    def order(self) -> tuple[str, str, tuple[tuple[str, str], ...]] | None:
        """The rule of its collation; None if it has none, or only bytes count."""
        if self.collation is None or self.collation.is_binary:
            return None
        return self.collation.rule


@dataclass(frozen=True)
class IndexDef:
    """One index.

    `options`: those of the row other than `unique`, as given. `sort_parts`: what entries are
    sorted by: the parts, then those of the primary index that are not among them (set by
    `with_primary`). `unique_parts`: how many of `sort_parts` must differ between two tuples,
    unless one of these is nil.
    """

    space_id: int
    id: int
    name: str
    type: IndexType
    parts: tuple[PartDef, ...]
    is_unique: bool = True
    options: tuple[tuple[str, Any], ...] = ()
    sort_parts: tuple[PartDef, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.sort_parts:
            object.__setattr__(self, "sort_parts", self.parts)

    @property
    def unique_parts(self) -> int:
        """How many of `sort_parts` tell two tuples apart."""
        return len(self.parts) if self.is_unique else len(self.sort_parts)

    @cached_property
    def is_nullable(self) -> bool:
        """Whether any part may be nil."""
        return any(part.nullable_action == "none" for part in self.parts)

    @cached_property
    def multikey_part(self) -> PartDef | None:
        """The first part with `[*]` in its path."""
        return next((part for part in self.parts if jsonpath.ANY in part.steps), None)

    @property
    def is_multikey(self) -> bool:
        """Whether a tuple can have several entries in it."""
        return self.multikey_part is not None

    @property
    def function_id(self) -> int:
        """The function that computes keys, 0 without one. Such an index can only be loaded."""
        return int(dict(self.options).get("func", 0))

    @property
    def is_usable(self) -> bool:
        """Whether logweir keeps it: TREE and HASH without a function."""
        return self.type in (IndexType.TREE, IndexType.HASH) and not self.function_id

    def with_primary(self, primary: IndexDef | None) -> IndexDef:
        """The same index with `sort_parts` set for that primary index."""
        if primary is None or self.id == 0:
            return replace(self, sort_parts=self.parts)
        extra = [part for part in primary.parts if self._adds_order(part)]
        return replace(self, sort_parts=(*self.parts, *extra))

    def _adds_order(self, part: PartDef) -> bool:
        """Whether a part of the primary index tells apart what our parts do not."""
        for own in self.parts:
            if own.place == part.place:
                return own.order is not None and own.order != part.order
        return True


@dataclass(frozen=True, slots=True)
class SequenceDef:
    """A sequence: numbers from `start` on, `step` apart, within `min` … `max`."""

    id: int
    owner: int
    name: str
    step: int
    min: int
    max: int
    start: int
    cache: int
    cycle: bool


@dataclass(frozen=True, slots=True)
class SequenceUse:
    """A space whose field is filled from a sequence where an insert leaves it nil."""

    space_id: int
    sequence_id: int
    is_generated: bool
    field_no: int
    path: str | None = None


@dataclass(frozen=True)
class SpaceDef:
    """One space. `field_count`: exact number of fields of a tuple, 0 for any number.

    `options`: the row's flags other than the five that have a field here (`checks` …).
    `format`: what a tuple must look like, made from fields and indexes; making it raises
    `RequestError` if these contradict one another.
    """

    id: int
    owner: int
    name: str
    engine: str = "memtx"
    field_count: int = 0
    group_id: int = 0
    is_temporary: bool = False
    is_view: bool = False
    is_sync: bool = False
    sql: str | None = None
    options: tuple[tuple[str, Any], ...] = ()
    fields: tuple[FieldDef, ...] = ()
    indexes: tuple[IndexDef, ...] = ()
    sequence: SequenceUse | None = None
    tuple_bytes: int = TUPLE_BYTES
    format: TupleFormat = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", self._format_of(self.indexes))

    def _format_of(self, indexes: Iterable[IndexDef]) -> TupleFormat:
        return TupleFormat(
            self.fields,
            [index.parts for index in indexes if not index.function_id],
            self.field_count,
            TOPIC_TUPLE_BYTES if self.is_topic else self.tuple_bytes,
        )

    @property
    def is_topic(self) -> bool:
        """Whether it has the format of topics, whose bundles may be larger than other tuples."""
        return tuple((each.name, each.type.label) for each in self.fields) == TOPIC_FIELDS

    @property
    def is_system(self) -> bool:
        """Whether its id is in the reserved range."""
        return SYSTEM_ID_MIN <= self.id <= SYSTEM_ID_MAX

    @cached_property
    def is_local(self) -> bool:
        """Whether its rows stay on this instance."""
        return self.group_id == GROUP_LOCAL

    @cached_property
    def put_prefix(self) -> bytes:
        """What stands before the tuple in the body of a row that INSERTs or REPLACEs it."""
        return b"\x82\x10" + encode_uint(self.id) + b"\x21"

    @cached_property
    def is_plain(self) -> bool:
        """Whether a change of it is nothing but an entry of its primary index and a row."""
        return (
            len(self.indexes) == 1
            and self.sequence is None
            and not self.is_system
            and not self.is_view
            and not self.is_temporary
            and not self.is_sync
        )

    @property
    def primary(self) -> IndexDef | None:
        """Its primary index."""
        return self.index(0)

    def index(self, key: int | str) -> IndexDef | None:
        """The index of that id or name, None if there is none."""
        for index in self.indexes:
            if key in (index.id, index.name):
                return index
        return None

    def with_indexes(self, indexes: tuple[IndexDef, ...]) -> SpaceDef:
        """The same space with other indexes: sorted by id, each knowing the primary one. Where
        types of fields exclude each other, that of the index which is given later is told last."""
        ordered = sorted(indexes, key=lambda index: index.id)
        primary = ordered[0] if ordered and ordered[0].id == 0 else None
        try:
            return replace(self, indexes=tuple(one.with_primary(primary) for one in ordered))
        except RequestError:
            self._format_of(sorted(indexes, key=lambda index: index.id != 0))
            raise
