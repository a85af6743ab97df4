"""Runs of commands, handled as columns of statements instead of objects.

`take_run` finds the run that comes first; its form is in `kernel`, and one request is a run.
`execute_run` answers it: from a view where it only reads, else in a group, where its requests
become a batch of changes of items (`replication.bucket.change`). What is in the way of one, an
expired item or one of another vbucket, is removed in front of it, and the batch goes on. A request
that needs more than the kernel knows is handed to `ordinary`, everything before it being done.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import TAP_ANSWERS_BYTES, TAP_VALUE_BYTES
from logweir.replication.bucket import kernel as bucketkernel
from logweir.replication.bucket.change import ItemComputer
from logweir.replication.bucket.item import VBUCKETS, pack_item, pack_key, tombstone, unpack_item
from logweir.replication.bucket.store import GroupItems, ViewItems
from logweir.replication.logs import get_logger
from logweir.replication.memcached.serve.commands import item_answer
from logweir.replication.memcached.serve.pending import Pending
from logweir.replication.memcached.wire import kernel
from logweir.replication.memcached.wire.codec import HEADER_BYTES, Packet, PacketBuffer
from logweir.store.commit.group import Group
from logweir.store.engine.batches import Answers
from logweir.store.engine.executing import LAST
from logweir.store.schema import kernel as keys_kernel
from logweir.store.schema.bulk import interpreted
from logweir.wal import kernel as rows_kernel
from logweir.wal.xrow import RowType

__all__ = [
    "RequestRun",
    "RunBuffer",
    "execute_all",
    "execute_run",
    "packets_of",
    "take_run",
]

_log = get_logger("logweir.replication.tap")
_ANSWER_BYTES: Final = 64 * 1024
_ROOM_BYTES: Final = 2 * TAP_VALUE_BYTES
_NO_STATE: Final = 255
_SCRATCH_BYTES: Final = 600  # kernel._SCRATCH
_SAID_BYTES: Final = 96  # of an answer, without keys and values
_SAID_ROOM: Final = 512  # so much there has to be for one
_KEY_BYTES: Final = 250  # limits.TAP_KEY_BYTES
_FIRST: Final = 4
_ZERO: Final = array("Q", (0,))

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
    change something."""

    data: bytes
    start: int
    stop: int
    count: int
    changes: int

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
    found = _ZERO * 2
    count = kernel.take_run(data, at, RUN_MAX, TAP_VALUE_BYTES, found)
    if not count:
        return None
    return RequestRun(data, at, found[kernel.RUN_STOP], count, found[kernel.RUN_CHANGES])


class RunBuffer(PacketBuffer):
    """Finds runs in what a client sends, and packets between them."""

    def feed_runs(
        self, data: bytes
    ) -> tuple[list[Packet | RequestRun], DecodeError | LimitExceeded | None]:
        """As `feed`."""
        found: list[Packet | RequestRun] = []
        return found, self._feed(data, found, take_run)


def _unmarked(at: int, lsn: int) -> None:
    del at, lsn


def execute_run(
    run: RequestRun,
    items: GroupItems | ViewItems,
    now: float,
    ordinary: Callable[[Packet], bytes],
    group: Group | None = None,
    mark: Callable[[int, int], None] = _unmarked,
) -> list[bytes]:
    """The answers to a run, in pieces. `now`: Unix seconds; `group`: of `items`, None for a view,
    which a run that may change something cannot have; `ordinary`: answers one request. `mark` is
    told where in the run's bytes statements begin that are made together, and the lsn of the first
    row of the first.
    """
    if group is not None:
        return _Changing(run, items, now, group, mark).answer(ordinary)
    if items.is_plain:
        return _Reading(run, items, now).answer(ordinary)
    return _one_by_one(run.packets(), ordinary)


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

    def __init__(self, run: RequestRun, items: GroupItems | ViewItems, now: float) -> None:
        self._run = run
        self._items = items
        self._states = bytearray(VBUCKETS)
        self._numbers = array("Q", (run.start, 0, 0, int(now)))
        self._parts: list[bytes] = []

    def _step(self) -> int:
        """Go on with the run; how that ended, as the kernel says."""
        raise NotImplementedError

    def answer(self, ordinary: Callable[[Packet], bytes]) -> list[bytes]:
        """Run all requests. Returns the pieces of their answers."""
        data, numbers = self._run.data, self._numbers
        while numbers[kernel.AT] < self._run.stop:
            how = self._step()
            at = numbers[kernel.AT]
            if at < self._run.stop and sum(map(len, self._parts)) >= TAP_ANSWERS_BYTES:
                raise Pending(b"".join(self._parts), self._rest(at))
            if how == kernel.NEED_STATE:
                vbucket = int.from_bytes(data[at + 6 : at + 8], "big")
                self._states[vbucket] = self._items.state(vbucket) or _NO_STATE
            elif how == kernel.ODD:
                packet, stop = self._packet(at)
                try:
                    self._parts.append(ordinary(packet))
                except Pending:
                    raise Pending(b"".join(self._parts), self._rest(at)) from None
                numbers[kernel.AT] = stop
        return self._parts

    def _packet(self, at: int) -> tuple[Packet, int]:
        """The request at `at`, and where it ends."""
        data = self._run.data
        stop = at + HEADER_BYTES + int.from_bytes(data[at + 8 : at + 12], "big")
        (packet,) = _packets(data[at:stop])
        return packet, stop

    def _rest(self, at: int) -> list[Packet | RequestRun]:
        left = self._run.data[at : self._run.stop]
        run = take_run(left)
        return [*_packets(left)] if run is None else [run]


