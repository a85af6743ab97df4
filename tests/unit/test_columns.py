"""Columns of a block: what they hold, transactions, packets, encoding."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from samples import GOOD, blocks, sample

from logweir import limits
from logweir.errors import DecodeError, LimitExceeded
from logweir.wal.columns import ABSENT, ALONE, ODD, RowColumns, encode_columns, encode_run
from logweir.wal.xrow import Row, decode_row, encode_row, encode_rows

MIXED = [
    Row(2, 1, 5, 1.5, 5, body=bytes.fromhex("8210cd0200219101")),
    Row(4, 1, 6, 1.5, 6, False, body=bytes.fromhex("8410cd02001501209101219193a12b0201")),
    Row(9, 1, 7, 1.5, 6, False, body=bytes.fromhex("8310cd0200289193a12b0201219101")),
    Row(5, 0, 3, 1.5, 6, False, 1, body=bytes.fromhex("8210cd0201209101")),
    Row(12, 1, 8, 1.5, 6, True, 0, 1),
    Row(40, 1, 9, 0.0, 9, body=bytes.fromhex("820201030a")),
]
"""A single row, a transaction of four with a local row and its closing NOP, a CONFIRM."""


def test_columns_of_a_block() -> None:
    """Each column, row by row."""
    data = encode_rows(MIXED)
    columns = RowColumns.scan(data)
    assert len(columns) == 6
    assert columns.data == data
    ends = [len(encode_rows(MIXED[: i + 1])) for i in range(6)]
    want: dict[str, list[Any]] = {
        "type": [2, 4, 9, 5, 12, 40],
        "replica_id": [1, 1, 1, 0, 1, 1],
        "group_id": [0, 0, 0, 1, 0, 0],
        "lsn": [5, 6, 7, 3, 8, 9],
        "timestamp": [1.5, 1.5, 1.5, 1.5, 1.5, 0.0],
        "timestamp_bits": [0x3FF8 << 48] * 5 + [0],
        "tsn": [5, 6, 6, 6, 6, 9],
        "flags": [1 | ALONE, 0, 0, 0, 1, 1 | ALONE],
        "space_id": [512, 512, 512, 513, ABSENT, ABSENT],
        "index_base": [0, 1, 0, 0, 0, 0],
        "row_offset": [0, *ends[:-1]],
        "end_offset": ends,
        "body_offset": [end - len(row.body) for end, row in zip(ends, MIXED, strict=True)],
    }
    for name, values in want.items():
        column = getattr(columns, name)
        assert column.tolist() == values, name
        assert column.format == ("d" if name == "timestamp" else "Q")
    parts = {
        "key_bytes": [None, b"\x91\x01", None, b"\x91\x01", None, None],
        "tuple_bytes": [b"\x91\x01", None, b"\x91\x01", None, None, None],
        "ops_bytes": [None, MIXED[1].body[-6:], MIXED[1].body[-6:], None, None, None],
        "body_bytes": [row.body for row in MIXED],
        "row_bytes": list(map(encode_row, MIXED)),
        "row": MIXED,
    }
    for name, values in parts.items():
        assert [getattr(columns, name)(i) for i in range(6)] == values, name
    for name in ("key", "tuple", "ops"):
        for span in getattr(columns, f"{name}_span"):
            assert span == 0 or data[span & 0xFFFFFFFF] & 0xF0 == 0x90
    assert columns.transactions() == [(0, 1), (1, 5), (5, 6)]
    assert columns.transaction_ends().tolist() == [1, 5, 6]
    assert columns.last_lsns() == {0: 3, 1: 9}


def test_operations_of_odd_bodies() -> None:
    """An UPDATE with both keys means 21; with 28 alone it means that."""
    both = Row(4, 1, 1, body=bytes.fromhex("8221910128 9102".replace(" ", "")))
    late = Row(4, 1, 2, body=bytes.fromhex("81289102"))
    columns = RowColumns.scan(encode_rows([both, late]))
    assert columns.ops_bytes(0) == b"\x91\x01"
    assert columns.ops_bytes(1) == b"\x91\x02"
    assert columns.tuple_bytes(0) is None


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_other_buffers_are_copied(kind: Any) -> None:
    """Columns do not change when the buffer they came from does."""
    source = bytearray(encode_rows(MIXED))
    columns = RowColumns.scan(kind(source))
    source[:] = bytes(len(source))
    assert columns.row(1) == MIXED[1]


def test_odd_rows_are_exact() -> None:
    """Headers that say more than the columns are marked, and still give the whole row."""
    for data in (
        bytes.fromhex("820002 0a07 80".replace(" ", "")),
        bytes.fromhex("820002 0901 80".replace(" ", "")),
        bytes.fromhex("820002 09cf4000000000000000 80".replace(" ", "")),
    ):
        columns = RowColumns.scan(data)
        assert columns.flags[0] & ODD
        assert columns.row(0) == decode_row(data)[0]
    for index in (-1, 1):
        with pytest.raises(IndexError, match="of 1"):
            columns.row(index)


def test_empty_block() -> None:
    """No bytes are no rows, and no transactions."""
    columns = RowColumns.scan(b"")
    assert len(columns) == 0
    assert columns.transactions() == []
    assert columns.lsn.tolist() == []
    assert columns.packets(0, 0, after={}) == b""
    assert columns.last_lsns() == {}


def test_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of exactly the limit is scanned, one byte more is refused before it is."""
    data = bytes.fromhex("81000c") * 10
    monkeypatch.setattr("logweir.wal.columns.BLOCK_STORED_BYTES", 30)
    assert len(RowColumns.scan(data)) == 10
    with pytest.raises(LimitExceeded, match="BLOCK_STORED_BYTES is 30, got 33"):
        RowColumns.scan(data + b"\x81\x00\x0c")
    assert limits.BLOCK_STORED_BYTES < 2**32


