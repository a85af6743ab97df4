"""MsgPack values."""

from __future__ import annotations

import inspect
import math
import sys
import uuid
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutation import mutate
from samples import GOOD, sample
from values import decimals, same, values

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import MSGPACK_DEPTH
from logweir.wal.mp import (
    Ext,
    MapPairs,
    decode_decimal,
    decode_uint,
    encode_array_header,
    encode_decimal,
    encode_uint,
    pack,
    packer,
    skip,
    unpack,
    unpack_at,
)

UUID = uuid.UUID("64d22e4d-ac92-4a23-899a-e59f34af5479")

VECTORS: list[tuple[str, Any]] = [
    ("c0", None),
    ("c2", False),
    ("c3", True),
    ("7f", 127),
    ("cc80", 128),
    ("cd0100", 256),
    ("ce00010000", 65536),
    ("cf0000000100000000", 2**32),
    ("cfffffffffffffffff", 2**64 - 1),
    ("ff", -1),
    ("e0", -32),
    ("d0df", -33),
    ("d1ff7f", -129),
    ("d2ffff7fff", -32769),
    ("d38000000000000000", -(2**63)),
    ("cb3ff8000000000000", 1.5),
    ("cb8000000000000000", -0.0),
    ("a0", ""),
    ("a5c5be6c75c5", "žlu\udcc5"),
    ("a2fffe", "\udcff\udcfe"),
    ("a3eda080", "\udced\udca0\udc80"),
    ("d920" + "61" * 32, "a" * 32),
    ("da0100" + "61" * 256, "a" * 256),
    ("c400", b""),
    ("c403616263", b"abc"),
    ("c50100" + "00" * 256, bytes(256)),
    ("90", []),
    ("93019102c0", [1, [2], None]),
    ("80", {}),
    ("82a16101a16202", {"a": 1, "b": 2}),
    ("8101c0", {1: None}),
    ("81910102", MapPairs([([1], 2)])),
    ("82a16101a16102", MapPairs([("a", 1), ("a", 2)])),
    ("8201a161cb3ff0000000000000a162", MapPairs([(1, "a"), (1.0, "b")])),
    ("9181910102", [MapPairs([([1], 2)])]),
    ("81a16181910102", {"a": MapPairs([([1], 2)])}),
    ("d501001c", Decimal("1")),
    ("c7030102250c", Decimal("2.50")),
    ("c7030101250d", Decimal("-25.0")),
    ("d501ff1c", Decimal("1E+1")),
    ("d501000d", Decimal("-0")),
    ("d802" + UUID.hex, UUID),
    ("d402aa", Ext(2, b"\xaa")),
    ("d4fe07", Ext(-2, b"\x07")),
    ("d58000ff", Ext(-128, b"\x00\xff")),
    ("d67f01020304", Ext(127, bytes((1, 2, 3, 4)))),
    ("d6ff00000001", Ext(-1, bytes((0, 0, 0, 1)))),
    ("d4ff05", Ext(-1, b"\x05")),
    ("c703ffaabbcc", Ext(-1, b"\xaa\xbb\xcc")),
    ("c700ff", Ext(-1, b"")),
    ("c80100ff" + "00" * 256, Ext(-1, bytes(256))),
    ("92d4ff05a1ff", [Ext(-1, b"\x05"), "\udcff"]),
    ("81d4ff0593c0d4ff06a161", {Ext(-1, b"\x05"): [None, Ext(-1, b"\x06"), "a"]}),
    ("dc0010" + "d4ff05" * 16, [Ext(-1, b"\x05")] * 16),
    (
        "de0010" + "".join(f"{i:02x}d4ff05" for i in range(16)),
        dict.fromkeys(range(16), Ext(-1, b"\x05")),
    ),
]


@pytest.mark.parametrize(("data", "value"), VECTORS)
def test_vectors(data: str, value: Any) -> None:
    """Shortest forms: bytes to value and value to bytes."""
    assert same(unpack(bytes.fromhex(data)), value)
    assert pack(value) == bytes.fromhex(data)
    assert packer()(value) == bytes.fromhex(data)
    assert unpack_at(b"\x00" + bytes.fromhex(data) + b"\x00", 1)[1] == 1 + len(data) // 2


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("cc05", 5),
        ("d30000000000000005", 5),
        ("ca3fc00000", 1.5),
        ("d90161", "a"),
        ("db0000000161", "a"),
        ("dd00000001c0", [None]),
        ("df00000001a161c0", {"a": None}),
        ("c600000001ff", b"\xff"),
        ("c900000001ff05", Ext(-1, b"\x05")),
        ("c9000000010505", Ext(5, b"\x05")),
        ("c70201001c", Decimal("1")),
        ("c70301d0001c", Decimal("1")),
        ("d501001a", Decimal("1")),
        ("d501001b", Decimal("-1")),
        ("d501001e", Decimal("1")),
        ("d501001f", Decimal("1")),
        ("c7030100001c", Decimal("1")),
    ],
)
def test_longer_forms_are_read(data: str, value: Any) -> None:
    """A reader takes every form of a value, not only the shortest."""
    assert same(unpack(bytes.fromhex(data)), value)
    assert same(unpack(bytearray.fromhex(data)), value)
    assert same(unpack(memoryview(bytes.fromhex(data))), value)


