"""The schema: definitions from rows and back, and the changes that rows make."""

from __future__ import annotations

from typing import Any

import pytest
from samples import sample
from support.definitions import row_of

from logweir.errors import RequestError
from logweir.store.schema import schema as schema_module
from logweir.store.schema.definition import FieldDef, IndexDef, IndexType, PartDef, SpaceDef
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.schema import Change, Schema, check_cluster_row
from logweir.wal.mp import pack, unpack

FLAGS: dict[str, Any] = {}
SPACE = [512, 1, "t", "memtx", 0, FLAGS, [{"name": "id", "type": "unsigned"}]]
PRIMARY = [512, 0, "p", "tree", {"unique": True}, [[0, "unsigned"]]]
SECONDARY = [512, 1, "s", "tree", {"unique": False}, [{"field": 1, "type": "string"}]]


def part(number: int, kind: str, **more: Any) -> dict[str, Any]:
    """A part of an index, spelt as a map."""
    return {"field": number, "type": kind, **more}


def apply(schema: Schema, space_id: int, old: Any, new: Any, **options: Any) -> Change | None:
    """Apply a row given as values."""
    before = None if old is None else pack(old)
    after = None if new is None else pack(new)
    return schema.apply(space_id, before, after, **options)


def refusal(schema: Schema, space_id: int, old: Any, new: Any, **options: Any) -> tuple[int, str]:
    """The error that a row gets; the schema must be as before."""
    version, spaces = schema.version, list(schema)
    with pytest.raises(RequestError) as caught:
        apply(schema, space_id, old, new, **options)
    assert schema.version == version
    assert [one is other for one, other in zip(schema, spaces, strict=True)] == [True] * len(spaces)
    return int(caught.value.code), caught.value.message


@pytest.fixture
def schema() -> Schema:
    """A schema with one space that has a primary and a secondary index."""
    made = Schema()
    apply(made, 280, None, SPACE)
    apply(made, 288, None, PRIMARY)
    apply(made, 288, None, SECONDARY)
    return made


def test_what_is_remembered_of_system_spaces_is_what_their_rows_make() -> None:
    """With each limit of tuples its own, also where a definition in between is another one."""
    rows = [
        (row["body"]["space_id"], bytes.fromhex(row["body"]["tuple_mp"]))
        for row in sample("02-spaces").file("00000000000000001356.snap").rows
    ]
    system = [(space_id, data) for space_id, data in rows if space_id in (276, 280, 288)]

    def made(limit: int, forgetful: bool, owner: int = 1) -> tuple[int, list[SpaceDef]]:
        found = Schema(limit)
        for space_id, data in system:
            if forgetful:
                schema_module._REMEMBERED.clear()
            given = unpack(data)
            if space_id == 280 and given[0] == 280:
                data = pack([280, owner, *given[2:]])
            found.apply(space_id, None, data, is_insert=True, trusted=True)
        return found.version, list(found)

    cases = ((1 << 20, 1), (1 << 21, 1), (1 << 21, 2))
    wanted = [made(limit, True, owner) for limit, owner in cases]
    for (limit, owner), expected in zip(cases, wanted, strict=True):
        first, second = made(limit, False, owner), made(limit, False, owner)
        assert first == second == expected
        alike = [one is other for one, other in zip(first[1], second[1], strict=True)]
        assert sum(alike) > 20
        assert all(space.tuple_bytes == limit for space in second[1] if space.fields)


def test_a_snapshot_makes_the_schema_it_was_written_from() -> None:
    """Each definition row of a real snapshot is accepted, and written back as the same values."""
    made = Schema()
    spelt_anew = {"STR": "string", "str": "string", "num": "unsigned", "NUM": "unsigned"}
    rows = sample("02-spaces").file("00000000000000001356.snap").rows
    for row in rows:
        body = row["body"]
        data = bytes.fromhex(body["tuple_mp"])
        made.space(body["space_id"]).format.check(data)
        made.apply(body["space_id"], None, data, is_insert=True)
        given = unpack(data)
        if body["space_id"] == 280:
            for one in given[6]:
                one["type"] = spelt_anew.get(one.get("type", "any"), one.get("type", "any"))
            assert row_of(made.space(given[0])) == given
        elif body["space_id"] == 288:
            index = made.space(given[0]).index(given[1])
            assert index is not None
            written = row_of(index)
            if given[5] and isinstance(given[5][0], list):
                pairs = [[part["field"], part["type"]] for part in written[5]]
                assert pairs == [[part[0], part[1].lower()] for part in given[5]]
                written[5] = given[5]
            given[3] = given[3].lower()
            assert written == given
        elif body["space_id"] == 276:
            assert row_of(made.collations[given[0]]) == given
        elif body["space_id"] == 284:
            assert row_of(made.sequence(given[0])) == given
        elif body["space_id"] == 340:
            use = made.space(given[0]).sequence
            assert use is not None
            assert row_of(use) == given
    assert len(made) == sample("02-spaces").summary["spaces"]["_space"]


