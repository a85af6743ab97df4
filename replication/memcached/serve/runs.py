# cython: annotation_typing=False
"""Runs of commands, handled as columns of statements instead of objects.

`take_run` finds the run that comes first; its form is in `kernel`, and one request is a run.
`bucket.joint` has them executed.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `runs.pxd`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from logweir.errors import DecodeError, LimitExceeded, RequestError
from logweir.limits import TAP_VALUE_BYTES
from logweir.replication.bucket.batch import REFUSED
from logweir.replication.bucket.item import pack_item, unpack_item
from logweir.replication.bucket.joint import Part
from logweir.replication.bucket.requests import RUN_MAX, Asker, Numbers, Said
from logweir.replication.logs import get_logger
from logweir.replication.memcached.serve.commands import (
    READS,
    STATE_CHANGES,
    Executor,
    simple_answer,
)
from logweir.replication.memcached.wire import kernel
from logweir.replication.memcached.wire.codec import (
    HEADER_BYTES,
    Opcode,
    Packet,
    PacketBuffer,
    Status,
    encode_answer,
)
from logweir.replication.memcached.wire.mutations import LATEST, check_item
from logweir.store.commit.group import Group
from logweir.store.engine.reader import PlainRequests
from logweir.store.schema.bulk import interpret_calls

if TYPE_CHECKING:
    from logweir.replication.bucket.store import GroupItems
    from logweir.store.schema.access import Privilege

_log = get_logger("logweir.replication.memcached")

_SAID_BYTES: Final = 96  # of an answer, without keys and values
_SAID_ROOM: Final = 512  # so much there has to be for one
_PACKET_BYTES: Final = 512  # of one that waits, in memory, about, beside its value
_KEY_BYTES: Final = 250  # limits.TAP_KEY_BYTES
_ZERO: Final = array("Q", (0,))


interpret_calls(kernel)


class RequestRun:
    """Requests in `data` from `start` to `stop`, their places. `count`: how many; `changes`: how
    many of them may change something; `borders`: the places after those of each client, if they
    are of several. See `replication.bucket.requests.Joined`."""

    def __init__(
        self,
        data: bytes,
        start: int,
        stop: int,
        count: int,
        changes: int,
        borders: Sequence[int] = (),
    ) -> None:
        self.data = data
        self.start = start
        self.stop = stop
        self.count = count
        self.changes = changes
        self.borders = borders

    @staticmethod
    def joined(runs: Sequence[RequestRun]) -> RequestRun:
        """Several runs as one."""
        if len(runs) == 1:
            return runs[0]
        data, borders = [], []
        at = count = changes = 0
        for run in runs:
            data.append(run.data[run.start : run.stop])
            at += run.stop - run.start
            borders.append(at)
            count += run.count
            changes += run.changes
        return RequestRun(b"".join(data), 0, at, count, changes, borders)

    def number(self, at: int) -> int:
        return bisect_right(self.borders, at)

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory until it is answered."""
        return self.stop - self.start + 64 * self.count

    @property
    def given_bytes(self) -> int:
        size = self.stop - self.start
        return size + self.count * kernel.ITEM_BYTES + min(size, self.count * _KEY_BYTES)

    def packets(self) -> list[Packet]:
        """The same as objects."""
        return _packets(self.data[self.start : self.stop])

    def request(self, at: int) -> tuple[Packet, int]:
        stop = at + HEADER_BYTES + int.from_bytes(self.data[at + 8 : at + 12], "big")
        (packet,) = _packets(self.data[at:stop])
        return packet, stop

    def behind(self, at: int) -> Sequence[Packet | RequestRun]:
        left = self.data[at : self.borders[self.number(at)] if self.borders else self.stop]
        run = take_run(left)
        return _packets(left) if run is None else (run,)

    def name(self, at: int) -> tuple[bytes, int]:
        data = self.data
        key_at = at + HEADER_BYTES + data[at + 4]
        key = data[key_at : key_at + (data[at + 2] << 8 | data[at + 3])]
        return key, data[at + 6] << 8 | data[at + 7]

    def statements(
        self, numbers: Numbers, most: int, states: bytearray, given: bytearray, columns: Numbers
    ) -> int:
        how: int = kernel.statements(self.data, self.stop, most, numbers, states, given, columns)
        return how

    def answers(
        self, at: int, reached: int, first: int, results: array[int], made: bytes, lsn: int
    ) -> list[Said]:
        del lsn
        borders = self.borders
        if borders:
            borders = borders[self.number(at) : self.number(reached - 1)]
        numbers = array("Q", (at, 0, first))
        room = _SAID_ROOM + self.count * _SAID_BYTES + reached - at + len(made)
        out, said, begin = bytearray(room), [], 0
        for stop in (*borders, reached):
            while kernel.answers(self.data, stop, numbers, results, made, out) != kernel.DONE:
                plain = _plain_item(results, numbers[kernel.COUNT], made)
                made += plain
                out += bytes(len(plain))
            at, used, _ = numbers
            said.append((at, bytes(memoryview(out)[begin:used])))
            begin = used
            if at < stop:
                break  # so far they were executed
        return said


