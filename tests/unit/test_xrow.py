"""Rows: bytes and objects."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutation import mutate, wild_row
from samples import GOOD, blocks, sample
from values import values

from logweir.errors import DecodeError, LimitExceeded
from logweir.wal.mp import encode_uint, pack, unpack
from logweir.wal.xrow import (
    Body,
    Row,
    RowType,
    Transaction,
    decode_body,
    decode_row,
    encode_row,
    encode_rows,
)

UPDATE = bytes.fromhex(
    "84000402010301"
    + "04cb41dac02c85a0f9d5"
    + "8410cd0110150120"
    + "91a66d61785f6964219193a12b0201"
)
"""A row that Tarantool 2.6.0 wrote."""


def test_worked_row() -> None:
    """An UPDATE of `_schema`, byte by byte."""
    row, end = decode_row(UPDATE)
    assert end == len(UPDATE)
    assert row == Row(4, 1, 1, row.timestamp, 1, True, 0, 0, UPDATE[17:])
    assert row.type_name == "UPDATE"
    assert row.is_single
    assert row.space_id == 272
    want = {"space_id": 272, "index_base": 1, "key": ["max_id"], "ops": [["+", 2, 1]]}
    assert row.decoded() == want
    assert decode_body(row.body) == Body(272, 0, 1, b"\x91\xa6max_id", b"\x91\x93\xa1+\x02\x01")
    assert encode_row(row) == UPDATE
    assert decode_row(memoryview(b"\xc0" + UPDATE), 1) == (row, len(UPDATE) + 1)


def file_rows(name: str) -> Any:
    """Each row of a sample with what the real program says of it."""
    for file in sample(name).files:
        want = iter(file.rows)
        for _, data in blocks(file.path):
            at = 0
            while at < len(data):
                start = at
                row, at = decode_row(data, at)
                yield row, data[start:at], next(want)
        assert next(want, None) is None


@pytest.mark.parametrize("name", GOOD)
def test_rows_of_the_samples(name: str) -> None:
    """Every row says what the real program's `xlog` module says, and encodes to its bytes."""
    count = 0
    for row, data, want in file_rows(name):
        assert encode_row(row) == data
        body = want.get("body", {})
        assert row.type_name == want["type"]
        assert row.lsn == want.get("lsn", 0)
        assert row.replica_id == want.get("replica_id", 0)
        assert row.group_id == want.get("group_id", 0)
        assert row.timestamp == want["timestamp"]
        assert row.unknown == ()
        if "tsn" in want:
            assert row.tsn == want["tsn"]
            assert row.commit == want.get("commit", False)
        else:
            assert row.is_single
        parts = decode_body(row.body) if row.body else Body()
        assert parts.space_id == body.get("space_id")
        assert parts.index_base == body.get("index_base", 0)
        assert (parts.key.hex() if parts.key else None) == body.get("key_mp")
        assert (parts.tuple.hex() if parts.tuple else None) == body.get("tuple_mp")
        assert parts.unknown == ()
        if "operations" in body:
            assert row.decoded()["ops"] == body["operations"]
        if "tuple_mp" in body:
            name_of_21 = "ops" if row.type == RowType.UPDATE else "tuple"
            assert pack(row.decoded()[name_of_21]).hex() == body["tuple_mp"]
        count += 1
    assert count > 500


def test_samples_have_what_matters() -> None:
    """Among the samples' rows are mixed transactions, whose local rows wrap around, and a NOP."""
    rows = [row for row, _, _ in file_rows("02-spaces")]
    assert any(row.lsn < row.tsn for row in rows)
    assert {"NOP", "UPSERT", "DELETE", "UPDATE"} <= {row.type_name for row in rows}
    assert any(row.group_id == 1 for row in rows)
    for one, two in pairwise(row for row in rows if row.replica_id):
        assert one.commit or one.tsn == two.tsn


