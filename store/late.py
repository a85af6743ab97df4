"""Runs of REPLACEs that are durable before the state has them.

The log is the truth and the state lags behind it; what reads the state must not see that. So the
tuples of a *late* group, which is nothing but runs of REPLACEs into spaces that have only their
primary index, or a second one in which no tuple changes its place (`store.run`), wait here once
they are durable, and the state takes them, sorted and the last of each key only, in one LMDB
transaction with the position behind them

* before anything else touches the state: a view is opened, or another kind of group begins;
* once there are `limits.LATE_ROWS` of them, or the first is half as old as `limits.LATE_SECONDS`:
  while the log syncs a later group behind which more waits, or behind the answers to one behind
  which nothing does, so that these are not held up;
* when the first is as old as that, in a thread of their own.

A process that dies in between has them in the log, behind the state's position, so opening the
folder applies them. Groups are late only after `limits.LATE_AFTER` of that kind came without a view
in between: who reads what was just written is served as fast as ever.

Checks of the format and the making of keys are not late: they come before the log is written. What
a maker of runs looks at in the state is not late either: where anything of it waits, the group goes
the ordinary way.

INSERTs of large tuples may be late, too (`store.largerun`): what waits of them is their keys and
the references to them. Of one space either these wait or REPLACEs, so that their order does not
matter.
"""

from __future__ import annotations

import contextlib
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Final

from logweir.errors import LogweirError, RequestError
from logweir.limits import (
    LATE_AFTER,
    LATE_ASIDE_BYTES,
    LATE_BYTES,
    LATE_DISK_BYTES,
    LATE_ROWS,
    LATE_SECONDS,
)
from logweir.store import kernel
from logweir.store.bulk import Keys
from logweir.store.engine import Plans
from logweir.store.group import run_blocks
from logweir.store.references import LargeTuple, entries
from logweir.store.run import Known, Run, RunMaker, Sight
from logweir.store.schema import Schema
from logweir.store.state import Position, State, StateError, Txn
from logweir.store.tree import SortedPart
from logweir.wal.block import Pieces
from logweir.wal.failpoint import failpoint
from logweir.wal.place import Place
from logweir.wal.vclock import VClock
from logweir.wal.writer import Written
from logweir.wal.xrow import RowType

__all__ = ["LargePiece", "Late", "LateGroup", "prepare"]

_ALONE_ROWS: Final = 256
_OVERDUE: Final = 2
_PART_ROWS: Final = 512
_MUCH_ROWS: Final = 512
_MUCH_BYTES: Final = 256 * 1024
_STRETCHES: Final = 2  # more of them hold the same keys again and again: sorting them is worth it
_TOPS: Final = 65_536  # so many beginnings of keys are known of a space
_ROW_PAGE_BYTES: Final = 2 * 4096  # a row costs the state no more than its own size and two pages


@dataclass(slots=True)
class _Piece:
    space_id: int
    prefix: bytes
    keys: Keys
    packed: bytes
    bounds: array[int]


@dataclass(slots=True)
class _Stretch:
    """Pieces whose keys ascend, none of them twice. `longest`: no key has more bytes."""

    pieces: list[_Piece]
    longest: int = 0

    @property
    def last_key(self) -> bytes:
        """The greatest of all."""
        keys = self.pieces[-1].keys
        return keys[len(keys) - 1]

    def parts(self) -> Iterator[SortedPart]:
        """Keys and their tuples, a few at a time, so that they stay in the processor's caches
        from where they are made to where the state takes them."""
        for one in self.pieces:
            for at in range(0, len(one.keys), _PART_ROWS):
                end = at + _PART_ROWS + 1
                keys = kernel.parts(one.keys.data, one.keys.bounds[at:end])
                yield keys, kernel.parts(one.packed, one.bounds[at:end])


@dataclass(slots=True)
class _Gathered:
    """The same of pieces in no order, each key with the last tuple of it."""

    found: dict[bytes, bytes]
    longest: int = 0

    def parts(self) -> Iterator[SortedPart]:
        """See `_Stretch`."""
        keys = sorted(self.found)  # four times as fast as sorting pairs
        yield keys, list(map(self.found.__getitem__, keys))


