"""Requests about items, executed as batches of statements: the same for every protocol of buckets.

A protocol says its requests in columns of statements, and makes answers of what came of those
(`Requests`). `Changes` executes them in a group of the commit queue: what is in the way of one, an
expired item or one of another vbucket, is removed in front of it, and the batch goes on. `Looks`
does so with what is published, where nothing may be changed: an expired item is not there, and
noted for who removes it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, Protocol

from logweir.limits import TAP_ANSWERS_BYTES, TAP_VALUE_BYTES
from logweir.replication.bucket.change import MISSING, ItemComputer
from logweir.replication.bucket.item import (
    VBUCKETS,
    VbucketState,
    pack_item,
    pack_key,
    tombstone,
    unpack_item,
)
from logweir.replication.bucket.store import Bucket, Buckets, GroupItems
from logweir.replication.logs import get_logger
from logweir.store.commit.group import Group
from logweir.store.engine.batches import Answers
from logweir.store.engine.computing import UNMET
from logweir.store.engine.executing import COLUMNS, LAST, RESULTS
from logweir.store.engine.reads import GET
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

__all__ = ["Changes", "Looks", "Paused", "Requests"]

_log = get_logger("logweir.replication.bucket")

# Of `Requests.statements`.
AT, USED, COUNT, NOW = range(4)
WHOLE, NEED_STATE, NO_ROOM, ODD = range(4)

_NO_STATE: Final = 255
_ROOM_BYTES: Final = 2 * TAP_VALUE_BYTES
_SPACE, _BASE, _FIRST, _LIMIT, _NEW = 1, 3, 4, 10, 6
_REFUSED: Final = 1
_ZERO: Final = array("Q", (0,))
_POOLED: Final = 4
_states: Final[list[bytearray]] = []  # of all vbuckets, none known: to make them takes long
_FOUND: Final = b"\xdd\x00\x00\x00\x01"
"""Before the tuple of a SELECT that found one."""


class Requests(Protocol):
    """Requests of one run, `count` of them, between places that rise from `start` to `stop`."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def given_bytes(self) -> int:
        """Room for what all their statements give."""
        ...

    def statements(
        self,
        numbers: array[int],
        most: int,
        states: bytearray,
        given: bytearray,
        columns: array[int],
    ) -> int:
        """Make statements of `most` requests at most. Returns how it ended: `WHOLE`, before one of
        a vbucket whose state is not known, without room, or before one that is odd.

        `numbers`: the place of the next request; bytes used of `given`; statements made so far; the
        time, in whole Unix seconds. `states`: one byte for each vbucket, 0: not asked yet, else its
        state, 255 if there is none. `columns`: zeros behind the statements that there are.
        """
        ...

    def answers(
        self, at: int, reached: int, first: int, results: array[int], made: bytes
    ) -> tuple[bytes, int]:
        """The answers to the requests from `at` to `reached` whose statements, from number `first`
        on, were executed, and the place behind those. `made`: the bytes in which `results` point.
        """
        ...

    def name(self, at: int) -> tuple[bytes, int]:
        """The key and the vbucket of the item that the request at `at` is about."""
        ...


class Paused(Exception):
    """Behind enough answers, or before what cannot be done here. `answers`: so far; `at`: the place
    of the next request."""

    def __init__(self, answers: bytes, at: int) -> None:
        super().__init__("a run goes on later")
        self.answers = answers
        self.at = at


class _Batches:
    """One run under way."""

    def __init__(self, requests: Requests, now: float) -> None:
        self._requests = requests
        self._now = int(now)
        self._states = _states.pop() if _states else bytearray(VBUCKETS)
        self._asked: list[int] = []
        self._numbers = array("Q", (requests.start, 0, 0, self._now))
        self._parts: list[bytes] = []

    def _learn(self, state: int) -> None:
        """Take that for the state of the next request's vbucket."""
        _, vbucket = self._requests.name(self._numbers[AT])
        self._states[vbucket] = state
        self._asked.append(vbucket)

    def _forget(self) -> None:
        """Know no state any more."""
        for vbucket in self._asked:
            self._states[vbucket] = 0
        self._asked.clear()

    def answer(self) -> list[bytes]:
        """Run all requests. Returns the pieces of their answers. Raises `Paused`."""
        try:
            while self._numbers[AT] < self._requests.stop:
                self._step()
                self._check_room()
        finally:
            self._forget()
            if len(_states) < _POOLED:
                _states.append(self._states)
        return self._parts

    def _step(self) -> None:
        """Go on with the run."""
        raise NotImplementedError

    def _check_room(self) -> None:
        """Raise `Paused` behind answers of `limits.TAP_ANSWERS_BYTES`."""
        at = self._numbers[AT]
        if at < self._requests.stop and sum(map(len, self._parts)) >= TAP_ANSWERS_BYTES:
            raise self._paused()

    def _paused(self) -> Paused:
        return Paused(b"".join(self._parts), self._numbers[AT])

    def _say(self, at: int, reached: int, first: int, results: array[int], made: bytes) -> None:
        """Answer what was executed; the next request is the one behind that."""
        said, self._numbers[AT] = self._requests.answers(at, reached, first, results, made)
        if said:
            self._parts.append(said)


