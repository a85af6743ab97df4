"""Random statements by the compiled engine on layers and by the engine on LMDB do the same.

Compared: old and new tuple, body to be logged, error with its message and details of every
statement; at the end the entries of all indexes. `LOGWEIR_STATEMENTS`: how many, default 30,000.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from logweir.errors import RequestError
from logweir.store.definition import SpaceDef
from logweir.store.engine import Engine, Plans
from logweir.store.request import Request, encode_body
from logweir.store.schema import Schema
from logweir.store.select import Select, select
from logweir.store.state import State, Txn
from support.statements import Dice

statementkernel = pytest.importorskip("logweir.store.statementkernel")
layerkernel = pytest.importorskip("logweir.store.layerkernel")
selectkernel = pytest.importorskip("logweir.store.selectkernel")

from logweir.store.memtablekernel import Memtable  # noqa: E402
from logweir.store.reference import LayerTree, reference_engine, reference_of  # noqa: E402
from logweir.store.refusal import refusal  # noqa: E402
from logweir.store.spaceplan import plan_of  # noqa: E402
from logweir.store.statebase import StateBase  # noqa: E402

STATEMENTS = int(os.environ.get("LOGWEIR_STATEMENTS", "30000"))
PER_EXAMPLE = 300

COLUMNS, RESULTS = statementkernel.COLUMNS, statementkernel.RESULTS
ALL = 2**64 - 1
Outcome = tuple[object, ...]
Wanted = tuple[int, int, int, int, int, bytes]
"""Space id, index id, iterator, limit, offset, key."""


class Compiled:
    """The compiled engine on layers of some spaces."""

    def __init__(self, spaces: list[SpaceDef], schema: Schema, base: Txn) -> None:
        self.plans = [plan_of(space) for space in spaces]
        self.schema = schema
        self.base = base
        self.executor = statementkernel.Executor()
        self.selector = selectkernel.Selector()
        self.key_plans = Plans()
        self.layers: list[list[list[Memtable]]] = [[] for _ in spaces]
        self.referred = 0
        self.add_layer()

    def add_layer(self) -> None:
        """Seal the open layer."""
        for plan, layers in zip(self.plans, self.layers, strict=True):
            layers.insert(0, [Memtable() for _ in plan.index_ids])

    def spaces(self) -> list[layerkernel.Space]:
        base = StateBase(self.base)
        return [
            layerkernel.Space(plan, layers, base)
            for plan, layers in zip(self.plans, self.layers, strict=True)
        ]

    def apply_layers(self) -> None:
        """Bring what the layers hold into the base."""
        for plan, layers in zip(self.plans, self.layers, strict=True):
            for place, index_id in enumerate(plan.index_ids):
                tree = self.base.tree(plan.space_id, index_id)
                for layer in reversed(layers):
                    for key, value in list(layer[place].ascending()):
                        if value:
                            tree.put(key, value)
                        elif tree.get(key) is not None:
                            tree.delete(key)
            layers.clear()
        self.add_layer()

    def execute(self, requests: list[tuple[Request, bool]]) -> list[Outcome]:
        """What comes of requests; each with whether it ends a transaction."""
        data, columns = columns_of(requests, [plan.space_id for plan in self.plans])
        spaces = self.spaces()
        run = reference_of(data, columns, spaces, self.schema, self.key_plans)

        def refer(number: int) -> object:
            self.referred += 1
            return run(number)

        results, out, failures = self.executor.execute(data, columns, spaces, refer)
        found: list[Outcome] = []
        for number, (request, _) in enumerate(requests):
            row = results[number * RESULTS : (number + 1) * RESULTS]
            status, code, first, second = row[:4]
            spans = [out[row[at] : row[at + 1]] or None for at in (4, 6, 8)]
            if status == 0:
                found.append(("done", *spans))
            elif status == 3:
                found.append(("undone",))
            elif number in failures:
                found.append(told(failures[number]))
            else:
                space = self.schema.space(request.space_id)
                found.append(told(refusal(space, code, first, second, request.ops or b"")))
        return found


    def select(self, wanted: list[Wanted]) -> list[Outcome]:
        """What selections give."""
        spaces = self.spaces()
        ids = [space.plan.space_id for space in spaces]
        data, columns = bytearray(), array("Q")
        for space_id, index_id, iterator, limit, offset, key in wanted:
            columns.extend((ids.index(space_id), index_id, iterator, limit, offset))
            columns.extend((len(data), len(data) + len(key)))
            data += key
        results, out = self.selector.select(bytes(data), columns, spaces)
        engine = reference_engine(spaces, self.schema, self.key_plans)
        found: list[Outcome] = []
        for number, one in enumerate(wanted):
            row = results[number * selectkernel.SELECT_RESULTS :][: selectkernel.SELECT_RESULTS]
            status, code, first, second, count, start, end = row[:7]
            if status == 0:
                head, tuples = out[start : start + 5], out[start + 5 : end]
                assert head == b"\xdd" + count.to_bytes(4, "big")
                found.append(("done", count, tuples))
            elif status == 1:
                found.append(told(refusal(self.schema.space(one[0]), code, first, second, b"")))
            else:
                self.referred += 1
                found.append(selected(engine, one))
        return found


def selected(engine: Engine, wanted: Wanted) -> Outcome:
    """What a selection gives in an engine in Python."""
    space_id, index_id, iterator, limit, offset, key = wanted
    try:
        if iterator == selectkernel.GET:
            space = engine.schema.space(space_id)
            index = engine.schema.index(space, index_id)
            if not index.is_unique:
                return told(refusal(space, 41, 0, 0, b""))
            one = engine.get(space, index, key)
            tuples = [] if one is None or offset or not limit else [one]
        else:
            found = Select.packed(
                engine.schema,
                space_id,
                key,
                iterator,
                index=index_id,
                limit=None if limit == ALL else limit,
                offset=offset,
            )
            tuples = list(select(engine, found))
    except RequestError as error:
        return told(error)
    return ("done", len(tuples), b"".join(tuples))


def columns_of(requests: list[tuple[Request, bool]], ids: list[int]) -> tuple[bytes, array[int]]:
    data = bytearray()
    columns = array("Q")
    for request, is_last in requests:
        columns.extend((request.type, ids.index(request.space_id)))
        columns.extend((request.index_id, request.index_base))
        for part in (request.key if request.tuple is None else request.tuple, request.ops):
            columns.extend((len(data), len(data) + len(part)) if part else (0, 0))
            data += part or b""
        columns.append(is_last)
    return bytes(data), columns


def told(error: RequestError) -> Outcome:
    return ("refused", int(error.code), str(error), error.details)


def by_engine(txn: Txn, schema: Schema, requests: list[tuple[Request, bool]]) -> list[Outcome]:
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
            request = requests[number][0]
            try:
                space = schema.space(request.space_id)
                old, new, logged = engine.execute(space, request)
                found.append(("done", old, new, encode_body(logged)))
            except RequestError as error:
                txn.rollback(mark)
                found.append(told(error))
                if first != last:
                    broken = number
                    break
        if broken is not None:
            txn.rollback(start)
            found[first:] = [
                found[at] if at == broken else ("undone",) for at in range(first, last + 1)
            ] if broken == len(found) - 1 else found[first:]
    return found


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[State]:
    made = State(tmp_path_factory.mktemp("state") / "state")
    made.open()
    yield made
    made.close(clean=False)


def compare_indexes(txn: Txn, compiled: Compiled) -> None:
    for space in compiled.spaces():
        for place, index_id in enumerate(space.plan.index_ids):
            tree = txn.tree(space.plan.space_id, index_id)
            ours = list(LayerTree(space, place).ascending())
            assert ours == list(tree.ascending(b"")), (space.plan.source, index_id)


def run_example(state: State, dice: Dice) -> Compiled:
    schema = Schema()
    spaces = [dice.space(600 + number) for number in range(dice.choice((1, 1, 2)))]
    for space in spaces:
        schema._put(space)
    txn = state.begin()
    try:
        base = LaidAside(txn)
        compiled = Compiled(spaces, schema, base)
        done = 0
        while done < PER_EXAMPLE:
            count = dice.choice((1, 5, 20, 60))
            alone = dice.random() < 0.7
            requests = [
                (dice.statement(dice.choice(spaces)), alone or dice.random() < 0.4)
                for _ in range(count)
            ]
            requests[-1] = (requests[-1][0], True)
            ours = compiled.execute(requests)
            theirs = by_engine(txn, schema, requests)
            for (request, _), one, other in zip(requests, ours, theirs, strict=True):
                assert one == other, (request, schema.space(request.space_id))
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
        txn.abort()
    return compiled


def selection(dice: Dice, space: SpaceDef) -> Wanted:
    index = dice.choice(space.indexes)
    key = dice.key(index, partial=0.4)
    limit, offset = dice.choice((ALL, ALL, 0, 1, 3)), dice.choice((0, 0, 0, 1, 2, 50))
    return space.id, index.id, dice.randrange(8), limit, offset, key


class LaidAside:
    """The same transaction, with the trees of other spaces: so both engines use one state."""

    def __init__(self, txn: Txn) -> None:
        self._txn = txn

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
