"""Stream readers: the tail of a folder, a running server, a topic of Tank.

An offset of a log is ``{"vclock": {"1": 441274}}``: keys are strings in ascending number, since the
engine compares offsets as JSON text. That of a folder names the store, since the vclock of another
one means nothing: ``{"instance": "3d2f…", "vclock": {"1": 4711}}``; that of a server names its
replica set. `initialOffset` is asked on a fresh checkpoint only; a batch whose offsets are logged
is read again after a restart, by `partitions` alone; `commit` comes late and changes nothing.
Source: Spark 4.3.0, observed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from logweir.errors import ConfigError
from logweir.pipeline.options import ORIGIN, ScanOptions, parse_vclock, shown
from logweir.wal.vclock import VClock

if TYPE_CHECKING:
    from logweir.pipeline.plan import Split
    from logweir.pipeline.tail import Caps, Tail

_NOT_IN_STREAMS = (
    *("kinds", "recursive", "vclock_from", "vclock_to", "replica_id", "lsn_from", "lsn_to"),
    *("split_mode", "on_error", "live"),
)


def to_offset(vclock: VClock) -> dict[str, dict[str, int]]:
    """A position as Spark's offset."""
    return {"vclock": {str(replica_id): lsn for replica_id, lsn in sorted(vclock.items())}}


def from_offset(offset: Mapping[str, Any]) -> VClock:
    """The reverse. Raises `ConfigError` for an offset of another source."""
    try:
        return VClock({int(key): lsn for key, lsn in offset["vclock"].items()})
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            "checkpointLocation",
            f"holds the offset {offset!r:.200}, which is not of this source.",
            hint="give each query its own checkpoint",
        ) from error


def of_store(offset: Mapping[str, Any], named: str, store: str, where: str) -> VClock:
    """The position in an offset, which must be one of this store, as `named` says there. `where`:
    its address. Raises `ConfigError`."""
    known = offset.get(named, "")
    if known and known != store:
        found = f"is the store {store}" if store else "has no store yet, or no longer"
        raise ConfigError(
            "checkpointLocation",
            f"{shown(where)} {found}; the checkpoint was made with {known}.",
            origin=ORIGIN,
            hint="name the place of then, or begin with a new checkpoint",
        )
    return from_offset(offset)


def check_stream_options(options: ScanOptions) -> None:
    """Refuse what has no meaning in a stream. Raises `ConfigError`."""
    defaults = ScanOptions(kinds=("xlog",)) if options.space else ScanOptions()
    for name in _NOT_IN_STREAMS:
        if getattr(options, name) != getattr(defaults, name):
            raise ConfigError(
                name,
                "has no place in a stream, which reads all logs in order and stops at damage.",
                origin=ORIGIN,
                hint="option `from` says where it begins: earliest, latest or a vclock",
            )


def read_limit(options: ScanOptions) -> ReadLimit:
    """What the options say of a batch's size, as Spark wants it."""
    if options.max_rows_per_batch is not None:
        return ReadMaxRows(options.max_rows_per_batch)
    if options.max_bytes_per_batch is not None:
        return ReadMaxBytes(options.max_bytes_per_batch)
    if options.max_files_per_batch is not None:
        return ReadMaxFiles(options.max_files_per_batch)
    return ReadAllAvailable()


def caps_of(limit: ReadLimit, options: ScanOptions) -> Caps:
    """How far one batch goes. Spark hands one limit on; the options may name more."""
    from logweir.pipeline.tail import NO_CAPS, Caps

    if isinstance(limit, ReadAllAvailable):
        return NO_CAPS
    return Caps(
        rows=limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_rows_per_batch,
        size_bytes=(
            limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes_per_batch
        ),
        files=limit.max_files if isinstance(limit, ReadMaxFiles) else options.max_files_per_batch,
    )


@dataclass
class TailPartition(InputPartition):
    """One task's work: a part of the log, of which the rows between two positions count."""

    split: Split
    start: VClock
    end: VClock
    spaces: frozenset[int]


def read_part(options: ScanOptions, part: TailPartition) -> Iterator[Any]:
    """The wanted rows of one part, as Arrow batches."""
    from logweir.pipeline.reading import scan

    between = replace(options, vclock_from=part.start, vclock_to=part.end)
    yield from scan(part.split, between, part.spaces)


class TailReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The log of a live folder, exactly once, block by block."""

    named = "instance"
    """What an offset calls the store."""

    def __init__(self, options: ScanOptions) -> None:
        check_stream_options(options)
        if len(options.paths) != 1:
            raise ConfigError(
                "paths", "a stream follows one folder.", origin=ORIGIN, hint="start one for each"
            )
        self._options = options
        self._tail: Tail | None = None
        self._target: VClock | None = None
        self._spaces: frozenset[int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tail": None}

    @property
    def tail(self) -> Tail:
        """The folder, opened where it is first asked for."""
        if self._tail is None:
            from logweir.pipeline.tail import Tail

            self._tail = Tail(self._options)
        return self._tail

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without checkpoint begins."""
        start = self._options.start
        if start == "earliest":
            return self._offset(self.tail.oldest())
        if start == "latest":
            return self._offset(self.tail.newest())
        return self._offset(parse_vclock("from", start))

    def getDefaultReadLimit(self) -> ReadLimit:
        """From `max_…_per_batch`."""
        return read_limit(self._options)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the log ends now."""
        self._target = self.tail.newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends."""
        caps = caps_of(limit, self._options)
        return self._offset(self.tail.advance(self._position(start), caps, self._target))

    def reportLatestOffset(self) -> dict[str, Any]:
        """Where the log ends, for the query's progress."""
        return self._offset(self._target or self.tail.newest())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[TailPartition]:
        """The logs between two positions."""
        first, last = self._position(start), from_offset(end)
        splits = self.tail.splits(first, last) if first != last else []
        return [TailPartition(split, first, last, self._space_ids()) for split in splits]

    def _space_ids(self) -> frozenset[int]:
        if self._spaces is None:
            from logweir.pipeline.plan import space_ids

            self._spaces = space_ids(self._options)
        return self._spaces

    def read(self, partition: Any) -> Iterator[Any]:
        """The Arrow batches of one partition."""
        if isinstance(partition, TailPartition):
            yield from read_part(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the log is not ours to remove."""

    def stop(self) -> None:
        """Close the files."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _instance(self) -> str:
        return self.tail.instance

    def _offset(self, vclock: VClock) -> dict[str, Any]:
        return {self.named: self._instance(), **to_offset(vclock)}

    def _position(self, offset: Mapping[str, Any]) -> VClock:
        return of_store(offset, self.named, self._instance(), self._options.paths[0])
