"""JSON of MsgPack values, and lines of rows."""

from __future__ import annotations

import json
import math
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from samples import GOOD, sample
from values import same, values

from logweir.errors import DecodeError, LimitExceeded
from logweir.wal.block import FixHeader
from logweir.wal.columns import RowColumns
from logweir.wal.mp import Ext, MapPairs, map_of, pack, unpack
from logweir.wal.reader import Block, WalReader
from logweir.wal.render import dumps, from_json, row_fields, row_line, to_json, value_json
from logweir.wal.spacenames import SpaceNames
from logweir.wal.xrow import Row, encode_row

UUID = uuid.UUID("64d22e4d-ac92-4a23-899a-e59f34af5479")

VECTORS: list[tuple[Any, str]] = [
    (None, "null"),
    (True, "true"),
    (2**64 - 1, "18446744073709551615"),
    (-(2**63), "-9223372036854775808"),
    (1.0, "1.0"),
    (-0.0, "-0.0"),
    (math.nan, '{"$float": "nan"}'),
    (math.inf, '{"$float": "inf"}'),
    (-math.inf, '{"$float": "-inf"}'),
    ("žluť", '"žluť"'),
    ("a\udcffb", '{"$str": "Yf9i"}'),
    (b"\xde\xad\xbe\xef", '{"$bin": "3q2+7w=="}'),
    (b"", '{"$bin": ""}'),
    (Decimal("1.50"), '{"$decimal": "1.50"}'),
    (Decimal("-0"), '{"$decimal": "-0"}'),
    (Decimal("1E+3"), '{"$decimal": "1E+3"}'),
    (UUID, '{"$uuid": "64d22e4d-ac92-4a23-899a-e59f34af5479"}'),
    (Ext(4, bytes(3)), '{"$ext": [4, "AAAA"]}'),
    (Ext(-1, b"\x01"), '{"$ext": [-1, "AQ=="]}'),
    (Ext(-1, bytes(4)), '{"$ext": [-1, "AAAAAA=="]}'),
    ([1, "a", [None]], '[1, "a", [null]]'),
    ({}, "{}"),
    ({"a": 1, "b": {"c": b"x"}}, '{"a": 1, "b": {"c": {"$bin": "eA=="}}}'),
    ({1: "one", 2: "two"}, '{"$map": [[1, "one"], [2, "two"]]}'),
    ({"a\udcff": 1, "b": 2}, '{"$map": [[{"$str": "Yf8="}, 1], ["b", 2]]}'),
    ({"$bin": "x"}, '{"$map": [["$bin", "x"]]}'),
    ({"$bin": "x", "$str": "y"}, '{"$bin": "x", "$str": "y"}'),
    (MapPairs([([1], 2)]), '{"$map": [[[1], 2]]}'),
    (MapPairs([("a", 1), ("a", 2)]), '{"$map": [["a", 1], ["a", 2]]}'),
]


@pytest.mark.parametrize(("value", "text"), VECTORS)
def test_vectors(value: Any, text: str) -> None:
    """Every kind of value has its one rendering, from the value and from its bytes, and back."""
    assert dumps(value) == text
    assert value_json(pack(value)) == text
    assert same(from_json(json.loads(text)), value)


@settings(max_examples=400)
@given(values())
def test_round_trip_is_exact(value: Any) -> None:
    """Bytes to value to JSON text and back give the same value; both ways to text agree."""
    data = pack(value)
    decoded = unpack(data)
    text = dumps(decoded)
    assert value_json(data) == text
    assert "\n" not in text
    assert same(from_json(json.loads(text)), decoded)


def test_a_tuple_is_an_array() -> None:
    """Tuples render as lists do, and what is no MsgPack value is refused."""
    assert to_json((1, (2.5, b""))) == [1, [2.5, {"$bin": ""}]]
    with pytest.raises(TypeError, match="set"):
        to_json([{1, 2}])


@pytest.mark.parametrize(
    "text",
    [
        '{"$unknown": 1}',
        '{"$bin": "x"}',
        '{"$bin": 5}',
        '{"$bin": "eA==\\n"}',
        '{"$str": null}',
        '{"$decimal": "one"}',
        '{"$decimal": []}',
        '{"$uuid": "64d2"}',
        '{"$uuid": 7}',
        '{"$ext": [1]}',
        '{"$ext": [200, ""]}',
        '{"$ext": ["x", ""]}',
        '{"$float": "1.5"}',
        '{"$float": []}',
        '{"$map": [[1]]}',
        '{"$map": 5}',
        '[{"a": {"$": 1}}]',
    ],
)
def test_malformed_markers_are_refused(text: str) -> None:
    """An object with one key that begins with $ is a marker or an error, never a map."""
    with pytest.raises(DecodeError, match=r"\$"):
        from_json(json.loads(text))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x01", b"\x01\x02", b"\xc7\x01\x01\xff"])
def test_malformed_bytes_are_refused(data: bytes) -> None:
    """Bytes that are not one value raise what `mp.unpack` raises."""
    with pytest.raises(DecodeError):
        value_json(data)


def test_deep_values_are_refused() -> None:
    """512 arrays in one another have a rendering, one more has not."""
    assert value_json(b"\x91" * 512 + b"\x01") == "[" * 512 + "1" + "]" * 512
    with pytest.raises(LimitExceeded):
        value_json(b"\x91" * 513 + b"\x01")


