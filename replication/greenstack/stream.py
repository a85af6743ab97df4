"""A server's side of one change stream: rows in, frames out, credit in. No I/O, no clock.

Frames of a stream carry its name (flex key DCP-ID) and the lane in which it was opened. A row is a
quiet MUTATION with operation Set and the whole document, or a quiet REMOVE or TRUNCATE, with these
keys: vbucket, bucket, and, but in a snapshot, LSN, origin id and time of the row. `more` is set on
all rows of a transaction but the last.

The bytes of pushed rows, whole frames with their lengths, are taken from the window and given back
by the client's credit; `has_room` is false while the window is used up, and only between
transactions is it looked at. Marks are free. Without a word for the heartbeat time a mark with the
position is sent; a client that owes credit for `limits.GREENSTACK_CREDIT_SECONDS` is one that is
too busy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from logweir.limits import (
    GREENSTACK_CREDIT_SECONDS,
    GREENSTACK_WINDOW_MAX_BYTES,
    GREENSTACK_WINDOW_MIN_BYTES,
)
from logweir.replication.bucket import Item
from logweir.replication.greenstack.codec import Flag, FlexKey, Frame, Opcode
from logweir.replication.greenstack.commands import document_of
from logweir.replication.greenstack.messages import (
    Mark,
    MarkKind,
    StreamOpen,
    encode_bucket,
    encode_close,
    encode_remove,
)
from logweir.wal.vclock import VClock

__all__ = ["Outgoing", "PushedRow"]

_MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class PushedRow:
    """One row. `item`: as it is now, of a removal its tombstone; None: the bucket was emptied.

    `lsn`, `origin`: 0 in a snapshot; `timestamp`: Unix seconds.
    """

    bucket: str
    item: Item | None
    is_removal: bool = False
    lsn: int = 0
    origin: int = 0
    timestamp: float = 0.0


class Outgoing:
    """One stream. `push`: sends a frame as a request of ours and gives its bytes."""

    def __init__(
        self,
        name: bytes,
        lane: bytes | None,
        asked: StreamOpen,
        push: Callable[[Frame], int],
        now: float,
        *,
        credit_seconds: float = GREENSTACK_CREDIT_SECONDS,
    ) -> None:
        self.name = name
        self.position = asked.start
        self.window_bytes = min(
            max(asked.window_bytes, GREENSTACK_WINDOW_MIN_BYTES), GREENSTACK_WINDOW_MAX_BYTES
        )
        self.owed_bytes = 0
        self.rows = 0
        self._push = push
        self._heartbeat_seconds = float(asked.heartbeat_seconds)
        self._credit_seconds = credit_seconds
        self._last_sent = now
        self._last_credit = now
        self._flex: dict[int, bytes] = {FlexKey.DCP_ID: name}
        if lane is not None:
            self._flex[FlexKey.LANE] = lane

    @property
    def has_room(self) -> bool:
        """Whether another transaction may be pushed."""
        return self.owed_bytes < self.window_bytes

    def row(self, row: PushedRow, now: float, *, has_more: bool) -> None:
        """Push one row. `has_more`: its transaction goes on."""
        flex = {**self._flex, FlexKey.BUCKET: row.bucket.encode()}
        if row.lsn:
            flex[FlexKey.LSN] = row.lsn.to_bytes(8, "big")
            flex[FlexKey.ORIGIN] = row.origin.to_bytes(4, "big")
            flex[FlexKey.TIME] = int(row.timestamp * _MICROSECONDS).to_bytes(8, "big")
        item = row.item
        if item is None:
            opcode, payload = Opcode.TRUNCATE, encode_bucket(row.bucket)
        else:
            flex[FlexKey.VBUCKET] = item.vbucket.to_bytes(2, "big")
            if row.is_removal:
                opcode, payload = Opcode.REMOVE, encode_remove(item.key, item.cas)
            else:
                opcode, payload = Opcode.MUTATION, document_of(item).encode()
        flags = Flag.QUIET | Flag.MORE if has_more else Flag.QUIET
        if self.owed_bytes == 0:
            self._last_credit = now
        self.owed_bytes += self._push(Frame(opcode, payload=payload, flags=flags, flex=flex))
        self.rows += 1
        self._last_sent = now

    def mark(self, kind: MarkKind, position: VClock, now: float, time_us: int) -> None:
        """Send a mark. `time_us`: microseconds since 1970."""
        self.position = position
        payload = Mark(kind, position, time_us).encode()
        self._push(Frame(Opcode.STREAM_MARK, payload=payload, flags=Flag.QUIET, flex=self._flex))
        self._last_sent = now

    def close(self, status: int, reason: str) -> None:
        """Say that the stream ends."""
        payload = encode_close(status, reason)
        self._push(Frame(Opcode.STREAM_CLOSE, payload=payload, flags=Flag.QUIET, flex=self._flex))

    def credit(self, count_bytes: int, now: float) -> None:
        """The client has taken so many bytes."""
        if count_bytes:
            self.owed_bytes = max(self.owed_bytes - count_bytes, 0)
            self._last_credit = now

    def is_starved(self, now: float) -> bool:
        """Whether the client owes credit for too long."""
        return not self.has_room and now >= self._last_credit + self._credit_seconds

    def next_deadline(self) -> float | None:
        """When `deadline_passed` wants to be called; None: never."""
        deadlines = []
        if self._heartbeat_seconds:
            deadlines.append(self._last_sent + self._heartbeat_seconds)
        if not self.has_room:
            deadlines.append(self._last_credit + self._credit_seconds)
        return min(deadlines, default=None)

    def heartbeat(self, now: float, time_us: int) -> None:
        """Send a sign of life where one is due."""
        if self._heartbeat_seconds and now >= self._last_sent + self._heartbeat_seconds:
            self.mark(MarkKind.HEARTBEAT, self.position, now, time_us)