def test_changes_tell_what_to_do_with_the_tuples(schema: Schema) -> None:
    """Creating, altering and dropping say which indexes to build or drop, and what to check."""
    made = Schema()
    created = apply(made, 280, None, SPACE)
    assert created is not None
    assert (created.kind, created.old, created.new) == ("create", None, made.space("t"))
    change = apply(made, 288, None, PRIMARY)
    assert change is not None
    assert (change.kind, change.build, change.drop) == ("alter", (0,), ())

    narrower = [*SPACE[:6], [{"name": "id", "type": "unsigned"}, {"name": "s", "type": "string"}]]
    change = apply(schema, 280, SPACE, narrower)
    assert change is not None
    assert (change.build, change.check_tuples) == ((), False)  # the index says string already
    stricter = [*SPACE[:6], [*narrower[6], {"name": "x", "type": "any"}]]
    change = apply(schema, 280, narrower, stricter)
    assert change is not None
    assert change.check_tuples

    change = apply(schema, 288, SECONDARY, None)
    assert change is not None
    assert (change.build, change.drop) == ((), (1,))
    change = apply(schema, 330, None, [512, 1])
    assert change is not None
    assert change.kind == "truncate"
    assert apply(schema, 330, None, [512, 1], is_insert=True) is None


@pytest.mark.parametrize(
    ("row", "build"),
    [
        ([512, 1, "renamed", "tree", {"unique": False}, SECONDARY[5]], ()),
        ([512, 1, "s", "hash", {"unique": True}, SECONDARY[5]], (1,)),
        ([512, 1, "s", "tree", {"unique": False}, [[2, "string"]]], (1,)),
        ([512, 1, "s", "tree", {"unique": False}, [[1, "scalar"]]], ()),
        ([512, 0, "p", "tree", {"unique": True}, [[0, "unsigned"], [1, "string"]]], (0, 1)),
        ([512, 0, "p", "tree", {"unique": True}, [[0, "number"]]], (0, 1)),
        ([512, 0, "p", "tree", {"unique": True}, [[0, "integer"]]], ()),
    ],
)
def test_an_index_is_built_anew_where_its_keys_change(
    schema: Schema, row: list[Any], build: tuple[int, ...]
) -> None:
    """Names and types of the same encoding keep the entries; all else builds them anew."""
    old = PRIMARY if row[1] == 0 else SECONDARY
    change = apply(schema, 288, old, row)
    assert change is not None
    assert change.build == build


def test_names_are_found_and_given_up(schema: Schema) -> None:
    """A space is found by id and name; a new name takes the place of the old one."""
    assert schema.get("t") is schema.get(512) is schema.space("t")
    apply(schema, 280, SPACE, [512, 1, "u", *SPACE[3:]])
    assert schema.get("t") is None
    assert schema.space("u").id == 512
    with pytest.raises(RequestError) as caught:
        schema.space("t")
    assert (caught.value.code, caught.value.message) == (36, "Space 't' does not exist")
    with pytest.raises(RequestError) as caught:
        schema.check_new_space("u")
    assert (caught.value.code, caught.value.message) == (10, "Space 'u' already exists")
    schema.check_new_space("t")


def test_a_copy_changes_apart(schema: Schema) -> None:
    """What is done to a copy is not seen in the original; it tells which spaces that was."""
    other = schema.copy()
    assert other.changed_since(schema) == set()
    apply(other, 288, SECONDARY, None)
    assert other.changed_since(schema) == schema.changed_since(other) == {512}
    more = other.copy()
    apply(more, 280, None, [600, 1, "new", *SPACE[3:]])
    assert more.changed_since(schema) == schema.changed_since(more) == {512, 600}
    assert len(other.space("t").indexes) == 1
    assert len(schema.space("t").indexes) == 2
    assert schema.version != other.version


