"""`pipeline.counting`: rows counted by group, in tasks that each see some of them."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from logweir.pipeline.columns import arrow_schema
from logweir.pipeline.counting import COUNTED, counts, totals

SCHEMA = arrow_schema(COUNTED)

rows = st.tuples(
    st.sampled_from(["xlog", "snap"]),
    st.sampled_from([None, 0, 280, 512, 2**40]),
    st.sampled_from([None, 2, 3, 5, 777]),
    st.one_of(st.none(), st.integers(0, 2**63 - 1)),
    st.one_of(st.none(), st.floats(allow_nan=False)),
    st.one_of(st.none(), st.binary(max_size=30)),
    st.one_of(st.none(), st.integers(0, 2**40)),
)


def batch(given: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*given, strict=True)) or [()] * len(COUNTED)
    arrays = [pa.array(column, one.type) for column, one in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def counted(tasks: list[list[list[tuple[Any, ...]]]]) -> list[dict[str, Any]]:
    """What is shown of the batches of some tasks."""
    partial = [one for task in tasks for one in counts(map(batch, task))]
    return [row for one in totals(partial) for row in one.to_pylist()]


@given(st.lists(st.lists(st.lists(rows, max_size=12), max_size=3), max_size=4))
def test_groups_are_those_of_all_rows(tasks: list[list[list[tuple[Any, ...]]]]) -> None:
    """However rows fall into batches and tasks: the sums and ends of each group, nulls apart."""
    every = [row for task in tasks for one in task for row in one]
    names = {None: None, 2: "INSERT", 3: "REPLACE", 5: "DELETE", 777: "777"}
    found = counted(tasks)
    keys = [(one["kind"], one["space_id"], one["type_name"]) for one in found]
    assert sorted(keys, key=repr) == sorted({(a, b, names[c]) for a, b, c, *_ in every}, key=repr)
    assert [one[:2] for one in keys] == sorted(
        (one[:2] for one in keys), key=lambda one: (one[0], one[1] is not None, one[1])
    )
    for key, one in zip(keys, found, strict=True):
        mine = [row for row in every if (row[0], row[1], names[row[2]]) == key]
        assert one["rows"] == len(mine)
        assert one["bytes"] == sum(row[6] or 0 for row in mine)
        keyed = len({row[5] for row in mine} - {None})
        assert abs(one["keys"] - keyed) <= keyed // 16  # two may fall into one register
        for name, column in (("lsn", 3), ("ts", 4)):
            values = [row[column] for row in mine if row[column] is not None]
            assert one[f"first_{name}"] == min(values, default=None)
            assert one[f"last_{name}"] == max(values, default=None)


def test_many_keys_are_estimated_closely() -> None:
    """Of 200 000 different keys of several lengths, each in two tasks, about so many are told."""
    pick = random.Random(3)
    keys = [pick.randbytes(size) for size in (6, 9, 17) for _ in range(66_667)]
    tasks = [keys[: len(keys) * 3 // 4], keys[len(keys) // 4 :], keys]
    (found,) = counted([[[("xlog", 512, 5, 1, 1.0, key, 3) for key in task]] for task in tasks])
    assert abs(found["keys"] - len(set(keys))) < 0.05 * len(keys)


def test_keys_that_are_alike_are_different() -> None:
    """Keys that differ in one bit, in their length, or in zeros at their end."""
    keys = [bytes(size) for size in range(40)] + [bytes([1 << n]) + bytes(20) for n in range(8)]
    (found,) = counted([[[("xlog", 512, 5, 1, 1.0, key, 3) for key in keys]]])
    assert len(keys) - 3 <= found["keys"] <= len(keys)
