"""Runs of REPLACEs that are durable before the state has them.

The log is the truth and the state lags behind it; what reads the state must not see that. So the
tuples of a *late* group, which is nothing but runs of REPLACEs into spaces that have only their
primary index, wait here once they are durable, and the state takes them, sorted and the last of
each key only, in one LMDB transaction with the position behind them

* before anything else touches the state: a view is opened, or another kind of group begins;
* while the log syncs a later group, once there are `limits.LATE_ROWS` of them, or the first is
  half as old as
* `limits.LATE_SECONDS`, after which they go in a thread of their own.

A process that dies in between has them in the log, behind the state's position, so opening the
folder applies them. Groups are late only after `limits.LATE_AFTER` of that kind came without a view
in between: who reads what was just written is served as fast as ever.

Checks of the format and the making of keys are not late: they come before the log is written.
"""

from __future__ import annotations

import contextlib
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final

from logweir.errors import LogweirError, RequestError
from logweir.limits import (
    LATE_AFTER,
    LATE_BYTES,
    LATE_DISK_BYTES,
    LATE_ROWS,
    LATE_SECONDS,
)
from logweir.store import kernel
from logweir.store.bulk import Keys
from logweir.store.engine import Plans
from logweir.store.group import run_blocks
from logweir.store.run import Run
from logweir.store.schema import Schema
from logweir.store.state import Position, State
from logweir.wal.failpoint import failpoint
from logweir.wal.mp import encode_uint
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

__all__ = ["Late", "LateGroup", "prepare"]

_ROW_PAGE_BYTES: Final = 4096  # a row costs the state no more than its own size and one such page


@dataclass(frozen=True, slots=True)
class _Piece:
    space_id: int
    keys: Keys
    packed: bytes
    bounds: array[int]


@dataclass(frozen=True, slots=True)
class LateGroup:
    """What a group of runs makes: `blocks` for the log, `pieces` for the state."""

    blocks: list[bytearray]
    vclock: VClock
    pieces: list[_Piece]
    rows: int
    size_bytes: int


def prepare(
    runs: Sequence[Run],
    *,
    schema: Schema,
    plans: Plans,
    vclock: VClock,
    replica_id: int,
    now: float,
) -> LateGroup | None:
    """Check and encode runs. None where one of them needs the ordinary way, also to be refused."""
    blocks: list[bytearray] = []
    pieces: list[_Piece] = []
    rows = size = 0
    for space_id, packed, bounds in _by_space(runs):
        try:
            space = schema.space(space_id)
            if not space.is_plain or not (replica_id or space.is_local):
                return None
            keys = plans.get(space, schema.index(space, 0), check=True).keys(packed, bounds)
        except RequestError:
            return None
        signed = 0 if space.is_local else replica_id
        count = len(bounds) - 1
        blocks += run_blocks(
            RowType.REPLACE,
            replica_id=signed,
            first_lsn=vclock.lsn(signed) + 1,
            timestamp=now,
            source=packed,
            bounds=bounds,
            prefix=b"\x82\x10" + encode_uint(space_id) + b"\x21",
            is_local=space.is_local,
        )
        vclock = vclock.with_lsn(signed, vclock.lsn(signed) + count)
        rows += count
        size += len(packed)
        pieces.append(_Piece(space_id, keys, packed, bounds))
    return LateGroup(blocks, vclock, pieces, rows, size)


def _by_space(runs: Sequence[Run]) -> Iterable[tuple[int, bytes, array[int]]]:
    """Those of one space that stand together as one."""
    if len(runs) == 1:
        (run,) = runs
        return ((run.space_id, run.packed, run.bounds),)
    return (
        (space_id, *_joined(list(together)))
        for space_id, together in groupby(runs, attrgetter("space_id"))
    )


def _joined(runs: list[Run]) -> tuple[bytes, array[int]]:
    if len(runs) == 1:
        return runs[0].packed, runs[0].bounds
    bounds = array("Q", bytes(8 * (sum(len(run.bounds) - 1 for run in runs) + 1)))
    at = 0
    for run in runs:
        at = kernel.join_bounds(run.bounds, bounds, at)
    return b"".join([run.packed for run in runs]), bounds


class Late:
    """What waits for the state of one log.

    `guard`: held around whatever opens a view or commits to the state, and by the callers of
    `add` and `apply`. `applying`: `apply` with the guard and with what failures of it mean, for the
    thread.
    """

    def __init__(self, state: State, guard: threading.Lock, applying: Callable[[], None]) -> None:
        self._state = state
        self._applying = applying
        self._pieces: list[_Piece] = []
        self._position: Position | None = None
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
        return bool(self._pieces) and not self._failed

    @property
    def is_due(self) -> bool:
        """Whether so much waits, or for so long, that the state should take it at the next sync:
        there it costs no switches of threads, of which LMDB makes one at each put."""
        return self.waits and (
            self._rows >= LATE_ROWS
            or self._bytes >= LATE_BYTES
            or time.monotonic() >= self._since + LATE_SECONDS / 2
        )

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
        if self._pieces:
            return True
        room = LATE_ROWS * _ROW_PAGE_BYTES + 2 * LATE_BYTES
        if not self._state.has_room(room // 4):
            return False
        try:
            self._state.check_disk(LATE_DISK_BYTES)
        except LogweirError:
            return False
        return True

    def add(self, group: LateGroup, position: Position) -> None:
        """The rows of a group up to `position` are durable."""
        is_first = not self._pieces
        if is_first:
            self._since = time.monotonic()
        self._pieces += group.pieces
        self._position = position
        self._rows += group.rows
        self._bytes += group.size_bytes
        if is_first:
            with self._wake:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._serve, name="logweir-late", daemon=True
                    )
                    self._thread.start()
                self._wake.notify()

    def apply(self) -> None:
        """Have the state take what waits. What it raises, it did not take, and takes no more."""
        position = self._position
        assert position is not None
        self._failed = True
        latest: dict[int, dict[bytes, bytes]] = {}
        for piece in self._pieces:
            found = latest.setdefault(piece.space_id, {})
            kernel.gather(piece.keys.data, piece.keys.bounds, piece.packed, piece.bounds, found)
        txn = self._state.begin()
        try:
            for space_id, found in latest.items():
                # Sorting keys is four times as fast as sorting pairs.
                txn.load(space_id, 0, [(key, found[key]) for key in sorted(found)])
            txn.set_position(position)
            failpoint("store.before_late_commit")
        except BaseException:
            txn.abort()
            raise
        txn.commit()
        self._failed = False
        self._pieces, self._position = [], None
        self._rows = self._bytes = 0

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
