"""A new Delta table in an object store, which has it whole or not at all.

Stores rename nothing, so tasks put files under the names that they keep, each one whole when it is
there at all; and the driver puts one last object, the table's first transaction, which names them.
No reader of Delta sees a file before that. The store takes that object only if there is none, so of
two exports to one place the later is refused. What a killed driver or a repeated task leaves is
named by no transaction: the next export to that place has nothing of it, and `DeltaTable.vacuum`
removes it.
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from logweir.errors import ConfigError, WalError
from logweir.pipeline.jobs.delta import WRITTEN_DDL, delta
from logweir.pipeline.jobs.work import carrying
from logweir.pipeline.options import is_url
from logweir.pipeline.storage import connect, shown
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import explain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["StoreTable", "is_store"]

_STORES: Final = ("s3", "gs", "abfs", "abfss")


def is_store(location: str) -> bool:
    """Whether that is a place in an object store."""
    return is_url(location) and urllib.parse.urlsplit(location).scheme in _STORES


@dataclass(frozen=True, slots=True)
class StoreTable:
    """The place of a table: a URL as `pyarrow.fs` takes it, with keys and options."""

    location: str

    @property
    def name(self) -> str:
        """As it may be shown."""
        return shown(self.location)

    def check_new(self) -> None:
        """Raises `ConfigError` where a table is there, `WalError` where nobody can look."""
        deltalake = delta()
        with _told(self.name, deltalake.exceptions.DeltaError):
            is_there = deltalake.DeltaTable.is_deltatable(self.name, self._options())
        if is_there:
            raise self._taken()

    def write(self, frame: DataFrame) -> tuple[int, int]:
        """Make the table of these rows. Returns how many files it has, and their bytes.

        Raises `ConfigError` where another one was made meanwhile, `WalError` and what tasks raise.
        """
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(frame.schema, timezone="UTC")
        staged = frame.mapInArrow(carrying(self.writing(schema)), WRITTEN_DDL).collect()
        files = [(one["name"], one["rows"], one["size"]) for one in staged]
        self.commit(schema, files)
        return len(files), sum(size for _, _, size in files)

    def writing(
        self, schema: pa.Schema
    ) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """What a task does: puts its rows as one file, and tells its name, rows and size."""

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyarrow.parquet import ParquetWriter

            name, rows = f"part-{uuid.uuid4().hex}.parquet", 0
            filesystem, folder = connect(self.location, urllib.parse.urlsplit(self.location).scheme)
            path = f"{folder.rstrip('/')}/{name}"
            wanted = (batch for batch in batches if batch.num_rows)
            first = next(wanted, None)
            if first is None:
                return
            with _told(f"{self.name}/{name}"):
                with ParquetWriter(path, schema, filesystem=filesystem) as writer:
                    for batch in (first, *wanted):
                        writer.write_batch(batch.cast(schema))
                        rows += batch.num_rows
                size = filesystem.get_file_info(path).size
            yield pa.RecordBatch.from_arrays(
                [pa.array([name]), pa.array([rows]), pa.array([size])],
                names=["name", "rows", "size"],
            )

        return run

    def commit(self, schema: pa.Schema, files: list[tuple[str, int, int]]) -> None:
        """Put the transaction that names these files: name, rows and size of each."""
        deltalake = delta()
        failpoint("delta.before_commit")
        now = time.time_ns() // 1_000_000
        actions = [
            deltalake.transaction.AddAction(
                name, size, {}, now, True, json.dumps({"numRecords": rows})
            )
            for name, rows, size in files
        ]
        columns = deltalake.Schema.from_arrow(schema)
        with _told(self.name, deltalake.exceptions.DeltaError):
            try:
                deltalake.transaction.create_table_with_add_actions(
                    self.name, columns, actions, storage_options=self._options()
                )
            except deltalake.exceptions.DeltaError as error:
                if "already exists" in str(error):
                    raise self._taken() from error
                raise

    def _taken(self) -> ConfigError:
        return ConfigError("to", f"{self.name} is there already.", hint="name a new place")

    def _options(self) -> dict[str, str]:
        """What deltalake is told of an address of S3; of others, and of what it does not say, it
        asks the environment, as pyarrow does."""
        parts = urllib.parse.urlsplit(self.location)
        if parts.scheme != "s3":
            return {}
        given = dict(urllib.parse.parse_qsl(parts.query))
        found = {
            "AWS_ACCESS_KEY_ID": urllib.parse.unquote(parts.username or ""),
            "AWS_SECRET_ACCESS_KEY": urllib.parse.unquote(parts.password or ""),
            "AWS_REGION": given.get("region", ""),
        }
        if host := given.get("endpoint_override"):
            scheme = given.get("scheme", "https")
            found["AWS_ENDPOINT_URL"] = f"{scheme}://{host}"
            found["AWS_ALLOW_HTTP"] = str(scheme == "http").lower()
        return {key: value for key, value in found.items() if value}


@contextlib.contextmanager
def _told(where: str, *kinds: type[Exception]) -> Iterator[None]:
    """Errors of the store, and those `kinds`, as ours, with the place."""
    try:
        yield
    except OSError as error:
        raise explain(error, where) from error
    except kinds as error:
        raise WalError(f"{error}.", path=where) from error
