"""The system spaces that are there before any row: name and primary key."""

from __future__ import annotations

from functools import cache
from typing import Final

from logweir.store.schema.definition import IndexDef, IndexType, PartDef, SpaceDef, SystemSpace
from logweir.store.schema.fieldtype import FieldType


def _part(field_no: int, kind: FieldType) -> PartDef:
    return PartDef(field_no, kind)


_ID: Final = (_part(0, FieldType.UNSIGNED),)
_NAME: Final = (_part(0, FieldType.STRING),)
_TWO_IDS: Final = (_part(0, FieldType.UNSIGNED), _part(1, FieldType.UNSIGNED))

_FIRST_SPACES: Final[tuple[tuple[SystemSpace, str, tuple[PartDef, ...]], ...]] = (
    (SystemSpace.SCHEMA, "_schema", _NAME),
    (SystemSpace.COLLATION, "_collation", _ID),
    (SystemSpace.SPACE, "_space", _ID),
    (SystemSpace.SEQUENCE, "_sequence", _ID),
    (SystemSpace.SEQUENCE_DATA, "_sequence_data", _ID),
    (SystemSpace.INDEX, "_index", _TWO_IDS),
    (SystemSpace.FUNC, "_func", _ID),
    (SystemSpace.USER, "_user", _ID),
    (SystemSpace.PRIV, "_priv", _ID),
    (SystemSpace.CLUSTER, "_cluster", _ID),
    (SystemSpace.TRIGGER, "_trigger", _NAME),
    (SystemSpace.TRUNCATE, "_truncate", _ID),
    (SystemSpace.SPACE_SEQUENCE, "_space_sequence", _ID),
    (
        SystemSpace.FK_CONSTRAINT,
        "_fk_constraint",
        (_part(0, FieldType.STRING), _part(1, FieldType.UNSIGNED)),
    ),
    (
        SystemSpace.CK_CONSTRAINT,
        "_ck_constraint",
        (_part(0, FieldType.UNSIGNED), _part(1, FieldType.STRING)),
    ),
    (SystemSpace.FUNC_INDEX, "_func_index", _TWO_IDS),
)
"""Replaced when their own rows come."""


@cache
def first_spaces() -> dict[int, SpaceDef]:
    """They never change, so they are made once."""
    found = {}
    for space_id, name, parts in _FIRST_SPACES:
        primary = IndexDef(space_id, 0, "primary", IndexType.TREE, parts)
        found[int(space_id)] = SpaceDef(int(space_id), 1, name).with_indexes((primary,))
    return found
