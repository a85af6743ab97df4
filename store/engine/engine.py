"""Requests on the state: checks, indexes, results. Works inside one transaction of
`store.state.state`.

An index entry is the memcomparable image of its `sort_parts`: of a unique index without nil the
first `unique_parts` of them. Index 0 maps it to the tuple, the others to the entry of index 0.
Everything an engine does to indexes can be rolled back to a mark, so that a request that fails
leaves no trace in its group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn, cast

from logweir.errors import ErrorCode, RequestError, WalError
from logweir.store.engine.operation import changed_columns, decode_operations
from logweir.store.engine.request import Request
from logweir.store.engine.update import apply_update, apply_upsert, check_ops
from logweir.store.schema.bulk import KeyPlan
from logweir.store.schema.definition import IndexDef, SpaceDef
from logweir.store.schema.keys import exact_key, field_places, step_into
from logweir.store.schema.refused import refused
from logweir.store.schema.schema import Schema
from logweir.store.schema.spaceplan import plan_of
from logweir.store.schema.values import read_array, skip
from logweir.store.state.stackkernel import LayeredTree, LayeredTxn
from logweir.store.state.statetxn import Txn
from logweir.store.state.tree import Tree
from logweir.wal.mp import encode_array_header
from logweir.wal.xrow import RowType

if TYPE_CHECKING:
    from logweir.store.schema.plankernel import Plan


Executed = tuple[bytes | None, bytes | None, Request]
"""The old and the new tuple, and the request as it is to be logged."""


_KEYS = frozenset((int, str))


class Plans:
    """Key plans of the indexes in use, made when first needed. Of one store, for all its
    threads."""

    def __init__(self) -> None:
        self._plans: dict[tuple[int, int, bool], tuple[SpaceDef, KeyPlan]] = {}
        self._primary: dict[int, tuple[SpaceDef, KeyPlan]] = {}
        self._statements: dict[int, tuple[SpaceDef, Plan | None]] = {}
        self._asked: tuple[Schema | None, dict[int | str, Plan | None]] = None, {}

    def get(self, space: SpaceDef, index: IndexDef, *, check: bool) -> KeyPlan:
        """The plan of that index of exactly this definition of the space."""
        key = (space.id, index.id, check)
        known = self._plans.get(key)
        if known is not None and known[0] is space:
            return known[1]
        plan = KeyPlan(space, index, check=check)
        self._plans[key] = (space, plan)
        return plan

    def primary(self, schema: Schema, space: SpaceDef) -> KeyPlan:
        """The plan that checks the tuples of a space and makes their keys in its primary index.

        Raises `RequestError` if it has none.
        """
        known = self._primary.get(space.id)
        if known is None or known[0] is not space:
            known = space, self.get(space, schema.index(space, 0), check=True)
            self._primary[space.id] = known
        return known[1]

    def statements(self, space: SpaceDef) -> Plan | None:
        """The plan for the compiled statements and selections of exactly this definition; None
        where they know nothing of it."""
        known = self._statements.get(space.id)
        if known is None or known[0] is not space:
            known = self._statements[space.id] = space, plan_of(space)
        return known[1]

    def asked(self, schema: Schema, key: int | str) -> Plan | None:
        """`statements` of the space of that id or name. Raises `RequestError`."""
        known, plans = self._asked
        if known is not schema:
            plans = {}
            self._asked = schema, plans
        if type(key) not in _KEYS:  # 512.0 is no id, though it is as good as 512 in a map
            return self.statements(schema.space(key))
        if key not in plans:
            plans[key] = self.statements(schema.space(key))
        return plans[key]


class _Ended:
    """What an engine has whose view has ended."""

    def __getattr__(self, name: str) -> NoReturn:
        hint = "use it inside its `with` block"
        raise RequestError(ErrorCode.NO_TRANSACTION, "the view has ended", hint=hint)


class Engine:
    """Applies requests in one transaction. `schema` is that of the transaction.

    Indexes that logweir does not keep (RTREE, BITSET, of a function) have no entries: reading by
    them is refused, and whether a tuple fits them is left to who keeps them.
    """

    def __init__(self, txn: Txn | LayeredTxn, schema: Schema, plans: Plans) -> None:
        self.txn = txn
        self.schema = schema
        self.plans = plans

    def end(self) -> None:
        """Its transaction is over: reading raises `RequestError` from now on."""
        self.txn = cast("Txn", _Ended())

    # --- reading ----------------------------------------------------------------------------------

    def get(self, space: SpaceDef, index: IndexDef, key: bytes) -> bytes | None:
        """The tuple with that key of a unique index. Raises `RequestError` for a partial key."""
        return self._by_image(space, index, exact_key(key, index))

    def only(self, space: SpaceDef, index: IndexDef, key: bytes) -> bytes | None:
        """`get`. Raises `RequestError` for an index that is not unique, too."""
        if not index.is_unique:
            raise refused(ErrorCode.MORE_THAN_ONE_TUPLE)
        return self.get(space, index, key)

    def _by_image(self, space: SpaceDef, index: IndexDef, image: bytes) -> bytes | None:
        tree = self.txn.tree(space.id, index.id)
        if tree is None:
            return None
        if index.id == 0:
            return tree.get(image)
        found = tree.get(image)
        if found is None and index.is_nullable:
            first = next(tree.ascending(image), None)  # with nil its entries go on behind it
            found = first[1] if first is not None and first[0].startswith(image) else None
        return None if found is None else self._primary(space).get(found)

    def _primary(self, space: SpaceDef) -> Tree | LayeredTree:
        tree = self.txn.tree(space.id, 0)
        assert tree is not None
        return tree

    def entries(
        self, space: SpaceDef, index: IndexDef, start: bytes, stop: bytes | None, *, reverse: bool
    ) -> Iterator[bytes]:
        """Tuples whose entries are in start ≤ entry < stop (None: no end), in order or reversed."""
        for _, found in self.pairs(space, index, start, stop, reverse=reverse):
            yield found

    def pairs(
        self, space: SpaceDef, index: IndexDef, start: bytes, stop: bytes | None, *, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        """`entries`, each with its tuple."""
        tree = self.txn.tree(space.id, index.id)
        if tree is None:
            return
        pairs = tree.descending(stop) if reverse else tree.ascending(start)
        primary = self._primary(space) if index.id else None
        for image, value in pairs:
            if reverse and image < start:
                return
            if not reverse and stop is not None and image >= stop:
                return
            if primary is None:
                yield image, value
            else:
                found = primary.get(value)
                if found is None:
                    raise WalError(
                        f"index {index.name!r} of space {space.name!r} names a tuple that is not "
                        "there: the state is damaged.",
                        hint="close the store and remove its folder `state`: it is rebuilt from "
                        "the log; `logweir verify --state` tells more",
                    )
                yield image, found

    # --- changing ---------------------------------------------------------------------------------

    def execute(self, space: SpaceDef, request: Request) -> Executed:
        """Apply one DML request to the indexes. Raises `RequestError`; the caller then rolls back
        to its mark."""
        primary = self.schema.index(space, 0)
        match request.type:
            case RowType.INSERT | RowType.REPLACE:
                return self._put(space, primary, request)
            case RowType.DELETE:
                return self._delete(space, primary, request)
            case RowType.UPDATE:
                return self._update(space, primary, request)
            case RowType.UPSERT:
                return self._upsert(space, primary, request)
        raise refused(ErrorCode.UNKNOWN_REQUEST_TYPE, type=int(request.type))

    def _put(self, space: SpaceDef, primary: IndexDef, request: Request) -> Executed:
        new = _needed(request.tuple, "tuple")
        image = self._image(space, primary, new)
        old = self._primary(space).get(image)
        if old is not None and request.type == RowType.INSERT:
            raise duplicate_key(space, primary)
        self._swap(space, image, old, new)
        return old, new, request

    def _delete(self, space: SpaceDef, primary: IndexDef, request: Request) -> Executed:
        index = self.schema.index(space, request.index_id)
        old = self._find_one(space, index, request)
        if old is None:
            return None, None, request
        self._swap(space, self._image(space, primary, old, check=False), old, None)
        return old, None, _by_primary(request, primary, index, old)

    def _update(self, space: SpaceDef, primary: IndexDef, request: Request) -> Executed:
        index = self.schema.index(space, request.index_id)
        ops = _needed(request.ops, "operations")
        old = self._find_one(space, index, request)
        if old is None:
            return None, None, request
        new = apply_update(old, ops, index_base=request.index_base, space=space)
        image = self._image(space, primary, old, check=False)
        changed = self._image(space, primary, new)
        if changed != image:
            if self._primary(space).get(changed) is not None:
                raise duplicate_key(space, primary)
            code = ErrorCode.CANT_UPDATE_PRIMARY_KEY
            raise refused(code, index=primary.name, space=space.name)
        self._swap(space, image, old, new)
        return old, new, _by_primary(request, primary, index, old)

    def _upsert(self, space: SpaceDef, primary: IndexDef, request: Request) -> Executed:
        given = _needed(request.tuple, "tuple")
        ops = _needed(request.ops, "operations")
        image = self._image(space, primary, given)
        old = self._primary(space).get(image)
        if old is None:
            check_ops(ops, index_base=request.index_base, space=space)
            self._swap(space, image, None, given)
            return None, given, request
        new = apply_upsert(old, ops, index_base=request.index_base, space=space)
        changed = self._image(space, primary, new)
        if changed != image:
            if _foresees_key(space, primary, request, old):
                return old, old, request  # Tarantool ignores the whole update, and logs it
            if self._primary(space).get(changed) is not None:
                raise duplicate_key(space, primary)
            self._swap(space, image, old, None)  # it gets another key
            self._swap(space, changed, None, new)
            return old, new, request
        self._swap(space, image, old, new)
        return old, new, request

    def _find_one(self, space: SpaceDef, index: IndexDef, request: Request) -> bytes | None:
        return self.only(space, index, _needed(request.key, "key"))

    def _image(
        self, space: SpaceDef, primary: IndexDef, data: bytes, *, check: bool = True
    ) -> bytes:
        """A tuple's entry in the primary index; `check`: whether it fits the space, first."""
        (image,) = self.plans.get(space, primary, check=check).key(data)
        return image

    def _swap(self, space: SpaceDef, image: bytes, old: bytes | None, new: bytes | None) -> None:
        """Put `new` in the place of `old` in all indexes (None: no tuple)."""
        if old == new:
            return
        for index in space.indexes[1:]:
            if not index.is_usable:
                continue
            plan = self.plans.get(space, index, check=False)
            tree = self.txn.tree(space.id, index.id)
            assert tree is not None
            before = set(plan.key(old)) if old is not None else set()
            after = set(plan.key(new)) if new is not None else set()
            for entry in before - after:
                tree.delete(entry)
            for entry in after - before:
                if tree.get(entry) is not None:
                    raise duplicate_key(space, index)
                tree.put(entry, image)
        if new is None:
            self._primary(space).delete(image)
        else:
            self._primary(space).put(image, new)


