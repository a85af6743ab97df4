"""Many RDATA lines at once, both ways: what the compiled loops of `kernel` and `linekernel` do.

What they take for odd goes the ordinary way through `codec`, with the same result.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from logweir.limits import SYNAPSE_LINE_BYTES, SYNAPSE_STREAMS
from logweir.replication.outgoing.shape import Entry, Stamp
from logweir.replication.synapse.wire import kernel, linekernel
from logweir.replication.synapse.wire.codec import Dialect, row_json
from logweir.store.schema.bulk import interpret_calls
from logweir.wal import kernel as rows_kernel
from logweir.wal.columns import RowColumns
from logweir.wal.mp import pack, unpack

interpret_calls(linekernel)

BATCH_ROWS: Final = 4096
_OUT_BYTES: Final = 1 << 20


def _numbers(count: int) -> array[int]:
    return array("Q", bytes(8 * count))


@dataclass(frozen=True, slots=True)
class Run:
    """Units of one flow whose tokens rise.

    `rows`: MsgPack, row i in rows[bounds[i]:bounds[i + 1]]; unit u has tokens[u] and ends before
    row ends[u]. `pending`: rows after the last unit.
    """

    rows: bytes
    bounds: array[int]
    ends: array[int]
    tokens: array[int]
    pending: Sequence[bytes] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def units(self) -> Iterator[tuple[int, list[bytes]]]:
        """Token and rows of each."""
        first = 0
        for token, end in zip(self.tokens, self.ends, strict=True):
            yield token, self._slices(first, end)
            first = end

    def _slices(self, first: int, end: int) -> list[bytes]:
        return [self.rows[start:stop] for start, stop in pairwise(self.bounds[first : end + 1])]

    @classmethod
    def of(cls, units: Sequence[tuple[int, list[bytes]]]) -> Run:
        """The reverse of `units`. Tokens are not negative."""
        rows: list[bytes] = []
        bounds, ends, at = array("Q", (0,)), array("Q"), 0
        for _, group in units:
            for row in group:
                at += len(row)
                bounds.append(at)
            rows += group
            ends.append(len(rows))
        return cls(b"".join(rows), bounds, ends, array("Q", [token for token, _ in units]))


@dataclass(eq=False, slots=True)
class Batch:
    """RDATA lines that were read together. `names`: (stream, writer) of each flow."""

    _names: Sequence[tuple[str, str]]
    _flows: array[int]
    _tokens: array[int]
    _bounds: array[int]
    _rows: bytes

    def __len__(self) -> int:
        return len(self._flows)

    def flows(self) -> list[tuple[int, str, str]]:
        """Number, stream and writer of each flow that has rows here, in the order of the first."""
        return [(number, *self._names[number]) for number in dict.fromkeys(self._flows)]

    def run(self, flow: int, last: int, *, joins: bool) -> Run | None:
        """Its units, if their tokens rise above `last`. `joins`: rows that follow a unit with its
        token belong to it. None if they do not rise."""
        count = len(self._flows)
        if last < 0:
            return None
        out = bytearray(len(self._rows))
        bounds, ends, tokens = _numbers(count + 1), _numbers(count), _numbers(count)
        rows, made = kernel.units(
            self._flows,
            self._tokens,
            self._bounds,
            count,
            flow,
            self._rows,
            last,
            joins,
            out,
            bounds,
            ends,
            tokens,
        )
        if not rows:
            return None
        data = bytes(memoryview(out)[: bounds[rows]])
        done = ends[made - 1] if made else 0
        pending = [data[start:stop] for start, stop in pairwise(bounds[done : rows + 1])]
        return Run(data[: bounds[done]], bounds[: done + 1], ends[:made], tokens[:made], pending)

    def each(self, flow: int) -> Iterator[tuple[int | None, bytes]]:
        """Token, None for `batch`, and MsgPack of each of its rows."""
        for row, number in enumerate(self._flows):
            if number == flow:
                token = self._tokens[row]
                yield (
                    None if token == kernel.BATCH else token,
                    self._rows[self._bounds[row] : self._bounds[row + 1]],
                )


class Reader:
    """Reads RDATA lines of one peer. `limit_bytes`: of a line.

    One that is much longer than those of a TCP listener is not taken here.
    """

    def __init__(self, dialect: Dialect, limit_bytes: int) -> None:
        self._words = 1 if dialect is Dialect.D1 else 2
        self._limit_bytes = limit_bytes
        self._heads: dict[bytes, int] = {}
        self._names: list[tuple[str, str]] = []
        self._out = bytearray(_OUT_BYTES)
        self._flows, self._tokens = _numbers(BATCH_ROWS), _numbers(BATCH_ROWS)
        self._bounds = _numbers(BATCH_ROWS + 1)

    def learn(self, stream: str, instance: str) -> None:
        """Lines of that flow are taken from now on."""
        words = (stream,) if self._words == 1 else (stream, instance)
        head = "".join(word + " " for word in words).encode()
        if head not in self._heads and len(self._names) < SYNAPSE_STREAMS:
            self._heads[head] = len(self._names)
            self._names.append((stream, instance))

    def read(self, data: bytes, at: int) -> tuple[Batch | None, int]:
        """Lines from `at` on, None if the first is not for us; and where the next one is."""
        count, at = kernel.scan(
            data,
            at,
            self._words,
            self._heads,
            self._limit_bytes,
            self._out,
            self._flows,
            self._tokens,
            self._bounds,
        )
        if not count:
            return None, at
        bounds = self._bounds[: count + 1]
        rows = bytes(memoryview(self._out)[: bounds[count]])
        return Batch(self._names, self._flows[:count], self._tokens[:count], bounds, rows), at


def pack_tuples(label: str, run: Run) -> tuple[bytes, array[int]]:
    """The tuples of a stream space, one after the other, and their boundaries."""
    name = pack(label)
    count = len(run.bounds) - 1
    out = bytearray(len(run.rows) + count * (20 + len(name)))
    bounds = _numbers(count + 1)
    size = kernel.tuples(run.rows, run.bounds, run.ends, run.tokens, name, out, bounds)
    return bytes(memoryview(out)[:size]), bounds


def render(packed: bytes, *, form: str) -> str | None:
    """One MsgPack value as JSON; None if it is odd. `form`: one of `linekernel.FORMS`."""
    out = bytearray(8 * len(packed) + linekernel.TEXT_ROOM_BYTES)
    size = linekernel.text(packed, linekernel.FORMS[form], out)
    return None if size < 0 else str(memoryview(out)[:size], "ascii")


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole units as RDATA lines: of the tuples `first` … `last`; of changes of a space, the
    signatures of the first and the last transaction."""

    data: bytes
    first: int
    last: int


