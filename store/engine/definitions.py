"""Definitions as rows of the system spaces: what `create_space` and its like write. No I/O.

The rows are those that Tarantool 2.6.0 writes for the same (observed): `_schema["max_id"]` counts
up and gives the id of a new space; a space is dropped from the outside in: its sequence use, its
indexes from the last to the first, its truncate counter, its grants, itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from logweir.errors import ErrorCode, RequestError
from logweir.store.engine.engine import Engine
from logweir.store.engine.request import Request, pack_value
from logweir.store.schema.definition import SystemSpace
from logweir.store.schema.refused import illegal, refused
from logweir.wal.mp import pack, unpack
from logweir.wal.xrow import RowType

FieldSpec = tuple[str, str] | str | Mapping[str, Any]
"""A field: `("name", "type")`, a name (type any), or a map {name, type, is_nullable, collation}."""

PartSpec = int | str | Sequence[Any] | Mapping[str, Any]
"""A part of a key: a field's name or number (from 0), `(field, "type")`, or a map {field, type,
is_nullable, collation, path}."""

IndexSpec = Sequence[PartSpec] | Mapping[str, Any]
"""An index: its parts, or a map {parts, unique, type}. Unique unless said otherwise."""

Plan = tuple[list[Request], int]
_ADMIN: Final = 1
_FIRST_USER_ID: Final = 512


@dataclass(frozen=True, slots=True)
class SpaceSpec:
    """What `Statements.create_space` was asked for."""

    name: str
    format: tuple[FieldSpec, ...]
    primary: Sequence[PartSpec] | None = None
    indexes: Mapping[str, IndexSpec] = field(default_factory=dict)
    space_id: int | None = None
    kind: str = "TREE"
    temporary: bool = False
    local: bool = False
    field_count: int = 0
    if_not_exists: bool = False


def fields_of(format: Iterable[FieldSpec]) -> tuple[FieldSpec, ...]:
    """The fields of a format. Raises ILLEGAL_PARAMS for what is none."""
    if isinstance(format, Iterable) and not isinstance(format, str | bytes | Mapping):
        return tuple(format)
    hint = 'write it as [("name", "type"), …]'
    raise illegal(f"the format is {format!r}, not a list of fields", hint)


def _insert(space: SystemSpace, values: Sequence[Any]) -> Request:
    return Request(RowType.INSERT, space, tuple=pack_value(list(values), "the definition"))


def _delete(space: SystemSpace, *key: Any) -> Request:
    return Request(RowType.DELETE, space, key=pack(list(key)))


def _read(engine: Engine, space: SystemSpace, *key: Any) -> list[Any] | None:
    found = engine.schema.space(space)
    data = engine.get(found, engine.schema.index(found, 0), pack(list(key)))
    return None if data is None else list(unpack(data))


def create_space(engine: Engine, spec: SpaceSpec) -> Plan:
    """A new space and its indexes. The second result is its id."""
    name: object = spec.name
    if not isinstance(name, str):
        raise illegal(f"the name of a space is text, not {name!r}")
    existing = engine.schema.get(spec.name)
    if existing is not None and spec.if_not_exists:
        return [], existing.id
    engine.schema.check_new_space(spec.name)
    if not isinstance(spec.indexes, Mapping):
        raise illegal(
            f"the indexes are {spec.indexes!r}, not a map",
            'write them as {"name": ["field", …]}; `primary` has the primary key',
        )
    requests: list[Request] = []
    space_id = spec.space_id
    if space_id is None:
        row = _read(engine, SystemSpace.SCHEMA, "max_id")
        last = int(row[1]) if row else _FIRST_USER_ID - 1
        space_id = max(last + 1, _FIRST_USER_ID)
        while engine.schema.get(space_id) is not None:
            space_id += 1
        ops = pack([["=", 1, space_id]])
        requests.append(Request(RowType.UPDATE, SystemSpace.SCHEMA, key=pack(["max_id"]), ops=ops))
    flags: dict[str, Any] = {}
    if spec.temporary:
        flags["temporary"] = True
    if spec.local:
        flags["group_id"] = 1
    fields = [_field(engine, one) for one in spec.format]
    row = [space_id, _ADMIN, spec.name, "memtx", spec.field_count, flags, fields]
    requests.append(_insert(SystemSpace.SPACE, row))
    primary = spec.primary if spec.primary is not None else [0]
    first = _index_row(space_id, 0, "primary", {"parts": primary, "type": spec.kind}, fields)
    requests.append(_insert(SystemSpace.INDEX, first))
    for number, (name, index) in enumerate(spec.indexes.items(), 1):
        row = _index_row(space_id, number, name, index, fields)
        requests.append(_insert(SystemSpace.INDEX, row))
    return requests, space_id


def _field(engine: Engine, spec: FieldSpec) -> dict[str, Any]:
    if isinstance(spec, str):
        return {"name": spec, "type": "any"}
    if isinstance(spec, Mapping):
        field = {"type": "any", **spec}
        if isinstance(field.get("collation"), str):
            field["collation"] = _collation_id(engine, field["collation"])
        return field
    if isinstance(spec, Sequence) and len(spec) == 2:
        return {"name": spec[0], "type": spec[1]}
    hint = 'write it as ("name", "type") or {"name": …, "type": …, "is_nullable": …}'
    raise illegal(f"a field of the format is {spec!r}", hint)


def _collation_id(engine: Engine, name: str) -> int:
    for collation in engine.schema.collations.values():
        if collation.name == name:
            return collation.id
    raise illegal(f"Collation '{name}' does not exist")


def _index_row(
    space_id: int, index_id: int, name: str, spec: IndexSpec, fields: Sequence[Mapping[str, Any]]
) -> list[Any]:
    given: Mapping[str, Any] = spec if isinstance(spec, Mapping) else {"parts": spec}
    unknown = set(given) - {"parts", "unique", "type"}
    parts = given.get("parts")
    if unknown or not isinstance(parts, Sequence) or isinstance(parts, str) or not parts:
        hint = 'write its fields as a list, or {"parts": […], "unique": …, "type": …}'
        raise illegal(f"index '{name}' is {spec!r}", hint)
    maps = [_part(one, fields) for one in parts]
    simple = all(set(one) == {"field", "type"} for one in maps)
    row_parts: list[Any] = [[one["field"], one["type"]] for one in maps] if simple else maps
    kind = str(given.get("type", "TREE")).lower()
    return [space_id, index_id, name, kind, {"unique": bool(given.get("unique", True))}, row_parts]


def _part(spec: PartSpec, fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if isinstance(spec, Mapping):
        part = dict(spec)
    elif isinstance(spec, int | str):
        part = {"field": spec}
    else:
        part = dict(
            zip(("field", "type"), spec if isinstance(spec, Sequence) else (), strict=False)
        )
    field = part.get("field")
    if isinstance(field, str):
        names = [one["name"] for one in fields]
        if field not in names:
            raise illegal(f"Field '{field}' was not found in the format")
        part["field"] = field = names.index(field)
    if not isinstance(field, int) or isinstance(field, bool) or field < 0:
        hint = "name a field of the format, or give its number from 0"
        raise illegal(f"a part of a key names field {field!r}", hint)
    known = fields[field] if field < len(fields) else {}
    part.setdefault("type", known.get("type", "unsigned") if known else "unsigned")
    if known.get("type") == "any" and "type" not in (spec if isinstance(spec, Mapping) else {}):
        part["type"] = "scalar" if isinstance(spec, int | str) else part["type"]
    for name in ("is_nullable", "collation"):
        if name in known and name not in part:
            part[name] = known[name]
    return part


def create_index(
    engine: Engine, space: int | str, name: str, spec: IndexSpec, if_not_exists: bool
) -> Plan:
    """A new index. The second result is its id."""
    found = engine.schema.space(space)
    existing = found.index(name)
    if existing is not None:
        if if_not_exists:
            return [], existing.id
        raise RequestError(ErrorCode.INDEX_EXISTS, f"Index '{name}' already exists")
    index_id = max((index.id for index in found.indexes), default=-1) + 1
    fields = [field.to_map() for field in found.fields]
    row = _index_row(found.id, index_id, name, spec, fields)
    return [_insert(SystemSpace.INDEX, row)], index_id


def drop_index(engine: Engine, space: int | str, index: int | str) -> Plan:
    """One index less."""
    found = engine.schema.space(space)
    which = found.index(index) or engine.schema.index(found, index)
    return [_delete(SystemSpace.INDEX, found.id, which.id)], 0


def drop_space(engine: Engine, space: int | str) -> Plan:
    """One space less, with everything that belongs to it."""
    found = engine.schema.space(space)
    requests = []
    if found.sequence is not None:
        requests.append(_delete(SystemSpace.SPACE_SEQUENCE, found.id))
    for index in reversed(found.indexes):
        requests.append(_delete(SystemSpace.INDEX, found.id, index.id))
    requests += [_delete(SystemSpace.PRIV, *key) for key in _grants(engine, found.id)]
    if _read(engine, SystemSpace.TRUNCATE, found.id) is not None:
        requests.append(_delete(SystemSpace.TRUNCATE, found.id))
    requests.append(_delete(SystemSpace.SPACE, found.id))
    return requests, 0


def _grants(engine: Engine, space_id: int) -> list[list[Any]]:
    priv = engine.schema.space(SystemSpace.PRIV)
    primary = engine.schema.index(priv, 0)
    rows = [unpack(row) for row in engine.entries(priv, primary, b"", None, reverse=False)]
    return [row[1:4] for row in rows if row[2] == "space" and row[3] == space_id]


def truncate(engine: Engine, space: int | str) -> Plan:
    """No tuples left: the space's counter in `_truncate` goes up."""
    found = engine.schema.space(space)
    if found.is_system:
        raise illegal(f"Can't truncate a system space, space '{found.name}'")
    row, ops = pack([found.id, 1]), pack([["+", 1, 1]])
    return [Request(RowType.UPSERT, SystemSpace.TRUNCATE, tuple=row, ops=ops)], 0


