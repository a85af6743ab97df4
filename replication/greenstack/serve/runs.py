"""Runs of requests, handled as bytes instead of objects.

`take_run` finds the run that comes first; its form is in `kernel`. `execute_run` executes a run in
a group, `look_up` one of GETs as of what is published (`replication.bucket.batch`). A request that
needs more than that knows is handed to `ordinary`, everything before it being done.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple

from logweir.limits import TAP_VALUE_BYTES
from logweir.replication.bucket import kernel as bucket_kernel
from logweir.replication.bucket.batch import Changes, Looks, Paused, Said
from logweir.replication.bucket.store import Bucket, Buckets, GroupItems
from logweir.replication.greenstack.serve.commands import Answer, Failed, told
from logweir.replication.greenstack.wire import kernel as compiled
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
from logweir.store.commit.group import Group
from logweir.store.engine.reader import PlainRequests
from logweir.store.schema.bulk import interpreted
from logweir.wal import kernel as rows_kernel

__all__ = [
    "ANY_COMPILED",
    "READ_CODES",
    "Answered",
    "GetReader",
    "RequestRun",
    "execute_run",
    "interpreted_kernel",
    "look_up",
    "run_of",
    "take_run",
]

READ_CODES: Final = frozenset([one.to_bytes(2, "big") for one in (Opcode.GET, Opcode.GET_MANY)])
"""The opcodes, as frames have them, of what `GetReader` may answer: any other is no read."""

RUN_MAX: Final = 4096
"""Longer runs are divided, so that the first answers are on their way while others are made."""

_FRAME_MIN: Final = 40
_SCRATCH_BYTES: Final = 4 * 1024 * 1024
_ZERO: Final = array("Q", (0,))


def interpreted_kernel() -> ModuleType:
    """The kernel as plain Python, and those that it calls."""
    return interpreted(compiled)


ANY_COMPILED: Final = compiled.COMPILED or bucket_kernel.COMPILED or rows_kernel.COMPILED
"""The C functions of a compiled kernel can only be called by another."""

_is_mixed: Final = not compiled.COMPILED and ANY_COMPILED
kernel: Final = interpreted_kernel() if _is_mixed else compiled


@dataclass(slots=True)
class RequestRun:
    """GETs or MUTATIONs in `data` from `start` to `stop`. `begun`: how many of them are answered;
    `loud`: how many are not quiet; `key_bytes`, `value_bytes`: of all; `flex`: the lane, if any."""

    data: bytes
    start: int
    stop: int
    opcode: int
    loud: int
    key_bytes: int
    value_bytes: int
    flex: Mapping[int, bytes]
    table: array[int]
    begun: int = 0
    flags: int = 0

    @property
    def count(self) -> int:
        """How many requests have no answer."""
        count: int = len(self.table) // kernel.WIDTH - self.begun
        return count

    @property
    def lane(self) -> bytes | None:
        """As `Frame.lane`."""
        return self.flex.get(FlexKey.LANE)

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory until it is answered."""
        return self.stop - self.start + 64 * self.count

    def frames(self) -> Sequence[Frame]:
        """The same as objects."""
        found, _, _, problem = decode_frames(self.data[self.start : self.stop])
        assert problem is None
        return found[self.begun :]


class Answered(NamedTuple):
    """The answers to the first `done` requests of a run, how many of them have failed, and what was
    not run of it, if anything."""

    said: bytes
    done: int
    failed: int
    rest: RequestRun | None


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
    flex: dict[int, bytes] = {}
    if found[kernel.RUN_HAS_LANE]:
        lane_at = found[kernel.RUN_LANE_AT]
        flex[FlexKey.LANE] = data[lane_at : lane_at + found[kernel.RUN_LANE_BYTES]]
    return RequestRun(
        data,
        at,
        found[kernel.RUN_STOP],
        found[kernel.RUN_OPCODE],
        found[kernel.RUN_LOUD],
        found[kernel.RUN_KEYS],
        found[kernel.RUN_VALUES],
        flex,
        scratch[: kernel.WIDTH * count],
    )


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


