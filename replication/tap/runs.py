"""Runs of commands, handled as bytes instead of objects.

`take_run` finds the run that comes first; its form is in `kernel`. `execute_run` answers it: reads
from a view or inside a group, changes inside a group, where what it changes goes into the group's
batch of the bucket's space. A request that needs more than the kernel knows is handed to
`ordinary`, everything before it being done. Both ways give the same answers and the same rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import TAP_ANSWERS_BYTES, TAP_VALUE_BYTES
from logweir.replication import bucketkernel
from logweir.replication.bucket import VBUCKETS, unpack_item
from logweir.replication.bucketstore import GroupItems, ViewItems
from logweir.replication.tap import kernel
from logweir.replication.tap.codec import HEADER_BYTES, Packet, PacketBuffer
from logweir.replication.tap.pending import Pending
from logweir.store.commit.batch import Batch
from logweir.store.commit.group import Group
from logweir.store.schema import kernel as keys_kernel
from logweir.store.schema.bulk import interpreted
from logweir.wal import kernel as rows_kernel

__all__ = [
    "MutationRun",
    "RequestRun",
    "RunBuffer",
    "encode_mutations",
    "execute_all",
    "execute_run",
    "packets_of",
    "take_run",
    "touched_vbuckets",
]

_ANSWER_BYTES: Final = 64 * 1024
_ROOM_BYTES: Final = 2 * TAP_VALUE_BYTES
_NO_STATE: Final = 255
_SCRATCH_BYTES: Final = 600  # kernel._SCRATCH
_ZERO: Final = array("Q", (0,))
_NO_ENDS: Final = array("Q")
_PIECE_BYTES: Final = 120 * 1024
_PIECE_PACKETS: Final = _PIECE_BYTES // 41
_MANY: Final = 1 << 62
_rooms: Final[list[tuple[bytearray, array[int]]]] = []
"""Buffers to be used again: memory that is new costs more than what is done in it."""

RUN_MIN: Final = 2
"""A single request is left to the ordinary way."""

RUN_MAX: Final = 2048
"""Longer runs are divided, so that the first answers are on their way while others are made."""


def _choose() -> None:
    """The C functions of the other kernels can only be called by a compiled one."""
    called = {"bucket": bucketkernel, "keys": keys_kernel, "rows": rows_kernel}
    if not kernel.COMPILED and any(one.COMPILED for one in called.values()):
        vars(kernel).update((name, interpreted(one)) for name, one in called.items())


_choose()


@dataclass(frozen=True, slots=True)
class RequestRun:
    """Requests in `data` from `start` to `stop`. `count`: how many; `changes`: how many of them may
    change something; `body_bytes`: of those."""

    data: bytes
    start: int
    stop: int
    count: int
    changes: int
    body_bytes: int

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory until it is answered."""
        return self.stop - self.start + 64 * self.count

    def packets(self) -> list[Packet]:
        """The same as objects."""
        return _packets(self.data[self.start : self.stop])


def _packets(data: bytes) -> list[Packet]:
    found, problem = PacketBuffer().feed(data)
    assert problem is None
    return found


def packets_of(requests: Iterable[Packet | RequestRun]) -> list[Packet]:
    """All requests as objects."""
    found: list[Packet] = []
    for request in requests:
        if isinstance(request, RequestRun):
            found += request.packets()
        else:
            found.append(request)
    return found


def take_run(data: bytes, at: int = 0) -> RequestRun | None:
    """The run that begins at `at`; None where there is none."""
    found = _ZERO * 3
    count = kernel.take_run(data, at, RUN_MAX, TAP_VALUE_BYTES, found)
    if count < RUN_MIN:
        return None
    return RequestRun(
        data,
        at,
        found[kernel.RUN_STOP],
        count,
        found[kernel.RUN_CHANGES],
        found[kernel.RUN_BYTES],
    )


class RunBuffer(PacketBuffer):
    """Finds runs in what a client sends, and packets between them."""

    def feed_runs(
        self, data: bytes
    ) -> tuple[list[Packet | RequestRun], DecodeError | LimitExceeded | None]:
        """As `feed`."""
        found: list[Packet | RequestRun] = []
        return found, self._feed(data, found, take_run)


