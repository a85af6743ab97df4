"""Batches: statements as columns of numbers, and what came of them.

What each column and each result holds stands in `statementkernel.pyx`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from logweir.errors import RequestError
from logweir.store.engine.executing import COLUMNS, LAST, RESULTS
from logweir.store.engine.refusal import refusal
from logweir.store.schema.definition import SpaceDef
from logweir.wal.xrow import RowType

if TYPE_CHECKING:
    from logweir.store.engine.computing import Computer

_FIRST: Final = 4
_OLD: Final = 4
_NEW: Final = 6
_BODY: Final = 8
_OPS: Final = 6
_AS_REPLACE: Final = 12
_UNDONE: Final = 3
_ONE: Final = array("Q", (1,))


class Asked(NamedTuple):
    """Statements, as columns with spans in `data` and the places of spaces in `ids`. Those behind
    the transaction with which the answers have `limit_bytes` are left out; `computer`: for those
    that want one (`store.engine.computing`)."""

    data: bytes
    columns: array[int]
    ids: Sequence[int]
    limit_bytes: int
    computer: Computer | None = None


@dataclass(slots=True)
class Answers:
    """What came of a batch: of its first statements, up to the last one that was executed.

    `results`, `out`: numbers, and the bytes in which they point; `refused`: the numbers of those
    that are not done, ascending.
    """

    data: bytes
    columns: array[int]
    results: array[int]
    out: bytes
    refused: Sequence[int]
    failures: Mapping[int, RequestError]
    spaces: Sequence[SpaceDef | None]

    @property
    def count(self) -> int:
        """How many statements were executed."""
        return len(self.results) // RESULTS

    @property
    def changes(self) -> bool:
        """Whether anything of them is to be logged."""
        return any(self.results[_BODY + 1 :: RESULTS])

    def error(self, number: int) -> RequestError:
        """Why a statement is not done."""
        found = self.failures.get(number)
        if found is not None:
            return found
        _, code, first, second = self.results[number * RESULTS : number * RESULTS + 4]
        space, at = self.space(number), number * COLUMNS
        ops = self.data[self.columns[at + _OPS] : self.columns[at + _OPS + 1]]
        return refusal(space, code, first, second, ops)

    @property
    def cause(self) -> int:
        """The first statement that was refused by itself, where one was."""
        return next(one for one in self.refused if self.results[one * RESULTS] != _UNDONE)

    def space(self, number: int) -> SpaceDef:
        """The space of a statement that found it."""
        space = self.spaces[self.columns[number * COLUMNS + 1]]
        assert space is not None
        return space

    def kind(self, number: int) -> int:
        """As what a statement is logged."""
        at = number * COLUMNS
        is_replace = self.columns[at + _AS_REPLACE] and self.columns[at + _OPS + 1]
        if is_replace and self.results[number * RESULTS + _NEW + 1]:
            return RowType.REPLACE
        return self.columns[at]

    def changed(self, number: int) -> tuple[bytes | None, bytes | None]:
        """The old and the new tuple of a statement."""
        return self._part(number, _OLD), self._part(number, _NEW)

    def logged(self) -> list[tuple[int, bytes, SpaceDef]]:
        """What is to be logged of statements none of which is refused: type, body and space."""
        kinds: Iterable[int] = self.columns[::COLUMNS]
        if any(self.columns[_AS_REPLACE::COLUMNS]):
            kinds = map(self.kind, range(self.count))
        places, results, out = self.columns[1::COLUMNS], self.results, self.out
        return [
            (kind, out[start:end], space)
            for kind, place, start, end in zip(
                kinds, places, results[_BODY::RESULTS], results[_BODY + 1 :: RESULTS], strict=False
            )
            if end and (space := self.spaces[place]) is not None and not space.is_temporary
        ]

    def body(self, number: int) -> bytes:
        """What is to be logged."""
        return self._part(number, _BODY) or b""

    def _part(self, number: int, place: int) -> bytes | None:
        start, end = self.results[number * RESULTS + place : number * RESULTS + place + 2]
        return self.out[start:end] if end else None


def puts(kind: RowType, bounds: array[int], ends: array[int] | None) -> array[int]:
    """The columns of INSERTs or REPLACEs of tuples that stand one behind the other.

    Tuple i begins at bounds[i] and ends at bounds[i + 1]; `ends`: before which tuple each
    transaction ends, the last before the end of all; None: each tuple is one.
    """
    count = len(bounds) - 1
    columns = array("Q", bytes(8 * COLUMNS * count))
    columns[0::COLUMNS] = array("Q", (kind,)) * count
    columns[_FIRST::COLUMNS] = bounds[:-1]
    columns[_FIRST + 1 :: COLUMNS] = bounds[1:]
    if ends is None:
        columns[LAST::COLUMNS] = _ONE * count
    else:
        for end in ends:
            columns[(end - 1) * COLUMNS + LAST] = 1
    return columns
