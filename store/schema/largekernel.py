# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The hot loops of large tuples: what stands of them in a block, in what order, and where.

This file is plain Python and runs as it is; Cython compiles the same file with the types that
stand in `largekernel.pxd`. `COMPILED` says which one runs. `store.schema.bulk`, `store.commit.rows`
and `store.state.references` are its faces; nothing else calls it. Such a tuple is a
`store.schema.values.LargeTuple`. A list of the caller's own that is too short is an `IndexError`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    Buffer = bytes | bytearray | memoryview

COMPILED = not __file__.endswith(".py")

_REFERENCE = struct.Struct(">BQQQII")


def heads(tuples: Sequence[tuple[bytes, Buffer]], limit: int, out: list[bytes]) -> int:
    """Put each of `tuples` into `out` with no bytes in its last field, a bin: `LargeTuple`s, whose
    head ends with the header of that field. One of more than `limit` bytes stays whole. Returns the
    bytes of all."""
    total = 0
    for head, payload in tuples:
        length = len(payload)
        size = len(head) + length
        total += size
        if size > limit:
            out.append(b"".join((head, payload)))
        else:
            cut = 2 if length < 0x100 else 3 if length < 0x10000 else 5
            out.append(head[: len(head) - cut] + b"\xc4\0")
    return total


def lay(
    row_heads: list[bytearray],
    tuples: Sequence[tuple[bytes, Buffer]],
    at: int,
    target: int,
    out: list[Buffer],
) -> tuple[int, int]:
    """Put the rows from number `at` on into `out`, three parts each: what stands before its tuple,
    and the two of that. They end with the row that makes them `target` bytes. Returns where the
    next ones begin, and the bytes of these."""
    size = 0
    count = len(tuples)
    if at < 0 or len(row_heads) < count:
        raise IndexError("lay: not every tuple has something before it")
    while at < count and size < target:
        row_head = row_heads[at]
        head, payload = tuples[at]
        out.append(row_head)
        out.append(head)
        out.append(payload)
        size += len(row_head) + len(head) + len(payload)
        at += 1
    return at, size


def references(
    first: int, file: int, offset: int, parts: Sequence[Buffer], checksums: Sequence[int]
) -> list[bytes]:
    """The reference (see `store.state.references`; `first`: its first byte) to each tuple of parts
    as `lay` puts them, which stand in `file` from byte `offset` on. `checksums`: up to the end of
    each part."""
    found: list[bytes] = []
    row = 0
    count = len(parts)
    while row + 2 < count:
        offset += len(parts[row])
        size = len(parts[row + 1]) + len(parts[row + 2])
        sums = checksums[row], checksums[row + 2]
        found.append(_REFERENCE.pack(first, file, offset, size, *sums))
        offset += size
        row += 3
    return found
