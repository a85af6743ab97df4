"""What rows of a Synapse upstream become: cursors, units, moves, gaps, and a stream's queue.

`cursors` decides which of them are new. No I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from logweir.replication.synapse.wire.rows import Run

RUN_UNITS: Final = 16
"""Units of one flow that arrive together from which on they are handled together."""
ROW_BYTES: Final = 100
"""What a row that is held costs beside its bytes, about."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far one instance's rows of one stream are stored; see the module's text."""

    last: int
    resume: int
    epoch: int = 1


@dataclass(slots=True)
class Unit:
    """Rows of one token, to be stored in one transaction. `rows`: MsgPack.

    `more`: after the rows that the token has already; otherwise they replace what it has.
    `cursor`: where the cursor is then; None: it stays.
    """

    stream: str
    instance: str
    epoch: int
    token: int
    rows: list[bytes]
    more: bool = False
    cursor: Cursor | None = None


@dataclass(frozen=True, slots=True)
class Units:
    """Many units of one flow with rising tokens, all new; each is to be one transaction.

    `after`: the cursor's `last` before; `lags`: a cursor's `resume` is the token before its `last`.
    `cursor`: where it is behind the last of them.
    """

    stream: str
    instance: str
    epoch: int
    run: Run
    after: int
    lags: bool
    cursor: Cursor

    def each(self) -> Iterator[Unit]:
        """The same, one by one."""
        before = self.after
        for token, rows in self.run.units():
            cursor = Cursor(token, before if self.lags else token, self.epoch)
            yield Unit(self.stream, self.instance, self.epoch, token, rows, False, cursor)
            before = token


@dataclass(frozen=True, slots=True)
class Moved:
    """The cursor is there now."""

    stream: str
    instance: str
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class Gap:
    """Rows after `after` up to `upto` are not here, or may not be."""

    stream: str
    instance: str
    after: int
    upto: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """Rows after `after` up to `upto` are to be fetched; then `Tracker.fetched`."""

    stream: str
    instance: str
    after: int
    upto: int


@dataclass(frozen=True, slots=True)
class Ask:
    """(D1) REPLICATE is to be sent."""

    stream: str
    token: int


Change = Unit | Units | Moved | Gap | Fetch | Ask


def size_of(change: Change) -> int:
    """Bytes of the rows of a change."""
    if isinstance(change, Unit):
        return sum(map(len, change.rows))
    return len(change.run.rows) if isinstance(change, Units) else 0


class Place(Enum):
    """Where rows of a stream go that arrive now; see `cursors`."""

    UNSEEN = "unseen"
    LIVE = "live"
    WANTED = "wanted"
    ASKED = "asked"
    FETCHING = "fetching"


Queued = tuple[str, int | None, int, bytes]
"""What waits: "row": token, 0, row; "torn": token, 0, reason; "position": previous, token."""


@dataclass(eq=False, slots=True)
class Flow:
    """One (stream, instance) on one connection. `began_anew`: in D1 a server does so when it
    starts, once in a connection; `torn`: why the unit that is not finished lacks a row."""

    stream: str
    instance: str
    cursor: Cursor | None
    open_unit: Unit | None = None
    place: Place = Place.UNSEEN
    began_anew: bool = False
    pending: list[bytes] = field(default_factory=list)
    torn: str = ""
    collected: dict[int, dict[bytes, None]] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    queue: deque[Queued] = field(default_factory=deque)
    target: int = 0
