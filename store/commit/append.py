"""Many tuples into one space with one sync: packed and inserted in compiled code."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import eq
from typing import TYPE_CHECKING, Final

from logweir.errors import LimitExceeded
from logweir.limits import GROUP_BYTES, TRANSACTION_BYTES
from logweir.store.commit.group import Group
from logweir.store.engine.batches import puts
from logweir.store.engine.engine import duplicate_key
from logweir.store.engine.executing import COLUMNS
from logweir.store.engine.request import UNPACKABLE, Request, cannot_store
from logweir.store.schema.bulk import pack_tuples, split_tuples
from logweir.store.schema.refused import illegal
from logweir.store.schema.values import LargeTuple
from logweir.store.state.references import REFERENCE_KEY_BYTES
from logweir.wal.mp import Value
from logweir.wal.xrow import RowType

if TYPE_CHECKING:
    from logweir.store.inner import Inner

_PIECE_TUPLES: Final = 16_384


def pack_run(tuples: Iterable[Sequence[Value]]) -> tuple[bytes, array[int]]:
    """Tuples in MsgPack, one behind the other, and their bounds. Raises `RequestError`
    ILLEGAL_PARAMS."""
    try:
        return pack_tuples(list(tuples))
    except UNPACKABLE as error:
        raise cannot_store("a tuple", error) from error


class Appends:
    """What a log offers to fill a space with."""

    inner: Inner

    def append(
        self, space: int | str, tuples: Iterable[Sequence[Value]], *, one_transaction: bool = True
    ) -> int:
        """Insert many tuples with one sync; the fastest way to fill a space.

        `one_transaction`: all or nothing for every reader and follower, else each tuple is a
        transaction of its own (for the caller it is all or nothing either way). Returns how many.
        """
        packed, bounds = pack_run(tuples)
        job = append_job(space, packed, bounds, one_transaction=one_transaction)
        return self.inner.run(job, size=len(packed))


def append_job(
    space: int | str,
    packed: bytes,
    bounds: array[int] | None = None,
    *,
    one_transaction: bool,
    is_inside: bool = False,
) -> Callable[[Group], int]:
    """What inserts `packed` tuples in the group it is given and returns how many they are.

    They stand one behind the other; `bounds`: where, if that is known; `is_inside`: they are part
    of the group's open transaction, which is to be rolled back to before them if this raises.

    Raises, when it runs or at once, `RequestError` for a malformed tuple, one that does not fit
    the space, or a key that is taken or comes twice; then none is inserted.
    """
    if not isinstance(packed, bytes):
        raise illegal(
            f"packed tuples are bytes, not {type(packed).__name__}",
            "give `bytes(…)` of a buffer; Python values are for `append`",
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
        if found.is_system:
            for start, end in pairwise(places):
                group.execute(Request(RowType.INSERT, found.id, tuple=packed[start:end]))
                if not one_transaction:
                    group.divide()
        else:
            _insert(group, found.id, packed, places, one_transaction, is_inside)
        return len(places) - 1

    return apply


def _insert(
    group: Group,
    space_id: int,
    packed: bytes,
    bounds: array[int],
    one_transaction: bool,
    is_inside: bool,
) -> None:
    """In pieces, whose columns take little memory."""
    count = len(bounds) - 1
    at = 0
    while at < count:
        some = bounds[at : at + _PIECE_TUPLES + 1]
        ends = array("Q", (len(some) - 1,)) if one_transaction else None
        answers = group.execute_batch(
            packed,
            puts(RowType.INSERT, some, ends),
            (space_id,),
            limit_bytes=GROUP_BYTES,
            whole=True,
            is_open=one_transaction and at + len(some) - 1 < count,
            is_inside=is_inside,
        )
        at += answers.count


def append_units(
    space_id: int, packed: bytes, bounds: array[int], ends: array[int]
) -> Callable[[Group], int]:
    """What inserts tuples in the group it is given, several transactions of several rows each.

    Tuple i is packed[bounds[i]:bounds[i + 1]]; `ends`: before which tuple each transaction ends,
    the last before the end of all. Returns how many tuples. Raises, when it runs, `RequestError` as
    `append_job`; then none is inserted.
    """

    def apply(group: Group) -> int:
        columns = puts(RowType.INSERT, bounds, ends)
        while columns:
            answers = group.execute_batch(
                packed, columns, (space_id,), limit_bytes=GROUP_BYTES, whole=True
            )
            del columns[: answers.count * COLUMNS]
        return len(bounds) - 1

    return apply


def append_tuples(group: Group, space_id: int, tuples: list[LargeTuple]) -> bool:
    """INSERT large tuples, each a transaction, without joining them: what the log takes as it is
    the state refers to.

    False, and nothing done, if the space needs more than its primary index, or a key cannot be
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
    group.add_tuples(space, made, tuples)
    return True
