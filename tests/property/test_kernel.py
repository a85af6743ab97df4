"""The kernel: compiled, interpreted and `wal.xrow` say the same of the same bytes."""

from __future__ import annotations

import os
import shutil
import struct
from array import array
from random import Random
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutation import mutate, wild_row
from samples import GOOD, good_blocks, sample
from support.kernels import PLAIN_WAL as interpreted

from logweir.errors import DecodeError, LimitExceeded
from logweir.wal import kernel, mp
from logweir.wal.block import MAGIC_ZSTD, FixHeader, decode_fixheader
from logweir.wal.columns import ABSENT, ALONE, ODD, RowColumns, encode_columns, encode_run
from logweir.wal.meta import decode_meta
from logweir.wal.mp import encode_uint
from logweir.wal.xrow import Body, Row, decode_body, decode_row, encode_row

MUTATED_BLOCKS = 10_000
ONES = 2**64 - 1


def test_compiled_kernel_runs_where_it_can() -> None:
    """Where a C compiler is, the kernel that runs is the compiled one; CI does not let it miss."""
    assert not interpreted.COMPILED
    if kernel.COMPILED:
        return
    if os.environ.get("LOGWEIR_PURE") == "1":
        pytest.skip("LOGWEIR_PURE=1 asks for the interpreted kernel")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler on this machine: the interpreted kernel runs")
    if not os.environ.get("CI"):
        pytest.skip(f"the kernel is not compiled though {compiler} is here: pip install -e .")
    pytest.fail(f"the kernel is not compiled though {compiler} is here")


def scanned(run: ModuleType, data: bytes, capacity: int) -> list[list[int]]:
    """The columns that a kernel finds, and where it stopped as the last entry of `row_offset`."""
    table = array("Q", [7]) * (len(run.COLUMNS) * capacity)
    count = run.scan(data, table, capacity)
    columns = [
        table[number * capacity : number * capacity + count + (name == "row_offset")].tolist()
        for number, name in enumerate(run.COLUMNS)
    ]
    return columns


def items(data: bytes, at: int) -> list[tuple[int, int, int]]:
    """Key, start and end of the value of each item of the map at `at`."""
    end = mp.skip(data, at)
    at += 1 if data[at] < 0x90 else 3 if data[at] == 0xDE else 5
    found = []
    while at < end:
        key = mp.decode_uint(data, at)
        assert key is not None
        at = mp.skip(data, key[1])
        found.append((key[0], key[1], at))
    return found


def _span(data: bytes, at: int, part: bytes | None, key: int) -> int:
    """Where xrow found a part of a body: the last one with that key, as the kernel counts it."""
    if part is None:
        return 0
    start, end = [(start, end) for name, start, end in items(data, at) if name == key][-1]
    assert data[start:end] == part
    return start | end << 32


def expected(data: bytes) -> list[list[int]]:
    """The columns that `wal.xrow` finds, up to the first row that it refuses."""
    rows: list[list[int]] = []
    at = 0
    while at < len(data):
        try:
            row, end = decode_row(data, at)
            body = decode_body(row.body) if row.body else Body()
        except (DecodeError, LimitExceeded):
            break
        body_at = end - len(row.body)
        keys = {key for key, _, _ in items(data, at)}
        alone = 8 not in keys
        odd = bool(row.unknown) or row.flags >= ODD or (alone and row.flags & 1)
        (bits,) = struct.unpack(">Q", struct.pack(">d", row.timestamp))
        rows.append(
            [
                row.type,
                row.replica_id,
                row.group_id,
                row.lsn,
                bits,
                row.tsn,
                row.flags & (ODD - 1) | (ALONE | 1 if alone else 0) | (ODD if odd else 0),
                ABSENT if body.space_id is None else body.space_id,
                body.index_base,
                at,
                body_at,
                _span(data, body_at, body.key, 0x20),
                _span(data, body_at, body.tuple, 0x21),
                _span(data, body_at, body.ops, 0x28),
                body.index_id,
            ]
        )
        at = end
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in kernel.COLUMNS]
    columns[kernel.COLUMNS.index("row_offset")].append(at)
    return columns


