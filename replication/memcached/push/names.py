"""Named streams: where each stands, kept while its consumer is away and while we are.

Positions stand in the space `logweir_tap_stream`, which stays on this instance: bucket, name,
position (map of replica id to lsn), registered, Unix time of the last word, vbuckets (array;
absent for all; a stream that asks for others later begins anew). The logs after a
position are kept for it. The name of a consumer that is away is forgotten after
`limits.TAP_KEEPALIVE_SECONDS`, one that has registered when it deregisters; above
`limits.TAP_STREAMS` names the one that is away longest goes first.

Only a stream with acknowledgements keeps its position: without them nobody knows what arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from logweir.limits import TAP_KEEPALIVE_SECONDS, TAP_STREAMS
from logweir.replication.logs import get_logger
from logweir.replication.stream.retention import Retention
from logweir.store.engine.request import Request
from logweir.store.log import Log
from logweir.wal.mp import pack
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

STREAMS_SPACE: Final = "logweir_tap_stream"
LABEL: Final = "tap:"
"""So begins the name of whatever logs are kept for."""

_FORMAT: Final = (
    ("bucket", "string"),
    ("name", "varbinary"),
    ("position", "map"),
    ("registered", "boolean"),
    ("time", "double"),
)  # and the vbuckets
_SAVE_SECONDS: Final = 1.0
_log = get_logger("logweir.replication.memcached")


@dataclass(slots=True, eq=False)
class NamedStream:
    """One name. `position`: None: it has acknowledged nothing; `owner`: who uses it now;
    `backfill`: the date with which it was last asked for; `opaque`: the last one sent; `vbuckets`:
    those that its position is about, None for all."""

    bucket: str
    name: bytes
    position: VClock | None = None
    is_registered: bool = False
    seen_at: float = 0.0
    saved_at: float = float("-inf")
    saved: VClock | None = None
    opaque: int = 0
    backfill: int | None = None
    vbuckets: frozenset[int] | None = None
    owner: object = None

    def covers(self, vbuckets: frozenset[int] | None) -> bool:
        """Whether its position is one of all these vbuckets, None for all."""
        return self.vbuckets is None or (vbuckets is not None and vbuckets <= self.vbuckets)

    @property
    def label(self) -> str:
        """The name under which its logs are kept."""
        return f"{LABEL}{self.bucket}:{self.name.hex()}"

    def status(self) -> dict[str, Any]:
        """What is told of it while its consumer is away, as `Streaming.status` tells of others."""
        return {
            "of": self.bucket,
            "name": self.name.decode("utf-8", "backslashreplace"),
            "peer": "",
            "registered": self.is_registered,
            "sent_packets": 0,
            "unacknowledged": 0,
            "acknowledged": self.position and dict(self.position),
        }


def kept_names(log: Log) -> list[NamedStream]:
    """The names whose positions a store keeps."""
    if log.schema.get(STREAMS_SPACE) is None:
        return []
    found = []
    for bucket, name, position, is_registered, seen_at, *rest in log.select(STREAMS_SPACE):
        known = NamedStream(bucket, name, VClock(position), is_registered, seen_at)
        known.vbuckets = frozenset(rest[0]) if rest else None
        found.append(known)
    return found


def drop_kept(log: Log, stream: NamedStream) -> None:
    """Forget a name of a store that nobody serves, and the logs that are kept for it."""
    log.delete(STREAMS_SPACE, (stream.bucket, stream.name))
    log.release(stream.label)


class NamedStreams:
    """All names of one store. `retention`: keeps the logs after their positions; `clock`: Unix
    seconds."""

    def __init__(self, log: Log, retention: Retention, clock: Callable[[], float]) -> None:
        self._log = log
        self._retention = retention
        self._clock = clock
        log.create_space(
            STREAMS_SPACE, _FORMAT, primary=("bucket", "name"), local=True, if_not_exists=True
        )
        self._streams = {(one.bucket, one.name): one for one in kept_names(log)}
        labels = {stream.label for stream in self._streams.values()}
        for label in log.inner.pinned_bytes():
            if label.startswith(LABEL) and label not in labels:  # of a process that was killed
                log.release(label)

    def __len__(self) -> int:
        return len(self._streams)

    def find(self, bucket: str, name: bytes) -> NamedStream | None:
        """A name that is known."""
        self.sweep()
        return self._streams.get((bucket, name))

    def claim(self, bucket: str, name: bytes) -> NamedStream:
        """The stream of that name, made if there is none."""
        found = self.find(bucket, name)
        if found is None:
            found = self._streams[bucket, name] = NamedStream(bucket, name)
        return found

    def away(self) -> list[NamedStream]:
        """Those that nobody uses now, whose positions are kept."""
        return [
            stream
            for stream in self._streams.values()
            if stream.owner is None and stream.position is not None
        ]

    def save(self, stream: NamedStream, *, at_once: bool = False) -> None:
        """Keep where it stands; at most once in a second unless `at_once`."""
        now = self._clock()
        stream.seen_at = now
        position = stream.position
        if position is None or self._streams.get((stream.bucket, stream.name)) is not stream:
            return
        moved = stream.saved is None or position.without_local() != stream.saved.without_local()
        if not moved and not at_once:  # our own rows about positions move it, too
            return
        if not at_once and now - stream.saved_at < _SAVE_SECONDS:
            return
        stream.saved, stream.saved_at = position, now
        self._retention.keep(stream.label, position)
        place = (stream.bucket, stream.name, dict(position), stream.is_registered, now)
        row = place if stream.vbuckets is None else (*place, sorted(stream.vbuckets))
        self._change(Request(RowType.REPLACE, self._space_id, tuple=pack(row)))

    def forget(self, bucket: str, name: bytes) -> None:
        """There is no such stream any more; nothing if there was none."""
        stream = self._streams.pop((bucket, name), None)
        if stream is not None and stream.position is not None:
            self._retention.forget(stream.label)
            self._change(Request(RowType.DELETE, self._space_id, key=pack((bucket, name))))

    def sweep(self) -> None:
        """Forget the names that were away too long."""
        now = self._clock()
        away = [stream for stream in self._streams.values() if stream.owner is None]
        away.sort(key=lambda stream: stream.seen_at)
        surplus = len(self._streams) - TAP_STREAMS
        for i, stream in enumerate(away):
            old = now - stream.seen_at > TAP_KEEPALIVE_SECONDS and not stream.is_registered
            if old or i < surplus:
                self.forget(stream.bucket, stream.name)

    @property
    def _space_id(self) -> int:
        return self._log.schema.space(STREAMS_SPACE).id

    def _change(self, request: Request) -> None:
        self._log.inner.submit(request).add_done_callback(_report)


def _report(change: Future[bytes | None]) -> None:
    error = change.exception()
    if error is not None:
        _log.warning("tap.position_not_kept", error=str(error))