@settings(max_examples=400)
@given(values())
def test_round_trip(value: Any) -> None:
    """What is packed unpacks to the same, and skip ends where it does, for any kind of buffer."""
    data = pack(value)
    assert same(unpack(data), value)
    assert packer()(value) == data
    for buffer in (data, bytearray(data), memoryview(data)):
        assert skip(buffer) == len(data)


@given(values(), st.data())
def test_truncation(value: Any, data: st.DataObject) -> None:
    """A value cut anywhere is refused, and so is one that is followed by something."""
    whole = pack(value)
    size = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DecodeError):
        unpack(whole[:size])
    with pytest.raises(DecodeError):
        skip(bytearray(whole[:size]))
    with pytest.raises(DecodeError, match="1 bytes follow") as caught:
        unpack(whole + b"\x00")
    assert caught.value.offset == len(whole)


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        ("", 0),
        ("c1", 0),
        ("93c0c1c0", 2),
        ("9201", 1),
        ("cd01", 2),
        ("a361", 2),
        ("c40561", 3),
        ("c7", 1),
        ("c704", 2),
        ("c70405aa", 4),
        ("d8020000", 4),
        ("dc00", 1),
        ("dc0005c0", 3),
        ("ddffffffffc0", 5),
        ("dfffffffffc0", 5),
        ("dbffffffff61", 6),
        ("8101", 1),
        ("82a161", 1),
    ],
)
def test_malformed_values(data: str, offset: int) -> None:
    """Cut, invalid and lying values are refused at the byte, whatever the buffer is."""
    raw = bytes.fromhex(data)
    for buffer in (raw, bytearray(raw), memoryview(raw)):
        with pytest.raises(DecodeError) as caught:
            skip(buffer)
        assert caught.value.offset == offset
        with pytest.raises(DecodeError):
            unpack(buffer)


@pytest.mark.parametrize(
    "data",
    [
        "c70001",  # nothing
        "d40100",  # a scale and nothing else
        "c70101c1",
        "d401aa",  # a scale that is a string, cut short
        "c70201c000",  # nil
        "d501c30c",  # true
        "d501a00c",  # ""
        "c70a01cb3ff00000000000001c",  # a float
        "c7030191011c",  # an array
        "d5010010",  # no sign
        "d50100ac",  # a digit that is none
        "d5014d1c",  # scale 77
        "c70301d0b31c",  # scale -77
        "c7150100" + "9" * 39 + "c",  # 39 digits
    ],
)
def test_malformed_decimals(data: str) -> None:
    """A decimal without scale, digits or sign, or with a scale that cannot be, is refused."""
    with pytest.raises(DecodeError):
        unpack(bytes.fromhex(data))


def test_depth_limit() -> None:
    """512 containers in one another are read, one more is not; empty ones at the end are free."""
    for head, tail in ((b"\x91", b"\x90"), (b"\x91", b"\xc0"), (b"\x81\x01", b"\x80")):
        deep = head * MSGPACK_DEPTH + tail
        assert skip(deep) == skip(bytearray(deep)) == len(deep)
        assert pack_depth(unpack(deep)) == MSGPACK_DEPTH
        with pytest.raises(LimitExceeded, match="MSGPACK_DEPTH"):
            unpack(head + deep)
        with pytest.raises(LimitExceeded, match="MSGPACK_DEPTH"):
            skip(bytearray(head + deep))
    marked = b"\x91" * MSGPACK_DEPTH + b"\xd4\xff\x05"
    assert pack_depth(unpack(marked)) == MSGPACK_DEPTH
    siblings = b"\xdc\x04\x00" + b"\x91\x91\xc0" * 1024
    assert skip(siblings) == skip(bytearray(siblings)) == len(siblings)


def test_a_stack_that_is_nearly_full_is_no_accident() -> None:
    """Where Python's own stack has no room left for a nested value, that is our error too."""
    marked = b"\x91" * 400 + b"\xd4\xff\x05"
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 200)
    try:
        with pytest.raises(DecodeError, match="RecursionError"):
            unpack(marked)
    finally:
        sys.setrecursionlimit(limit)
    assert pack_depth(unpack(marked)) == 400


def pack_depth(value: Any) -> int:
    """How many non-empty containers are in one another."""
    depth = 0
    while isinstance(value, list | dict) and value:
        depth += 1
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return depth


@pytest.mark.parametrize("count", [2**16 - 1, 2**16, 2**32 - 1])
@pytest.mark.parametrize("first", [0xDC, 0xDD, 0xDE, 0xDF])
def test_declared_counts_cost_nothing(first: int, count: int) -> None:
    """A count that the bytes cannot hold is refused before anything is taken for it."""
    width = 2 if first in (0xDC, 0xDE) else 4
    bomb = bytes((first,)) + (count % (1 << 8 * width)).to_bytes(width, "big") + b"\xc0" * 5
    if count % (1 << 8 * width):
        with pytest.raises(DecodeError):
            unpack(bomb)


