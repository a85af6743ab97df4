"""Runs of keyed rows come in order, whatever stretches, parts and runs they were cut into; and what
is compiled of the fold does what the reference does."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.folding import prepared_here

import logweir
from logweir.errors import DecodeError, RequestError
from logweir.pipeline.jobs import fold
from logweir.pipeline.jobs.fold import _Changer
from logweir.pipeline.jobs.history import Era
from logweir.pipeline.jobs.keyed import KEYED_SCHEMA
from logweir.pipeline.jobs.runs import FULL, RUN_ORDER, RUN_SCHEMA, all_in_order, runs, stretches
from logweir.store.schema.bulk import KeyPlan
from logweir.store.schema.spaceplan import COMPILED
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

ORDER = [(name, "ascending") for name in RUN_ORDER]
KINDS = [*FULL, RowType.UPDATE, RowType.UPSERT]


def _rows(pick: random.Random, count: int, keys: int) -> list[dict[str, Any]]:
    """Rows of a log in its order: some keys begin alike, one is the beginning of others."""
    names = [b"key" * (number % 4) + bytes([number]) * (number % 3) for number in range(keys)]
    return [
        {
            "level": 0,
            "space_id": 512 + pick.randrange(2),
            "key": pick.choice(names),
            "file": number // 50 - 1,
            "position": number,
            "what": int(pick.choice(KINDS)),
            "data": bytes(pick.randrange(40)),
            "ops": None,
        }
        for number in range(count)
    ]


def _counting(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In order, of each key what stands behind its last insert, replace or delete, and that."""
    left: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: [row[name] for name in RUN_ORDER]):
        if row["what"] in FULL:
            while left and (left[-1]["space_id"], left[-1]["key"]) == (row["space_id"], row["key"]):
                left.pop()
        left.append(row)
    return left


@given(
    seed=st.integers(0, 2**20),
    count=st.integers(1, 300),
    tasks=st.integers(1, 5),
    stretch=st.sampled_from([1, 700, 4000, 10**9]),
    run=st.sampled_from([1, 200, 10**9]),
    most=st.sampled_from([1, 500, 10**9]),
)
def test_runs_come_in_order(
    seed: int, count: int, tasks: int, stretch: int, run: int, most: int
) -> None:
    """Those of several tasks that read neighbouring stretches of a log: each row that may count is
    there once, in its part; of what a task saw at once nothing is left that is void."""
    pick = random.Random(seed)
    rows = _rows(pick, count, pick.randrange(1, 40))
    border = pick.choice(rows)["key"]

    def parted(batch: pa.RecordBatch) -> Any:
        first = np.array([key >= border for key in batch.column("key").to_pylist()])
        return (first + 2 * (batch.column("space_id").to_numpy() - 512)).astype(np.int32)

    made: list[pa.RecordBatch] = []
    cuts = sorted(pick.choices(range(count + 1), k=tasks - 1))
    for first, last in zip([0, *cuts], [*cuts, count], strict=True):
        some = [rows[at : min(at + 7, last)] for at in range(first, last, 7)]
        for one in some:
            pick.shuffle(one)  # a batch's rows come by space and kind
        batches = [pa.RecordBatch.from_pylist(one, KEYED_SCHEMA) for one in some]
        made += runs(stretches(batches, stretch), parted, run)
    table = pa.Table.from_batches(made, schema=RUN_SCHEMA)
    got: list[dict[str, Any]] = []
    for part in range(4):
        mine = table.filter(pa.compute.equal(table.column("part"), part)).sort_by(ORDER)
        for batch in all_in_order(mine.to_batches(max_chunksize=2), most):
            assert set(parted(batch).tolist()) == {part}
            got += batch.to_pylist()
    assert [row["position"] for row in _counting(got)] == [
        row["position"] for row in _counting(rows)
    ]
    assert got == sorted(got, key=lambda row: [row[name] for name in RUN_ORDER])
    if tasks == 1 and stretch == 10**9:
        assert got == _counting(rows)


FIELDS: Any = [("id", "unsigned"), ("n", "integer"), ("s", "string"), ("d", "double")]
FIELD = st.sampled_from([0, 1, 2, 3, 4, 9, -1, "id", "n", "s", "nowhere"])
VALUE = st.sampled_from([0, 1, -1, 2**63, 1.5, "text", None, [1], {"a": 1}])
compiled = pytest.mark.skipif(not COMPILED, reason="kernels are not compiled")
OPERATION = st.one_of(
    st.tuples(st.sampled_from(["=", "!", "+", "-", "&", "|", "#"]), FIELD, VALUE),
    st.tuples(st.just(":"), FIELD, st.integers(-2, 3), st.integers(-1, 3), st.just("new")),
    st.tuples(st.just("="), st.just("m.a"), VALUE),
    st.tuples(st.just("?"), FIELD, VALUE),
)


@pytest.fixture(scope="module")
def era(tmp_path_factory: pytest.TempPathFactory) -> Era:
    """That of a space."""
    folder = tmp_path_factory.mktemp("data")
    with logweir.open(folder) as log:
        fields = [*FIELDS, {"name": "m", "type": "map", "is_nullable": True}]
        log.create_space("t", format=fields)
    history = prepared_here(folder).history
    found = history.last(history.schema.space("t").id)
    assert found is not None
    return found


@compiled
@given(
    old=st.tuples(st.integers(0, 9), st.integers(-9, 9), st.text(max_size=5), st.just(0.5)),
    operations=st.lists(OPERATION, max_size=4),
    base=st.integers(0, 1),
    is_upsert=st.booleans(),
)
def test_what_is_compiled_changes_tuples_as_the_reference_does(
    era: Era, old: tuple[Any, ...], operations: list[Any], base: int, is_upsert: bool
) -> None:
    """The tuple, or the error, is the same: keys that change, operations that fail, paths."""
    kernel, reference = _Changer(era), _Changer(era)
    assert kernel._updater is not None
    reference._updater = None
    data, ops = pack(list(old)), pack(operations)
    assert era.space is not None
    assert era.space.primary is not None
    (key,) = KeyPlan(era.space, era.space.primary).key(data)

    def tell(one: _Changer) -> Any:
        try:
            one.check(ops, base)
            return one.changed(data, ops, base, key, is_upsert=is_upsert)
        except (RequestError, DecodeError) as error:
            return error.message

    assert tell(kernel) == tell(reference)


@compiled
def test_most_changes_need_no_reference(era: Era, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update and an upsert of a plain field are made where they are compiled."""
    for name in ("apply_update", "apply_upsert", "check_ops"):
        monkeypatch.delattr(fold, name)
    assert era.space is not None
    assert era.space.primary is not None
    data, ops = pack([7, 1, "s", 0.5]), pack([["+", 1, 1], ["=", "s", "new"]])
    (key,) = KeyPlan(era.space, era.space.primary).key(data)
    for is_upsert in (False, True):
        one = _Changer(era)
        one.check(ops, 0)
        assert one.changed(data, ops, 0, key, is_upsert=is_upsert) == pack([7, 2, "new", 0.5])
