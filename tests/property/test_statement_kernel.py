"""Random statements by the compiled engine on layers and by the engine on LMDB do the same.

Compared: old and new tuple, body to be logged, error with its message and details of every
statement; selections in between; at the end the entries of all indexes. `LOGWEIR_STATEMENTS`: how
many statements, default 30,000.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("logweir.store.engine.statementkernel")

from support.compiled import ALL, Compiled, Condition, Outcome, Wanted, selected, told
from support.statements import Dice

from logweir.errors import LogweirError, RequestError
from logweir.store.commit import group
from logweir.store.engine.engine import Engine, Plans
from logweir.store.engine.executing import PlainDrafts, PlainExecutor
from logweir.store.engine.reference import found_by, is_expected
from logweir.store.engine.request import Request, encode_body
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.schema import Schema
from logweir.store.state.stackkernel import LayeredTxn
from logweir.store.state.state import State
from logweir.store.state.statetxn import Txn
from logweir.wal.mp import pack, unpack
from logweir.wal.xrow import RowType

STATEMENTS = int(os.environ.get("LOGWEIR_STATEMENTS", "30000"))
PER_EXAMPLE = 300


def one_by_engine(engine: Engine, request: Request, condition: Condition) -> Outcome:
    """What comes of one request in the engine that is the model."""
    space = engine.schema.space(request.space_id)
    expect, field, value, as_replace = condition
    if expect:
        found = found_by(engine, space, request)
        if not is_expected(found, expect, field, value):
            return ("unmet", found)
    old, new, logged = engine.execute(space, request)
    if as_replace and request.ops is not None and new is not None:
        logged = Request(RowType.REPLACE, space.id, tuple=new)
    return ("done", old, new, encode_body(logged))


def by_engine(
    txn: LayeredTxn,
    schema: Schema,
    requests: list[tuple[Request, bool]],
    conditions: list[Condition],
) -> list[Outcome]:
    """What comes of the requests in the engine that is the model."""
    engine = Engine(txn, schema, Plans())
    found: list[Outcome] = []
    while len(found) < len(requests):
        first = len(found)
        last = next(at for at in range(first, len(requests)) if requests[at][1])
        start = txn.mark()
        broken = None
        for number in range(first, last + 1):
            mark = txn.mark()
            try:
                outcome = one_by_engine(engine, requests[number][0], conditions[number])
            except RequestError as error:
                txn.rollback(mark)
                outcome = told(error)
            found.append(outcome)
            if outcome[0] != "done" and first != last:
                broken = number
                break
        if broken is not None:
            txn.rollback(start)
            refused = found[broken]
            found[first:] = [("undone",)] * (last + 1 - first)
            found[broken] = refused
    return found


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[State]:
    made = State(tmp_path_factory.mktemp("state") / "state")
    made.open()
    yield made
    made.close(clean=False)


def compare_indexes(txn: LayeredTxn, compiled: Compiled) -> None:
    for space_id in compiled.ids:
        for index in compiled.schema.space(space_id).indexes:
            ours = list(compiled.txn.items(space_id, index.id))
            assert ours == list(txn.items(space_id, index.id)), (space_id, index)


def run_example(state: State, dice: Dice, executor: Any = None) -> Compiled:
    schema = Schema()
    spaces = [dice.space(600 + number) for number in range(dice.choice((1, 1, 2)))]
    for space in spaces:
        schema._put(space)
    below = state.begin()
    try:
        txn = LayeredTxn((), below, write=True)
        base = LaidAside(below)
        compiled = Compiled(spaces, schema, base, executor)
        done = 0
        while done < PER_EXAMPLE:
            count = dice.choice((1, 5, 20, 60))
            alone = dice.random() < 0.7
            requests = [
                (dice.statement(dice.choice(spaces)), alone or dice.random() < 0.4)
                for _ in range(count)
            ]
            requests[-1] = (requests[-1][0], True)
            conditions = [condition(dice) for _ in requests]
            if count == 1 and not conditions[0][0] and not conditions[0][3]:
                request = requests[0][0]
                in_values = has_values(request) and dice.random() < 0.6
                ours = [(compiled.make_one if in_values else compiled.execute_one)(request)]
                theirs = by_engine(txn, schema, requests, conditions)
                if in_values and theirs[0][0] == "done":
                    _, old, new, body = theirs[0]
                    row = request.told(old, new)  # type: ignore[arg-type]
                    theirs = [("done", None if row is None else pack(unpack(row)), body)]
            else:
                ours = compiled.execute(requests, conditions)
                theirs = by_engine(txn, schema, requests, conditions)
            for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                space = schema.space(requests[at][0].space_id)
                assert one == other, (requests[at][0], conditions[at], space)
            done += count
            wanted = [selection(dice, dice.choice(spaces)) for _ in range(8)]
            engine = Engine(txn, schema, Plans())
            for one, answer in zip(wanted, compiled.select(wanted), strict=True):
                assert answer == selected(engine, one), (one, schema.space(one[0]))
            if dice.random() < 0.2:
                compiled.add_layer()
            elif dice.random() < 0.1:
                compiled.apply_layers()
        compare_indexes(txn, compiled)
    finally:
        below.abort()
    return compiled


def has_values(request: Request) -> bool:
    """Whether it can be given in Python values that are packed as it is. Operations that are no
    lists cannot: they are refused, or made lists, before the tuple is looked for."""
    if request.index_base or (request.key is None) == (request.tuple is None):
        return False
    parts = [one for one in (request.key, request.tuple, request.ops) if one is not None]
    try:
        values = [unpack(part) for part in parts]
        return (
            all(isinstance(value, list) for value in values)
            and [pack(value) for value in values] == parts
            and (request.ops is None or all(isinstance(op, list) for op in values[-1]))
        )
    except LogweirError:
        return False


def condition(dice: Dice) -> Condition:
    if dice.random() < 0.8:
        return (0, 0, 0, 0)
    return (dice.randrange(4), dice.randrange(5), dice.randrange(6), dice.randrange(2))


def selection(dice: Dice, space: SpaceDef) -> Wanted:
    index = dice.choice(space.indexes)
    key = dice.key(index, partial=0.4)
    limit, offset = dice.choice((ALL, ALL, 0, 1, 3)), dice.choice((0, 0, 0, 1, 2, 50))
    return space.id, index.id, dice.randrange(8), limit, offset, key


class LaidAside:
    """The same transaction, with the trees of other spaces: so both engines use one state."""

    def __init__(self, txn: Txn) -> None:
        self._txn = txn
        self.state = txn.state
        self.trees = self.bases = None

    def tree(self, space_id: int, index_id: int) -> object:
        return self._txn.tree(space_id + 10_000, index_id)


@settings(
    max_examples=max(STATEMENTS // PER_EXAMPLE, 1),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32))
def test_statements_are_alike(seed: int, state: State) -> None:
    """Same answers, same errors, same bodies, same entries of every index."""
    run_example(state, Dice(seed))


@settings(
    max_examples=max(STATEMENTS // PER_EXAMPLE // 10, 1),
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32))
def test_plain_statements_are_alike(seed: int, state: State) -> None:
    """Where nothing is compiled, transactions, conditions and results are the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group, "Drafts", PlainDrafts)
        run_example(state, Dice(seed), PlainExecutor())
