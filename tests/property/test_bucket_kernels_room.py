"""Kernels of memcached, TAP and Greenstack are handed tables that are too short: they say so, or
stop, and write nothing behind them; compiled and as plain Python."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from interop.gsraw import mutation
from interop.kvclient import store
from logweir.replication.bucket import VBUCKETS, Item, pack_item
from logweir.replication.greenstack import kernel as gs_kernel
from logweir.replication.greenstack import pushing, pushkernel, runs
from logweir.replication.greenstack.codec import encode_frame
from logweir.replication.tap import kernel as tap_kernel
from logweir.replication.tap.codec import Opcode, Packet, encode_answer, encode_request
from logweir.store.schema.bulk import interpreted

PLAIN_GS = runs.interpreted_kernel()
PLAIN_PUSH = pushing.interpreted_kernel()
ANY_COMPILED = runs.ANY_COMPILED
TAP = [pytest.param(interpreted(tap_kernel), id="plain")]
GREENSTACK = [pytest.param(PLAIN_GS, id="plain")]
PUSHES = [pytest.param(PLAIN_PUSH, id="plain")]
if ANY_COMPILED:
    TAP.append(pytest.param(tap_kernel, id="compiled"))
    GREENSTACK.append(pytest.param(gs_kernel, id="compiled"))
    PUSHES.append(pytest.param(pushkernel, id="compiled"))

REQUESTS = b"".join(encode_request(store(b"k%d" % n, b"v" * n)) for n in range(20))
REQUESTS += encode_request(Packet(Opcode.DELETE, b"k1"))
FRAMES = b"".join(encode_frame(mutation(b"k%d" % n, b"v" * n, opaque=n)) for n in range(20))
TUPLES = [pack_item(Item(b"k%d" % n, 0, b"v" * n, cas=n + 1)) for n in range(20)]
CANARY = 0x5A5A5A5A5A5A5A5A
Make = Callable[[int], Any]


class Table:
    """So many numbers, with some behind them that nobody may touch."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._all = array("Q", [*numbers, *[CANARY] * 64])
        self.size = len(numbers)
        self.view = memoryview(self._all)[: self.size]

    def check(self) -> None:
        """Nothing was written behind it."""
        assert set(self._all[self.size :]) == {CANARY}


def short(call: Callable[[Any], int], numbers: Sequence[int], least: int) -> None:
    """`call` with fewer than `least` numbers is an error, and with so many it is none."""
    for size in range(least):
        table = Table(numbers[:size])
        with pytest.raises(IndexError):
            call(table.view)
        table.check()
    table = Table(numbers[:least])
    call(table.view)
    table.check()


@pytest.mark.parametrize("kernel", TAP)
def test_take_run_wants_room_for_what_it_finds(kernel: Any) -> None:
    """Three numbers."""
    short(lambda found: kernel.take_run(REQUESTS, 0, 100, 1000, found), [0] * 3, 3)