def assert_agreed(data: bytes) -> bool:
    """Both kernels, xrow and the face agree on `data`. Returns whether it is well-formed."""
    capacity = len(data) // 3 + 2
    by_xrow = expected(data)
    assert scanned(kernel, data, capacity) == by_xrow, data.hex()
    assert scanned(interpreted, data, capacity) == by_xrow, data.hex()
    good = by_xrow[kernel.COLUMNS.index("row_offset")][-1] == len(data)
    if good:
        columns = RowColumns.scan(data)
        assert len(columns) == len(by_xrow[0])
        for i in range(len(columns)):
            assert repr(columns.row(i)) == repr(decode_row(data, columns.row_offset[i])[0])
        return True
    with pytest.raises((DecodeError, LimitExceeded)) as by_face:
        RowColumns.scan(data)
    assert _xrow_error(data) == _plain(by_face.value)
    return False


def _plain(error: Exception) -> tuple[str, int]:
    return str(getattr(error, "reason", error)), getattr(error, "offset", -1)


def _xrow_error(data: bytes) -> tuple[str, int]:
    at = 0
    while True:
        try:
            row, end = decode_row(data, at)
        except (DecodeError, LimitExceeded) as error:
            return _plain(error)
        try:
            decode_body(row.body) if row.body else None
        except DecodeError as error:
            return error.reason, error.offset + end - len(row.body)
        at = end


def small_blocks(random: Random) -> list[bytes]:
    """Rows of the samples, one to four behind one another, none over 400 bytes."""
    rows: list[bytes] = []
    for block in good_blocks():
        columns = RowColumns.scan(block)
        rows += (columns.row_bytes(i) for i in range(len(columns)))
    rows = [row for row in rows if len(row) <= 400]
    chosen = random.sample(rows, 600)
    return [b"".join(chosen[at : at + 1 + at % 4]) for at in range(0, len(chosen), 2)] + [
        b"".join(wild_row(random) for _ in range(1 + at % 3)) for at in range(300)
    ]


def test_samples_give_the_columns_of_xrow() -> None:
    """Every block of the samples has the columns that xrow finds."""
    blocks = good_blocks()
    assert sum(map(len, blocks)) > 500_000
    for block in blocks:
        assert assert_agreed(block)


def test_mutated_blocks_are_judged_alike() -> None:
    """10 000 damaged blocks: same rows, same columns, same error at the same byte."""
    random = Random(20_260_101)
    pool = small_blocks(random)
    good = sum(assert_agreed(mutate(random, random.choice(pool))) for _ in range(MUTATED_BLOCKS))
    assert 1_000 < good < MUTATED_BLOCKS - 1_000


def test_wild_rows_are_judged_alike() -> None:
    """Rows with keys in any order, wide, doubled, unknown or mistyped are judged alike."""
    random = Random(7)
    good = sum(assert_agreed(wild_row(random) + wild_row(random)) for _ in range(3_000))
    assert 500 < good < 2_900


def test_truncation_at_each_byte_is_judged_alike() -> None:
    """A block cut at each byte is whole only at the ends of rows."""
    random = Random(3)
    for block in random.sample(small_blocks(random), 12):
        ends = {0, *RowColumns.scan(block).end_offset} if assert_agreed(block) else None
        for size in range(len(block)):
            good = assert_agreed(block[:size])
            assert ends is None or good == (size in ends)


@pytest.mark.parametrize("depth", [510, 511, 512, 513])
@pytest.mark.parametrize("key", [0x21, 0x2A])
def test_nesting_is_limited_alike(depth: int, key: int) -> None:
    """The body's map and 511 arrays in it are taken, one array more is refused, as by mp.skip."""
    value = b"\x91" * (depth - 1) + b"\x90"
    row = encode_row(Row(2, lsn=1, tsn=1)) + b"\x81" + bytes((key,)) + value
    assert assert_agreed(row) == (depth <= 512)
    header = b"\x82\x00\x0c\x0a" + value
    assert assert_agreed(header) == (depth <= 512)


