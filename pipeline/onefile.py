"""Batches of a scan into one file, whose name appears when all is in it.

========  =========================================================================================
ending    what is written
========  =========================================================================================
.parquet  Parquet, zstd
.arrow    Arrow's file format (IPC), to be mapped
.csv      CSV with a header; binary is base64
.jsonl    a JSON object per line, values as `wal.render` writes them; times are text
========  =========================================================================================
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from logweir.errors import ConfigError
from logweir.pipeline.cells import texts
from logweir.pipeline.options import shown
from logweir.pipeline.targets import open_target
from logweir.wal.filesystem import AppendFile
from logweir.wal.newfile import check_output, create_file, new_output
from logweir.wal.render import dumps


class _Writer(Protocol):
    def write(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


class _Lines:
    """JSON lines."""

    def __init__(self, sink: pa.NativeFile, schema: pa.Schema) -> None:
        self._sink = sink

    def write(self, table: pa.Table) -> None:
        for row in zip(*map(_plain, table.columns), strict=True):
            line = dumps(dict(zip(table.column_names, row, strict=True)))
            self._sink.write(line.encode() + b"\n")

    def close(self) -> None:
        pass


class _Csv:
    def __init__(self, sink: pa.NativeFile, schema: pa.Schema) -> None:
        from pyarrow.csv import CSVWriter

        self._schema = pa.schema(
            [pa.field(one.name, pa.string() if _is_binary(one) else one.type) for one in schema]
        )
        self._csv = CSVWriter(sink, self._schema)

    def write(self, table: pa.Table) -> None:
        columns = [
            _base64(column) if _is_binary(one) else column
            for one, column in zip(table.schema, table.columns, strict=True)
        ]
        self._csv.write_table(pa.Table.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._csv.close()


def _is_binary(one: pa.Field) -> bool:
    return bool(pa.types.is_binary(one.type))


def _base64(column: pa.ChunkedArray) -> pa.Array:
    shown = [None if one is None else b64encode(one).decode() for one in column.to_pylist()]
    return texts(shown)


def _plain(column: pa.ChunkedArray) -> Iterator[Any]:
    """Values as JSON has them. Arrow's own times import pandas."""
    if not pa.types.is_timestamp(column.type):
        # Of unsigned and integer: fields of type decimal are text.
        return (int(one) if isinstance(one, Decimal) else one for one in column.to_pylist())
    counts = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    return (None if one is None else _time_text(one) for one in counts)


def _time_text(microseconds: int) -> str:
    """A time as text. Years that Python does not know, which are no damage, have a sign and six
    digits (ISO 8601's expanded years, as ECMAScript has them)."""
    try:
        return (_EPOCH + timedelta(microseconds=microseconds)).isoformat()
    except OverflowError:
        cycles, rest = divmod(microseconds, _CYCLE)
        alike = _EPOCH + timedelta(microseconds=rest)
        return f"{alike.year + 400 * cycles:+07d}{alike.isoformat()[4:]}"


def _parquet(sink: pa.NativeFile, schema: pa.Schema) -> Any:
    from pyarrow.parquet import ParquetWriter

    return ParquetWriter(sink, schema, compression="zstd")


ENDINGS: Final[dict[str, Callable[[pa.NativeFile, pa.Schema], _Writer]]] = {
    ".parquet": _parquet,
    ".arrow": pa.ipc.new_file,
    ".csv": _Csv,
    ".jsonl": _Lines,
}
_GROUP_ROWS: Final = 131_072
_GROUP_BYTES: Final = 128 * 1024 * 1024  # base64 of more may not fit into one Arrow column
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CYCLE: Final = 146_097 * 86_400 * 10**6  # microseconds of 400 years, after which dates come again


class _Sink:
    """A file of a `FileSystem`, as pyarrow writes into one."""

    closed = False

    def __init__(self, file: AppendFile) -> None:
        self._file = file

    def write(self, data: pa.Buffer | bytes) -> int:
        self._file.write([data])
        return memoryview(data).nbytes

    def tell(self) -> int:
        return self._file.size()

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass  # whoever made the file closes it


class WrittenFile(NamedTuple):
    """What was written. `name`: without keys; `rows`; `size`: bytes."""

    name: str
    rows: int
    size: int


def write_file(to: str | Path, batches: pa.RecordBatchReader) -> WrittenFile:
    """Write batches into the new file `to`, a path or a URL, in the format that its ending names.

    A crash leaves no file of that name. Raises `ConfigError` for another ending, a name that is
    taken or a URL that no file system is known for, `WalError` for what the system says, and what
    the batches raise; then nothing is left.
    """
    name = shown(str(to))
    ending = Path(name).suffix
    if ending not in ENDINGS:
        raise ConfigError("--output", f"{name!r} ends in none of {', '.join(ENDINGS)}.")
    filesystem, path = open_target("--output", to)
    check_output(path, filesystem, name)
    rows = 0
    with new_output(path, filesystem, name) as temporary:
        with (
            closing(create_file(filesystem, temporary)) as file,
            pa.PythonFile(_Sink(file), "w") as sink,
            closing(ENDINGS[ending](sink, batches.schema)) as writer,
        ):
            for table in _gathered(batches):
                writer.write(table)
                rows += table.num_rows
        size = file.size()
    return WrittenFile(name, rows, size)


def _gathered(batches: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Batches put together, so that groups of rows are of a size that readers like."""
    pending: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        pending.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if count >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield pa.Table.from_batches(pending)
            pending, count, size = [], 0, 0
    if pending:
        yield pa.Table.from_batches(pending)
