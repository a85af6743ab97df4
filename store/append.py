"""Many tuples into one space with one sync: packed, checked and keyed in compiled code.

Without secondary indexes and sequences nothing is done per tuple but to hand key and tuple to
LMDB; else each tuple goes the ordinary way, in the same group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from logweir.store.references import REFERENCE_KEY_BYTES, LargeTuple, entries
from logweir.store.request import Request, packing
from logweir.store.tree import takes_length
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
            _append_plain(
                group, found, group.schema.index(found, 0), packed, places, one_transaction
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
            _append_plain(group, space, primary, packed, bounds, False, ends)
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
    if kind == RowType.INSERT:
        _check_free(group, space, primary, packed, bounds)
        _append_plain(group, space, primary, packed, bounds, one_transaction=False)
        return True
    keys = group.engine.plans.get(space, primary, check=True).keys(packed, bounds)
    latest: dict[bytes, bytes] = {}
    kernel.gather(keys.data, keys.bounds, packed, bounds, latest)
    group.engine.txn.load(space.id, 0, [(key, latest[key]) for key in sorted(latest)])
    prefix = space.put_prefix
    group.add_run(space, packed, bounds, prefix, kind=kind, one_transaction=False)
    return True


def _check_free(
    group: Group, space: SpaceDef, primary: IndexDef, packed: bytes, bounds: array[int]
) -> None:
    """Raise `RequestError` where a key is taken: LMDB adds those before it, and none may stay."""
    keys = group.engine.plans.get(space, primary, check=True).keys(packed, bounds)
    tree = group.engine.txn.tree(space.id, 0)
    assert tree is not None
    last = tree.last_key()
    if last is None or (kernel.ascending(keys.data, keys.bounds) >= 0 and keys[0] > last):
        return
    images = sorted(keys[row] for row in range(len(keys)))
    if all(takes_length(len(image)) for image in images):
        is_taken = tree.has_any(images)
    else:
        is_taken = any(tree.get(image) is not None for image in images)
    if is_taken:
        raise duplicate_key(space, primary)


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
    large = plan.large_keys(tuples)
    if large is None:
        return False
    found, size = large
    made = kernel.parts(found.data, found.bounds)
    tree = group.engine.txn.tree(space.id, 0)
    assert tree is not None
    keys = sorted(made)
    if max(map(len, keys)) > REFERENCE_KEY_BYTES:
        return False
    if any(map(eq, keys, keys[1:])) or tree.has_any(keys):
        raise duplicate_key(space, primary)
    blocks = group.add_tuples(space, tuples, space.put_prefix)

    def store() -> None:
        group.engine.txn.take_large(space.id, *entries(made, tuples, blocks))

    group.defer(store, size)
    return True


def _append_plain(
    group: Group,
    space: SpaceDef,
    primary: IndexDef,
    packed: bytes,
    bounds: array[int],
    one_transaction: bool,
    ends: array[int] | None = None,
) -> None:
    keys = group.engine.plans.get(space, primary, check=True).keys(packed, bounds)
    tree = group.engine.txn.tree(space.id, 0)
    assert tree is not None
    prefix = space.put_prefix
    longest = kernel.ascending(keys.data, keys.bounds)
    last = tree.last_key()
    if takes_length(longest) and (last is None or keys[0] > last):
        # Nothing can refuse these: LMDB may take them while the log is being synced.
        group.add_run(space, packed, bounds, prefix, one_transaction=one_transaction, ends=ends)
        group.defer(lambda: tree.append(_pairs(keys, packed, bounds)), len(packed))
        return
    pairs = list(_pairs(keys, packed, bounds))
    if longest < 0:
        pairs.sort()
    if len({image for image, _ in pairs}) != len(pairs) or not tree.add_new(pairs):
        raise duplicate_key(space, primary)
    group.add_run(space, packed, bounds, prefix, one_transaction=one_transaction, ends=ends)


def _pairs(keys: Keys, packed: bytes, bounds: array[int]) -> Iterator[tuple[bytes, bytes]]:
    """Keys and tuples, for LMDB: one pair at a time, so that nothing is left to be collected."""
    return zip(kernel.parts(keys.data, keys.bounds), kernel.parts(packed, bounds), strict=True)
