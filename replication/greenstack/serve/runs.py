# cython: annotation_typing=False
"""Runs of requests, handled as bytes instead of objects.

`take_run` finds the run that comes first; its form is in `kernel`. `bucket.joint` has them
executed.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `runs.pxd`.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from logweir.limits import TAP_VALUE_BYTES
from logweir.replication.bucket.batch import AT, WHOLE
from logweir.replication.bucket.requests import Numbers, Said
from logweir.replication.greenstack.serve.commands import Failed, told
from logweir.replication.greenstack.wire import kernel
from logweir.replication.greenstack.wire.codec import (
    Flag,
    FlexKey,
    Frame,
    Opcode,
    Status,
    decode_frames,
    encode_answer,
    encode_frame,
)
from logweir.store.engine.reader import PlainRequests
from logweir.store.schema.bulk import interpret_calls

READ_CODES: Final = frozenset([one.to_bytes(2, "big") for one in (Opcode.GET, Opcode.GET_MANY)])
"""The opcodes, as frames have them, of what `GetReader` may answer: any other is no read."""

RUN_MAX: Final = 4096
"""Longer runs are divided, so that the first answers are on their way while others are made."""

_FRAME_MIN: Final = 40
_SCRATCH_BYTES: Final = 4 * 1024 * 1024
_ZERO: Final = array("Q", (0,))
_LANE: Final = FlexKey.LANE.value  # plain: it is asked for each request


interpret_calls(kernel)


class RequestRun:
    """GETs or MUTATIONs in `data` from `start` to `stop`. `begun`: how many of them are answered,
    `count`: how many are not; `loud`: how many are not quiet; `key_bytes`, `value_bytes`: of all;
    `flex`: the lane, if any."""

    def __init__(
        self,
        data: bytes,
        start: int,
        stop: int,
        opcode: int,
        loud: int,
        key_bytes: int,
        value_bytes: int,
        flex: Mapping[int, bytes],
        table: array[int],
        count: int,
        begun: int = 0,
    ) -> None:
        self.data = data
        self.start = start
        self.stop = stop
        self.opcode = opcode
        self.loud = loud
        self.key_bytes = key_bytes
        self.value_bytes = value_bytes
        self.flex = flex
        self.table = table
        self.count = count
        self.begun = begun
        self.flags = 0

    def behind(self, begun: int) -> RequestRun:
        """The same, of which so many are answered."""
        given = self.data, self.start, self.stop, self.opcode, self.loud
        about = self.key_bytes, self.value_bytes, self.flex, self.table
        return RequestRun(*given, *about, self.count - begun + self.begun, begun)

    @property
    def lane(self) -> bytes | None:
        """As `Frame.lane`."""
        return self.flex.get(_LANE)

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory until it is answered."""
        return self.stop - self.start + 64 * self.count

    def frames(self) -> Sequence[Frame]:
        """The same as objects."""
        found, _, _, problem = decode_frames(self.data[self.start : self.stop])
        assert problem is None
        return found[self.begun :]


if TYPE_CHECKING:
    GetReader = PlainRequests
else:
    try:
        from logweir.replication.greenstack.wire.readgetkernel import GetReader
    except ImportError:
        GetReader = PlainRequests


