"""Rows of the system spaces → definitions, with the checks that Tarantool makes. No I/O.

The rows have passed their own spaces' formats, so fields are there and of the right kinds; a row
that came before such a format existed may not have, and gets 23 or 37. What is refused here:

====  ============================================================================================
code  when
====  ============================================================================================
70    a name is empty, not UTF-8, or holds control characters, line separators, unassigned ones
9     a new space (12 a changed one): name over 65000 bytes, id 0 or over 2^31-1, engine name over
      16 bytes, a field of the format is malformed, exact field count below the format's fields
57    an engine that is none
111   a space option of the wrong type, or unknown (141: of a field of the format, wrong type only)
184   a field's `default` cannot be compiled as SQL (185, 206 the same: see `store.schema.sqltext`)
155   a replication group that is none; 163 a view without SQL
106   an `_index` row that is not of the six kinds; 108 its options, or a part, are wrong; 107 the
      same of a part in the old spelling
14    an index: name too long, id over 127, not unique and primary, no part or over 255, field
      number over 32767, a part twice, primary and multikey, a type that cannot be indexed …
13    an index type that is none; 152 a primary index with a part that may be nil; 5 what does not
      go together (nullable parts in HASH, multikey below a nullable field)
142   a new sequence (143 a changed one): step 0, maximum below minimum, start outside
150   a collation: kind unknown, locale too long, option value unknown (151: of the wrong type)
====  ============================================================================================

Engines: memtx and vinyl hold tuples (here alike), blackhole none, sysview shows another space's.
Source: Tarantool 2.6.0, `alter.cc`, `index_def.c`, `key_def.c`, `opt_def.c`, observed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from logweir.errors import ErrorCode, RequestError
from logweir.limits import INDEX_ID_MAX, SPACE_ID_MAX
from logweir.store.schema import jsonpath
from logweir.store.schema.collation import OPTION_VALUES
from logweir.store.schema.definition import (
    GROUP_LOCAL,
    CollationDef,
    FieldDef,
    IndexDef,
    IndexType,
    PartDef,
    SequenceDef,
    SequenceUse,
    SpaceDef,
)
from logweir.store.schema.fieldtype import MP_TYPE_NAMES, FieldType, MpType, mp_type
from logweir.store.schema.refused import Fail, refuse_first, refused, refusing, unsupported
from logweir.store.schema.row import (
    Options,
    check_identifier,
    check_name,
    choose,
    encoded,
    field,
    i64,
    is_too_long,
    kind_of,
    pairs,
    read_row,
    u32,
)
from logweir.store.schema.sqltext import check_expressions
from logweir.store.schema.values import read_array, skip

ENGINES: Final = ("memtx", "vinyl", "blackhole", "sysview", "service")
"""Engines that a space may name."""

ENGINE_NAME_BYTES: Final = 16
LOCALE_BYTES: Final = 30
PARTS_MAX: Final = 255
FIELD_NO_MAX: Final = 2**15 - 1
_ACTIONS: Final = ("none", "rollback", "abort", "fail", "ignore", "replace", "default")
_SORT_ORDERS: Final = ("asc", "desc", "undef")

Collations = Mapping[int, CollationDef]


# --- spaces ---------------------------------------------------------------------------------------
_SPACE_OPTIONS: Final = {
    "group_id": "unsigned",
    "temporary": "boolean",
    "view": "boolean",
    "is_sync": "boolean",
    "sql": "string",
    "checks": "legacy",
}
_TYPES: Final = f"the types are {', '.join(kind.label for kind in FieldType)}"
_FIELD_OPTIONS: Final = {
    "type": "enum",
    "name": "string",
    "is_nullable": "boolean",
    "nullable_action": "enum",
    "collation": "unsigned",
    "default": "string",
}


def decode_space(data: bytes, *, is_new: bool, trusted: bool = False) -> SpaceDef:
    """A row of `_space` → the space, without indexes.

    `is_new`: which error a malformed one gets, 9 or 12; `trusted`: it is from a log, so what a
    field's `default` says is not looked at. Raises `RequestError`.
    """
    row = read_row(data)
    code = ErrorCode.CREATE_SPACE if is_new else ErrorCode.ALTER_SPACE
    name = field(row, 2, MpType.STR)
    check_name(name, "space", code)
    fail = refusing(code, space=name)
    space_id = u32(row, 0)
    if space_id > SPACE_ID_MAX:
        fail("space id is too big")
    if space_id == 0:
        fail("space id 0 is reserved")
    owner, field_count = u32(row, 1), u32(row, 4)
    engine = field(row, 3, MpType.STR)
    if len(encoded(engine)) > ENGINE_NAME_BYTES:
        fail("space engine name is too long")
    check_identifier(engine)
    flags, format_ = field(row, 5, MpType.MAP), field(row, 6, MpType.ARRAY)
    fields = tuple(_decode_field(one, number, fail) for number, one in enumerate(format_))
    if not trusted:
        check_expressions(one.default for one in fields if one.default)
    if field_count and field_count < len(fields):
        fail("exact_field_count must be either 0 or >= formatted field count")
    options = _space_options(flags, fail)
    known = {key: options.pop(key, None) for key in ("group_id", "temporary", "view", "is_sync")}
    space = SpaceDef(
        id=space_id,
        owner=owner,
        name=name,
        engine=engine,
        field_count=field_count,
        group_id=known["group_id"] or 0,
        is_temporary=bool(known["temporary"]),
        is_view=bool(known["view"]),
        is_sync=bool(known["is_sync"]),
        sql=options.pop("sql", None),
        options=tuple(options.items()),
        fields=fields,
    )
    if engine not in ENGINES:
        raise RequestError(ErrorCode.NO_SUCH_ENGINE, f"Space engine '{engine}' does not exist")
    if engine == "vinyl" and space.is_temporary:
        refusing(ErrorCode.ALTER_SPACE, space=name)("engine does not support temporary flag")
    return space


def _space_options(flags: Any, fail: Fail) -> dict[str, Any]:
    options = Options(flags, _SPACE_OPTIONS, refusing(ErrorCode.WRONG_SPACE_OPTIONS))
    group = options.get("group_id", 0)
    if group not in (0, GROUP_LOCAL):
        raise RequestError(ErrorCode.NO_SUCH_GROUP, f"Replication group '{group}' does not exist")
    if options.get("view") and options.get("sql") is None:
        raise refused(ErrorCode.VIEW_MISSING_SQL)
    if options.get("is_sync") and group == GROUP_LOCAL:
        fail("local space can't be synchronous")
    return options.values


def _decode_field(given: Any, number: int, fail: Fail) -> FieldDef:
    """One field of a format. `fail`: raises the space's error."""
    at = number + 1
    if kind_of(given) is not MpType.MAP:
        fail(f"field {at} is not map")
    if any(not isinstance(key, str) for key, _ in pairs(given)):
        fail(f"field {at} format is not map with string keys")
    refuse = refusing(ErrorCode.WRONG_SPACE_FORMAT, field=at)
    options = Options(given, _FIELD_OPTIONS, refuse, lenient=True)
    name = options.get("name")
    if name is None:
        fail(f"field {at} name is not specified")
    if is_too_long(name):
        fail(f"field {at} name is too long")
    check_identifier(name)
    kind = FieldType.parse(options.get("type", "any"))
    if kind is None:
        fail(f"field {at} has unknown field type", _TYPES)
    is_nullable = options.get("is_nullable", False)
    action = choose(options.get("nullable_action", "none" if is_nullable else "default"), _ACTIONS)
    if action is None:
        fail(f"field {at} has unknown field on conflict nullable action")
    if is_nullable != (action == "none"):
        fail(f"field {at} has conflicting nullability and nullable action properties")
    collation_id = options.get("collation", 0)
    if collation_id and kind not in (FieldType.STRING, FieldType.SCALAR, FieldType.ANY):
        fail("collation is reasonable only for string, scalar and any fields")
    return FieldDef(name, kind, is_nullable, collation_id, action, options.get("default"))


