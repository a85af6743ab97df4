"""FLUSH with a delay: kept until its time has come, also while we are not running.

Space `logweir_tap_flush`, which stays on this instance: bucket, Unix time. There is one for each
bucket: another FLUSH with a delay takes its place, one without a delay makes it void. When the time
has come everything in the bucket is removed, what was stored since the command included; if that
was while nobody served the bucket, it is removed before the first command. Source: memcached
1.6.18, observed; it has nothing that it could keep through a restart.
"""

from __future__ import annotations

import asyncio
from typing import Final

from logweir.replication.bucket.store import Bucket, Buckets, GroupItems, primary_of
from logweir.replication.logs import get_logger
from logweir.replication.service.shared import Shared
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.engine.request import Request
from logweir.wal.mp import pack, unpack
from logweir.wal.xrow import RowType

FLUSHES_SPACE: Final = "logweir_tap_flush"
_FORMAT: Final = (("bucket", "string"), ("time", "double"))
_LOOK_SECONDS: Final = 3600.0
"""Longer is not waited without a look at the clock, which somebody may have put forward."""
_log = get_logger("logweir.replication.memcached")


class Flushes:
    """Those of one store. Made, and `wait` called, in the event loop's thread."""

    def __init__(self, shared: Shared, buckets: Buckets) -> None:
        self._shared = shared
        self._buckets = buckets
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        shared.log.create_space(
            FLUSHES_SPACE, _FORMAT, primary=("bucket",), local=True, if_not_exists=True
        )
        for name, at in shared.log.select(FLUSHES_SPACE):
            self.wait(name, at)

    def close(self) -> None:
        """Wait no more; what is kept stays."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def keep(self, group: Group, bucket: Bucket, at: float | None) -> None:
        """Keep that a bucket is to be emptied at a Unix time; None: it was emptied just now. A
        transaction of its own. From any thread."""
        space = group.engine.schema.space(FLUSHES_SPACE)
        key = pack((bucket.name,))
        group.divide()
        if at is not None:
            row = pack((bucket.name, float(at)))
            group.execute(Request(RowType.REPLACE, space.id, tuple=row))
            self._loop.call_soon_threadsafe(self.wait, bucket.name, at)
        elif group.engine.get(space, primary_of(space), key) is not None:
            group.execute(Request(RowType.DELETE, space.id, key=key))

    def wait(self, name: str, at: float) -> None:
        """Look, when that time has come, whether the bucket is still to be emptied."""
        if self._shared.options.read_only:
            return
        known = self._timers.pop(name, None)
        if known is not None:
            known.cancel()
        delay = at - self._shared.options.clock()
        if delay <= 0:
            self._empty(name)
            return
        delay = min(delay, _LOOK_SECONDS)
        self._timers[name] = self._loop.call_later(delay, self.wait, name, at)

    def _empty(self, name: str) -> None:
        clock = self._shared.options.clock

        def apply(group: Group) -> None:
            space = group.engine.schema.space(FLUSHES_SPACE)
            row = group.engine.get(space, primary_of(space), pack((name,)))
            if row is None or unpack(row)[1] > clock():
                return  # it was made void, or put off, for which there is another timer
            bucket = self._buckets.find(name)
            if bucket is not None:
                GroupItems(bucket, group, clock()).flush()
                group.divide()
            group.execute(Request(RowType.DELETE, space.id, key=pack((name,))))

        def done(job: Job) -> None:
            if job.error is not None:
                _log.warning("memcached.flush_failed", bucket=name, error=str(job.error))

        self._shared.submit(Job(apply), done)