@dataclass(frozen=True, slots=True)
class LargePiece:
    """New large tuples of one space, whose keys ascend and all begin with `prefix`, and the blocks
    that they are in."""

    space_id: int
    prefix: bytes
    keys: list[bytes]
    tuples: Sequence[LargeTuple]
    blocks: list[Pieces]


@dataclass(slots=True)
class _Large:
    """What the state is to take of such: see `references.entries`."""

    referred: list[tuple[bytes, bytes]] = field(default_factory=list)
    held: list[tuple[bytes, bytes]] = field(default_factory=list)


@dataclass(slots=True)
class LateGroup:
    """What a group of runs makes: `blocks` for the log, `pieces` and `large` for the state."""

    blocks: list[bytearray] | list[Pieces]
    vclock: VClock
    pieces: list[_Piece]
    rows: int
    size_bytes: int
    large: Sequence[LargePiece] = ()

    @property
    def goes_aside(self) -> bool:
        """Whether it is so large that the thread that syncs it also compresses and writes it."""
        return self.size_bytes >= LATE_ASIDE_BYTES

    @property
    def logged_bytes(self) -> int:
        """Bytes of its rows in the log, about."""
        return sum(map(len, self.blocks))


def prepare(
    makers: Sequence[RunMaker],
    *,
    state: State,
    late: Late,
    schema: Schema,
    plans: Plans,
    vclock: VClock,
    replica_id: int,
    now: float,
) -> LateGroup | None:
    """Check and encode runs. None where one of them needs the ordinary way, also to be refused.

    `late`: what waits; nobody else may commit, or let the map of `state` grow.
    """
    runs = [maker for maker in makers if isinstance(maker, Run) and not maker.prefix]
    if len(runs) < len(makers):
        with Sight(state, schema, plans, late.known) as sight:
            made = _made(makers, sight, late.waiting, vclock.lsn(replica_id) + 1)
        if made is None:
            return None
        runs = made
    blocks: list[bytearray] = []
    pieces: list[_Piece] = []
    rows = size = 0
    for together in (runs,) if len(runs) == 1 else _together(runs):
        packed, bounds, keys = _joined(together)
        space_id, prefix = together[0].space_id, together[0].prefix
        try:
            space = schema.space(space_id)
            is_local = space.is_local
            if not (space.is_plain or prefix) or not (replica_id or is_local):
                return None
            if late.holds_large(space_id):
                return None
            if keys is None:
                keys = plans.primary(schema, space).keys(packed, bounds)
        except RequestError:
            return None
        signed = 0 if is_local else replica_id
        count = len(bounds) - 1
        last = vclock.lsn(signed)
        blocks += run_blocks(
            RowType.REPLACE,
            replica_id=signed,
            first_lsn=last + 1,
            timestamp=now,
            source=packed,
            bounds=bounds,
            prefix=space.put_prefix,
            is_local=is_local,
        )
        vclock = vclock.with_lsn(signed, last + count)
        rows += count
        size += len(packed)
        pieces.append(_Piece(space_id, prefix, keys, packed, bounds))
    return LateGroup(blocks, vclock, pieces, rows, size)


def _made(
    makers: Sequence[RunMaker], sight: Sight, waiting: Mapping[int, bytes], lsn: int
) -> list[Run] | None:
    """The runs that makers make; None where one of them makes none, or breaks its promise."""
    waiting = dict(waiting)
    runs: list[Run] = []
    for maker in makers:
        if not waiting.keys().isdisjoint(maker.reads):
            return None
        try:
            run = maker.make(sight, lsn)
            if run is None or not _keeps_places(run, sight, waiting):
                return None
            if not sight.schema.space(run.space_id).is_local:
                lsn += len(run.bounds) - 1
        except RequestError:
            return None
        waiting[run.space_id] = run.prefix
        runs.append(run)
    return runs


