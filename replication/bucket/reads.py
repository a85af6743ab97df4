"""Requests for items that are answered from their bytes, as of what is published."""

from __future__ import annotations

from collections.abc import Callable

from logweir.limits import TAP_ANSWERS_BYTES
from logweir.replication.bucket.joint import RUN_MAX
from logweir.replication.bucket.store import NO_STATE, Bucket, ViewItems
from logweir.store.engine.reader import PlainRequests, Published
from logweir.store.log import Log


class ItemReads:
    """Those of one listener. `reader`: answers them, see `lookkernel.pyx`; `clock`: Unix
    seconds."""

    def __init__(self, log: Log, reader: PlainRequests, clock: Callable[[], float]) -> None:
        self.reader = reader
        self._log = log
        self._clock = clock
        self._ask = log.inner.committer.reader.ask

    def read(self, bucket: Bucket, data: bytes) -> int:
        """Answer the requests with which `data` begins, as far as `reader` goes, all as of one
        moment. Returns where others begin."""
        reader, now = self.reader, int(self._clock())
        while True:
            states = bucket.known_states()
            stop = self._ask(self._read, bucket.space_id, data, states, now)
            if bucket.known_states() is not states:
                continue
            if reader.wanted < 0:
                return stop
            with self._log.read_view() as view:
                state = ViewItems(bucket, view).state(reader.wanted)
            states[reader.wanted] = state or NO_STATE

    def _read(
        self, published: Published, space_id: int, data: bytes, states: bytearray, now: int
    ) -> int:
        spaces = published.spaces
        space = spaces[space_id] if space_id in spaces or published.find(space_id) else None
        return self.reader.read(data, 0, space, states, now, RUN_MAX, TAP_ANSWERS_BYTES)
