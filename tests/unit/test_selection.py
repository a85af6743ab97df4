"""Choosing rows: bounds, times, types, spaces."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.logs import ORDERS, START, delete, insert, transaction

from logweir.errors import ConfigError
from logweir.wal.columns import RowColumns
from logweir.wal.directory import LogFile
from logweir.wal.meta import Meta
from logweir.wal.selection import (
    Bound,
    ReplicaBound,
    Selection,
    parse_bound,
    parse_time,
    parse_type,
)
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

NAMES = {512: "orders"}


def chosen(selection: Selection, *blocks: bytes, start: VClock | None = None) -> list[list[int]]:
    """The numbers of the wanted rows of each block of a log that begins at `start`."""
    selection.begin(Meta("XLOG", start or VClock()))
    return [selection.rows(RowColumns.scan(block), NAMES) for block in blocks]


BLOCKS = [
    transaction(1, [insert(280, [512]), insert(512, [1])]),
    transaction(1, [insert(512, [2])], replica_id=2),
    transaction(3, [delete(512, [1])]),
]
"""Signatures after the rows: 1, 2 | 3 | 4. Replica 2 wrote the second block."""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[0, 1], [0], [0]]),
        ({"spaces": [512]}, [[1], [0], [0]]),
        ({"spaces": ["orders"]}, [[1], [0], [0]]),
        ({"spaces": ["nobody", 280]}, [[0], [], []]),
        ({"types": [RowType.DELETE]}, [[], [], [0]]),
        ({"replicas": [2]}, [[], [0], []]),
        ({"replicas": [1], "types": [RowType.INSERT]}, [[0, 1], [], []]),
        ({"start": 2}, [[1], [0], [0]]),
        ({"stop": 2}, [[0, 1], [], []]),
        ({"start": 3, "stop": 3}, [[], [0], []]),
        ({"start": VClock({1: 2})}, [[], [0], [0]]),
        ({"stop": VClock({1: 1, 2: 1})}, [[0], [0], []]),
        ({"start": ReplicaBound(1, 2)}, [[1], [0], [0]]),
        ({"stop": ReplicaBound(1, 1)}, [[0], [0], []]),
        ({"since": START + 3}, [[], [], [0]]),
        ({"until": START + 1}, [[0, 1], [0], []]),
        ({"since": START + 1, "until": START + 2, "spaces": [280]}, [[0], [], []]),
    ],
)
def test_only_wanted_rows_are_chosen(options: dict[str, object], expected: list[list[int]]) -> None:
    """Every filter, alone and together with others, leaves exactly the rows it names."""
    selection = Selection(**options)  # type: ignore[arg-type]
    assert chosen(selection, *BLOCKS) == expected


def test_signature_counts_from_the_header_of_the_file() -> None:
    """In a file that begins at signature 10 its first row has signature 11."""
    block = transaction(11, [insert(512, [1]), insert(512, [2])])
    assert chosen(Selection(start=12), block, start=VClock({1: 10})) == [[1]]


BOUNDS: list[Bound | None] = [
    None,
    *range(0, 14),
    *(VClock({1: one, 2: other}) for one in range(0, 7, 2) for other in range(0, 5, 2)),
    *(ReplicaBound(1, lsn) for lsn in range(0, 7, 3)),
]


def test_blocks_on_one_side_of_a_bound_are_chosen_as_row_by_row() -> None:
    """However the rows are cut into blocks, the same rows are chosen."""
    rows = [
        transaction(lsn, [insert(512, [lsn])], replica_id=replica_id)
        for replica_id, lsn in [(1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (2, 4), (1, 6), (1, 7)]
    ]
    for start in BOUNDS:
        for stop in BOUNDS:
            single = chosen(Selection(start=start, stop=stop), *rows)
            wanted = [number for number, found in enumerate(single) if found]
            for size in (2, 3, 8):
                blocks = [b"".join(rows[at : at + size]) for at in range(0, len(rows), size)]
                found = chosen(Selection(start=start, stop=stop), *blocks)
                numbers = [size * at + i for at, some in enumerate(found) for i in some]
                assert numbers == wanted, (start, stop, size)


@pytest.mark.parametrize("stop", [2, VClock({1: 2})])
def test_selection_is_finished_when_its_stop_is_reached(stop: int | VClock) -> None:
    """After the last wanted row nothing more has to be read."""
    selection = Selection(stop=stop)
    selection.begin(Meta("XLOG", VClock()))
    selection.rows(RowColumns.scan(transaction(1, [insert(512, [1])])), NAMES)
    assert not selection.finished
    selection.rows(RowColumns.scan(transaction(2, [insert(512, [2])])), NAMES)
    assert selection.finished


def test_bounds_do_not_apply_to_snapshots() -> None:
    """Rows of a snapshot have no position of their own."""
    selection = Selection(start=100)
    selection.begin(Meta("SNAP", VClock({1: 3})))
    rows = RowColumns.scan(b"".join(transaction(1, [change]) for change in ORDERS[2]))
    assert selection.rows(rows, NAMES) == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("{1: 5, 0: 2}", VClock({0: 2, 1: 5})),
        ("{}", VClock()),
        ("2:17", ReplicaBound(2, 17)),
        ("423", 423),
    ],
)
def test_bound_is_read_in_its_three_forms(text: str, bound: object) -> None:
    """A vclock, a replica's lsn and a signature are told apart."""
    assert parse_bound(text) == bound


