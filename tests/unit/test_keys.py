"""Memcomparable keys: their bytes, their order, and the keys of requests."""

from __future__ import annotations

import math
import struct
import uuid
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import sample

from logweir.errors import RequestError
from logweir.store.schema.definition import CollationDef, IndexDef, IndexType, PartDef
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.keys import exact_key, index_keys, number_key, search_key, tuple_key
from logweir.store.schema.schema import Schema
from logweir.wal.mp import pack


def index(
    *parts: PartDef, is_unique: bool = True, kind: IndexType = IndexType.TREE, id: int = 1
) -> IndexDef:
    """A secondary index with a primary key of field 0, unsigned."""
    primary = IndexDef(512, 0, "p", IndexType.TREE, (PartDef(0, FieldType.UNSIGNED),))
    return IndexDef(512, id, "i", kind, parts, is_unique).with_primary(primary)


def key_of(value: Any, kind: FieldType) -> bytes:
    """The key of one value in a part of that type; bytes are taken as MsgPack."""
    raw = value if isinstance(value, bytes) else pack(value)
    return tuple_key(b"\x91" + raw, index(PartDef(0, kind)))


@pytest.mark.parametrize(
    ("value", "kind", "key"),
    [
        (0, "unsigned", "31 0000000000000000"),
        (2**64 - 1, "unsigned", "31 ffffffffffffffff"),
        (-1, "integer", "30 ffffffffffffffff"),
        (-(2**63), "integer", "30 8000000000000000"),
        (bytes.fromhex("d005"), "integer", "31 0000000000000005"),
        (False, "boolean", "20 00"),
        (True, "scalar", "20 01"),
        ("", "string", "40 0000"),
        ("a\0b", "string", "40 6100ff62 0000"),
        (pack(b"\0\xff"), "varbinary", "50 00ffff 0000"),
        (uuid.UUID(int=1), "uuid", "60 00000000000000000000000000000001"),
        (1, "number", "38 bff0000000000000 00"),
        (1.0, "double", "38 bff0000000000000 00"),
        (Decimal("1.00"), "decimal", "38 bff0000000000000 00"),
        (-1, "number", "38 400fffffffffffff 00"),
        (0, "number", "38 8000000000000000 00"),
        (-0.0, "number", "38 8000000000000000 00"),
        (math.inf, "number", "38 fff0000000000000 00"),
        (-math.inf, "number", "38 000fffffffffffff 00"),
        (math.nan, "number", "38 0000000000000001 00"),
        (bytes.fromhex("cb7ff0000000000001"), "number", "38 0000000000000000 00"),
        (bytes.fromhex("ca7f800001"), "number", "38 0000000000000001 00"),
        (bytes.fromhex("ca00000001"), "number", "38 b6a0000000000000 00"),
        (2**53 + 1, "number", "38 c340000000000000 01 8f 5b08145d374b0a5e 00"),
        (-(2**53) - 1, "number", "38 3cbffffffffffffe 01 70 a4f7eba2c8b4f5a1 ff"),
        (Decimal("0.1"), "number", "38 bfb999999999999a 00"),
        (0.1, "number", "38 bfb999999999999a 00"),
    ],
)
def test_keys_are_as_specified(value: Any, kind: str, key: str) -> None:
    """The bytes of the table in `store.schema.keys`."""
    assert key_of(value, FieldType.parse(kind) or FieldType.ANY) == bytes.fromhex(key)


def exact(value: int | Decimal | float) -> Decimal:
    """What a number counts as: see `store.schema.keys`."""
    if isinstance(value, float):
        whole = value.is_integer() and abs(value) < 2.0**64
        return Decimal(int(value)) if whole else Decimal(repr(value))
    return Decimal(value)


def decimals() -> st.SearchStrategy[Decimal]:
    """Decimals that Tarantool has: 38 digits, scale of -37 to 38."""
    return st.builds(
        lambda sign, digits, exponent: Decimal((sign, tuple(map(int, str(digits))), exponent)),
        st.integers(0, 1),
        st.one_of(st.integers(0, 99), st.integers(0, 10**38 - 1)),
        st.integers(-38, 37),
    )


numbers = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.integers(2**53 - 3, 2**53 + 3),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1000, 1000, width=32),
    decimals(),
)


def near(value: int | float | Decimal) -> st.SearchStrategy[Any]:
    """The number again, and those beside it in other forms."""
    as_float = float(value)
    found: list[Any] = [value, as_float, math.nextafter(as_float, math.inf)]
    if abs(as_float) < 2**60:
        found += [int(as_float), int(as_float) + 1, Decimal(int(as_float))]
    if 1e-10 < abs(as_float) < 1e15:
        found.append(Decimal(f"{as_float:.15g}"))
    return st.sampled_from(
        [one for one in found if not isinstance(one, float) or math.isfinite(one)]
    )


