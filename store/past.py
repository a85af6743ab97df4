"""What a log was: the changes of one key, the whole store at an earlier position."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path

from logweir.store.engine.request import key_bytes
from logweir.store.reading import Reads
from logweir.store.recover.earlier import earlier
from logweir.store.recover.history import Change, history
from logweir.store.recover.upkeep import position_of
from logweir.store.schema.keys import exact_key
from logweir.store.schema.refused import illegal
from logweir.store.view import View
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.mp import Value
from logweir.wal.reader import Block
from logweir.wal.vclock import VClock


@contextlib.contextmanager
def as_of(
    path: Path,
    at: VClock | datetime | float,
    *,
    end: VClock | None = None,
    now: float | None = None,
    filesystem: FileSystem = OS,
) -> Iterator[View]:
    """`Log.as_of` of a folder, which may be in use. `end`: nothing behind it is shown, None for all
    that is in the log; `now`: later times are refused, None for the clock's."""
    until = at.timestamp() if isinstance(at, datetime) else at
    clock = time.time() if now is None else now
    with earlier(path, until, end=end, now=clock, filesystem=filesystem) as (engine, vclock):
        yield View(engine, vclock)


def _moment(time: object) -> datetime | float:
    """What `Past.as_of` takes for a time. Raises `RequestError`."""
    if isinstance(time, datetime) and time.tzinfo is not None:
        return time
    if isinstance(time, int | float) and not isinstance(time, bool):
        return time
    raise illegal(
        f"{time!r} is no time",
        hint="give seconds since 1970, or a datetime with a time zone, such as "
        "datetime.now(UTC) or datetime.fromisoformat('2026-11-30T14:30:00Z')",
    )


class Past(Reads):
    """The part of `Log` that looks back."""

    path: Path

    def history(
        self,
        space: int | str,
        key: Value,
        *,
        after: Mapping[int, int] | None = None,
        limit: int | None = None,
    ) -> Iterator[Change]:
        """All changes of one key of the primary index that the logs still hold, oldest first, each
        with its position, its time and the tuple after it, None if that was removed. It ends with
        the newest change of this moment, whatever is written meanwhile.

        `after`: a vclock, only changes behind it; None for all: the first entry is then of kind
        SNAPSHOT, and tells the tuple that the oldest snapshot has. `limit`: end with the
        transaction in which so many were given. The log is read from the newest snapshot at or
        before `after`, and only rows of this key are looked into; what waits for the CONFIRM of a
        synchronous replication is not told yet. Close the iterator to let the log's files go.

        Raises `RequestError` for a space that is not there and a key that does not fit it,
        `PositionUnavailable` if no snapshot at or before `after` is left, `after` is not reached
        yet, or the primary key was made of other fields there; and what `rows` raises.
        """
        schema = self.schema
        if limit is not None and not (isinstance(limit, int) and limit >= 0):
            text = f"limit is a whole number from 0 on, not {limit!r}"
            raise illegal(text)
        found = schema.space(space)
        packed = key_bytes(key)
        exact_key(packed, schema.index(found, 0))
        return history(
            self.path,
            found.id,
            packed,
            self._blocks,
            after=None if after is None else position_of(after),
            limit=limit,
            end=self.vclock,
            filesystem=self.inner.filesystem,
        )

    def as_of(
        self,
        *,
        vclock: Mapping[int, int] | None = None,
        time: datetime | float | None = None,
    ) -> contextlib.AbstractContextManager[View]:
        """The whole store as it was at a position, or at a time, while writers go on.

        `vclock`: inside a transaction it is the state before that; `time`: an aware `datetime`, or
        seconds since the epoch, what was changed then included. One of the two. The state is made
        of the newest snapshot before that and the logs behind it, in the folder for temporary
        files (TMPDIR), which must have room for it: it takes as long as reading the logs a few
        times, and memory as opening does. It is removed when the context ends.

        Raises `PositionUnavailable`, with the range that is there, for a place before the oldest
        snapshot (or a time before the oldest row), a vclock behind `log.vclock` and a time that is
        to come; `CorruptBlock`, `ChainGap` or `RecoveryRefused` if rows on the way are missing.
        """
        end, filesystem = self.vclock, self.inner.filesystem
        if (vclock is None) == (time is None):
            hint = "log.as_of(vclock=log.vclock), log.as_of(time=1700000000.0)"
            raise illegal("as_of takes a vclock or a time", hint)
        at = _moment(time) if vclock is None else position_of(vclock)
        return as_of(self.path, at, end=end, now=self.inner.now(), filesystem=filesystem)

    @contextlib.contextmanager
    def _blocks(self, after: VClock) -> Iterator[Iterable[Block]]:
        with self.inner.cursor(after, settled=True) as cursor:
            yield cursor.blocks()