def _needed(value: bytes | None, name: str) -> bytes:
    if value is None:
        text = f"Missing mandatory field '{name}' in request"
        raise RequestError(ErrorCode.MISSING_REQUEST_FIELD, text)
    return value


def _foresees_key(space: SpaceDef, primary: IndexDef, request: Request, old: bytes) -> bool:
    """Whether operations look as if they changed the primary key. Only then does Tarantool 2.6.0
    compare the keys, and ignore them; otherwise the tuple moves to its other key, if that is free
    (observed)."""
    operations = decode_operations(request.ops or b"", space.format.names, request.index_base)
    columns = changed_columns(operations, read_array(old, 0)[0])
    return any(columns >> min(part.field_no, 63) & 1 for part in primary.parts)


def duplicate_key(space: SpaceDef, index: IndexDef) -> RequestError:
    """The error for a key that another tuple has."""
    return refused(ErrorCode.TUPLE_FOUND, space=space.name, index=index.name)


def _by_primary(request: Request, primary: IndexDef, index: IndexDef, found: bytes) -> Request:
    """The request as it is logged: by primary key, whatever index found the tuple."""
    if index.id == 0:
        return request
    return Request(
        request.type,
        request.space_id,
        key=key_of(primary, found),
        ops=request.ops,
        index_base=request.index_base,
    )


def key_of(index: IndexDef, data: bytes) -> bytes:
    """The key of a tuple as a request would give it: a MsgPack array of its parts."""
    places = field_places(data, max(part.field_no for part in index.parts) + 1)
    starts = [step_into(data, places[part.field_no], part.steps) for part in index.parts]
    return encode_array_header(len(starts)) + b"".join(data[at : skip(data, at)] for at in starts)