def test_nested_counts_cost_nothing() -> None:
    """Many arrays that each declare as many items as there are bytes are refused quickly."""
    size = 200_000
    bomb = b"".join(b"\xdd" + (size - 5 * i).to_bytes(4, "big") for i in range(size // 5))
    with pytest.raises((DecodeError, LimitExceeded)):
        unpack(bomb)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({1, 2}, TypeError),
        (object(), TypeError),
        (2**64, OverflowError),
        (-(2**63) - 1, OverflowError),
        (Decimal("NaN"), ValueError),
        (Decimal("Infinity"), ValueError),
        (Decimal(10**38), ValueError),
        (Decimal("1E+77"), ValueError),
        (Decimal("1E-77"), ValueError),
        ([MapPairs([([1], {1, 2})])], TypeError),
    ],
)
def test_values_without_a_form(value: Any, error: type[Exception]) -> None:
    """What MsgPack cannot hold is refused; the packer works on afterwards."""
    one = packer()
    with pytest.raises(error):
        one(value)
    with pytest.raises(error):
        pack([value])
    assert one([1]) == b"\x91\x01"


def test_too_deep_to_pack() -> None:
    """A value nested without end is refused."""
    value: Any = []
    for _ in range(2000):
        value = [value]
    with pytest.raises(ValueError, match="recursion"):
        pack(value)


def test_extension_types() -> None:
    """Any type from -128 to 127; an Ext is what msgpack's own ExtType is, and equal to it."""
    assert Ext(5, b"x") == (5, b"x")
    assert Ext(5, b"x").code == 5
    for code in (-129, 128):
        with pytest.raises(ValueError, match="extension type"):
            Ext(code, b"")


def test_map_pairs() -> None:
    """A map that no dict holds compares by its pairs, in order."""
    one = MapPairs([([1], 2), (3, 4)])
    assert one == MapPairs([([1], 2), (3, 4)])
    assert one != MapPairs([(3, 4), ([1], 2)])
    assert one != {3: 4}
    assert hash(one) == hash(MapPairs([([1], 2)]))
    assert repr(one) == "MapPairs((([1], 2), (3, 4)))"


@given(decimals())
def test_decimals_keep_their_scale(value: Decimal) -> None:
    """Digits, sign and scale of a decimal come back."""
    assert decode_decimal(encode_decimal(value)).as_tuple() == value.as_tuple()


@given(st.integers(0, 2**64 - 1))
def test_uint_round_trip(value: int) -> None:
    """Shortest form, as msgpack writes it, and back, from any buffer and offset."""
    data = encode_uint(value)
    assert data == pack(value)
    assert decode_uint(data, 0) == (value, len(data))
    assert decode_uint(memoryview(b"\xc0" + data), 1) == (value, 1 + len(data))
    assert all(decode_uint(data[:size], 0) is None for size in range(len(data)))


@pytest.mark.parametrize("value", [-1, 2**64])
def test_uint_out_of_range(value: int) -> None:
    """There is no unsigned form outside of 0 … 2^64-1."""
    with pytest.raises(OverflowError):
        encode_uint(value)


@pytest.mark.parametrize("first", [*range(0x80, 0xCC), *range(0xD0, 0x100)])
def test_what_is_no_uint(first: int) -> None:
    """Signed and other forms are no unsigned integers, positive or not."""
    assert decode_uint(bytes((first,)) + bytes(8), 0) is None


@pytest.mark.parametrize("count", [0, 15, 16, 65535, 65536])
def test_array_header(count: int) -> None:
    """The header is what stands before the items of an array."""
    assert pack([None] * count) == encode_array_header(count) + b"\xc0" * count


def test_mutated_values_are_values_or_errors() -> None:
    """Damaged values are read or refused by our errors; unpack and skip agree on which."""
    random = Random(41)
    seeds = [bytes.fromhex(data) for data, _ in VECTORS]
    seeds += [body for row in sample(GOOD[1]).spaces.values() for body in row[:20]]
    read = 0
    for _ in range(20_000):
        data = mutate(random, random.choice(seeds))
        try:
            unpack_at(data, 0)
        except (DecodeError, LimitExceeded):
            continue
        read += 1
        assert skip(data) == skip(bytearray(data)) <= len(data)
    assert read > 2_000


def test_nan_survives() -> None:
    """NaN is a value too."""
    assert math.isnan(unpack(pack(math.nan)))


@pytest.mark.parametrize("name", GOOD)
def test_tuples_of_the_samples(name: str) -> None:
    """Every tuple that the real program stored unpacks and packs to its bytes again."""
    count = 0
    for tuples in sample(name).spaces.values():
        for data in tuples:
            value = unpack(data)
            assert isinstance(value, list)
            assert pack(value) == data
            count += 1
    assert count > 4
