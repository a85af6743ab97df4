"""Synapse's kernels in every room from none to enough: all that is asked for or a word that it does
not fit, and not a byte behind; compiled and as plain Python."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any

import pytest
from support.canary import Room, Table, both, bounds_of, every_room, none_for, said, short

from logweir.replication.synapse.wire import kernel as synapse
from logweir.replication.synapse.wire import linekernel
from logweir.wal.mp import pack

ONES = 2**64 - 1
TEXT = rb'["\u00e9\ud83d\ude00\n",1e9,{"a":[' + b"-1,1e3," * 9 + b'null]},"' + b"x" * 300 + b'"]'
ROWS = [pack(["m", number, [None, "é" * number, -1.5]]) for number in range(9)]


@both(synapse)
def test_json_becomes_msgpack_whole_or_not_at_all(kernel: Any) -> None:
    """Also at its worst: three bytes are nine."""
    for text in (TEXT, b"1e9", b"[" + b"1e9," * 40 + b"1e9]", b'"' + b"x" * 70000 + b'"'):

        def call(out: bytearray, text: bytes = text) -> bytes | None:
            size = kernel.encode(text, out)
            return bytes(out[:size]) if size >= 0 else None

        most = 3 * len(text) + kernel.ROOM_BYTES
        if most < 3000:
            assert every_room(call, most) == most
        else:
            assert call(Room(most).data)


@both(synapse)
def test_lines_are_read_as_far_as_there_is_room(kernel: Any) -> None:
    """In each of the tables, and in the bytes."""
    data = b"".join(b"RDATA s %d %s\n" % (n + 1, TEXT) for n in range(3))

    def call(out: bytearray, tokens: Any = None, bounds: Any = None, at: int = 0) -> Any:
        flows, tokens = array("Q", [0] * 3), array("Q", [0] * 3) if tokens is None else tokens
        bounds = array("Q", [0] * 4) if bounds is None else bounds
        rows, _ = kernel.scan(data, at, 1, {b"s ": 0}, 9999, out, flows, tokens, bounds)
        return bytes(out[: bounds[3]]) if rows == 3 else None

    most = 3 * len(data) + kernel.ROOM_BYTES
    every_room(call, most)
    short(lambda table: call(bytearray(most), tokens=table), [0] * 3, 3)
    short(lambda table: call(bytearray(most), bounds=table), [0] * 4, 4)
    with said("scan"):
        call(bytearray(most), at=-1)


def wrong_bounds(bounds: array[int]) -> list[array[int]]:
    """Such as contradict the buffer or one another."""
    found = []
    for row, wrong in ((0, ONES), (1, 2**63), (3, 0), (len(bounds) - 1, bounds[-1] + 1)):
        places = bounds[:]
        places[row] = wrong
        found.append(places)
    return found


@both(synapse)
def test_units_are_written_whole_or_not_at_all(kernel: Any) -> None:
    """A table or a buffer that is too short is an error."""
    source, bounds, count = b"".join(ROWS), bounds_of(ROWS), len(ROWS)
    given: dict[str, Any] = {
        "flows": array("Q", [3] * count),
        "tokens": array("Q", range(1, count + 1)),
        "bounds": bounds,
    }
    found = [array("Q", [0] * (count + 1)), array("Q", [0] * count), array("Q", [0] * count)]

    def call(out: bytearray, found: Any = found, **other: Any) -> bytes | None:
        flows, tokens, bounds = {**given, **other}.values()
        try:
            rows, made = kernel.units(
                flows, tokens, bounds, count, 3, source, 0, False, out, *found
            )
        except IndexError as error:
            return none_for(error, "units: a row")
        assert rows == made == count
        return bytes(out[: found[0][count]])

    assert every_room(call, len(source) + 9) == len(source)
    for name, numbers in given.items():

        def one(table: Any, name: str = name) -> None:
            with_table = {**given, name: table}
            kernel.units(*with_table.values(), count, 3, source, 0, False, bytearray(999), *found)

        short(one, numbers, len(numbers))
    for number, table in enumerate(found):

        def other(given_one: Any, number: int = number) -> None:
            tables = [*found]
            tables[number] = given_one
            kernel.units(*given.values(), count, 3, source, 0, False, bytearray(999), *tables)

        short(other, table, len(table))
    for places in wrong_bounds(bounds):
        room = Room(len(source))
        assert call(room.data, bounds=places) is None
        room.check()


@both(synapse)
def test_tuples_are_written_whole_or_not_at_all(kernel: Any) -> None:
    """Their tokens as long as they can be."""
    source, bounds, count = b"".join(ROWS), bounds_of(ROWS), len(ROWS)
    ends, tokens = array("Q", [4, count]), array("Q", [ONES, ONES])
    tuple_bounds = array("Q", [0] * (count + 1))

    def call(out: bytearray, bounds: Any = bounds) -> bytes | None:
        try:
            size = kernel.tuples(source, bounds, ends, tokens, b"\xa1m", out, tuple_bounds)
        except IndexError as error:
            return none_for(error, "tuples: a row")
        return bytes(out[:size])

    most = len(source) + 22 * count
    every_room(call, most)
    for places in wrong_bounds(bounds):
        room = Room(most)
        assert call(room.data, places) is None
        room.check()

    def run(bounds: Any = bounds, ends: Any = ends, tuple_bounds: Any = tuple_bounds) -> None:
        kernel.tuples(source, bounds, ends, tokens, b"\xa1m", bytearray(most), tuple_bounds)

    short(lambda table: run(bounds=table), bounds, count + 1)
    short(lambda table: run(ends=table), ends, 2)
    short(lambda table: run(tuple_bounds=table), tuple_bounds, count + 1)


@both(linekernel)
@pytest.mark.parametrize("form", [0, 1, 2])
def test_msgpack_becomes_json_whole_or_not_at_all(kernel: Any, form: int) -> None:
    """Also at its worst: one byte is six."""
    for value in ([None, True, {"a": [False, -1.5e300]}], "\x01" * 40, [[]] * 15, ["\x01"] * 15):
        data = pack(value)

        def call(out: bytearray, data: bytes = data) -> bytes | None:
            size = kernel.text(data, form, out)
            return bytes(out[:size]) if size >= 0 else None

        most = 8 * len(data) + kernel.TEXT_ROOM_BYTES
        assert every_room(call, most) == most


@both(linekernel)
def test_tuples_become_lines_whole_or_not_at_all(kernel: Any) -> None:
    """No unit is told of for which there is no room, in the bytes or in the table of ends."""
    found = [pack(["m", n + 1, 0, "\x01" * n]) for n in range(6)]

    def call(out: bytearray, first: int = 0, label: int = 2) -> bytes | None:
        ends = array("Q", [0] * 12)
        made = kernel.lines(found, first, b"RDATA s ", 0, out, label, 9999, ends)
        return bytes(out[: ends[10]]) if made == 6 else None

    most = 6 * 200
    every_room(call, most)
    for size in range(12):
        table = Table([0] * size)
        made = kernel.lines(found, 0, b"", 0, bytearray(most), 2, 9999, table.view)
        assert made == size // 2
        table.check()
    for wrong in ({"first": -1}, {"label": -1}, {"label": -(2**62)}):
        with said("lines"):
            call(bytearray(most), **wrong)


class Changed:
    """Changes of a space, as a block has them in its columns."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        rows = [pack([number, "\x01" * number]) for number in range(4)]
        self.data = b"".join(rows)
        places = bounds_of(rows)
        spans = [start | end << 32 for start, end in pairwise(places)]
        self.columns = [
            array("Q", [2, 3, 5, 2]),
            array("Q", [600] * 4),
            array("Q", [0] * 4),
            array("Q", spans),
            array("Q", [5, 6, 7, 8]),
        ]
        self.ends: Any = array("Q", [1, 2, 3, 4])
        self.fields = array("Q", [0, 1])
        self.told: Any = array("Q", [0] * 4)
        self.wanted = [600, 0, 0]

    def lines(self, out: bytearray) -> bytes | None:
        """All of them."""
        reached = self.kernel.changes(
            *(self.data, *self.columns, self.ends, self.wanted, self.fields, b"RDATA s "),
            *(out, 9999, self.told),
        )
        return bytes(out[: self.told[0]]) if reached == 4 else None


