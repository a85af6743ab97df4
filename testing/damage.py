"""Bytes with faults in them, as a disk, a network or a hostile peer makes them."""

from __future__ import annotations

import random


def damaged(data: bytes, chance: random.Random) -> bytes:
    """`data` with one to four faults: a few bytes changed, removed, doubled or put in."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(4):
            case 0 if at < len(out):
                out[at] = chance.randrange(256)
            case 1:
                del out[at : at + chance.randint(1, 8)]
            case 2:
                out[at:at] = out[at : at + chance.randint(1, 8)]
            case _:
                out[at:at] = chance.randbytes(chance.randint(1, 4))
    return bytes(out)
