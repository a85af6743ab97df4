# cython: annotation_typing=False
"""Runs of pipelined requests, handled as columns of statements instead of objects.

`take_run` finds the run that comes first (its form is in `kernel`); `Run.answers` makes the bytes
of all answers of what came of it.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `runs.pxd`.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from logweir.errors import RequestError
from logweir.replication.iproto.wire import kernel
from logweir.replication.iproto.wire.codec import encode_error
from logweir.replication.iproto.wire.requests import Request
from logweir.store.engine.batches import Answers
from logweir.store.engine.executing import LAST
from logweir.store.engine.reader import PlainRequests
from logweir.wal.xrow import RowType

__all__ = ["MAY_GROW", "Run", "SelectReader", "no_ids", "take_run"]

_RUN_MAX: Final = 65_536
_PART: Final = 64  # requests: of what is left of a run, where that is much
_STOP: Final = kernel.RUN_STOP
_SPACES: Final = kernel.RUN_SPACES
_USES: Final = kernel.RUN_USES
_HEAD: Final = kernel.RUN_HEAD
_WIDTH: Final = kernel.WIDTH
_NUMBERS: Final = 2 + _WIDTH  # of a request
_ZERO: Final = array("Q", (0,))
_WRITES: Final = (kernel.USED_TO_WRITE,)  # in a single space
_FREE: Final = array("Q", (0, 1))  # status and code of a SELECT that saw nothing of the changes
MAY_GROW: Final = frozenset((RowType.SELECT, RowType.UPDATE, RowType.DELETE))
"""Types whose answers may take much more than the requests."""


class Run:
    """One run. `data`: bytes in which the spans of `columns` are (see
    `store.engine.statementkernel`); `space_ids`: of its spaces; `uses`: of each space,
    `kernel.USED_TO_READ`, `USED_TO_WRITE` or both; `stop`: where it ends; `size_bytes`: about what
    it takes in memory until it is answered; `at`: where in `data` its frames begin; `streams`: of
    its requests, None: they are of none; `named_at`: the version of the schema by which names in it
    were made into ids, -1: there were none.
    """

    def __init__(
        self,
        data: bytes,
        columns: array[int],
        syncs: array[int],
        space_ids: Sequence[int],
        uses: Sequence[int],
        stop: int,
        size_bytes: int,
        at: int = 0,
        streams: array[int] | None = None,
        named_at: int = -1,
    ) -> None:
        self.data = data
        self.columns = columns
        self.syncs = syncs
        self.space_ids = space_ids
        self.uses = uses
        self.stop = stop
        self.size_bytes = size_bytes
        self.at = at
        self.streams = streams
        self.named_at = named_at

    @property
    def count(self) -> int:
        """How many requests there are."""
        return len(self.syncs)

    @property
    def may_grow(self) -> bool:
        """Whether answers may take much more than their requests."""
        return not MAY_GROW.isdisjoint(self.columns[::_WIDTH])

    @property
    def may_read(self) -> bool:
        """Whether there may be SELECTs among them."""
        return self.uses != _WRITES

    @property
    def is_read_only(self) -> bool:
        """Whether all are SELECTs."""
        return kernel.USED_TO_WRITE not in self.uses and 3 not in self.uses

    def behind(self, number: int) -> Run:
        """The requests from one on."""
        return self.between(number, self.count)

    def between(self, first: int, last: int) -> Run:
        """The requests from one on, before another one."""
        columns = self.columns[first * kernel.WIDTH : last * kernel.WIDTH]
        at = kernel.frames_end(self.data, self.at, first)
        streams = None if self.streams is None else self.streams[first:last]
        part = self._part(columns, self.syncs[first:last], streams, at)
        if last < self.count:  # who reads the frames stops there, too
            part.data = self.data[: kernel.frames_end(self.data, at, last - first)]
        return part

    def _ends(self) -> list[int]:
        """Where the frames begin, and the last one ends."""
        ends = [self.at]
        for _ in self.syncs:
            ends.append(kernel.frames_end(self.data, ends[-1], 1))
        return ends

    def _chosen(self, numbers: Iterable[int], ends: Sequence[int]) -> Run:
        """Some of the requests, in bytes of their own. `ends`: see `_ends`."""
        columns, syncs, streams = array("Q"), array("Q"), array("Q")
        frames, size = [], 0
        for number in numbers:
            start, end = ends[number], ends[number + 1]
            row = self.columns[number * kernel.WIDTH : (number + 1) * kernel.WIDTH]
            for place in range(4, 8):  # its spans
                if row[place]:
                    row[place] += size - start
            frames.append(self.data[start:end])
            size += end - start
            columns += row
            syncs.append(self.syncs[number])
            if self.streams is not None:
                streams.append(self.streams[number])
        part = self._part(columns, syncs, None if self.streams is None else streams, 0)
        part.data = b"".join(frames)
        return part

    def _part(
        self, columns: array[int], syncs: array[int], streams: array[int] | None, at: int
    ) -> Run:
        size = self.size_bytes * len(syncs) // max(self.count, 1)
        streams = streams if streams is not None and any(streams) else None
        ids, uses, named_at = self.space_ids, self.uses, self.named_at
        return Run(self.data, columns, syncs, ids, uses, self.stop, size, at, streams, named_at)

    def by_stream(self, held: Collection[int]) -> tuple[dict[int, Run], Run | None, Run | None]:
        """The requests of each of some streams, at least one; and of the others those before the
        first of them, and those behind it, where there are any."""
        assert self.streams is not None
        numbers: dict[int, list[int]] = {}
        others: tuple[list[int], list[int]] = [], []
        for number, stream in enumerate(self.streams):
            if stream in held:
                numbers.setdefault(stream, []).append(number)
            else:
                others[bool(numbers)].append(number)
        if len(numbers) == 1 and not any(others):
            return dict.fromkeys(numbers, self), None, None
        ends, (before, behind) = self._ends(), others
        parts = {one: self._chosen(which, ends) for one, which in numbers.items()}
        first = self.between(0, len(before)) if before else None
        return parts, first, self._chosen(behind, ends) if behind else None

    def left(self, done: int) -> list[Request | Run]:
        """What is left when so many requests were executed: with none it halted at once, at a
        SELECT that is long, which is a request by itself then."""
        if done:
            return [self.behind(done)]
        _, place, index, iterator, start, end, after, after_end = [
            self.columns[at] for at in range(8)
        ]
        limit, offset, has_position = [self.columns[LAST + at] for at in range(2, 5)]
        if self.count > _PART:  # it may halt at each: what is behind is not copied each time
            rest = [self.between(1, _PART), self.behind(_PART)]
        else:
            rest = [self.behind(1)] if self.count > 1 else []
        first = Request(
            RowType.SELECT,
            self.syncs[0],
            stream_id=0 if self.streams is None else self.streams[0],
            size_bytes=self.size_bytes - sum([one.size_bytes for one in rest]),
            space_id=self.space_ids[place],
            index_id=index,
            iterator=iterator,
            limit=limit,
            offset=offset,
            key=self.data[start:end],
            after=self.data[after:after_end],
            fetch_position=bool(has_position),
        )
        return [first, *rest]

    def _use(self, number: int) -> tuple[int, int]:
        """The space of a request, and for what it is used."""
        row = number * kernel.WIDTH
        kind, place = self.columns[row], self.columns[row + 1]
        is_read = kind == RowType.SELECT
        return self.space_ids[place], kernel.USED_TO_READ if is_read else kernel.USED_TO_WRITE

    def without(self, uses: Collection[tuple[int, int]], but: Collection[int] = ()) -> Run:
        """The requests whose spaces are not used so, but some."""
        left = tuple(
            use & ~sum(one for space, one in uses if space == space_id)
            for space_id, use in zip(self.space_ids, self.uses, strict=True)
        )
        numbers = range(self.count)
        kept = [n for n in numbers if self._use(n) not in uses and n not in but]
        part = self._chosen(kept, self._ends())
        part.uses = left
        return part

    def errors(
        self, uses: Mapping[tuple[int, int], RequestError], schema_version: int
    ) -> list[bytes]:
        """The answers to the requests whose spaces are used so."""
        found: list[bytes] = []
        for number, sync in enumerate(self.syncs):
            error = uses.get(self._use(number))
            if error is not None:
                found.append(encode_error(sync, schema_version, error))
        return found

    def refused(
        self,
        error: RequestError,
        schema_version: int,
        told: Collection[int] = (),
        use: int = kernel.USED_TO_WRITE,
    ) -> tuple[list[bytes], Run]:
        """The same answer to all changes, or what else is the `use`; and the others but those that
        are `told`, none of which has an answer then."""
        uses = {(space_id, use): error for space_id in self.space_ids}
        return self.errors(uses, schema_version), self.without(uses, told)

    def free(self, done: Answers) -> list[int]:
        """Of what was executed the SELECTs that saw nothing of the changes beside them."""
        columns, results = self.columns, done.results
        return [
            number
            for number in range(done.count)
            if columns[number * kernel.WIDTH] == RowType.SELECT
            and results[number * kernel.RESULTS : number * kernel.RESULTS + 2] == _FREE
        ]

    def answers(self, done: Answers, schema_version: int, which: int = 0) -> bytes | bytearray:
        """The answers to what was executed, as `codec.encode_answer` and `encode_error` make them.
        `which`: 0 all; `kernel.FREE`: those to what is `free`; `kernel.BOUND`: the others."""
        first, count = 0, done.count
        version = schema_version & 0xFFFFFFFF
        if not done.refused:
            return self._answers(done, 0, count, version, which)
        parts: list[bytes | bytearray] = []
        for number in (*done.refused, count):
            if number > first:
                parts.append(self._answers(done, first, number, version, which))
            if number < count and which != kernel.FREE:
                error = done.error(number)
                parts.append(encode_error(self.syncs[number], schema_version, error))
            first = number + 1
        return b"".join(parts)

    def _answers(self, done: Answers, first: int, last: int, version: int, which: int) -> bytearray:
        """Of those that are not refused, at least one."""
        given = (self.columns, self.syncs, done.results, done.out, first, last, version)
        count = last - first
        room = count * kernel.ANSWER_BYTES + len(done.out) * count // done.count
        out = bytearray(room)
        size: int = kernel.answers(*given, out, which)
        if size > len(out):
            out = bytearray(size)
            kernel.answers(*given, out, which)
        del out[size:]
        return out


if TYPE_CHECKING:
    SelectReader = PlainRequests
else:
    try:
        from logweir.replication.iproto.wire.readselectkernel import SelectReader
    except ImportError:
        SelectReader = PlainRequests


def no_ids(of: int, name: bytes) -> int:
    """Knows no names."""
    return -1


def take_run(data: bytes, at: int, schema_version: int, ids: kernel.Ids = no_ids) -> Run | None:
    """The run that begins at `at`, None if there is none. `ids`: see `kernel`."""
    capacity = kernel.frames(data, at, _RUN_MAX)
    if not capacity:
        return None
    table = _ZERO * (_HEAD + _NUMBERS * capacity)
    count = kernel.take_run(data, at, schema_version & 0xFFFFFFFFFFFFFFFF, table, capacity, ids)
    if not count:
        return None
    stop, spaces, first = table[_STOP], table[_SPACES], _HEAD + capacity
    streams = len(table) - capacity
    return Run(
        data[at:stop],
        table[first : first + count * _WIDTH],
        table[_HEAD : _HEAD + count],
        tuple(table[_SPACES + 1 : _SPACES + 1 + spaces]),
        tuple(table[_USES : _USES + spaces]),
        stop,
        stop - at + 8 * len(table) // capacity * count,
        streams=table[streams : streams + count] if table[kernel.RUN_STREAMS] else None,
        named_at=schema_version if table[kernel.RUN_NAMES] else -1,
    )
