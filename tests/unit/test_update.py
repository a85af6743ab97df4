"""UPDATE and UPSERT: each operator, fields and paths, several operations, errors."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from samples import sample
from support.icu import needs_icu

import logweir
from logweir.errors import ErrorCode, RequestError
from logweir.limits import UPDATE_OPERATIONS
from logweir.store.engine.request import Request
from logweir.store.engine.update import apply_update, apply_upsert, check_ops
from logweir.store.schema.definition import FieldDef, IndexDef, IndexType, PartDef, SpaceDef
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.keys import tuple_key
from logweir.store.schema.schema import Schema
from logweir.wal.mp import pack, unpack
from logweir.wal.xrow import RowType

SPACE = SpaceDef(
    512,
    1,
    "t",
    fields=(
        FieldDef("id", FieldType.UNSIGNED),
        FieldDef("name"),
        FieldDef("doc"),
        FieldDef("d", FieldType.DOUBLE, is_nullable=True),
    ),
).with_indexes((IndexDef(512, 0, "p", IndexType.TREE, (PartDef(0, FieldType.UNSIGNED),)),))


def update(old: Any, *ops: Any, base: int = 1) -> Any:
    """The tuple after an update, all as values."""
    return unpack(apply_update(pack(old), pack(list(ops)), index_base=base, space=SPACE))


def refusal(old: Any, *ops: Any, base: int = 1) -> tuple[int, str]:
    """The error of an update."""
    with pytest.raises(RequestError) as caught:
        update(old, *ops, base=base)
    return int(caught.value.code), caught.value.message


OLD = [1, "abc", {"a": {"x": 1, "y": 2}, "l": [10, 20, 30]}, 0.5, 7]


@pytest.mark.parametrize(
    ("ops", "base", "new"),
    [
        ([["=", 2, "z"]], 1, [1, "z", *OLD[2:]]),
        ([["=", 1, "z"]], 0, [1, "z", *OLD[2:]]),
        ([["=", "name", "z"]], 0, [1, "z", *OLD[2:]]),
        ([["=", "[2]", "z"]], 0, [1, "z", *OLD[2:]]),
        ([["=", -1, "z"]], 1, [*OLD[:4], "z"]),
        ([["=", 6, "z"]], 1, [*OLD, "z"]),
        ([["!", 2, "z"]], 1, [1, "z", *OLD[1:]]),
        ([["!", -1, "z"]], 1, [*OLD, "z"]),
        ([["!", -2, "z"]], 0, [*OLD[:4], "z", 7]),
        ([["!", 6, "z"]], 1, [*OLD, "z"]),
        ([["#", 2, 1]], 1, [1, *OLD[2:]]),
        ([["#", 4, 100]], 1, OLD[:3]),
        ([["#", -1, 1]], 0, OLD[:4]),
        ([["!", 2, "z"], ["=", 2, "y"]], 1, [1, "y", *OLD[1:]]),
        ([["!", 2, 5], ["+", 2, 1]], 1, [1, 6, *OLD[1:]]),
        ([["=", 2, 5], ["=", 2, 6]], 1, [1, 6, *OLD[2:]]),
        ([["=", "doc.a.x", 9]], 1, [1, "abc", {"a": {"x": 9, "y": 2}, "l": [10, 20, 30]}, 0.5, 7]),
        ([["=", "doc.b", 9]], 1, [1, "abc", {"b": 9, **OLD[2]}, 0.5, 7]),
        ([["!", "doc.l[2]", 9]], 1, [1, "abc", {"a": OLD[2]["a"], "l": [10, 9, 20, 30]}, 0.5, 7]),
        ([["=", "doc.l[4]", 9]], 0, [1, "abc", {"a": OLD[2]["a"], "l": [10, 20, 30, 9]}, 0.5, 7]),
        ([["#", "doc.l[2]", 5]], 1, [1, "abc", {"a": OLD[2]["a"], "l": [10]}, 0.5, 7]),
        ([["#", "doc.a", 1]], 1, [1, "abc", {"l": [10, 20, 30]}, 0.5, 7]),
        (
            [["+", "doc.a.x", 1], ["-", "doc['l'][3]", 1], ["=", "doc.a.y", 0]],
            1,
            [1, "abc", {"a": {"y": 0, "x": 2}, "l": [10, 20, 29]}, 0.5, 7],
        ),
    ],
)
def test_operations_change_what_they_name(ops: list[Any], base: int, new: list[Any]) -> None:
    """Numbers from either base, from the end, names and paths find their fields."""
    assert update(OLD, *ops, base=base) == new


@pytest.mark.parametrize(
    ("old", "op", "new"),
    [
        (2**63 - 1, ["+", 2, 1], 2**63),
        (-(2**63), ["+", 2, 0], -(2**63)),
        (5, ["-", 2, 7], -2),
        (5, ["+", 2, 1.5], 6.5),
        (5, ["+", 2, 0.1], 5.1),
        (0.1, ["-", 2, 0.1], 0.0),
        (1, ["+", 2, Decimal("0.10")], Decimal("1.10")),
        (0.1, ["+", 2, Decimal(1)], Decimal("1.1")),
        (Decimal("1E+5"), ["-", 2, Decimal("0.5")], Decimal("99999.5")),
        (12, ["&", 2, 10], 8),
        (12, ["|", 2, 3], 15),
        (12, ["^", 2, 10], 6),
        ("abcdef", [":", 2, 2, 2, "XY"], "aXYdef"),
        ("abcdef", [":", 2, -1, 0, "X"], "abcdefX"),
        ("abcdef", [":", 2, -3, 1, "X"], "abcdXf"),
        ("abcdef", [":", 2, 100, 1, "X"], "abcdefX"),
        ("abcdef", [":", 2, 1, -2, "X"], "Xef"),
        ("abcdef", [":", 2, 1, 100, ""], ""),
        ("abcdef", [":", 2, 3, -9, ""], "abcdef"),
    ],
)
def test_operators_compute(old: Any, op: list[Any], new: Any) -> None:
    """Each operator on values of each kind that it takes."""
    result = update([1, old], op)[1]
    assert result == new
    assert type(result) is type(new)


def test_sums_of_floats_are_narrow_where_that_is_exact() -> None:
    """A sum that 32 bits hold is written so, but in a field of type double never."""
    raw = apply_update(
        pack([1, 1, {}, 0.5]), pack([["+", 2, 0.5], ["+", 4, 1]]), index_base=1, space=SPACE
    )
    assert raw == bytes.fromhex("9401ca3fc0000080cb3ff8000000000000")
    raw = apply_update(pack([1, 0.1]), pack([["+", 2, 0.5]]), index_base=1, space=SPACE)
    assert raw[2] == 0xCB
    assert math.isinf(update([1, math.inf], ["+", 2, 1])[1])


def test_untouched_bytes_stay() -> None:
    """Wide integers, long headers and odd extensions keep their bytes next to what changes."""
    odd = bytes.fromhex("cf0000000000000005 dc0002 c3 c2 d808ff000000000000000000000000000000")
    old = b"\x95\x01\xa1a" + odd
    new = apply_update(old, pack([["=", 2, "b"]]), index_base=1, space=SPACE)
    assert new == b"\x95\x01\xa1b" + odd
    inner = b"\x93\x01\xa1a\x83\xa1x\x01\xa1w" + odd[:9] + b"\xa1v" + odd[9:14]
    new = apply_update(inner, pack([["+", "doc.x", 1]]), index_base=1, space=SPACE)
    assert new == inner.replace(b"\xa1x\x01", b"\xa1x\x02")


@pytest.mark.parametrize(
    ("ops", "error"),
    [
        ({}, (1, "Illegal parameters, update operations must be an array {{op,..}, {op,..}}")),
        ([1], (1, "Illegal parameters, update operation must be an array {op,..}")),
        (
            [[]],
            (1, "Illegal parameters, update operation must be an array {op,..}, got empty array"),
        ),
        ([[1, 2, 3]], (1, "Illegal parameters, update operation name must be a string")),
        ([["=", None, 3]], (1, "Illegal parameters, field id must be a number or a string")),
        ([["x", 2, 3]], (28, 'Unknown UPDATE operation #1: "x"')),
        (
            [["=", 2, 3], ["=", 2]],
            (28, "Unknown UPDATE operation #2: wrong number of arguments, expected 3, got 2"),
        ),
        ([["=", 0, 1]], (37, "Field 0 was not found in the tuple")),
        ([["=", 9, 1]], (37, "Field 9 was not found in the tuple")),
        ([["=", -9, 1]], (37, "Field -9 was not found in the tuple")),
        ([["!", 9, 1]], (37, "Field 9 was not found in the tuple")),
        ([["#", 9, 1]], (37, "Field 9 was not found in the tuple")),
        ([["#", 2, 0]], (29, "Field 2 UPDATE error: cannot delete 0 fields")),
        (
            [["#", "doc.a", 2]],
            (29, "Field 'doc.a' UPDATE error: can delete only 1 field from a map in a row"),
        ),
        ([["=", "zz", 1]], (201, "Field 'zz' was not found in the tuple")),
        ([["=", "doc.q.r", 1]], (201, "Field ''doc.q.r'' was not found in the tuple")),
        ([["=", "doc.[", 1]], (29, "Field 'doc.[' UPDATE error: invalid JSON in position 5")),
        ([["!", "doc.a", 1]], (29, "Field 'doc.a' UPDATE error: the key exists already")),
        ([["+", 7, 1]], (37, "Field 7 was not found in the tuple")),
        ([["+", 5, 1], ["+", 5, 1]], (29, "Field 5 UPDATE error: double update of the same field")),
        ([["=", 5, 1], ["+", 5, 1]], (29, "Field 5 UPDATE error: double update of the same field")),
        (
            [["+", "doc.a.x", 1], ["+", "doc.a.x", 1]],
            (29, "Field 'doc.a.x' UPDATE error: double update of the same field"),
        ),
        (
            [["+", "doc.a.x", 1], ["=", "doc.a", 1]],
            (29, "Field 'doc.a' UPDATE error: can not update map by non-string key"),
        ),
        (
            [["+", 2, 1]],
            (
                26,
                "Argument type in operation '+' on field 2 does not match field type: "
                "expected a number",
            ),
        ),
        (
            [["&", 5, -1]],
            (
                26,
                "Argument type in operation '&' on field 5 does not match field type: "
                "expected a positive integer",
            ),
        ),
        (
            [[":", 5, 1, 1, ""]],
            (
                26,
                "Argument type in operation ':' on field 5 does not match field type: "
                "expected a string",
            ),
        ),
        ([[":", 2, 0, 1, ""]], (25, "SPLICE error on field 2: offset is out of bound")),
        ([[":", 2, -9, 1, ""]], (25, "SPLICE error on field 2: offset is out of bound")),
        (
            [["+", 5, 2**64 - 1]],
            (95, "Integer overflow when performing '+' operation on field 5"),
        ),
        (
            [["=", 5, Decimal("9" * 38)], ["!", 6, Decimal("9" * 38)], ["+", 6, Decimal("9" * 38)]],
            (160, "Decimal overflow when performing operation '+' on field 6"),
        ),
        (
            [["+", 4, Decimal(1)], ["!", 6, math.nan], ["+", 6, Decimal(1)]],
            (
                26,
                "Argument type in operation '+' on field 6 does not match field type: "
                "expected a number convertible to decimal",
            ),
        ),
    ],
)
def test_wrong_operations_are_refused(ops: Any, error: tuple[int, str]) -> None:
    """Each gets Tarantool's number and text."""
    with pytest.raises(RequestError) as caught:
        apply_update(pack(OLD), pack(ops), index_base=1, space=SPACE)
    assert (int(caught.value.code), caught.value.message) == error