@pytest.mark.parametrize("run", [kernel, interpreted], ids=["installed", "interpreted"])
def test_skip_ends_where_mp_skip_ends(run: ModuleType) -> None:
    """`skip` accepts what `mp.skip` accepts, and ends where it ends."""
    random = Random(11)
    values = [mp.pack(value) for value in (1, -1, "x" * 40, b"y" * 300, [1, {2: [3]}], 1.5, None)]
    values += [b"\x91" * 511 + b"\x90", b"\x91" * 513 + b"\x90", b"\xdf\xff\xff\xff\xff", b"\xc1"]
    values += [bytes((first,)) + bytes(20) for first in range(256)]
    for value in values + [mutate(random, random.choice(values)) for _ in range(2_000)]:
        try:
            end = mp.skip(value, 0)
        except (DecodeError, LimitExceeded):
            end = -1
        assert run.skip(value, 0) == end, value.hex()


def test_scan_resumes_with_a_larger_table() -> None:
    """A table that is too small is filled to its last row but one, and says where it stopped."""
    block = max(good_blocks(), key=len)
    whole = RowColumns.scan(block)
    for run in (kernel, interpreted):
        for capacity in (1, 2, 10):
            found = scanned(run, block, capacity)
            assert len(found[0]) == capacity - 1
            assert found[9] == whole.row_offset[:capacity].tolist()
    tiny = bytes.fromhex("81000c") * 1000
    assert len(RowColumns.scan(tiny)) == 1000


def random_header(random: Random) -> list[int]:
    """Fields `type` … `flags` of a row, with edges of every width."""
    widths = (0, 1, 7, 8, 16, 32, 63, 64)
    lsn = random.getrandbits(random.choice(widths))
    tsn = random.choice((lsn, lsn, (lsn - random.getrandbits(8)) & ONES, random.getrandbits(64)))
    kind = random.choice((2, 3, 4, 5, 9, 12, 40, 300))
    flags = random.choice((0, 1, 1, 2, 3, 0xFF01, ODD - 1, ALONE | 1, ODD | 1))
    (bits,) = struct.unpack("Q", struct.pack("d", random.choice((0.0, -0.0, 1.5, 1795207702.5))))
    numbers = [random.choice((0, 1, 31, random.getrandbits(random.choice(widths)))) for _ in "rg"]
    return [kind, *numbers, lsn, bits, tsn, flags]


def as_row(header: list[int], body: bytes) -> Row:
    """The same as an object."""
    kind, replica_id, group_id, lsn, bits, tsn, flags = header
    return Row(
        type=kind,
        replica_id=replica_id,
        group_id=group_id,
        lsn=lsn,
        timestamp=struct.unpack("d", struct.pack("Q", bits))[0],
        tsn=tsn,
        commit=bool(flags & 1),
        flags=flags & (ODD - 1),
        body=b"" if kind == 12 else body,
    )


def test_encoded_columns_are_the_bytes_of_xrow() -> None:
    """Rows from columns and slices are, byte for byte, what encode_row makes of them."""
    random = Random(5)
    for count in (0, 1, 2, 40, 300):
        source = random.randbytes(500)
        headers = [random_header(random) for _ in range(count)]
        starts = array("Q", (random.randrange(400) for _ in range(count)))
        stops = array("Q", (start + random.randrange(100) for start in starts))
        prefix = random.choice((b"", bytes.fromhex("8210cd020021")))
        columns = [array("Q", column) for column in zip(*headers, strict=True)] or [array("Q")] * 7
        names = (*kernel.COLUMNS[:4], "timestamp_bits", "tsn", "flags")
        got = encode_columns(
            **dict(zip(names, columns, strict=True)),
            source=source,
            starts=starts,
            stops=stops,
            prefix=prefix,
        )
        rows = [
            as_row(header, prefix + source[start:stop])
            for header, start, stop in zip(headers, starts, stops, strict=True)
        ]
        assert got == b"".join(map(encode_row, rows))
        table = array("Q", [n for column in (*columns, starts, stops) for n in column])
        out = bytearray(len(got) + 1000)
        args = (table, count, 7 * count, 8 * count, source, prefix, out)
        assert interpreted.encode(*args) == len(got)
        assert out[: len(got)] == got


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("first_lsn", [1, 126, 254, 65_534, 2**32 - 2, 2**64 - 2])
def test_encoded_runs_are_the_bytes_of_xrow(together: bool, first_lsn: int) -> None:
    """A run of rows is, byte for byte, what encode_row makes of them, where lsns widen too."""
    source = bytes(range(200))
    bounds = array("Q", (0, 50, 50, 130, 200))
    prefix = bytes.fromhex("8210cd020021")
    got = encode_run(
        type=3,
        replica_id=1,
        first_lsn=first_lsn,
        timestamp=1795207702.515,
        source=source,
        bounds=bounds,
        prefix=prefix,
        one_transaction=together,
    )
    bits = struct.unpack("Q", struct.pack("d", 1795207702.515))[0]
    lsns = [(first_lsn + i) & ONES for i in range(4)]
    rows = [
        as_row(
            [3, 1, 0, lsns[i], bits, first_lsn if together else lsns[i], not together or i == 3],
            prefix + source[bounds[i] : bounds[i + 1]],
        )
        for i in range(4)
    ]
    assert got == b"".join(map(encode_row, rows))
    args = (3, 1, 0, first_lsn, bits, together, source, bounds, prefix)
    assert interpreted.encode_run(*args) == got


