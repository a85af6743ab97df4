"""Definitions as rows of the system spaces: what `logweir.store.schema.decode` reads, the other way
round."""

from __future__ import annotations

from typing import Any

from logweir.store.schema.definition import (
    CollationDef,
    IndexDef,
    PartDef,
    SequenceDef,
    SequenceUse,
    SpaceDef,
)


def row_of(one: CollationDef | SpaceDef | SequenceDef | IndexDef | SequenceUse) -> list[Any]:
    """The row that defines it."""
    match one:
        case CollationDef():
            return [one.id, one.name, one.owner, one.kind, one.locale, dict(one.options)]
        case SpaceDef():
            return _space_row(one)
        case SequenceDef():
            numbers = one.step, one.min, one.max, one.start, one.cache
            return [one.id, one.owner, one.name, *numbers, one.cycle]
        case IndexDef():
            options: dict[str, Any] = {"unique": one.is_unique, **dict(one.options)}
            parts = [_part_map(part) for part in one.parts]
            return [one.space_id, one.id, one.name, one.type.name.lower(), options, parts]
    ids = one.space_id, one.sequence_id
    return [*ids, one.is_generated, one.field_no, one.path or ""]


def _space_row(space: SpaceDef) -> list[Any]:
    flags: dict[str, Any] = {
        "group_id": space.group_id,
        "temporary": space.is_temporary,
        "view": space.is_view,
        "is_sync": space.is_sync,
        "sql": space.sql,
    }
    flags = {name: value for name, value in flags.items() if value}
    fields = [one.to_map() for one in space.fields]
    head = [space.id, space.owner, space.name, space.engine, space.field_count]
    return [*head, {**flags, **dict(space.options)}, fields]


def _part_map(part: PartDef) -> dict[str, Any]:
    out: dict[str, Any] = {"field": part.field_no, "type": part.type.label}
    if part.collation is not None:
        out["collation"] = part.collation.id
    if part.is_nullable:
        out["is_nullable"] = True
    if part.path is not None:
        out["path"] = part.path
    if part.sort_order != "asc":
        out["sort_order"] = part.sort_order
    if part.nullable_action not in ("none", "default"):
        out["nullable_action"] = part.nullable_action
    return out