class _Reading(_Execution):
    """In a view."""

    def __init__(self, run: RequestRun, items: GroupItems | ViewItems, now: float) -> None:
        super().__init__(run, items, now)
        self._get = items.finder()
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._answers = bytearray(64 * run.count + _ANSWER_BYTES)

    def _step(self) -> int:
        numbers = self._numbers
        how: int = kernel.read(
            self._run.data,
            self._run.stop,
            numbers,
            self._states,
            self._get,
            self._scratch,
            self._answers,
        )
        if numbers[kernel.USED]:
            self._parts.append(bytes(memoryview(self._answers)[: numbers[kernel.USED]]))
            numbers[kernel.USED] = 0
        elif how == kernel.NO_ROOM:
            self._answers = bytearray(_ROOM_BYTES)
        return how


class _Changing(_Execution):
    """In a group."""

    def __init__(
        self,
        run: RequestRun,
        items: GroupItems | ViewItems,
        now: float,
        group: Group,
        mark: Callable[[int, int], None],
    ) -> None:
        super().__init__(run, items, now)
        self._group = group
        self._mark = mark
        self._now = int(now)
        self._removal: tuple[bytes, bytes, bool] | None = None
        size = run.stop - run.start
        room = size + run.count * kernel.ITEM_BYTES + min(size, run.count * _KEY_BYTES)
        self._given = bytearray(room)
        self._most = run.count

    def _step(self) -> int:
        numbers, run = self._numbers, self._run
        begin = numbers[kernel.AT]
        first = self._begin()
        removed = len(first) // kernel.WIDTH
        given, most = self._given, 1 if removed else self._most
        columns = first + _ZERO * (2 * kernel.WIDTH * most)
        if self._removal is not None:
            tomb, key, _ = self._removal
            given[: len(tomb) + len(key)] = tomb + key
            numbers[kernel.USED] = len(tomb) + len(key)
        else:
            numbers[kernel.USED] = 0
        numbers[kernel.COUNT] = removed
        how: int = kernel.statements(
            run.data, run.stop, most, numbers, self._states, given, columns
        )
        reached = numbers[kernel.AT]
        if reached == begin:
            assert how != kernel.NO_ROOM
            return how
        self._removal = None
        self._most = min(4 * most, run.count)
        del columns[numbers[kernel.COUNT] * kernel.WIDTH :]
        used = bytes(memoryview(given)[: numbers[kernel.USED]])
        self._mark(begin, self._group.last_lsn + 1 + removed)
        numbers[kernel.AT] = self._execute(used, columns, begin, reached, removed)
        return kernel.DONE

    def _begin(self) -> array[int]:
        """The statements that remove what is in the way of the next request."""
        columns = array("Q")
        if self._removal is not None:
            tomb, key, moves = self._removal
            columns = _ZERO * (2 * kernel.WIDTH)
            columns[0] = RowType.REPLACE
            columns[_FIRST + 1] = len(tomb)
            columns[kernel.WIDTH] = RowType.DELETE
            columns[kernel.WIDTH + _FIRST] = len(tomb)
            columns[kernel.WIDTH + _FIRST + 1] = len(tomb) + len(key)
            columns[kernel.WIDTH + LAST] = not moves
        return columns

    def _execute(
        self, given: bytes, columns: array[int], begin: int, reached: int, removed: int
    ) -> int:
        """Execute the statements of the requests from `begin` to `reached`, behind so many that
        remove what was in the way, and answer them. Where the next request begins."""
        clock = self._items.bucket.cas
        computer = ItemComputer(self._now, clock.next())
        results, made = array("Q"), b""
        if columns:
            done = self._group.execute_batch(
                given,
                columns,
                (self._items.space.id,),
                limit_bytes=TAP_ANSWERS_BYTES,
                computer=computer,
            )
            results, made = done.results, done.out
            _report(done)
        at = self._say(results, made, begin, reached, removed)
        if computer.obstacle is not None:
            item = unpack_item(computer.obstacle)
            grave = tombstone(item, computer.next_cas(item.cas))
            vbucket = int.from_bytes(self._run.data[at + 6 : at + 8], "big")
            moves = item.vbucket != vbucket  # who follows the other vbucket has to know
            self._removal = pack_item(grave), pack_key(item.key), moves
            self._given = bytearray(len(self._removal[0]) + _ROOM_BYTES)
        clock.reach(computer.cas)
        return at

    def _say(self, results: array[int], made: bytes, begin: int, reached: int, removed: int) -> int:
        """Answer what was executed. Where the next request begins."""
        run = self._run
        numbers = array("Q", (begin, 0, removed))
        room = _SAID_ROOM + run.count * _SAID_BYTES + reached - begin + len(made)
        out = bytearray(room)
        while kernel.answers(run.data, reached, numbers, results, made, out) != kernel.DONE:
            at, used, number = numbers
            packet, numbers[kernel.AT] = self._packet(at)
            old, end, new, new_end = results[number * kernel.RESULTS + 4 :][:4]
            data = made[old:end] if end else made[new:new_end]
            answer = item_answer(packet, unpack_item(data))
            out = bytearray(memoryview(out)[:used]) + answer + bytearray(room)
            numbers[kernel.USED] = used + len(answer)
            numbers[kernel.COUNT] = number + 1
        if numbers[kernel.USED]:
            self._parts.append(bytes(memoryview(out)[: numbers[kernel.USED]]))
        return numbers[kernel.AT]


def _report(done: Answers) -> None:
    """Log what the engine refused."""
    for number in done.refused:
        if done.results[number * kernel.RESULTS] == 1:
            _log.warning("tap.request_failed", error=str(done.error(number)))