@both(linekernel)
def test_changes_become_lines_whole_or_not_at_all(kernel: Any) -> None:
    """Whatever spans, transactions and tables say."""
    most = 2000
    every_room(Changed(kernel).lines, most)
    for column in range(5):  # where types end, transactions pass the end
        for size in range(4):
            changed = Changed(kernel)
            changed.columns[column] = changed.columns[column][:size]
            with said("changes"):
                changed.lines(bytearray(most))
    for place, wrong in ((2, 900), (3, 900), (3, 9 << 32 | 2**31), (2, 2**32 - 1)):
        changed = Changed(kernel)
        changed.columns[place][2] = wrong
        for size in range(64, 600, 7):
            room = Room(size)
            assert changed.lines(room.data) is None
            room.check()
    for ends in ((1, 2, 3, 5), (1, ONES, 3, 4), (2**63, 2, 3, 4)):
        changed = Changed(kernel)
        changed.ends = array("Q", ends)
        with said("changes"):
            changed.lines(bytearray(most))
    for name, numbers in (("fields", [1, 0, 1]), ("told", [0] * 3)):
        changed = Changed(kernel)
        setattr(changed, name, array("Q", numbers))
        with said("changes"):
            changed.lines(bytearray(most))
    for wanted in ([600, 0], [600, -1, 0]):
        changed = Changed(kernel)
        changed.wanted = wanted
        with said("changes"):
            changed.lines(bytearray(most))


@both(linekernel)
def test_inserted_tuples_want_whole_columns(kernel: Any) -> None:
    """And a transaction for each row."""
    changed = Changed(kernel)
    changed.columns[3] = changed.columns[3][1:2] * 4  # of one label

    def call(number: int, table: Any) -> int:
        spaces, spans, lsns = changed.columns[1], changed.columns[3], changed.columns[4]
        given: list[Any] = [spaces, spans, lsns, changed.ends, array("Q", [0] * 4)]
        given[number] = table
        found: list[bytes] = []
        one = array("Q", [2] * 4)
        row = kernel.gather(changed.data, one, *given[:4], changed.wanted, found, given[4])
        return len(found) if row == 4 else -1

    for number, column in enumerate((1, 3, 4)):

        def one(table: Any, number: int = number) -> None:
            call(number, table)

        short(one, changed.columns[column], 4)
    for number, wrong in ((3, [1, 2, 3]), (3, []), (3, [1, 2, 3, 5]), (4, [0] * 1)):
        with said("gather"):
            call(number, array("Q", wrong))
    assert call(0, changed.columns[1]) == 4
    for wanted in ([600, 0], [600, -1, 0]):
        changed.wanted = wanted
        with said("gather"):
            call(0, changed.columns[1])
    short(lambda table: kernel.is_run(table, array("Q", range(4)), 4), [1] * 4, 4)
    short(lambda table: kernel.is_run(array("Q", [1] * 4), table, 4), range(4), 4)
