"""Items of a bucket as packets of a stream, many at a time: made by `pushkernel`."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

from logweir.errors import DecodeError
from logweir.replication.bucket.item import VBUCKETS, Item, unpack_item
from logweir.replication.memcached.wire import pushkernel
from logweir.store.schema.bulk import interpret_calls

LATEST: Final = 0xFFFF_FFFF
"""The latest expiry that packets can tell, in Unix seconds; told of all later ones."""

_NO_ENDS: Final = array("Q")
_KEYS_END: Final = 1 << 16
_PIECE_BYTES: Final = 120 * 1024
_PIECE_PACKETS: Final = _PIECE_BYTES // 41
_MANY: Final = 1 << 62
_rooms: Final[list[tuple[bytearray, array[int]]]] = []
"""Buffers to be used again: memory that is new costs more than what is done in it."""


interpret_calls(pushkernel)


@dataclass(frozen=True, slots=True)
class MutationRun:
    """Items as packets. `next`: the number of the first that is not done; `count`: packets;
    `opaque`: of the last; `ends`: where each packet ends, and the number of its item."""

    data: bytes
    next: int
    count: int
    opaque: int
    ends: array[int]


def is_key(key: bytes) -> bool:
    """Whether a packet can have such a key."""
    return 0 < len(key) < _KEYS_END


def check_item(item: Item) -> None:
    """Raises `DecodeError` for an item that no packet can tell: not these protocols have written
    it."""
    if item.flags >> 32 or item.datatype >> 8 or not is_key(item.key):
        raise DecodeError(
            f"item {item.key[:64]!r} has a key of {len(item.key)} bytes, flags {item.flags} and "
            f"data type {item.datatype}, which no packet has",
            hint="another protocol wrote this tuple into the bucket's space: replace or delete it",
        )


def encode_mutations(
    tuples: list[bytes],
    first: int,
    *,
    wanted: bytes,
    now: float,
    form: int,
    opaque: int,
    most: int = _MANY,
    room_bytes: int = _MANY,
) -> MutationRun:
    """TAP_MUTATION of the items from number `first` on: so many as make one piece, and not beyond
    one that is too large for it or no item as we write it.

    `wanted`: one byte for each vbucket, 0 if its items are left out, as those are that are
    expired at `now`; `form`: see `pushkernel.mutations`; `opaque`: the last one; `most`: of
    packets; `room_bytes`: as long as those written take less, there comes another one.
    """
    try:
        out, ends = _rooms.pop()
    except IndexError:
        out, ends = bytearray(_PIECE_BYTES), array("Q", bytes(16 * _PIECE_PACKETS))
    numbers = array("Q", (0, opaque, 0, min(most, _PIECE_PACKETS), room_bytes))
    row = pushkernel.mutations(tuples, first, wanted, int(now), form, numbers, out, ends)
    data = bytes(memoryview(out)[: numbers[0]])
    taken = ends[: 2 * numbers[2]] if most < _MANY else _NO_ENDS
    _rooms.append((out, ends))
    return MutationRun(data, row, numbers[2], numbers[1], taken)


def touched_vbuckets(tuples: list[bytes], wanted: bytes) -> list[int]:
    """The vbuckets of which `encode_mutations` sends something, in order."""
    table = bytearray(VBUCKETS)
    for data in tuples[pushkernel.touched(tuples, wanted, table) :]:
        item = unpack_item(data)
        if item.vbucket < VBUCKETS:
            table[item.vbucket] |= bool(wanted[item.vbucket] and item.ttl)
    found: list[int] = []
    at = table.find(1)
    while at >= 0:
        found.append(at)
        at = table.find(1, at + 1)
    return found
