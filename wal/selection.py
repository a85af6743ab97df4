"""Choosing rows of a log: by space, type, replica, position and time.

A *bound* is a place in the log, in one of three forms:

=====================  ===========================  ============================================
form                   as a start                   as a stop
=====================  ===========================  ============================================
vclock ``{1: 5, …}``   rows that it does not hold   rows that it holds
``2:17``               replica 2 from lsn 17 on,    replica 2 up to lsn 17, rows of other
                       rows of other replicas all   replicas all
number ``423``         from the row whose           up to the row whose signature is 423
                       signature is 423 on
=====================  ===========================  ============================================

The signature of a row is that of the vclock after it; in a log with one writer it is the lsn. Rows
of a snapshot have no position: a bound does not apply to them. Times are compared with the row's
own, both ends included.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from logweir.errors import ConfigError, DecodeError
from logweir.wal.columns import RowColumns
from logweir.wal.meta import Meta
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

if TYPE_CHECKING:  # who reads a time or a type of rows reads no log
    from logweir.wal.directory import LogFile


@dataclass(frozen=True, slots=True)
class ReplicaBound:
    """A place in the rows of one replica."""

    replica_id: int
    lsn: int

    def __str__(self) -> str:
        return f"{self.replica_id}:{self.lsn}"


Bound = VClock | ReplicaBound | int
"""A place in the log; an int is a signature."""

_SECONDS_MAX: Final = 253_402_300_800  # the year 10000, which no calendar here knows
_PAIR: Final = re.compile(r"(\d{1,2}):(\d{1,19})")


def parse_bound(text: str, *, origin: str = "argument") -> Bound:
    """Read a bound. `origin`: where the text came from. Raises `ConfigError`."""
    try:
        if text.lstrip().startswith("{"):
            return VClock.parse(text)
        if (pair := _PAIR.fullmatch(text)) is not None:
            return ReplicaBound(int(pair[1]), int(pair[2]))
        if text.isdecimal() and len(text) < 20:
            return int(text)
    except DecodeError as error:
        raise ConfigError("position", error.message + ".", origin=origin) from error
    raise ConfigError(
        "position",
        f"{text!r} is no position.",
        origin=origin,
        hint="give a vclock such as '{1: 5, 2: 7}', REPLICA:LSN such as 1:5, or a signature",
    )


def parse_time(text: str, *, key: str = "time", origin: str = "argument") -> float:
    """Read a time: ISO 8601 (UTC unless it says otherwise) or seconds since the epoch.

    Returns seconds since the epoch. Raises `ConfigError`.
    """
    with contextlib.suppress(ValueError):
        if abs(seconds := float(text)) < _SECONDS_MAX:
            return seconds
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            key,
            f"{text!r} is no time.",
            origin=origin,
            hint="give it as 2026-11-20, 2026-11-20T14:30:00Z or seconds since 1970",
        ) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def parse_type(text: str, *, key: str = "type", origin: str = "argument") -> int:
    """Read a row type: its name in any case, or its number. Raises `ConfigError`."""
    if text.isdecimal():
        return int(text)
    try:
        return RowType[text.upper()].value
    except KeyError:
        known = ", ".join(one.name for one in RowType if one is not RowType.SELECT)
        raise ConfigError(
            key, f"{text!r} is no type of row.", origin=origin, hint=f"types are {known}"
        ) from None


class Selection:
    """Which rows are wanted. Empty collections and None want all.

    `spaces`: ids, or names; `types`, `replicas`: numbers; `start`, `stop`: bounds; `since`,
    `until`: seconds since the epoch. Call `begin` at each file, then `rows` for each of its blocks
    in order.
    """

    def __init__(
        self,
        *,
        spaces: Collection[int | str] = (),
        types: Collection[int] = (),
        replicas: Collection[int] = (),
        start: Bound | None = None,
        stop: Bound | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> None:
        self._spaces = frozenset(spaces)
        self._types = frozenset(types)
        self._replicas = frozenset(replicas)
        self.start = start
        self._stop = stop
        self.since = since
        self._until = until
        self._has_bounds = start is not None or stop is not None
        self._wants_all = not (
            spaces or types or replicas or since is not None or until is not None
        )
        self._position: dict[int, int] = {}
        self._signature = 0
        self._is_log = True
        self.finished = False
        """Whether the stop was reached: no later row is wanted."""

    def files(self, logs: Sequence[LogFile]) -> list[LogFile]:
        """Those of `logs`, oldest first, that may hold wanted rows, by their headers alone."""
        wanted = [log for log, following in pairwise(logs) if not self._is_before(log, following)]
        return [*wanted, *logs[-1:]]

    def _is_before(self, log: LogFile, following: LogFile) -> bool:
        """Whether all rows of a log are before the start. `following`: the log behind it."""
        match self.start:
            case None:
                return False
            case int(signature):
                return following.signature < signature
            case ReplicaBound(replica_id, first):
                begin, end = log.vclock, following.vclock
                return end.lsn(replica_id) < first and all(
                    begin.lsn(one) == lsn for one, lsn in end.items() if one != replica_id
                )
            case vclock:
                return vclock.covers(following.vclock)

    def begin(self, meta: Meta) -> None:
        """Start a file. `meta`: its header."""
        self._position = dict(meta.vclock)
        self._signature = meta.vclock.signature
        self._is_log = meta.kind == "XLOG"

    def rows(self, columns: RowColumns, names: Mapping[int, str]) -> list[int]:
        """The numbers of the wanted rows of a block. `names`: of spaces, by id."""
        chosen = list(range(len(columns)))
        if self._has_bounds and self._is_log:
            chosen = self._between(columns)
        if self._wants_all or not chosen:
            return chosen
        if self._spaces:
            spaces = columns.space_id.tolist()
            chosen = [i for i in chosen if self._wants_space(spaces[i], names)]
        if self._types:
            types = columns.type.tolist()
            chosen = [i for i in chosen if types[i] in self._types]
        if self._replicas:
            replicas = columns.replica_id.tolist()
            chosen = [i for i in chosen if replicas[i] in self._replicas]
        if self.since is not None or self._until is not None:
            times = columns.timestamp.tolist()
            first = float("-inf") if self.since is None else self.since
            last = float("inf") if self._until is None else self._until
            chosen = [i for i in chosen if first <= times[i] <= last]
        return chosen

    def _wants_space(self, space_id: int, names: Mapping[int, str]) -> bool:
        return space_id in self._spaces or names.get(space_id) in self._spaces

    def _between(self, columns: RowColumns) -> list[int]:
        last = columns.last_lsns()
        reached = {**self._position}
        for replica_id, lsn in last.items():
            reached[replica_id] = max(lsn, reached.get(replica_id, 0))
        signature = sum(reached.values())
        chosen: list[int] = []
        if self._begins_behind_start(last) and self._ends_before_stop(last, signature):
            chosen = list(range(len(columns)))
        elif not self._ends_before_start(last, signature):
            chosen = self._row_by_row(columns)
        self._position, self._signature = reached, signature
        self.finished = self._is_past_stop()
        return chosen

    # Most blocks lie wholly on one side of a bound, which their last lsns tell.

    def _ends_before_start(self, last: Mapping[int, int], signature: int) -> bool:
        match self.start:
            case int(wanted):
                return signature < wanted
            case VClock() as vclock:
                return all(lsn <= vclock.lsn(replica_id) for replica_id, lsn in last.items())
            case ReplicaBound(wanted, first):
                return set(last) == {wanted} and last[wanted] < first
            case None:
                return False

    def _begins_behind_start(self, last: Mapping[int, int]) -> bool:
        match self.start:
            case None:
                return True
            case int(wanted):
                return self._signature + 1 >= wanted
            case VClock() as vclock:
                return all(self._position.get(one, 0) >= vclock.lsn(one) for one in last)
            case ReplicaBound(wanted, first):
                return wanted not in last or self._position.get(wanted, 0) + 1 >= first

    def _ends_before_stop(self, last: Mapping[int, int], signature: int) -> bool:
        match self._stop:
            case None:
                return True
            case int(wanted):
                return signature <= wanted
            case VClock() as vclock:
                return all(lsn <= vclock.lsn(replica_id) for replica_id, lsn in last.items())
            case ReplicaBound(wanted, final):
                return last.get(wanted, 0) <= final

    def _row_by_row(self, columns: RowColumns) -> list[int]:
        chosen = []
        pairs = zip(columns.replica_id.tolist(), columns.lsn.tolist(), strict=True)
        for number, (replica_id, lsn) in enumerate(pairs):
            before = self._position.get(replica_id, 0)
            if lsn > before:
                self._position[replica_id] = lsn
                self._signature += lsn - before
            if self._is_after_start(replica_id, lsn) and self._is_before_stop(replica_id, lsn):
                chosen.append(number)
        return chosen

    def _is_after_start(self, replica_id: int, lsn: int) -> bool:
        match self.start:
            case None:
                return True
            case int(signature):
                return self._signature >= signature
            case ReplicaBound(wanted, first):
                return replica_id != wanted or lsn >= first
            case vclock:
                return lsn > vclock.lsn(replica_id)

    def _is_before_stop(self, replica_id: int, lsn: int) -> bool:
        match self._stop:
            case None:
                return True
            case int(signature):
                return self._signature <= signature
            case ReplicaBound(wanted, last):
                return replica_id != wanted or lsn <= last
            case vclock:
                return lsn <= vclock.lsn(replica_id)

    def _is_past_stop(self) -> bool:
        match self._stop:
            case int(signature):
                return self._signature >= signature
            case VClock() as vclock:
                return all(self._position.get(one, 0) >= lsn for one, lsn in vclock.items())
            case _:
                return False