def _keeps_places(run: Run, sight: Sight, waiting: Mapping[int, bytes]) -> bool:
    """Whether all tuples that are there, or wait, have the run's prefix in the second index."""
    if not run.prefix:
        return True
    if waiting.get(run.space_id, run.prefix) != run.prefix:
        return False
    if run.space_id not in sight.known:
        second = sight.engine.txn.tree(run.space_id, 1)
        if second is not None and not second.has_only(run.prefix):
            return False
        sight.known[run.space_id] = run.prefix
    return sight.known[run.space_id] == run.prefix


def _together(runs: list[Run]) -> Iterator[list[Run]]:
    """Runs that are joined."""
    return (list(together) for _, together in groupby(runs, _belongs_to))


def _belongs_to(run: Run) -> tuple[int, bytes, int]:
    """What runs that are joined have in common. A long one stays alone, and is not copied."""
    return run.space_id, run.prefix, id(run) if len(run.bounds) > _ALONE_ROWS else 0


def _joined(runs: list[Run]) -> tuple[bytes, array[int], Keys | None]:
    if len(runs) == 1:
        (run,) = runs
        return run.packed, run.bounds, run.keys
    keys = [run.keys for run in runs if run.keys is not None]
    joined = None
    if len(keys) == len(runs):
        joined = Keys(b"".join([each.data for each in keys]), _all([each.bounds for each in keys]))
    return b"".join([run.packed for run in runs]), _all([run.bounds for run in runs]), joined


def _all(parts: list[array[int]]) -> array[int]:
    """Bounds of items whose bytes stand one behind the other."""
    bounds = array("Q", bytes(8 * (sum(map(len, parts)) - len(parts) + 1)))
    at = 0
    for part in parts:
        at = kernel.join_bounds(part, bounds, at)
    return bounds


def _latest(pieces: Sequence[_Piece]) -> Sequence[_Stretch | _Gathered]:
    """What the state is to take of pieces, one behind the other."""
    stretches: list[_Stretch] = []
    for one in pieces:
        longest = kernel.ascending(one.keys.data, one.keys.bounds)
        if longest < 0:
            return (_gathered(pieces),)
        if not stretches or one.keys[0] <= stretches[-1].last_key:
            if len(stretches) == _STRETCHES:
                return (_gathered(pieces),)
            stretches.append(_Stretch([]))
        stretches[-1].pieces.append(one)
        stretches[-1].longest = max(stretches[-1].longest, longest)
    return stretches


def _gathered(pieces: Sequence[_Piece]) -> _Gathered:
    found: dict[bytes, bytes] = {}
    for one in reversed(pieces):
        kernel.gather(one.keys.data, one.keys.bounds, one.packed, one.bounds, found)
    return _Gathered(found, max(map(len, found)))