@given(numbers, st.data())
def test_numbers_of_all_kinds_sort_by_value(one: Any, data: st.DataObject) -> None:
    """Keys compare as the numbers do, and are equal where they are, integer, float or decimal."""
    other = data.draw(st.one_of(numbers, near(one)))
    a, b = key_of(one, FieldType.NUMBER), key_of(other, FieldType.NUMBER)
    x, y = exact(one), exact(other)
    assert (a < b, a == b) == (x < y, x == y)
    assert not b.startswith(a) or a == b


@given(st.lists(st.integers(-(2**63), 2**64 - 1), min_size=2, max_size=2))
def test_integers_sort_by_value(pair: list[int]) -> None:
    """Keys of integer parts compare as the integers do."""
    a, b = (key_of(one, FieldType.INTEGER) for one in pair)
    assert (a < b) == (pair[0] < pair[1])


@given(st.lists(st.binary(max_size=6), min_size=2, max_size=2))
def test_bytes_sort_by_value_and_end_where_they_end(pair: list[bytes]) -> None:
    """Keys of strings compare as the bytes do; no key begins with another."""
    a, b = (key_of(pack(one), FieldType.VARBINARY) for one in pair)
    assert (a < b) == (pair[0] < pair[1])
    assert a == b or not b.startswith(a)


def test_classes_stand_in_tarantools_order() -> None:
    """nil, booleans, numbers, strings, binaries, in a scalar part that may be nil."""
    part = PartDef(0, FieldType.SCALAR, is_nullable=True)
    values = [None, False, True, -math.inf, -5, 0.5, 7, "", "a", b"", b"\0"]
    keys = [tuple_key(pack([value]), index(part)) for value in values]
    assert all(one < other for one, other in pairwise(keys))


def test_a_float32_is_the_number_that_it_is() -> None:
    """A 32-bit float has the key of the 64-bit one that equals it, subnormal ones too."""
    for bits in (0, 1, 0x7FFFFF, 0x800000, 0x3DCCCCCD, 0x7F7FFFFF, 0x80000001, 0xFF800000):
        narrow = b"\xca" + bits.to_bytes(4, "big")
        (value,) = struct.unpack(">f", narrow[1:])
        assert key_of(narrow, FieldType.NUMBER) == key_of(value, FieldType.NUMBER)


def test_decimals_that_tarantool_cannot_have_are_refused() -> None:
    """A decimal with a scale out of range, or malformed, gets 20."""
    for payload in ("c70301271c0c", "d501da1c", "d4011c", "d50100aa"):
        data = b"\x91" + bytes.fromhex(payload)
        with pytest.raises(RequestError) as caught:
            tuple_key(data, index(PartDef(0, FieldType.DECIMAL)))
        assert caught.value.code == 20


def test_keys_of_large_decimals() -> None:
    """Thirty-eight digits and the largest exponents have keys, each its own."""
    values = [Decimal("9" * 38 + f"E{shift}") for shift in (-38, -1, 0, 1, 37)]
    values += [Decimal("1E-38"), Decimal("1" + "0" * 37), Decimal("1" + "0" * 36 + "1")]
    keys = {number_key(one) for one in values} | {number_key(one.copy_negate()) for one in values}
    assert len(keys) == 2 * len(values)


# --- entries --------------------------------------------------------------------------------------
def test_unique_entries_are_the_key_alone() -> None:
    """A unique index keeps a tuple under its key, another index under key and primary key."""
    part = PartDef(1, FieldType.STRING)
    data = pack([7, "a"])
    own = tuple_key(data, index(part))
    primary = key_of(7, FieldType.UNSIGNED)
    assert index_keys(data, index(part)) == [own]
    assert index_keys(data, index(part, is_unique=False)) == [own + primary]


def test_nil_is_not_equal_to_nil() -> None:
    """In a unique index, tuples with nil or without the field are told apart by primary key."""
    place = index(PartDef(1, FieldType.STRING, is_nullable=True))
    nil, absent, other = pack([1, None]), pack([1]), pack([2])
    assert index_keys(nil, place) == index_keys(absent, place)
    assert index_keys(nil, place) != index_keys(other, place)
    assert index_keys(nil, place)[0][:1] == b"\x10"


def test_multikey_entries_are_one_per_different_element() -> None:
    """Each element makes an entry, equal ones make one; an absent or empty array makes none."""
    place = index(PartDef(1, FieldType.STRING, path="[*].k"), is_unique=False)
    rows = [[1, [{"k": "b"}, {"k": "a"}, {"k": "b", "z": 1}]], [1, []], [1]]
    keys = [index_keys(pack(row), place) for row in rows]
    assert [len(one) for one in keys] == [2, 0, 0]
    assert keys[0][0] > keys[0][1]


def test_paths_lead_to_their_values() -> None:
    """Map keys, elements and integer map keys are followed; nothing there is nil."""
    place = index(
        PartDef(1, FieldType.UNSIGNED, is_nullable=True, path='a["b"][2]'),
        PartDef(1, FieldType.UNSIGNED, is_nullable=True, path="[3]"),
    )
    whole = tuple_key(pack([1, {"a": {"b": [4, 5]}, 3: 6}]), place)
    assert whole == key_of(5, FieldType.UNSIGNED) + key_of(6, FieldType.UNSIGNED)
    assert tuple_key(pack([1, {"a": {"b": [4]}}]), place) == b"\x10\x10"
    assert tuple_key(pack([1]), place) == b"\x10\x10"


