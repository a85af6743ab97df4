"""How long rows of some streams are kept: the option ``retention=typing:1h,presence:1d``.

Rows have no time of their own. So it is noted now and then up to where a stream was read by then
(a *mark*: time in ms, epoch, token), and what is not behind a mark that is old enough is removed.
Marks are made when at least an eighth of the time has gone by since the last one, and stand in the
space ``logweir_retention`` (source, stream, instance, marks), so that they outlast a restart. Rows
that were there before a stream had a retention count from its first mark on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from logweir.errors import ConfigError
from logweir.limits import SYNAPSE_PAGE_ROWS
from logweir.replication.stream.positions import RETENTION_SPACE
from logweir.replication.synapse.follow.ingest import Intake
from logweir.replication.synapse.follow.kinds import NamedEvent, named_in
from logweir.replication.synapse.wire.codec import instance_label
from logweir.replication.synapse.wire.units import Cursor
from logweir.replication.urls import Url, option_names
from logweir.store import Log
from logweir.store.engine.request import Request
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MARKS: Final = 8
_LOOK_MAX_SECONDS: Final = 60.0
_SECONDS_MAX: Final = 100 * 366 * 86400

Periods = tuple[tuple[str, int], ...]
"""(pattern of streams, seconds); the first that fits counts."""

Mark = tuple[int, int, int]


def read_retention(url: Url) -> Periods:
    """The periods that an address names. Raises `ConfigError`."""
    found = []
    for one in option_names(url, "retention"):
        stream, _, period = one.rpartition(":")
        number, unit = period[:-1], _UNITS.get(period[-1:])
        seconds = int(number) * unit if number.isdecimal() and len(number) < 10 and unit else 0
        if not stream or not 0 < seconds <= _SECONDS_MAX:
            hint = "write retention=STREAM:PERIOD,…, such as typing:30m,presence:1d"
            raise ConfigError("retention", f"{one!r} in {url}", hint=hint)
        found.append((stream, seconds))
    return tuple(found)


class Expiry:
    """Removes what was kept long enough. Blocking: in the thread of `intake`, and not beside it.

    `clock`: seconds since 1970.
    """

    def __init__(
        self, log: Log, intake: Intake, periods: Periods, clock: Callable[[], float]
    ) -> None:
        self._log = log
        self._intake = intake
        self._periods = periods
        self._clock = clock
        self._next_at = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is time to look again."""
        return bool(self._periods) and self._clock() >= self._next_at

    def run(self) -> int:
        """Make marks and remove rows. Returns how many were removed; all durable then."""
        now = self._clock()
        shortest = min(seconds for _, seconds in self._periods)
        self._next_at = now + min(shortest / _MARKS, _LOOK_MAX_SECONDS)
        self._log.create_space(
            RETENTION_SPACE,
            (("source", "string"), ("stream", "string"), ("instance", "string"), ("marks", "any")),
            primary=("source", "stream", "instance"),
            if_not_exists=True,
        )
        return sum(
            self._look(key, cursor, int(now * 1000))
            for key, cursor in self._intake.cursors().items()
        )

    def _look(self, key: tuple[str, str], cursor: Cursor, now_ms: int) -> int:
        """One writer's rows of one stream."""
        found = (seconds for one, seconds in self._periods if fnmatchcase(key[0], one))
        period_ms = 1000 * next(found, 0)
        if not period_ms:
            return 0
        where = (self._intake.source, *key)
        row = self._log.get(RETENTION_SPACE, where)
        known: list[Mark] = [] if row is None else [(one[0], one[1], one[2]) for one in row[3]]
        marks, here = list(known), (cursor.epoch, cursor.last)
        if not marks or (marks[-1][1:] != here and now_ms - marks[-1][0] >= period_ms // _MARKS):
            marks.append((now_ms, *here))
        old = [mark for mark in marks if mark[0] <= now_ms - period_ms]
        removed = self._remove(key, old[-1]) if old else 0
        marks = marks[max(len(old) - 1, 0) :]
        if marks != known:
            packed = pack([*where, [list(mark) for mark in marks]])
            self._execute([Request(RowType.REPLACE, self._id(RETENTION_SPACE), tuple=packed)])
        return removed

    def _remove(self, key: tuple[str, str], mark: Mark) -> int:
        """Remove the rows up to a mark, those of earlier epochs too, and contents."""
        stream, instance = key
        _, epoch, token = mark
        space = self._id(self._intake.space_name(stream))
        beside = self._intake.contents_name(stream)
        contents = None if beside is None else self._log.schema.get(beside)
        removed = 0
        for one in range(1, epoch + 1):
            label, upto = instance_label(instance, one), token if one == epoch else None
            while True:
                first = self._log.select(space, [label], limit=1)  # most often there is nothing
                if not first or (upto is not None and first[0][1] > upto):
                    break
                rows = self._log.select(space, [label], limit=SYNAPSE_PAGE_ROWS)
                old = [row for row in rows if upto is None or row[1] <= upto]
                keys = [(space, list(row[:3])) for row in old]
                if contents is not None:
                    keys += [(contents.id, key) for key in self._beside(contents.id, stream, old)]
                self._execute([Request(RowType.DELETE, at, key=pack(key)) for at, key in keys])
                removed += len(old)
        return removed

    def _beside(self, space: int, stream: str, rows: Sequence[Any]) -> Iterator[list[str]]:
        """The keys of what rows name; of account data, which later rows may have brought anew, what
        came with one of these."""
        for row in rows:
            named = named_in(stream, pack(row[3]))
            if named is None:
                continue
            held = None if isinstance(named, NamedEvent) else self._log.get(space, named.key)
            if isinstance(named, NamedEvent) or (held is not None and held[3] == row[1]):
                yield list(named.key)

    def _id(self, space: str) -> int:
        return self._log.schema.space(space).id

    def _execute(self, requests: Sequence[Request]) -> None:
        """In one transaction."""
        with self._log.transaction() as change:
            for request in requests:
                change.execute(request)
