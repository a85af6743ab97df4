"""The checksum of blocks."""

from __future__ import annotations

import importlib.util
import random
import sys
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


def test_it_takes_what_has_one_piece_of_bytes() -> None:
    """And names nothing else."""
    for wrong in ("text", 5, None, memoryview(b"abcd")[::2]):
        with pytest.raises((TypeError, ValueError, BufferError)):
            checksum(wrong)
    with pytest.raises((OverflowError, TypeError)):
        checksum(b"", -1)


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
