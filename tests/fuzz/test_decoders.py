"""Every pure decoder against damaged bytes: a value, or one of our errors, and nothing else.

Each target runs some rounds from a fixed seed. For longer: LOGWEIR_FUZZ_ROUNDS=1000000, and
LOGWEIR_FUZZ_SEED for another course; a failure names seed, round and bytes.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import NamedTuple

import pytest
from mutation import mutate, wild_row
from samples import GOOD, good_blocks, sample
from support.frames import frame

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import META_BYTES
from logweir.wal import mp
from logweir.wal.block import decode_fixheader, decompress, encode_block
from logweir.wal.columns import RowColumns
from logweir.wal.meta import decode_meta
from logweir.wal.render import value_json
from logweir.wal.vclock import VClock
from logweir.wal.xrow import Row, decode_body, decode_row, encode_row

ROUNDS = int(os.environ.get("LOGWEIR_FUZZ_ROUNDS", "20000"))
SEED = int(os.environ.get("LOGWEIR_FUZZ_SEED", "1"))
DECOMPRESSED_BYTES = 1 << 20


class Target(NamedTuple):
    """A decoder and what its damaged inputs are made of."""

    decode: Callable[[bytes], object]
    corpus: Callable[[], list[bytes]]


def _rows() -> list[bytes]:
    random = Random(2)
    found = [wild_row(random) for _ in range(100)]
    for block in good_blocks()[::40]:
        columns = RowColumns.scan(block)
        found += (columns.row_bytes(i) for i in range(0, len(columns), 50))
    return [row for row in found if len(row) < 1000]


def _bodies() -> list[bytes]:
    bodies = []
    for row in _rows():
        try:
            bodies.append(decode_row(row)[0].body)
        except DecodeError:
            continue
    return [body for body in bodies if body]


def _tuples() -> list[bytes]:
    found = [tuples for name in GOOD for tuples in sample(name).spaces.values()]
    tuples = [one for some in found for one in some[:5] if len(one) < 500]
    return [*tuples, b"\xd6\xff\0\0\0\1", b"\xc7\3\1\2\x25\x0c", b"\x81\x91\1\2", b"\xa2\xff\xfe"]


def _headers() -> list[bytes]:
    return [file.path.read_bytes()[:200] for name in GOOD for file in sample(name).files]


def _fixheaders() -> list[bytes]:
    return [bytes(encode_block(block)[0]) for block in good_blocks()[::20]]


def _frames() -> list[bytes]:
    blocks = [block for block in good_blocks() if len(block) > 2500][:5]
    frames = [bytes(encode_block(block)[1]) for block in blocks]
    return [*frames, frame(b"ab" * 1000)]


def _vclocks() -> list[bytes]:
    return [b"{}", b"{1: 5}", b"{0: 8, 1: 436, 31: 9223372036854775807}", b" { 1 : 2 , 3 : 4 } "]


def _parse_vclock(data: bytes) -> None:
    clock = VClock.parse(data.decode("utf-8", "surrogateescape"))
    assert VClock.parse(str(clock)) == clock


def _decode_meta(data: bytes) -> None:
    meta, size = decode_meta(data)
    assert size <= min(len(data), META_BYTES)
    assert meta.vclock.signature >= 0


def _decompress(data: bytes) -> None:
    assert len(decompress(data, DECOMPRESSED_BYTES)) <= DECOMPRESSED_BYTES


def _decode_row(data: bytes) -> None:
    row, end = decode_row(data)
    assert len(row.body) < end <= len(data)
    encode_row(row)
    row.decoded()


def _scan(data: bytes) -> None:
    columns = RowColumns.scan(data)
    assert b"".join(map(columns.row_bytes, range(len(columns)))) == data
    columns.transactions()
    columns.last_lsns()
    columns.packets(0, len(columns), after={}, sync=7)


def _unpack(data: bytes) -> None:
    value, end = mp.unpack_at(data, 0)
    assert mp.skip(data) == mp.skip(bytearray(data)) == end <= len(data)
    mp.unpack(mp.pack(value))


TARGETS = {
    "vclock": Target(_parse_vclock, _vclocks),
    "meta": Target(_decode_meta, _headers),
    "fixheader": Target(decode_fixheader, _fixheaders),
    "zstd": Target(_decompress, _frames),
    "msgpack": Target(_unpack, _tuples),
    "decimal": Target(mp.decode_decimal, lambda: [mp.encode_decimal(Decimal("-12.50")), b"\0"]),
    "json": Target(lambda data: value_json(data), _tuples),
    "row": Target(_decode_row, _rows),
    "body": Target(decode_body, _bodies),
    "block": Target(_scan, lambda: [encode_row(Row(12, 1, 5)) + row for row in _rows()]),
}


@pytest.mark.parametrize("name", TARGETS)
def test_decoder_gives_a_value_or_our_error(name: str) -> None:
    """Only DecodeError and LimitExceeded come out of a decoder, with an offset in the data
    where the place is known."""
    target = TARGETS[name]
    random = Random(zlib.crc32(name.encode()) + SEED)
    corpus = target.corpus()
    refused = 0
    for number in range(ROUNDS):
        data = mutate(random, random.choice(corpus))
        place = f"{name}, seed {SEED}, round {number}: {data.hex()}"
        try:
            target.decode(data)
        except LimitExceeded:
            refused += 1
        except DecodeError as error:
            refused += 1
            offset = error.offset
            if offset is not None and not 0 <= offset <= len(data):
                pytest.fail(f"offset {offset} of {len(data)} bytes: {place}")
        except Exception as error:
            raise AssertionError(place) from error
    assert 0 < refused < ROUNDS, name


def test_pure_noise_is_refused_or_read() -> None:
    """Random bytes, not made from anything, are handled alike by every decoder."""
    random = Random(SEED)
    refused = dict.fromkeys(TARGETS, 0)
    for _ in range(ROUNDS // 3):
        data = random.randbytes(random.randrange(60))
        for name, target in TARGETS.items():
            try:
                target.decode(data)
            except (DecodeError, LimitExceeded):
                refused[name] += 1
            except Exception as error:
                raise AssertionError(f"{name}: {data.hex()}") from error
    assert min(refused.values()) > 0