class _Requests:
    """See `replication.bucket.batch.Requests`; places are numbers in the run."""

    __slots__ = ("count", "failed", "given_bytes", "run", "start", "stop", "uuid")

    def __init__(self, run: RequestRun, uuid: int) -> None:
        self.run = run
        self.uuid = uuid
        self.failed = 0
        self.count = run.count
        self.start = run.begun
        self.stop = self.start + self.count
        self.given_bytes: int = run.key_bytes + run.value_bytes + kernel.ITEM_BYTES * self.count

    def name(self, at: int) -> tuple[bytes, int]:
        row = self.run.table[at * kernel.WIDTH : (at + 1) * kernel.WIDTH]
        key_at = row[kernel.KEY_AT]
        vbucket = row[kernel.TRAITS] >> 16 & 0xFFFF
        return self.run.data[key_at : key_at + row[kernel.KEY_BYTES]], vbucket

    def statements(
        self,
        numbers: array[int],
        most: int,
        states: bytearray,
        given: bytearray,
        columns: array[int],
    ) -> int:
        run = self.run
        everything = run.data, run.table, self.stop, most, numbers, states, given, columns
        how: int = kernel.statements(*everything)
        return how

    def answers(
        self, at: int, reached: int, first: int, results: array[int], made: bytes, lsn: int
    ) -> list[Said]:
        run, lane = self.run, self.run.lane
        lane_bytes = -1 if lane is None else len(lane)
        numbers = array("Q", (at, 0, first, lsn, self.failed))
        room = (kernel.ANSWER_BYTES + max(lane_bytes, 0)) * (reached - at)
        if made:
            room += kernel.DOCUMENT_BYTES * (reached - at) + len(made)
        out = bytearray(room)
        given = run.table, reached, numbers, results, made, lane or b"", lane_bytes, self.uuid
        while (how := kernel.answers(*given, out)) != kernel.DONE:
            assert how == kernel.ODD
            at, used, number, _, failed = numbers
            start, stop = results[number * kernel.RESULTS + 4 :][:2]
            try:
                answer = Status.SUCCESS, told(0, made[start:stop])
            except Failed as one:
                answer = one.status, b""
            said = _encode(run.frames()[at - run.begun], *answer)
            out = bytearray(memoryview(out)[:used]) + said + bytearray(room)
            numbers[:3] = array("Q", (at + 1, used + len(said), number + 1))
            numbers[kernel.FAILED] = failed + (answer[0] != Status.SUCCESS)
        self.failed = numbers[kernel.FAILED]
        return [(numbers[kernel.AT], bytes(memoryview(out)[: numbers[kernel.USED]]))]


def _encode(frame: Frame, status: Status, payload: bytes) -> bytes:
    """An answer, unless none is wanted."""
    is_told = status != Status.SUCCESS or not frame.is_quiet
    return encode_answer(frame, status, payload) if is_told else b""


def execute_run(
    run: RequestRun,
    items: GroupItems,
    group: Group,
    now: float,
    uuid: int,
    ordinary: Callable[[Frame], Answer],
) -> Answered:
    """The answers to a run, or to the first requests of it. `now`: Unix seconds; `uuid`: first 8
    bytes of the instance's; `ordinary`: runs one request.
    """
    requests = _Requests(run, uuid)
    frames: list[Frame] = []

    def one(at: int) -> Said:
        if not frames:
            frames.extend(run.frames())
        frame = frames[at - run.begun]
        status, payload = ordinary(frame)
        requests.failed += status != Status.SUCCESS
        return at + 1, _encode(frame, status, payload)

    return _answered(requests, Changes(requests, items, now, group, one))


def look_up(
    run: RequestRun,
    buckets: Buckets,
    bucket: Bucket,
    now: float,
    expired: list[tuple[bytes, int]],
) -> Answered | None:
    """The answers to GETs, or to the first of them; None if that is of a vbucket that is not
    active: a change has to look then. `now`: Unix seconds; `expired`: see `Looks`."""
    requests = _Requests(run, 0)
    made = _answered(requests, Looks(requests, buckets, bucket, now, expired, _leave))
    return made if made.done else None


def _leave(at: int) -> Said:
    raise Paused([], at)


def _answered(requests: _Requests, way: Changes | Looks) -> Answered:
    run = requests.run
    try:
        said, rest = way.answer(), None
    except Paused as paused:
        said, rest = paused.said, replace(run, begun=paused.at)
    done = requests.count - (0 if rest is None else rest.count)
    return Answered(b"".join([data for _, data in said]), done, requests.failed, rest)