class Changes(_Batches):
    """A run in a group, of which `items` are. `ordinary`: answers the odd request at a place, and
    tells the place behind it, or raises `Paused`; `mark`: is told the place from which statements
    are made together, and the lsn of the first row of the first."""

    def __init__(
        self,
        requests: Requests,
        items: GroupItems,
        now: float,
        group: Group,
        ordinary: Callable[[int], tuple[bytes, int]],
        mark: Callable[[int, int], None] = lambda at, lsn: None,
    ) -> None:
        super().__init__(requests, now)
        self._items = items
        self._group = group
        self._ordinary = ordinary
        self._mark = mark
        self._removal: tuple[bytes, bytes, bool] | None = None
        self._given = bytearray(requests.given_bytes)
        self._most = requests.count

    def _step(self) -> None:
        numbers = self._numbers
        begin = numbers[AT]
        columns = self._begin()
        removed = len(columns) // COLUMNS
        given, most = self._given, 1 if removed else self._most
        columns += _ZERO * (2 * COLUMNS * most)
        numbers[USED] = 0
        if self._removal is not None:
            tomb, key, _ = self._removal
            given[: len(tomb) + len(key)] = tomb + key
            numbers[USED] = len(tomb) + len(key)
        numbers[COUNT] = removed
        how = self._requests.statements(numbers, most, self._states, given, columns)
        reached = numbers[AT]
        if reached == begin:
            if how == NEED_STATE:
                _, vbucket = self._requests.name(begin)
                self._learn(self._items.state(vbucket) or _NO_STATE)
            else:
                assert how == ODD
                try:
                    said, numbers[AT] = self._ordinary(begin)
                except Paused:
                    raise self._paused() from None
                self._parts.append(said)
            return
        self._removal = None
        self._most = min(4 * most, self._requests.count)
        del columns[numbers[COUNT] * COLUMNS :]
        used = bytes(memoryview(given)[: numbers[USED]])
        self._mark(begin, self._group.last_lsn + 1 + removed)
        self._execute(used, columns, begin, reached, removed)

    def _begin(self) -> array[int]:
        """The statements that remove what is in the way of the next request."""
        columns = array("Q")
        if self._removal is not None:
            tomb, key, moves = self._removal
            columns = _ZERO * (2 * COLUMNS)
            columns[0] = RowType.REPLACE
            columns[_FIRST + 1] = len(tomb)
            columns[COLUMNS] = RowType.DELETE
            columns[COLUMNS + _FIRST] = len(tomb)
            columns[COLUMNS + _FIRST + 1] = len(tomb) + len(key)
            columns[COLUMNS + LAST] = not moves
        return columns

    def _execute(
        self, given: bytes, columns: array[int], begin: int, reached: int, removed: int
    ) -> None:
        """Execute the statements of the requests from `begin` to `reached`, behind so many that
        remove what was in the way, and answer them."""
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
        self._say(begin, reached, removed, results, made)
        if computer.obstacle is not None:
            item = unpack_item(computer.obstacle)
            grave = tombstone(item, computer.next_cas(item.cas))
            _, vbucket = self._requests.name(self._numbers[AT])
            moves = item.vbucket != vbucket  # who follows the other vbucket has to know
            self._removal = pack_item(grave), pack_key(item.key), moves
            self._given = bytearray(len(self._removal[0]) + _ROOM_BYTES)
        clock.reach(computer.cas)


class Looks(_Batches):
    """A run that changes nothing, as of what is published. `expired`: takes the keys and vbuckets
    of items that are to be removed."""

    def __init__(
        self,
        requests: Requests,
        buckets: Buckets,
        bucket: Bucket,
        now: float,
        expired: list[tuple[bytes, int]],
    ) -> None:
        super().__init__(requests, now)
        self._bucket = bucket
        self._buckets = buckets
        self._expired = expired

    def _step(self) -> None:
        """Execute statements, all as of one moment, with a look at the states of their vbuckets.
        Raises `Paused` also before a request of a vbucket that is not active, or an odd one."""
        numbers, requests = self._numbers, self._requests
        begin = numbers[AT]
        numbers[USED] = numbers[COUNT] = 0
        given = bytearray(requests.given_bytes)
        columns = _ZERO * (COLUMNS * (requests.count + 1))
        most = requests.count
        while requests.statements(numbers, most, self._states, given, columns) == NEED_STATE:
            self._learn(VbucketState.ACTIVE)
        if numbers[AT] == begin:
            raise self._paused()
        del columns[numbers[COUNT] * COLUMNS :]
        self._look(bytes(memoryview(given)[: numbers[USED]]), columns, begin, numbers[AT])
        self._forget()

    def _look(self, given: bytes, columns: array[int], begin: int, reached: int) -> None:
        bucket, asked = self._bucket, self._asked
        rows = [pack((bucket.name, vbucket, int(VbucketState.ACTIVE))) for vbucket in asked]
        selects = array("Q")
        for vbucket in asked:
            select = _ZERO * COLUMNS
            select[0], select[_SPACE], select[_BASE] = RowType.SELECT, 1, GET
            select[_FIRST] = len(given)
            given += pack((bucket.name, vbucket))
            select[_FIRST + 1], select[LAST], select[_LIMIT] = len(given), 1, 1
            selects += select
        computer = ItemComputer(self._now, 0)
        done, _ = self._buckets.log.select_batch(
            self._buckets.executor,
            given,
            selects + columns,
            (bucket.space_id, bucket.states_id),
            TAP_ANSWERS_BYTES,
            computer,
        )
        for number, row in enumerate(rows):
            start, end = done.results[number * RESULTS + _NEW :][:2]
            if done.out[start:end] != _FOUND + row:
                self._numbers[AT] = begin
                raise self._paused()
        _report(done)
        self._say(begin, reached, len(asked), done.results, done.out)
        if computer.obstacle is not None:
            at = self._numbers[AT]
            self._expired.append(self._requests.name(at))
            missing = array("Q", (UNMET, MISSING, *[0] * (RESULTS - 2)))
            self._say(at, reached, 0, missing, b"")


def _report(done: Answers) -> None:
    """Log what the engine refused."""
    for number in done.refused:
        if done.results[number * RESULTS] == _REFUSED:
            _log.warning("bucket.request_failed", error=str(done.error(number)))
