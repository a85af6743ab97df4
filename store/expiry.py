"""Tuples that expire: which they are, and what a reader sees of them.

``logweir_expiry``: space unsigned, name string, field unsigned, seconds unsigned, instance string

A tuple of the space expires `seconds` after the time in its field number `field` (from 0), seconds
since 1970; one without a number there never does. `instance` is the UUID of the instance that
deletes what has expired, by rows of the log as any other DELETE; others are told of it by these
rows. What stands there holds only while the space has that name: the id of a space that was dropped
is given to another one. Readers in Python leave out what has expired by their own clock, deleted or
not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import islice
from typing import Any, Final, Unpack

from logweir.store.engine import reads
from logweir.store.engine.engine import Engine
from logweir.store.engine.request import key_bytes
from logweir.store.engine.select import Options, Select, rows, select
from logweir.store.engine.statements import Row
from logweir.store.schema.definition import IndexDef, IndexType, SpaceDef
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.refused import illegal
from logweir.wal.mp import Value, unpack

EXPIRY_SPACE: Final = "logweir_expiry"
FORMAT: Final = (
    ("space", "unsigned"),
    ("name", "string"),
    ("field", "unsigned"),
    ("seconds", "unsigned"),
    ("instance", "string"),
)

_WHOLE: Final = frozenset((FieldType.UNSIGNED, FieldType.INTEGER))
_TIMES: Final = _WHOLE | {FieldType.NUMBER, FieldType.DOUBLE, FieldType.DECIMAL}


@dataclass(frozen=True, slots=True)
class Expiry:
    """One tuple of `logweir_expiry`."""

    space: int
    name: str
    field: int
    seconds: int
    instance: str

    def is_over(self, row: Row, now: float) -> bool:
        """Whether a tuple has expired. `now`: seconds since 1970."""
        value: Any = row[self.field] if self.field < len(row) else None
        if not isinstance(value, int | float | Decimal) or isinstance(value, bool):
            return False
        return value + self.seconds <= now


def expiry_of(engine: Engine, space: SpaceDef) -> Expiry | None:
    """When tuples of a space expire; None: never."""
    table = engine.schema.get(EXPIRY_SPACE)
    if table is None:
        return None
    found = reads.one(engine, table, engine.schema.index(table, 0), key_bytes(space.id))
    made = None if found is None else Expiry(*unpack(found))
    return made if made is not None and made.name == space.name else None


def settings(engine: Engine) -> list[tuple[SpaceDef, Expiry]]:
    """The spaces whose tuples expire."""
    found = []
    for space in engine.schema:
        expiry = None if space.is_system else expiry_of(engine, space)
        if expiry is not None:
            found.append((space, expiry))
    return found


def due_index(space: SpaceDef, field: int) -> IndexDef:
    """The index in the order of a field's times. Raises `RequestError` if there is none."""
    for index in space.indexes:
        part = index.parts[0] if index.parts else None
        if part is None or index.type is not IndexType.TREE or part.field_no != field:
            continue
        if part.path is None and part.type in _TIMES:
            return index
    name = space.fields[field].name if 0 <= field < len(space.fields) else field
    raise illegal(
        f"space {space.name!r} has no TREE index that begins with the number in field {name!r}",
        hint=f"create_index({space.name!r}, 'expiry', {{'parts': [{name!r}], 'unique': False}})",
    )


def due(engine: Engine, space: SpaceDef, expiry: Expiry, now: float) -> Iterator[Row]:
    """The tuples of a space that have expired, those that did last first. Raises `RequestError`
    where no index tells them."""
    index = due_index(space, expiry.field)
    bound: Value = float(now - expiry.seconds)  # a clock may tell whole seconds
    if index.parts[0].type in _WHOLE:
        bound = math.floor(now) - expiry.seconds
        if bound < 0 and index.parts[0].type is FieldType.UNSIGNED:
            return
    elif index.parts[0].type is FieldType.DECIMAL:
        bound = Decimal(now) - expiry.seconds
    wanted = Select.of(engine.schema, space.id, [bound], iterator="LE", index=index.id)
    for data in select(engine, wanted):
        row = tuple(unpack(data))
        if not expiry.is_over(row, now):
            return  # nil: it never does, and nothing is before it
        yield row


def unexpired(
    engine: Engine, space: int | str, key: Value, now: float | None, **options: Unpack[Options]
) -> list[Row]:
    """The tuples of a selection that have not expired by `now`, None for all. Raises
    `RequestError`."""
    if now is None or engine.schema.get(EXPIRY_SPACE) is None:
        return rows(engine, space, key, **options)
    expiry = expiry_of(engine, engine.schema.space(space))
    if expiry is None:
        return rows(engine, space, key, **options)
    wanted = Select.of(engine.schema, space, key, **options)
    found = (tuple(unpack(data)) for data in select(engine, replace(wanted, limit=None, offset=0)))
    end = None if wanted.limit is None else wanted.offset + wanted.limit
    return list(islice((row for row in found if not expiry.is_over(row, now)), wanted.offset, end))