def test_drops_are_refused_while_something_hangs_on_them(schema: Schema) -> None:
    """Indexes, grants and truncation records keep a space; secondary indexes the primary one."""
    assert refusal(schema, 280, SPACE, None) == (
        11,
        "Can't drop space 't': the space has indexes",
    )
    assert refusal(schema, 288, PRIMARY, None)[0] == 17
    apply(schema, 288, SECONDARY, None)
    apply(schema, 288, PRIMARY, None)
    held = {(312, 2): "grants", (330, 0): "truncate record"}
    for (space_id, index_id), what in held.items():
        code, message = refusal(
            schema,
            280,
            SPACE,
            None,
            has_rows=lambda one, two, key, it=(space_id, index_id): (one, two) == it,
        )
        assert code == 11
        assert message.endswith(f"the space has {what}")
    assert apply(schema, 280, SPACE, None) == Change("drop", schema_space(SPACE))
    assert schema.get(512) is None


def schema_space(row: list[Any]) -> SpaceDef:
    """The space of a row, alone."""
    made = Schema()
    apply(made, 280, None, row)
    return made.space(row[0])


@pytest.mark.parametrize(
    ("space_id", "old", "new", "code"),
    [
        (280, SPACE, [512, 1, "t", "vinyl", *SPACE[4:]], 12),
        (280, SPACE, [512, 1, "t", "memtx", 0, {"group_id": 1}, []], 12),
        (280, SPACE, [512, 1, "t", "memtx", 0, {"view": True, "sql": "x"}, []], 12),
        (280, None, [513, 1, "u", "what", 0, FLAGS, []], 57),
        (280, None, [513, 1, "", "memtx", 0, FLAGS, []], 70),
        (280, None, [513, 1, "u", "memtx", 1, FLAGS, [{"name": "a"}, {"name": "b"}]], 9),
        (280, None, [2**31, 1, "u", "memtx", 0, FLAGS, []], 9),
        (280, None, [513, 1, "u", "memtx", 0, {"group_id": 2}, []], 155),
        (280, None, [513, 1, "u", "memtx", 0, {"what": 2}, []], 111),
        (280, None, [513, 1, "u", "memtx", 0, FLAGS, [{"name": "a", "collation": 7}]], 151),
        (288, None, [999, 0, "p", "tree", FLAGS, [[0, "unsigned"]]], 36),
        (288, None, [512, 2, "x", "tree", FLAGS, [{"field": 0, "type": "what"}]], 108),
        (288, None, [512, 2, "x", "tree", FLAGS, [[0]]], 107),
        (288, None, [512, 2, "x", "tree", FLAGS, [[0, "map"]]], 14),
        (288, None, [512, 2, "x", "tree", FLAGS, [[0, "string"]]], 24),
        (288, None, [512, 128, "x", "tree", FLAGS, [[0, "unsigned"]]], 14),
        (288, None, [512, 2, "x", "hash", {"unique": False}, [[0, "unsigned"]]], 14),
        (288, None, [512, 2, "x", "what", FLAGS, [[0, "unsigned"]]], 13),
        (288, None, [512, 2, "x", "tree"], 106),
        (288, None, [512, 2, "x", "tree", FLAGS, []], 14),
        (288, None, [512, 2, "x", "rtree", {"unique": False}, [[2, "array"]]], 5),
        (288, None, [512, 2, "x", "bitset", {"unique": False}, [[2, "unsigned"]]], 5),
        (288, None, [512, 2, "x", "tree", {"func": 66}, [[0, "unsigned"]]], 5),
        (
            288,
            PRIMARY,
            [512, 0, "p", "tree", FLAGS, [{"field": 0, "type": "unsigned", "is_nullable": True}]],
            152,
        ),
        (288, None, [512, 2, "x", "tree", {"distance": "x"}, [[0, "unsigned"]]], 108),
        (288, None, [512, 2, "x" * 65001, "tree", FLAGS, [[0, "unsigned"]]], 14),
        (288, None, [512, 2, "x", "tree", FLAGS, [[]]], 107),
        (288, None, [512, 2, "x", "tree", FLAGS, [[0, 1]]], 107),
        (288, None, [512, 2, "x", "tree", FLAGS, [["a", "string"]]], 107),
        (288, None, [512, 2, "x", "tree", FLAGS, [[0, "what"]]], 107),
        (288, None, [512, 2, "x", "tree", FLAGS, [[0, "unsigned"], 1]], 107),
        (288, None, [512, 2, "x", "tree", FLAGS, [{"field": 0}, 1]], 108),
        (288, None, [512, 2, "x", "tree", FLAGS, [part(1, "string", collation=7)]], 108),
        (288, None, [512, 2, "x", "tree", FLAGS, [part(2, "string", path="[")]], 108),
        (
            288,
            None,
            [
                *(512, 2, "x", "tree", FLAGS),
                [part(2, "string", path="a[*]"), part(2, "string", path="b[*]")],
            ],
            108,
        ),
        (288, None, [512, 2, "x", "tree", FLAGS, [part(2, "string", path="a[*][*]")]], 108),
        (
            288,
            None,
            [512, 2, "x", "tree", {"func": 1}, [part(0, "string", path="a")]],
            5,
        ),
        (288, None, [512, 2, "x", "tree", {"func": 1}, [[1, "unsigned"]]], 200),
        (288, PRIMARY, [512, 0, "p", "tree", {"func": 1}, [[0, "unsigned"]]], 14),
        (288, PRIMARY, [512, 0, "p", "tree", {"unique": False}, [[0, "unsigned"]]], 14),
        (288, PRIMARY, [512, 0, "p", "tree", FLAGS, [part(0, "string", path="[*]")]], 14),
        (288, None, [512, 2, "x", "tree", FLAGS, [[at, "unsigned"] for at in range(256)]], 14),
        (288, None, [512, 2, "x", "tree", FLAGS, [[40000, "unsigned"]]], 14),
        (288, None, [512, 2, "x", "tree", FLAGS, [[0, "unsigned"]] * 2], 14),
        (288, None, [512, 2, "x", "hash", FLAGS, [part(2, "string", is_nullable=True)]], 5),
        (288, None, [512, 2, "x", "hash", FLAGS, [part(2, "string", path="[*]")]], 14),
        (288, None, [512, 2, "x", "rtree", FLAGS, [[2, "array"]]], 14),
        (288, None, [512, 2, "x", "rtree", {"unique": False}, [[2, "string"]]], 14),
        (280, None, [513, 1, "x" * 65001, "memtx", 0, FLAGS, []], 9),
        (280, None, [513, 1, "u", "vinyl", 0, {"temporary": True}, []], 12),
        (280, None, [513, 1, "u", "memtx", 0, {"view": True}, []], 163),
        (280, None, [513, 1, "u", "memtx"], 37),
        (280, None, [513, "1", "u", "memtx", 0, FLAGS, []], 23),
        (280, None, ["x"], 23),
        (280, None, [], 37),
        (280, None, {}, 22),
        (276, None, [999, "m" * 65001, 1, "ICU", "", {}], 150),
        (276, None, [999, "mine", 1, "ICU", "x" * 31, {}], 150),
        (276, [1, "x"], [1, "x", 1, "ICU", "", {}], 5),
        (284, None, [1, 1, "q" * 65001, 1, 1, 10, 1, 0, False], 142),
        (284, None, [1, 1, "q", 1.5, 1, 10, 1, 0, False], 23),
        (330, None, [280, 1], 137),
        (330, None, [999, 1], 36),
        (272, ["cluster", "x"], None, 65),
        (272, ["cluster", "x"], ["cluster", "y"], 64),
        (272, None, ["cluster"], 64),
        (272, None, ["cluster", "00000000-0000-4000-e000-000000000001"], 64),
        (285, None, [7, 1], 145),
        (340, None, [512, 7, False], 145),
        (276, [0, "none", 1, "BINARY", "", {}], None, 173),
        (276, None, [999, "mine", 1, "what", "", {}], 150),
        (276, None, [999, "mine", 1, "ICU", "", {"strength": 1}], 151),
        (276, None, [999, "mine", 1, "ICU", "", {"strength": "what"}], 150),
        (284, None, [1, 1, "q", 0, 1, 10, 1, 0, False], 142),
        (284, None, [1, 1, "q", 1, 1, 10, 11, 0, False], 142),
    ],
)
def test_wrong_definitions_are_refused(
    schema: Schema, space_id: int, old: Any, new: Any, code: int
) -> None:
    """Each gets Tarantool's number, and leaves the schema as it was."""
    assert refusal(schema, space_id, old, new)[0] == code


