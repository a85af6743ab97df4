"""Formats of tuples: what they accept, and how they refuse."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

import pytest

from logweir.errors import ErrorCode, RequestError
from logweir.limits import TUPLE_BYTES
from logweir.store.schema.definition import FieldDef, PartDef
from logweir.store.schema.fieldtype import FieldType, can_hold
from logweir.store.schema.format import TupleFormat
from logweir.wal.mp import Ext, pack

VALUES: dict[str, Any] = {
    "nil": None,
    "bool": True,
    "uint": 7,
    "int": -7,
    "str": "s",
    "bin": b"b",
    "array": [1],
    "map": {"a": 1},
    "double": 1.0,
    "decimal": Decimal("1.5"),
    "uuid": uuid.UUID(int=5),
    "ext": Ext(8, b"x"),
    "ext0": Ext(0, b"x"),
    "ext-": Ext(-1, b"x"),
}
ADMITTED = {
    "any": set(VALUES) - {"ext0", "ext-"},
    "unsigned": {"uint"},
    "string": {"str"},
    "number": {"uint", "int", "double", "decimal"},
    "double": {"double"},
    "integer": {"uint", "int"},
    "boolean": {"bool"},
    "varbinary": {"bin"},
    "scalar": {"uint", "int", "double", "decimal", "str", "bin", "bool"},
    "decimal": {"decimal"},
    "uuid": {"uuid"},
    "array": {"array"},
    "map": {"map"},
}


def refusal(format_: TupleFormat, data: bytes) -> tuple[int, str]:
    """The error that a tuple gets."""
    with pytest.raises(RequestError) as caught:
        format_.check(data)
    return int(caught.value.code), caught.value.message


@pytest.mark.parametrize("kind", FieldType)
def test_types_admit_their_values_only(kind: FieldType) -> None:
    """Each type takes the kinds of values that 2.6 takes, and nil where it is nullable."""
    plain = TupleFormat([FieldDef("f", kind)], [])
    nullable = TupleFormat([FieldDef("f", kind, is_nullable=True)], [])
    for name, value in VALUES.items():
        data = pack([value])
        for format_, may_be_nil in ((plain, False), (nullable, True)):
            if name in ADMITTED[kind.label] or (name == "nil" and may_be_nil):
                format_.check(data)
            else:
                assert refusal(format_, data) == (
                    23,
                    "Tuple field 1 type does not match one required by operation: "
                    f"expected {kind.label}",
                )


def test_a_float32_is_a_number_but_no_double() -> None:
    """A 32-bit float is taken by number and scalar, not by double."""
    data = bytes.fromhex("91ca3f800000")
    TupleFormat([FieldDef("f", FieldType.NUMBER)], []).check(data)
    assert refusal(TupleFormat([FieldDef("f", FieldType.DOUBLE)], []), data)[0] == 23


def test_a_missing_field_is_named() -> None:
    """The lowest missing field that may not be nil is told, after types are checked."""
    format_ = TupleFormat(
        [FieldDef("a", FieldType.UNSIGNED), FieldDef("b", FieldType.STRING, True), FieldDef("c")],
        [],
    )
    assert refusal(format_, pack([1])) == (
        39,
        "Tuple field 3 required by space format is missing",
    )
    assert refusal(format_, pack(["x"]))[0] == 23
    format_.check(pack([1, None, None, 4]))


def test_field_count_is_exact_where_asked() -> None:
    """A count below and one above are refused, and before anything else."""
    format_ = TupleFormat([FieldDef("a", FieldType.UNSIGNED)], [], 2)
    format_.check(pack([1, 2]))
    for wrong in (["x"], [1, 2, 3]):
        assert refusal(format_, pack(wrong)) == (
            38,
            f"Tuple field count {len(wrong)} does not match space field count 2",
        )


def test_size_limit_counts_header_and_offsets() -> None:
    """The largest tuple passes, one byte more is refused; an offset table takes room too."""
    format_ = TupleFormat([FieldDef("a", FieldType.UNSIGNED), FieldDef("b")], [])
    room = TUPLE_BYTES - 14 - len(pack([1, "x" * 70000])) + 70000
    format_.check(pack([1, "x" * room]))
    assert refusal(format_, pack([1, "x" * (room + 1)])) == (
        110,
        f"Failed to allocate {TUPLE_BYTES + 1} bytes for tuple: tuple is too large. Check "
        "'memtx_max_tuple_size' configuration option.",
    )
    indexed = TupleFormat([FieldDef("a"), FieldDef("b")], [[PartDef(1, FieldType.STRING)]])
    assert indexed.offsets_bytes == 4
    for parts, count in (
        ([PartDef(0, FieldType.STRING)], 0),
        ([PartDef(1, FieldType.STRING), PartDef(0, FieldType.STRING)], 1),
        ([PartDef(0, FieldType.STRING, path="[1]")], 1),
    ):
        assert TupleFormat([], [parts]).offsets_bytes == 4 * count
    assert refusal(indexed, pack([1, "x" * room]))[0] == 110


def test_what_is_no_tuple_is_refused() -> None:
    """A value that is no array gets 22; bytes that are not one whole value get 20."""
    format_ = TupleFormat([], [])
    assert refusal(format_, pack({})) == (22, "Tuple/Key must be MsgPack array")
    whole = pack([1, "abc", [2, {"a": 3}]])
    for end in range(len(whole)):
        assert refusal(format_, whole[:end])[0] == 20
    assert refusal(format_, whole + b"\0")[0] == 20
    assert refusal(format_, b"\x92\x01\xc1")[0] == 20


def test_paths_require_what_is_on_the_way() -> None:
    """Below a path's root maps and arrays are required, and the place itself where not nullable."""
    parts = [PartDef(1, FieldType.STRING, path="x.y"), PartDef(2, FieldType.UNSIGNED, path="[2]")]
    format_ = TupleFormat([], [parts])
    format_.check(pack([1, {"x": {"y": "s"}}, [None, 5]]))
    for wrong, code, label in (
        ([1, 2, [0, 1]], 23, "2"),
        ([1, {}, [0, 1]], 39, '[2]["x"]["y"]'),
        ([1, {"x": []}, [0, 1]], 23, '[2]["x"]'),
        ([1, {"x": {"y": 1}}, [0, 1]], 23, '[2]["x"]["y"]'),
        ([1, {"x": {"y": ""}}, [0]], 39, "[3][2]"),
    ):
        got, message = refusal(format_, pack(wrong))
        assert (got, message.split()[2]) == (code, label)