def alter_space(
    engine: Engine, space: int | str, name: str | None, fields: Sequence[FieldSpec] | None
) -> Plan:
    """Another name or format."""
    found = engine.schema.space(space)
    ops: list[list[Any]] = []
    if name is not None:
        ops.append(["=", 2, name])
    if fields is not None:
        ops.append(["=", 6, [_field(engine, one) for one in fields]])
    if not ops:
        return [], 0
    return [
        Request(
            RowType.UPDATE,
            SystemSpace.SPACE,
            key=pack([found.id]),
            ops=pack_value(ops, "the definition"),
        )
    ], 0


_SEQUENCE_OPTIONS: Final = {
    "step": 1,
    "min": 1,
    "max": 2**63 - 1,
    "start": None,
    "cache": 0,
    "cycle": False,
}


def create_sequence(engine: Engine, name: str, options: Mapping[str, Any]) -> Plan:
    """A new sequence. The second result is its id."""
    if unknown := set(options) - set(_SEQUENCE_OPTIONS):
        hint = f"its options are {', '.join(_SEQUENCE_OPTIONS)}"
        raise illegal(f"a sequence has no option {', '.join(sorted(unknown))}", hint)
    for key, value in options.items():
        if not isinstance(value, int):
            raise illegal(f"option {key} of a sequence is a whole number, not {value!r}")
    given = {**_SEQUENCE_OPTIONS, **options}
    down = given["step"] < 0
    if down and "min" not in options:
        given["min"] = -(2**63)
    if down and "max" not in options:
        given["max"] = -1
    if given["start"] is None:
        given["start"] = given["max"] if down else given["min"]
    sequence_id = max(engine.schema.sequences, default=0) + 1
    row = [sequence_id, _ADMIN, name]
    row += [given[key] for key in ("step", "min", "max", "start", "cache", "cycle")]
    return [_insert(SystemSpace.SEQUENCE, row)], sequence_id


def use_sequence(engine: Engine, space: int | str, sequence: str, field: int) -> Plan:
    """A space that takes numbers from a sequence."""
    found = engine.schema.space(space)
    for which in engine.schema.sequences.values():
        if which.name == sequence:
            row = [found.id, which.id, False, field, ""]
            return [_insert(SystemSpace.SPACE_SEQUENCE, row)], 0
    raise refused(ErrorCode.NO_SUCH_SEQUENCE, sequence=sequence)
