"""The statements of the embedded API: Python values in, requests out.

`Log` and `Transaction` share them: one makes each statement a transaction of its own, the other
collects them. Field numbers in update operations count from 0; names and JSON paths work too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from logweir.store.engine import definitions
from logweir.store.engine.engine import Engine
from logweir.store.engine.request import Request, key_bytes, listed, pack_value
from logweir.store.schema.schema import Schema
from logweir.wal.mp import Value, unpack
from logweir.wal.xrow import RowType

Row = tuple[Value, ...]

_PLAIN: Final = frozenset((int, str, bytes, float, bool, type(None)))
"""What comes out of MsgPack as it went in."""


_BY_KEY: Final = (RowType.UPDATE, RowType.DELETE)
_INSERT: Final = RowType.INSERT  # a member of an enumeration takes longer to find
_REPLACE: Final = RowType.REPLACE
_UPDATE: Final = RowType.UPDATE
_DELETE: Final = RowType.DELETE
_UPSERT: Final = RowType.UPSERT


def request_for(
    kind: RowType,
    schema: Schema,
    space: int | str,
    first: Value,
    ops: Iterable[Sequence[Value]] | None = None,
    index: int | str = 0,
) -> Request:
    """A change given in Python values. `first`: the tuple; of UPDATE and DELETE the key. Raises
    `RequestError`."""
    space_id = space if isinstance(space, int) else schema.space(space).id
    packed = None if ops is None else pack_value(listed(ops), "the operations")
    if kind not in _BY_KEY:
        return Request(kind, space_id, None, pack_value(first, "the tuple"), packed)
    index_id = index if isinstance(index, int) else schema.index(schema.space(space), index).id
    return Request(kind, space_id, key_bytes(first), None, packed, index_id)


def answered(data: bytes | None, request: Request, first: Value) -> Row | None:
    """The tuple that a request of a `first` value was answered with; mostly it has its values."""
    if data is None:
        return None
    if data == request.tuple and _PLAIN.issuperset(map(type, first)):
        return tuple(first)
    return tuple(unpack(data))


class Statements(ABC):
    """Changes of tuples and definitions. Every method may raise `RequestError`."""

    @abstractmethod
    def execute(self, request: Request) -> bytes | None:
        """Make one change given in MsgPack bytes: see the class."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The definitions that the statements see."""

    @abstractmethod
    def _define(self, plan: Callable[[Engine], tuple[list[Request], int]]) -> int:
        """Ask `plan` for changes, make them as one transaction, return its second result."""

    @abstractmethod
    def _make(
        self,
        kind: RowType,
        space: int | str,
        first: Value,
        ops: Iterable[Sequence[Value]] | None = None,
        index: int | str = 0,
    ) -> Row | None:
        """Make one change given in Python values: see `store.commit.group.Group.make`."""

    def insert(self, space: int | str, tuple: Sequence[Value]) -> Row:
        """Add a tuple. Returns it as stored. Raises TUPLE_FOUND if its key is taken."""
        made = self._make(_INSERT, space, tuple)
        assert made is not None
        return made

    def replace(self, space: int | str, tuple: Sequence[Value]) -> Row:
        """Add a tuple, in the place of the one with the same primary key. Returns it as stored."""
        made = self._make(_REPLACE, space, tuple)
        assert made is not None
        return made

    def update(
        self,
        space: int | str,
        key: Value,
        ops: Iterable[Sequence[Value]],
        *,
        index: int | str = 0,
    ) -> Row | None:
        """Change fields of the tuple with that key: `[["=", "name", "x"], ["+", 2, 1]]`.

        Operators: = + - & | ^ : ! #. Returns the new tuple, None if there is none with that key.
        """
        return self._make(_UPDATE, space, key, ops, index)

    def delete(self, space: int | str, key: Value, *, index: int | str = 0) -> Row | None:
        """Remove the tuple with that key. Returns it, None if there was none."""
        return self._make(_DELETE, space, key, None, index)

    def upsert(
        self, space: int | str, tuple: Sequence[Value], ops: Iterable[Sequence[Value]]
    ) -> None:
        """Insert `tuple`, or apply `ops` to the one with its primary key, leaving out operations
        that fail because of what is stored there."""
        self._make(_UPSERT, space, tuple, ops)

    # --- definitions ------------------------------------------------------------------------------

    def create_space(
        self,
        name: str,
        format: Iterable[definitions.FieldSpec] = (),
        *,
        primary: Sequence[definitions.PartSpec] | None = None,
        indexes: Mapping[str, definitions.IndexSpec] | None = None,
        id: int | None = None,
        type: str = "TREE",
        temporary: bool = False,
        local: bool = False,
        field_count: int = 0,
        if_not_exists: bool = False,
    ) -> int:
        """Make a space. Returns its id.

        `format`: fields as `("name", "type")` or maps as in Tarantool; `primary`: names or numbers
        (from 0) of the fields of the primary key, default the first field; `indexes`: further
        indexes, name → fields, or a map {parts, unique, type}; `type`: of the primary index, TREE
        or HASH; `temporary`: data is not logged and empty at each opening; `local`: rows stay on
        this instance; `if_not_exists`: one of that name stays as it is, whatever the rest says.
        """
        spec = definitions.SpaceSpec(
            name,
            definitions.fields_of(format),
            primary=primary,
            indexes=indexes or {},
            space_id=id,
            kind=type,
            temporary=temporary,
            local=local,
            field_count=field_count,
            if_not_exists=if_not_exists,
        )
        return self._define(lambda engine: definitions.create_space(engine, spec))

    def drop_space(self, space: int | str) -> None:
        """Remove a space with all its tuples, indexes and grants."""
        self._define(lambda engine: definitions.drop_space(engine, space))

    def truncate(self, space: int | str) -> None:
        """Remove all tuples of a space."""
        self._define(lambda engine: definitions.truncate(engine, space))

    def alter_space(
        self,
        space: int | str,
        *,
        name: str | None = None,
        format: Iterable[definitions.FieldSpec] | None = None,
    ) -> None:
        """Give a space another name or format. What is stored must fit the new format."""
        fields = None if format is None else definitions.fields_of(format)
        self._define(lambda engine: definitions.alter_space(engine, space, name, fields))

    def create_index(
        self,
        space: int | str,
        name: str,
        parts: definitions.IndexSpec,
        *,
        if_not_exists: bool = False,
    ) -> int:
        """Make an index of a space, filled from what is stored. Returns its id.

        `if_not_exists`: one of that name stays as it is.
        """
        return self._define(
            lambda engine: definitions.create_index(engine, space, name, parts, if_not_exists)
        )

    def drop_index(self, space: int | str, index: int | str) -> None:
        """Remove an index."""
        self._define(lambda engine: definitions.drop_index(engine, space, index))

    def create_sequence(self, name: str, **options: int | bool) -> int:
        """Make a sequence: options step, min, max, start, cycle as in Tarantool. Returns its id."""
        return self._define(lambda engine: definitions.create_sequence(engine, name, options))

    def use_sequence(self, space: int | str, sequence: str, *, field: int = 0) -> None:
        """Fill `field` (from 0, of the primary key) from a sequence where an insert leaves it
        nil."""
        self._define(lambda engine: definitions.use_sequence(engine, space, sequence, field))
