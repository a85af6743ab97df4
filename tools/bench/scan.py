"""`logweir bench scan`: reading a log with every check, next to other ways to read its rows.

The file has one million rows of about 100 bytes in plain blocks of 128 KiB. "logweir" walks the
blocks, verifies every checksum and splits the rows into columns. The baseline does the same work
in Python with `msgpack.Unpacker`: blocks, checksums, five columns. "decoding alone" is the
Unpacker on bytes that are split and checked already, its objects thrown away; `xlog.pairs` is
Tarantool's reader, which makes objects too.
"""

from __future__ import annotations

import time
import uuid
from array import array
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

from logweir.errors import CorruptBlock
from logweir.tools.bench.append import bench_tuples
from logweir.tools.bench.harness import Case, Result, compare
from logweir.tools.bench.tarantool import find_tarantool, run_script
from logweir.wal.block import EOF_MARKER, FIXHEADER_BYTES, decode_fixheader, decompress
from logweir.wal.columns import encode_run
from logweir.wal.crc32c import checksum
from logweir.wal.damage import Damage
from logweir.wal.mp import packer
from logweir.wal.reader import WalReader
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter, WriterOptions
from logweir.wal.xrow import RowType

_PREFIX: Final = b"\x82\x10\xcd\x02\x00\x21"
_ROWS_PER_BLOCK: Final = 1300

_PAIRS: Final = """
local xlog, clock = require('xlog'), require('clock')
local start, count = clock.monotonic(), 0
for _ in xlog.pairs(arg[1]) do count = count + 1 end
print(clock.monotonic() - start)
os.exit(0)
"""


def make_log(
    directory: Path, rows: int, *, compress: bool, per_block: int = _ROWS_PER_BLOCK
) -> Path:
    """Write a log of `rows` single-row transactions. Returns the file's path."""
    pack = packer()
    writer = WalWriter(
        directory,
        uuid.uuid4(),
        AppendPoint(VClock()),
        options=WriterOptions(max_bytes=2**40, compress_threshold_bytes=2029 if compress else None),
    )
    for first in range(1, rows + 1, per_block):
        count = min(per_block, rows - first + 1)
        parts = [pack(one) for one in bench_tuples(count, first)]
        block = encode_run(
            type=RowType.INSERT,
            replica_id=1,
            first_lsn=first,
            timestamp=1700000000.5,
            source=b"".join(parts),
            bounds=array("Q", accumulate(map(len, parts), initial=0)),
            prefix=_PREFIX,
        )
        writer.write([block], VClock({1: first + count - 1}))
    path = writer.path
    writer.close()
    assert path is not None
    return path


def run_scan(
    directory: Path, *, rows: int = 1_000_000, compress: bool = False, rounds: int = 5
) -> tuple[int, list[Result]]:
    """Returns the file's bytes and the results; the baseline is `msgpack.Unpacker`."""
    path = make_log(directory, rows, compress=compress)
    with WalReader(path) as reader:
        blocks = [item for item in reader.blocks() if not isinstance(item, Damage)]
    sample = blocks[: max(len(blocks) // 10, 1)]
    data = b"".join(block.data for block in sample)
    sample_rows = sum(len(block.columns) for block in sample)
    cases = [
        Case("msgpack Unpacker in Python", lambda: _python_scan(path), rows),
        Case("logweir, columns", lambda: _scan(path), rows),
        Case("msgpack Unpacker, decoding alone", lambda: _unpack(data), sample_rows),
    ]
    if find_tarantool() is not None:
        read = partial(run_script, directory, _PAIRS, path)
        cases.append(Case("tarantool xlog.pairs", read, rows))
    return path.stat().st_size, compare(cases, rounds=rounds)


def _python_scan(path: Path) -> float:
    start = time.perf_counter()
    data = path.read_bytes()
    at = data.index(b"\n\n") + 2
    columns: tuple[list[Any], ...] = ([], [], [], [], [])
    types, replicas, lsns, times, spaces = columns
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, max_buffer_size=2**31)
    while data[at : at + 4] != EOF_MARKER:
        fixheader = decode_fixheader(data[at : at + FIXHEADER_BYTES])
        end = at + FIXHEADER_BYTES + fixheader.stored_bytes
        rows = data[at + FIXHEADER_BYTES : end]
        if checksum(rows) != fixheader.crc:
            raise CorruptBlock("the benchmark's own file is damaged.", path=str(path), offset=at)
        unpacker.feed(decompress(rows) if fixheader.kind == "zstd" else rows)
        for header in unpacker:
            body = unpacker.unpack()
            types.append(header[0])
            replicas.append(header.get(2, 0))
            lsns.append(header.get(3, 0))
            times.append(header.get(4, 0.0))
            spaces.append(body.get(16))
        at = end
    return time.perf_counter() - start


def _unpack(data: bytes) -> float:
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, max_buffer_size=len(data) + 1)
    unpacker.feed(data)
    start = time.perf_counter()
    for _ in unpacker:
        pass
    return time.perf_counter() - start


def _scan(path: Path) -> float:
    start = time.perf_counter()
    with WalReader(path) as reader:
        for item in reader.blocks():
            if isinstance(item, Damage):
                raise item.to_error()
    return time.perf_counter() - start
