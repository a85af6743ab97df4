"""The system spaces that are there before any row: name and primary key."""

from __future__ import annotations

from functools import cache
from typing import Final

from logweir.store.schema.definition import IndexDef, IndexType, PartDef, SpaceDef, SystemSpace
from logweir.store.schema.fieldtype import FieldType

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
def first_spaces() -> dict[int, SpaceDef]:
    """They never change, so they are made once."""
    found = {}
    for one in SystemSpace:
        parts = tuple(PartDef(at, kind) for at, kind in enumerate(_KEYS.get(one, (_UNSIGNED,))))
        primary = IndexDef(one, 0, "primary", IndexType.TREE, parts)
        space = SpaceDef(int(one), 1, f"_{one.name.lower()}")
        found[space.id] = space.with_indexes((primary,))
    return found
