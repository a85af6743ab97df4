"""`logweir import` and `export`: all rows of a space from and to JSON lines."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from logweir.errors import DecodeError, ErrorCode, LogweirError, RequestError
from logweir.store.engine.request import Request
from logweir.store.schema.named import Named
from logweir.tools.cli.common import existing
from logweir.tools.cli.output import Output
from logweir.tools.cli.spaces import (
    NamesOption,
    OpenSpace,
    SpaceArgument,
    WhereArgument,
    change_of,
    form_of,
    open_space,
)
from logweir.wal.xrow import RowType

_BATCH_BYTES: Final = 4 * 1024 * 1024
"""A batch ends when its lines reach this, however few they are."""

_LINE_BYTES: Final = 128 * 1024 * 1024
"""The longest line that is taken: the largest tuple of a topic, in base64, with room to spare."""


class _Import:
    """Rows on their way into a space. `batch`: how many go together; `source`: where they are from,
    in words."""

    def __init__(self, opened: OpenSpace, kind: RowType, batch: int, source: str) -> None:
        self.rows = 0
        """So many are in."""
        self._opened = opened
        self._form = Named(opened.space)
        self._kind = kind
        self._batch = batch
        self._source = source
        self._numbers: list[int] = []
        self._requests: list[Request] = []
        self._bytes = 0

    def take(self, number: int, line: bytes) -> None:
        """Take one line. Raises what refuses it, or a line before it."""
        try:
            if len(line) >= _LINE_BYTES:
                raise DecodeError(f"the line is longer than {_LINE_BYTES} bytes")
            row = self._form.read(line)
            request = change_of(self._opened, self._kind, row)
        except DecodeError as error:
            self.commit()
            hint = error.hint or """each line is as [1, "ada"] or {"id": 1, "name": "ada"}"""
            refused = RequestError(ErrorCode.ILLEGAL_PARAMS, error.reason, hint=hint)
            raise self._placed(refused, number, number) from error
        except RequestError as error:
            self.commit()
            raise self._placed(error, number, number) from error
        self._requests.append(request)
        self._numbers.append(number)
        self._bytes += len(line)
        if len(self._requests) >= self._batch or self._bytes >= _BATCH_BYTES:
            self.commit()

    def commit(self) -> None:
        """Make what was taken durable. Raises what refuses it."""
        if not self._requests:
            return
        try:
            done = self._opened.execute_all(self._requests)
        except LogweirError as error:
            raise self._placed(error, self._numbers[0], self._numbers[-1]) from error
        self.rows += done.count
        if done.error is not None:
            line = self._numbers[done.refused]
            raise self._placed(done.error, line, line)
        self._numbers.clear()
        self._requests.clear()
        self._bytes = 0

    def _placed(self, error: LogweirError, first: int, last: int) -> LogweirError:
        """The error with its lines, and how far the import came."""
        lines = f"line {first}" if first == last else f"lines {first} to {last}"
        error.message = f"{lines} of {self._source}: {error.message} ({self.rows} rows are in)"
        return error


def take(
    out: Output,
    where: WhereArgument,
    space: SpaceArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="JSON lines. Default: stdin.")
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Take the place of tuples with the same primary key."),
    ] = False,
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, max=100_000, help="Rows in a transaction.")
    ] = 1000,
) -> int:
    """Take rows into a space: a JSON array, or an object with the names of fields, in each line.

    It stops at the first line that cannot be taken, tells which and how many rows are in, and ends
    with exit code 1. N rows are sent together: in a folder they are one transaction, and all rows
    before the bad line are in; a server makes each by itself, and may also have taken some of those
    N behind it. With --replace it can be done again from the beginning.
    A broker's data folder is for logweir topic import, Parquet and CSV for logweir pipeline import.
    """
    kind = RowType.REPLACE if replace else RowType.INSERT
    with ExitStack() as stack:
        size = 0
        source: BinaryIO = sys.stdin.buffer
        if file is not None:
            size = existing(file).stat().st_size
            source = stack.enter_context(open(file, "rb"))
        opened = stack.enter_context(open_space(where, space))
        progress = stack.enter_context(out.progress("Importing", size))
        taking = _Import(opened, kind, batch, str(file or "stdin"))
        done = 0
        for number, line in enumerate(iter(lambda: source.readline(_LINE_BYTES), b""), 1):
            if not line.isspace():
                taking.take(number, line)
            done += len(line)
            progress(done)
        taking.commit()
    if out.as_json:
        out.json({"rows": taking.rows})
    else:
        out.line(f"{taking.rows} rows")
    return 0


def give(
    out: Output, where: WhereArgument, space: SpaceArgument, names: NamesOption = False
) -> int:
    """Print all rows of a space as JSON lines, which logweir import takes.

    Of a folder they are as of one position; of a server they come page by page, in the order of the
    primary key, while others may change them.
    """
    with open_space(where, space) as opened:
        text_of = form_of(opened, names)
        count = 0
        for row in opened.rows():
            out.line(text_of(row))
            count += 1
        out.flush()
        out.message(f"{count} rows")
    return 0
