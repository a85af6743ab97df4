"""The checksum of blocks."""

from __future__ import annotations

import importlib.util
import random
import sys
from array import array
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import GOOD, sample

from logweir.wal import crc32c, kernel
from logweir.wal.block import FIXHEADER_BYTES, decode_fixheader
from logweir.wal.crc32c import checksum, reference_checksum

VECTORS = [
    (b"", 0),
    (b"\0", 0),
    (bytes(32), 0),
    (b"a", 0x93AD1061),
    (b"123456789", 0x58E3FA20),
    (bytes(range(32)), 0xCC4C4FE4),
    (b"\xff" * 32, 0xE8399DE9),
    (bytes(range(256)), 0x2436A9DB),
    (b"\0" * 7 + b"123456789", 0x58E3FA20),
    (
        bytes.fromhex(
            "84000402010301 04cb41dac02c85a0f9d5 8410cd01101501 2091a66d61785f6964 219193a12b0201"
        ),
        0x04934C16,
    ),
]


@pytest.mark.parametrize(("data", "crc"), VECTORS)
@pytest.mark.parametrize("function", [checksum, reference_checksum])
def test_vectors(function: object, data: bytes, crc: int) -> None:
    """Both implementations give the values that Tarantool writes, for every kind of buffer."""
    assert callable(function)
    assert function(data) == crc
    assert function(bytearray(data)) == crc
    assert function(memoryview(data)) == crc


LONG = random.Random(5).randbytes(40_000)


@pytest.mark.parametrize("name", ["checksum", "by_tables"])
@given(st.integers(0, len(LONG)), st.integers(0, 9), st.integers(0, 2**32 - 1))
def test_definition_and_kernel_agree(name: str, size: int, start: int, before: int) -> None:
    """Of any length, wherever the bytes begin, behind anything; with the processor's instruction
    and without."""
    kernel = pytest.importorskip("logweir.wal.crckernel")
    data = memoryview(LONG)[start : start + size]
    assert getattr(kernel, name)(data, before) == reference_checksum(data, before)


@pytest.mark.parametrize("function", [checksum, reference_checksum])
def test_it_takes_what_has_one_piece_of_bytes(function: Callable[..., int]) -> None:
    """And goes on from a checksum of 32 bits; it names nothing else."""
    for wrong in ("text", 5, None, memoryview(b"abcd")[::2]):
        with pytest.raises((TypeError, ValueError, BufferError)):
            function(wrong)
    for before in (-1, 2**32):
        with pytest.raises(OverflowError):
            function(b"", before)


@pytest.mark.parametrize("name", GOOD)
def test_blocks_of_the_samples(name: str) -> None:
    """The stored checksum of every block of the samples is the checksum of its payload."""
    for file in sample(name).files:
        data = file.path.read_bytes()
        for block in file.blocks:
            start = block.offset + FIXHEADER_BYTES
            header = decode_fixheader(data[block.offset : start])
            payload = data[start : start + block.stored_bytes]
            assert header.crc == checksum(payload) == reference_checksum(payload)
            assert header.crc == int(block.crc, 16)


@pytest.mark.parametrize("name", ["first_wrong", "reference_first_wrong"])
def test_the_first_block_that_is_not_as_its_header_says(name: str) -> None:
    """Of several it is the first; blocks and tables that are shorter than told are refused."""
    first_wrong = getattr(crc32c, name)
    sizes = [0, 5, 4000, 1, 650]
    payloads = [random.Random(size).randbytes(size) for size in sizes]
    data = b"".join(b"head" + payload for payload in payloads)
    starts = [sum(sizes[:n]) + 4 * n for n in range(5)]
    crcs = [checksum(payload) for payload in payloads]
    table = array("Q", [*starts, 0, *sizes, 0, *crcs, 0])
    assert [first_wrong(data, table, 6, count, 4) for count in range(6)] == list(range(6))
    for wrong in (1, 2, 4):
        bad = bytearray(data)
        bad[starts[wrong] + 4] ^= 1
        bad[-1] ^= 1
        assert first_wrong(bytes(bad), table, 6, 5, 4) == wrong
        assert first_wrong(bytes(bad), table, 6, wrong, 4) == wrong
    for window, stride, count, header in (
        (data[:-1], 6, 5, 4),
        (data, 6, 1, len(data) + 1),
        (b"", 6, 1, 4),
        (data, 7, 5, 4),
        (data, 6, 7, 4),
        (data, 6, -1, 4),
        (data, 6, 5, -1),
    ):
        with pytest.raises(IndexError):
            first_wrong(window, table, stride, count, header)
    for column, number in ((0, 2**64 - 1), (1, 2**64 - 1), (1, 2**64 - 8)):
        far = array("Q", table)
        far[6 * column + 1] = number
        with pytest.raises(IndexError):
            first_wrong(data, far, 6, 5, 4)


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, crc32c.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_source_names_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel where it is compiled, and crcmod stays unloaded; without it crcmod."""
    expected = "kernel" if kernel.COMPILED else "crcmod"
    assert expected == crc32c.SOURCE
    monkeypatch.setitem(sys.modules, "logweir.wal.crckernel", None)
    portable = _load("portable_crc32c")
    assert portable.SOURCE == "crcmod"
    assert portable.checksum(b"123456789") == 0x58E3FA20
