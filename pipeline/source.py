"""The Spark format `logweir`: what Spark calls, all of it thin.

Spark makes these objects in short-lived workers and sends them on by pickle, so they hold options
and ranges only; files and connections are opened where they are read. There is no filter pushdown:
in Spark 4.3.0 what one query pushed down stays with the loaded DataFrame, and another query on it
silently gets wrong rows (observed; a test shows it). Rows are left out by options instead, of which
each `load()` has its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from logweir.errors import ConfigError
from logweir.pipeline.columns import COLUMNS, check_columns, ddl
from logweir.pipeline.options import ScanOptions, SinkOptions
from logweir.pipeline.peersources import (
    TOPIC_COLUMNS,
    PeerReader,
    PeerStream,
    TopicReader,
    TopicStream,
    is_topic,
)
from logweir.pipeline.streams import TailReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from logweir.pipeline.plan import Split
    from logweir.pipeline.sinks import LogweirStreamWriter, LogweirWriter

__all__ = ["FORMAT", "LogweirReader", "LogweirSource", "SplitPartition"]

FORMAT = "logweir"


class LogweirSource(DataSource):
    """`spark.read.format("logweir")` and its three siblings."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> str:
        """The columns that the options ask for."""
        options = ScanOptions.parse(dict(self.options))
        if is_topic(options):
            return TOPIC_COLUMNS
        return ddl(options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader of these columns."""
        options = ScanOptions.parse(dict(self.options))
        if is_topic(options):
            return TopicReader(options)
        options = with_schema(options, schema)
        return PeerReader(options) if options.url else LogweirReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A stream reader of these columns."""
        options = ScanOptions.parse(dict(self.options))
        if is_topic(options):
            return TopicStream(options)
        options = with_schema(options, schema)
        return PeerStream(options) if options.url else TailReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> LogweirWriter:
        """A batch writer for a DataFrame of this schema."""
        from logweir.pipeline.sinks import LogweirWriter, sink_types

        return LogweirWriter(SinkOptions.parse(dict(self.options)), sink_types(schema), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LogweirStreamWriter:
        """A stream's writer for a DataFrame of this schema."""
        from logweir.pipeline.sinks import LogweirStreamWriter, sink_types

        options = SinkOptions.parse(dict(self.options))
        return LogweirStreamWriter(options, sink_types(schema), overwrite)


def with_schema(options: ScanOptions, schema: StructType) -> ScanOptions:
    """The options with the columns of a schema. Raises `ConfigError` for one that is not ours."""
    names = check_columns(schema.names, origin="schema")
    for one in schema.fields:
        wanted = COLUMNS[one.name]
        if one.dataType.simpleString() != wanted.lower():
            raise ConfigError(
                f"column {one.name}",
                f"is {wanted}, not {one.dataType.simpleString()}",
                origin="schema",
                hint="read it as it is and cast it",
            )
    return ScanOptions.parse(replace(options, columns=names).to_text())


@dataclass
class SplitPartition(InputPartition):
    """One task's work. `spaces`: ids of the wanted spaces."""

    split: Split
    spaces: frozenset[int]


class LogweirReader(DataSourceReader):
    """Reads folders of logs and snapshots as they are when the first action plans the scan."""

    def __init__(self, options: ScanOptions) -> None:
        self._options = options

    def partitions(self) -> list[SplitPartition]:
        """One partition per split."""
        from logweir.pipeline.plan import plan

        planned = plan(self._options)
        return [SplitPartition(split, planned.spaces) for split in planned.splits]

    def read(self, partition: Any) -> Iterator[Any]:
        """The Arrow batches of one partition. An empty plan arrives as a partition of None."""
        from logweir.pipeline.reading import scan

        if isinstance(partition, SplitPartition):
            yield from scan(partition.split, self._options, partition.spaces)