# --- indexes --------------------------------------------------------------------------------------
_INDEX_ROW: Final = (
    *(MpType.UINT, MpType.UINT, MpType.STR),
    *(MpType.STR, MpType.MAP, MpType.ARRAY),
)
_INDEX_OPTIONS: Final = {
    "unique": "boolean",
    "dimension": "integer",
    "distance": "enum",
    "range_size": "integer",
    "page_size": "integer",
    "run_count_per_level": "integer",
    "run_size_ratio": "float",
    "bloom_fpr": "float",
    "lsn": "integer",
    "func": "unsigned",
    "sql": "legacy",
}
_PART_OPTIONS: Final = {
    "type": "enum",
    "field": "unsigned",
    "collation": "unsigned",
    "is_nullable": "boolean",
    "nullable_action": "enum",
    "sort_order": "enum",
    "path": "string",
}


def decode_index(data: bytes, space: SpaceDef, collations: Collations) -> IndexDef:
    """A row of `_index` → the index, for that space as it is now. Raises `RequestError`."""
    _check_index_row(data)
    row = read_row(data)
    name = row[2]
    options = _index_options(row[4])
    check_name(name, "index", ErrorCode.MODIFY_INDEX, space=space.name)
    is_old = bool(row[5]) and kind_of(row[5][0]) is MpType.ARRAY
    given = [
        (_decode_old_part(one, space), 0) if is_old else _decode_part(one, number)
        for number, one in enumerate(row[5], 1)
    ]
    parts = _join_parts(given, collations)
    if options.get("func", 0):
        _check_function_parts(parts)
    kind = next((one for one in IndexType if one.name == row[3].upper()), None)
    is_unique = options.pop("unique", True)
    index = IndexDef(
        space_id=u32(row, 0),
        id=u32(row, 1),
        name=name,
        type=IndexType.TREE if kind is None else kind,
        parts=parts,
        is_unique=is_unique,
        options=tuple(options.items()),
    )
    fail = refusing(ErrorCode.MODIFY_INDEX, index=name, space=space.name)
    _check_index(index, fail)
    _check_for_engine(index, kind, space, fail)
    return index