@pytest.mark.parametrize(
    ("row", "data"),
    [
        (Row(12), "81 00 0c"),
        (Row(2, body=b"\x80"), "81 00 02 80"),
        (Row(2, 1, 5, 1.5, 5, body=b"\x80"), "84 0002 0201 0305 04cb3ff8000000000000 80"),
        (Row(2, 1, 5, 0.0, 5, False, body=b"\x80"), "84 0002 0201 0305 0800 80"),
        (Row(2, 1, 6, 0.0, 5, True, body=b"\x80"), "85 0002 0201 0306 0801 0901 80"),
        (Row(2, 1, 6, 0.0, 5, True, 1, 1, b"\x80"), "86 0002 0201 0701 0306 0801 0901 80"),
        (
            Row(2, 0, 4, 0.0, 432, False, 1, body=b"\x80"),
            "84 0002 0701 0304 08cffffffffffffffe54 80",
        ),
        (Row(2, 1, 6, 0.0, 6, True, 0, 2, b"\x80"), "84 0002 0201 0306 0902 80"),
        (Row(2, unknown=((1, b"\xcd\x01\x00"), (10, b"\xa1x")), body=b"\x80"), None),
    ],
)
def test_encoded_headers(row: Row, data: str | None) -> None:
    """Keys stand in Tarantool's order, each only if it says something."""
    want = bytes.fromhex((data or "83 0002 01cd0100 0aa178 80").replace(" ", ""))
    assert encode_row(row) == want
    got, end = decode_row(want)
    assert end == len(want)
    assert encode_row(got) == want
    assert encode_rows([row, row]) == want * 2


@pytest.mark.parametrize(("count", "begin"), [(15, "8f"), (16, "de 0010"), (17, "de 0011")])
def test_header_of_many_keys(count: int, begin: str) -> None:
    """With more than 15 keys the header is a 16-bit map, and it reads back."""
    unknown = tuple((key, b"\x07") for key in range(0x0A, 0x0A + count - 1))
    row = Row(2, body=b"\x80", unknown=unknown)
    data = encode_row(row)
    assert data.startswith(bytes.fromhex(begin))
    assert decode_row(data) == (row, len(data))
    wide = b"\xdf\x00\x00\x00\x01\x00\x0c"
    assert decode_row(wide) == (Row(12), len(wide))


@pytest.mark.parametrize(
    ("data", "offset", "reason"),
    [
        ("", 0, "row header is missing"),
        ("05", 0, "row header is not a map"),
        ("9100", 0, "row header is not a map"),
        ("8100", 1, "declares more items"),
        ("81d00002", 1, "key that is not an unsigned"),
        ("81a10002", 1, "key that is not an unsigned"),
        ("80", 0, "no type"),
        ("810201", 0, "no type"),
        ("8100d002", 2, "type is not unsigned"),
        ("8100ff", 2, "type is not unsigned"),
        ("820002 02c0", 4, "replica_id is not unsigned"),
        ("820002 03a0", 4, "lsn is not unsigned"),
        ("820002 07c3", 4, "group_id is not unsigned"),
        ("820002 08d000", 4, "tsn is not unsigned"),
        ("820002 0990", 4, "flags is not unsigned"),
        ("820002 04ca3fc00000", 4, "timestamp is not a 64-bit float"),
        ("820002 0401", 4, "timestamp is not a 64-bit float"),
        ("820002 5301", 4, "key 0x53 is not known"),
        ("820002 cf800000000000000001", 12, "key 0x8000000000000000 is not known"),
        ("810002", 3, "row body is missing"),
        ("81000290", 3, "row body is not a map"),
        ("810002 81", 4, "declares more items"),
    ],
)
def test_rows_that_are_refused(data: str, offset: int, reason: str) -> None:
    """What is not a row is refused at the byte, for a reason."""
    with pytest.raises(DecodeError, match=reason) as caught:
        decode_row(bytes.fromhex(data.replace(" ", "")))
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    ("data", "offset", "reason"),
    [
        ("", 0, "row body is missing"),
        ("90", 0, "row body is not a map"),
        ("8000", 1, "bytes follow"),
        ("81a0c0", 1, "key that is not an unsigned"),
        ("8110d001", 2, "space_id is not unsigned"),
        ("8111c0", 2, "index_id is not unsigned"),
        ("8115a0", 2, "index_base is not unsigned"),
        ("812001", 2, "key is not an array"),
        ("812180", 2, "tuple is not an array"),
        ("8128a0", 2, "ops is not an array"),
    ],
)
def test_bodies_that_are_refused(data: str, offset: int, reason: str) -> None:
    """What is not a body is refused at the byte, for a reason."""
    with pytest.raises(DecodeError, match=reason) as caught:
        decode_body(bytes.fromhex(data))
    assert caught.value.offset == offset


def test_body_parts() -> None:
    """Every key of a body, arrays of all widths, and keys that are not in the table."""
    data = bytes.fromhex("87 10 01 11 02 15 01 20 dc000105 21 dd00000001c0 28 90 2a 8101c0")
    want = Body(1, 2, 1, b"\xdc\0\1\5", b"\xdd\0\0\0\1\xc0", b"\x90", ((0x2A, b"\x81\x01\xc0"),))
    assert decode_body(data) == want
    assert decode_body(memoryview(data)) == want
    row = Row(9, body=data)
    assert row.decoded() == {
        "space_id": 1,
        "index_id": 2,
        "index_base": 1,
        "key": [5],
        "tuple": [None],
        "ops": [],
    }


