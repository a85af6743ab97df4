"""Kernels in every room from none to enough: all that is asked for or a word that it does not fit,
and not a byte behind; compiled and as plain Python. Those of memcached, TAP and Greenstack are in
`test_bucket_kernels_room`, Synapse's in `test_synapse_kernel_rooms`."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from support.canary import Room, Table, both, bounds_of, every_room, said, short
from support.statements import collated_space

from logweir.pipeline import kernel as pipeline
from logweir.replication.iproto.wire import kernel as iproto
from logweir.replication.iproto.wire.runs import no_ids
from logweir.replication.topic import kernel as topic
from logweir.store.schema import kernel as store
from logweir.store.schema import largekernel
from logweir.store.schema.bulk import KeyPlan
from logweir.store.state import pagekernel
from logweir.wal import fillerkernel
from logweir.wal import kernel as wal
from logweir.wal.columns import RowColumns, encode_run
from logweir.wal.mp import pack

ONES = 2**64 - 1


# --- the log --------------------------------------------------------------------------------------
COUNT = 5
BODY = pack({0x10: 600, 0x21: ["key", "value"]})


def row_table() -> array[int]:
    """Rows for `encode`: every part of a header as long as it can be."""
    columns = [[2] * COUNT, [31] * COUNT, [2**40] * COUNT, [2**63 + n for n in range(COUNT)]]
    columns += [[ONES] * COUNT, [7] * COUNT, [0x7E] * COUNT]
    columns += [[n * len(BODY) for n in range(COUNT)], [(n + 1) * len(BODY) for n in range(COUNT)]]
    return array("Q", [number for column in columns for number in column])


@both(wal)
def test_rows_are_written_whole_or_not_at_all(kernel: Any) -> None:
    """`encode` tells the row that does not fit; tables too short are errors."""
    table, source = row_table(), BODY * COUNT

    def call(out: bytearray, given: Any = table) -> bytes | None:
        made = kernel.encode(given, COUNT, 7 * COUNT, 8 * COUNT, source, b"pre", out)
        return bytes(out[:made]) if made >= 0 else None

    most = COUNT * (kernel.HEADER_ROOM + 3 + len(BODY))
    assert every_room(call, most) > most - COUNT * kernel.HEADER_ROOM
    short(lambda given: call(bytearray(most), given), table, len(table))
    short(lambda given: kernel.slices(given, 0, COUNT, 0, COUNT, 99), [9] * 10, 2 * COUNT)
    for starts_at in (-1, 2**62, ONES >> 1):
        with said("slices"):
            kernel.encode(table, COUNT, starts_at, 8 * COUNT, source, b"", bytearray(most))


def columns_of(group_id: int) -> RowColumns:
    """Some rows of a block."""
    bounds = array("Q", range(0, 4 * COUNT + 1, 4))
    return RowColumns.scan(
        bytes(
            encode_run(
                type=2,
                replica_id=1,
                first_lsn=100,
                timestamp=1.5,
                group_id=group_id,
                source=b"\x81\x21\x91\x01" * COUNT,
                bounds=bounds,
            )
        )
    )


@both(wal)
@pytest.mark.parametrize("group_id", [0, 1])
@pytest.mark.parametrize("sync", [0, ONES])
def test_packets_are_written_whole_or_not_at_all(kernel: Any, group_id: int, sync: int) -> None:
    """`packets` tells the row that does not fit, also one that a table places elsewhere."""
    columns = columns_of(group_id)
    table, capacity = columns.table
    after, upto = array("Q", [0] * 32), array("Q", [ONES] * 32)

    def call(out: bytearray, given: Any = table, after: Any = after, upto: Any = upto) -> Any:
        made = kernel.packets(columns.data, given, capacity, 0, COUNT, after, upto, sync, out)
        return bytes(out[:made]) if made >= 0 else None

    most = len(columns.data) + COUNT * 100
    assert every_room(call, most) > len(columns.data)
    short(lambda given: call(bytearray(most), given), table.tolist(), 10 * capacity)
    short(lambda given: call(bytearray(most), after=given), after, 32)
    short(lambda given: call(bytearray(most), upto=given), upto, 32)
    offset = kernel.COLUMNS.index("row_offset") * capacity
    for row, wrong in ((0, ONES), (1, 2**63), (2, len(columns.data) + 1), (3, 0), (COUNT, ONES)):
        places = array("Q", table)
        places[offset + row] = wrong
        room = Room(most)
        assert call(room.data, places) is None
        room.check()


@both(wal)
def test_tables_of_rows_are_whole(kernel: Any) -> None:
    """Of everything that reads them or fills them."""
    data = columns_of(0).data
    capacity = COUNT + 1
    full = array("Q", [0] * (15 * capacity))
    assert kernel.scan(data, full, capacity) == COUNT
    short(lambda table: kernel.scan(data, table, capacity), full, 15 * capacity)
    short(lambda table: kernel.highest_lsns(table, capacity, COUNT, lsns()), full, 24)
    short(lambda table: kernel.highest_lsns(full, capacity, COUNT, table), [0] * 32, 32)
    ends = array("Q", [0] * COUNT)
    short(lambda table: kernel.transactions(table, capacity, COUNT, ends), full, 42)
    short(lambda table: kernel.transactions(full, capacity, COUNT, table), ends, COUNT)
    short(lambda table: kernel.walk(data, table, 3), [0] * 12, 12)
    for wrong in (-1, 2**60, 2**62, 2**63 - 1):
        with said("table"):
            kernel.scan(data, full, wrong)
        with said("table"):
            kernel.walk(data, full, wrong)
        with said("table"):
            kernel.transactions(full, wrong, COUNT, ends)
        with said("table"):
            kernel.highest_lsns(full, capacity, wrong, lsns())
    assert kernel.skip(data, -1) == kernel.skip(data, -(2**62)) == -1


def lsns() -> array[int]:
    """Of all replica ids."""
    return array("Q", [0] * 32)


@both(wal)
def test_the_head_of_a_block_is_written_whole_or_not_at_all(kernel: Any) -> None:
    """Of 19 bytes, whatever its numbers are."""

    def call(out: bytearray) -> bytes | None:
        head = kernel.put_fixheader(0xAB, ONES, ONES, ONES, out)
        return bytes(out[:19]) if head else None

    assert every_room(call, 30) == 19


@both(fillerkernel)
def test_no_zeros_at_all_are_not_looked_for(kernel: Any) -> None:
    """There is no place then from which to look back."""
    for wrong in (0, -1, -(2**63)):
        with said("zeros"):
            kernel.has_zeros(b"\0\0", wrong)
    assert not kernel.has_zeros(b"\0\0", 2**63 - 1)


# --- iproto ---------------------------------------------------------------------------------------
@both(iproto)
def test_answers_are_written_whole_or_not_at_all(kernel: Any) -> None:
    """`answers` tells how much they take."""
    made = b"\x92\x01\xa1x" * 3
    columns = array("Q", [0] * (3 * kernel.WIDTH))
    results = array("Q", [0] * (3 * kernel.RESULTS))
    for row, kind in enumerate((2, 5, 1)):
        columns[row * kernel.WIDTH] = kind
        place = row * kernel.RESULTS + (4 if kind == 5 else 6)
        results[place : place + 2] = array("Q", (4 * row, 4 * row + 4))
    syncs = array("Q", [ONES] * 3)

    def call(out: bytearray, first: int = 0) -> bytes | None:
        given = columns, syncs, results, made, first, 3, 2**32 - 1, out
        size = kernel.answers(*given)
        return bytes(out[:size]) if size <= len(out) else None

    most = 3 * kernel.ANSWER_BYTES + len(made)
    assert every_room(call, most) == most - (kernel.ANSWER_BYTES - 30)
    for first in (-1, -(2**40)):
        room = Room(most)
        assert call(room.data, first) == b""
        room.check()


@both(iproto)
@pytest.mark.parametrize("sync", [0, ONES])
@pytest.mark.parametrize("group_id", [0, 1])
def test_relayed_rows_are_written_whole_or_not_at_all(
    kernel: Any, sync: int, group_id: int
) -> None:
    """`relay` says so, also where it begins behind some that were written."""
    data = columns_of(group_id).data
    tables = array("Q", [0] * 32), array("Q", [ONES] * 32), lsns()

    def call(out: bytearray, after: Any = tables[0], upto: Any = tables[1], had: Any = None) -> Any:
        end = kernel.relay(data, after, upto, sync, lsns() if had is None else had, out, 7)
        return bytes(out[:end]) if end >= 0 else None

    most = len(data) + COUNT * 100
    every_room(call, most)
    short(lambda table: call(bytearray(most), after=table), tables[0], 32)
    short(lambda table: call(bytearray(most), upto=table), tables[1], 32)
    short(lambda table: call(bytearray(most), had=table), tables[2], 32)
    with said("relay"):
        kernel.relay(data, *tables[:2], sync, tables[2], bytearray(most), -1)


@both(iproto)
def test_a_run_is_no_longer_than_its_table(kernel: Any) -> None:
    """Whatever is said to be its capacity, and wherever it begins."""
    request = pack({0: 2, 1: 7}) + pack({0x10: 600, 0x21: [1]})
    data = bytes([len(request)]) + request
    least = kernel.RUN_HEAD + 2 + kernel.WIDTH
    for size in range(least + 1):
        table = Table([0] * size)
        assert kernel.take_run(data, 0, 1, table.view, 1, no_ids) == (size == least)
        table.check()
    for capacity in (2**60, 2**62, (2**63 - 1) // 15 + 1, 2**63 - 1):
        table = Table([0] * least)
        assert kernel.take_run(data * 9, 0, 1, table.view, capacity, no_ids) == 0
        table.check()
    assert kernel.take_run(data, -1, 1, array("Q", [0] * least), 1, no_ids) == 0
    assert kernel.frames(data, -1, 9) == 0


# --- topics ---------------------------------------------------------------------------------------
@both(topic)
def test_places_of_bundles_are_among_them(kernel: Any) -> None:
    """And frames, and messages."""
    append = (1, -1, "t", 0, b"bundle", (0, 1, False, 0, 0, 1), 0, None)
    assert kernel.spans([append] * 2) == [2]
    with said("spans"):
        kernel.spans([])
    for at, end in ((-1, 1), (0, 2), (2**62, 2**62 + 1)):
        with said("place"):
            kernel.place([append], at, end, 0, 99, 0, tuple, [], tuple, [])
    with said("frames"):
        kernel.frames(memoryview(bytes(9)), -5, 9, [])
    with said("walk"):
        kernel.walk(b"", b"\0" * 9, -1, 1, False, 1, 1, None)


# --- the store ------------------------------------------------------------------------------------
TUPLES = [pack([bytes(300), number]) for number in range(3)]


@both(store)
@pytest.mark.parametrize("number", [0, 1])
def test_keys_are_written_whole_or_not_at_all(kernel: Any, number: int) -> None:
    """Also where two parts of an index are of one field: with a collation, and without."""
    space = collated_space(512)
    index = space.indexes[number]
    assert len(index.sort_parts) == 1 + 2 * number
    plan = KeyPlan(space, index).table
    assert plan is not None
    packed, bounds = b"".join(TUPLES), bounds_of(TUPLES)

    def call(out: bytearray, plan: Any = plan, bounds: Any = bounds, ends: Any = None) -> Any:
        ends = array("Q", [0] * 4) if ends is None else ends
        made = kernel.keys(packed, bounds, 0, 3, plan, out, ends)
        assert made & 3 in (kernel.DONE, kernel.NO_ROOM)
        return bytes(out[: ends[3]]) if made & 3 == kernel.DONE else None

    most = 6 * len(packed)
    every_room(call, most)
    short(lambda table: call(bytearray(most), table), plan, len(plan))
    short(lambda table: call(bytearray(most), bounds=table), bounds, 4)
    short(lambda table: call(bytearray(most), ends=table), [0] * 4, 4)
    for place, wrong in ((1, ONES), (1, 2**63), (3, ONES), (3, 2**62), (-2, 64), (-2, ONES)):
        table = plan[:]
        table[place] = wrong
        with said("plan"):
            call(bytearray(most), table)


@both(store)
def test_places_of_values_are_in_their_buffers(kernel: Any) -> None:
    """As far as there is room for them."""
    for size in range(1, 5):
        table = Table([0] * size)
        assert kernel.split(b"\1\2\3", 0, 3, table.view) == size - 1
        table.check()
    for at, end in ((-1, 3), (0, 4), (-(2**62), 2**62)):
        with said("split"):
            kernel.split(b"\1\2\3", at, end, array("Q", [0] * 9))
    with said("split"):
        kernel.split(b"\1\2\3", 0, 3, array("Q"))
    with said("boundaries"):
        kernel.parts(b"", array("Q"))


@both(largekernel)
def test_every_large_tuple_has_something_before_it(kernel: Any) -> None:
    """Else none is put anywhere."""
    assert kernel.lay([b"head"], [(b"a", b"b")], 0, 99, []) == (1, 6)
    with said("lay"):
        kernel.lay([b"head"], [(b"a", b"b")] * 2, 0, 99, [])
    with said("lay"):
        kernel.lay([b"head"], [(b"a", b"b")], -1, 99, [])


@both(pagekernel)
def test_pages_are_in_their_file(kernel: Any) -> None:
    """As many, and as deep a tree, as is said."""
    told = array("Q", [0] * 3)
    assert kernel.tree(bytes(4096 * 3), 4096, 3, 2, 1, 0, [], told) == 2
    for page_bytes, pages, depth in ((4096, 4, 1), (4096, 3, 0), (4096, 3, 33), (8, 3, 1)):
        with said("tree"):
            kernel.tree(bytes(4096 * 3), page_bytes, pages, 2, depth, 0, [], told)
    with said("tree"):
        kernel.tree(bytes(4096 * 3), 4096, ONES, 2, 1, 0, [], told)
    short(lambda table: kernel.tree(bytes(4096 * 3), 4096, 3, 2, 1, 0, [], table), told, 3)


@both(pipeline)
def test_values_are_gathered_whole_or_not_at_all(kernel: Any) -> None:
    """Into two buffers of the caller's."""
    spans = array("Q", [1 << 32 | 0, 0, 9 << 32 | 1] * 5)

    def call(valid: bytearray) -> bytes | None:
        found = kernel.gather(b"123456789", spans, array("i", [0] * 16), valid)
        return None if found is None else bytes(valid[:2])

    assert every_room(call, 4) == 2
    assert kernel.gather(b"123456789", spans, array("i", [0] * 15), bytearray(2)) is None