def _check_index_row(data: bytes) -> None:
    count, at = read_array(data, 0)
    kinds = []
    for _ in range(count):
        kinds.append(mp_type(data, at))
        at = skip(data, at)
    if tuple(kinds) != _INDEX_ROW:
        got = ", ".join(MP_TYPE_NAMES[kind] for kind in kinds)
        raise RequestError(
            ErrorCode.WRONG_INDEX_RECORD,
            f"Wrong record in _index space: got {{{got}}}, expected {{space id (unsigned), index "
            "id (unsigned), name (string), type (string), options (map), parts (array)}",
        )


def _index_options(given: Any) -> dict[str, Any]:
    refuse = refusing(ErrorCode.WRONG_INDEX_OPTIONS, field=4)
    options = Options(given, _INDEX_OPTIONS, refuse)
    if options.get("distance", "euclid").lower() not in ("euclid", "manhattan"):
        refuse("distance must be either 'euclid' or 'manhattan'")
    page, whole = options.get("page_size", 8192), options.get("range_size", 0)
    if page <= 0 or 0 < whole < page:
        refuse("page_size must be greater than 0 and less than or equal to range_size")
    if options.get("run_count_per_level", 2) <= 0:
        refuse("run_count_per_level must be greater than 0")
    if options.get("run_size_ratio", 3.5) <= 1:
        refuse("run_size_ratio must be greater than 1")
    if not 0 < options.get("bloom_fpr", 0.05) <= 1:
        refuse("bloom_fpr must be greater than 0 and less than or equal to 1")
    return options.values


def _decode_old_part(given: Any, space: SpaceDef) -> PartDef:
    """A part spelt [field, type]. It may be nil where the field may, but then counts as not."""
    refuse = refusing(ErrorCode.WRONG_INDEX_PARTS)
    if kind_of(given) is not MpType.ARRAY:
        refuse("expected an array")
    if not given:
        refuse("expected a non-empty array")
    if len(given) < 2:
        refuse("a field type is missing")
    if kind_of(given[0]) is not MpType.UINT:
        refuse("field id must be an integer")
    if kind_of(given[1]) is not MpType.STR:
        refuse("field type must be a string")
    kind = FieldType.parse(given[1])
    if kind is None:
        refuse("unknown field type", _TYPES)
    number = given[0] & 0xFFFFFFFF
    is_nullable = number < len(space.fields) and space.fields[number].is_nullable
    return PartDef(number, kind, is_nullable, nullable_action="default")


