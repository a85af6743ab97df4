# cython: annotation_typing=False
"""Requests about items, executed as batches of statements: the same for every protocol of buckets.

A protocol says its requests in columns of statements, and makes answers of what came of those
(`Requests`). `Changes` executes them in a group of the commit queue; if an expired item or one
of another vbucket is in the way of one, that one by itself, and the batch goes on. `Looks`
does so with what is published, where nothing may be changed: an expired item is not there, and
noted for who removes it.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `batch.pxd`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from logweir.errors import RequestError
from logweir.limits import TAP_ANSWERS_BYTES
from logweir.replication.bucket.change import MISSING, WINS_MAKE, WINS_NONE, ItemComputer
from logweir.replication.bucket.item import unpack_item
from logweir.replication.bucket.requests import Numbers, Requests, Said
from logweir.replication.bucket.store import Bucket, Buckets, GroupItems
from logweir.replication.logs import get_logger
from logweir.store.commit.group import Group
from logweir.store.engine.batches import Answers, Asked
from logweir.store.engine.computing import UNMET
from logweir.store.engine.executing import COLUMNS, LAST, RESULTS
from logweir.store.engine.reference import COMPUTED
from logweir.wal.xrow import RowType

_log = get_logger("logweir.replication.bucket")

# Of `Requests.statements`.
AT, USED, COUNT, NOW = range(4)
WHOLE, NEED_STATE, NO_ROOM, ODD = range(4)

_FIRST: Final = 4
REFUSED: Final = 1
"""Of a result: the engine refused the statement."""

_ZERO: Final = array("Q", (0,))


def computed(kind: int, start: int, stop: int) -> array[int]:
    """The statement of a change of an item. `kind`: see `replication.bucket.change`; `start`,
    `stop`: where its tuple stands."""
    column = _ZERO * COLUMNS
    column[0], column[LAST], column[LAST + 1], column[LAST + 2] = RowType.REPLACE, 1, COMPUTED, kind
    column[_FIRST], column[_FIRST + 1] = start, stop
    return column


class Paused(Exception):
    """Behind enough answers, or before what cannot be done here. `said`: so far; `at`: the place of
    the next request; `is_held`: it cannot be done here, or waits for another state of its
    vbucket."""

    def __init__(self, said: list[Said], at: int, *, is_held: bool = False) -> None:
        super().__init__("a run goes on later")
        self.said = said
        self.at = at
        self.is_held = is_held


class _Batches:
    """One run under way. `ordinary`: answers the odd request at a place, or raises `Paused`."""

    def __init__(self, requests: Requests, now: float, ordinary: Callable[[int], Said]) -> None:
        self._requests = requests
        self._now = int(now)
        self._ordinary = ordinary
        self._numbers = array("Q", (requests.start, 0, 0, self._now))
        self._said: list[Said] = []
        self._said_bytes = 0

    def answer(self) -> list[Said]:
        """Run all requests, one at least. Returns their answers, in pieces. Raises `Paused`, also
        after answers of `limits.TAP_ANSWERS_BYTES`."""
        numbers, stop = self._numbers, self._requests.stop
        while True:
            self._step()
            if numbers[AT] >= stop:
                return self._said
            if self._said_bytes >= TAP_ANSWERS_BYTES:
                raise self._paused()

    def _step(self) -> None:
        """Go on with the run."""
        raise NotImplementedError

    def _paused(self, is_held: bool = False) -> Paused:
        return Paused(self._said, self._numbers[AT], is_held=is_held)

    def _answer_odd(self) -> None:
        """Have the next request answered by itself."""
        try:
            said = self._ordinary(self._numbers[AT])
        except Paused as paused:
            raise self._paused(paused.is_held) from None
        self._tell([said])

    def _say(
        self, at: int, reached: int, first: int, results: Numbers, made: bytes, lsn: int
    ) -> None:
        """Answer what was executed; the next request is the one after that."""
        self._tell(self._requests.answers(at, reached, first, results, made, lsn))

    def _tell(self, said: list[Said]) -> None:
        for at, data in said:
            self._numbers[AT] = at
            self._said_bytes += len(data)
        self._said += said


class Changes(_Batches):
    """A run in a group, of which `items` are. `wins`: see `replication.bucket.change`."""

    def __init__(
        self,
        requests: Requests,
        items: GroupItems,
        now: float,
        group: Group,
        ordinary: Callable[[int], Said],
        wins: int = WINS_MAKE,
    ) -> None:
        super().__init__(requests, now, ordinary)
        self._wins = wins
        self._items = items
        self._group = group
        self._given = bytearray(requests.given_bytes)
        self._most = requests.count

    def _step(self) -> None:
        numbers, most = self._numbers, self._most
        begin = numbers[AT]
        given, columns, how = self._statements(most)
        if numbers[AT] != begin:
            if most < self._requests.count:
                self._most = min(4 * most, self._requests.count)
            self._execute(given, columns, begin)
        elif how == NEED_STATE:
            self._items.state(self._requests.name(begin)[1])  # which makes it known
        else:
            assert how == ODD
            self._answer_odd()

    def _statements(self, most: int) -> tuple[bytes, array[int], int]:
        """What the next requests give, their statements, and how these ended."""
        numbers, given = self._numbers, self._given
        columns = _ZERO * (2 * COLUMNS * most)
        numbers[USED] = numbers[COUNT] = 0
        states = self._items.known_states()
        how = self._requests.statements(numbers, most, states, given, columns)
        del columns[numbers[COUNT] * COLUMNS :]
        return bytes(memoryview(given)[: numbers[USED]]), columns, how

    def _execute(self, given: bytes, columns: Numbers, begin: int) -> None:
        """Execute the statements of the requests from `begin` on, and answer them."""
        bucket, group = self._items.bucket, self._group
        computer = ItemComputer(self._now, bucket.cas.next(), self._wins)
        results, made, lsn = _ZERO[:0], b"", group.last_lsn
        if columns:
            ids = (bucket.space_id,)
            done = group.execute_batch(
                given, columns, ids, limit_bytes=TAP_ANSWERS_BYTES, computer=computer
            )
            results, made = done.results, done.out
            if done.refused:
                _report(done)
        bucket.cas.reach(computer.cas)
        self._say(begin, self._numbers[AT], 0, results, made, lsn)
        if computer.obstacle is not None:
            self._execute_alone()

    def _execute_alone(self) -> None:
        """Execute the next request, after the removal of what is in its way, and answer it."""
        begin, self._most = self._numbers[AT], 1
        _, vbucket = self._requests.name(begin)
        given, columns, _ = self._statements(1)
        kind, number = columns[LAST + 2], columns[LAST + 3]
        data = given[columns[_FIRST] : columns[_FIRST + 1]]
        mark = self._group.mark()
        try:
            status, old, new, _, told = self._items.compute(kind, data, vbucket, number)
        except RequestError as error:
            self._group.rollback(mark)
            status, old, new, told = REFUSED, None, None, (int(error.code), 0, 0)
            _log.warning("bucket.request_failed", error=str(error))
        lsn = self._group.last_lsn - (new is not None)
        self._group.end_transaction()
        results = array("Q", (status, *told, 0, len(old or b""), 0, len(new or b""), 0, 0))
        results += _ZERO * (len(columns) // COLUMNS - 1) * RESULTS  # of a DELETE after it
        self._say(begin, self._numbers[AT], 0, results, old or new or b"", lsn)


class Looks(_Batches):
    """A run that changes nothing, as of what is published. `expired`: takes the keys and vbuckets
    of items that are to be removed; `wins`: see `replication.bucket.change`."""

    def __init__(
        self,
        requests: Requests,
        buckets: Buckets,
        bucket: Bucket,
        now: float,
        expired: list[tuple[bytes, int]],
        ordinary: Callable[[int], Said],
        wins: int = WINS_NONE,
    ) -> None:
        super().__init__(requests, now, ordinary)
        self._wins = wins
        self._bucket = bucket
        self._buckets = buckets
        self._expired = expired

    def _step(self) -> None:
        """Execute statements, all as of one moment, at which the states of their vbuckets are what
        is known of them; else none. One of a vbucket that is not active is odd; one that would
        change something is held: raises `Paused`."""
        numbers, requests, bucket = self._numbers, self._requests, self._bucket
        begin, states = numbers[AT], bucket.known_states()
        numbers[USED] = numbers[COUNT] = 0
        given = bytearray(requests.given_bytes)
        columns = _ZERO * (COLUMNS * (requests.count + 1))  # room for two is wanted for each
        most = requests.count
        while requests.statements(numbers, most, states, given, columns) == NEED_STATE:
            self._buckets.learn(bucket, requests.name(numbers[AT])[1], states)
        reached = numbers[AT]
        if reached == begin:
            self._answer_odd()
            return
        del columns[numbers[COUNT] * COLUMNS :]
        computer = ItemComputer(self._now, 0, self._wins)
        said = bytes(memoryview(given)[: numbers[USED]])
        asked = Asked(said, columns, (bucket.space_id,), TAP_ANSWERS_BYTES, computer)
        done, _ = self._buckets.log.inner.select_batch(self._buckets.executor, asked)
        if bucket.known_states() is not states:
            numbers[AT] = begin
            return
        _report(done)
        self._say(begin, reached, 0, done.results, done.out, 0)
        if computer.obstacle is not None:
            if not unpack_item(computer.obstacle).is_expired(self._now):
                raise self._paused(True)
            at = self._numbers[AT]
            self._expired.append(self._requests.name(at))
            missing = array("Q", (UNMET, MISSING, *[0] * (RESULTS - 2)))
            self._say(at, reached, 0, missing, b"", 0)


def _report(done: Answers) -> None:
    """Log what the engine refused."""
    for number in done.refused:
        if done.results[number * RESULTS] == REFUSED:
            _log.warning("bucket.request_failed", error=str(done.error(number)))