@both(pipeline)
def test_rows_are_counted_in_whole_buffers_or_not_at_all(kernel: Any) -> None:
    """Columns of one length, keys inside of their bytes; a row without room is told."""

    def told(keys: Any = (2 << 32, 0, 5 << 32 | 2), chosen: bytes = b"", **lengths: int) -> Any:
        size = {"known": 4, "sums": 8, "ends": 4, "registers": 2 << 12}
        size |= dict.fromkeys(("types", "spaces", "lsns", "times", "tuples", "ops"), 3) | lengths
        three = {name: array("Q", [5] * size[name]) for name in ("types", "lsns")}
        zeros = {name: array("Q", [0] * size[name]) for name in ("tuples", "ops", "known", "sums")}
        return kernel.tally(
            *(b"12345", chosen, three["types"], 4, array("Q", [7, 8, 8][: size["spaces"]])),
            *(three["lsns"], array("d", [1.5] * size["times"])),
            *(array("Q", keys), zeros["tuples"], zeros["ops"], lengths.get("first", 0)),
            *(zeros["known"], zeros["sums"]),
            *(array("d", [0] * size["ends"]), bytearray(size["registers"])),
        )

    assert told() == told(chosen=b"\1\0\1") == told(first=3) == 3
    assert told(known=2, sums=4, ends=2, registers=1 << 12) == 1
    assert told(known=0, sums=0, ends=0, registers=0) == 0
    assert told(first=-1) == told(chosen=b"\1") == told(keys=(0, 0)) == -1
    for bad in ((0, 0, 6 << 32 | 2), (0, 2, 0), (0, 0, 2**64 - 1), (3 << 32 | 4, 0, 0)):
        assert told(keys=bad) == -1
    names = ("known", "sums", "ends", "registers", "types", "spaces", "lsns", "times")
    for name in (*names, "tuples", "ops"):
        assert told(**{name: 0}) == -1
        assert told(**{name: 1}) == -1