def _decode_part(given: Any, at: int) -> tuple[PartDef, int]:
    """A part spelt as a map, and its collation's id. `at`: its number from 1."""
    refuse = refusing(ErrorCode.WRONG_INDEX_OPTIONS, field=at)
    if kind_of(given) is not MpType.MAP:
        refuse("index part is expected to be a map")
    options = Options(given, _PART_OPTIONS, refuse)
    kind = FieldType.parse(options.get("type", "?"))
    if kind is None:
        refuse("index part: unknown field type", _TYPES)
    collation_id = options.get("collation", 0)
    if collation_id and kind not in (FieldType.STRING, FieldType.SCALAR):
        refuse("collation is reasonable only for string and scalar parts")
    is_nullable = options.get("is_nullable", False)
    action = choose(options.get("nullable_action", "none" if is_nullable else "default"), _ACTIONS)
    if is_nullable != (action == "none"):
        refuse("index part: conflicting nullability and nullable action properties")
    order = choose(options.get("sort_order", "asc"), _SORT_ORDERS)
    if order is None:
        refuse("index part: unknown sort order")
    path = options.get("path")
    if path is not None:
        try:
            jsonpath.parse(path)
        except jsonpath.PathError:
            refuse("invalid path")
    part = PartDef(
        field_no=options.get("field", 0),
        type=kind,
        is_nullable=is_nullable,
        path=path,
        sort_order=order,
        nullable_action=action or "default",
    )
    return part, collation_id


def _join_parts(given: list[tuple[PartDef, int]], collations: Collations) -> tuple[PartDef, ...]:
    """The parts with their collations, of which the ids are given. Multikey parts go all through
    the same one array."""
    first: tuple[int, tuple[jsonpath.Step, ...]] | None = None
    parts = []
    for number, (part, collation_id) in enumerate(given, 1):
        refuse = refusing(ErrorCode.WRONG_INDEX_OPTIONS, field=number)
        if collation_id and collation_id not in collations:
            refuse("collation was not found by ID")
        parts.append(replace(part, collation=collations[collation_id]) if collation_id else part)
        prefix = jsonpath.multikey_prefix(part.steps)
        if prefix is None:
            continue
        place = (part.field_no, part.steps[:prefix])
        if first is not None and place != first:
            refuse("incompatable multikey index path")
        if part.steps.count(jsonpath.ANY) > 1:
            refuse("no more than one array index placeholder [*] is allowed in JSON path")
        first = place
    return tuple(parts)


def _check_function_parts(parts: tuple[PartDef, ...]) -> None:
    if any(part.path is not None for part in parts):
        raise unsupported("Functional index does not support json paths")
    if any(part.field_no != number for number, part in enumerate(parts)):
        raise refused(ErrorCode.FUNC_INDEX_PARTS)


def _check_index(index: IndexDef, fail: Fail) -> None:
    """What any index must be."""
    refuse_first(
        fail,
        (index.id > INDEX_ID_MAX, "index id too big"),
        (index.id == 0 and not index.is_unique, "primary key must be unique"),
        (not index.parts, "part count must be positive"),
        (len(index.parts) > PARTS_MAX, "too many key parts"),
        (index.id == 0 and index.is_multikey, "primary key cannot be multikey"),
        (index.id == 0 and bool(index.function_id), "primary key can not use a function"),
    )
    seen = set()
    for part in index.parts:
        if part.field_no > FIELD_NO_MAX:
            fail("field no is too big")
        if part.place in seen:
            fail("same key part is indexed twice")
        seen.add(part.place)


def _check_for_engine(index: IndexDef, kind: IndexType | None, space: SpaceDef, fail: Fail) -> None:
    """What an index of an engine that holds tuples must be."""
    if space.engine == "blackhole":
        raise unsupported("Blackhole does not support indexes")
    if space.engine not in ("memtx", "vinyl"):
        return
    wrong_type = refused(ErrorCode.INDEX_TYPE, index=index.name, space=space.name)
    if space.engine == "vinyl" and kind is not IndexType.TREE:
        raise wrong_type
    if index.is_nullable and index.id == 0:
        raise refused(ErrorCode.NULLABLE_PRIMARY, space=space.name)
    if index.is_nullable and kind is not None and kind is not IndexType.TREE:
        raise unsupported(f"{kind.name} does not support nullable parts")
    root = index.multikey_part
    if (
        root is not None
        and root.field_no < len(space.fields)
        and space.fields[root.field_no].is_nullable
    ):
        raise unsupported("multikey index does not support nullable root field")
    if kind is None:
        raise wrong_type
    if kind in (IndexType.RTREE, IndexType.BITSET):
        _check_special(index, fail)
        return
    if kind is IndexType.HASH:
        refuse_first(
            fail,
            (not index.is_unique, "HASH index must be unique"),
            (index.is_multikey, "HASH index cannot be multikey"),
            (bool(index.function_id), "HASH index can not use a function"),
        )
    for part in index.parts:
        if part.type in (FieldType.ANY, FieldType.ARRAY, FieldType.MAP):
            fail(f"field type '{part.type.label}' is not supported")


