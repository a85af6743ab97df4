"""Many tuples into one space with one sync: packed, checked and keyed in compiled code.

Without secondary indexes and sequences nothing is done per tuple but to hand key and tuple to
LMDB; else each tuple goes the ordinary way, in the same group.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from logweir.errors import ErrorCode, LimitExceeded, RequestError
from logweir.limits import STATE_KEY_BYTES, TRANSACTION_BYTES
from logweir.store.bulk import split_tuples
from logweir.store.definition import IndexDef, SpaceDef
from logweir.store.engine import duplicate_key
from logweir.store.group import Group
from logweir.store.request import Request
from logweir.store.state import Tree
from logweir.wal.mp import Value, encode_uint, packer
from logweir.wal.xrow import RowType

__all__ = ["append_job", "pack_tuples", "store_run"]


def pack_tuples(tuples: Iterable[Sequence[Value]]) -> bytes:
    """Tuples as MsgPack, one behind the other. Raises `RequestError` ILLEGAL_PARAMS."""
    try:
        return b"".join(map(packer(), tuples))
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(
            ErrorCode.ILLEGAL_PARAMS,
            f"a tuple cannot be stored: {error}",
            hint="MsgPack has nil, bool, int, float, str, bytes, list, dict, Decimal and UUID",
        ) from error


def append_job(space: int | str, packed: bytes, *, one_transaction: bool) -> Callable[[Group], int]:
    """What inserts `packed` tuples in the group it is given and returns how many they are.

    Raises, when it runs or at once, `RequestError` for a malformed tuple, one that does not fit
    the space, or a key that is taken or comes twice; then none is inserted.
    """
    bounds = split_tuples(packed)
    if one_transaction and len(packed) > TRANSACTION_BYTES:
        raise LimitExceeded(
            "TRANSACTION_BYTES",
            TRANSACTION_BYTES,
            len(packed),
            hint="append in smaller pieces, or with one_transaction=False",
        )

    def apply(group: Group) -> int:
        found = group.schema.space(space)
        count = len(bounds) - 1
        if _is_plain(found) and count:
            _append_plain(
                group, found, group.schema.index(found, 0), packed, bounds, one_transaction
            )
            return count
        for start, end in pairwise(bounds):
            group.execute(Request(RowType.INSERT, found.id, tuple=packed[start:end]))
            if not one_transaction:
                group.divide()
        return count

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
    if not _is_plain(space):
        return False
    primary = group.schema.index(space, 0)
    if kind == RowType.INSERT:
        _append_plain(group, space, primary, packed, bounds, one_transaction=False)
        return True
    keys = group.engine.plans.get(space, primary, check=True).keys(packed, bounds)
    ends = bounds.tolist()
    latest = {keys[row]: packed[start:end] for row, (start, end) in enumerate(pairwise(ends))}
    group.engine.txn.load(space.id, 0, sorted(latest.items()))
    prefix = b"\x82\x10" + encode_uint(space.id) + b"\x21"
    group.add_run(space, packed, bounds, prefix, kind=kind, one_transaction=False)
    return True


def _is_plain(space: SpaceDef) -> bool:
    return (
        len(space.indexes) == 1
        and space.sequence is None
        and not space.is_system
        and not space.is_view
        and not space.is_temporary
    )


def _append_plain(
    group: Group,
    space: SpaceDef,
    primary: IndexDef,
    packed: bytes,
    bounds: array[int],
    one_transaction: bool,
) -> None:
    keys = group.engine.plans.get(space, primary, check=True).keys(packed, bounds)
    ends = keys.bounds.tolist()
    images = [keys.data[start:end] for start, end in pairwise(ends)]
    tuples = [packed[start:end] for start, end in pairwise(bounds.tolist())]
    pairs = list(zip(images, tuples, strict=True))
    tree = group.engine.txn.tree(space.id, 0)
    assert tree is not None
    ordered = images if _is_ascending(images) else sorted(images)
    if ordered is not images:
        if not _is_ascending(ordered):
            raise duplicate_key(space, primary)
        pairs.sort()
    if any(len(image) >= STATE_KEY_BYTES - 1 for image in images):
        for image, data in pairs:
            if tree.get(image) is not None:
                raise duplicate_key(space, primary)
            tree.put(image, data)
    else:
        last = tree.last_key()
        if last is not None and ordered[0] <= last and _has_any(tree, ordered):
            raise duplicate_key(space, primary)
        tree.add_new(pairs, at_end=last is None or ordered[0] > last)
    prefix = b"\x82\x10" + encode_uint(space.id) + b"\x21"
    group.add_run(space, packed, bounds, prefix, one_transaction=one_transaction)


def _is_ascending(images: list[bytes]) -> bool:
    return all(map(bytes.__lt__, images, images[1:]))


def _has_any(tree: Tree, images: list[bytes]) -> bool:
    return any(tree.get(image) is not None for image in images)
