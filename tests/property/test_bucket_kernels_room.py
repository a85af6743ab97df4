"""Kernels of memcached, TAP and Greenstack are handed tables that are too short: they say so, or
stop, and write nothing behind them; compiled and as plain Python. So they do in every room for
their bytes, from none to enough."""

from __future__ import annotations

import contextlib
from array import array
from typing import Any

import pytest
from support.canary import Room, Table, every_room, short

from interop.gsraw import get, mutation
from interop.kvclient import store
from logweir.replication.bucket import kernel as items
from logweir.replication.bucket.item import VBUCKETS, Item, pack_item
from logweir.replication.greenstack.wire import kernel as gs_kernel
from logweir.replication.greenstack.wire import pushkernel
from logweir.replication.greenstack.wire.codec import encode_frame
from logweir.replication.memcached.wire import kernel as tap_kernel
from logweir.replication.memcached.wire import pushkernel as tap_pushkernel
from logweir.replication.memcached.wire.codec import Opcode, Packet, encode_request
from logweir.store.schema.bulk import interpreted

PLAIN_GS = interpreted(gs_kernel)
PLAIN_PUSH = interpreted(pushkernel)
TAP = [pytest.param(interpreted(tap_kernel), id="plain")]
TAP_PUSHES = [pytest.param(interpreted(tap_pushkernel), id="plain")]
GREENSTACK = [pytest.param(PLAIN_GS, id="plain")]
PUSHES = [pytest.param(PLAIN_PUSH, id="plain")]
if gs_kernel.COMPILED:
    TAP.append(pytest.param(tap_kernel, id="compiled"))
    TAP_PUSHES.append(pytest.param(tap_pushkernel, id="compiled"))
    GREENSTACK.append(pytest.param(gs_kernel, id="compiled"))
    PUSHES.append(pytest.param(pushkernel, id="compiled"))

REQUESTS = b"".join(encode_request(store(b"k%d" % n, b"v" * n)) for n in range(20))
REQUESTS += encode_request(Packet(Opcode.DELETE, b"k1"))
FRAMES = b"".join(encode_frame(mutation(b"k%d" % n, b"v" * n, opaque=n)) for n in range(20))
ONES = 2**64 - 1
TUPLES = [pack_item(Item(b"k%d" % n, 0, b"v" * n, cas=n + 1)) for n in range(20)]


@pytest.mark.parametrize("kernel", TAP)
def test_take_run_wants_room_for_what_it_finds(kernel: Any) -> None:
    """Two numbers."""
    assert kernel.take_run(REQUESTS, 0, 100, 1000, array("Q", [0] * 2)) == 21
    short(lambda found: kernel.take_run(REQUESTS, 0, 100, 1000, found), [0] * 2, 2)


STATES = b"\1" * VBUCKETS
COUNT = 22  # statements: a DELETE is two


class Running:
    """A kernel on `data`, whose tables can be made too short one by one."""

    def __init__(self, kernel: Any, data: bytes = REQUESTS, out: bytearray | None = None) -> None:
        self.kernel = kernel
        self.data = data
        self.numbers: Any = array("Q", (0, 0, 0, 1000))
        self.states = bytearray(STATES)
        self.out = bytearray(8192) if out is None else out
        self.columns: Any = array("Q", [0] * (COUNT * kernel.WIDTH))
        self.results: Any = array("Q", [0] * (COUNT * kernel.RESULTS))

    def statements(self) -> int:
        """Of all requests."""
        made: int = self.kernel.statements(
            *(self.data, len(self.data), 100, self.numbers, self.states, self.out, self.columns)
        )
        return made

    def answers(self) -> int:
        """To all requests, which went well."""
        made: int = self.kernel.answers(
            *(self.data, len(self.data), self.numbers, self.results, b"", self.out)
        )
        return made

    def told(self, call: str) -> bytes | None:
        """What it writes; None where there is no room for that."""
        how: int = getattr(self, call)()
        assert how in (self.kernel.DONE, self.kernel.NO_ROOM)
        return bytes(self.out[: self.numbers[self.kernel.USED]]) if not how else None


