# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""The headers of iproto's frames, one at a time: what stands in each is said in `codec`, which is
the face of this.

Compiled or plain Python, as `wal.kernel` is. It checks lengths as that does. Nothing raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import logweir.wal.kernel as rows

COMPILED = not __file__.endswith(".py")

KEY_END = 0x53
_KEY_END = KEY_END
_NOP = 12

# How a header is.
WHOLE = 0
BROKEN = 1
BEHIND = 2  # what is behind it is not one value
_WHOLE = WHOLE
_BROKEN = BROKEN
_BEHIND = BEHIND


def _kinds() -> tuple[str, ...]:
    """What a value must be, by its key; keys that 2.6.0 knows nothing of must be nil there."""
    kinds = ["uint"] * 0x20 + ["nil"] * (KEY_END - 0x20)
    kinds[0x04] = "double"
    for key in (0x20, 0x21, 0x28):
        kinds[key] = "array"
    for key in (0x22, 0x23, 0x24, 0x25, 0x27):
        kinds[key] = "str"
    for key in (0x26, 0x29, 0x2A, 0x2B):
        kinds[key] = "map"
    return tuple(kinds)


FIRST_BYTES: Final[Mapping[str, frozenset[int]]] = {
    "nil": frozenset((0xC0,)),
    "bool": frozenset((0xC2, 0xC3)),
    "uint": frozenset((*range(0x80), *range(0xCC, 0xD0))),
    "double": frozenset((0xCB,)),
    "str": frozenset((*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB)),
    "array": frozenset((*range(0x90, 0xA0), 0xDC, 0xDD)),
    "map": frozenset((*range(0x80, 0x90), 0xDE, 0xDF)),
}
"""By kind of value, the bytes it may begin with."""
FIT: Final = tuple(FIRST_BYTES[kind] for kind in _kinds())
"""The same by key."""
_of_kinds: Final = {
    kind: bytes(first in some for first in range(256)) for kind, some in FIRST_BYTES.items()
}
_fits = b"".join([_of_kinds[kind] for kind in _kinds()])
FITS = _fits


def read_header(
    data: bytes, start: int, end: int
) -> tuple[int, int, int, int, int, int, int, int, int]:
    """Read the header of the frame from `start` to `end`, as far as it goes.

    Returns how it is; type, sync, replica id, lsn, the bits of the time stamp, version of the
    schema and stream id, 0 where there are none; and where the body begins.
    """
    raw = data
    owed = [0] * 512
    kind = sync = replica_id = lsn = bits = version = stream = 0
    body = 0
    last = len(data)
    how = _BROKEN
    stop = rows.skip_value(raw, start, last, owed, 0) if 0 <= start < end <= last else -1
    at = rows.map_end(raw, start, end) if 0 <= stop <= end else -1
    if at >= 0:
        left = rows.map_count(raw, start, at)
        while left:
            value = rows.uint_end(raw, at, stop)
            if value < 0:
                break
            key = rows.uint(raw, at, value)
            if key >= _KEY_END or not FITS[key * 256 + raw[value]]:
                break
            at = rows.skip_value(raw, value, stop, owed, 0)
            if key == 0:
                kind = rows.uint(raw, value, at)
            elif key == 1:
                sync = rows.uint(raw, value, at)
            elif key == 2:
                replica_id = rows.uint(raw, value, at)
            elif key == 3:
                lsn = rows.uint(raw, value, at)
            elif key == 4:
                bits = rows.load(raw, value + 1, 8)
            elif key == 5:
                version = rows.uint(raw, value, at)
            elif key == 10:
                stream = rows.uint(raw, value, at)
            left -= 1
        if not left:
            how = _WHOLE
            body = stop
            if stop < end and (kind == _NOP or rows.skip_value(raw, stop, last, owed, 0) != end):
                how = _BEHIND
    return how, kind, sync, replica_id, lsn, bits, version, stream, body
