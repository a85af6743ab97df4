"""Delta tables, in a folder or an object store: tasks put files, the driver commits their names.

A task writes its rows as one file, under the name that it keeps; no reader of Delta sees that
before a transaction names it, which is put whole and only if nobody else put the one of that
number. So a table in a place that renames nothing is as safe as one in a folder. A batch of a
stream is one transaction, which notes the batch's number: one that is written again, because a
driver was killed before Spark noted it, is found there and adds nothing. Files of tasks that were
tried again, or of a driver that was killed before it committed, stand in the table's folder without
being in the table, until `DeltaTable.vacuum`, as any writer's do.
"""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from logweir.errors import ConfigError
from logweir.pipeline.checkpoints import query_id
from logweir.pipeline.jobs.places import PART, Place, Written, told_as
from logweir.pipeline.options import place_text, scheme_of, target_folder
from logweir.wal.failpoint import failpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STORES: Final = ("s3", "gs", "abfs", "abfss")


def delta() -> Any:
    """The module `deltalake`. Raises `ConfigError` where it is not installed."""
    try:
        import deltalake
    except ImportError as error:
        raise ConfigError(
            "format", f"delta needs deltalake: {error}", hint="pip install deltalake"
        ) from error
    return deltalake


class DeltaPlace(Place):
    """The place of a table."""

    __slots__ = ()

    @classmethod
    def of(cls, key: str, to: str | Path) -> DeltaPlace:
        """The place that was named by an option `key`. Raises `ConfigError` for any other URL."""
        if scheme_of(place_text(key, to)) in _STORES:
            return cls(str(to))
        return cls(str(target_folder(key, to)))

    # --- the table --------------------------------------------------------------------------------

    def table(self) -> Any:
        """The table, None where there is none. Raises `WalError` where nobody can look."""
        deltalake = delta()
        with told_as(self.name, deltalake.exceptions.DeltaError):
            if not deltalake.DeltaTable.is_deltatable(self.name, self._options()):
                return None
            return deltalake.DeltaTable(self.name, storage_options=self._options())

    def check_new(self) -> None:
        """Raises `ConfigError` where a table is there, `WalError` where nobody can look."""
        if self.table() is not None:
            raise self._taken()

    def check_free(self) -> None:
        """Raises `ConfigError` for a folder that has what is not of a beginning that was killed."""
        if not all(PART.fullmatch(name) for name in self.names()):
            raise ConfigError(
                "to", f"{self.name} is there and no Delta table.", hint="name a new folder"
            )

    def create(
        self, schema: pa.Schema, files: Iterable[Written], notes: Mapping[str, int] | None = None
    ) -> None:
        """Put the first transaction of a table, which names these files. `notes`: identifiers of
        applications, with their numbers. Raises `ConfigError` where there is a table."""
        deltalake = delta()
        failpoint("delta.before_commit")
        with told_as(self.name, deltalake.exceptions.DeltaError):
            try:
                deltalake.transaction.create_table_with_add_actions(
                    self.name,
                    deltalake.Schema.from_arrow(schema),
                    _actions(files),
                    storage_options=self._options(),
                    commit_properties=noting(notes or {}),
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
        if not self.is_store or parts.scheme != "s3":
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

    def reading(self, names: Iterable[str], schema: pa.Schema) -> pa.RecordBatchReader:
        """These columns of files that are there, a batch at a time."""
        from pyarrow import dataset

        filesystem, folder = self.arrow()
        paths = [f"{folder}/{name}" for name in names]
        every = dataset.dataset(paths, schema=schema, format="parquet", filesystem=filesystem)
        return every.scanner().to_reader()


def noting(notes: Mapping[str, int]) -> Any:
    """What a transaction notes: identifiers of applications, with their numbers."""
    deltalake = delta()
    every = [deltalake.Transaction(name, number) for name, number in notes.items()]
    return deltalake.CommitProperties(app_transactions=every)


def _actions(files: Iterable[Written]) -> list[Any]:
    add, now = delta().transaction.AddAction, time.time_ns() // 1_000_000
    return [
        add(name, size, {}, now, True, json.dumps({"numRecords": rows}))
        for name, rows, size in files
    ]


def appending(place: DeltaPlace, checkpoint: str) -> Callable[[DataFrame, int], None]:
    """Appends a batch to the table, which is made if need be, unless it is in it already.

    What it does raises `ConfigError` for a table of other columns.
    """
    deltalake = delta()

    def write(batch: DataFrame, number: int) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        name, table = query_id(checkpoint), place.table()
        done = None if table is None else table.transaction_version(name)
        if done is not None and done >= number:
            return  # written, and killed before Spark noted it
        schema = to_arrow_schema(batch.schema, timezone="UTC")
        columns = deltalake.Schema.from_arrow(schema)
        if table is not None and table.schema() != columns:
            raise ConfigError(
                "to",
                f"{place.name} has other columns than what is to be added.",
                hint="begin a new table with a new checkpoint",
            )
        files = place.write(batch, schema)
        if not files:
            return
        if table is None:
            place.create(schema, files, {name: number})
            return
        failpoint("delta.before_commit")
        with told_as(place.name, deltalake.exceptions.DeltaError):
            table.create_write_transaction(
                _actions(files), "append", columns, commit_properties=noting({name: number})
            )

    return write
