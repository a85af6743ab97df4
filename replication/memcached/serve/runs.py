"""Runs of commands, handled as columns of statements instead of objects.

`take_run` finds the run that comes first; its form is in `kernel`, and one request is a run.
`change_all` and `look_all` execute runs (`replication.bucket.batch`) and the requests between them.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from logweir.errors import LimitExceeded, RequestError
from logweir.limits import TAP_ANSWERS_BYTES, TAP_VALUE_BYTES, TURN_SECONDS
from logweir.replication.bucket import kernel as bucketkernel
from logweir.replication.bucket.batch import Changes, Paused
from logweir.replication.bucket.item import unpack_item
from logweir.replication.bucket.store import GroupItems
from logweir.replication.logs import get_logger
from logweir.replication.memcached.serve.commands import Executor, item_answer
from logweir.replication.memcached.serve.pending import Pending
from logweir.replication.memcached.wire import kernel
from logweir.replication.memcached.wire.codec import (
    HEADER_BYTES,
    Opcode,
    Packet,
    PacketBuffer,
    Status,
    encode_answer,
)
from logweir.store.commit.group import Group
from logweir.store.schema.bulk import interpreted
from logweir.wal import kernel as rows_kernel

__all__ = [
    "RequestRun",
    "change_all",
    "execute_one",
    "look_all",
    "packets_of",
    "refusals",
    "take_run",
]

_log = get_logger("logweir.replication.memcached")

_SAID_BYTES: Final = 96  # of an answer, without keys and values
_SAID_ROOM: Final = 512  # so much there has to be for one
_KEY_BYTES: Final = 250  # limits.TAP_KEY_BYTES
_ZERO: Final = array("Q", (0,))
_JOB_SECONDS: Final = 5 * TURN_SECONDS  # a job may cost a sync: that is to be worth while

RUN_MAX: Final = 2048
"""Longer runs are divided, so that the first answers are on their way while others are made."""


def _choose() -> None:
    """The C functions of the other kernels can only be called by a compiled one."""
    called = {"bucket": bucketkernel, "rows": rows_kernel}
    if not kernel.COMPILED and any(one.COMPILED for one in called.values()):
        vars(kernel).update((name, interpreted(one)) for name, one in called.items())


_choose()


@dataclass(slots=True)
class RequestRun:
    """Requests in `data` from `start` to `stop`, their places. `count`: how many; `changes`: how
    many of them may change something. See `replication.bucket.batch.Requests`."""

    data: bytes
    start: int
    stop: int
    count: int
    changes: int

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory until it is answered."""
        return self.stop - self.start + 64 * self.count

    @property
    def given_bytes(self) -> int:
        """See `Requests`."""
        size = self.stop - self.start
        return size + self.count * kernel.ITEM_BYTES + min(size, self.count * _KEY_BYTES)

    def packets(self) -> list[Packet]:
        """The same as objects."""
        return _packets(self.data[self.start : self.stop])

    def packet(self, at: int) -> tuple[Packet, int]:
        """The request at a place, and where it ends."""
        stop = at + HEADER_BYTES + int.from_bytes(self.data[at + 8 : at + 12], "big")
        (packet,) = _packets(self.data[at:stop])
        return packet, stop

    def behind(self, at: int) -> Sequence[Packet | RequestRun]:
        """The requests from a place on."""
        left = self.data[at : self.stop]
        run = take_run(left)
        return _packets(left) if run is None else (run,)

    def name(self, at: int) -> tuple[bytes, int]:
        """See `Requests`."""
        data = self.data
        key_at = at + HEADER_BYTES + data[at + 4]
        key = data[key_at : key_at + (data[at + 2] << 8 | data[at + 3])]
        return key, data[at + 6] << 8 | data[at + 7]

    def statements(
        self,
        numbers: array[int],
        most: int,
        states: bytearray,
        given: bytearray,
        columns: array[int],
    ) -> int:
        """See `Requests`."""
        how: int = kernel.statements(self.data, self.stop, most, numbers, states, given, columns)
        return how

    def answers(
        self, at: int, reached: int, first: int, results: array[int], made: bytes, lsn: int
    ) -> tuple[bytes, int]:
        """See `Requests`."""
        del lsn
        numbers = array("Q", (at, 0, first))
        room = _SAID_ROOM + self.count * _SAID_BYTES + reached - at + len(made)
        out = bytearray(room)
        while kernel.answers(self.data, reached, numbers, results, made, out) != kernel.DONE:
            at, used, number = numbers
            packet, numbers[kernel.AT] = self.packet(at)
            old, end, new, new_end = results[number * kernel.RESULTS + 4 :][:4]
            data = made[old:end] if end else made[new:new_end]
            answer = item_answer(packet, unpack_item(data))
            out = bytearray(memoryview(out)[:used]) + answer + bytearray(room)
            numbers[kernel.USED] = used + len(answer)
            numbers[kernel.COUNT] = number + 1
        return bytes(memoryview(out)[: numbers[kernel.USED]]), numbers[kernel.AT]


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