@pytest.mark.parametrize("run", [kernel, interpreted], ids=["installed", "interpreted"])
def test_slices_outside_of_the_source_are_refused(run: ModuleType) -> None:
    """A slice that goes backwards or past the source is refused by number, nothing is written."""
    for bounds in ((0, 5, 3), (0, 5, 11), (0, 2**63, 10), (0, 5, ONES)):
        table = array("Q", bounds)
        out = bytearray(1000)
        header = array("Q", (2, 1, 0, 1, 0, 1, 1))
        assert run.slices(table, 0, 2, 0, 1, 10) < 0
        assert run.encode_run(2, 1, 0, 1, 0, False, bytes(10), table, b"") is None
        whole = array("Q", [n for field in header for n in (field, field)])
        whole.extend((*bounds[:2], *bounds[1:]))
        assert run.encode(whole, 2, 14, 16, bytes(10), b"", out) < 0
    assert run.encode_run(2, 1, 0, 1, 0, False, bytes(10), array("Q"), b"") is None
    with pytest.raises(ValueError, match="body of row 1"):
        encode_run(
            type=2,
            replica_id=1,
            first_lsn=1,
            timestamp=0.0,
            source=bytes(10),
            bounds=array("Q", (0, 5, 11)),
        )


@pytest.mark.parametrize("run", [kernel, interpreted], ids=["installed", "interpreted"])
def test_a_buffer_that_is_too_small_is_not_overrun(run: ModuleType) -> None:
    """Where a row might not fit, the kernel stops before it."""
    source = bytes(100)
    bounds = array("Q", (0, 50, 100))
    header = array("Q", (2, 1, 0, 1, 0, 1, 1))
    assert run.slices(bounds, 0, 2, 0, 1, 100) == 100
    table = array("Q", [number for field in header for number in (field, field)])
    table.extend((0, 50, 50, 100))
    block = encode_row(Row(12, 1, 1)) * 2
    scanned_table = array("Q", [0]) * (len(kernel.COLUMNS) * 3)
    assert run.scan(block, scanned_table, 3) == 2
    none, all_ = array("Q", [0]) * 32, array("Q", [ONES]) * 32
    for size in range(0, 400, 7):
        written = run.encode(table, 2, 14, 16, source, b"ab", bytearray(size))
        assert written in (-1, -2) or size >= 133
        out = bytearray(size)
        written = run.packets(block, scanned_table, 3, 0, 2, none, all_, 0, out)
        assert written in (-1, -2) or size >= 2 * (5 + len(block) // 2)
        assert len(out) == size


def expected_packets(
    columns: RowColumns, after: dict[int, int], upto: dict[int, int], sync: int
) -> bytes:
    """Packets by way of objects."""
    out = b""
    for i in range(len(columns)):
        row = columns.row(i)
        if row.replica_id == 0 or row.lsn <= after.get(row.replica_id, 0):
            continue
        if row.lsn > upto.get(row.replica_id, ONES):
            continue
        stored = columns.row_bytes(i)
        if row.group_id == 1:
            stored = encode_row(
                Row(
                    12,
                    replica_id=row.replica_id,
                    lsn=row.lsn,
                    timestamp=row.timestamp,
                    tsn=row.tsn,
                    commit=row.commit,
                    flags=row.flags,
                )
            )
        if sync:
            count = len(items(stored, 0)) + 1
            head = bytes((0x80 + count,)) if count < 16 else b"\xde" + count.to_bytes(2, "big")
            extra = b"\x01" + mp.encode_uint(sync)
            if row.group_id == 1:  # written anew: the type comes first
                stored = head + stored[1:3] + extra + stored[3:]
            else:
                stored = head + extra + stored[1 if stored[0] < 0x90 else 3 :]
        out += b"\xce" + len(stored).to_bytes(4, "big") + stored
    return out


@pytest.mark.parametrize("sync", [0, 5, 300, 2**40])
def test_packets_hold_the_stored_rows(sync: int) -> None:
    """Packets are the stored bytes with a length, a sync where asked, NOP for signed local rows."""
    random = Random(sync)
    unknown = b"".join(bytes((key, 1)) for key in range(0x0A, 0x18))
    rows = [
        encode_row(Row(2, 1, 5, 1.5, 5, body=b"\x81\x10\xcd\x02\x00")),
        encode_row(Row(2, 0, 9, 1.5, 9, group_id=1, body=b"\x80")),
        encode_row(Row(2, 2, 6, 1.5, 6, group_id=1, body=b"\x81\x10\x01")),
        encode_row(Row(3, 2, 7, 1.5, 7, commit=False, group_id=1, body=b"\x81\x10\x01")),
        encode_row(Row(3, 2, 8, 1.5, 7, flags=3, commit=True, group_id=1, body=b"\x80")),
        b"\x8f\x00\x02" + unknown + b"\x80",
        b"\x8f\x02\x01" + unknown[:-2] + b"\x00\x02\x80",
        b"\xde\x00\x12\x02\x01\x03\x0b\x00\x02" + unknown + b"\x0a\x01\x80",
        encode_row(Row(12, 31, 2**40, 1.5, 2**40)),
    ]
    for block in [b"".join(rows), *random.sample(good_blocks(), 30)]:
        columns = RowColumns.scan(block)
        for after, upto in (({}, {}), ({1: 5, 2: 6}, {}), ({}, {1: 0}), ({}, {2: 7, 31: 0})):
            want = expected_packets(columns, after, upto, sync)
            got = columns.packets(0, len(columns), after=after, upto=upto, sync=sync)
            assert got == want
            table = array("Q", columns._table)
            afters = array("Q", (after.get(i, 0) for i in range(32)))
            uptos = array("Q", (upto.get(i, ONES) for i in range(32)))
            out = bytearray(len(want) + 200)
            size = interpreted.packets(
                block, table, columns._capacity, 0, len(columns), afters, uptos, sync, out
            )
            assert out[:size] == want


def test_packets_refuse_rows_that_no_vclock_holds() -> None:
    """A replica id over 31 is refused with the row's byte."""
    block = encode_row(Row(2, 1, 5, body=b"\x80")) + encode_row(Row(2, 32, 5, body=b"\x80"))
    columns = RowColumns.scan(block)
    assert columns.packets(0, 1, after={})
    with pytest.raises(DecodeError, match="replica 32") as caught:
        columns.packets(0, 2, after={})
    assert caught.value.offset == columns.row_offset[1]
    with pytest.raises(IndexError):
        columns.packets(0, 3, after={})
    many = b"\xde\xff\xff\x00\x0c\x02\x01\x03\x05" + b"\x0a\x01" * 65_532
    columns = RowColumns.scan(many)
    assert columns.packets(0, 1, after={})[5:] == many
    with pytest.raises(DecodeError, match="replica 1 cannot be sent"):
        columns.packets(0, 1, after={}, sync=1)
    none, all_ = array("Q", [0]) * 32, array("Q", [ONES]) * 32
    for data in (block, many):
        table, out = array("Q", [0]) * (len(kernel.COLUMNS) * 3), bytearray(200_000)
        count = interpreted.scan(data, table, 3)
        assert interpreted.packets(data, table, 3, 0, count, none, all_, 1, out) == -count


def test_transactions_and_lsns_are_counted_alike() -> None:
    """Transaction ends, their faults and the highest lsns are the same from both kernels."""
    random = Random(9)
    for _ in range(2_000):
        count = random.randrange(1, 9)
        rows = [random_header(random) for _ in range(count)]
        for header in rows:
            header[1] = random.choice((0, 1, 2, 31, 31, 40))
            header[3] = random.randrange(9)
            header[5] = random.choice((1, 1, 1, 2))
            header[6] = random.choice((0, 0, 1))
        table = array("Q", [n for column in zip(*rows, strict=True) for n in column])
        found = []
        for run in (kernel, interpreted):
            ends = array("Q", [0]) * count
            lsns = array("Q", [0]) * 32
            found.append(
                (
                    run.transactions(table, count, count, ends),
                    ends,
                    run.highest_lsns(table, count, count, lsns),
                    lsns,
                )
            )
        assert found[0] == found[1]


def walked(run: ModuleType, data: bytes, capacity: int) -> tuple[int, list[list[int]], int]:
    """How many block headers a kernel finds, what they say, and where it stopped."""
    table = array("Q", [7]) * (4 * capacity)
    count = run.walk(data, table, capacity)
    columns = [table[i * capacity : i * capacity + count].tolist() for i in range(4)]
    return count, columns, table[count]


def test_block_headers_are_walked_as_the_codec_reads_them() -> None:
    """Of every sample cut at any place, mutated or not, both kernels find the same headers, and
    those are what `wal.block` says of these bytes."""
    random = Random(20)
    for name in GOOD:
        for file in sample(name).files:
            data = file.path.read_bytes()
            data = data[decode_meta(data)[1] :]
            for _ in range(20):
                piece = bytearray(data[: random.randrange(len(data) + 1)])
                for _ in range(random.randrange(3)):
                    if piece:
                        piece[random.randrange(len(piece))] ^= 1 << random.randrange(8)
                found = walked(kernel, bytes(piece), 40)
                assert found == walked(interpreted, bytes(piece), 40)
                for at, size, crc, packed in zip(*found[1], strict=True):
                    header = decode_fixheader(bytes(piece[at : at + 19]))
                    assert (header.stored_bytes, header.crc) == (size, crc)
                    assert header.kind == ("zstd" if packed else "plain")


UINT32 = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0x7F, 0x80, 0xFF, 0x100, 0xFFFF]))


