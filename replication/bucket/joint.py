# cython: annotation_typing=False
"""Requests of several clients, answered together.

What the clients of a bucket ask for in one turn of the loop is a job, one of what only reads and
one of the rest: the runs that stand one after the other in it are joined, whoever sent them, and
are one batch of statements (`replication.bucket.batch`). Each request stays a transaction of its
own, and is answered to its client.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `joint.pxd`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from logweir.limits import TAP_ANSWERS_BYTES, TURN_SECONDS
from logweir.replication.bucket.batch import Changes, Looks, Paused
from logweir.replication.bucket.change import WINS_HALT, WINS_MAKE, WINS_NONE
from logweir.replication.bucket.item import Held
from logweir.replication.bucket.requests import RUN_MAX, Joined, Requests, Said
from logweir.replication.bucket.store import Bucket, Buckets, GroupItems
from logweir.replication.portkernel import Turn
from logweir.store.commit.group import Group

P = TypeVar("P", bound="Part")
Line = deque[tuple[P, Any, int]]  # whose request, it, and how many it has if it is a run
Batch = Callable[[Requests, Callable[[int], Said], bool], Changes | Looks]

_JOB_SECONDS: Final = 5 * TURN_SECONDS  # a job may cost a sync: that is to be worth while


class Part:
    """What one client, `asker`, asks for in a job: requests that are answered by themselves, and
    runs. `rest`: those that are not answered; `fresh`: the answers that this job has made, of
    `fresh_bytes`; `left`: the requests that it leaves for a later one; `is_held`: the first of
    these waits for another state of its vbucket, or for a job that may change something;
    `may_change`: the client may write."""

    def __init__(self, rest: Sequence[Any], asker: Any = None, may_change: bool = True) -> None:
        self.rest = rest
        self.asker = asker
        self.may_change = may_change
        self.fresh: list[bytes] = []
        self.fresh_bytes = 0
        self.left: list[Any] = []
        self.is_held = False

    @staticmethod
    def run_count(request: Any) -> int:
        """How many requests a run has; 0: it is none."""
        raise NotImplementedError

    @staticmethod
    def joined(parts: Sequence[Any], runs: Sequence[Any]) -> Joined[Any]:
        """Runs of these parts, one of each, as one."""
        raise NotImplementedError

    def begin(self) -> None:
        """A job begins with `rest`."""
        self.fresh, self.left = [], []
        self.fresh_bytes = 0
        self.is_held = False

    @property
    def is_behind(self) -> bool:
        """Whether nothing more is to be made, since something before it waits."""
        return bool(self.left)

    def leave(self, request: Any) -> None:
        """That one is for a later job."""
        self.left.append(request)

    def say(self, answer: bytes) -> None:
        """That is the answer to the next requests."""
        self.fresh.append(answer)
        self.fresh_bytes += len(answer)


def change_all(
    parts: Sequence[P],
    items: GroupItems,
    now: float,
    ordinary: Callable[[P, Any], bytes],
    group: Group,
) -> None:
    """Run what clients of one bucket ask for. `now`: Unix seconds; `ordinary`: answers one request
    that is no part of a run, or raises `Held`.

    Behind answers of `limits.TAP_ANSWERS_BYTES` to a client the rest of what it asks for is left,
    also after a request that waits, and, but for the first, when the job has taken long.
    """

    way = partial(_changes, items, now, group)
    _answer_all(parts, way, ordinary, _JOB_SECONDS)


def _changes(
    items: GroupItems,
    now: float,
    group: Group,
    run: Requests,
    one: Callable[[int], Said],
    may_change: bool,
) -> Changes:
    return Changes(run, items, now, group, one, WINS_MAKE if may_change else WINS_NONE)


def look_all(
    parts: Sequence[P],
    buckets: Buckets,
    bucket: Bucket,
    now: float,
    ordinary: Callable[[P, Any], bytes],
    expired: list[tuple[bytes, int]],
) -> None:
    """As `change_all`, of what changes nothing, as of what is published. `expired`: see `Looks`."""

    way = partial(_looks, buckets, bucket, now, expired)
    _answer_all(parts, way, ordinary, TURN_SECONDS)


def _looks(
    buckets: Buckets,
    bucket: Bucket,
    now: float,
    expired: list[tuple[bytes, int]],
    run: Requests,
    one: Callable[[int], Said],
    may_change: bool,
) -> Looks:
    wins = WINS_HALT if may_change else WINS_NONE
    return Looks(run, buckets, bucket, now, expired, one, wins)


def finish_all(parts: Sequence[Part], error: BaseException | None) -> None:
    """Tell who asked that a job is done, or why it failed. What goes wrong there ends that
    connection, and is nothing to the others."""
    for part in parts:
        part.asker.link.attempt(part.asker.finish, part, error)


def _answer_all(
    parts: Sequence[P], batch: Batch, ordinary: Callable[[P, Any], bytes], seconds: float
) -> None:
    line: Line[P] = deque()
    for part in parts:
        part.begin()
        for request in part.rest:
            line.append((part, request, part.run_count(request)))
    turn = Turn(seconds=seconds)
    while line:
        part, request, is_run = line[0]
        has_enough = part.fresh and (part.fresh_bytes >= TAP_ANSWERS_BYTES or turn.is_over(0))
        if part.is_behind or has_enough:
            part.leave(request)
            line.popleft()
        elif is_run:
            _answer(line, batch, ordinary)
        else:
            try:
                part.say(ordinary(part, request))
                line.popleft()
            except Held:
                part.is_held = True
                part.leave(line.popleft()[1])


def _first_runs(line: Line[P]) -> tuple[list[P], list[Any]]:
    """The runs that are first in line, as many as may be one, and of whom they are."""
    parts: list[P] = []
    runs: list[Any] = []
    left = RUN_MAX
    for part, request, size in line:
        if parts and (
            not size
            or size > left
            or part is parts[-1]
            or part.is_behind
            or part.may_change != parts[0].may_change
        ):
            break
        parts.append(part)
        runs.append(request)
        left -= size
    return parts, runs


def _answer(line: Line[P], batch: Batch, ordinary: Callable[[P, Any], bytes]) -> None:
    """Make the runs that are first in line, as one; what is not made of them stays in line."""
    parts, runs = _first_runs(line)
    run = parts[0].joined(parts, runs)
    one = partial(_answer_one, run, parts, ordinary)
    done, is_held = len(runs), False
    try:
        said = batch(run, one, parts[0].may_change).answer()
    except Paused as paused:
        said, is_held = paused.said, paused.is_held
        done, behind = run.number(paused.at), run.behind(paused.at)
    for place, data in said:
        parts[run.number(place - 1)].say(data)
    for _ in range(done):
        line.popleft()
    if done < len(runs):
        part, _, _ = line.popleft()
        line.extendleft([(part, rest, part.run_count(rest)) for rest in reversed(behind)])
        if is_held:
            part.is_held = True
            part.leave(line.popleft()[1])


def _answer_one(
    run: Joined[Any], parts: Sequence[P], ordinary: Callable[[P, Any], bytes], at: int
) -> Said:
    """Answer the request at a place of a run by itself."""
    request, stop = run.request(at)
    try:
        return stop, ordinary(parts[run.number(at)], request)
    except Held:
        raise Paused([], at, is_held=True) from None
