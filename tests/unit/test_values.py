"""Walking over MsgPack bytes: headers in each form, strings, integers and steps."""

from __future__ import annotations

import pytest

from logweir.errors import RequestError
from logweir.store.schema.jsonpath import ANY
from logweir.store.schema.values import (
    go_to,
    map_header,
    read_array,
    read_bytes,
    read_int,
    read_map,
    skip,
    string,
)
from logweir.wal.mp import pack


def test_headers_are_read_in_each_form() -> None:
    """Counts of arrays and maps stand in four bits, 16 or 32, and what follows is found."""
    for data, count, at in (("93", 3, 1), ("dc0100", 256, 3), ("dd00010000", 65536, 5)):
        assert read_array(bytes.fromhex(data), 0) == (count, at)
    for data, count, at in (("83", 3, 1), ("de0100", 256, 3), ("df00010000", 65536, 5)):
        assert read_map(bytes.fromhex(data), 0) == (count, at)
    for data in ("dc01", "dd000000"):
        with pytest.raises(RequestError) as caught:
            read_array(bytes.fromhex(data), 0)
        assert caught.value.code == 20
    for data in ("", "81", "a1"):
        with pytest.raises(RequestError) as caught:
            read_array(bytes.fromhex(data), 0)
        assert caught.value.code == 22


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 65535, 65536])
def test_strings_of_each_length_are_read_and_written(size: int) -> None:
    """The bytes of str and bin stand where they say; `string` takes the shortest header."""
    raw = b"\xff" + b"x" * (size - 1) if size else b""
    for data in (string(raw), pack(raw)):
        begin, end = read_bytes(data, 0)
        assert data[begin:end] == raw
        assert end == len(data) == skip(data, 0)
        if size:
            with pytest.raises(RequestError):
                read_bytes(data[:-1], 0)
    assert string(b"abc") == pack("abc")


@pytest.mark.parametrize("value", [0, 127, 128, 2**16, 2**32, 2**64 - 1, -1, -32, -33, -(2**63)])
def test_integers_are_read(value: int) -> None:
    """Integers of each width and sign."""
    assert read_int(b"\0" + pack(value), 1) == value
    if -(2**63) <= value < 2**63:
        assert read_int(b"\xd3" + value.to_bytes(8, "big", signed=True), 0) == value


def test_steps_lead_into_arrays_and_maps() -> None:
    """Elements by number, keys by their bytes, integer keys one higher; else nowhere."""
    data = pack([10, {"a": 20, 3: 30, "b": 40, -1: 0}])
    inner = go_to(data, 0, 1)
    assert read_int(data, go_to(data, 0, 0)) == 10
    assert read_int(data, go_to(data, inner, b"a")) == 20
    assert read_int(data, go_to(data, inner, 2)) == 30
    assert read_int(data, go_to(data, inner, b"b")) == 40
    for at, step in ((0, 2), (0, b"a"), (inner, b"c"), (inner, 9), (1, 0), (inner, ANY)):
        assert go_to(data, at, step) == -1


def test_map_headers_are_written_in_each_form() -> None:
    """Four bits, 16 or 32."""
    assert [map_header(count).hex() for count in (0, 15, 16, 65536)] == [
        "80",
        "8f",
        "de0010",
        "df00010000",
    ]