@pytest.mark.parametrize("run", [kernel, interpreted], ids=["installed", "interpreted"])
@given(stored=st.integers(0, 2**31), unsynced=UINT32, crc=UINT32)
def test_a_fixheader_reads_as_it_was_written(
    run: ModuleType, stored: int, unsynced: int, crc: int
) -> None:
    """Nineteen bytes, numbers in their shortest form, the rest one MsgPack string."""
    out = bytearray(b"\xff" * 19)
    assert run.put_fixheader(MAGIC_ZSTD[3], stored, unsynced, crc, out)
    assert decode_fixheader(out) == FixHeader("zstd", stored, crc, unsynced)
    numbers = b"".join(map(encode_uint, (stored, unsynced, crc)))
    assert out.startswith(MAGIC_ZSTD + numbers)
    assert not run.put_fixheader(MAGIC_ZSTD[3], stored, unsynced, crc, bytearray(18))


@pytest.mark.parametrize("run", [kernel, interpreted], ids=["installed", "interpreted"])
@given(
    numbers=st.tuples(st.integers(1, 70), st.integers(0, 31), st.integers(0, 1)),
    first_lsn=st.one_of(st.integers(1, 2**63), st.sampled_from([100, 250, 65_530, 2**32 - 9])),
    count=st.integers(1, 300),
    together=st.booleans(),
)
def test_the_heads_of_a_run_fit_the_room_made_for_them(
    run: ModuleType, numbers: tuple[int, int, int], first_lsn: int, count: int, together: bool
) -> None:
    """The room is enough for every run, and leaves the slack that the kernel asks for."""
    room = run.run_bytes(*numbers, first_lsn + count, count)
    bounds = array("Q", [0]) * (count + 1)
    written = run.encode_run(*numbers, first_lsn, ONES, together, b"", bounds, b"")
    assert 0 < len(written) <= room - kernel.HEADER_ROOM