def execute_run(
    run: RequestRun,
    items: GroupItems | ViewItems,
    now: float,
    ordinary: Callable[[Packet], bytes],
    group: Group | None = None,
) -> list[bytes]:
    """The answers to a run, in pieces. `now`: Unix seconds; `group`: of `items`, None for a view;
    `ordinary`: answers one request, in a group after what was deferred is applied.
    """
    if not items.is_plain or (group is None and run.changes):
        return _one_by_one(run.packets(), ordinary)
    return _Execution(run, items, now, group).answer(ordinary)


def _one_by_one(requests: list[Packet], ordinary: Callable[[Packet], bytes]) -> list[bytes]:
    answers: list[bytes] = []
    room = TAP_ANSWERS_BYTES
    for i, request in enumerate(requests):
        if room <= 0:
            raise Pending(b"".join(answers), requests[i:])
        try:
            answers.append(ordinary(request))
        except Pending:
            raise Pending(b"".join(answers), requests[i:]) from None
        room -= len(answers[-1])
    return answers


def execute_all(
    requests: Iterable[Packet | RequestRun],
    items: GroupItems | ViewItems,
    now: float,
    ordinary: Callable[[Packet], bytes],
    group: Group | None = None,
) -> bytes:
    """The answers to runs and single requests, in order; see `execute_run`.

    Raises `Pending` behind those that were run, with their answers and the rest; also behind
    answers of `limits.TAP_ANSWERS_BYTES`.
    """
    answers: list[bytes] = []
    room = TAP_ANSWERS_BYTES
    wanted = list(requests)
    for i, request in enumerate(wanted):
        if room <= 0:
            raise Pending(b"".join(answers), wanted[i:])
        try:
            if isinstance(request, RequestRun):
                made = execute_run(request, items, now, ordinary, group)
            else:
                made = [ordinary(request)]
        except Pending as pending:
            done = b"".join(answers) + pending.answers
            raise Pending(done, [*(pending.rest or (request,)), *wanted[i + 1 :]]) from None
        answers += made
        room -= sum(map(len, made))
    return b"".join(answers)


