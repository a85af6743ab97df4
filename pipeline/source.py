"""The Spark format `logweir`: what Spark calls, all of it thin.

Spark makes these objects in short-lived workers and sends them on by pickle, so they hold options
and ranges only; files and connections are opened where they are read. There is no filter pushdown:
in Spark 4.3.0 what one query pushed down stays with the loaded DataFrame, and another query on it
silently gets wrong rows (observed; a test shows it). Rows are left out by options instead, of which
each `load()` has its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

    from logweir.pipeline.sinks import LogweirStreamWriter, LogweirWriter

FORMAT = "logweir"


class LogweirSource(DataSource):
    """`spark.read.format("logweir")` and its three siblings.

    Spark imports this module whenever it looks for any source, so it imports the rest when asked.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> str:
        """The columns that the options ask for."""
        from logweir.pipeline.readers import schema_of

        # Spark hands this object on to where the reader is made.
        ddl, self.options = schema_of(dict(self.options))
        return ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader of these columns."""
        from logweir.pipeline.readers import batch_reader

        return batch_reader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A stream reader of these columns."""
        from logweir.pipeline.readers import stream_reader

        return stream_reader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> LogweirWriter:
        """A batch writer for a DataFrame of this schema."""
        from logweir.pipeline.sinks import LogweirWriter, sink_types

        return LogweirWriter(dict(self.options), sink_types(schema), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LogweirStreamWriter:
        """A stream's writer for a DataFrame of this schema."""
        from logweir.pipeline.sinks import LogweirStreamWriter, sink_types

        return LogweirStreamWriter(dict(self.options), sink_types(schema), overwrite)


class RegisteredSource(LogweirSource):
    """The same under the name by which the source in Java finds it (`jvm/Provider.java`), where it
    has to be registered: Spark registers no name that a source in Java has."""

    @classmethod
    def name(cls) -> str:
        """Of this class."""
        return "logweir_python"
