"""The checksum of blocks."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import crc32c as hardware
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import GOOD, sample

from logweir.wal import crc32c
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


@given(st.binary(max_size=5000))
def test_definition_and_hardware_agree(data: bytes) -> None:
    """crcmod, which is the definition, and what runs on blocks give the same."""
    assert checksum(data) == reference_checksum(data)


def test_it_is_not_the_customary_crc32c() -> None:
    """The customary CRC-32C of the same digits is another."""
    assert hardware.crc32c(b"123456789") == 0xE3069283


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
    """With the crc32c package that is what runs; without it crcmod does, and says so."""
    assert crc32c.SOURCE == "crc32c"
    monkeypatch.setitem(sys.modules, "crc32c", None)
    portable = _load("portable_crc32c")
    assert portable.SOURCE == "crcmod"
    assert portable.checksum(b"123456789") == 0x58E3FA20
