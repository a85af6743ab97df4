"""Keeping old logs for followers, and for how long.

What a follower has acknowledged is noted at once, and made durable (`Log.retain`) by a thread every
`limits.RETENTION_SECONDS`: a restart may know an older position than the last one, never a newer.
Each time it is found out how many bytes of logs every follower keeps that no snapshot needs
(metric `logweir_retention_pinned_bytes`). With a bound, whoever keeps more than half of it is named
in a warning; whoever keeps more is *evicted*: its logs may go, the metric
`logweir_retention_evicted_total` counts it, and a connected one is told why and disconnected, so
that it copies everything anew. A follower comes back into the list when it subscribes again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from logweir.errors import LogweirError
from logweir.limits import RETENTION_SECONDS
from logweir.replication.logs import get_logger
from logweir.replication.metrics import Metrics
from logweir.store.log import Log
from logweir.wal.vclock import VClock

_log = get_logger("logweir.replication")


class Retention:
    """The followers of one log. Belongs to the event loop's thread.

    `max_bytes`: of old logs that one follower may keep, 0 without bound.
    """

    def __init__(self, log: Log, *, metrics: Metrics, max_bytes: int = 0) -> None:
        self._log = log
        self._metrics = metrics
        self._max_bytes = max_bytes
        self._evicted: Callable[[str, str], None] = lambda name, reason: None
        self._departed: Callable[[Sequence[str]], Sequence[str]] = lambda names: ()
        self._forgotten: Callable[[str], None] = lambda name: None
        self._positions: dict[str, VClock] = {}
        self._keeping: dict[str, VClock] = {}  # by `keep_now`, when it is its turn
        self._gone: set[str] = set()
        self._pinned: Mapping[str, int] = {}
        self._warned: set[str] = set()
        self._busy = asyncio.Lock()

    def attend(
        self,
        *,
        evicted: Callable[[str, str], None],
        departed: Callable[[Sequence[str]], Sequence[str]],
        forgotten: Callable[[str], None],
    ) -> None:
        """Say who looks after followers that come and go. `evicted`: called with a follower's name
        and the reason; `departed`: which of some names are no followers any more, called in a
        thread; `forgotten`: called with each of these."""
        self._evicted = evicted
        self._departed = departed
        self._forgotten = forgotten

    @property
    def pinned(self) -> Mapping[str, int]:
        """Bytes of old logs that each follower keeps, as of the last look."""
        return self._pinned

    def keep(self, name: str, position: VClock) -> None:
        """Everything after `position` stays for `name`; older logs may go soon."""
        self._positions[name] = position
        self._gone.discard(name)

    def forget(self, name: str) -> None:
        """Nothing needs to stay for `name` any more."""
        self._keeping.pop(name, None)
        self._positions.pop(name, None)
        self._gone.add(name)

    async def keep_now(self, name: str, position: VClock) -> None:
        """`keep`, durable when it returns. Who is cancelled here may `forget` the name at once."""
        self._keeping[name] = position
        await asyncio.shield(self._keep_now(name))

    async def _keep_now(self, name: str) -> None:
        async with self._busy:
            position = self._keeping.pop(name, None)
            if position is not None:  # else it was forgotten, or is kept
                self._positions.pop(name, None)
                self._gone.discard(name)
                await asyncio.to_thread(self._log.inner.retain_all, {name: position})

    async def run(self) -> None:
        """Look after it until cancelled."""
        while True:
            await asyncio.sleep(RETENTION_SECONDS)
            try:
                await self.look()
            except (LogweirError, OSError) as error:
                _log.warning("retention.failed", reason=str(error))

    async def look(self) -> None:
        """Make positions durable, measure, warn and evict, once."""
        async with self._busy:
            noted, self._positions = self._positions, {}
            unwanted, self._gone = self._gone, set()
            try:
                self._pinned, gone = await asyncio.to_thread(self._store, noted, unwanted)
            except BaseException:  # again the next time, but for what is newer
                self._gone |= unwanted - self._positions.keys()
                kept = {name: at for name, at in noted.items() if name not in self._gone}
                self._positions = {**kept, **self._positions}
                raise
            for name in gone:
                self._positions.pop(name, None)
                self._forgotten(name)
            for name in set(self._metrics.pinned_followers()) - set(self._pinned):
                self._metrics.unpinned(name)
            for name, size in self._pinned.items():
                self._metrics.pinned(name, size)
            over = [name for name, size in self._pinned.items() if 0 < self._max_bytes < size]
            for name in over:
                self._evict(name, self._pinned[name])
            if over:
                await asyncio.to_thread(self._release, over)
            self._warn()

    async def close(self) -> None:
        """Make the last positions durable."""
        with contextlib.suppress(LogweirError, OSError):
            await self.look()

    def _store(
        self, noted: Mapping[str, VClock], unwanted: Iterable[str]
    ) -> tuple[Mapping[str, int], Sequence[str]]:
        self._log.inner.retain_all(noted)
        for name in unwanted:
            self._log.release(name)
        pinned = self._log.inner.pinned_bytes()
        gone = self._departed(tuple(pinned))
        if gone:
            self._release(gone)
        return {name: size for name, size in pinned.items() if name not in gone}, gone

    def _release(self, names: Sequence[str]) -> None:
        for name in names:
            self._log.release(name)
        self._log.inner.collect()

    def _evict(self, name: str, size: int) -> None:
        reason = f"it kept {size} bytes of old logs, more than {self._max_bytes}"
        _log.warning("retention.evicted", follower=name, reason=reason)
        self._metrics.evicted(name)
        self._positions.pop(name, None)
        self._evicted(name, reason)

    def _warn(self) -> None:
        half = self._max_bytes // 2
        above = {name for name, size in self._pinned.items() if 0 < half < size <= 2 * half + 1}
        for name in sorted(above - self._warned):
            _log.warning(
                "retention.behind",
                follower=name,
                bytes=self._pinned[name],
                limit_bytes=self._max_bytes,
            )
        self._warned = above
