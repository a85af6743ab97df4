"""The plan of a space for the compiled statements: its format, indexes and names as numbers."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING

from logweir.store.schema.bulk import KeyPlan
from logweir.store.schema.definition import IndexType, PartDef, SpaceDef
from logweir.store.schema.fieldtype import EXT_MASKS, PLAIN_MASKS, FieldType

try:
    from logweir.store.schema import plankernel
except ImportError:
    COMPILED = False
else:
    COMPILED = True
if TYPE_CHECKING:
    from logweir.store.schema.plankernel import Plan

_COLLATED = 256
_WANTED = 4
_USED = 3


def plan_of(space: SpaceDef) -> Plan | None:
    """The plan of a space. Make it once for each definition.

    It has the indexes that logweir keeps, the primary one first. None if the reference engine
    does every statement: paths, fields far behind, parts of any type, and spaces whose statements
    do more than change tuples; and if nothing is compiled.
    """
    if not COMPILED:
        return None
    indexes = [index for index in space.indexes if index.is_usable]
    is_simple = not (space.is_system or space.is_view or space.is_sync or space.sequence)
    if not (indexes and indexes[0].id == 0 and is_simple):
        return None
    if any(part.type is FieldType.ANY for index in indexes for part in index.sort_parts):
        return None
    tables = [KeyPlan(space, index, check=index.id == 0).table for index in indexes]
    numbers = array("Q")
    for index, table in zip(indexes, tables, strict=True):
        if table is None:
            return None
        parts = index.sort_parts[: table[_USED]]
        numbers.extend((index.id, index.is_unique, index.type is IndexType.HASH))
        numbers.extend((len(index.parts), table[_WANTED], len(parts)))
        for part in parts:
            numbers.extend(_part(part))
    assert tables[0] is not None
    names = list(space.format.names)
    return plankernel.Plan(
        space.id,
        space,
        tables[0],
        array("Q", [node.type for node in space.format.top]),
        numbers,
        b"".join(names),
        array("Q", accumulate(map(len, names), initial=0)),
    )


def _part(part: PartDef) -> tuple[int, ...]:
    ordered = _COLLATED if part.order is not None else 0
    kinds = (PLAIN_MASKS[part.type], EXT_MASKS[part.type])
    return (part.field_no, part.type + ordered, *kinds, part.nullable_action == "none")