def _check_special(index: IndexDef, fail: Fail) -> None:
    """The two index types that logweir only loads."""
    is_rtree = index.type is IndexType.RTREE
    kind = index.type.name
    types = (FieldType.ARRAY,) if is_rtree else (FieldType.UNSIGNED, FieldType.STRING)
    not_unique = "RTREE index can not be unique" if is_rtree else "BITSET can not be unique"
    wrong_type = (
        "RTREE index field type must be ARRAY"
        if is_rtree
        else "BITSET index field type must be NUM or STR"
    )
    refuse_first(
        fail,
        (len(index.parts) != 1, f"{kind} index key can not be multipart"),
        (index.is_unique, not_unique),
        (index.parts[0].type not in types, wrong_type),
        (index.is_multikey, f"{kind} index cannot be multikey"),
        (bool(index.function_id), f"{kind} index can not use a function"),
    )


# --- sequences and collations ---------------------------------------------------------------------
def decode_sequence(data: bytes, *, is_new: bool) -> SequenceDef:
    """A row of `_sequence` → the sequence. Raises `RequestError`, 142 or 143 by `is_new`."""
    row = read_row(data)
    code = ErrorCode.CREATE_SEQUENCE if is_new else ErrorCode.ALTER_SEQUENCE
    name = field(row, 2, MpType.STR)
    check_name(name, "sequence", code)
    own_id, owner = (u32(row, at) for at in range(2))
    step, least, most, start, cache = (i64(row, at) for at in range(3, 8))
    cycle = field(row, 8, MpType.BOOL)
    sequence = SequenceDef(own_id, owner, name, step, least, most, start, cache, cycle)
    refuse_first(
        refusing(code, sequence=name),
        (step == 0, "step option must be non-zero"),
        (least > most, "max must be greater than or equal to min"),
        (not least <= start <= most, "start must be between min and max"),
    )
    return sequence


def decode_sequence_use(data: bytes, primary: IndexDef | None) -> SequenceUse:
    """A row of `_space_sequence`. `primary`: the space's; old rows mean its first part."""
    row = read_row(data)
    field_no, path = 0, None
    if primary is not None:
        field_no, path = primary.parts[0].field_no, primary.parts[0].path
    if len(row) > 3:
        field_no = u32(row, 3)
        path = field(row, 4, MpType.STR) or None
    return SequenceUse(u32(row, 0), u32(row, 1), field(row, 2, MpType.BOOL), field_no, path)


def decode_collation(data: bytes) -> CollationDef:
    """A row of `_collation` → the collation. Raises `RequestError`."""
    row = read_row(data)
    collation_id, name = u32(row, 0), field(row, 1, MpType.STR)
    check_name(name, "collation", ErrorCode.CANT_CREATE_COLLATION)
    fail = refusing(ErrorCode.CANT_CREATE_COLLATION, collation=name)
    refuse = refusing(ErrorCode.WRONG_COLLATION_OPTIONS, field=5)
    owner = u32(row, 2)
    kind = field(row, 3, MpType.STR).upper()
    if kind not in ("ICU", "BINARY"):
        fail("unknown collation type")
    locale = field(row, 4, MpType.STR)
    if len(encoded(locale)) > LOCALE_BYTES:
        fail("collation locale is too long")
    if locale:
        check_identifier(locale)
    given = Options(field(row, 5, MpType.MAP), dict.fromkeys(OPTION_VALUES, "enum"), refuse).values
    for option, allowed in OPTION_VALUES.items():
        value = given.get(option)
        if value is not None and value.upper() not in (*allowed, "DEFAULT"):
            fail(f"ICU wrong {option} option setting, expected {' | '.join(allowed)}")
    return CollationDef(collation_id, name, owner, kind, locale, tuple(given.items()))
