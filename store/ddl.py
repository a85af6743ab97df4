"""What a change of a system space does to the data: indexes are built, emptied, removed.

The definitions themselves are `store.schema`'s. Only rows of the spaces named in `defines` have
such effects; the others (users, grants, functions, the cluster) are data like any.
"""

from __future__ import annotations

from typing import Final

from logweir.errors import ErrorCode, RequestError
from logweir.store.definition import IndexDef, SpaceDef, SystemSpace
from logweir.store.engine import Engine, duplicate_key
from logweir.store.schema import Schema
from logweir.wal.mp import unpack

__all__ = ["apply", "build_index", "defines"]

_DEFINING: Final = frozenset(
    (
        SystemSpace.COLLATION,
        SystemSpace.SPACE,
        SystemSpace.SEQUENCE,
        SystemSpace.INDEX,
        SystemSpace.TRUNCATE,
        SystemSpace.SPACE_SEQUENCE,
    )
)
_CHUNK: Final = 50_000


def defines(space_id: int) -> bool:
    """Whether rows of that system space change definitions or data of other spaces."""
    return space_id in _DEFINING


def apply(engine: Engine, space: SpaceDef, old: bytes | None, new: bytes | None) -> Schema:
    """Check one changed row of a defining space and do what it says. Returns the new schema.

    Raises `RequestError` as Tarantool does; then nothing was done that a rollback of the
    transaction does not undo.
    """
    before = engine.schema
    row = unpack(new if new is not None else old or b"\x90")
    if space.id == SystemSpace.TRUNCATE:
        if new is not None:
            _truncate(engine, int(row[0]))
        return before
    if not row:
        return before
    if space.id == SystemSpace.SEQUENCE and new is None:
        _forget_sequence(engine, int(row[0]))
    after = before.changed(space.id, old, new)
    if space.id == SystemSpace.INDEX:
        _index_changed(engine, after, int(row[0]), int(row[1]))
    elif space.id == SystemSpace.SPACE:
        _space_changed(engine, after, int(row[0]))
    return after


def _truncate(engine: Engine, space_id: int) -> None:
    space = engine.schema.space(space_id)
    if space is None:
        raise RequestError(ErrorCode.NO_SUCH_SPACE, f"Space '{space_id}' does not exist")
    for index in space.indexes:
        engine.txn.drop(space_id, index.id)


def _forget_sequence(engine: Engine, sequence_id: int) -> None:
    data = engine.schema.space(SystemSpace.SEQUENCE_DATA)
    assert data is not None
    for image, tuple_ in list(engine.txn.items(data.id, 0)):
        if unpack(tuple_)[0] == sequence_id:
            engine.txn.remove(data.id, 0, image)


def _space_changed(engine: Engine, after: Schema, space_id: int) -> None:
    """A new format must hold for what is stored."""
    space = after.space(space_id)
    before = engine.schema.space(space_id)
    if space is None or before is None or space.primary is None:
        return
    if not space.format.accepts_all_of(before.format):
        for _, data in engine.txn.items(space_id, 0):
            space.format.check(data)


def _index_changed(engine: Engine, after: Schema, space_id: int, index_id: int) -> None:
    before, now = engine.schema.space(space_id), after.space(space_id)
    old = before.index(index_id) if before is not None else None
    new = now.index(index_id) if now is not None else None
    if new is None:
        engine.txn.drop(space_id, index_id)
        return
    assert now is not None
    if index_id == 0:
        if old is not None and old.parts != new.parts:
            _rebuild_all(engine, now)
    elif old is None or (old.parts, old.is_unique) != (new.parts, new.is_unique):
        _check_format(engine, before, now)
        engine.txn.drop(space_id, index_id)
        build_index(engine, now, new)


def _check_format(engine: Engine, before: SpaceDef | None, now: SpaceDef) -> None:
    if before is not None and not now.format.accepts_all_of(before.format):
        for _, data in engine.txn.items(now.id, 0):
            now.format.check(data)


def _rebuild_all(engine: Engine, space: SpaceDef) -> None:
    """Another primary key: everything is sorted anew."""
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
    primary = space.primary
    if primary is None or not index.is_usable:
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
