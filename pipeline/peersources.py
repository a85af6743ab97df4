"""Spark readers of running servers and of Tank topics, in batch and as streams.

A server's rows have the columns of the format; `block_offset` and `row_in_block` are null. A batch
is one task: rows come over one connection, in the server's order. Where it ends is the server's
vclock when it was asked, which is between two transactions; so a cap in the middle is refused.

A topic's messages have columns of their own (`columns.TOPIC_COLUMNS`), one task per partition.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from logweir.errors import ConfigError, PositionUnavailable
from logweir.pipeline.options import ORIGIN, ScanOptions, parse_vclock
from logweir.pipeline.streams import check_stream_options, from_offset, of_store, to_offset
from logweir.replication.protocols import parse_url
from logweir.replication.urls import Url
from logweir.wal.vclock import VClock

if TYPE_CHECKING:
    import pyarrow as pa

_ASK_SECONDS: Final = 0.2


def peer_url(options: ScanOptions) -> Url:
    """The option `url`, of what is read by position. Raises `ConfigError`."""
    url = parse_url(options.url, origin=ORIGIN)
    if any(isinstance(space, str) for space in options.spaces):
        raise ConfigError("spaces", "of a server are given by number.", origin=ORIGIN)
    return url


# --- servers ----------------------------------------------------------------------------------


@dataclass
class PeerPartition(InputPartition):
    """The rows between two positions of a server. `replicaset`: of which they are, None: of the
    one that the server is of when it is asked."""

    start: VClock
    end: VClock
    replicaset: UUID | None = None


def read_peer(options: ScanOptions, part: PeerPartition) -> Iterator[pa.RecordBatch]:
    """The wanted rows between two positions, as batches."""
    import numpy as np

    from logweir.pipeline.arrow import Group, Place
    from logweir.pipeline.peers import rows
    from logweir.pipeline.reading import builder_of

    url = peer_url(options)
    spaces = frozenset(space for space in options.spaces if isinstance(space, int))
    builder = builder_of(replace(options, vclock_from=part.start, vclock_to=part.end), spaces)
    place = Place(str(url), str(url), 0, is_log=True, has_blocks=False)
    for columns in rows(url, part.start, part.end, part.replicaset):
        yield from builder.build(
            Group(place, columns, np.zeros(1, np.uint64), np.zeros(1, np.int64))
        )
    yield from builder.rest()


class PeerReader(DataSourceReader):
    """The rows that a server holds when the first action plans the scan."""

    def __init__(self, options: ScanOptions) -> None:
        peer_url(options)
        self._options = options

    def partitions(self) -> list[PeerPartition]:
        """One: from `vclock_from`, or the oldest row there is, to `vclock_to`, or the newest."""
        from logweir.pipeline.peers import positions

        oldest, newest = positions(peer_url(self._options))
        start = self._options.vclock_from or oldest
        end = newest.minimum(self._options.vclock_to) if self._options.vclock_to else newest
        return [] if start.covers(end) else [PeerPartition(start, end)]

    def read(self, partition: Any) -> Iterator[Any]:
        """The Arrow batches."""
        if isinstance(partition, PeerPartition):
            yield from read_peer(self._options, partition)


class PeerStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The rows of a running server, which must keep its logs as long as a batch may be repeated."""

    def __init__(self, options: ScanOptions) -> None:
        check_stream_options(options)
        peer_url(options)
        for name in ("max_rows_per_batch", "max_bytes_per_batch", "max_files_per_batch"):
            if getattr(options, name) is not None:
                raise ConfigError(
                    name,
                    "needs the log's files: a server does not say where its transactions end.",
                    origin=ORIGIN,
                    hint="follow it into a folder with `logweir follow`, and stream that",
                )
        self._options = options
        self._target: VClock | None = None
        self._known = VClock()
        self._asked = 0.0

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without checkpoint begins."""
        from logweir.pipeline.peers import positions

        if self._options.start not in ("earliest", "latest"):
            return self._offset(parse_vclock("from", self._options.start))
        oldest, newest = positions(peer_url(self._options))
        return self._offset(oldest if self._options.start == "earliest" else newest)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the server is now."""
        self._target = self._newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the server is."""
        return self._offset(self._position(start).merge(self._target or self._newest()))

    def reportLatestOffset(self) -> dict[str, Any]:
        """The same, for the query's progress."""
        return self._offset(self._target or self._newest())

    def _offset(self, vclock: VClock) -> dict[str, Any]:
        return {"replicaset": str(self._replicaset), **to_offset(vclock)}

    def _position(self, offset: dict[str, Any]) -> VClock:
        return of_store(offset, "replicaset", str(self._replicaset), self._options.url)

    @cached_property
    def _replicaset(self) -> UUID:
        """Whose positions are alike."""
        from logweir.pipeline.peers import replicaset

        return replicaset(peer_url(self._options))

    def _newest(self) -> VClock:
        """The server's vclock; asked a few times a second at most."""
        from logweir.pipeline.peers import positions

        now = time.monotonic()
        if now - self._asked > _ASK_SECONDS:
            self._known = self._known.merge(positions(peer_url(self._options))[1])
            self._asked = now
        return self._known

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[PeerPartition]:
        """One task."""
        first, last = self._position(start), from_offset(end)
        return [] if first == last else [PeerPartition(first, last, self._replicaset)]

    def read(self, partition: Any) -> Iterator[Any]:
        """The Arrow batches."""
        if isinstance(partition, PeerPartition):
            yield from read_peer(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: an anonymous follower holds nothing there."""

    def stop(self) -> None:
        """Nothing is open."""


# --- topics -----------------------------------------------------------------------------------


@dataclass
class TopicPartition(InputPartition):
    """Messages `start` … `end` - 1 of one partition."""

    partition: int
    start: int
    end: int


def read_topic(options: ScanOptions, part: TopicPartition) -> Iterator[pa.RecordBatch]:
    """The messages of one partition, as batches."""
    import pyarrow as pa

    from logweir.pipeline.peers import messages

    number = pa.decimal128(20, 0)
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("number", number),
            ("time_ms", number),
            ("key", pa.binary()),
            ("content", pa.binary()),
        ]
    )
    for found in messages(peer_url(options), part.partition, part.start, part.end):
        columns = [
            pa.array([one.topic for one in found], pa.string()),
            pa.array([one.partition for one in found], pa.int32()),
            pa.array([Decimal(one.number) for one in found], number),
            pa.array([Decimal(one.time_ms) for one in found], number),
            pa.array([one.key for one in found], pa.binary()),
            pa.array([one.content for one in found], pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


_TOPIC_OPTIONS: Final = frozenset(("url", "from", "max_rows_per_batch", "fail_on_data_loss"))


def check_topic_options(options: ScanOptions) -> None:
    """Refuse what has no meaning for messages. Raises `ConfigError`."""
    peer_url(options)
    for name in options.to_text():
        if name not in _TOPIC_OPTIONS:
            known = ", ".join(sorted(_TOPIC_OPTIONS))
            raise ConfigError(
                name, "has no meaning for a topic.", origin=ORIGIN, hint=f"options are {known}"
            )


class TopicReader(DataSourceReader):
    """The messages that a topic holds when the first action plans the scan."""

    def __init__(self, options: ScanOptions) -> None:
        check_topic_options(options)
        self._options = options

    def partitions(self) -> list[TopicPartition]:
        """One per partition of the topic."""
        from logweir.pipeline.peers import numbers

        found = numbers(peer_url(self._options))
        return [TopicPartition(one, *ends) for one, ends in found.items() if ends[0] < ends[1]]

    def read(self, partition: Any) -> Iterator[Any]:
        """The Arrow batches of one partition."""
        if isinstance(partition, TopicPartition):
            yield from read_topic(self._options, partition)


class TopicStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The messages of a topic. The offset is the number that comes next, per partition."""

    def __init__(self, options: ScanOptions) -> None:
        check_topic_options(options)
        if options.start not in ("earliest", "latest"):
            raise ConfigError("from", "of a topic is earliest or latest.", origin=ORIGIN)
        self._options = options
        self._target: dict[int, int] | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without checkpoint begins."""
        place = 0 if self._options.start == "earliest" else 1
        return _numbers({one: ends[place] for one, ends in self._ends().items()})

    def getDefaultReadLimit(self) -> ReadLimit:
        """From `max_rows_per_batch`."""
        most = self._options.max_rows_per_batch
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def _ends(self) -> dict[int, tuple[int, int]]:
        from logweir.pipeline.peers import numbers

        return numbers(peer_url(self._options))

    def _newest(self) -> dict[int, int]:
        return self._target or {one: ends[1] for one, ends in self._ends().items()}

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the topic ends now."""
        self._target = self._newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; a cap is shared by the partitions."""
        begun = _from_numbers(start)
        newest = self._newest()
        if isinstance(limit, ReadMaxRows):
            share = max(limit.max_rows // max(len(newest), 1), 1)
            newest = {one: min(end, begun.get(one, 1) + share) for one, end in newest.items()}
        return _numbers({one: max(end, begun.get(one, 1)) for one, end in newest.items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[TopicPartition]:
        """One per partition that has something new."""
        begun = _from_numbers(start)
        return [
            TopicPartition(one, begun.get(one, 1), stop)
            for one, stop in _from_numbers(end).items()
            if begun.get(one, 1) < stop
        ]

    def read(self, partition: Any) -> Iterator[Any]:
        """The Arrow batches of one partition."""
        if not isinstance(partition, TopicPartition):
            return
        try:
            yield from read_topic(self._options, partition)
        except PositionUnavailable:
            if self._options.fail_on_data_loss:
                raise
            oldest = self._ends()[partition.partition][0]
            kept = replace(partition, start=max(partition.start, oldest))
            if kept.start < kept.end:
                yield from read_topic(self._options, kept)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the checkpoint holds the place."""

    def stop(self) -> None:
        """Nothing is open."""


def _numbers(numbers: dict[int, int]) -> dict[str, Any]:
    # As text: a number has 64 bits, an integer of an offset 63.
    return {"numbers": {str(one): str(number) for one, number in sorted(numbers.items())}}


def _from_numbers(offset: dict[str, Any]) -> dict[int, int]:
    try:
        return {int(one): int(number) for one, number in offset["numbers"].items()}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            "checkpointLocation",
            f"holds the offset {offset!r:.200}, which is not of this source.",
            hint="give each query its own checkpoint",
        ) from error