def test_rows_that_interleave() -> None:
    """A row of another transaction inside one is refused at its byte."""
    rows = [MIXED[1], MIXED[0], MIXED[4]]
    columns = RowColumns.scan(encode_rows(rows))
    with pytest.raises(DecodeError, match="transaction 5 stands inside transaction 6") as caught:
        columns.transactions()
    assert caught.value.offset == columns.row_offset[1]


def test_block_that_ends_inside_a_transaction() -> None:
    """A block without the last row of its last transaction is refused at its end."""
    data = encode_rows(MIXED[:4])
    with pytest.raises(DecodeError, match="ends inside a transaction") as caught:
        RowColumns.scan(data).transaction_ends()
    assert caught.value.offset == len(data)


def test_errors_are_those_of_the_row_codec() -> None:
    """What is malformed is named as xrow names it, at the block's byte."""
    good = encode_row(MIXED[0])
    for bad, reason, offset in (
        ("8100d005", "row header: type is not unsigned", 2),
        ("810002812101", "row body: tuple is not an array", 5),
        ("810002", "row body is missing", 3),
        ("80", "row header has no type", 0),
    ):
        with pytest.raises(DecodeError, match=reason) as caught:
            RowColumns.scan(good + bytes.fromhex(bad))
        assert caught.value.offset == len(good) + offset
    with pytest.raises(LimitExceeded):
        RowColumns.scan(good + b"\x81\x00\x02\x81\x01" + b"\x91" * 600 + b"\x01")