class Writer:
    """Makes RDATA lines of the rows of one store, in a buffer that it uses again and again."""

    def __init__(self) -> None:
        self._out = bytearray(_OUT_BYTES)
        self._ends = _numbers(2 * BATCH_ROWS)

    def lines(
        self, found: list[bytes], label: str, head: str, *, spaced: bool
    ) -> Iterator[Lines | slice]:
        """Tuples of one writer in a stream space as RDATA lines.

        `head`: a line's text before its token. Returns many units together; or where a unit stands
        that has something odd in it, or a line that is too long.
        """
        start, front, label_bytes = 0, head.encode(), len(pack(label))
        form = linekernel.FORMS["spaced" if spaced else "compact"]
        if len(self._ends) < 2 * len(found):
            self._ends = _numbers(2 * len(found))
        ends = self._ends
        while start < len(found):
            made = linekernel.lines(
                found, start, front, form, self._out, label_bytes, SYNAPSE_LINE_BYTES, ends
            )
            if made:
                end, stop = ends[2 * made - 2], ends[2 * made - 1]
                yield Lines(bytes(memoryview(self._out)[:end]), start, stop - 1)
                start = stop
                continue
            token = found[start][: rows_kernel.skip(found[start], 1 + label_bytes)]
            stop = start
            while stop < len(found) and found[stop].startswith(token):
                stop += 1
            yield slice(start, stop)
            start = stop

    def change_lines(
        self,
        columns: RowColumns,
        ends: memoryview,
        transaction: int,
        space_id: int,
        fields: array[int],
        missing: int,
        head: bytes,
    ) -> tuple[int, Lines | None]:
        """Changes of a space in a block as RDATA lines, from a transaction on.

        `ends`: the block's transactions; `fields`: numbers of the key's; `missing`: what an lsn of
        these rows lacks to the signature. Returns the transaction to go on with, the same if
        it has operations or something odd in it, or a line that is too long; and what was made.
        """
        told = _numbers(4)
        reached = linekernel.changes(
            columns.data,
            columns.type,
            columns.space_id,
            columns.key_span,
            columns.tuple_span,
            columns.lsn,
            ends,
            [space_id, transaction, missing],
            fields,
            head,
            self._out,
            SYNAPSE_LINE_BYTES,
            told,
        )
        size, count, first, last = told
        if not count:
            return reached, None
        return reached, Lines(bytes(memoryview(self._out)[:size]), first, last)


def inserted(
    columns: RowColumns, ends: memoryview, space_id: int, missing: int
) -> Iterator[tuple[list[bytes], array[int]]]:
    """Tuples that a block inserts in a stream space, and the signature of each one's transaction;
    by runs of tuples with the same label. Arguments: see `Writer.change_lines`."""
    row, numbers = 0, _numbers(len(columns))
    while row < len(columns):
        found: list[bytes] = []
        start, row = (
            row,
            linekernel.gather(
                columns.data,
                columns.type,
                columns.space_id,
                columns.tuple_span,
                columns.lsn,
                ends,
                [space_id, row, missing],
                found,
                numbers,
            ),
        )
        assert row > start, "an INSERT of the log has a tuple"
        if found:
            yield found, numbers[: len(found)]


def is_run(columns: RowColumns) -> bool:
    """Whether the rows of a block are of one replica, and their lsns follow one another."""
    return bool(linekernel.is_run(columns.replica_id, columns.lsn, len(columns)))


def change_text(entry: Entry, stamp: Stamp, ops: bytes | None) -> str:
    """A change of a space as the JSON of its row. `ops`: operations that made it, or None."""
    parts = [entry.key, entry.data] if ops is None else [entry.key, entry.data, ops]
    return f'["{stamp.op}",{",".join(map(json_text, parts))}]'


def json_text(packed: bytes | None) -> str:
    """One MsgPack value as JSON without binary or NaN, on one ASCII line; None: `null`."""
    if packed is None:
        return "null"
    return render(packed, form="strict") or row_json(unpack(packed))
