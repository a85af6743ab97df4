# cython: annotation_typing=False
"""What is known of a bucket, and requests for its items that are answered from their bytes, as of
what is published.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `reads.pxd`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from logweir.limits import TAP_ANSWERS_BYTES
from logweir.replication.bucket.item import VBUCKETS, CasClock
from logweir.replication.bucket.requests import RUN_MAX
from logweir.store.log import Log

if TYPE_CHECKING:
    from logweir.store.engine.reader import PlainRequests, Published


class Bucket:
    """One bucket that is there. `space_id`: of its space; `states_id`: of the vbucket states."""

    def __init__(self, name: str, space_id: int, states_id: int, cas: CasClock, log: Log) -> None:
        self.name = name
        self.space_id = space_id
        self.states_id = states_id
        self.cas = cas
        self._changes = log.inner.committer.changes
        self._known_at = -1
        self._known = bytearray()

    def known_states(self) -> bytearray:
        """The states of its vbuckets as of the last commit: one byte for each, 0: not asked yet,
        `NO_STATE`: there is no such vbucket. Who asks then adds to them what he reads. Once a state
        has changed it is another object: what was read while it stayed the same was of one moment,
        as to states."""
        changes = self._changes.get(self.states_id, 0)
        if changes != self._known_at:
            self._known, self._known_at = bytearray(VBUCKETS), changes
        return self._known


class ItemReads:
    """Those of one listener. `reader`: answers them, see `lookkernel.pyx`; `learn`: reads the state
    of a vbucket of a bucket into those that are known; `clock`: Unix seconds."""

    def __init__(
        self,
        log: Log,
        reader: PlainRequests,
        learn: Callable[[Bucket, int, bytearray], None],
        clock: Callable[[], float],
    ) -> None:
        self.reader = reader
        self._learn = learn
        self._clock = clock
        self._ask = log.inner.committer.reader.ask

    def read(self, bucket: Bucket, data: bytes) -> int:
        """Answer the requests with which `data` begins, as far as `reader` goes, all as of one
        moment. Returns where others begin."""
        reader, now = self.reader, int(self._clock())
        while True:
            states = bucket.known_states()
            stop: int = self._ask(self._read, bucket.space_id, data, states, now)
            if bucket.known_states() is not states:
                continue
            if reader.wanted < 0:
                return stop
            self._learn(bucket, reader.wanted, states)

    def _read(
        self, published: Published, space_id: int, data: bytes, states: bytearray, now: int
    ) -> int:
        spaces = published.spaces
        space = spaces[space_id] if space_id in spaces or published.find(space_id) else None
        return self.reader.read(data, 0, space, states, now, RUN_MAX, TAP_ANSWERS_BYTES)