def test_an_operation_inside_a_changed_value_is_refused() -> None:
    """What makes the real program crash is error 29 here."""
    for ops in (
        [["=", 3, {"a": 1}], ["=", "doc.a", 2]],
        [["=", "doc.a", {"b": 1}], ["=", "doc.l[1]", 0], ["=", "doc.a.b", 2]],
        [["!", "doc.n", {}], ["=", "doc.n.m", 1]],
        [["#", "doc.l[1]", 1], ["=", "doc.l[1].x", 1]],
    ):
        assert refusal(OLD, *ops)[0] in (29, 201)


def test_a_field_behind_the_next_one_of_an_inner_array_is_not_there() -> None:
    """It may be set where the array ends, and not further on, wherever it begins."""
    old = [1, "abc", {"a": {"x": 1}, "l": [10, 20, 30]}]
    assert update(old, ["=", "doc.l[4]", 40])[2]["l"] == [10, 20, 30, 40]
    assert refusal(old, ["=", "doc.l[5]", 50])[0] == ErrorCode.NO_SUCH_FIELD_NAME


def test_keys_that_are_integers_are_deleted_rightly() -> None:
    """`#` of an integer key takes out that pair and no other byte."""
    assert update([1, 2, {3: "x", "k": 1}], ["#", "doc[3]", 1]) == [1, 2, {"k": 1}]


