"""Writers of the format: into a log folder, or into a running server.

Tasks write parts into a staging folder, the driver's commit makes one file of them
(`pipeline.publish`) or sends them in order over one connection (`pipeline.landing`). What a failed
attempt left stays in the staging folder, which goes with the commit, or a day later. `write` is
not told the number of its batch, `abort` knows of no part where its job failed, and other tasks may
still be writing then: so nothing but the commit makes anything visible. Source: Spark 4.3.0,
observed.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from logweir.errors import ConfigError
from logweir.pipeline.checkpoints import stream_name
from logweir.pipeline.options import ORIGIN, STAGE, SinkOptions
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import OS, explain, make_folders

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from logweir.pipeline.parts import Part, SinkLayout


@dataclass
class PartMessage(WriterCommitMessage):
    """What a task tells the commit."""

    part: Part


class _Writing:
    """What both writers do. Holds options only: it travels to the tasks."""

    def __init__(
        self, options: SinkOptions, types: Mapping[str, str], *, overwrite: bool, stream: bool
    ) -> None:
        from logweir.pipeline.parts import SinkLayout, check_sink_columns

        check_sink_columns(types)
        has_positions = {"replica_id", "lsn"} <= set(types)
        if options.positions == "keep" and not has_positions:
            raise ConfigError(
                "positions",
                "keep needs the columns replica_id and lsn.",
                origin=ORIGIN,
                hint="select them, or give positions=new",
            )
        if stream and not options.query:
            raise ConfigError(
                "query",
                "a stream needs a name that stays the same when it is restarted.",
                origin=ORIGIN,
                hint="set option query, or checkpointLocation",
            )
        if stream and (overwrite or options.sink_mode == "snap"):
            raise ConfigError("sink_mode", "a stream appends to a log.", origin=ORIGIN)
        self.options = options
        self.overwrite = overwrite
        keeps = has_positions and options.positions != "new" and not options.url
        self.layout: SinkLayout = SinkLayout(
            kind=options.sink_mode,
            keeps=keeps and options.sink_mode == "xlog",
            timestamp=time.time(),
            compress_level=options.compress_level,
        )
        prefix = f"{options.query}-" if options.query else ""
        self.stage = str(self._shared() / f"{STAGE}{prefix}{uuid.uuid4().hex}")

    def _shared(self) -> Path:
        """The folder that tasks and driver share."""
        if self.options.path:
            return Path(self.options.path)
        return Path(self.options.staging or tempfile.gettempdir())

    def write(self, batches: Iterator[pa.RecordBatch]) -> PartMessage:
        """In a task: one part of all its rows."""
        from pyspark import TaskContext

        from logweir.pipeline.parts import PartWriter

        stage = Path(self.stage)
        try:
            make_folders(OS, stage)
        except OSError as error:
            raise explain(error, str(stage)) from error
        task = TaskContext.get()
        name = f"part-{task.partitionId() if task else 0:05d}-{uuid.uuid4().hex}"
        writer = PartWriter(stage / name, self.layout)
        try:
            for batch in batches:
                writer.add(batch)
            message = PartMessage(writer.finish())
            failpoint("pipeline.after_stage")
            return message
        except BaseException:
            writer.abandon()
            raise

    def commit(self, messages: Sequence[Any], batch: int | None = None) -> None:
        """In the driver: everything, or an error and nothing. `batch`: of a stream."""
        parts = [message.part for message in messages if isinstance(message, PartMessage)]
        if self.options.url:
            from logweir.pipeline.landing import land

            query = self.options.query if batch is not None else ""
            land(self.options, query, batch or 0, parts)
        else:
            self._publish(parts, "" if batch is None else f"{self.options.query}/{batch}")
        failpoint("pipeline.after_publish")
        stages = {Path(part.path).parent for part in parts}
        for stage in stages:
            shutil.rmtree(stage, ignore_errors=True)
        if self.options.path:
            from logweir.pipeline.publish import remove_stale_stages

            remove_stale_stages(self._folder(parts), query=self.options.query)
        failpoint("pipeline.after_commit")

    def _publish(self, parts: Sequence[Part], batch: str) -> None:
        from logweir.pipeline.publish import Target, publish

        options = self.options
        target = Target(
            folder=self._folder(parts),
            layout=self.layout,
            vclock=options.vclock,
            instance=options.instance,
            replica_id=options.replica_id,
            batch=batch,
            replaces=self.overwrite,
        )
        publish(target, parts)

    def _folder(self, parts: Sequence[Part]) -> Path:
        """The target. A relative path was made absolute where the write was planned, and the
        commit may run elsewhere: so what the tasks were told counts."""
        return Path(parts[0].path).parent.parent if parts else Path(self.options.path)

    def abort(self) -> None:
        """Remove what can be removed; tasks may still be writing."""
        shutil.rmtree(self.stage, ignore_errors=True)


class LogweirWriter(DataSourceArrowWriter):
    """A batch write: one new file, or one replay into a server."""

    def __init__(
        self, options: Mapping[str, str], types: Mapping[str, str], overwrite: bool
    ) -> None:
        self._writing = _Writing(_named(options), types, overwrite=overwrite, stream=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartMessage:
        """See `_Writing`."""
        return self._writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """See `_Writing`."""
        self._writing.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """See `_Writing`."""
        self._writing.abort()


class LogweirStreamWriter(DataSourceStreamArrowWriter):
    """A stream's writer: one new file per batch, once, however often the batch is committed."""

    def __init__(
        self, options: Mapping[str, str], types: Mapping[str, str], overwrite: bool
    ) -> None:
        self._writing = _Writing(_named(options), types, overwrite=overwrite, stream=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartMessage:
        """See `_Writing`."""
        return self._writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """See `_Writing`."""
        self._writing.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """See `_Writing`."""
        self._writing.abort()


def _named(options: Mapping[str, str]) -> SinkOptions:
    """The options, with the name by which batches of a stream are known."""
    parsed = SinkOptions.parse(options)
    return replace(parsed, query=stream_name(parsed.query, options))


def sink_types(schema: StructType) -> dict[str, str]:
    """The DataFrame's columns and types, by name."""
    return {one.name: one.dataType.simpleString() for one in schema.fields}
