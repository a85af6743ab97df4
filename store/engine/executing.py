"""What executes statements in layers: compiled where it can be, else the reference engine alone.

`statementkernel.pyx` knows nearly all statements and `layerkernel.pyx` what they replaced. Where
these were not compiled `PlainExecutor` and `PlainUndo` stand in; `COMPILED` says which it is.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from logweir.errors import LimitExceeded, RequestError
from logweir.store.state.undo import PlainUndo

__all__ = [
    "COLUMNS",
    "COMPILED",
    "DONE",
    "HALTED",
    "RESULTS",
    "UNMET",
    "Answer",
    "Drafts",
    "Executor",
    "PlainDrafts",
    "PlainExecutor",
]

Answer = tuple[int, bytes | None, bytes | None, bytes | None, tuple[int, int, int]]
"""Status, old tuple, new tuple, body to be logged, and what a computer told."""

COLUMNS: Final = 13
"""Numbers of a statement: see `statementkernel.pyx`."""

RESULTS: Final = 10
"""Numbers of its result."""

LAST: Final = 8
"""The column that says whether it ends its transaction."""

DONE: Final = 0
UNMET: Final = 4
HALTED: Final = 5
"""Of a statement: see `statementkernel.pyx`."""

_UNDONE: Final = 3

try:
    from logweir.store.engine import draftkernel, statementkernel  # noqa: F401
except ImportError:
    COMPILED = False
else:
    COMPILED = (statementkernel.COLUMNS, statementkernel.RESULTS) == (COLUMNS, RESULTS)


class PlainExecutor:
    """Has the reference do every statement. See `statementkernel.pyx` for what it is given."""

    def execute(
        self,
        data: bytes,
        columns: array[int],
        spaces: Sequence[object],
        undo: PlainUndo,
        reference: Callable[[int], Answer],
        limit_bytes: int,
        computer: object = None,
    ) -> tuple[array[int], bytes, Sequence[int], dict[int, RequestError]]:
        """Execute statements: results, the bytes in which they point, the numbers of those that
        are not done, and errors by number."""
        del computer  # the reference asks it
        results, out = array("Q"), bytearray()
        refused: list[int] = []
        failures: dict[int, RequestError] = {}
        count, first = len(columns) // COLUMNS, 0
        while first < count and (not first or len(out) < limit_bytes):
            end = first
            while not columns[end * COLUMNS + LAST]:
                end += 1
            end += 1
            mark = undo.mark()
            for number in range(first, end):
                start = undo.mark()
                try:
                    status, *values, told = reference(number)
                except RequestError as error:
                    undo.rollback(start)
                    failures[number] = error
                    row = [1, int(error.code), *[0] * (RESULTS - 2)]
                else:
                    if status == HALTED:
                        undo.rollback(mark)
                        del results[first * RESULTS :]
                        return results, bytes(out), refused, failures
                    row = [status, *told]
                    for value in values:
                        row += (len(out), len(out) + len(value)) if value else (0, 0)
                        out += value or b""
                if row[0] and end > first + 1:
                    undo.rollback(mark)
                    undone = array("Q", (_UNDONE, *[0] * (RESULTS - 1)))
                    results[first * RESULTS :] = undone * (number - first)
                    results.extend(row)
                    results.extend(undone * (end - number - 1))
                    refused += range(first, end)
                    break
                results.extend(row)
                if row[0]:
                    refused.append(number)
            first = end
        return results, bytes(out), refused, failures


class PlainDrafts:
    """Leaves every statement to the reference engine. See `draftkernel.pyx`."""

    def __init__(self, executor: PlainExecutor, most_bytes: int) -> None:
        del executor
        self.rows: list[tuple[int, bytes, object]] = []
        self.size_bytes = 0
        self.touched = False
        self._most_bytes = most_bytes

    def add(self, kind: int, body: bytes, definition: object) -> None:
        """Take a row. Raises `LimitExceeded` if they are too many bytes."""
        size = self.size_bytes + len(body)
        if size > self._most_bytes:
            hint = "divide it into several transactions"
            raise LimitExceeded("TRANSACTION_BYTES", self._most_bytes, size, hint=hint)
        self.rows.append((kind, body, definition))
        self.size_bytes = size

    def make(self, *statement: object) -> Any:
        """Tells that the reference engine must execute it."""
        del statement
        return NotImplemented

    execute = compute = make


if TYPE_CHECKING or COMPILED:
    from logweir.store.engine.draftkernel import Drafts
    from logweir.store.engine.statementkernel import Executor
else:
    Drafts, Executor = PlainDrafts, PlainExecutor