def line_of(row: Row, names: dict[int, str] | None = None, *, raw: bool = False) -> dict[str, Any]:
    """The line of one row in a block of its own, checked against `row_fields`."""
    columns = RowColumns.scan(encode_row(row))
    block = Block("/data/00000000000000000000.xlog", 97, FixHeader("plain", 1, 0), columns)
    line = row_line(block, 0, names or {}, raw=raw)
    space = (names or {}).get(row.space_id) if row.space_id is not None else None
    fields = row_fields(
        row, file="00000000000000000000.xlog", offset=97, row_index=0, space=space, raw=raw
    )
    assert line == json.dumps(fields, ensure_ascii=False)
    parsed: dict[str, Any] = json.loads(line)
    return parsed


HEAD = {
    "file": "00000000000000000000.xlog",
    "offset": 97,
    "row": 0,
    "replica_id": 1,
    "lsn": 5,
    "timestamp": 1795207702.515,
    "tsn": 5,
    "commit": True,
    "group_id": 0,
}


def row(kind: int, body: bytes, **header: Any) -> Row:
    """A row of replica 1, lsn 5."""
    return Row(kind, 1, 5, 1795207702.515, header.pop("tsn", 5), body=body, **header)


def test_insert_line() -> None:
    """An INSERT has space, name where known, and tuple; with raw the exact bytes too."""
    insert = row(2, bytes.fromhex("8210cd02002192cd0001a178"))
    want = HEAD | {"type": "INSERT", "space_id": 512, "tuple": [1, "x"]}
    assert line_of(insert) == want
    assert line_of(insert, {512: "orders"}) == want | {"space": "orders"}
    assert line_of(insert, raw=True) == want | {"tuple_mp": "92cd0001a178"}
    assert list(line_of(insert, {512: "orders"}))[:12] == [
        *("file", "offset", "row", "type", "replica_id", "lsn", "timestamp", "tsn", "commit"),
        *("group_id", "space_id", "space"),
    ]


def test_update_line() -> None:
    """Operations are `ops` for UPDATE (stored as the tuple) and for UPSERT (stored as such)."""
    update = row(4, bytes.fromhex("8410cd01101501209101219193a12b0201"))
    want = HEAD | {"type": "UPDATE", "space_id": 272, "key": [1], "ops": [["+", 2, 1]]}
    assert line_of(update) == want | {"index_base": 1}
    raw = {"key_mp": "9101", "ops_mp": "9193a12b0201"}
    assert line_of(update, raw=True) == want | {"index_base": 1} | raw
    zero_based = row(4, bytes.fromhex("8310cd0110209101219193a12b0201"))
    assert line_of(zero_based) == want | {"index_base": 0}
    both = row(4, bytes.fromhex("8410cd0110209101219193a12b02012890"))
    assert line_of(both) == want | {"index_base": 0}
    odd = row(4, bytes.fromhex("8310cd0110209101289193a12b0201"))
    assert line_of(odd) == want | {"index_base": 0}
    upsert = row(9, bytes.fromhex("8310cd0110289193a12b0201219101"))
    want = HEAD | {"type": "UPSERT", "space_id": 272, "tuple": [1], "ops": [["+", 2, 1]]}
    assert line_of(upsert) == want | {"index_base": 0}


def test_lines_of_rows_without_a_space() -> None:
    """A NOP has a header only; CONFIRM and unknown types show their whole body."""
    assert line_of(row(12, b"")) == HEAD | {"type": "NOP"}
    confirm = row(40, bytes.fromhex("820201030a"), tsn=4, commit=False)
    want = {"type": "CONFIRM", "tsn": 4, "commit": False, "body": {"$map": [[2, 1], [3, 10]]}}
    assert line_of(confirm) == HEAD | want
    assert line_of(row(99, b"\x80")) == HEAD | {"type": "99", "body": {}}


def test_odd_headers_render() -> None:
    """A time stamp that is no number, and a space name that is not UTF-8, have their markers."""
    odd = Row(2, 1, 5, math.inf, 5, body=bytes.fromhex("8110cd0200"), unknown=((10, b"\x01"),))
    line = line_of(odd, {512: "a\udcff"})
    assert line["timestamp"] == {"$float": "inf"}
    assert line["space"] == {"$str": "Yf8="}


@pytest.mark.parametrize("name", GOOD)
def test_lines_of_the_samples(name: str) -> None:
    """Every row of the samples: the line is that of its row, with the program's exact bytes."""
    names = SpaceNames()
    for file in sample(name).files:
        expected = iter(file.rows)
        with WalReader(file.path) as reader:
            for block in reader.blocks():
                assert isinstance(block, Block)
                names.learn(block.columns)
                for number, one in enumerate(block.rows()):
                    line = json.loads(row_line(block, number, names, raw=True))
                    assert line == row_fields(
                        one,
                        file=Path(block.path).name,
                        offset=block.offset,
                        row_index=number,
                        space=names.get(one.space_id) if one.space_id is not None else None,
                        raw=True,
                    )
                    want = next(expected)
                    body = want.get("body", {})
                    update = want["type"] == "UPDATE"
                    assert line["type"] == want["type"]
                    assert line["timestamp"] == want["timestamp"]
                    assert line.get("key_mp") == body.get("key_mp")
                    assert line.get("ops_mp" if update else "tuple_mp") == body.get("tuple_mp")
        assert next(expected, None) is None


def test_map_of_keeps_what_a_dict_cannot_hold() -> None:
    """Keys that Python takes for one another, or that it cannot hash, stay apart."""
    assert map_of([(1, 2), (3, 4)]) == {1: 2, 3: 4}
    assert map_of([(1, 2), (1.0, 3)]) == MapPairs([(1, 2), (1.0, 3)])
    assert map_of([(1, 2), (True, 3)]) == MapPairs([(1, 2), (True, 3)])