def test_index_kinds_that_are_not_kept_are_loaded_from_a_log(schema: Schema) -> None:
    """An RTREE index of a trusted row is known but cannot be used, and asks for no entries."""
    row = [512, 2, "r", "rtree", {"unique": False, "dimension": 2}, [[2, "array"]]]
    change = apply(schema, 288, None, row, trusted=True)
    assert change is not None
    assert change.build == ()
    space = schema.space("t")
    assert space.index("r") is not None
    with pytest.raises(RequestError) as caught:
        schema.index(space, "r")
    assert caught.value.code == 5
    assert schema.index(space, "s").id == 1
    for key, code in ((7, 35), ("zz", 148)):
        with pytest.raises(RequestError) as caught:
            schema.index(space, key)
        assert caught.value.code == code


def test_sequences_hold_the_primary_key(schema: Schema) -> None:
    """A sequence attaches to an integer part of the primary key, which then stays."""
    apply(schema, 284, None, [1, 1, "q", 1, 1, 10, 1, 0, False])
    use = [512, 1, True, 0, ""]
    apply(schema, 340, None, use)
    held = schema.space("t").sequence
    assert held is not None
    assert row_of(held) == use
    apply(schema, 288, SECONDARY, None)
    assert refusal(schema, 288, PRIMARY, None)[0] == 12
    moved = [512, 0, "p", "tree", FLAGS, [[1, "unsigned"]]]
    assert refusal(schema, 288, PRIMARY, moved)[0] == 14
    in_use = refusal(
        schema, 284, [1, 1, "q"], None, has_rows=lambda space_id, index_id, key: space_id == 340
    )
    assert in_use == (144, "Can't drop sequence 'q': the sequence is in use")
    apply(schema, 340, use, None)
    assert schema.space("t").sequence is None
    apply(schema, 284, [1, 1, "q"], None)
    assert schema.sequences == {}


