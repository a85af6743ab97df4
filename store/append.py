"""Many tuples into one space with one sync: packed, checked and keyed in compiled code.

Without secondary indexes and sequences nothing is done per tuple but to hand key and tuple to
LMDB; else each tuple goes the ordinary way, in the same group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import eq
from typing import Any

from logweir.errors import ErrorCode, LimitExceeded, RequestError
from logweir.limits import TRANSACTION_BYTES
from logweir.store import kernel
from logweir.store.bulk import Keys, pack_tuples, split_tuples
from logweir.store.definition import IndexDef, SpaceDef
from logweir.store.engine import duplicate_key
from logweir.store.group import Group
from logweir.store.layers import LayeredTree
from logweir.store.references import REFERENCE_KEY_BYTES, LargeTuple, entries
from logweir.store.request import Request, packing
from logweir.wal.mp import Value
from logweir.wal.xrow import RowType

__all__ = ["Appends", "append_job", "append_tuples", "append_units", "pack_run", "store_run"]


def pack_run(tuples: Iterable[Sequence[Value]]) -> tuple[bytes, array[int]]:
    """Tuples in MsgPack, one behind the other, and their bounds. Raises `RequestError`
    ILLEGAL_PARAMS."""
    with packing("a tuple"):
        return pack_tuples(list(tuples))


class Appends(ABC):
    """What a log offers to fill a space with."""

    @abstractmethod
    def _run(self, apply: Callable[[Group], Any], size: int = 0) -> Any: ...

    def append(
        self, space: int | str, tuples: Iterable[Sequence[Value]], *, one_transaction: bool = True
    ) -> int:
        """Insert many tuples with one sync; the fastest way to fill a space.

        `one_transaction`: all or nothing for every reader and follower, else each tuple is a
        transaction of its own (for the caller it is all or nothing either way). Returns how many.
        """
        packed, bounds = pack_run(tuples)
        job = append_job(space, packed, bounds, one_transaction=one_transaction)
        count: int = self._run(job, size=len(packed))
        return count

    def append_packed(
        self, space: int | str, packed: bytes, *, one_transaction: bool = True
    ) -> int:
        """`append` of tuples that are MsgPack already: arrays, one behind the other."""
        job = append_job(space, packed, one_transaction=one_transaction)
        count: int = self._run(job, size=len(packed))
        return count


def append_job(
    space: int | str, packed: bytes, bounds: array[int] | None = None, *, one_transaction: bool
) -> Callable[[Group], int]:
    """What inserts `packed` tuples in the group it is given and returns how many they are.

    They stand one behind the other; `bounds`: where, if that is known.

    Raises, when it runs or at once, `RequestError` for a malformed tuple, one that does not fit
    the space, or a key that is taken or comes twice; then none is inserted.
    """
    if not isinstance(packed, bytes):
        raise RequestError(
            ErrorCode.ILLEGAL_PARAMS,
            f"packed tuples are bytes, not {type(packed).__name__}",
            hint="give `bytes(…)` of a buffer; Python values are for `append`",
        )
    places = split_tuples(packed) if bounds is None else bounds
    if one_transaction and len(packed) > TRANSACTION_BYTES:
        raise LimitExceeded(
            "TRANSACTION_BYTES",
            TRANSACTION_BYTES,
            len(packed),
            hint="append in smaller pieces, or with one_transaction=False",
        )

    def apply(group: Group) -> int:
        found = group.schema.space(space)
        count = len(places) - 1
        if found.is_plain and count:
            primary = group.schema.index(found, 0)
            _store_plain(
                group,
                found,
                primary,
                RowType.INSERT,
                packed,
                places,
                one_transaction=one_transaction,
            )
            return count
        for start, end in pairwise(places):
            group.execute(Request(RowType.INSERT, found.id, tuple=packed[start:end]))
            if not one_transaction:
                group.divide()
        return count

    return apply


def append_units(
    space_id: int, packed: bytes, bounds: array[int], ends: array[int]
) -> Callable[[Group], int]:
    """What inserts tuples in the group it is given, several transactions of several rows each.

    Tuple i is packed[bounds[i]:bounds[i + 1]]; `ends`: before which tuple each transaction ends,
    the last before the end of all. Returns how many tuples. Raises, when it runs, `RequestError` as
    `append_job`; then none is inserted.
    """

    def apply(group: Group) -> int:
        space = group.schema.space(space_id)
        if space.is_plain:
            primary = group.schema.index(space, 0)
            _store_plain(
                group,
                space,
                primary,
                RowType.INSERT,
                packed,
                bounds,
                one_transaction=False,
                ends=ends,
            )
            return len(bounds) - 1
        start = 0
        for end in ends:
            for first, last in pairwise(bounds[start : end + 1]):
                group.execute(Request(RowType.INSERT, space_id, tuple=packed[first:last]))
            group.divide()
            start = end
        return start

    return apply


def store_run(
    group: Group, space_id: int, kind: RowType, packed: bytes, bounds: array[int]
) -> bool:
    """INSERT or REPLACE many tuples, each a transaction, where nothing hinders doing so at once.

    `kind`: INSERT or REPLACE; tuple i is packed[bounds[i]:bounds[i + 1]]. False, and nothing done,
    where the space needs more than its primary index. Raises `RequestError`, with nothing done,
    where one of them cannot be stored: then they have to be tried one by one.
    """
    space = group.schema.space(space_id)
    if not space.is_plain:
        return False
    primary = group.schema.index(space, 0)
    _store_plain(group, space, primary, kind, packed, bounds, one_transaction=False)
    return True


def append_tuples(group: Group, space_id: int, tuples: Sequence[LargeTuple]) -> bool:
    """INSERT large tuples, each a transaction, without joining them: what the log takes as it is
    the state refers to.

    False, and nothing done, where the space needs more than its primary index, or a key cannot be
    stored as it is. Raises `RequestError`, with nothing done, for a tuple that does not fit the
    space and for a key that is taken or comes twice.
    """
    space = group.schema.space(space_id)
    if not space.is_plain:
        return False
    primary = group.schema.index(space, 0)
    plan = group.engine.plans.get(space, primary, check=True)
    found = plan.large_keys(tuples)
    if found is None:
        return False
    made = found.parts()
    tree = group.txn.tree(space.id, 0)
    assert tree is not None
    keys = sorted(made)
    if max(map(len, keys)) > REFERENCE_KEY_BYTES:
        return False
    if any(map(eq, keys, keys[1:])) or tree.has_any(keys):
        raise duplicate_key(space, primary)
    blocks = group.add_tuples(space, tuples, space.put_prefix)
    group.defer(lambda: tree.load(sorted(entries(made, tuples, blocks))))
    return True


def _store_plain(
    group: Group,
    space: SpaceDef,
    primary: IndexDef,
    kind: RowType,
    packed: bytes,
    bounds: array[int],
    *,
    one_transaction: bool,
    ends: array[int] | None = None,
) -> None:
    keys = group.engine.plans.get(space, primary, check=True).keys(packed, bounds)
    tree = group.txn.tree(space.id, 0)
    assert tree is not None
    if kind == RowType.INSERT:
        _check_free(tree, space, primary, keys)
    prefix = space.put_prefix
    group.add_run(
        space, packed, bounds, prefix, kind=kind, one_transaction=one_transaction, ends=ends
    )
    tree.put_run(keys, packed, bounds)


def _check_free(tree: LayeredTree, space: SpaceDef, primary: IndexDef, keys: Keys) -> None:
    """Raise `RequestError` where a key is taken or comes twice."""
    last = tree.last_key()
    if kernel.ascending(keys.data, keys.bounds) >= 0:
        if last is not None and keys[0] <= last and tree.has_any(keys.parts()):
            raise duplicate_key(space, primary)
        return
    images = sorted(keys.parts())
    if any(map(eq, images, images[1:])) or (last is not None and tree.has_any(images)):
        raise duplicate_key(space, primary)
