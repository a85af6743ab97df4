"""`pipeline.counting`: rows counted by group, in tasks that each see some of them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logweir.errors import CorruptBlock
from logweir.pipeline.arrow import Group, Place
from logweir.pipeline.counting import Counter, totals
from logweir.pipeline.options import ScanOptions
from logweir.wal.columns import RowColumns
from logweir.wal.mp import pack
from logweir.wal.xrow import Row, encode_rows

OPTIONS = ScanOptions(paths=("/log",))
UPDATE = 4
NAMES = {2: "INSERT", 3: "REPLACE", UPDATE: "UPDATE", 5: "DELETE", 777: "777"}

Told = tuple[str, int | None, int, int, float, list[str] | None, list[int] | None, list[int] | None]

arrays = st.one_of(st.none(), st.lists(st.integers(0, 300), max_size=4))
rows = st.tuples(
    st.sampled_from(["xlog", "snap"]),
    st.sampled_from([None, 0, 280, 512, 2**40, *range(600, 612)]),
    st.sampled_from(list(NAMES)),
    st.integers(0, 2**63 - 1),
    st.floats(allow_nan=False),
    st.one_of(st.none(), st.lists(st.text(max_size=9), max_size=2)),
    arrays,
    arrays,
)


def encoded(told: Told) -> Row:
    _, space, kind, lsn, ts, key, values, ops = told
    parts = {0x10: space, 0x20: key, 0x21: values, 0x28: ops}
    body = pack({number: value for number, value in parts.items() if value is not None})
    return Row(type=kind, replica_id=1, lsn=lsn, tsn=lsn, timestamp=ts, body=body)


def group(kind: str, some: Iterable[Told]) -> Group:
    columns = RowColumns.scan(encode_rows([encoded(one) for one in some]))
    place = Place("log", "/log", 0, kind == "xlog")
    return Group(place, columns, np.zeros(1, np.uint64), np.zeros(1, np.int64))


def counted(
    tasks: Iterable[Iterable[list[Told]]], options: ScanOptions = OPTIONS
) -> list[dict[str, Any]]:
    """What is shown of the groups of some tasks."""
    partial = []
    for task in tasks:
        counter = Counter(options)
        for some in task:
            for kind in ("xlog", "snap"):
                if mine := [one for one in some if one[0] == kind]:
                    assert not list(counter.build(group(kind, mine)))
        partial += counter.rest()
    return [row for one in totals(partial) for row in one.to_pylist()]


def size(told: Told) -> int:
    """Bytes of key, tuple and operations: what an UPDATE has as its tuple are its operations."""
    *_, key, values, ops = told
    if told[2] == UPDATE and values is not None:
        ops = None
    return sum(len(pack(one)) for one in (key, values, ops) if one is not None)


@given(st.lists(st.lists(st.lists(rows, max_size=12), max_size=3), max_size=4))
def test_groups_are_those_of_all_rows(tasks: list[list[list[Told]]]) -> None:
    """However rows fall into blocks and tasks: the sums and ends of each group."""
    every = [row for task in tasks for one in task for row in one]
    found = counted(tasks)
    keys = [(one["kind"], one["space_id"], one["type_name"]) for one in found]
    assert sorted(keys, key=repr) == sorted({(a, b, NAMES[c]) for a, b, c, *_ in every}, key=repr)
    assert [one[:2] for one in keys] == sorted(
        (one[:2] for one in keys), key=lambda one: (one[0], one[1] is not None, one[1])
    )
    for key, one in zip(keys, found, strict=True):
        mine = [row for row in every if (*row[:2], NAMES[row[2]]) == key]
        assert one["rows"] == len(mine)
        assert one["bytes"] == sum(map(size, mine))
        keyed = len({tuple(row[5]) for row in mine if row[5] is not None})
        assert abs(one["keys"] - keyed) <= keyed // 16  # two may fall into one register
        for name, column in (("lsn", 3), ("ts", 4)):
            values = [row[column] for row in mine]
            assert one[f"first_{name}"] == min(values)
            assert one[f"last_{name}"] == max(values)


@given(st.lists(rows, max_size=20))
def test_only_wanted_rows_are_counted(some: list[Told]) -> None:
    """Options choose rows as they do for a scan."""
    types = (3, UPDATE)
    found = counted([[some]], replace(OPTIONS, types=types, time_from=0.0))
    wanted = [one for one in some if one[2] in types and one[4] >= 0]
    assert sum(one["rows"] for one in found) == len(wanted)
    assert found == counted([[wanted]])


def test_many_keys_are_estimated_closely() -> None:
    """Of 200 000 different keys of several lengths, each in two tasks, about so many are told."""
    pick = random.Random(3)
    keys = [f"{pick.getrandbits(8 * size):x}" for size in (6, 9, 17) for _ in range(66_667)]
    tasks = [keys[: len(keys) * 3 // 4], keys[len(keys) // 4 :], keys]
    (found,) = counted(
        [[[("xlog", 512, 5, 1, 1.0, [key], None, None) for key in task]] for task in tasks]
    )
    assert abs(found["keys"] - len(set(keys))) < 0.05 * len(keys)


def test_keys_that_are_alike_are_different() -> None:
    """Keys that differ in one bit, in their length, or in zeros at their end."""
    keys = ["\0" * size for size in range(40)] + [chr(1 << n) + "\0" * 20 for n in range(7)]
    (found,) = counted([[[("xlog", 512, 5, 1, 1.0, [key], None, None) for key in keys]]])
    assert len(keys) - 3 <= found["keys"] <= len(keys)


@pytest.mark.parametrize(
    ("column", "row"),
    [
        ("type", ("xlog", 512, 2**15, 1, 1.0, None, None, None)),
        ("space_id", ("xlog", 2**63, 2, 1, 1.0, None, None, None)),
        ("lsn", ("xlog", 512, 2, 2**63, 1.0, None, None, None)),
    ],
)
def test_a_number_that_no_scan_shows_is_an_error(column: str, row: Told) -> None:
    """The same as that of a scan, which names the row; rows that are not wanted may have it."""
    plain: Told = ("xlog", 512, 2, 5, 1.0, None, None, None)
    with pytest.raises(CorruptBlock, match=f"{column} {2**15 if column == 'type' else 2**63} of"):
        counted([[[plain, row]]])
    wanted = replace(OPTIONS, types=(2,), spaces=(512,), time_to=1.0)
    if column == "type":
        assert counted([[[plain, row]]], wanted)[0]["rows"] == 1


def test_damage_counts_as_a_row_of_its_own() -> None:
    """As in a scan that reports it: of no space, no type and no bytes."""
    counter = Counter(replace(OPTIONS, on_error="report"))
    place = Place("log", "/log", 0, is_log=True)
    assert not [*counter.damage(place, 7, "text"), *counter.damage(place, 9, "text")]
    (found,) = [row for one in totals(counter.rest()) for row in one.to_pylist()]
    assert {name: value for name, value in found.items() if value is not None} == {
        **{"kind": "xlog", "rows": 2, "bytes": 0, "keys": 0}
    }
