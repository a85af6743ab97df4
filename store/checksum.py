"""What a store holds, as one number per space, so that two stores can be compared by content.

Equal positions do not make two stores equal; equal checksums of every space, at the same position,
do (but for one chance in 2**32 each).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from logweir.store.schema.definition import SpaceDef
from logweir.store.view import ReadView
from logweir.wal.crc32c import checksum

_TUPLES = 1000  # that are joined for one call of the checksum


@dataclass(frozen=True, slots=True)
class SpaceChecksum:
    """The content of one space. `tuples`: how many; `crc32c`: of their MsgPack, one after the other
    in the order of the primary key."""

    space_id: int
    space: str
    tuples: int
    crc32c: int


def space_checksums(view: ReadView) -> Iterator[SpaceChecksum]:
    """The content of every space that a snapshot would hold, in its order. Reads every tuple."""
    return (_space(view, space) for space in view.snapshot_spaces())


def _space(view: ReadView, space: SpaceDef) -> SpaceChecksum:
    tuples, count, crc = view.tuples(space), 0, 0
    while part := list(islice(tuples, _TUPLES)):
        crc = checksum(b"".join(part), crc)
        count += len(part)
    return SpaceChecksum(space.id, space.name, count, crc)