def test_a_generated_sequence_has_one_space(schema: Schema) -> None:
    """A second space cannot take it, nor the first one another; a wrong path is no part."""
    apply(schema, 284, None, [1, 1, "q", 1, 1, 10, 1, 0, False])
    apply(schema, 280, None, [513, 1, "u", *SPACE[3:]])
    apply(schema, 288, None, [513, *PRIMARY[1:]])
    assert refusal(schema, 340, None, [513, 1, True, 0, "["])[0] == 14
    apply(schema, 340, None, [512, 1, True, 0, ""])
    assert refusal(schema, 340, None, [513, 1, True, 0, ""])[0] == 12
    assert refusal(schema, 340, [512, 1, True, 0, ""], [512, 1, True, 0, ""])[0] == 5


def test_views_and_blackholes_take_no_index(schema: Schema) -> None:
    """A view refuses an index with 12, a space that holds nothing with 5; vinyl takes TREE only."""
    rows = {"v": ("memtx", {"view": True, "sql": "x"}), "b": ("blackhole", {}), "y": ("vinyl", {})}
    for number, (name, (engine, flags)) in enumerate(rows.items(), 513):
        apply(schema, 280, None, [number, 1, name, engine, 0, flags, []])
    codes = [refusal(schema, 288, None, [513 + at, *PRIMARY[1:]])[0] for at in range(2)]
    assert codes == [12, 5]
    hashed = [515, 0, "p", "hash", {"unique": True}, [[0, "unsigned"]]]
    assert refusal(schema, 288, None, hashed)[0] == 13


def test_multikey_roots_may_not_be_nil(schema: Schema) -> None:
    """A multikey index below a field that may be nil is refused."""
    fields = [*SPACE[6], {"name": "a", "type": "any", "is_nullable": True}]
    apply(schema, 288, SECONDARY, None)
    apply(schema, 280, SPACE, [*SPACE[:6], fields])
    row = [512, 2, "x", "tree", FLAGS, [part(1, "string", path="[*]")]]
    assert refusal(schema, 288, None, row)[0] == 5


