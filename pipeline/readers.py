"""Readers of the format: which one the options ask for, and that of folders in batch.

Each scan begins in two new processes of Spark's, so the others' modules are imported when they are
asked for.
"""

from __future__ import annotations

import gc
import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from logweir.errors import ConfigError
from logweir.pipeline.columns import DEFAULT_COLUMNS, TOPIC_COLUMNS, check_columns, ddl, widened
from logweir.pipeline.jobs.spaces import columns_of, resolved
from logweir.pipeline.options import ORIGIN, ScanOptions, is_spooled, is_topic, parse_boolean

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from logweir.pipeline.plan import Split


def schema_of(options: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The columns that the options ask for, as DDL, and the options with what was looked up for
    it. Raises `ConfigError`."""
    if _is_counted(options):
        from logweir.pipeline.counting import COUNTS

        _counted(options)
        return ddl(tuple(COUNTS), COUNTS), options
    parsed = ScanOptions.parse(options)
    if is_topic(parsed.url):
        return TOPIC_COLUMNS, options
    found = resolved(parsed)
    return ddl(*columns_of(found)), found.to_text()


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader of a folder, a server, an upstream or a topic. Raises `ConfigError`."""
    if _is_counted(options):
        return counting_reader(options)
    parsed = ScanOptions.parse(options)
    if is_topic(parsed.url):
        from logweir.pipeline.peersources import TopicReader

        return TopicReader(parsed)
    return _reader(with_schema(parsed, schema))


def counting_reader(options: Mapping[str, str]) -> DataSourceReader:
    """The reader that counts what the options ask for. Raises `ConfigError`."""
    return _reader(_counted(options))


def _reader(options: ScanOptions) -> DataSourceReader:
    if is_spooled(options.url):
        from logweir.pipeline.spoolsources import SpoolReader

        return SpoolReader(options)
    if options.url:
        from logweir.pipeline.peersources import PeerReader

        return PeerReader(options)
    return LogweirReader(options)


def _is_counted(options: Mapping[str, str]) -> bool:
    given = {key.lower(): text for key, text in options.items()}
    return parse_boolean("counts", given.get("counts", "false"))


def _counted(options: Mapping[str, str]) -> ScanOptions:
    """The options of the scan whose rows are counted. Raises `ConfigError`."""
    given = {key: text for key, text in options.items() if key.lower() != "counts"}
    parsed = ScanOptions.parse(given)
    if parsed.space or is_topic(parsed.url) or parsed.columns != DEFAULT_COLUMNS:
        raise ConfigError(
            "counts",
            "goes with the rows of a log; not with space or columns, nor with a topic.",
            origin=ORIGIN,
            hint="leave them out; `spaces` and `types` say what is counted",
        )
    return replace(parsed, reader="python", counts=True)


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The stream of a folder, a server, an upstream or a topic. Raises `ConfigError`."""
    from logweir.pipeline.peersources import PeerStream, TopicStream
    from logweir.pipeline.spoolsources import SpoolStream
    from logweir.pipeline.streams import TailReader

    parsed = ScanOptions.parse(options)
    if is_topic(parsed.url):
        return TopicStream(parsed)
    parsed = with_schema(parsed, schema)
    if is_spooled(parsed.url):
        return SpoolStream(parsed)
    return PeerStream(parsed) if parsed.url else TailReader(parsed)


def with_schema(options: ScanOptions, schema: StructType) -> ScanOptions:
    """The options with the columns of a schema. Raises `ConfigError` for one that is not ours."""
    found = resolved(options)
    shown, types = columns_of(found)
    names = check_columns(schema.names, origin="schema", known=types)
    for one in schema.fields:
        wanted = types[one.name]
        if one.dataType.simpleString() != wanted.lower():
            raise ConfigError(
                f"column {one.name}",
                f"is {wanted}, not {one.dataType.simpleString()}",
                origin="schema",
                hint="read it as it is and cast it",
            )
    return found if names == shown else ScanOptions.parse(replace(found, columns=names).to_text())


@cache
def _settle() -> None:
    """In a worker of Spark, which has every object looked at after each task: leave out those of
    modules, which stay as long as the worker."""
    if TaskContext.get() is not None:
        gc.freeze()


@dataclass
class SplitPartition(InputPartition):
    """One task's work. `spaces`: ids of the wanted spaces; `columns`: of the reader's those that
    are wanted, the others are null; None: all."""

    split: Split
    spaces: frozenset[int]
    columns: tuple[str, ...] | None = None


@dataclass
class ToldPartition(SplitPartition):
    """The same with what a reader in Java has to know of it, which finds that in its pickle."""

    told: str = ""

    @property
    def plain(self) -> SplitPartition:
        """Without it."""
        return SplitPartition(self.split, self.spaces)

    def __reduce__(self) -> tuple[Any, ...]:
        return resumed, (pickle.dumps(self.plain), self.told)


def resumed(pickled: bytes, text: str) -> SplitPartition:
    """The partition of which `pickled` is made. `text`: what was told, or what a reader in Java
    leaves of it: the number of a `range`, of which all before byte `at` was read, and `columns`."""
    partition: SplitPartition = pickle.loads(pickled)  # noqa: S301 - Spark's own way
    left = json.loads(text)
    if "range" not in left:
        return partition
    ranges = list(partition.split.ranges[left["range"] :])
    if ranges and left["at"] > ranges[0].start:
        ranges[0] = ranges[0]._replace(start=left["at"], exact=True)
    split = replace(partition.split, ranges=tuple(ranges))
    return replace(partition, split=split, columns=tuple(left["columns"]))


class LogweirReader(DataSourceReader):
    """Reads folders of logs and snapshots as they are when the first action plans the scan."""

    def __init__(self, options: ScanOptions) -> None:
        self._options = options

    def partitions(self) -> list[SplitPartition]:
        """One partition per split."""
        from logweir.pipeline.plan import plan
        from logweir.pipeline.told import told

        planned = plan(self._options)
        spaces = planned.spaces
        if self._options.reader == "python":
            return [SplitPartition(split, spaces) for split in planned.splits]
        return [
            ToldPartition(split, spaces, told=told(split, self._options, spaces))
            for split in planned.splits
        ]

    def read(self, partition: Any) -> Iterator[Any]:
        """The Arrow batches of one partition. An empty plan arrives as a partition of None."""
        from logweir.pipeline.reading import scan

        if isinstance(partition, SplitPartition):
            _settle()
            options = self._options
            shown, types = columns_of(options)
            wanted = shown if partition.columns is None else partition.columns or shown[:1]
            if wanted != shown:
                options = replace(options, columns=wanted)
            for batch in scan(partition.split, options, partition.spaces):
                yield batch if wanted == shown else widened(batch, shown, types)