def test_at_most_so_many_operations() -> None:
    """The limit passes, one more is refused before any is applied."""
    check_ops(pack([["+", 2, 0]] * UPDATE_OPERATIONS), index_base=1, space=SPACE)
    with pytest.raises(RequestError) as caught:
        check_ops(pack([["+", 2, 0]] * (UPDATE_OPERATIONS + 1)), index_base=1, space=SPACE)
    assert caught.value.message == "Illegal parameters, too many operations for update"


def test_upsert_leaves_out_what_fails() -> None:
    """Operations that fail on the tuple are left out and told; malformed ones fail the request."""
    left_out: list[RequestError] = []
    ops = pack([["+", 2, 1], ["+", 5, 1], ["=", 9, 1], ["+", 5, 2**64 - 1], ["=", "doc.q.r", 1]])
    new = apply_upsert(pack(OLD), ops, index_base=1, space=SPACE, left_out=left_out)
    assert unpack(new) == [*OLD[:4], 8]
    assert [int(error.code) for error in left_out] == [26, 37, 29, 201]
    for ops, code in (([["x", 2, 1]], 28), ([["+", 2, "x"]], 26), ([["=", "zz", 1]], 201)):
        for call in (
            lambda raw: apply_upsert(pack(OLD), raw, index_base=1, space=SPACE),
            lambda raw: check_ops(raw, index_base=1, space=SPACE),
        ):
            with pytest.raises(RequestError) as caught:
                call(pack(ops))
            assert caught.value.code == code