def take_run(data: bytes, at: int = 0) -> RequestRun | None:
    """The run that begins at `at`; None if there is none."""
    left = len(data) - at
    most = min(left // _FRAME_MIN + 1, RUN_MAX)
    if not left:
        return None
    found = _ZERO * kernel.RUN_NUMBERS
    scratch = _scratch.numbers(kernel.WIDTH * most)
    count = kernel.take_run(data, at, most, TAP_VALUE_BYTES, found, scratch)
    if not count:
        return None
    stop, keys, values, lane_at, lane_bytes, has_lane, loud, opcode = found
    flex = {_LANE: data[lane_at : lane_at + lane_bytes]} if has_lane else {}
    table = scratch[: kernel.WIDTH * count]
    return RequestRun(data, at, stop, opcode, loud, keys, values, flex, table, count)


def run_of(frame: Frame) -> RequestRun | None:
    """A request without what does not matter once it is its turn; None: it is of no such form."""
    entries = FlexKey.LANE, FlexKey.VBUCKET
    flex = {int(key): frame.flex[key] for key in entries if key in frame.flex}
    return take_run(encode_frame(replace(frame, flags=frame.flags & Flag.QUIET, flex=flex)))


class _Scratch(threading.local):
    """Room for what the kernel writes, of each thread: to make it anew, all zeros, costs more than
    to copy what was used of it. It is as large as the largest was, at most `_SCRATCH_BYTES`."""

    def __init__(self) -> None:
        self._numbers = _ZERO

    def numbers(self, count: int) -> array[int]:
        """So many numbers at least."""
        if len(self._numbers) >= count:
            return self._numbers
        made = _ZERO * count
        if 8 * count <= _SCRATCH_BYTES:
            self._numbers = made
        return made


_scratch: Final = _Scratch()


class Asked(Protocol):
    """Of whose requests a run is. `failed`: how many of them have."""

    failed: int


class Joined:
    """Runs of several who ask as one, see `replication.bucket.joint.Joined`: places are numbers of
    the requests of all. `uuid`: first 8 bytes of the instance's."""

    def __init__(self, runs: Sequence[RequestRun], asked: Sequence[Asked], uuid: int) -> None:
        self._asked = asked
        self._uuid = uuid
        self._ends: list[int] = []
        self._runs: list[tuple[RequestRun, int]] = []
        """Each, and how much larger a place is than the number of the request in it."""
        at = size = 0
        for run in runs:
            self._runs.append((run, at - run.begun))
            at += run.count
            self._ends.append(at)
            size += run.key_bytes + run.value_bytes
        self.start = 0
        self.stop = self.count = at
        self.given_bytes = size + kernel.ITEM_BYTES * at

    def number(self, at: int) -> int:
        return bisect_right(self._ends, at)

    def frame(self, at: int) -> Frame:
        """The request at a place."""
        run, shift = self._runs[self.number(at)]
        return run.frames()[at - shift - run.begun]

    def rest(self, at: int) -> RequestRun:
        """What is not answered of the run of the request at `at`, which is the first of it."""
        run, shift = self._runs[self.number(at)]
        return run.behind(at - shift)

    def name(self, at: int) -> tuple[bytes, int]:
        run, shift = self._runs[self.number(at)]
        row = run.table[(at - shift) * kernel.WIDTH :][: kernel.WIDTH]
        key_at = row[kernel.KEY_AT]
        vbucket = row[kernel.TRAITS] >> 16 & 0xFFFF
        return run.data[key_at : key_at + row[kernel.KEY_BYTES]], vbucket

    def statements(
        self, numbers: Numbers, most: int, states: bytearray, given: bytearray, columns: Numbers
    ) -> int:
        how: int = WHOLE
        begin = numbers[AT]
        end = min(begin + most, self.stop)
        for index in range(bisect_right(self._ends, begin), len(self._ends)):
            run, shift = self._runs[index]
            stop = min(self._ends[index], end)
            numbers[AT] -= shift
            how = kernel.statements(
                run.data, run.table, stop - shift, most, numbers, states, given, columns
            )
            numbers[AT] += shift
            if how != WHOLE or stop == end:
                break
        return how

    def answers(
        self, at: int, reached: int, first: int, results: array[int], made: bytes, lsn: int
    ) -> list[Said]:
        said: list[Said] = []
        numbers = array("Q", (0, 0, first, lsn, 0))
        room = kernel.ANSWER_BYTES * (reached - at)
        if made:
            room += kernel.DOCUMENT_BYTES * (reached - at) + len(made)
        out, begin = bytearray(room), 0
        for index in range(bisect_right(self._ends, at), len(self._ends)):
            run, shift = self._runs[index]
            stop = min(self._ends[index], reached)
            lane, lane_bytes = run.flex.get(_LANE, b""), -1
            if run.flex:
                lane_bytes = len(lane)
                out += bytes(lane_bytes * (stop - at))
            numbers[AT] = at - shift
            given = run.table, stop - shift, numbers, results, made, lane, lane_bytes, self._uuid
            while kernel.answers(*given, out) != kernel.DONE:
                out = _answer_odd(run, numbers, results, made, out)
            at, used, _, _, failed = numbers
            if failed:
                self._asked[index].failed += failed
                numbers[kernel.FAILED] = 0
            at += shift
            said.append((at, bytes(memoryview(out)[begin:used])))
            begin = used
            if at < stop or at == reached:
                break  # so far they were executed
        return said


def _answer_odd(
    run: RequestRun, numbers: array[int], results: array[int], made: bytes, out: bytearray
) -> bytearray:
    """`out`, with room for as much, after the answer to a GET of an item that is not as `pack_item`
    writes it."""
    at, used, number = numbers[0], numbers[1], numbers[2]
    place = number * kernel.RESULTS + 4
    start, end = results[place], results[place + 1]
    try:
        answer = Status.SUCCESS, told(0, made[start:end])
    except Failed as one:
        answer = one.status, b""
    said = encode(run.frames()[at - run.begun], *answer)
    numbers[:3] = array("Q", (at + 1, used + len(said), number + 1))
    numbers[kernel.FAILED] += answer[0] != Status.SUCCESS
    return bytearray(memoryview(out)[:used]) + said + bytearray(len(out))


def encode(frame: Frame, status: Status, payload: bytes = b"") -> bytes:
    """An answer, unless none is wanted."""
    is_told = status != Status.SUCCESS or not frame.is_quiet
    return encode_answer(frame, status, payload) if is_told else b""
