"""A server's side of one change stream: rows in, frames out, credit in. No I/O, no clock.

Frames of a stream carry its name (flex key DCP-ID) and the lane in which it was opened. A row is a
quiet MUTATION with operation Set and the whole document (without its value if only keys were asked
for), or a quiet REMOVE or TRUNCATE, with these
keys: vbucket, bucket, and, but in a snapshot, LSN, origin id and time of the row. `more` is set on
all rows of a transaction but the last.

The bytes of pushed rows, whole frames with their lengths, are taken from the window and given back
by the client's credit; `has_room` is false while the window is used up, and only between
transactions is it looked at. Marks are free. Without a word for the heartbeat time a mark with the
position is sent; a client that owes credit for `limits.GREENSTACK_CREDIT_SECONDS` is one that is
too busy.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from logweir.limits import (
    GREENSTACK_CREDIT_SECONDS,
    GREENSTACK_WINDOW_MAX_BYTES,
    GREENSTACK_WINDOW_MIN_BYTES,
)
from logweir.replication.bucket.item import VBUCKETS
from logweir.replication.greenstack.push.pushing import (
    Choice,
    Names,
    Pushed,
    Pushes,
    entry,
    lsns_of,
)
from logweir.replication.greenstack.serve.commands import document_of
from logweir.replication.greenstack.wire.codec import Flag, FlexKey, Frame, Opcode
from logweir.replication.greenstack.wire.messages import (
    Mark,
    MarkKind,
    StreamOpen,
    StreamRow,
    encode_bucket,
    encode_close,
    encode_remove,
)
from logweir.wal.reader import Taker
from logweir.wal.vclock import VClock

_MICROSECONDS: Final = 1_000_000
_TIME_END: Final = 9e12

STEP_BYTES: Final = 256 * 1024
"""About so much is made at a time, so that the first of it is on its way meanwhile."""


class Pusher(Protocol):
    """Where the frames of a stream go, as requests of ours."""

    def push(self, frame: Frame, stream: bytes) -> int:
        """Send a frame, whose opaque is set there, of the stream of that name. Returns its
        bytes."""

    def next_opaque(self, stream: bytes) -> int:
        """The opaque with which frames of a stream begin that are given to `push_all` next."""

    def push_all(self, data: bytes, count: int) -> None:
        """Send `count` frames whose opaques follow one another."""


class Outgoing:
    """One stream."""

    def __init__(
        self,
        name: bytes,
        lane: bytes | None,
        asked: StreamOpen,
        pusher: Pusher,
        now: float,
        *,
        credit_seconds: float = GREENSTACK_CREDIT_SECONDS,
    ) -> None:
        self.name = name
        self.position = asked.start
        self.choice = Choice(asked.prefix, asked.vbuckets, keys_only=asked.keys_only)
        self.window_bytes = min(
            max(asked.window_bytes, GREENSTACK_WINDOW_MIN_BYTES), GREENSTACK_WINDOW_MAX_BYTES
        )
        self.owed_bytes = 0
        self.rows = 0
        self._pusher = pusher
        self._is_inside = False
        self._heartbeat_seconds = float(asked.heartbeat_seconds)
        self._credit_seconds = credit_seconds
        self._last_sent = now
        self._last_credit = now
        self._flex: dict[int, bytes] = {FlexKey.DCP_ID: name}
        self._front = entry(FlexKey.DCP_ID, name)
        if lane is not None:
            self._flex[FlexKey.LANE] = lane
            self._front = entry(FlexKey.LANE, lane) + self._front

    @property
    def has_room(self) -> bool:
        """Whether another transaction may be pushed."""
        return self.owed_bytes < self.window_bytes

    def row(self, row: StreamRow, now: float, *, has_more: bool) -> None:
        """Push one row. `has_more`: its transaction goes on. Raises `DecodeError` for an item that
        is no document."""
        flex = {**self._flex, FlexKey.BUCKET: row.bucket.encode()}
        if row.lsn:
            flex[FlexKey.LSN] = row.lsn.to_bytes(8, "big")
            flex[FlexKey.ORIGIN] = row.origin.to_bytes(4, "big")
            # 0 for what is no date: another program may have written anything.
            time_us = int(row.timestamp * _MICROSECONDS) if 0 <= row.timestamp < _TIME_END else 0
            flex[FlexKey.TIME] = time_us.to_bytes(8, "big")
        item = row.item
        if item is None:
            opcode, payload = Opcode.TRUNCATE, encode_bucket(row.bucket)
        else:
            if row.is_removal:
                opcode, payload = Opcode.REMOVE, encode_remove(item.key, item.cas)
            else:
                document = document_of(item)
                if self.choice.keys_only:
                    document = replace(document, value=b"")
                opcode, payload = Opcode.MUTATION, document.encode()
            # Nobody was told of an item that has none.
            vbucket = item.vbucket if item.vbucket < VBUCKETS else 0
            flex[FlexKey.VBUCKET] = vbucket.to_bytes(2, "big")
        flags = Flag.QUIET | Flag.MORE if has_more else Flag.QUIET
        frame = Frame(opcode, payload=payload, flags=flags, flex=flex)
        self._is_inside = has_more
        self._count(self._pusher.push(frame, self.name), 1, now)

    def put_rows(self, data: bytes, at: int, lsns: array[int], names: Names, now: float) -> Pushed:
        """Push rows of a block from byte `at` on, whole transactions as long as there is room and,
        about, up to `STEP_BYTES`. See `pushing.Pushes`."""
        return self._put(self._pushes(lsns, names, STEP_BYTES).take_from(data, at), now)

    def put_packed(self, pack: Callable[[Taker], bool], names: Names, now: float) -> bool:
        """Push what `pack` adds, whole blocks for which there is room. Returns what it returns;
        False at once if there is little room."""
        if self.window_bytes - self.owed_bytes < STEP_BYTES:
            return False
        made = self._pushes(lsns_of(()), names, self.window_bytes)
        is_packed = pack(made)
        self._put(made.take(), now)
        return is_packed

    def _pushes(self, lsns: array[int], names: Names, most_bytes: int) -> Pushes:
        limit = min(self.window_bytes - self.owed_bytes, most_bytes)
        opaque = self._pusher.next_opaque(self.name)
        return Pushes(lsns, names, self.choice, self._front, opaque, limit)

    def put_documents(
        self, tuples: list[bytes], first: int, name: str, wanted: bytes, clock: float, now: float
    ) -> Pushed:
        """Push tuples as documents of a snapshot, as `put_rows`. `clock`: Unix seconds."""
        made = self._pushes(lsns_of(()), Names({0: name}), STEP_BYTES)
        return self._put(made.take_documents(tuples, first, wanted, clock), now)

    def _put(self, pushed: Pushed, now: float) -> Pushed:
        if pushed.count:
            self._pusher.push_all(pushed.data, pushed.count)
            self._count(len(pushed.data), pushed.count, now)
        return pushed

    def _count(self, size_bytes: int, count: int, now: float) -> None:
        if self.owed_bytes == 0:
            self._last_credit = now
        self.owed_bytes += size_bytes
        self.rows += count
        self._last_sent = now

    def mark(self, kind: MarkKind, position: VClock, now: float, time_us: int) -> None:
        """Send a mark. `time_us`: microseconds since 1970."""
        self.position = position
        self._say(Opcode.STREAM_MARK, Mark(kind, position, time_us).encode())
        self._last_sent = now

    def close(self, status: int, reason: str) -> None:
        """Say that the stream ends."""
        self._say(Opcode.STREAM_CLOSE, encode_close(status, reason))

    def _say(self, opcode: Opcode, payload: bytes) -> None:
        frame = Frame(opcode, payload=payload, flags=Flag.QUIET, flex=self._flex)
        self._pusher.push(frame, self.name)

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
        if self._heartbeat_seconds and not self._is_inside:
            deadlines.append(self._last_sent + self._heartbeat_seconds)
        if not self.has_room:
            deadlines.append(self._last_credit + self._credit_seconds)
        return min(deadlines, default=None)

    def heartbeat(self, now: float, time_us: int) -> None:
        """Send a sign of life if one is due; a transaction once begun is finished first."""
        is_due = now >= self._last_sent + self._heartbeat_seconds
        if self._heartbeat_seconds and is_due and not self._is_inside:
            self.mark(MarkKind.HEARTBEAT, self.position, now, time_us)
