"""A place of files that tasks put and the driver names: a folder, or an object store.

A task writes its rows as one file under a name of its own, which it keeps. What a reader sees of
such files is the business of whoever names them: a transaction (`delta`) or a manifest (`commits`).
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from logweir.errors import WalError
from logweir.pipeline.jobs.work import mapped
from logweir.pipeline.options import is_url, scheme_of, shown
from logweir.pipeline.storage import connect, inside
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import OS, explain, make_folders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Written = tuple[str, int, int]
"""A file: its name, rows and size."""

Writing = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

PART: Final = re.compile("part-[0-9a-f]{32}[.](parquet|json|csv)")
"""The name of a file that a task put."""

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")  # deltalake draws what it says
_WRITTEN_DDL: Final = "name STRING, rows BIGINT, size BIGINT"


class _Lines:
    """A file of lines: those of the only column."""

    def __init__(self, out: Any, schema: pa.Schema) -> None:
        self._out = out

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """The lines of a batch."""
        self._out.write("".join(f"{line}\n" for line in batch.column(0).to_pylist()).encode())

    def close(self) -> None:
        """Nothing is kept back."""


class _Csv(_Lines):
    """Lines behind the name of their column, which is the header."""

    def __init__(self, out: Any, schema: pa.Schema) -> None:
        super().__init__(out, schema)
        out.write(f"{schema.names[0]}\n".encode())


def _opening(ending: str) -> Any:
    from pyarrow.parquet import ParquetWriter

    return {"parquet": ParquetWriter, "json": _Lines, "csv": _Csv}[ending]


@dataclass(frozen=True, slots=True)
class Place:
    """`location`: a folder's path, or a URL of an object store, as `pyarrow.fs` or `fsspec` takes
    it, with keys and options."""

    location: str

    @property
    def name(self) -> str:
        """As it may be shown, and as deltalake takes it."""
        return shown(self.location)

    @property
    def is_store(self) -> bool:
        """Whether it is in an object store."""
        return is_url(self.location)

    def below(self, name: str) -> Any:
        """A folder in it."""
        return type(self)(inside(self.location, name))

    def arrow(self) -> tuple[Any, str]:
        """Its file system, of `pyarrow.fs`, and the path in it."""
        from pyarrow import fs

        if self.is_store:
            filesystem, path = connect(self.location, scheme_of(self.location))
            return filesystem, path.rstrip("/")
        return fs.LocalFileSystem(), self.location

    def write(
        self, frame: DataFrame, schema: pa.Schema, before: Writing = iter, ending: str = "parquet"
    ) -> list[Written]:
        """Let tasks put the rows of a DataFrame, or what `before` makes of them, there. Raises what
        tasks raise."""
        put = self.writing(schema, ending)
        rows = mapped(frame, lambda batches: put(before(batches)), _WRITTEN_DDL).collect()
        return [(one["name"], one["rows"], one["size"]) for one in rows]

    def writing(self, schema: pa.Schema, ending: str = "parquet") -> Writing:
        """What a task does: puts its rows as one file, and tells its name, rows and size. `ending`:
        parquet; or json or csv, of the lines in the only column, whose name heads CSV."""

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            wanted = (batch for batch in batches if batch.num_rows)
            first = next(wanted, None)
            if first is None:
                return
            name = f"part-{uuid.uuid4().hex}.{ending}"
            every = chain((first,), wanted)
            written = self._put(name, schema, (batch.cast(schema) for batch in every))
            columns = zip(("name", "rows", "size"), written, strict=True)
            yield pa.RecordBatch.from_pydict({key: [value] for key, value in columns})

        return run

    def _put(self, name: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Written:
        rows = 0
        filesystem, folder = self.arrow()
        path = f"{folder}/{name}"
        opening = _opening(name.partition(".")[2])
        with told_as(f"{self.name}/{name}"):
            if not self.is_store:
                make_folders(OS, Path(folder))
            try:
                with (
                    filesystem.open_output_stream(path) as out,
                    contextlib.closing(opening(out, schema)) as writer,
                ):
                    for batch in batches:
                        writer.write_batch(batch)
                        rows += batch.num_rows
                        failpoint("place.in_part")
                if not self.is_store:
                    OS.sync_file(Path(path))
                return name, rows, filesystem.get_file_info(path).size
            except BaseException:
                with contextlib.suppress(OSError):
                    filesystem.delete_file(path)
                raise

    def files(self) -> dict[str, int]:
        """The names of files there, with their sizes; none where there is no such folder."""
        return {one.base_name: one.size for one in self._found() if one.is_file}

    def names(self) -> list[str]:
        """What there is, none where there is no such folder."""
        return [one.base_name for one in self._found()]

    def _found(self) -> list[Any]:
        from pyarrow import fs

        filesystem, folder = self.arrow()
        with told_as(self.name):
            found: list[Any] = filesystem.get_file_info(
                fs.FileSelector(folder, allow_not_found=True)
            )
        return found

    def remove(self) -> None:
        """Remove all that is there; nothing if nothing is."""
        filesystem, folder = self.arrow()
        with told_as(self.name), contextlib.suppress(FileNotFoundError):
            filesystem.delete_dir(folder)


@contextlib.contextmanager
def told_as(where: str, *kinds: type[Exception]) -> Iterator[None]:
    """Errors of the place, and those `kinds`, as ours, with its name."""
    try:
        yield
    except (OSError, pa.ArrowException, *kinds) as error:
        if isinstance(error, OSError) and error.strerror:
            raise explain(error, where) from error
        said = " ".join(_COLOURS.sub("", str(error)).split())
        raise WalError(f"{said.rstrip('.')}.", path=where) from error
