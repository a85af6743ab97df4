"""Runs of tuples: where they begin, whether they fit, and their keys by the kernel."""

from __future__ import annotations

from array import array
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from logweir.errors import RequestError
from logweir.limits import MSGPACK_DEPTH, TUPLE_BYTES
from logweir.store.schema.bulk import KeyPlan, pack_tuples, split_tuples
from logweir.store.schema.definition import FieldDef, IndexDef, IndexType, PartDef, SpaceDef
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.keys import index_keys
from logweir.wal.mp import pack, unpack

SPACE = SpaceDef(
    512,
    1,
    "t",
    fields=(
        FieldDef("id", FieldType.UNSIGNED),
        FieldDef("s", FieldType.STRING),
        FieldDef("n", FieldType.NUMBER, is_nullable=True),
    ),
).with_indexes(
    (
        IndexDef(512, 0, "p", IndexType.TREE, (PartDef(0, FieldType.UNSIGNED),)),
        IndexDef(512, 1, "s", IndexType.TREE, (PartDef(1, FieldType.STRING),), is_unique=False),
        IndexDef(512, 2, "n", IndexType.TREE, (PartDef(2, FieldType.NUMBER, is_nullable=True),)),
        IndexDef(
            512,
            3,
            "m",
            IndexType.TREE,
            (PartDef(4, FieldType.UNSIGNED, path="[*]"),),
            is_unique=False,
        ),
    )
)
FLAT = SPACE.with_indexes(SPACE.indexes[:3])

TUPLES = [
    pack([1, "a"]),
    pack([2, "b\0", 1.5, None, [1, 2, 1]]),
    pack([3, "", Decimal("2.50"), {}, []]),
    pack([4, "d", 2**60, 1, [7]]),
    pack([5, "e", None]),
]
PACKED = b"".join(TUPLES)


def test_values_are_split_where_they_end() -> None:
    """Values one behind the other, or in an array, are found with their boundaries."""
    bounds = split_tuples(PACKED)
    assert [PACKED[a:b] for a, b in pairwise(bounds)] == TUPLES
    bounds = split_tuples(b"\x95" + PACKED, is_array=True)
    assert [(b"\x95" + PACKED)[a:b] for a, b in pairwise(bounds)] == TUPLES
    assert list(split_tuples(b"")) == [0]
    assert list(split_tuples(b"\x90", is_array=True)) == [1]
    many = pack(7) * 5000
    assert list(split_tuples(many)) == list(range(5001))


def test_cut_and_malformed_runs_are_refused() -> None:
    """A run cut anywhere but between values, or with a byte that is none, is refused."""
    ends = set(split_tuples(PACKED))
    for end in range(len(PACKED)):
        if end in ends:
            assert split_tuples(PACKED[:end])[-1] == end
            continue
        with pytest.raises(RequestError) as caught:
            split_tuples(PACKED[:end])
        assert caught.value.code == 20
    for wrong in (b"\xc1", b"\x95" + PACKED + b"\x01", b"\x96" + PACKED):
        with pytest.raises(RequestError):
            split_tuples(wrong, is_array=wrong != b"\xc1")
    with pytest.raises(RequestError) as caught:
        split_tuples(b"\x81\x01\x02", is_array=True)
    assert caught.value.code == 22


def test_nesting_is_limited() -> None:
    """The deepest value passes, one level more is refused without recursion."""
    deepest = b"\x91" * MSGPACK_DEPTH + b"\x01"
    assert split_tuples(deepest)[-1] == len(deepest)
    with pytest.raises(RequestError):
        split_tuples(b"\x91" + deepest)
    nested: Any = unpack(deepest)
    packed = b"\x92\x01\x02" + deepest
    assert pack_tuples([(1, 2), nested]) == (packed, array("Q", (0, 3, len(packed))))
    with pytest.raises(RequestError):
        pack_tuples([(1, 2), [nested]])