def test_primary_parts_with_another_collation_are_added() -> None:
    """A part that sorts by another rule than the primary one does not stand for it."""
    ci = CollationDef(2, "unicode_ci", kind="ICU", options=(("strength", "primary"),))
    primary = IndexDef(512, 0, "p", IndexType.TREE, (PartDef(0, FieldType.STRING),))
    loose = IndexDef(
        512, 1, "i", IndexType.TREE, (PartDef(0, FieldType.STRING, collation=ci),), False
    )
    strict = IndexDef(512, 1, "i", IndexType.TREE, (PartDef(0, FieldType.STRING),), False)
    assert len(loose.with_primary(primary).sort_parts) == 2
    assert len(strict.with_primary(primary).sort_parts) == 1


def test_a_collation_without_icu_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PyICU cannot be imported, the collation is named and the remedy told."""
    monkeypatch.setitem(__import__("sys").modules, "icu", None)
    odd = CollationDef(999, "unicode_nowhere", kind="ICU", locale="xx_NOWHERE")
    with pytest.raises(RequestError) as caught:
        tuple_key(pack(["a"]), index(PartDef(0, FieldType.STRING, collation=odd)))
    assert caught.value.code == 5
    assert "unicode_nowhere" in caught.value.message
    assert caught.value.hint


# --- requests -------------------------------------------------------------------------------------
PARTS = (PartDef(0, FieldType.UNSIGNED), PartDef(1, FieldType.STRING, is_nullable=True))


@pytest.mark.parametrize(
    ("key", "kind", "code", "message"),
    [
        ([1, "a", 2], IndexType.TREE, 31, "Invalid key part count (expected [0..2], got 3)"),
        (
            ["a"],
            IndexType.TREE,
            18,
            "Supplied key type of part 0 does not match index part type: expected unsigned",
        ),
        (
            [1, 2],
            IndexType.TREE,
            18,
            "Supplied key type of part 1 does not match index part type: expected string",
        ),
        (
            [1],
            IndexType.HASH,
            136,
            "HASH index  does not support selects via a partial key (expected 2 parts, got 1). "
            "Please Consider changing index type to TREE.",
        ),
        ({}, IndexType.TREE, 22, "Tuple/Key must be MsgPack array"),
    ],
)
def test_search_keys_are_checked(key: Any, kind: IndexType, code: int, message: str) -> None:
    """Wrong keys of a selection get Tarantool's errors."""
    with pytest.raises(RequestError) as caught:
        search_key(pack(key), index(*PARTS, kind=kind))
    assert (caught.value.code, caught.value.message) == (code, message)


def test_search_keys_begin_the_keys_of_what_they_select() -> None:
    """A partial key is the beginning of the tuple's key, an empty one of all."""
    place = index(*PARTS)
    whole = tuple_key(pack([1, "ab"]), place)
    assert search_key(pack([]), place) == (b"", 0)
    found, count = search_key(pack([1]), place)
    assert (whole.startswith(found), count) == (True, 1)
    assert search_key(pack([1, "ab"]), place) == (whole, 2)
    assert not whole.startswith(search_key(pack([1, "a"]), place)[0])
    assert search_key(pack([1, None]), place)[0].endswith(b"\x10")
    assert search_key(pack([]), index(*PARTS, kind=IndexType.HASH)) == (b"", 0)
    with pytest.raises(RequestError):
        search_key(pack([]), index(*PARTS, kind=IndexType.HASH), all_allowed=False)


def test_exact_keys_are_whole_and_without_nil() -> None:
    """A request for one tuple needs each part; nil names no tuple."""
    place = index(*PARTS)
    assert exact_key(pack([1, "a"]), place) == tuple_key(pack([1, "a"]), place)
    for key, code in (([1], 19), ([], 19), ([1, "a", 3], 19), ([1, None], 18)):
        with pytest.raises(RequestError) as caught:
            exact_key(pack(key), place)
        assert caught.value.code == code
    whole = pack([1, "abc"])
    for end in range(len(whole)):
        with pytest.raises(RequestError):
            exact_key(whole[:end], place)


def test_a_real_store_iterates_in_the_order_of_our_keys() -> None:
    """All tuples of a real store's TREE spaces sort as that program iterated them."""
    found = sample("02-spaces")
    schema = Schema()
    for row in found.file("00000000000000001356.snap").rows:
        body = row["body"]
        data = bytes.fromhex(body["tuple_mp"])
        schema.apply(body["space_id"], None, data, is_insert=True)
    checked = 0
    for space_id, tuples in found.spaces.items():
        primary = schema.space(space_id).primary
        assert primary is not None
        if any(part.order for part in primary.parts):
            continue
        keys = [tuple_key(one, primary) for one in tuples]
        assert len(set(keys)) == len(keys), schema.space(space_id).name
        if primary.type is IndexType.TREE:
            assert keys == sorted(keys), schema.space(space_id).name
            checked += 1
    assert checked == 14
