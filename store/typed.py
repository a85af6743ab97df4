"""Tuples of a space as objects of a program's class, by the names in the space's format.

The class is a dataclass, or a struct of msgspec. Each field that its objects are made of must be a
field of the format; others of the format are left out. A tuple that is shorter has the class's
default in what it lacks, None without one. Values are what they are in tuples: nothing is converted
or checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar, Unpack

from logweir.store.engine.select import Options
from logweir.store.engine.statements import Row
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.refused import illegal
from logweir.wal.mp import Value

if TYPE_CHECKING:
    from logweir.store.log import Log

T = TypeVar("T")


class TypedSpace:
    """One space of a log: what `Log.space` gives."""

    def __init__(self, log: Log, space: int | str) -> None:
        log.schema.space(space)
        self._log = log
        self._space = space

    @property
    def definition(self) -> SpaceDef:
        """The definition of the space now."""
        return self._log.schema.space(self._space)

    def rows(self, into: type[T], key: Value = None, **options: Unpack[Options]) -> list[T]:
        """`Log.select`, as objects of the class `into`. Raises `RequestError` also for what is no
        dataclass or struct, or has a field that the format has not."""
        made = _maker(self.definition, into)
        return list(map(made, self._log.select(self._space, key, **options)))

    def get(self, into: type[T], key: Value, *, index: int | str = 0) -> T | None:
        """`Log.get`, as an object of the class `into`. Errors: `rows`."""
        made = _maker(self.definition, into)
        found = self._log.get(self._space, key, index=index)
        return None if found is None else made(found)

    def insert(self, row: T) -> T:
        """`Log.insert` of an object. Returns what is stored, as another one. Errors: `rows`."""
        made = _maker(self.definition, type(row))
        return made(self._log.insert(self._space, self.tuple(row)))

    def replace(self, row: T) -> T:
        """`Log.replace` of an object; see `insert`."""
        made = _maker(self.definition, type(row))
        return made(self._log.replace(self._space, self.tuple(row)))

    def tuple(self, row: object) -> Row:
        """The tuple of an object, for `upsert`, `append` and transactions: nil in fields that its
        class has not. What is nil at the end and may be is left out. Errors: `rows`."""
        space = self.definition
        places = _places(space, type(row))
        values: list[Value] = [None] * (1 + max(places.values(), default=-1))
        for name, at in places.items():
            values[at] = getattr(row, name)
        while values and values[-1] is None and space.fields[len(values) - 1].is_nullable:
            values.pop()
        return (*values,)


def _maker(space: SpaceDef, into: type[T]) -> Callable[[Row], T]:
    places = _places(space, into)
    nothing = {name: None for name, has_default in _fields(into).items() if not has_default}

    def make(row: Row) -> T:
        given = {name: row[at] for name, at in places.items() if at < len(row)}
        return into(**(nothing | given))

    return make


def _fields(into: type) -> dict[str, bool]:
    """The fields that objects of a class are made of: whether each has a default."""
    is_class = isinstance(into, type)
    if is_class and hasattr(into, "__struct_fields__"):
        found = import_module("msgspec.structs").fields(into)
        return {field.name: not field.required for field in found}
    if not is_class or not dataclasses.is_dataclass(into):
        hint = "write @dataclass before a class with the names of the space's fields"
        raise illegal(f"{into!r} is no dataclass or struct", hint)
    missing = dataclasses.MISSING
    return {
        field.name: field.default is not missing or field.default_factory is not missing
        for field in dataclasses.fields(into)
        if field.init
    }


def _places(space: SpaceDef, into: type) -> dict[str, int]:
    """Which field of a tuple each field of a class is."""
    names = _fields(into)
    numbers = {field.name: at for at, field in enumerate(space.fields)}
    for name in names:
        if name not in numbers:
            hint = f"its fields are {', '.join(numbers) or 'without names'}"
            raise illegal(f"{into.__name__}.{name} is no field of space {space.name!r}", hint)
    return {name: numbers[name] for name in names}
