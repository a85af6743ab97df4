"""What a change of a system space does to the data: indexes are built, emptied, removed.

The definitions themselves, and which changes are allowed, are `store.schema.schema`'s. Rows of
spaces that `defines` does not name (users, grants, functions) are data like any.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from logweir.errors import RequestError
from logweir.store.engine.engine import Engine, duplicate_key
from logweir.store.schema.definition import IndexDef, SpaceDef, SystemSpace
from logweir.store.schema.keys import search_key
from logweir.store.schema.schema import alter_error
from logweir.wal.mp import pack

DEFINING: Final = (
    SystemSpace.SCHEMA,
    SystemSpace.COLLATION,
    SystemSpace.SPACE,
    SystemSpace.SEQUENCE,
    SystemSpace.SEQUENCE_DATA,
    SystemSpace.INDEX,
    SystemSpace.TRUNCATE,
    SystemSpace.SPACE_SEQUENCE,
)
"""The system spaces whose rows define something, in the order in which a snapshot has them."""

_CHUNK: Final = 50_000


def defines(space_id: int) -> bool:
    """Whether rows of that system space change definitions or data of other spaces."""
    return space_id in DEFINING


def apply(
    engine: Engine,
    space_id: int,
    old: bytes | None,
    new: bytes | None,
    *,
    is_insert: bool,
    trusted: bool,
) -> None:
    """Do what one changed row of a defining space says; `engine.schema` becomes a changed copy.

    `is_insert`, `trusted`: see `Schema.apply`. Raises `RequestError` as Tarantool does; then the
    caller rolls the transaction back. A request that found no row (neither old nor new) does
    nothing.
    """
    if old is None and new is None:
        return
    schema = engine.schema.copy()
    has_rows = partial(_has_rows, engine)
    change = schema.apply(
        space_id, old, new, is_insert=is_insert, trusted=trusted, has_rows=has_rows
    )
    engine.schema = schema
    if change is None or change.new is None:
        return
    space = change.new
    if change.kind == "truncate":
        for index in space.indexes:
            engine.txn.drop(space.id, index.id)
        return
    before = change.old
    if before is not None and before.is_temporary != space.is_temporary and not trusted:
        for _ in engine.txn.items(space.id, 0):  # of a temporary space nothing is in the log
            raise alter_error(before, "can not switch temporary flag on a non-empty space")
    if change.check_tuples:
        _check_tuples(engine, space, change.build)
    for index_id in change.drop:
        engine.txn.drop(space.id, index_id)
    if 0 in change.build:
        _rebuild(engine, space)
    else:
        for index_id in change.build:
            engine.txn.drop(space.id, index_id)
            added = space.index(index_id)
            assert added is not None
            build_index(engine, space, added)


def _check_tuples(engine: Engine, space: SpaceDef, build: Sequence[int]) -> None:
    """Check that all tuples fit the format. Raises what is wrong with the first at which anything
    is: what it does not fit, or that a unique index to be built has another with its key."""
    for number, (_, data) in enumerate(engine.txn.items(space.id, 0)):
        try:
            space.format.check(data)
        except RequestError:
            index = space.index(build[0]) if build else None
            if index is not None and index.is_usable:
                plan = engine.plans.get(space, index, check=False)
                before = islice(engine.txn.items(space.id, 0), number)
                entries = [entry for _, one in before for entry in plan.key(one)]
                if len(set(entries)) != len(entries):
                    raise duplicate_key(space, index) from None
            raise


def _has_rows(engine: Engine, space_id: int, index_id: int, key: list[Any]) -> bool:
    space = engine.schema.space(space_id)
    index, tree = space.index(index_id), engine.txn.tree(space_id, index_id)
    if index is None or tree is None:
        return False
    image, _ = search_key(pack(key), index)
    first = next(tree.ascending(image), None)
    return first is not None and first[0].startswith(image)


def _rebuild(engine: Engine, space: SpaceDef) -> None:
    """A new or other primary key: all tuples are sorted anew."""
    tuples = [data for _, data in engine.txn.items(space.id, 0)]
    for index in space.indexes:
        engine.txn.drop(space.id, index.id)
    primary = space.indexes[0]
    plan = engine.plans.get(space, primary, check=True)
    pairs = sorted((plan.key(data)[0], data) for data in tuples)
    if len({image for image, _ in pairs}) != len(pairs):
        raise duplicate_key(space, primary)
    engine.txn.load(space.id, 0, pairs)
    for index in space.indexes[1:]:
        build_index(engine, space, index)


def build_index(engine: Engine, space: SpaceDef, index: IndexDef) -> None:
    """Fill a secondary index from the primary one. Raises TUPLE_FOUND for two equal unique keys.

    An index that logweir cannot keep is left empty; using it is refused.
    """
    if not index.is_usable:
        return
    plan = engine.plans.get(space, index, check=False)
    pairs: list[tuple[bytes, bytes]] = []
    seen = 0
    for image, data in engine.txn.items(space.id, 0):
        entries = plan.key(data)
        seen += len(entries)
        pairs += [(entry, image) for entry in entries]
        if len(pairs) >= _CHUNK:
            engine.txn.load(space.id, index.id, sorted(pairs))
            pairs = []
    engine.txn.load(space.id, index.id, sorted(pairs))
    tree = engine.txn.tree(space.id, index.id)
    if tree is not None and tree.count() != seen:
        raise duplicate_key(space, index)