def test_the_type_that_comes_later_is_told_last(schema: Schema) -> None:
    """Of a field with two: that of the index which is made or changed, whatever its number is."""
    flags = {"unique": False}
    apply(schema, 288, None, [512, 3, "there", "tree", flags, [part(2, "unsigned")]])
    row = [512, 2, "new", "tree", flags, [part(2, "string")]]
    told = "Field 3 has type 'unsigned' in one index, but type 'string' in another"
    assert refusal(schema, 288, None, row) == (24, told)
    changed = [512, 1, "s", "tree", flags, [part(2, "string")]]
    assert refusal(schema, 288, SECONDARY, changed) == (24, told)


def test_rows_that_are_not_there_change_nothing(schema: Schema) -> None:
    """Deleting an unknown space or index, and other rows of `_schema`, are no changes."""
    assert apply(schema, 280, [700, 1, "x"], None) is None
    assert apply(schema, 288, [512, 9, "x"], None) is None
    assert apply(schema, 272, None, ["max_id", 700]) is None
    assert apply(schema, 272, None, ["cluster", "00000000-0000-4000-8000-000000000001"]) is None
    assert schema.apply(272, None, pack(["cluster", "of a log"]), trusted=True) is None
    assert apply(schema, 330, [512, 1], None) is None
    with pytest.raises(RequestError):
        apply(schema, 288, None, {})


def test_old_rows_of_sequence_uses_mean_the_first_part(schema: Schema) -> None:
    """Before 2.2 a row named no field: it was the first part of the primary key."""
    apply(schema, 284, None, [1, 1, "q", 1, 1, 10, 1, 0, False])
    apply(schema, 340, None, [512, 1, False])
    use = schema.space("t").sequence
    assert use is not None
    assert (use.field_no, use.path) == (0, None)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (None, [0, "00000000-0000-4000-8000-000000000001"], 67),
        (None, [32, "00000000-0000-4000-8000-000000000001"], 73),
        (None, [7, "00000000-0000-4000-8000-000000000001"], 128),
        (None, [1, "00000000-0000-0000-0000-000000000000"], 64),
        (None, [1, "what"], 64),
        (None, [1, "{00000000000040008000000000000001}"], 64),
        (None, [1, "urn:uuid:00000000-0000-4000-8000-000000000001"], 64),
        (None, [1, "00000000-0000-4000-f000-000000000001"], 64),
        (
            [1, "00000000-0000-4000-8000-000000000001"],
            [1, "00000000-0000-4000-8000-000000000002"],
            5,
        ),
    ],
)
def test_wrong_rows_of_the_cluster_are_refused(old: Any, new: Any, code: int) -> None:
    """Reserved, too large and own ids, and changed or empty UUIDs get their numbers."""
    before = None if old is None else pack(old)
    with pytest.raises(RequestError) as caught:
        check_cluster_row(before, pack(new), 7)
    assert caught.value.code == code
    check_cluster_row(None, pack([2, "00000000-0000-4000-8000-000000000001"]), 7)


def test_definitions_written_here_are_read_back() -> None:
    """Definitions made in Python make rows that give the same definitions."""
    schema = Schema()
    apply(schema, 276, None, [1, "unicode", 1, "ICU", "", {"strength": "tertiary"}])
    space = SpaceDef(
        600,
        1,
        "made",
        field_count=3,
        group_id=1,
        fields=(
            FieldDef("id", FieldType.UNSIGNED),
            FieldDef("name", FieldType.STRING, True, 1),
            FieldDef("doc", nullable_action="abort", default="1"),
        ),
    ).with_indexes(
        (
            IndexDef(600, 0, "p", IndexType.TREE, (PartDef(0, FieldType.UNSIGNED),)),
            IndexDef(
                600,
                3,
                "n",
                IndexType.TREE,
                (
                    PartDef(1, FieldType.STRING, True, schema.collations[1], sort_order="desc"),
                    PartDef(2, FieldType.STRING, path="a[*].b"),
                ),
                is_unique=False,
            ),
        )
    )
    apply(schema, 280, None, row_of(space))
    for index in space.indexes:
        apply(schema, 288, None, row_of(index))
    assert schema.space("made") == space
    read = schema.space("made").index("n")
    assert read is not None
    assert [part.place for part in read.sort_parts] == [
        part.place for part in (*space.indexes[1].parts, *space.indexes[0].parts)
    ]