def test_each_element_of_a_multikey_array_is_checked() -> None:
    """An element that lacks a part is refused; an array that is absent or empty is not."""
    format_ = TupleFormat([], [[PartDef(1, FieldType.STRING, path="[*].k")]])
    for right in ([1], [1, []], [1, [{"k": "a"}, {"k": "b", "z": 1}]]):
        format_.check(pack(right))
    assert refusal(format_, pack([1, [{"k": "a"}, {}]])) == (
        39,
        'Tuple field [2][*]["k"] required by space format is missing',
    )
    assert refusal(format_, pack([1, [{"k": "a"}, 3]]))[0] == 23


@pytest.mark.parametrize(
    ("fields", "keys", "code"),
    [
        ([FieldDef("a", FieldType.STRING)], [[PartDef(0, FieldType.UNSIGNED)]], 27),
        ([], [[PartDef(0, FieldType.STRING)], [PartDef(0, FieldType.UNSIGNED)]], 24),
        ([], [[PartDef(0, FieldType.STRING)], [PartDef(0, FieldType.STRING, path="a")]], 24),
        (
            [],
            [
                [PartDef(0, FieldType.STRING, path="[1]")],
                [PartDef(0, FieldType.STRING, path="[*]")],
            ],
            194,
        ),
        (
            [FieldDef("a", nullable_action="abort")],
            [[PartDef(0, FieldType.STRING, nullable_action="fail")]],
            162,
        ),
        ([FieldDef("a"), FieldDef("a")], [], 149),
    ],
)
def test_contradicting_definitions_are_refused(
    fields: list[FieldDef], keys: list[list[PartDef]], code: int
) -> None:
    """Fields and index parts that exclude each other make no format."""
    with pytest.raises(RequestError) as caught:
        TupleFormat(fields, keys)
    assert caught.value.code == code


def test_the_stricter_type_holds() -> None:
    """A field takes the type of an index part that is narrower than its own."""
    format_ = TupleFormat(
        [FieldDef("a", FieldType.SCALAR, is_nullable=True)], [[PartDef(0, FieldType.STRING)]]
    )
    assert format_.top[0].type is FieldType.STRING
    assert refusal(format_, pack([None]))[0] == 23


def test_formats_know_when_old_tuples_surely_fit() -> None:
    """Wider types, more nullable fields and unnamed tails fit; the reverse needs a look."""
    old = TupleFormat([FieldDef("a", FieldType.UNSIGNED), FieldDef("b", FieldType.STRING)], [])
    wider = TupleFormat(
        [FieldDef("a", FieldType.NUMBER), FieldDef("b", FieldType.SCALAR, is_nullable=True)], []
    )
    longer = TupleFormat(
        [FieldDef("a", FieldType.UNSIGNED), FieldDef("b"), FieldDef("c", is_nullable=True)], []
    )
    assert wider.accepts_all_of(old)
    assert longer.accepts_all_of(old)
    assert not old.accepts_all_of(wider)
    assert not TupleFormat([*map(FieldDef, "abc")], []).accepts_all_of(old)
    assert not TupleFormat([], [], 2).accepts_all_of(TupleFormat([], []))


def test_holding_a_type_is_reflexive_and_transitive() -> None:
    """`can_hold` is an order, with `any` above all."""
    for one in FieldType:
        assert can_hold(one, one)
        assert can_hold(FieldType.ANY, one)
        for other in FieldType:
            for third in FieldType:
                if can_hold(one, other) and can_hold(other, third):
                    assert can_hold(one, third)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("UNSIGNED", "unsigned"), ("num", "unsigned"), ("nu", "unsigned"), ("STR", "string")],
)
def test_old_and_upper_case_names_of_types(name: str, kind: str) -> None:
    """Types are found in any case, and by the names that old snapshots use."""
    found = FieldType.parse(name)
    assert found is not None
    assert found.label == kind
    assert FieldType.parse("*") is FieldType.ANY
    assert FieldType.parse("numb") is None
    assert ErrorCode.FIELD_TYPE == 23
