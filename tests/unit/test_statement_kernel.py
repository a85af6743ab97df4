"""The compiled statements: what batches must look like, transactions, layers, exceptions."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("logweir.store.engine.statementkernel")

from support.compiled import ALL, Compiled, columns_of
from support.statements import collated_space

from logweir.errors import ErrorCode, RequestError
from logweir.store.engine.request import Request
from logweir.store.schema.definition import FieldDef, IndexDef, IndexType, PartDef, SpaceDef
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.schema import Schema
from logweir.store.schema.spaceplan import plan_of
from logweir.store.state import layerkernel
from logweir.store.state.memtable import Memtable
from logweir.store.state.undo import PlainUndo, Undo
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

ID = 600
UNSIGNED, STRING = FieldType.UNSIGNED, FieldType.STRING


def make_space() -> SpaceDef:
    fields = (FieldDef("id", UNSIGNED), FieldDef("name", STRING))
    primary = IndexDef(ID, 0, "pk", IndexType.TREE, (PartDef(0, UNSIGNED),))
    name = IndexDef(ID, 1, "name", IndexType.TREE, (PartDef(1, STRING),))
    return SpaceDef(ID, 1, "t", fields=fields).with_indexes((primary, name))


def make_compiled(space: SpaceDef | None = None) -> Compiled:
    schema = Schema()
    used = space or make_space()
    schema._put(used)
    return Compiled([used], schema)


def put(kind: RowType, *row: Any) -> Request:
    return Request(kind, ID, tuple=pack(row))


def insert(*row: Any) -> Request:
    return put(RowType.INSERT, *row)


def held(compiled: Compiled) -> bytes:
    ((_, _, tuples),) = compiled.select([(ID, 1, 2, ALL, 0, b"\x90")])
    assert isinstance(tuples, bytes)
    return tuples


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (1, 1),
        (4, 9),
        (5, 10**9),
        (5, 2**64 - 1),
        (6, 2**63),
        (7, 2**63),
        (4, 2**64 - 1),
        (8, 0),
        (9, 4),
    ],
)
def test_numbers_that_lie_are_refused(place: int, value: int) -> None:
    """Spans outside of the batch, spaces that are not there, a transaction without an end."""
    compiled = make_compiled()
    data, columns = columns_of([(insert(1, "a"), True)], [ID])
    columns[place] = value
    with pytest.raises(ValueError, match=r"statement 0|last statement"):
        compiled.executor.execute(data, columns, compiled.spaces(), Undo(), None, 0)
    assert held(compiled) == b""


def test_a_batch_cut_in_a_statement_is_refused() -> None:
    """The columns of a statement are all there, or none is executed."""
    compiled = make_compiled()
    data, columns = columns_of([(insert(1, "a"), True)], [ID])
    with pytest.raises(ValueError, match="last statement"):
        compiled.executor.execute(data, columns[:-1], compiled.spaces(), Undo(), None, 0)


def test_an_empty_batch() -> None:
    """Nothing comes of nothing."""
    compiled = make_compiled()
    assert compiled.execute([]) == []
    assert compiled.select([]) == []


def test_a_refused_statement_leaves_no_trace_and_the_others_stay() -> None:
    """The second index refuses it when the first has nothing against it."""
    compiled = make_compiled()
    outcomes = compiled.execute(
        [(insert(1, "a"), True), (insert(2, "a"), True), (insert(3, "c"), True)]
    )
    assert [one[0] for one in outcomes] == ["done", "refused", "done"]
    assert outcomes[1][1] == ErrorCode.TUPLE_FOUND
    assert "'name'" in str(outcomes[1][2])
    assert held(compiled) == pack([1, "a"]) + pack([3, "c"])


def test_a_transaction_is_undone_as_a_whole() -> None:
    """Also what it replaced in the same layer, in all indexes."""
    compiled = make_compiled()
    compiled.execute([(insert(1, "a"), True)])
    outcomes = compiled.execute(
        [
            (put(RowType.REPLACE, 1, "b"), False),
            (insert(2, "a"), False),
            (Request(RowType.DELETE, ID, key=pack([1])), False),
            (insert(2, "x"), False),
            (insert(5, "y"), True),
            (insert(6, "z"), True),
        ]
    )
    assert [one[0] for one in outcomes] == ["undone"] * 3 + ["refused", "undone", "done"]
    assert held(compiled) == pack([1, "a"]) + pack([6, "z"])


def test_an_exception_of_the_reference_engine_goes_through() -> None:
    """Only `RequestError` is an answer."""
    compiled = make_compiled()
    bad = Request(RowType.INSERT, ID, tuple=b"\x92\x01")
    data, columns = columns_of([(bad, True)], [ID])

    def interrupted(number: int) -> Any:
        raise KeyboardInterrupt

    def refused(number: int) -> Any:
        raise RequestError(ErrorCode.INVALID_MSGPACK, "no")

    with pytest.raises(KeyboardInterrupt):
        compiled.executor.execute(data, columns, compiled.spaces(), Undo(), interrupted, 0)
    results, _, numbers, failures = compiled.executor.execute(
        data, columns, compiled.spaces(), Undo(), refused, 0
    )
    assert list(results[:2]) == [1, ErrorCode.INVALID_MSGPACK]
    assert numbers == [0]
    assert str(failures[0]) == "no"


def test_a_plan_of_a_space_with_a_path_refers_everything() -> None:
    """Its statements are all right nevertheless."""
    part = PartDef(1, STRING, path="a")
    primary = IndexDef(ID, 0, "pk", IndexType.TREE, (PartDef(0, UNSIGNED),))
    path = IndexDef(ID, 1, "path", IndexType.TREE, (part,), False)
    space = SpaceDef(ID, 1, "t").with_indexes((primary, path))
    assert plan_of(space) is None
    compiled = make_compiled(space)
    ((how, _, new, _),) = compiled.execute([(insert(1, {"a": "x"}), True)])
    assert (how, new, compiled.referred) == ("done", pack([1, {"a": "x"}]), 1)


def test_layers_must_fit_their_plan() -> None:
    """A base for each index, and at least one memtable where something is to be changed."""
    plan = plan_of(make_space())
    assert plan is not None
    base, table = layerkernel.Base(), Memtable()
    for tables, bases in (
        ([], []),
        ([[table]], [base]),
        ([[table], [table]], [base]),
        ([[table], [table]], [base, None]),
        ([[table], [None]], [base, base]),
        ([[table], []], [base, base]),
    ):
        with pytest.raises(ValueError, match=r"index|memtable"):
            layerkernel.Space(plan, tables, bases, Undo())
    layerkernel.Space(plan, [[table], []], [base, base], None)


@pytest.mark.parametrize("kind", [Undo, PlainUndo])
def test_what_was_changed_is_taken_back(kind: type[Undo]) -> None:
    """In several tables, to a mark, also values that lie by themselves; then nothing is known."""
    undo, one, other = kind(), Memtable(), Memtable()
    large = bytes(10_000)
    undo.set(one, b"a", b"1")
    undo.set(other, b"a", large)
    mark = undo.mark()
    undo.set(one, b"a", b"")
    undo.set(one, b"b", b"2")
    undo.set(other, b"a", b"x")
    undo.set(other, b"a", b"y")
    undo.rollback(mark)
    assert list(one.ascending()) == [(b"a", b"1")]
    assert list(other.ascending()) == [(b"a", large)]
    undo.forget()
    undo.rollback(undo.mark())
    assert (one.get(b"a"), other.get(b"a")) == (b"1", large)
    undo.set(one, b"a", b"3")
    undo.rollback(0)
    assert one.get(b"a") == b"1"


def test_no_rollback_to_a_mark_that_is_none() -> None:
    """Not to one that is forgotten, nor below all."""
    undo = Undo()
    undo.set(Memtable(), b"a", b"1")
    for mark in (-1, undo.mark() + 1):
        with pytest.raises(ValueError, match="mark"):
            undo.rollback(mark)


def test_a_selection_is_no_request_by_itself() -> None:
    """Nor is anything else that changes nothing."""
    compiled = make_compiled()
    for kind in (RowType.SELECT, RowType.NOP):
        ((how, code, *_),) = [compiled.execute_one(Request(kind, ID, tuple=b"\x90"))]
        assert (how, code) == ("refused", ErrorCode.UNKNOWN_REQUEST_TYPE)


def test_answers_end_behind_a_limit() -> None:
    """Behind the transaction that reaches it; the rest is not executed."""
    compiled = make_compiled()
    requests = [(insert(number, str(number)), number % 2 == 1) for number in range(6)]
    data, columns = columns_of(requests, [ID])
    answers = compiled.group.execute_batch(data, columns, [ID], limit_bytes=1)
    assert (answers.count, list(answers.refused)) == (2, [])
    assert held(compiled) == pack([0, "0"]) + pack([1, "1"])


@pytest.mark.parametrize(
    "value",
    [2**bits + more for bits in (0, 5, 7, 8, 15, 16, 31, 32, 63) for more in (-2, -1, 0, 1)],
)
def test_sums_take_their_shortest_form(value: int) -> None:
    """Of both signs, at every width."""
    compiled = make_compiled()
    for number, result in enumerate((value, -value)):
        if not result - 1 >= -(2**63) or result == 2**63 + 1:
            continue
        compiled.execute([(insert(number, str(number), result - 1), True)])
        ops = pack([["+", 2, 1]])
        update = Request(RowType.UPDATE, ID, key=pack([number]), ops=ops)
        ((how, _, new, _),) = compiled.execute([(update, True)])
        assert (how, new) == ("done", pack([number, str(number), result]))
    assert compiled.referred == 0


CAS = 2


def test_conditions() -> None:
    """Absent, present, a number in a field; what is expected and not so is told with the tuple."""
    compiled = make_compiled()
    add, replace = insert(1, "a", 10), put(RowType.REPLACE, 1, "b", 11)
    update = Request(RowType.UPDATE, ID, key=pack([1]), ops=pack([["=", CAS, 12]]))
    delete = Request(RowType.DELETE, ID, key=pack([1]))
    statements: list[tuple[Request, tuple[int, int, int, int]]] = [
        (replace, (2, 0, 0, 0)),
        (delete, (3, CAS, 10, 0)),
        (add, (1, 0, 0, 0)),
        (add, (1, 0, 0, 0)),
        (replace, (3, CAS, 9, 0)),
        (replace, (3, 1, 10, 0)),
        (replace, (3, 7, 10, 0)),
        (replace, (3, CAS, 10, 0)),
        (update, (3, CAS, 11, 1)),
        (delete, (3, CAS, 12, 0)),
    ]
    first, second, third = (pack(row) for row in ([1, "a", 10], [1, "b", 11], [1, "b", 12]))
    prefix = b"\x82\x10\xcd\x02\x58\x21"
    outcomes = compiled.execute(
        [(request, True) for request, _ in statements], [one for _, one in statements]
    )
    assert outcomes == [
        ("unmet", None),
        ("unmet", None),
        ("done", None, first, prefix + first),
        *[("unmet", first)] * 4,
        ("done", first, second, prefix + second),
        ("done", second, third, prefix + third),
        ("done", third, None, b"\x82\x10\xcd\x02\x58\x20" + pack([1])),
    ]


def test_what_is_expected_and_not_so_undoes_its_transaction() -> None:
    """As removing an item is two statements: its tombstone, if its CAS is right, and the DELETE."""
    compiled = make_compiled()
    compiled.execute([(insert(1, "a", 10), True)])
    pair = [
        (put(RowType.REPLACE, 1, "", 11), False),
        (Request(RowType.DELETE, ID, key=pack([1])), True),
    ]
    wrong, right = [(3, CAS, 9, 0), (0, 0, 0, 0)], [(3, CAS, 10, 0), (0, 0, 0, 0)]
    assert [one[0] for one in compiled.execute(pair, wrong)] == ["unmet", "undone"]
    assert held(compiled) == pack([1, "a", 10])
    assert [one[0] for one in compiled.execute(pair, right)] == ["done", "done"]
    assert held(compiled) == b""


def test_an_index_with_a_field_twice_has_room_for_both() -> None:
    """Once as a collation orders it, once as the primary index does, zeros two bytes each."""
    compiled = make_compiled(collated_space(ID))
    rows = [pack([bytes(3000), 1]), pack([bytes(40_000), "x"])]
    outcomes = compiled.execute([(Request(RowType.INSERT, ID, tuple=row), True) for row in rows])
    assert [outcome[0] for outcome in outcomes] == ["done", "done"]
    assert compiled.select([(ID, 1, 2, ALL, 0, b"\x90")]) == [("done", 2, b"".join(rows))]
    assert compiled.referred == 0