class Late:
    """What waits for the state of one log.

    `guard`: held around whatever opens a view or commits to the state, and by the callers of
    `add` and `apply`. `applying`: `apply` with the guard and with what failures of it mean, for the
    thread. `known`: see `store.run.Sight`.
    """

    def __init__(self, state: State, guard: threading.Lock, applying: Callable[[], None]) -> None:
        self.known: Known = {}
        self._state = state
        self._applying = applying
        self._pieces: list[_Piece] = []
        self._ones: dict[int, dict[bytes, bytes]] = {}  # by space and key, newer than all pieces
        self._large: dict[int, _Large] = {}  # by space; nothing else of these waits
        self._tops: dict[int, dict[bytes, bytes]] = {}  # see `top`
        self._vclock = VClock()  # behind the last of them
        self._end: Written | None = None
        self._rows = 0
        self._bytes = 0
        self._calm = 0
        self._wake = threading.Condition(threading.Lock())
        self._guard = guard
        self._thread: threading.Thread | None = None
        self._closing = False
        self._failed = False
        self._since = 0.0

    @property
    def waits(self) -> bool:
        """Whether anything waits that the state did not refuse to take; without the guard also
        False while it is being taken."""
        return bool(self._pieces or self._ones or self._large) and not self._failed

    @property
    def is_refused(self) -> bool:
        """Whether something waits that the state did not take: it does not hold all that is
        acknowledged. Asked with the guard."""
        return self._failed and bool(self._pieces or self._ones or self._large)

    @property
    def is_due(self) -> bool:
        """Whether so much waits, or for so long, that the state should take it at the next sync:
        there it costs no switches of threads, of which LMDB makes one at each put."""
        return self.waits and (
            self._rows >= LATE_ROWS
            or self._bytes >= LATE_BYTES
            or time.monotonic() >= self._since + LATE_SECONDS / 2
        )

    @property
    def is_overdue(self) -> bool:
        """Whether so much waits that the state should take it at the next sync, whoever waits for
        that."""
        is_much = self._rows >= _OVERDUE * LATE_ROWS or self._bytes >= _OVERDUE * LATE_BYTES
        return is_much and self.waits

    @property
    def is_much(self) -> bool:
        """Whether it takes long to have the state take what waits."""
        return self.waits and (self._rows >= _MUCH_ROWS or self._bytes >= _MUCH_BYTES)

    @property
    def is_calm(self) -> bool:
        """Whether only runs have come for so long that the next group of them may be late."""
        return self._calm >= LATE_AFTER

    @property
    def waiting(self) -> Mapping[int, bytes]:
        """The spaces of which something waits, each with the prefix of its runs."""
        return {piece.space_id: piece.prefix for piece in self._pieces} | dict.fromkeys(
            (*self._ones, *self._large), b""
        )

    def holds_large(self, space_id: int) -> bool:
        """Whether large tuples of that space wait."""
        return space_id in self._large

    def top(self, space_id: int, prefix: bytes) -> bytes | None:
        """The greatest key of that space which begins with `prefix`, in the state or waiting; the
        prefix itself where there is none. None: it is not known, and may not be looked up now.

        Asked by who may commit.
        """
        tops = self._tops.get(space_id)
        if tops is None:
            tops = self._tops[space_id] = {}
        found = tops.get(prefix)
        if found is None and len(tops) < _TOPS and not self._holds_runs(space_id):
            with self._state.read() as txn:
                tree = txn.tree(space_id, 0)
                last = None if tree is None else tree.last_with(prefix)
            found = tops[prefix] = prefix if last is None else last
        return found

    def _holds_runs(self, space_id: int) -> bool:
        return space_id in self._ones or any([piece.space_id == space_id for piece in self._pieces])

    def forget(self) -> None:
        """Something else is about to change the state: what is known of it may not stay so."""
        self.known.clear()
        self._tops.clear()

    def disturb(self) -> None:
        """Something else wants the state."""
        self._calm = 0

    def takes(self, size_bytes: int) -> bool:
        """Whether a group of runs of that size may be late. Asked once per group, before it."""
        if self._calm < LATE_AFTER:
            self._calm += 1
            return False
        if size_bytes > LATE_BYTES:
            return False
        if self._pieces or self._ones or self._large:
            return True
        room = _OVERDUE * (LATE_ROWS * _ROW_PAGE_BYTES + LATE_BYTES) + LATE_BYTES
        if not self._state.has_room(room // 4):
            return False
        try:
            self._state.check_disk(LATE_DISK_BYTES)
        except LogweirError:
            return False
        return True

    def takes_one(self, space_id: int, size_bytes: int) -> bool:
        """`takes` of one tuple, asked only while the state takes what is late."""
        if self._failed or self._calm < LATE_AFTER or space_id in self._large:
            return False
        if self._pieces or self._ones or self._large:
            return size_bytes <= LATE_BYTES
        return self.takes(size_bytes)

    def add(self, group: LateGroup, end: Written) -> None:
        """The rows of a group are durable. `end`: of the log behind them."""
        if self.known and not all([piece.prefix for piece in group.pieces]):
            self.known.clear()
        for piece in group.pieces:
            self._tops.pop(piece.space_id, None)
        if self._pieces or self._ones or self._large:
            self._join_ones()
        else:
            self._begin()
        self._pieces += group.pieces
        for large in group.large:
            self._add_large(large)
        self._vclock, self._end = group.vclock, end
        self._rows += group.rows
        self._bytes += group.size_bytes

    def _add_large(self, piece: LargePiece) -> None:
        space_id = piece.space_id
        waiting = self._large.get(space_id)
        if waiting is None:
            waiting = self._large[space_id] = _Large()
        referred, held = entries(piece.keys, piece.tuples, piece.blocks)
        waiting.referred += referred
        waiting.held += held
        self._bytes += sum([len(data) for _, data in held])
        self._tops[space_id][piece.prefix] = piece.keys[-1]

    def add_one(self, space_id: int, key: bytes, data: bytes, vclock: VClock, end: Written) -> None:
        """`add` of one tuple of a plain space, with the position behind it."""
        if self.known:
            self.known.clear()
        if self._tops:
            self._tops.pop(space_id, None)
        if not (self._pieces or self._ones or self._large):
            self._begin()
        ones = self._ones.get(space_id)
        if ones is None:
            ones = self._ones[space_id] = {}
        ones[key] = data
        self._vclock, self._end = vclock, end
        self._rows += 1
        self._bytes += len(data)

    def _join_ones(self) -> None:
        """Make pieces of single tuples."""
        for space_id, found in self._ones.items():
            keys, tuples = b"".join(found), b"".join(found.values())
            key_bounds = array("Q", accumulate(map(len, found), initial=0))
            bounds = array("Q", accumulate(map(len, found.values()), initial=0))
            self._pieces.append(_Piece(space_id, b"", Keys(keys, key_bounds), tuples, bounds))
        self._ones = {}

    def _begin(self) -> None:
        """Something begins to wait."""
        self._since = time.monotonic()
        with self._wake:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="logweir-late", daemon=True
                )
                self._thread.start()
            self._wake.notify()

    def apply(self) -> None:
        """Have the state take what waits. What it raises, it did not take, and takes no more."""
        assert self._end is not None
        place = Place.written(self._end)
        self._failed = True
        self._join_ones()
        together: dict[int, list[_Piece]] = {}
        for piece in self._pieces:
            together.setdefault(piece.space_id, []).append(piece)
        txn: Txn | None = None
        try:
            txn = self._state.begin()
            for space_id, pieces in together.items():
                prefix = pieces[0].prefix
                for new in _latest(pieces):
                    before = txn.count(space_id, 0)
                    txn.load_sorted(space_id, 0, new.parts(), new.longest)
                    if prefix and txn.count(space_id, 0) != before:
                        places = (([prefix + key for key in keys], keys) for keys, _ in new.parts())
                        txn.load_sorted(space_id, 1, places, len(prefix) + new.longest)
            for space_id, large in self._large.items():
                txn.take_large(space_id, large.referred, large.held)
            txn.set_position(Position(self._vclock, place))
            failpoint("store.before_late_commit")
            txn.commit()
            self._pieces, self._large, self._end = [], {}, None
            self._rows = self._bytes = 0
            self._failed = False
        except BaseException as error:
            if txn is not None:
                txn.abort()
            # An interrupt is no failure: all of it can be taken again, also what was committed.
            self._failed = isinstance(error, StateError | LogweirError | OSError)
            raise

    def close(self, *, apply: bool = True) -> None:
        """End the thread; `apply`: when the state has taken what waits."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        if apply:
            with contextlib.suppress(LogweirError):  # the log has failed: it is known already
                self._applying()

    def _serve(self) -> None:
        while True:
            with self._wake:
                while not self._closing and (left := self._seconds_left()) != 0:
                    self._wake.wait(left)
                if self._closing:
                    return
            try:
                self._applying()
            except LogweirError:
                return  # the log has failed; whoever asks next is told

    def _seconds_left(self) -> float | None:
        """Until what waits is old; None where nothing waits."""
        if not self.waits:
            return None
        return max(self._since + LATE_SECONDS - time.monotonic(), 0)
