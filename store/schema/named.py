"""A tuple as JSON: an array of its values, or an object with the names of the space's fields.

The values are those of `logweir.wal.render`. An object has a field for each value of the tuple, so
that what is shorter than the format has fewer; what is longer has the other values in ``_rest``, an
object of field number (from 0) → value. Read again both forms give the same tuple. A field that an
object leaves out is nil where one behind it is given, and absent at the end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from logweir.errors import DecodeError
from logweir.limits import TUPLE_BYTES
from logweir.store.schema.definition import SpaceDef
from logweir.wal.mp import Value
from logweir.wal.render import Json, dumps, from_json, load_json, to_json, too_deep

REST: Final = "_rest"
"""What holds the values that no field has."""


class Named:
    """The two forms of the tuples of one space."""

    def __init__(self, space: SpaceDef) -> None:
        self.space = space
        self.names = [field.name for field in space.fields]
        self._numbers = {name: number for number, name in enumerate(self.names)}

    @property
    def obstacle(self) -> str:
        """Why tuples of the space have no form as objects, "" where they have one."""
        if not self.names:
            return f"the fields of space {self.space.name!r} have no names"
        if REST in self._numbers:
            return f"a field of space {self.space.name!r} is called {REST!r}"
        return ""

    def text(self, row: Sequence[Value], *, names: bool = False) -> str:
        """A tuple as JSON text without line breaks. `names`: as an object."""
        if not names:
            return dumps(list(row))
        return json.dumps(self.to_object(row), ensure_ascii=False, allow_nan=False)

    def to_object(self, row: Sequence[Value]) -> dict[str, Json]:
        """A tuple as an object."""
        named = {name: to_json(value) for name, value in zip(self.names, row, strict=False)}
        count = len(self.names)
        if len(row) > count:
            named[REST] = {str(at): to_json(value) for at, value in enumerate(row[count:], count)}
        return named

    def read(self, text: str | bytes) -> list[Value]:
        """The tuple that JSON text holds in either form.

        Raises `DecodeError` for what is none, also for an object where there is an `obstacle`.
        """
        given = load_json(text)
        try:
            if isinstance(given, dict):
                return self._of_object(given)
            if isinstance(given, list):
                return [from_json(value) for value in given]
        except RecursionError as error:
            raise too_deep() from error
        raise DecodeError("the JSON value is neither an array nor an object")

    def _of_object(self, given: dict[str, Json]) -> list[Value]:
        if self.obstacle:
            text = f"an object cannot be stored: {self.obstacle}"
            raise DecodeError(text, hint="write an array, as in [1, …]")
        values: dict[int, Value] = {}
        for name, value in given.items():
            number = self._numbers.get(name)
            if number is not None:
                values[number] = from_json(value)
            elif name == REST and isinstance(value, dict):
                values |= {self._behind(key): from_json(one) for key, one in value.items()}
            else:
                known = ", ".join(self.names)
                raise DecodeError(f"{name!r} is no field", hint=f"the fields are {known}")
        return [values.get(number) for number in range(max(values, default=-1) + 1)]

    def _behind(self, key: str) -> int:
        """The number of a field behind those of the format."""
        if key.isdecimal() and len(key) < 10 and len(self.names) <= int(key) < TUPLE_BYTES:
            return int(key)
        text = f"{REST} has the key {key[:40]!r}, which is no number of a field behind the format"
        raise DecodeError(text)
