"""What the marks of a TAP stream tell: which vbuckets are being given, and if a dump was whole.

A dump is whole if CLOSE_TAP_STREAM came (logweir, and proposed to others), or if the server
closed the connection (ep-engine) and each INITIAL_VBUCKET_STREAM had its CLOSE_BACKFILL.
memcached's default engine sends neither, only items, then the end of the connection, which a server
that dies looks like, too.
"""

from __future__ import annotations

from logweir.replication.memcached.wire.codec import Opcode
from logweir.replication.memcached.wire.messages import Opaque, TapMessage


class Marks:
    """Of one connection. `any`: whether a vbucket's beginning was marked; `open`: vbuckets that are
    being given; `items`: how many messages there were besides."""

    def __init__(self) -> None:
        self.any = False
        self.open: set[int] = set()
        self.items = 0
        self._is_closed = False

    def take(self, message: TapMessage) -> None:
        """A message came."""
        if message.opcode != Opcode.TAP_OPAQUE:
            self.items += 1
        elif message.number == Opaque.CLOSE_TAP_STREAM:
            self._is_closed = True
        elif message.number == Opaque.INITIAL_VBUCKET_STREAM:
            self.any = True
            self.open.add(message.vbucket)
        elif message.number == Opaque.CLOSE_BACKFILL:
            self.open.discard(message.vbucket)

    def is_whole(self, *, ended_whole: bool, eof_is_whole: bool) -> bool:
        """Whether a dump whose connection ended gave everything. `ended_whole`: the server closed
        it, not within a packet; `eof_is_whole`: that is enough if there were items."""
        if self.open or not ended_whole:
            return False
        return self._is_closed or self.any or (eof_is_whole and self.items > 0)
