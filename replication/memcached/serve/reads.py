# cython: annotation_typing=False
"""What changes nothing, answered at once: as of what is published, not in the line of changes.

Requests are answered as they come, from their bytes (`ItemReader`), where nothing is to be done
before them. Those from one on that it leaves become commands, which are run with those of others
that come in this turn of the loop.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `reads.pxd`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from logweir.errors import LogweirError
from logweir.replication.bucket import joint
from logweir.replication.bucket.reads import ItemReads
from logweir.replication.bucket.store import Bucket, Buckets, ViewItems
from logweir.replication.bucket.sweep import remove
from logweir.replication.logs import get_logger
from logweir.replication.memcached.serve.commands import Viewer
from logweir.replication.memcached.serve.runs import Commands, ItemReader
from logweir.replication.memcached.serve.statistics import Statistics
from logweir.replication.memcached.wire.codec import Packet
from logweir.replication.service.shared import Shared

_log = get_logger("logweir.replication.memcached")


class Reads:
    """Those of one listener. `statistics`: count what is answered from its bytes."""

    def __init__(self, shared: Shared, buckets: Buckets, statistics: Statistics) -> None:
        self._shared = shared
        self._buckets = buckets
        self._statistics = statistics
        self._now = shared.options.clock
        self._log = shared.log
        self._reads = ItemReads(shared.log, ItemReader(), buckets.learn, self._now)
        self._looks: dict[Bucket, list[Commands]] = {}

    def answer(self, bucket: Bucket, data: bytes, scheme: str) -> tuple[int, bytes]:
        """Answer the requests with which `data` begins. Returns where others begin, and the
        answers."""
        reader, stop = self._reads.reader, self._reads.read(bucket, data)
        if not stop:
            return 0, b""
        answers = reader.take()
        self._shared.metrics.answered(scheme, reader.count, 0)
        self._statistics.tally(data, stop, answers)
        if reader.expired:
            remove(self._shared, bucket, reader.expired)
        return stop, answers

    def look(self, run: Commands) -> None:
        """Run commands that change nothing, with those of others that come in this turn of the
        loop; and tell the conversation."""
        if not self._looks:
            asyncio.get_running_loop().call_soon(self.look_now)
        self._looks.setdefault(run.bucket, []).append(run)

    def look_now(self) -> None:
        """Run what `look` has been given."""
        looks, self._looks = self._looks, {}
        for bucket, runs in looks.items():
            error: BaseException | None = None
            expired: list[tuple[bytes, int]] = []
            try:
                self._look_all(bucket, runs, expired)
            except LogweirError as failure:
                error = failure
            joint.finish_all(runs, error)
            if expired:
                remove(self._shared, bucket, expired)

    def _look_all(
        self, bucket: Bucket, runs: Sequence[Commands], expired: list[tuple[bytes, int]]
    ) -> None:
        def ordinary(run: Commands, request: Packet) -> bytes:
            with self._log.read_view() as view:
                viewer = Viewer(ViewItems(bucket, view), stats=run.asker.stats)
                return viewer.execute(request)

        joint.look_all(runs, self._buckets, bucket, self._now(), ordinary, expired)