class _Execution:
    """One run under way."""

    def __init__(
        self,
        run: RequestRun,
        items: GroupItems | ViewItems,
        now: float,
        group: Group | None,
    ) -> None:
        self._run = run
        self._items = items
        self._group = group
        self._states = bytearray(VBUCKETS)
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._answers = bytearray(64 * run.count + _ANSWER_BYTES)
        self._bodies = bytearray(run.body_bytes + kernel.ITEM_BYTES * (run.changes + 1))
        self._bounds = _ZERO * (2 * run.changes + 1)
        self._kinds = bytearray(2 * run.changes)
        self._numbers = array("Q", (run.start, 0, 0, 0, int(now), 0))
        self._parts: list[bytes] = []

    def answer(self, ordinary: Callable[[Packet], bytes]) -> list[bytes]:
        """Run all requests. Returns the pieces of their answers."""
        data = self._run.data
        while (how := self._execute()) != kernel.DONE:
            at = self._numbers[kernel.AT]
            if sum(map(len, self._parts)) >= TAP_ANSWERS_BYTES:
                raise Pending(b"".join(self._parts), self._rest(at))
            if how == kernel.NEED_STATE:
                vbucket = int.from_bytes(data[at + 6 : at + 8], "big")
                self._states[vbucket] = self._items.state(vbucket) or _NO_STATE
            elif how == kernel.NO_ROOM:
                self._answers = bytearray(max(2 * len(self._answers), _ROOM_BYTES))
                self._bodies = bytearray(max(2 * len(self._bodies), _ROOM_BYTES))
            else:
                body_bytes = int.from_bytes(data[at + 8 : at + 12], "big")
                stop = at + HEADER_BYTES + body_bytes
                (packet,) = _packets(data[at:stop])
                try:
                    self._parts.append(ordinary(packet))
                except Pending:
                    raise Pending(b"".join(self._parts), self._rest(at)) from None
                self._numbers[kernel.AT] = stop
        return self._parts

    def _rest(self, at: int) -> list[Packet | RequestRun]:
        left = self._run.data[at : self._run.stop]
        run = take_run(left)
        return [*_packets(left)] if run is None else [run]

    def _execute(self) -> int:
        """Run the kernel once, and take over what it has made."""
        numbers, group = self._numbers, self._group
        get = self._items.finder()
        batch = None if group is None else Batch.of(group, self._items.space)
        clock = self._items.bucket.cas
        if batch is not None:
            numbers[kernel.CAS] = clock.next()
        how: int = kernel.execute(
            self._run.data,
            self._run.stop,
            numbers,
            self._states,
            get,
            None if batch is None else batch.latest,
            None if batch is None else batch.born,
            None if batch is None else batch.gone,
            self._scratch,
            self._answers,
            self._bodies,
            self._bounds,
            self._kinds,
        )
        if numbers[kernel.ANSWERS]:
            self._parts.append(bytes(memoryview(self._answers)[: numbers[kernel.ANSWERS]]))
            numbers[kernel.ANSWERS] = 0
        if batch is not None and numbers[kernel.ROWS]:
            clock.reach(numbers[kernel.CAS])
            self._log(batch)
            numbers[kernel.BODIES] = numbers[kernel.ROWS] = 0
        return how

    def _log(self, batch: Batch) -> None:
        rows, bounds, kinds = self._numbers[kernel.ROWS], self._bounds, self._kinds
        packed = bytes(memoryview(self._bodies)[: bounds[rows]])
        at = 0
        while at < rows:
            removal = kinds.find(kernel.TOMBSTONE, at, rows)
            stop = rows if removal < 0 else removal
            if stop > at:
                batch.put(packed, bounds[at : stop + 1])
            if removal >= 0:
                middle, end = bounds[removal + 1], bounds[removal + 2]
                batch.remove(packed[bounds[removal] : middle], packed[middle:end])
                stop = removal + 2
            at = stop


@dataclass(frozen=True, slots=True)
class MutationRun:
    """Items as packets. `next`: the number of the first that is not done; `count`: packets;
    `opaque`: of the last; `ends`: where each packet ends, and the number of its item."""

    data: bytes
    next: int
    count: int
    opaque: int
    ends: array[int]


def encode_mutations(
    tuples: list[bytes],
    first: int,
    *,
    wanted: bytes,
    now: float,
    form: int,
    opaque: int,
    most: int = _MANY,
    room_bytes: int = _MANY,
) -> MutationRun:
    """TAP_MUTATION of the items from number `first` on: so many as make one piece, and not beyond
    one that is too large for it or no item as we write it.

    `wanted`: one byte for each vbucket, 0 where its items are left out, as those are that are
    expired at `now`; `form`: see `kernel.mutations`; `opaque`: the last one; `most`: of packets;
    `room_bytes`: as long as those written take less, there comes another one.
    """
    try:
        out, ends = _rooms.pop()
    except IndexError:
        out, ends = bytearray(_PIECE_BYTES), array("Q", bytes(16 * _PIECE_PACKETS))
    numbers = array("Q", (0, opaque, 0, min(most, _PIECE_PACKETS), room_bytes))
    row = kernel.mutations(tuples, first, wanted, int(now), form, numbers, out, ends)
    data = bytes(memoryview(out)[: numbers[0]])
    taken = ends[: 2 * numbers[2]] if most < _MANY else _NO_ENDS
    _rooms.append((out, ends))
    return MutationRun(data, row, numbers[2], numbers[1], taken)


def touched_vbuckets(tuples: list[bytes], wanted: bytes) -> list[int]:
    """The vbuckets of which `encode_mutations` sends something, in order."""
    table = bytearray(VBUCKETS)
    for data in tuples[kernel.touched(tuples, wanted, table) :]:
        item = unpack_item(data)
        if item.vbucket < VBUCKETS:
            table[item.vbucket] |= bool(wanted[item.vbucket] and item.ttl)
    found: list[int] = []
    at = table.find(1)
    while at >= 0:
        found.append(at)
        at = table.find(1, at + 1)
    return found
