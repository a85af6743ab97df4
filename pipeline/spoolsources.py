"""Spark readers of upstreams that have no positions which can be asked for again: TAP, Greenstack,
Synapse. They are followed into a spool (`pipeline.spool`), and the rows come from its logs.

A stream's spool stays. How far the upstream was followed is in the spool, in the transactions of
the rows; how far the spool was read is in Spark's checkpoint, as a vclock. Each of these two steps
is done whole, or again from where it began, so each row comes once. An offset names the spool, too,
since the vclock of another one means nothing: ``{"spool": "3d2f…", "vclock": {"1": 4711}}``.

The spool is followed by the process that Spark asks for offsets, as long as the query runs. Tasks
only read its files.

A batch reads what the upstream has: into the spool that was given, by the process that plans; or,
without one, into a folder that goes with the task.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from logweir.errors import ConfigError, PositionUnavailable
from logweir.pipeline.options import ORIGIN, ScanOptions, shown
from logweir.pipeline.scratch import scratch
from logweir.pipeline.streams import (
    TailPartition,
    TailReader,
    caps_of,
    from_offset,
    read_part,
)
from logweir.replication.protocols import parse_url
from logweir.replication.urls import Url
from logweir.wal.failpoint import failpoint
from logweir.wal.vclock import VClock

if TYPE_CHECKING:
    from logweir.pipeline.spool import Spool

_OF_FOLDERS: Final = ("kinds", "recursive")
_OF_STREAMS: Final = (
    *("start", "fail_on_data_loss"),
    *("max_rows_per_batch", "max_bytes_per_batch", "max_files_per_batch"),
)
_OF_POSITIONS: Final = ("vclock_from", "vclock_to", "replica_id", "lsn_from", "lsn_to")


def _refuse(options: ScanOptions, names: tuple[str, ...], message: str, hint: str) -> None:
    defaults = ScanOptions()
    for name in names:
        if getattr(options, name) != getattr(defaults, name):
            key = "from" if name == "start" else name
            raise ConfigError(key, message, origin=ORIGIN, hint=hint)


def upstream_url(options: ScanOptions) -> Url:
    """The option `url`. Raises `ConfigError` for what a query that is repeated must not do."""
    url = parse_url(options.url, origin=ORIGIN)
    if url.flag("takeover"):
        raise ConfigError(
            "url",
            "takeover=1 takes vbuckets away from the server, which a query only reads.",
            origin=ORIGIN,
            hint="`logweir follow` does that, into a folder that can be read by its path",
        )
    return url


def check_batch_options(options: ScanOptions) -> Url:
    """Refuse what has no meaning in a batch. Returns the address. Raises `ConfigError`."""
    url = upstream_url(options)
    _refuse(options, _OF_FOLDERS, "is for folders: of an upstream the logs are read.", "")
    _refuse(options, _OF_STREAMS, "is for streams.", "a batch ends at what the upstream has now")
    if options.spool:
        return url
    _refuse(
        options,
        _OF_POSITIONS,
        "names positions of a folder that goes with the task.",
        "give a spool, whose positions stay",
    )
    if url.scheme.startswith("synapse"):
        start = url.option("start") or "all"
        if start != "all":
            raise ConfigError(
                "url",
                f"start={start} begins with what comes, so this batch would have no row.",
                origin=ORIGIN,
                hint="write start=all, or give a spool, in which the next batch goes on",
            )
        if not url.option("start"):
            url = replace(url, options=(*url.options, ("start", start)))
    return url


def _as_folder(options: ScanOptions, folder: str) -> ScanOptions:
    """The options of a scan of the logs in a spool."""
    return replace(options, paths=(folder,), url="", spool="", kinds=("xlog",))


# --- batch ----------------------------------------------------------------------------------------


class UpstreamPartition(InputPartition):
    """All that the upstream has, followed by the task itself."""

    def __init__(self) -> None:
        super().__init__("upstream")


class SpoolReader(DataSourceReader):
    """The rows that an upstream has when the first action plans the scan, or, without a spool, when
    the task runs."""

    def __init__(self, options: ScanOptions) -> None:
        self._url = check_batch_options(options)
        self._options = options

    def partitions(self) -> list[TailPartition] | list[UpstreamPartition]:
        """One per split of the spool's logs; without a spool a single one."""
        from logweir.pipeline.spool import taken

        folder = self._options.spool
        if not folder:
            return [UpstreamPartition()]
        with taken(self._url, folder) as spool:
            return self._parts(folder, spool.vclock)

    def read(self, partition: Any) -> Iterator[Any]:
        """The Arrow batches of one partition."""
        if isinstance(partition, TailPartition):
            yield from read_part(_as_folder(self._options, self._options.spool), partition)
        elif isinstance(partition, UpstreamPartition):
            yield from self._read_upstream()

    def _parts(self, folder: str, end: VClock) -> list[TailPartition]:
        from logweir.pipeline.plan import plan

        wanted = self._options.vclock_to
        end = end if wanted is None else end.minimum(wanted)
        start = self._options.vclock_from or VClock()
        planned = plan(replace(_as_folder(self._options, folder), vclock_to=end))
        return [TailPartition(split, start, end, planned.spaces) for split in planned.splits]

    def _read_upstream(self) -> Iterator[Any]:
        from logweir.pipeline.spool import taken

        with scratch(_task_folder()) as made:
            folder = str(made)
            with taken(self._url, folder, is_temporary=True) as spool:
                parts = self._parts(folder, spool.vclock)
            for part in parts:
                yield from read_part(_as_folder(self._options, folder), part)