@pytest.mark.parametrize("text", ["", "x", "-1", "{1: 5", "{99: 1}", "1:2:3", "1.5", "9" * 30])
def test_bound_of_another_form_is_refused(text: str) -> None:
    """What is no position gives a ConfigError that says where it came from."""
    with pytest.raises(ConfigError, match="flag --from"):
        parse_bound(text, origin="flag --from")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1700000000.5", 1_700_000_000.5),
        ("2023-11-14", 1_699_920_000.0),
        ("2023-11-14T22:13:20", 1_700_000_000.0),
        ("2023-11-14T22:13:20Z", 1_700_000_000.0),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000.0),
    ],
)
def test_time_without_a_zone_is_utc(text: str, seconds: float) -> None:
    """ISO times and seconds are read; without a zone they are UTC."""
    assert parse_time(text) == seconds


def test_time_of_another_form_is_refused() -> None:
    """What is no time gives a ConfigError."""
    with pytest.raises(ConfigError, match="yesterday"):
        parse_time("yesterday")


def test_type_is_read_by_name_and_by_number() -> None:
    """Names in any case, numbers as they are, anything else is refused."""
    assert parse_type("insert") == parse_type("INSERT") == parse_type("2") == 2
    with pytest.raises(ConfigError, match="types are INSERT"):
        parse_type("insrt")


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (None, [0, 10, 20]),
        (1, [0, 10, 20]),
        (10, [0, 10, 20]),
        (11, [10, 20]),
        (21, [20]),
        (99, [20]),
        (VClock(), [0, 10, 20]),
        (VClock({1: 9}), [0, 10, 20]),
        (VClock({1: 10}), [10, 20]),
        (VClock({1: 30}), [20]),
        (ReplicaBound(1, 10), [0, 10, 20]),
        (ReplicaBound(1, 11), [10, 20]),
        (ReplicaBound(1, 15), [10, 20]),
        (ReplicaBound(1, 99), [20]),
    ],
)
def test_files_before_the_start_are_left_out(start: Bound | None, expected: list[int]) -> None:
    """A file is left out where the header of the next one says that it holds nothing wanted."""
    logs = [LogFile(Path(str(n)), "xlog", n, Meta("XLOG", VClock({1: n})), 0) for n in (0, 10, 20)]
    assert [log.signature for log in Selection(start=start).files(logs)] == expected


def test_file_with_rows_of_another_replica_is_not_left_out() -> None:
    """All of these are wanted behind REPLICA:LSN, wherever they stand."""
    clocks = [VClock(), VClock({1: 5, 2: 3}), VClock({1: 9, 2: 3}), VClock({1: 12, 2: 3})]
    logs = [LogFile(Path(str(n)), "xlog", n, Meta("XLOG", one), 0) for n, one in enumerate(clocks)]
    chosen = Selection(start=ReplicaBound(1, 10)).files(logs)
    assert [log.vclock for log in chosen] == [clocks[0], clocks[2], clocks[3]]


def test_blocks_before_a_place_of_a_replica_are_not_read_row_by_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the block in which the place is: the others are told by their last lsns."""
    looked: list[int] = []
    right = Selection._row_by_row

    def counted(selection: Selection, columns: RowColumns) -> list[int]:
        looked.append(len(columns))
        return right(selection, columns)

    monkeypatch.setattr(Selection, "_row_by_row", counted)
    blocks = [
        RowColumns.scan(transaction(first, [insert(512, [n]) for n in range(4)]))
        for first in (1, 5, 9, 13)
    ]
    selection = Selection(start=ReplicaBound(1, 7), stop=ReplicaBound(1, 10))
    selection.begin(Meta("XLOG", VClock()))
    assert [selection.rows(one, {}) for one in blocks] == [[], [2, 3], [0, 1], []]
    assert looked == [4, 4, 4]
