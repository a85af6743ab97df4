"""A client's side of one change stream: pushed frames in, whole transactions out. No I/O.

=================  =================================================================================
given              when
=================  =================================================================================
SnapshotBegins     what was held of the stream's buckets is to be forgotten once the snapshot ends;
                   may come again, which makes void what came since the last one
Rows               one transaction, or one document of a snapshot; `position`: where the log stands
                   after it, None in a snapshot
SnapshotEnds       what came since SnapshotBegins is what there is at `position`
CaughtUp           nothing was left at that moment
Alive              a heartbeat; rows that are no one's here moved the position
Ended              the server closed the stream
=================  =================================================================================

Several documents of one transaction may be of one row: the messages of a topic's bundle. A
transaction is given when its last row has come: of one that breaks off nothing. `size_bytes` of
what was given is the credit to be given back once it was worked on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import TRANSACTION_BYTES
from logweir.replication.bucket.item import Item
from logweir.replication.greenstack.serve.commands import item_of
from logweir.replication.greenstack.wire.codec import Flag, FlexKey, Frame, Opcode, encode_frame
from logweir.replication.greenstack.wire.messages import (
    Mark,
    MarkKind,
    Operation,
    StreamRow,
    decode_bucket,
    decode_close,
    decode_mutation,
    decode_remove,
)
from logweir.wal.vclock import VClock

_MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Rows:
    """See the module's text."""

    changes: tuple[StreamRow, ...]
    position: VClock | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Reached:
    """Where the log stands there."""

    position: VClock


class SnapshotBegins(_Reached):
    """See the module's text."""


class SnapshotEnds(_Reached):
    """See the module's text."""


class CaughtUp(_Reached):
    """See the module's text."""


class Alive(_Reached):
    """See the module's text."""


@dataclass(frozen=True, slots=True)
class Ended:
    """See the module's text."""

    status: int
    reason: str


Step: TypeAlias = SnapshotBegins | Rows | SnapshotEnds | CaughtUp | Alive | Ended


class Incoming:
    """One stream. `position`: the last that is complete."""

    def __init__(self, start: VClock) -> None:
        self.position = start
        self.is_snapshot = False
        self._open: list[StreamRow] = []
        self._open_bytes = 0
        self._reached = start

    def take(self, frame: Frame) -> Step | None:
        """What a pushed frame completes; None: nothing yet. Raises `DecodeError`."""
        match frame.opcode:
            case Opcode.STREAM_MARK:
                return self._mark(Mark.decode(frame.payload))
            case Opcode.STREAM_CLOSE:
                return Ended(*decode_close(frame.payload))
            case Opcode.MUTATION | Opcode.REMOVE | Opcode.TRUNCATE:
                return self._row(frame)
        raise DecodeError(f"opcode {frame.opcode:#06x} does not belong into a stream")

    def _mark(self, mark: Mark) -> Step | None:
        if self._open:
            raise DecodeError("a mark inside a transaction")
        match mark.kind:
            case MarkKind.SNAPSHOT_BEGINS:
                self.is_snapshot = True
                return SnapshotBegins(mark.position)
            case MarkKind.SNAPSHOT_ENDS:
                if not self.is_snapshot:
                    raise DecodeError("a snapshot ends that has not begun")
                self.is_snapshot = False
                self.position = self._reached = mark.position
                return SnapshotEnds(mark.position)
        if not self.is_snapshot:
            if not mark.position.covers(self.position):
                raise DecodeError(f"position {mark.position} behind {self.position}")
            self.position = self._reached = mark.position
        if mark.kind == MarkKind.CAUGHT_UP:
            return CaughtUp(mark.position)
        return Alive(self.position) if mark.kind == MarkKind.HEARTBEAT else None

    def _row(self, frame: Frame) -> Step | None:
        change = _change(frame)
        if self.is_snapshot:
            return Rows((change,), None, len(encode_frame(frame)))
        last = self._open[-1] if self._open else None
        is_same = last is not None and (last.origin, last.lsn) == (change.origin, change.lsn)
        is_next = is_same or change.lsn > self._reached.lsn(change.origin)
        if not 0 < change.origin < 32 or not is_next:
            raise DecodeError(
                f"row {change.lsn} of origin {change.origin} does not come after {self._reached}"
            )
        self._reached = self._reached.with_lsn(change.origin, change.lsn)
        self._open.append(change)
        self._open_bytes += len(encode_frame(frame))
        if self._open_bytes > 2 * TRANSACTION_BYTES:
            raise LimitExceeded("TRANSACTION_BYTES", TRANSACTION_BYTES, self._open_bytes)
        if frame.flags & Flag.MORE:
            return None
        rows = Rows(tuple(self._open), self._reached, self._open_bytes)
        self._open, self._open_bytes = [], 0
        self.position = self._reached
        return rows


def _change(frame: Frame) -> StreamRow:
    if frame.wrong_key() is not None:
        raise DecodeError("a flex key with a value of the wrong length")
    bucket = frame.flex.get(FlexKey.BUCKET, b"").decode("utf-8", "replace")
    vbucket = frame.number(FlexKey.VBUCKET) or 0
    item: Item | None = None
    if frame.opcode == Opcode.MUTATION:
        operation, document = decode_mutation(frame.payload)
        if operation != Operation.SET:
            raise DecodeError(f"operation {operation} in a stream")
        item = item_of(document, vbucket)
    elif frame.opcode == Opcode.REMOVE:
        key, cas = decode_remove(frame.payload)
        item = Item(key, vbucket, cas=cas)
    else:
        bucket = decode_bucket(frame.payload)
    return StreamRow(
        bucket,
        item,
        frame.opcode != Opcode.MUTATION,
        frame.number(FlexKey.LSN) or 0,
        frame.number(FlexKey.ORIGIN) or 0,
        (frame.number(FlexKey.TIME) or 0) / _MICROSECONDS,
    )