def _task_folder() -> str | None:
    """A folder that Spark removes with the application, for what a task that is killed leaves."""
    from pyspark import SparkFiles

    folder = SparkFiles._root_directory
    return folder if folder is not None and os.path.isdir(folder) else None


# --- streams --------------------------------------------------------------------------------------


class SpoolStream(TailReader):
    """The rows of an upstream, exactly once, from a spool that is followed meanwhile."""

    named = "spool"

    def __init__(self, options: ScanOptions) -> None:
        self._url = upstream_url(options)
        if not options.spool:
            raise ConfigError(
                "spool",
                f"is needed: a batch that is repeated must have the same rows, and {options.url} "
                "gives them once.",
                origin=ORIGIN,
                hint="name a folder that stays and that driver and workers see, or a URL",
            )
        super().__init__(replace(_as_folder(options, options.spool), kinds=options.kinds))
        self._folder = options.spool
        self._spool: Spool | None = None
        self._ends = False

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_spool": None}

    @property
    def spool(self) -> Spool:
        """The spool, followed from when it is first asked for; raises what ended that."""
        if self._spool is None:
            from logweir.pipeline.spool import Spool

            self._spool = Spool(self._url, self._folder, once=self._ends)
            self._spool.wait()
        self._spool.check()
        return self._spool

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without checkpoint begins; `latest` is behind what the upstream has now."""
        if self._options.start == "latest" and not self._ends:
            from logweir.pipeline.spool import taken

            self.stop()
            with taken(self._url, self._folder) as spool:
                return self._offset(spool.vclock)
        if self._options.start == "latest":
            return self._offset(self.spool.vclock)
        self.spool  # noqa: B018 - the folder is there then
        return super().initialOffset()

    def prepareForTriggerAvailableNow(self) -> None:
        """Take what the upstream has now, and no more."""
        self.stop()
        self._ends = True
        self._target = self.spool.vclock

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends: rows that are on disk."""
        spool, begun = self.spool, self._position(start)
        reached = self._target or spool.vclock
        if not spool.vclock.covers(begun):
            raise PositionUnavailable(
                begun,
                VClock(),
                spool.vclock,
                hint=f"{shown(self._folder)} has lost rows that the checkpoint says were read: "
                "begin with a new checkpoint",
            )
        spool.keep(begun)
        end = self.tail.advance(begun, caps_of(limit, self._options), reached)
        failpoint("spool.before_offset")
        return self._offset(end)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Where the spool ends, for the query's progress."""
        return self._offset(self._target or self.spool.vclock)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[TailPartition]:
        """The logs between two positions. A name of `spaces` that no row has defined up to there
        has no rows there."""
        parts = super().partitions(start, end)
        return [] if self._options.spaces and not self._space_ids() else parts

    def _space_ids(self) -> frozenset[int]:
        from logweir.pipeline.plan import space_ids

        if self._spaces is not None:
            return self._spaces
        found = space_ids(self._options, awaited=True)
        if len(found) == len(set(self._options.spaces)):
            self._spaces = found
        return found

    def commit(self, end: dict[str, Any]) -> None:
        """What lies before may go with the spool's next snapshot."""
        if self._spool is not None:
            self._spool.keep(from_offset(end))

    def stop(self) -> None:
        """Stop following, and close the files."""
        super().stop()
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    def _instance(self) -> str:
        return self._spool.instance if self._spool is not None else super()._instance()