def test_a_kernel_that_refuses_a_good_row_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that only the kernel finds malformed is not passed off as damage."""
    broken = SimpleNamespace(
        scan=lambda data, table, capacity: 0, blank=lambda numbers: bytearray(8 * numbers)
    )
    monkeypatch.setattr("logweir.wal.columns.kernel", broken)
    with pytest.raises(AssertionError, match="do not agree on the row at byte 0"):
        RowColumns.scan(encode_row(MIXED[0]))


def test_raised_lsns() -> None:
    """Lsns are raised per replica id; the first that is not above the one before is told."""
    columns = RowColumns.scan(encode_rows(MIXED))
    lsns = array("Q", [0]) * 32
    assert columns.raise_lsns(lsns) is None
    assert lsns[:2].tolist() == [3, 9]
    assert columns.raise_lsns(lsns) == 0
    foreign = RowColumns.scan(encode_rows([MIXED[0], Row(12, 32, 1)]))
    with pytest.raises(DecodeError, match="replica 32") as caught:
        foreign.last_lsns()
    assert caught.value.offset == foreign.row_offset[1]


def test_packets_of_a_mixed_block() -> None:
    """Local rows are left out, the closing NOP goes out, what the follower has is skipped."""
    columns = RowColumns.scan(encode_rows(MIXED))
    stored = [columns.row_bytes(i) for i in range(6)]

    def framed(*numbers: int) -> bytes:
        return b"".join(b"\xce" + len(stored[i]).to_bytes(4, "big") + stored[i] for i in numbers)

    assert columns.packets(0, 6, after={}) == framed(0, 1, 2, 4, 5)
    assert columns.packets(0, 6, after={1: 5}) == framed(1, 2, 4, 5)
    assert columns.packets(1, 5, after={}, upto={1: 7}) == framed(1, 2)
    assert columns.packets(0, 6, after={}, upto={1: 0}) == b""
    header = columns.packets(0, 1, after={}, sync=5)
    assert header[5:10].hex() == "8501050002"


@pytest.mark.parametrize("name", GOOD)
def test_samples_encode_to_their_bytes(name: str) -> None:
    """The columns of every block, with its bodies, encode to the block again."""
    for file in sample(name).files:
        for _, data in blocks(file.path):
            columns = RowColumns.scan(data)
            assert columns.transaction_ends()[-1] == len(columns)
            again = encode_columns(
                type=columns.type,
                replica_id=columns.replica_id,
                group_id=columns.group_id,
                lsn=columns.lsn,
                timestamp_bits=columns.timestamp_bits,
                tsn=columns.tsn,
                flags=columns.flags,
                source=data,
                starts=columns.body_offset,
                stops=columns.end_offset,
            )
            assert again == data


def test_encode_columns_takes_numbers_and_sequences() -> None:
    """A number stands for all rows; lists, arrays and buffers may be mixed."""
    got = encode_columns(
        type=2,
        replica_id=1,
        lsn=range(5, 7),
        timestamp_bits=0,
        tsn=array("Q", (5, 5)),
        flags=[0, 1],
        source=bytearray(b"\x91\x01\x91\x02"),
        starts=[0, 2],
        stops=memoryview(array("Q", (2, 4))),
        prefix=bytes.fromhex("8210cd020021"),
    )
    body = bytes.fromhex("8210cd020021")
    rows = [
        Row(2, 1, 5, 0.0, 5, False, body=body + b"\x91\x01"),
        Row(2, 1, 6, 0.0, 5, True, body=body + b"\x91\x02"),
    ]
    assert got == encode_rows(rows)


def test_encoding_refuses_what_does_not_fit() -> None:
    """Columns of different lengths and slices outside of the source are programmer's errors."""
    header: dict[str, Any] = dict.fromkeys(("type", "replica_id", "timestamp_bits", "tsn"), 1)
    with pytest.raises(ValueError, match="a column has 3 rows, not 2"):
        encode_columns(lsn=[1, 2, 3], flags=1, source=b"", starts=[0, 0], stops=[0, 0], **header)
    with pytest.raises(ValueError, match="body of row 1 is not a slice"):
        encode_columns(lsn=1, flags=1, source=b"ab", starts=[0, 2], stops=[1, 3], **header)
    run: dict[str, Any] = {"type": 2, "replica_id": 1, "first_lsn": 1, "timestamp": 1.5}
    with pytest.raises(ValueError, match="body of row 0 is not a slice"):
        encode_run(source=b"ab", bounds=array("Q", (2, 1)), **run)
    assert encode_run(source=b"", bounds=array("Q", (0,)), **run) == b""


def test_run_of_local_rows() -> None:
    """Group and replica id go into every header of a run, from any buffer."""
    got = encode_run(
        type=3,
        replica_id=0,
        group_id=1,
        first_lsn=2**32 - 1,
        timestamp=1.5,
        source=memoryview(b"\x80\x80"),
        bounds=array("Q", (0, 1, 2)),
    )
    rows = [Row(3, 0, 2**32 - 1 + i, 1.5, 2**32 - 1 + i, True, 1, body=b"\x80") for i in (0, 1)]
    assert got == encode_rows(rows)
