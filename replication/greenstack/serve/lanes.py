"""Lanes: which requests of a connection may run now. No I/O, no store.

Requests of one lane run, and are answered, in the order in which they came; lanes do not wait for
one another. `Lanes.put` takes requests, `take` returns *batches* that may be started, `done` tells
that one is answered. Each lane has at most `_IN_FLIGHT` batches under way, which are started in
order and must be finished in order; a batch is about `limits.GREENSTACK_BATCH_BYTES`, so that a
lane with much to do leaves room for the others. If there are no others, runs of which nothing
is answered may be `_QUIET_IN_FLIGHT`, as nobody waits for the first of them.

===================  ===============================================================================
kind of batch        what
===================  ===============================================================================
STORE                requests on a bucket, each for itself
TRANSACTION          those that `more` binds together, up to the first without it: all or none
SINGLE               anything else, alone: it starts when all before it is answered, and what
                     follows waits for it
===================  ===============================================================================

A fenced request ends its batch, and what follows starts when it is answered. Requests that cannot
be in a transaction and come between its parts are refused in the place in which it began. So are,
each as it comes, the parts of a transaction that has grown over its limits; those before that one
with it. What open transactions hold counts over all lanes of a connection.

A lane begins with what is selected in the root lane once all those of its requests that run alone
and came before the lane's first are answered; until then the lane waits.

What can be started at once is given in the order of the priorities of each lane's first request:
lower is sooner, none is 128. `None` is the root lane; b"" is a lane of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, Generic, TypeVar

from logweir.limits import (
    GREENSTACK_BATCH_BYTES,
    GREENSTACK_LANES,
    GREENSTACK_TRANSACTION_BYTES,
    GREENSTACK_TRANSACTION_FRAMES,
)
from logweir.replication.greenstack.serve.runs import RequestRun
from logweir.replication.greenstack.wire.codec import Flag, FlexKey, Frame, Opcode, Status

_IN_FLIGHT: Final = 4
_QUIET_IN_FLIGHT: Final = 16
_PRIORITY: Final = 128
# Plain numbers: flags are slow, and these are asked for every request.
_MORE: Final = Flag.MORE.value
_FENCE: Final = Flag.FENCE.value
_BOUND: Final = frozenset((Opcode.MUTATION, Opcode.REMOVE))
READS: Final = frozenset((Opcode.GET, Opcode.GET_MANY))
"""Requests on a bucket that change nothing."""
_STORE: Final = _BOUND | READS

Selected = TypeVar("Selected")


class BatchKind(IntEnum):
    """How the requests of a batch belong together."""

    STORE = 0
    TRANSACTION = 1
    SINGLE = 2


@dataclass(slots=True)
class Pending:
    """One request, or a run of them. `refusal`: it is not run but answered so; `answer`: its answer
    is known, and is only sent in its turn; `user_id`: who asked; `received_at`: Unix seconds."""

    frame: Frame | RequestRun
    user_id: int = 0
    received_at: float = 0.0
    refusal: Status | None = None
    answer: bytes | None = None

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory until it is answered."""
        return self.frame.size_bytes

    @property
    def count(self) -> int:
        """How many requests it is."""
        return self.frame.count if isinstance(self.frame, RequestRun) else 1

    @property
    def frames(self) -> Sequence[Frame]:
        """The requests as objects."""
        frame = self.frame
        return frame.frames() if isinstance(frame, RequestRun) else (frame,)

    @property
    def is_silent(self) -> bool:
        """Whether it is a run of quiet requests."""
        return isinstance(self.frame, RequestRun) and not self.frame.loud


@dataclass(slots=True, eq=False)
class Bound:
    """Requests that are one transaction, as far as they have come. `is_refused`: it grew over its
    limits: it has none of them."""

    requests: list[Pending] = field(default_factory=list)
    size_bytes: int = 0
    is_refused: bool = False

    @property
    def count(self) -> int:
        """How many requests it is."""
        return len(self.requests)