class Executing:
    """A call of `execute` whose tables can be made too short one by one."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.numbers: Any = array("Q", (0, 0, 0, 0, 1000, 1))
        self.states = bytearray(b"\1" * VBUCKETS)
        self.scratch = bytearray(600)
        self.answers = bytearray(4096)
        self.bodies = bytearray(8192)
        self.bounds: Any = array("Q", [0] * 64)
        self.kinds: Any = bytearray(64)
        self.data = REQUESTS

    def __call__(self) -> int:
        made: int = self.kernel.execute(
            *(self.data, len(self.data), self.numbers, self.states, lambda _: None, {}),
            *({}, {}, self.scratch, self.answers, self.bodies, self.bounds, self.kinds),
        )
        return made


@pytest.mark.parametrize("kernel", TAP)
@pytest.mark.parametrize("name", ["numbers", "states", "scratch", "bounds", "kinds"])
def test_execute_wants_room_in_every_table(kernel: Any, name: str) -> None:
    """Of its caller; one entry less than it needs is an error, and nothing stands behind it."""
    whole = Executing(kernel)
    assert whole() == kernel.DONE
    rows = whole.numbers[kernel.ROWS]
    least = {"numbers": 6, "states": VBUCKETS, "scratch": 600}
    least |= {"bounds": rows + 1, "kinds": rows}
    for size in {0, 1, least[name] - 1}:
        one = Executing(kernel)
        if name in ("numbers", "bounds"):
            table = Table(getattr(one, name)[:size])
            setattr(one, name, table.view)
        else:
            setattr(one, name, getattr(one, name)[:size])
        with pytest.raises(IndexError):
            one()
        if name in ("numbers", "bounds"):
            table.check()


@pytest.mark.parametrize("kernel", TAP)
@pytest.mark.parametrize("size", [0, 24, 307])
def test_execute_stops_where_answers_or_bodies_are_full(kernel: Any, size: int) -> None:
    """And asks for more room."""
    for name in ("answers", "bodies"):
        one = Executing(kernel)
        setattr(one, name, getattr(one, name)[:size])
        assert one() == kernel.NO_ROOM


@pytest.mark.parametrize("kernel", TAP)
def test_execute_believes_no_length(kernel: Any) -> None:
    """A request that is cut off, or longer than what there is, is no request."""
    for stop in range(1, len(REQUESTS)):
        one = Executing(kernel)
        one.data = REQUESTS[:stop]
        try:
            assert one() == kernel.DONE
        except IndexError:
            assert len(REQUESTS[:stop]) == stop
    one = Executing(kernel)
    one.data = encode_request(Packet(Opcode.SET, b"k", b"", b"1234"))
    assert one() == kernel.ODD
    one.data = encode_request(Packet(0x77, b"k"))
    assert one() == kernel.ODD


@pytest.mark.parametrize("kernel", TAP)
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


@pytest.mark.parametrize("kernel", TAP)
def test_touched_wants_a_byte_of_each_vbucket(kernel: Any) -> None:
    """In both tables."""
    whole = b"\1" * VBUCKETS
    assert kernel.touched(TUPLES, whole, bytearray(VBUCKETS)) == len(TUPLES)
    for wanted, table in ((whole[:-1], bytearray(VBUCKETS)), (whole, bytearray(VBUCKETS - 1))):
        with pytest.raises(IndexError):
            kernel.touched(TUPLES, wanted, table)


@pytest.mark.parametrize("kernel", GREENSTACK)
def test_a_run_of_mutations_is_no_longer_than_its_table(kernel: Any) -> None:
    """And what is found of it needs seven numbers."""

    def call(found: Any, table: Any) -> int:
        count: int = kernel.take_run(FRAMES, 0, 100, 1000, found, table)
        return count

    numbers = [0] * (20 * kernel.WIDTH)
    short(lambda found: call(found, array("Q", numbers)), [0] * 7, 7)
    for size in range(len(numbers)):
        table = Table(numbers[:size])
        assert call(array("Q", [0] * 7), table.view) == size // kernel.WIDTH
        table.check()


def taken(kernel: Any) -> array[int]:
    """What `take_run` keeps of the frames."""
    table = array("Q", [0] * (20 * kernel.WIDTH))
    assert kernel.take_run(FRAMES, 0, 100, 1000, array("Q", [0] * 7), table) == 20
    return table


@pytest.mark.parametrize("kernel", GREENSTACK)
def test_a_run_is_not_read_beyond_its_table(kernel: Any) -> None:
    """By whatever makes something of it."""
    table = taken(kernel)
    lane = b"lane"
    marks = array("Q", (0, 5, (1 << 64) - 1))
    out = bytearray(9999)
    calls: dict[str, Callable[[int], int]] = {
        "sets": lambda count: kernel.sets(FRAMES, table, count, out),
        "answers": lambda count: kernel.answers(b"", table, count, lane, 4, 1, marks, out),
    }
    for name, call in calls.items():
        assert call(20) >= 0 or name == "answers"
        with pytest.raises(IndexError):
            call(21)


@pytest.mark.parametrize("kernel", GREENSTACK)
def test_outputs_of_a_run_that_are_too_short_are_said_to_be(kernel: Any) -> None:
    """At every length below the one that is needed."""
    table = taken(kernel)
    needed = kernel.sets(FRAMES, table, 20, bytearray(9999))
    for size in range(0, needed, 7):
        assert kernel.sets(FRAMES, table, 20, bytearray(size)) == -1
    replies = b"".join(
        encode_answer(Packet(Opcode.SET, b"", opaque=n), cas=n + 1) for n in range(20)
    )
    marks = array("Q", (0, 5, (1 << 64) - 1))
    for lane, lane_bytes in ((b"", -1), (b"lane", 4)):
        what = replies, table, 20, lane, lane_bytes, 1, marks
        used = kernel.answers(*what, bytearray(9999))
        assert used == 20 * (69 if lane_bytes < 0 else 77 + lane_bytes)
        for size in range(0, used, 7):
            out = bytearray(size)
            assert kernel.answers(*what, out) == -1
            assert len(out) == size


@pytest.mark.parametrize("kernel", GREENSTACK)
@pytest.mark.parametrize(
    "marks", [(), (0, 5), (0, 5, 1), (0, 5, 1, (1 << 64) - 1), (0, (1 << 64) - 1)]
)
def test_marks_without_an_end_are_an_error(kernel: Any, marks: tuple[int, ...]) -> None:
    """Where it has to be; so is a lane that is shorter than it is said to be."""
    table = taken(kernel)
    with pytest.raises(IndexError):
        kernel.answers(b"", table, 20, b"", -1, 1, array("Q", marks), bytearray(9999))
    end = array("Q", (0, 5, (1 << 64) - 1))
    with pytest.raises(IndexError):
        kernel.answers(b"", table, 20, b"lane", 5, 1, end, bytearray(9999))


@pytest.mark.parametrize("kernel", PUSHES)
def test_pushes_want_whole_tables(kernel: Any) -> None:
    """Of lsns, names and numbers; also where there is nothing to push."""
    whole: list[Any] = [array("Q", [0] * 32), array("Q", (512,)), array("Q", (0, 3)), b"abc"]

    def call(lsns: Any, spaces: Any, bounds: Any, names: bytes, numbers: Any) -> int:
        how: int = kernel.pushes(
            b"", lsns, spaces, bounds, names, b"", 1 << 20, numbers, bytearray(999)
        )
        return how

    numbers = array("Q", (0, 0, 1, 0))
    assert call(*whole, numbers) == kernel.DONE
    short(lambda table: call(*whole, table), numbers, 4)
    short(lambda table: call(table, *whole[1:], numbers), whole[0], 32)
    short(lambda table: call(*whole[:2], table, whole[3], numbers), whole[2], 2)
    for bounds in ((0, 4), (3, 0), (1 << 63, 3)):
        with pytest.raises(IndexError):
            call(*whole[:2], array("Q", bounds), whole[3], numbers)


@pytest.mark.parametrize("kernel", PUSHES)
def test_documents_want_whole_tables_and_stop_where_there_is_no_room(kernel: Any) -> None:
    """In the bytes; the vbuckets and the numbers have to be whole."""
    wanted = b"\1" * VBUCKETS

    def call(numbers: Any, out: bytearray, wanted: bytes = wanted) -> int:
        how: int = kernel.documents(TUPLES, wanted, 1000, b"", b"", 1 << 20, numbers, out)
        return how

    short(lambda numbers: call(numbers, bytearray(1 << 16)), (0, 0, 1, 0), 4)
    with pytest.raises(IndexError):
        call(array("Q", (0, 0, 1, 0)), bytearray(1 << 16), wanted[:-1])
    for size in itertools.chain(range(0, 2000, 111)):
        numbers = array("Q", (0, 0, 1, 0))
        assert call(numbers, bytearray(size)) in (kernel.ODD, kernel.STOPPED)
        assert numbers[kernel.BYTES] <= size