def test_the_primary_key_is_compared_by_value(tmp_path: Path) -> None:
    """Another value is refused with 94, the same one in another form is not."""
    with logweir.open(tmp_path, durability="none") as log:
        space_id = log.create_space("t", [("id", "unsigned"), ("v", "string")])
        log.insert("t", (1, "a"))
        for ops in (b"\x91\x93\xa1=\x00\x01", b"\x91\x93\xa1=\x00\xcc\x01"):
            log.execute(Request(RowType.UPDATE, space_id, key=b"\x91\x01", ops=ops))
            assert log.get("t", 1) == (1, "a")
        with pytest.raises(RequestError) as caught:
            log.update("t", 1, [["=", 0, 2]])
        assert (caught.value.code, caught.value.message) == (
            94,
            "Attempt to modify a tuple field which is part of index 'primary' in space 't'",
        )


def test_cut_operations_are_refused() -> None:
    """Every beginning of a request's operations is an error of ours, no other."""
    whole = pack([["=", 2, "z"], [":", "name", 1, 1, "xy"], ["+", -1, 1.5]])
    for end in range(len(whole)):
        with pytest.raises(RequestError):
            apply_update(pack(OLD), whole[:end], index_base=1, space=SPACE)


class Replayed:
    """Spaces as the rows of a log leave them."""

    def __init__(self) -> None:
        self.schema = Schema()
        self.spaces: dict[int, dict[bytes, bytes]] = {}

    def apply(self, row: dict[str, Any]) -> None:
        """Apply one row, as the samples give it."""
        body = row["body"]
        space = self.schema.space(body["space_id"])
        assert space.primary is not None
        held = self.spaces.setdefault(space.id, {})
        base = body.get("index_base", 0)
        given = bytes.fromhex(body["tuple_mp"]) if "tuple_mp" in body else b""
        new: bytes | None = None
        if row["type"] in ("UPDATE", "DELETE"):
            key = tuple_key(bytes.fromhex(body["key_mp"]), _by_key(space.primary))
            old = held.get(key)
            if row["type"] == "UPDATE" and old is not None:
                new = apply_update(old, given, index_base=base, space=space)
        else:
            key = tuple_key(given, space.primary)
            old, new = held.get(key), given
            if row["type"] == "UPSERT" and old is not None:
                ops = pack(body["operations"])
                new = apply_upsert(old, ops, index_base=base, space=space)
        if row["type"] == "UPDATE" and old is None:
            return
        if new is None:
            held.pop(key, None)
        else:
            space.format.check(new)
            held[key] = new
        if space.id in range(272, 373) and (old, new) != (None, None):
            change = self.schema.apply(space.id, old, new, trusted=True)
            if change is not None and change.kind == "truncate":
                assert change.new is not None
                self.spaces[change.new.id] = {}
            elif change is not None and change.kind == "drop":
                assert change.old is not None
                self.spaces.pop(change.old.id, None)


def _by_key(primary: IndexDef) -> IndexDef:
    """The same index over a key, whose parts follow one another."""
    parts = tuple(PartDef(number, part.type) for number, part in enumerate(primary.parts))
    return IndexDef(primary.space_id, 0, "key", primary.type, parts)


@pytest.mark.parametrize(
    "name",
    [pytest.param("02-spaces", marks=needs_icu), "03-replicaset/instance-1", "04-crashed"],
)
def test_replaying_a_real_log_gives_the_real_state(name: str) -> None:
    """The first snapshot and all log files of a real store, applied row by row, leave the exact
    tuples that the real program held at its end."""
    found = sample(name)
    state = Replayed()
    files = [file for file in found.files if file.path.suffix == ".xlog"]
    first = next(file for file in found.files if file.path.name == "0" * 20 + ".snap")
    for row in [*first.rows, *(row for file in files for row in file.rows)]:
        if row["type"] != "NOP":
            state.apply(row)
    for space_id, tuples in found.spaces.items():
        held = state.spaces.get(space_id, {})
        assert sorted(held.values()) == sorted(tuples), state.schema.space(space_id).name
