"""Tuples of a space as objects of a program's dataclass, by the names in the space's format.

Each field that the dataclass is made of must be a field of the format; others of the format are
left out. A tuple that is shorter has the dataclass's default in what it lacks, None without one.
Values are what they are in tuples: nothing is converted or checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from logweir.errors import ErrorCode, RequestError
from logweir.store.engine.statements import Row
from logweir.store.reading import Reads
from logweir.store.schema.definition import SpaceDef
from logweir.wal.mp import Value

__all__ = ["TypedSpace"]

T = TypeVar("T")


class TypedSpace:
    """One space of a log: what `Log.space` gives."""

    def __init__(self, log: Reads, space: int | str) -> None:
        log.schema.space(space)
        self._log = log
        self._space = space

    @property
    def definition(self) -> SpaceDef:
        """The definition of the space now."""
        return self._log.schema.space(self._space)

    def rows(
        self,
        into: type[T],
        key: Value = None,
        *,
        iterator: str | None = None,
        index: int | str = 0,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[T]:
        """`Log.select`, as objects of the dataclass `into`. Raises `RequestError` also for what is
        no dataclass, or has a field that the format has not."""
        made = _maker(self.definition, into)
        found = self._log.select(
            self._space, key, iterator=iterator, index=index, limit=limit, offset=offset
        )
        return list(map(made, found))

    def get(self, into: type[T], key: Value, *, index: int | str = 0) -> T | None:
        """`Log.get`, as an object of the dataclass `into`. Errors: `rows`."""
        made = _maker(self.definition, into)
        found = self._log.get(self._space, key, index=index)
        return None if found is None else made(found)

    def tuple(self, row: object) -> Row:
        """The tuple of an object, for `insert`, `replace` and `upsert`: nil in fields that the
        dataclass has not. What is nil at the end and may be is left out. Errors: `rows`."""
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
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(into)  # type: ignore[arg-type]
    missing = dataclasses.MISSING
    nothing = {
        field.name: None
        for field in fields
        if field.init and field.default is missing and field.default_factory is missing
    }

    def make(row: Row) -> T:
        given = {name: row[at] for name, at in places.items() if at < len(row)}
        return into(**(nothing | given))

    return make


def _places(space: SpaceDef, into: type) -> dict[str, int]:
    """Which field of a tuple each field of a dataclass is."""
    if not dataclasses.is_dataclass(into):
        raise RequestError(
            ErrorCode.ILLEGAL_PARAMS,
            f"{into!r} is no dataclass",
            hint="write @dataclass before a class with the names of the space's fields",
        )
    numbers = {field.name: at for at, field in enumerate(space.fields)}
    names = [field.name for field in dataclasses.fields(into) if field.init]
    for name in names:
        if name not in numbers:
            raise RequestError(
                ErrorCode.ILLEGAL_PARAMS,
                f"{into.__name__}.{name} is no field of space {space.name!r}",
                hint=f"its fields are {', '.join(numbers) or 'without names'}",
            )
    return {name: numbers[name] for name in names}