def refusals(requests: Iterable[Packet | RequestRun], status: Status) -> list[bytes]:
    """Answers with that status; NOOP is harmless and succeeds."""
    return [
        encode_answer(request) if request.opcode == Opcode.NOOP else encode_answer(request, status)
        for request in packets_of(requests)
    ]


def take_run(data: bytes, at: int = 0) -> RequestRun | None:
    """The run that begins at `at`; None where there is none."""
    found = _ZERO * 2
    count = kernel.take_run(data, at, RUN_MAX, TAP_VALUE_BYTES, found)
    if not count:
        return None
    return RequestRun(data, at, found[kernel.RUN_STOP], count, found[kernel.RUN_CHANGES])


def change_all(
    requests: Sequence[Packet | RequestRun],
    items: GroupItems,
    now: float,
    ordinary: Callable[[Packet], bytes],
    group: Group,
) -> bytes:
    """Run requests in a group. Returns their answers. `now`: Unix seconds; `ordinary`: answers one
    request that is no part of a run.

    Raises `Pending` behind those that were run, with their answers and the rest; also behind
    answers of `limits.TAP_ANSWERS_BYTES`, and when they have taken long.
    """

    def answer(run: RequestRun) -> list[bytes]:
        def one(at: int) -> tuple[bytes, int]:
            packet, stop = run.packet(at)
            try:
                return ordinary(packet), stop
            except Pending:
                raise Paused(b"", at, is_held=True) from None

        return Changes(run, items, now, group, one).answer()

    return _execute(requests, answer, ordinary, _JOB_SECONDS)


def look_all(
    requests: Sequence[Packet | RequestRun],
    look: Callable[[RequestRun], list[bytes]],
    ordinary: Callable[[Packet], bytes],
) -> bytes:
    """`change_all` of requests that change nothing. `look`: answers a run of them (`Looks`)."""
    return _execute(requests, look, ordinary, TURN_SECONDS)


def _execute(
    requests: Sequence[Packet | RequestRun],
    answer: Callable[[RequestRun], list[bytes]],
    ordinary: Callable[[Packet], bytes],
    seconds: float,
) -> bytes:
    answers: list[bytes] = []
    room = TAP_ANSWERS_BYTES
    end = time.thread_time() + seconds if len(requests) > 1 else inf
    for number, request in enumerate(requests):
        if room <= 0 or (number and time.thread_time() >= end):
            raise Pending(b"".join(answers), requests[number:], is_held=False)
        try:
            made = answer(request) if isinstance(request, RequestRun) else [ordinary(request)]
        except Pending:
            raise Pending(b"".join(answers), requests[number:]) from None
        except Paused as paused:
            assert isinstance(request, RequestRun)
            rest = [*request.behind(paused.at), *requests[number + 1 :]]
            raise Pending(
                b"".join(answers) + paused.answers, rest, is_held=paused.is_held
            ) from None
        answers += made
        room -= sum(map(len, made))
    return answers[0] if len(answers) == 1 else b"".join(answers)


def execute_one(group: Group, executor: Executor, request: Packet) -> bytes:
    """One request as a transaction of its own."""
    mark = group.mark()
    try:
        answer = executor.execute(request)
    except LimitExceeded:
        group.rollback(mark)
        return encode_answer(request, Status.TOO_BIG)
    except RequestError as error:
        group.rollback(mark)
        _log.warning("memcached.request_failed", opcode=request.opcode, error=str(error))
        return encode_answer(request, Status.INTERNAL)
    group.end_transaction()
    return answer