@pytest.mark.parametrize("space", [SPACE, FLAT], ids=["with a path", "flat"])
@pytest.mark.parametrize("check", [True, False])
def test_keys_are_those_of_the_ordinary_path(space: SpaceDef, check: bool) -> None:
    """For every index and tuple, alone or in a run, the keys of `keys.index_keys`."""
    bounds = split_tuples(PACKED)
    for index in space.indexes:
        plan = KeyPlan(space, index, check=check)
        assert (plan.table is not None) == (
            not index.is_multikey and not (check and space is SPACE)
        )
        expected = [index_keys(one, index) for one in TUPLES]
        assert [plan.key(one) for one in TUPLES] == expected
        keys = plan.keys(PACKED, bounds)
        flat = [key for some in expected for key in some]
        assert [keys[number] for number in range(len(keys))] == flat
        if index.is_multikey:
            assert keys.rows is not None
            assert list(keys.rows) == [0, 0, 2, 2, 3, 3]
        else:
            assert keys.rows is None


def test_the_first_wrong_tuple_of_a_run_is_named() -> None:
    """The error is that of the ordinary check, with the number of the tuple."""
    wrong = [*TUPLES[:2], pack([-1, "x"]), pack(["y"])]
    packed = b"".join(wrong)
    for index in FLAT.indexes:
        plan = KeyPlan(FLAT, index)
        with pytest.raises(RequestError) as caught:
            plan.keys(packed, split_tuples(packed))
        assert caught.value.code == 23
        assert caught.value.details["row"] == 2
        with pytest.raises(RequestError) as caught:
            plan.key(pack([1]))
        assert caught.value.code == 39


def test_only_part_of_a_buffer_may_be_a_run() -> None:
    """Boundaries need not begin at 0 nor reach the end; beyond it they are refused."""
    plan = KeyPlan(FLAT, FLAT.indexes[0])
    bounds = split_tuples(PACKED)
    middle = bounds[1:4]
    keys = plan.keys(PACKED, middle)
    assert [keys[number] for number in range(len(keys))] == [
        plan.key(one)[0] for one in TUPLES[1:3]
    ]
    with pytest.raises(RequestError):
        plan.keys(PACKED, array("Q", (0, len(PACKED) + 1)))
    with pytest.raises(RequestError):
        plan.keys(PACKED, array("Q", (5, 2)))


def test_long_keys_get_room() -> None:
    """Strings of zeros, whose keys are twice as long, do not overrun the buffer."""
    long = [pack([number, "\0" * 3000]) for number in range(50)]
    packed = b"".join(long)
    index = FLAT.indexes[1]
    keys = KeyPlan(FLAT, index).keys(packed, split_tuples(packed))
    assert [keys[number] for number in range(50)] == [index_keys(one, index)[0] for one in long]
    assert KeyPlan(FLAT, index).key(long[3]) == index_keys(long[3], index)


def test_the_size_limit_is_the_same_in_a_run() -> None:
    """The largest tuple passes, one byte more is refused with 110."""
    plan = KeyPlan(FLAT, FLAT.indexes[0])
    extra = FLAT.format.offsets_bytes + 14 + len(pack([1, "x" * 70000])) - 70000
    assert len(plan.key(pack([1, "x" * (TUPLE_BYTES - extra)]))) == 1
    with pytest.raises(RequestError) as caught:
        plan.key(pack([1, "x" * (TUPLE_BYTES - extra + 1)]))
    assert caught.value.code == 110


def test_parts_far_back_go_the_ordinary_way() -> None:
    """An index beyond the fields that the kernel notes still has its keys."""
    far = SpaceDef(512, 1, "t").with_indexes(
        (
            IndexDef(512, 0, "p", IndexType.TREE, (PartDef(0, FieldType.UNSIGNED),)),
            IndexDef(512, 1, "f", IndexType.TREE, (PartDef(70, FieldType.UNSIGNED),)),
        )
    )
    data = pack(list(range(80)))
    plan = KeyPlan(far, far.indexes[1])
    assert plan.table is None
    assert plan.key(data) == index_keys(data, far.indexes[1])
    assert KeyPlan(far, far.indexes[0]).table is not None
