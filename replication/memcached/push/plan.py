"""Where a TAP stream starts: with what exists, or after a position of the log.

==============================  ====================================================================
asked                           given
==============================  ====================================================================
a name that stands somewhere    what changed since, unless BACKFILL gives another date than before,
                                or a vbucket is wanted that was not before, or CHECKPOINT is asked
                                for without an id as high as what the name has acknowledged: such a
                                consumer was restored, and has less than it had
CHECKPOINT with pairs           what changed after the ids, which are signatures of our log; of the
                                vbuckets without a pair, with an id that we never gave, or to which
                                the log does not reach back: first all there is
BACKFILL, date not below now,   only what changes from now on
or ffffffff
BACKFILL, date above 0          what changed since then, if the log reaches back so far; else all
DUMP                            what exists in active vbuckets, then the end
else                            what exists, then what changes
==============================  ====================================================================

Places in the log by what old clients know, a signature or a time, are looked for in its files from
their ends backwards, only as far as needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from logweir.replication.memcached.wire.messages import Connect, Option
from logweir.store import Log
from logweir.wal.damage import Damage
from logweir.wal.directory import LogFile, scan_directory
from logweir.wal.reader import WalReader
from logweir.wal.vclock import VClock

_FUTURE: Final = frozenset((0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF))


@dataclass(slots=True)
class Plan:
    """`start`: live from there, None: all first; `floors`: signatures per vbucket already had;
    `since`: changes older than this Unix time are left out; `missing`: vbuckets of which all comes
    first, although the others have a start."""

    start: VClock | None = None
    floors: dict[int, int] = field(default_factory=dict)
    since: float = 0.0
    missing: tuple[int, ...] = ()


def plan_resumed(log: Log, position: VClock) -> Plan:
    """Of a name that goes on at `position`, if the log reaches back so far."""
    reaches = log.applied.covers(position) and position.covers(log.oldest_position)
    return Plan(position) if reaches else Plan()


def plan_new(log: Log, connect: Connect, vbuckets: Sequence[int], now: float) -> Plan:
    """Of a stream that goes on nowhere. `vbuckets`: of the stream and here; `now`: Unix seconds."""
    if connect.checkpoints:
        return _plan_behind(log, dict(connect.checkpoints), vbuckets)
    if connect.options & Option.BACKFILL and connect.backfill:
        if connect.backfill in _FUTURE or connect.backfill >= now:
            return Plan(log.applied)
        since = _position_at_time(log, connect.backfill)
        if since is not None:
            return Plan(since, since=float(connect.backfill))
    return Plan()


def _plan_behind(log: Log, had: dict[int, int], ours: Sequence[int]) -> Plan:
    """Behind the checkpoints of some vbuckets. `had`: their ids."""
    highest = log.applied.signature
    for lowest in sorted({had[vbucket] for vbucket in ours if vbucket in had}):
        start = None if lowest > highest else _position_at_signature(log, lowest)
        if start is not None:
            floors = {
                vbucket: had[vbucket]
                for vbucket in ours
                if lowest <= had.get(vbucket, -1) <= highest
            }
            missing = tuple(vbucket for vbucket in ours if vbucket not in floors)
            return Plan(start, floors, missing=missing)
    return Plan()


def _position_at_signature(log: Log, signature: int) -> VClock | None:
    """The position with that signature, or the last one below it; None: the log does not reach back
    or has not come so far."""
    if signature == log.applied.signature:
        return log.applied
    if signature > log.applied.signature:
        return None
    for file in reversed(_files(log)):
        if file.vclock.signature <= signature:
            return _walk(log, file, signature)
    return None


def _walk(log: Log, file: LogFile, signature: int) -> VClock:
    reached = dict(file.vclock)
    with WalReader(file.path, filesystem=log.inner.filesystem) as reader:
        for block in reader.blocks():
            if isinstance(block, Damage):
                break
            for row in block.rows():
                before = reached.get(row.replica_id, 0)
                if sum(reached.values()) - before + row.lsn > signature:
                    return VClock(reached)
                reached[row.replica_id] = max(row.lsn, before)
    return VClock(reached)


def _position_at_time(log: Log, seconds: float) -> VClock | None:
    """A position before which every row is older than `seconds`, in Unix time; None as above."""
    for file in reversed(_files(log)):
        with WalReader(file.path, filesystem=log.inner.filesystem) as reader:
            first = next(reader.blocks(), None)
        if first is None or isinstance(first, Damage) or not len(first.columns):
            continue
        if first.columns.timestamp[0] <= seconds:
            return file.vclock
    return None


def _files(log: Log) -> Sequence[LogFile]:
    return scan_directory(log.path, log.inner.filesystem).xlogs