@pytest.mark.parametrize(
    ("row", "decoded", "space_id"),
    [
        (Row(12), {}, None),
        (Row(40, body=bytes.fromhex("820201030a")), {}, None),
        (Row(5, body=bytes.fromhex("821001209105")), {"space_id": 1, "key": [5]}, 1),
        (Row(4, body=bytes.fromhex("81219105")), {"ops": [5]}, None),
        (Row(4, body=bytes.fromhex("81289105")), {"ops": [5]}, None),
        (Row(4, body=bytes.fromhex("822191052890")), {"ops": [5]}, None),
        (Row(9, body=bytes.fromhex("822191052890")), {"tuple": [5], "ops": []}, None),
    ],
)
def test_decoded_bodies(row: Row, decoded: dict[str, Any], space_id: int | None) -> None:
    """Operations are `ops`, whatever key they stood under."""
    assert row.decoded() == decoded
    assert row.space_id == space_id


def test_type_names() -> None:
    """Types without a name are shown by their number."""
    assert Row(40).type_name == "CONFIRM"
    assert Row(77).type_name == "77"


u64 = st.integers(0, 2**64 - 1)
rows = st.builds(
    lambda kind, replica_id, lsn, timestamp, tsn, commit, group_id, flags, body: Row(
        kind,
        replica_id,
        lsn,
        timestamp,
        lsn if tsn is None else tsn,
        commit if tsn is not None else True,
        group_id,
        (flags & ~1) | (commit if tsn is not None and tsn != lsn else 0),
        b"" if kind == RowType.NOP else b"\x81\x2b" + pack(body),
    ),
    st.sampled_from([2, 3, 4, 5, 9, 12, 40, 2**40]),
    u64,
    u64,
    st.floats(min_value=1.0, allow_nan=False),
    st.none() | u64,
    st.booleans(),
    u64,
    u64,
    values(),
)


@given(rows)
def test_round_trip(row: Row) -> None:
    """What is encoded reads back, every field of it."""
    data = encode_row(row)
    got, end = decode_row(data)
    assert end == len(data)
    assert (got.type, got.replica_id, got.lsn, got.tsn) == (
        row.type,
        row.replica_id,
        row.lsn,
        row.tsn,
    )
    assert (got.timestamp, got.commit, got.group_id) == (row.timestamp, row.commit, row.group_id)
    assert got.flags | 1 == row.flags | 1
    assert got.body == row.body
    assert encode_row(got) == data


def test_truncation_at_each_byte() -> None:
    """A row cut anywhere is refused."""
    for size in range(len(UPDATE)):
        with pytest.raises(DecodeError):
            decode_row(UPDATE[:size])


def test_flipped_bits() -> None:
    """Each bit of a row flipped gives a row of at most its bytes, or an error."""
    read = 0
    for bit in range(8 * len(UPDATE)):
        damaged = bytearray(UPDATE)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            row, end = decode_row(bytes(damaged))
            decode_body(row.body)
        except DecodeError:
            continue
        assert end <= len(UPDATE)
        read += 1
    assert read > 80


def test_hostile_rows_are_rows_or_errors() -> None:
    """Wild and damaged rows are read, and then encode to the same row, or are refused by us."""
    random = Random(13)
    read = 0
    for _ in range(6_000):
        data = wild_row(random)
        try:
            row, _ = decode_row(mutate(random, data) if random.random() < 0.5 else data)
            row.decoded()
        except (DecodeError, LimitExceeded):
            continue
        read += 1
        again, _ = decode_row(encode_row(row))
        assert (again.lsn, again.tsn, again.commit, again.body) == (
            row.lsn,
            row.tsn,
            row.commit,
            row.body,
        )
        assert again.unknown == row.unknown
    assert read > 1_000


def test_deep_bodies_are_refused() -> None:
    """A body nested deeper than the limit is refused by its limit's name."""
    deep = b"\x81\x00\x02\x81\x2a" + b"\x91" * 600 + b"\xc0"
    with pytest.raises(LimitExceeded, match="MSGPACK_DEPTH"):
        decode_row(deep)


def test_transaction_holds_its_place() -> None:
    """A transaction knows its rows, its file and its block."""
    row, _ = decode_row(UPDATE)
    transaction = Transaction((row,), "x.xlog", 97)
    assert unpack(encode_uint(transaction.offset)) == 97
    assert transaction.rows[0].lsn == 1