GETS = b"".join(encode_request(Packet(Opcode.GET, b"k%d" % n)) for n in range(20))
CALLS = [("statements", REQUESTS), ("answers", REQUESTS)]


@pytest.mark.parametrize("kernel", TAP)
@pytest.mark.parametrize(("call", "data"), CALLS)
def test_every_table_of_a_run_has_to_be_whole(kernel: Any, call: str, data: bytes) -> None:
    """One entry less than it needs is an error, and nothing stands behind it."""
    assert getattr(Running(kernel, data), call)() == kernel.DONE
    for size in range(3 if call == "answers" else 4):
        one, table = Running(kernel, data), Table([0] * size)
        one.numbers = table.view
        with pytest.raises(IndexError):
            getattr(one, call)()
        table.check()
    if call != "answers":
        one = Running(kernel, data)
        one.states = one.states[:-1]
        with pytest.raises(IndexError):
            getattr(one, call)()


@pytest.mark.parametrize("kernel", TAP)
def test_statements_stop_where_there_is_no_room(kernel: Any) -> None:
    """In their bytes or their columns: whole ones are there, and nothing behind the table."""
    whole = Running(kernel)
    assert whole.statements() == kernel.DONE
    assert whole.numbers[kernel.COUNT] == COUNT
    for size in range(COUNT * kernel.WIDTH):
        one, table = Running(kernel), Table([0] * size)
        one.columns = table.view
        assert one.statements() == kernel.NO_ROOM
        assert one.numbers[kernel.COUNT] * kernel.WIDTH <= size
        table.check()
    every_room(lambda out: Running(kernel, out=out).told("statements"), 4000)
    for count in (ONES, 2**63, 2**62, (2**64 // kernel.WIDTH) + 1):
        one = Running(kernel)
        one.numbers[kernel.COUNT] = count
        with pytest.raises(IndexError, match="statements"):
            one.statements()


@pytest.mark.parametrize("kernel", TAP)
def test_answers_stop_where_results_or_room_end(kernel: Any) -> None:
    """And believe no place of a tuple."""
    for count in range(COUNT):
        one = Running(kernel)
        one.results = one.results[: count * kernel.RESULTS + 9]
        assert one.answers() == kernel.DONE
        assert one.numbers[kernel.COUNT] <= count
    every_room(lambda out: Running(kernel, out=out).told("answers"), 1500)
    one = Running(kernel)
    one.numbers[kernel.COUNT] = 2**63 - 1
    assert one.answers() == kernel.DONE
    assert one.numbers[kernel.USED] == 0
    one = Running(kernel, GETS)
    one.results[4:6] = array("Q", (0, 1))
    with pytest.raises(IndexError):
        one.answers()


@pytest.mark.parametrize("kernel", TAP)
@pytest.mark.parametrize(("call", "data"), CALLS)
def test_a_run_believes_no_length(kernel: Any, call: str, data: bytes) -> None:
    """A request that is cut off, or longer than what there is, is no request."""
    for stop in range(1, len(data)):
        one = Running(kernel, data[:stop])
        with contextlib.suppress(IndexError):
            assert getattr(one, call)() == kernel.DONE
        assert one.numbers[kernel.AT] <= stop
    for odd in (Packet(Opcode.SET, b"k", b"", b"1234"), Packet(0x77, b"k")):
        if call != "answers":
            assert getattr(Running(kernel, encode_request(odd)), call)() == kernel.ODD


@pytest.mark.parametrize("kernel", TAP_PUSHES)
def test_mutations_stop_where_there_is_no_room(kernel: Any) -> None:
    """In the bytes, and in the table of their ends; its other tables have to be whole."""
    wanted = b"\1" * VBUCKETS

    def call(numbers: Any, out: bytearray, ends: Any, wanted: bytes = wanted) -> int:
        row: int = kernel.mutations(TUPLES, 0, wanted, 1000, 0, numbers, out, ends)
        return row

    short(lambda n: call(n, bytearray(9999), array("Q", [0] * 40)), (0, 0, 0, 100, 1 << 40), 5)
    numbers = array("Q", (0, 0, 0, 100, 1 << 40))
    with pytest.raises(IndexError):
        call(numbers, bytearray(9999), array("Q", [0] * 40), wanted[:-1])
    for size in range(40):
        table = Table([0] * size)
        numbers = array("Q", (0, 0, 0, 100, 1 << 40))
        assert call(numbers, bytearray(9999), table.view) == size // 2
        table.check()
        assert call(array("Q", (0, 0, 0, 100, 1 << 40)), bytearray(size), table.view) == 0

    def told(out: bytearray) -> bytes | None:
        numbers, ends = array("Q", (0, 0, 0, 100, 1 << 40)), array("Q", [0] * 40)
        made = kernel.mutations(TUPLES, 0, wanted, 1000, 4, numbers, out, ends)
        return bytes(out[: numbers[0]]) if made == len(TUPLES) else None

    every_room(told, 2000)


@pytest.mark.parametrize("kernel", TAP_PUSHES)
def test_touched_wants_a_byte_of_each_vbucket(kernel: Any) -> None:
    """In both tables."""
    whole = b"\1" * VBUCKETS
    assert kernel.touched(TUPLES, whole, bytearray(VBUCKETS)) == len(TUPLES)
    for wanted, table in ((whole[:-1], bytearray(VBUCKETS)), (whole, bytearray(VBUCKETS - 1))):
        with pytest.raises(IndexError):
            kernel.touched(TUPLES, wanted, table)


@pytest.mark.parametrize("kernel", GREENSTACK)
def test_a_run_of_mutations_is_no_longer_than_its_table(kernel: Any) -> None:
    """And what is found of it needs eight numbers."""

    def call(found: Any, table: Any) -> int:
        count: int = kernel.take_run(FRAMES, 0, 100, 1000, found, table)
        return count

    numbers = [0] * (20 * kernel.WIDTH)
    short(lambda found: call(found, array("Q", numbers)), [0] * 8, 8)
    for size in range(len(numbers)):
        table = Table(numbers[:size])
        assert call(array("Q", [0] * 8), table.view) == size // kernel.WIDTH
        table.check()


def taken(kernel: Any, frames: bytes = FRAMES) -> array[int]:
    """What `take_run` keeps of the frames."""
    table = array("Q", [0] * (20 * kernel.WIDTH))
    assert kernel.take_run(frames, 0, 100, 1000, array("Q", [0] * 8), table) == 20
    return table


class GreenstackRunning:
    """Greenstack's kernel on a run, whose tables can be made too short one by one."""

    def __init__(
        self, kernel: Any, lane: bytes = b"", lane_bytes: int = -1, out: bytearray | None = None
    ) -> None:
        self.kernel = kernel
        self.table: Any = taken(kernel)
        self.made = b""
        self.lane = lane, lane_bytes
        self.numbers: Any = array("Q", [0] * 5)
        self.states = bytearray(STATES)
        self.out = bytearray(8192) if out is None else out
        self.columns: Any = array("Q", [0] * (20 * kernel.COLUMNS))
        self.results: Any = array("Q", [0] * (20 * kernel.RESULTS))

    def statements(self, stop: int = 20) -> int:
        """Of all requests."""
        made: int = self.kernel.statements(
            *(FRAMES, self.table, stop, 100, self.numbers, self.states, self.out, self.columns)
        )
        return made

    def answers(self, stop: int = 20) -> int:
        """To all requests, which went well."""
        made: int = self.kernel.answers(
            *(self.table, stop, self.numbers, self.results, self.made, *self.lane, 1, self.out)
        )
        return made


@pytest.mark.parametrize("kernel", GREENSTACK)
@pytest.mark.parametrize(("call", "least"), [("statements", 3), ("answers", 5)])
def test_every_table_of_a_run_of_mutations_has_to_be_whole(
    kernel: Any, call: str, least: int
) -> None:
    """One entry less than it needs is an error, and nothing stands behind it."""
    assert getattr(GreenstackRunning(kernel), call)() == kernel.DONE
    with pytest.raises(IndexError):
        getattr(GreenstackRunning(kernel), call)(21)
    for size in range(least):
        one, table = GreenstackRunning(kernel), Table([0] * size)
        one.numbers = table.view
        with pytest.raises(IndexError):
            getattr(one, call)()
        table.check()
    for lane_bytes in (5, -2, -(2**62)):
        one = GreenstackRunning(kernel, b"lane", lane_bytes)
        one.states = one.states[:-1]
        with pytest.raises(IndexError):
            getattr(one, call)()


@pytest.mark.parametrize("kernel", GREENSTACK)
def test_a_run_of_mutations_stops_where_there_is_no_room(kernel: Any) -> None:
    """In bytes, columns or results: whole ones are there, and nothing behind the table."""
    for size in range(20 * kernel.COLUMNS):
        one, table = GreenstackRunning(kernel), Table([0] * size)
        one.columns = table.view
        assert one.statements() == kernel.NO_ROOM
        assert one.numbers[kernel.COUNT] == size // kernel.COLUMNS
        table.check()
    for count in range(20):
        one = GreenstackRunning(kernel)
        one.results = one.results[: count * kernel.RESULTS + 9]
        assert one.answers() == kernel.DONE
        assert one.numbers[kernel.AT] == one.numbers[kernel.LSN] == count
    for call in ("statements", "answers"):
        for lane in ((b"", -1), (b"lane", 4)):

            def told(out: bytearray, call: str = call, lane: Any = lane) -> bytes | None:
                one = GreenstackRunning(kernel, *lane, out)
                how = getattr(one, call)()
                assert how in (kernel.DONE, kernel.NO_ROOM)
                return bytes(out[: one.numbers[kernel.USED]]) if how == kernel.DONE else None

            every_room(told, 2500)


@pytest.mark.parametrize("kernel", GREENSTACK)
def test_a_run_of_mutations_believes_no_place(kernel: Any) -> None:
    """Of a key or a value, nor how many statements there are."""
    places = (kernel.KEY_AT, kernel.KEY_BYTES, kernel.VALUE_AT, kernel.VALUE_BYTES)
    for place in places:
        for wrong in (len(FRAMES) + 1, 2**63, ONES, ONES - 40):
            room = Room(400)
            one = GreenstackRunning(kernel, out=room.data)
            one.table[place] = wrong
            with pytest.raises(IndexError, match="statements"):
                one.statements()
            room.check()
    for count in (ONES, 2**63, 2**62, (2**64 // kernel.COLUMNS) + 1):
        one = GreenstackRunning(kernel)
        one.numbers[kernel.COUNT] = count
        with pytest.raises(IndexError, match="statements"):
            one.statements()


def gets(kernel: Any, out: bytearray | None = None, lane: bytes = b"") -> GreenstackRunning:
    """A run of GETs, and what was found."""
    one = GreenstackRunning(kernel, lane, len(lane) or -1, out)
    one.table = taken(kernel, b"".join(encode_frame(get(b"k%d" % n)) for n in range(20)))
    for n, data in enumerate(TUPLES):
        one.results[n * kernel.RESULTS + 4] = len(one.made)
        one.made += data
        one.results[n * kernel.RESULTS + 5] = len(one.made)
    return one


@pytest.mark.parametrize("kernel", GREENSTACK)
def test_answers_to_gets_stop_where_there_is_no_room(kernel: Any) -> None:
    """Whole ones are there, and nothing behind the room."""
    for lane in (b"", b"lane"):

        def told(out: bytearray, lane: bytes = lane) -> bytes | None:
            one = gets(kernel, out, lane)
            how = one.answers()
            assert how in (kernel.DONE, kernel.NO_ROOM)
            return bytes(out[: one.numbers[kernel.USED]]) if how == kernel.DONE else None

        every_room(told, 20 * (kernel.ANSWER_BYTES + kernel.DOCUMENT_BYTES + 4 + 60))


@pytest.mark.parametrize("kernel", GREENSTACK)
def test_answers_to_gets_believe_no_place(kernel: Any) -> None:
    """Of a tuple; and one that is none is odd."""
    for place, wrong in ((4, 2**63), (4, ONES), (5, 2**63), (5, ONES), (5, 10_000)):
        one = gets(kernel)
        one.results[place] = wrong
        with pytest.raises(IndexError, match="tuple"):
            one.answers()
    for place in (4, 5):
        one = gets(kernel)
        one.results[place] += 1
        assert one.answers() == kernel.ODD
        assert list(one.numbers) == [0] * 5


@pytest.mark.parametrize("kernel", PUSHES)
def test_pushes_want_whole_tables(kernel: Any) -> None:
    """Of lsns, names and numbers; also where there is nothing to push."""
    whole: list[Any] = [array("Q", [0] * 32), array("Q", (512,)), array("Q", (0, 3)), b"abc"]

    every = b"\1" * VBUCKETS

    def call(
        lsns: Any, spaces: Any, bounds: Any, names: bytes, numbers: Any, wanted: bytes = every
    ) -> int:
        how: int = kernel.pushes(
            b"", lsns, spaces, bounds, names, wanted, b"", False, b"", 1 << 20, numbers,
            bytearray(999),
        )  # fmt: skip
        return how

    numbers = array("Q", (0, 0, 1, 0))
    assert call(*whole, numbers) == kernel.DONE
    short(lambda table: call(*whole, table), numbers, 4)
    short(lambda table: call(table, *whole[1:], numbers), whole[0], 32)
    short(lambda table: call(*whole[:2], table, whole[3], numbers), whole[2], 2)
    with pytest.raises(IndexError):
        call(*whole, numbers, every[:-1])
    for bounds in ((0, 4), (3, 0), (1 << 63, 3)):
        with pytest.raises(IndexError):
            call(*whole[:2], array("Q", bounds), whole[3], numbers)


@pytest.mark.parametrize("kernel", PUSHES)
def test_documents_want_whole_tables_and_stop_where_there_is_no_room(kernel: Any) -> None:
    """In the bytes; the vbuckets and the numbers have to be whole."""
    wanted = b"\1" * VBUCKETS

    def call(numbers: Any, out: bytearray, wanted: bytes = wanted) -> int:
        how: int = kernel.documents(
            TUPLES, wanted, b"", False, 1000, b"", b"", 1 << 20, numbers, out
        )
        return how

    short(lambda numbers: call(numbers, bytearray(1 << 16)), (0, 0, 1, 0), 4)
    with pytest.raises(IndexError):
        call(array("Q", (0, 0, 1, 0)), bytearray(1 << 16), wanted[:-1])

    def told(out: bytearray) -> bytes | None:
        numbers = array("Q", (0, 0, 1, 0))
        how = call(numbers, out)
        assert how in (kernel.DONE, kernel.ODD, kernel.STOPPED)
        return bytes(out[: numbers[kernel.BYTES]]) if how == kernel.DONE else None

    every_room(told, 5000)


@pytest.mark.parametrize("behind", [b"\0", b"\1", b"\x7f", b"\xff"])
@pytest.mark.parametrize("ttl", [255, 3])
@pytest.mark.parametrize("marks", [0, 1])
def test_an_item_that_is_cut_ends_nowhere(behind: bytes, ttl: int, marks: int) -> None:
    """Whatever stands behind the place where it is cut; a whole one ends where it does."""
    plain, fields = interpreted(items), [0] * 32
    whole = pack_item(Item(b"k", 300, b"v" * 300, flags=2**20, cas=2**40, ttl=ttl, marks=marks))
    for end in range(len(whole)):
        assert plain.item_end(whole[:end] + behind * 16, 0, end, fields) == -1, end
    assert plain.item_end(whole + behind * 16, 0, len(whole), fields) == len(whole)
