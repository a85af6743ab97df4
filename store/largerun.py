"""INSERTs of large tuples that are durable before the state has them: see `store.late`.

A run of them is late where nothing has to be looked up: the space has only its primary index, and
the keys ascend, differ in their last bytes only and lie above all that begin like them
(`Late.top`), as those do that count something up. So none is taken. Everything else, also what is
to be refused, goes the ordinary way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from logweir.errors import RequestError
from logweir.store import kernel
from logweir.store.engine import Plans
from logweir.store.group import large_blocks
from logweir.store.late import LargePiece, Late, LateGroup
from logweir.store.references import REFERENCE_KEY_BYTES, LargeTuple
from logweir.store.schema import Schema
from logweir.wal.block import Pieces
from logweir.wal.vclock import VClock

__all__ = ["LargeRun", "prepare_large"]

_NUMBER_BYTES: Final = 8  # of the number at the end of a key
_ROWS: Final = 2  # that the state makes of a tuple: its entry, and that in `references`


class LargeRun(NamedTuple):
    """INSERTs into one space, each a transaction."""

    space_id: int
    tuples: Sequence[LargeTuple]


def prepare_large(
    runs: Sequence[LargeRun],
    *,
    late: Late,
    schema: Schema,
    plans: Plans,
    vclock: VClock,
    replica_id: int,
    now: float,
) -> LateGroup | None:
    """Check and encode runs, none of them empty. None where one needs the ordinary way.

    `late`: what waits; nobody else may commit.
    """
    blocks: list[Pieces] = []
    pieces: list[LargePiece] = []
    beginnings: set[tuple[int, bytes]] = set()
    rows = size = 0
    for space_id, tuples in runs:
        space = schema.get(space_id)
        if space is None or not space.is_plain or not (replica_id or space.is_local):
            return None
        try:
            large = plans.primary(schema, space).large_keys(tuples)
        except RequestError:
            return None
        if large is None:
            return None
        found, _ = large
        if not 0 <= kernel.ascending(found.data, found.bounds) <= REFERENCE_KEY_BYTES:
            return None
        keys = kernel.parts(found.data, found.bounds)
        prefix = keys[0][:-_NUMBER_BYTES]
        if not (prefix and keys[-1].startswith(prefix)) or (space_id, prefix) in beginnings:
            return None
        top = late.top(space_id, prefix)
        if top is None or keys[0] <= top:
            return None
        beginnings.add((space_id, prefix))
        signed = 0 if space.is_local else replica_id
        last = vclock.lsn(signed)
        made = large_blocks(
            tuples,
            replica_id=signed,
            first_lsn=last + 1,
            timestamp=now,
            prefix=space.put_prefix,
            is_local=space.is_local,
        )
        vclock = vclock.with_lsn(signed, last + len(tuples))
        blocks += made
        pieces.append(LargePiece(space_id, prefix, keys, tuples, made))
        rows += _ROWS * len(tuples)
        size += len(found.data)
    return LateGroup(blocks, vclock, [], rows, size, pieces)