@dataclass(slots=True, eq=False)
class Lane(Generic[Selected]):
    """One lane. `selected`: what is selected in it, taken over from the root lane at its begin;
    `open`: a transaction whose end has not come; `begins_after`: so many requests of the root lane
    that run alone are answered before it begins, 0: it has begun; `left`: requests that were taken
    and not run, which come first when nothing is in flight any more; `left_from`: the batch that
    left some, after which none is run."""

    id: bytes | None
    selected: Selected
    queue: deque[Pending | Bound] = field(default_factory=deque)
    open: Bound | None = None
    in_flight: int = 0
    is_blocked: bool = False
    begins_after: int = 0
    left: list[Pending | Bound] = field(default_factory=list)
    left_from: Batch[Selected] | None = None


@dataclass(slots=True, eq=False)
class Batch(Generic[Selected]):
    """What may be started. `size_bytes`: of its requests, about."""

    kind: BatchKind
    lane: Lane[Selected]
    requests: Sequence[Pending]
    size_bytes: int


class Lanes(Generic[Selected]):
    """The lanes of one connection. `open_bytes`: of transactions whose end has not come."""

    def __init__(self, selected: Selected) -> None:
        self.root: Lane[Selected] = Lane(None, selected)
        self.open_bytes = 0
        self._alone_put = 0  # requests of the root lane that run alone
        self._alone_done = 0
        self._unbegun: list[Lane[Selected]] = []
        self._lanes: dict[bytes | None, Lane[Selected]] = {None: self.root}
        self._ready: dict[Lane[Selected], None] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def __iter__(self) -> Iterator[Lane[Selected]]:
        return iter(tuple(self._lanes.values()))

    def put(self, pending: Pending) -> bool:
        """Take a request. False, and nothing done, if its lane is one too many."""
        name = pending.frame.flex.get(FlexKey.LANE) if pending.frame.flex else None
        lane = self._lanes.get(name)
        if lane is None:
            if len(self._lanes) > GREENSTACK_LANES:
                return False
            lane = self._lanes[name] = Lane(name, self.root.selected)
            if self._alone_done < self._alone_put:
                lane.begins_after = self._alone_put
                self._unbegun.append(lane)
        frame = pending.frame
        if lane.open is None and not frame.flags & _MORE:
            self._queue(lane, pending)
        elif isinstance(frame, RequestRun):
            for each in frame.frames():
                self.put(replace(pending, frame=each))
        elif frame.opcode in _BOUND:
            self._bind(lane, pending)
        else:
            self._queue(lane, _unbound(pending))
        self._ready[lane] = None
        return True

    def _queue(self, lane: Lane[Selected], pending: Pending) -> None:
        lane.queue.append(pending)
        if lane is self.root and not _is_store(pending):
            self._alone_put += 1

    def _bind(self, lane: Lane[Selected], pending: Pending) -> None:
        """Take a part of a transaction."""
        bound = lane.open = lane.open or Bound()
        if pending.answer is not None:  # a failure, which is that of the whole
            pending = replace(pending, answer=None)
        if bound.is_refused:
            lane.queue.append(_refused(pending, Status.INVALID_STATE))
        else:
            bound.requests.append(pending)
            bound.size_bytes += pending.size_bytes
            self.open_bytes += pending.size_bytes
            if (
                len(bound.requests) > GREENSTACK_TRANSACTION_FRAMES
                or self.open_bytes > GREENSTACK_TRANSACTION_BYTES
            ):
                last = bound.requests.pop()
                lane.queue += [_refused(one, Status.INVALID_STATE) for one in bound.requests]
                lane.queue.append(_refused(last, Status.TOO_BUSY))
                self.open_bytes -= bound.size_bytes
                bound = lane.open = Bound(is_refused=True)
        if not pending.frame.flags & _MORE:
            if not bound.is_refused:
                lane.queue.append(bound)
            self.open_bytes -= bound.size_bytes
            lane.open = None

    def take(self) -> list[Batch[Selected]]:
        """Batches that may be started now, in the order in which they are to be."""
        ready = list(self._ready)
        self._ready.clear()
        if len(ready) > 1:
            ready.sort(key=_priority)
        batches: list[Batch[Selected]] = []
        for lane in ready:
            while lane.queue and (batch := self._next(lane)) is not None:
                lane.in_flight += 1
                batches.append(batch)
        return batches

    def done(self, batch: Batch[Selected], left: Sequence[Pending | Bound] = ()) -> None:
        """A batch is answered but for what is `left` of it, which was not run."""
        lane = batch.lane
        lane.in_flight -= 1
        lane.left += left
        if not lane.in_flight:
            lane.is_blocked = False
            lane.queue.extendleft(reversed(lane.left))
            lane.left, lane.left_from = [], None
        if lane.queue:
            self._ready[lane] = None
        if lane is self.root and batch.kind == BatchKind.SINGLE:
            self._alone_done += 1
            waiting, self._unbegun = self._unbegun, []
            for other in waiting:
                if other.begins_after > self._alone_done:
                    self._unbegun.append(other)
                    continue
                other.begins_after = 0
                other.selected = self.root.selected
                self._ready[other] = None

    @property
    def are_several(self) -> bool:
        """Whether there is any lane but the root."""
        return len(self._lanes) > 1

    @property
    def has_ready(self) -> bool:
        """Whether `take` may give something."""
        return bool(self._ready)

    def _next(self, lane: Lane[Selected]) -> Batch[Selected] | None:
        queue = lane.queue
        if lane.is_blocked or lane.begins_after or lane.left:
            return None
        first = queue[0]
        if lane.in_flight >= _IN_FLIGHT:
            is_free = not self.are_several and isinstance(first, Pending) and first.is_silent
            if not is_free or lane.in_flight >= _QUIET_IN_FLIGHT:
                return None
        if isinstance(first, Bound):
            queue.popleft()
            lane.is_blocked = any(one.frame.flags & _FENCE for one in first.requests)
            return Batch(BatchKind.TRANSACTION, lane, first.requests, first.size_bytes)
        if not _is_store(first):
            if lane.in_flight:
                return None
            lane.is_blocked = True
            queue.popleft()
            return Batch(BatchKind.SINGLE, lane, (first,), first.size_bytes)
        requests: list[Pending] = []
        size = 0
        while queue and size < GREENSTACK_BATCH_BYTES:
            pending = queue[0]
            if isinstance(pending, Bound) or not _is_store(pending):
                break
            queue.popleft()
            requests.append(pending)
            size += pending.size_bytes
            if pending.frame.flags & _FENCE:
                lane.is_blocked = True
                break
        return Batch(BatchKind.STORE, lane, requests, size)


def _refused(pending: Pending, status: Status) -> Pending:
    """The request as one that is refused, if it is not already."""
    return pending if pending.refusal is not None else replace(pending, refusal=status)


def _unbound(pending: Pending) -> Pending:
    """What cannot be a part of a transaction, and comes inside one or says that it is one."""
    is_probe = pending.frame.opcode == Opcode.NOOP and pending.refusal is None
    if pending.answer is not None and not is_probe:
        return pending  # is known, and true
    has_more = pending.frame.flags & Flag.MORE
    status = Status.INVALID_ARGUMENTS if has_more else Status.INVALID_STATE
    return _refused(replace(pending, answer=None), status)


def _is_store(pending: Pending) -> bool:
    return pending.frame.opcode in _STORE and pending.answer is None


def _priority(lane: Lane[Selected]) -> int:
    if not lane.queue:
        return _PRIORITY
    first = lane.queue[0]
    frame = first.requests[0].frame if isinstance(first, Bound) else first.frame
    value = frame.flex.get(FlexKey.PRIORITY, b"")
    return value[0] if len(value) == 1 else _PRIORITY