def _plain_item(results: array[int], number: int, made: bytes) -> bytes:
    """The item of a result, which is not as `pack_item` writes it, written so, without what no
    answer holds; the result then says that it stands behind `made`. One that no packet can tell
    fails."""
    row = number * kernel.RESULTS
    old, old_end, new, new_end = [results[row + place] for place in range(4, 8)]
    try:
        item = unpack_item(made[new:new_end] if new_end else made[old:old_end])
        check_item(item)
    except DecodeError as error:
        _log.warning("memcached.request_failed", error=str(error))
        results[row] = REFUSED
        return b""
    expiry = min(item.expiry, LATEST)
    plain = pack_item(replace(item, expiry=expiry, compression=0, expiration="", meta=b""))
    results[row + 4 : row + 8] = array("Q", (len(made), len(made) + len(plain), 0, 0))
    return plain


class Teller(Asker, Protocol):
    """What is asked of a conversation here. `waits`: nothing more is run for it; `auto_nack`: see
    `Executor`."""

    waits: bool
    auto_nack: bool

    def stats(self, group: bytes) -> list[tuple[bytes, bytes]] | None:
        """See `Viewer`."""

    def may(self, *wanted: Privilege) -> bool:
        """Whether the client has these privileges on its bucket."""

    def executor(self, items: GroupItems, now: float, group: Group) -> Executor:
        """Of the requests that are no part of a run, in a group."""


class Commands(Part):
    """Requests of one client, to be run in order in a bucket. `slot`: names the place of their
    answers; `count`: so many; `size_bytes`: about; `changes`: whether one of them may change
    something; `takes_over`: whether one of them wants the right to take vbuckets over besides, and
    `may_take_over`: whether the client has it; `bucket`: where they are run; `answers`: of these
    requests, those that are durable."""

    asker: Teller

    def __init__(self, slot: int, requests: Sequence[Packet | RequestRun]) -> None:
        super().__init__(requests)
        self.slot = slot
        self.requests = requests
        self.bucket: Any = None
        self.answers = b""
        self.may_take_over = True
        self.takes_over = False
        size = count = changes = 0
        for each in requests:
            if isinstance(each, RequestRun):
                size += each.size_bytes
                count += each.count
                changes += each.changes
            else:
                size += len(each.value) + _PACKET_BYTES
                count += 1
                changes += each.opcode not in READS
                if each.opcode in STATE_CHANGES:
                    self.takes_over = True
        self.size_bytes = size
        self.count = count
        self.changes = changes > 0

    @property
    def is_behind(self) -> bool:
        return self.asker.waits

    def leave(self, request: Packet | RequestRun) -> None:
        self.left.append(request)
        self.asker.waits = True

    def advance(self) -> None:
        """What was run is durable."""
        fresh = self.fresh
        whole = len(fresh) == 1 and not self.answers
        self.answers = fresh[0] if whole else b"".join([self.answers, *fresh])
        self.fresh, self.rest, self.left = [], self.left, []

    def tally(self, counts: array[int]) -> None:
        """Count the requests, and the answers to them that there are."""
        for each in self.requests:
            if isinstance(each, RequestRun):
                kernel.tally(each.data, each.start, each.stop, counts)
            else:
                row = each.opcode * kernel.TALLY_WIDTH
                counts[row + kernel.TALLY_REQUESTS] += 1
                counts[row + kernel.TALLY_CAS] += each.cas != 0
        kernel.tally(self.answers, 0, len(self.answers), counts)

    @staticmethod
    def run_count(request: Packet | RequestRun) -> int:
        return request.count if isinstance(request, RequestRun) else 0

    @staticmethod
    def joined(parts: Sequence[Part], runs: Sequence[Any]) -> RequestRun:
        del parts
        return RequestRun.joined(runs)


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
    """Answers with that status; NOOP and VERSION are harmless and succeed."""
    return [
        simple_answer(request)
        if request.opcode in (Opcode.NOOP, Opcode.VERSION)
        else encode_answer(request, status)
        for request in packets_of(requests)
    ]


if TYPE_CHECKING:
    ItemReader = PlainRequests
else:
    try:
        from logweir.replication.memcached.wire.readitemkernel import ItemReader
    except ImportError:
        ItemReader = PlainRequests


def take_run(data: bytes, at: int = 0) -> RequestRun | None:
    """The run that begins at `at`; None if there is none."""
    found = _ZERO * 2
    count = kernel.take_run(data, at, RUN_MAX, TAP_VALUE_BYTES, found)
    if not count:
        return None
    stop, changes = found
    return RequestRun(data, at, stop, count, changes)


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
