"""Damage to bytes, and rows that no writer makes: what decoders are fed with. All from a seed."""

from __future__ import annotations

import struct
from random import Random

from logweir.wal.mp import encode_uint, pack

_EDGES = (0, 1, 0x7F, 0x80, 0x90, 0xA0, 0xC0, 0xC1, 0xC4, 0xC7, 0xCB, 0xCF, 0xD9, 0xDC, 0xDD)
_EDGES += (0xDE, 0xDF, 0xE0, 0xFF)


def mutate(random: Random, data: bytes) -> bytes:
    """A copy of `data` with one to four small damages; now and then cut, or of another length."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        at = random.randrange(len(out) + 1)
        kind = random.randrange(7)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << random.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = random.choice(_EDGES)
        elif kind == 2 and at < len(out):
            out[at] = random.randrange(256)
        elif kind == 3:
            del out[at : at + random.choice((1, 1, 2, 5, len(out)))]
        elif kind == 4:
            out[at:at] = bytes(random.choice(_EDGES) for _ in range(random.choice((1, 2, 5))))
        elif kind == 5:
            size = random.choice((1, 2, 4, 8))
            out[at : at + size] = random.choice((b"\x00", b"\xff", b"\x7f")) * size
        else:
            start = random.randrange(len(out) + 1)
            out[at:at] = out[start : start + random.choice((1, 3, 9, 30))]
    return bytes(out)


def wide_uint(random: Random, value: int) -> bytes:
    """An unsigned integer in any of its forms, now and then in one that is none."""
    forms = [encode_uint(value)]
    for first, width in ((0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)):
        if value < 1 << 8 * width:
            forms.append(bytes((first,)) + value.to_bytes(width, "big"))
    if random.random() < 0.03:
        forms = [b"\xd0\x05", b"\xa1x", b"\xc0", b"\xff", b"\xcb" + bytes(8)]
    return random.choice(forms)


def _number(random: Random) -> int:
    return random.getrandbits(random.choice((1, 3, 7, 8, 15, 16, 31, 32, 63, 64)))


def _map(random: Random, items: list[bytes]) -> bytes:
    count = len(items)
    heads = [b"\xde" + count.to_bytes(2, "big"), b"\xdf" + count.to_bytes(4, "big")]
    if count < 16:
        heads += [bytes((0x80 + count,))] * 4
    return random.choice(heads) + b"".join(items)


def wild_row(random: Random) -> bytes:
    """A row with keys in any order, in wide forms, twice, unknown, or (rarely) of a wrong type."""
    items = []
    kind = random.choice((2, 3, 4, 5, 9, 12, 12, 40, _number(random)))
    for key in random.choices((2, 7, 3, 3, 4, 8, 9), k=random.randrange(8)):
        value = wide_uint(random, _number(random))
        if key == 4:
            value = b"\xcb" + struct.pack(">Q", random.getrandbits(64))
            if random.random() < 0.03:
                value = b"\xca" + bytes(4)
        items.append(wide_uint(random, key) + value)
    for _ in range(random.choice((0, 0, 0, 1, 2))):
        key = random.choice((1, 5, 6, 10, 0x20, 0x52, 0x53, _number(random)))
        items.append(wide_uint(random, key) + pack(random.choice((7, "x", [1, [2]], {1: 2}, None))))
    if random.random() < 0.97:
        items.append(wide_uint(random, 0) + encode_uint(kind))
    random.shuffle(items)
    header = _map(random, items)
    if kind == 12:
        return header
    items = []
    for key in random.choices((0x10, 0x11, 0x15, 0x20, 0x21, 0x28, 0x2A, 2), k=random.randrange(7)):
        if key in (0x10, 0x11, 0x15):
            value = wide_uint(random, _number(random))
        elif random.random() < 0.95:
            value = pack([_number(random) for _ in range(random.choice((0, 1, 3, 20)))])
        else:
            value = pack(random.choice((1, "x", {1: []}, None)))
        items.append(wide_uint(random, key) + value)
    return header + _map(random, items)
