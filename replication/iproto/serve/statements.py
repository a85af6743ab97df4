# cython: annotation_typing=False
"""Requests of iproto clients as statements on a group of the store, and their answers' bodies.

Each is a transaction of its own: one that fails is undone alone. Who checks what stands in
`endpoint`.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `statements.pxd`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final

from logweir.errors import ErrorCode, RequestError
from logweir.limits import IPROTO_ANSWER_BYTES, TURN_ANSWER_BYTES
from logweir.replication.iproto.serve.sysview import VIEWS, row_filter
from logweir.replication.iproto.wire import kernel
from logweir.replication.iproto.wire.codec import (
    data_body,
    data_parts,
    encode_answer,
    encode_error,
)
from logweir.replication.iproto.wire.requests import Request
from logweir.replication.iproto.wire.runs import Run
from logweir.store.commit.group import Group
from logweir.store.engine.batches import Answers
from logweir.store.engine.engine import Engine
from logweir.store.engine.paging import Walk, behind
from logweir.store.engine.request import Request as Change
from logweir.store.engine.select import Select, pieces
from logweir.store.schema.access import Access
from logweir.store.schema.schema import Schema
from logweir.wal.xrow import RowType

SYSTEM_END: Final = 512
_NO_DATA: Final = data_body(())
NO_TUPLE: Final = b"\x90"
Reading = Generator[None, None, list[bytes]]
"""What finds the answer to a SELECT step by step, and returns the parts of its body."""


class Outcome:
    """What came of requests: the answers, in parts of `size_bytes` together, to how many requests
    they are, how many of these were refused, and the requests that were not executed: a SELECT that
    is long, by itself, is one of these.

    `free`: of the answers those to SELECTs that saw nothing of what the group changes, which are
    true whatever becomes of that; `bound`: the others; `pieces`: of the runs in which the former
    are: the run, the number of a piece's first request, it, and what came of it.
    """

    def __init__(self) -> None:
        self.free: Sequence[bytes | bytearray] = ()
        self.pieces: Sequence[tuple[Run, int, Run, Answers]] = ()
        self.left: Sequence[Request | Run] = ()
        self.bound: list[bytes | bytearray] = []
        self.size_bytes = self.count = self.refused = 0

    def add(self, answers: bytes | bytearray, count: int, refused: int) -> None:
        """`bound` answers to so many requests."""
        self.bound.append(answers)
        self.size_bytes += len(answers)
        self.count += count
        self.refused += refused

    def add_free(self, run: Run, first: int, piece: Run, done: Answers, version: int) -> bool:
        """The free answers of the piece of a run from request `first` on, which count with the
        others. Returns whether there are any."""
        free = piece.answers(done, version, kernel.FREE)
        if not free:
            return False
        self.free = (*self.free, free)
        self.size_bytes += len(free)
        self.pieces = (*self.pieces, (run, first, piece, done))
        return True

    def numbers(self, run: Run) -> set[int]:
        """The requests of a run whose answers are free."""
        return {
            first + number
            for whole, first, piece, done in self.pieces
            if whole is run
            for number in piece.free(done)
        }


def execute_all(
    group: Group,
    events: Sequence[Request | Run],
    access: Access | None,
    schema_version: Callable[[Schema], int],
    is_aside: Callable[[], bool] | None = None,
) -> Outcome:
    """Execute requests in a group, each a transaction; one that fails is undone alone. `access`: of
    who asks, None where all are of runs, whose rights are looked at before. Those after
    `limits.TURN_ANSWER_BYTES` of answers are left, and those from a SELECT on that is long, or is
    no part of a run: the group is no place to divide it. `is_aside`: see `Line.is_aside`; where it
    is not so no answer is free, for it could not be sent any earlier than the others."""
    made, has_free = Outcome(), is_aside is not None and is_aside()
    for at, event in enumerate(events):
        if made.size_bytes > TURN_ANSWER_BYTES:
            made.left = events[at:]
            break
        if isinstance(event, Run):
            done = execute_run(group, event, schema_version, made, has_free)
            if done < event.count:
                made.left = [*event.left(done), *events[at + 1 :]]
                break
        elif event.type == RowType.SELECT:
            made.left = events[at:]
            break
        else:
            assert access is not None
            mark = group.mark()
            try:
                body = execute(group, event, access)
            except RequestError as error:
                group.rollback(mark)
                made.add(encode_error(event.sync, schema_version(group.schema), error), 1, 1)
            else:
                group.divide()
                made.add(encode_answer(event.sync, schema_version(group.schema), body), 1, 0)
    return made


def refuse_all(
    events: Iterable[Request | Run],
    error: RequestError,
    schema_version: int,
    told: Outcome | None,
) -> Outcome:
    """The same error for all changes; reads are left, but those of which `told` has given the free
    answers."""
    refused = Outcome()
    left: list[Request | Run] = []
    for event in events:
        if isinstance(event, Run):
            free = told.numbers(event) if told is not None else ()
            errors, reads = event.refused(error, schema_version, free)
            for answer in errors:
                refused.add(answer, 1, 1)
            refused.count += len(free)
            if reads.count:
                left.append(reads)
        elif event.type == RowType.SELECT:
            left.append(event)
        else:
            refused.add(encode_error(event.sync, schema_version, error), 1, 1)
    refused.left = left
    return refused


def execute_run(
    group: Group,
    run: Run,
    schema_version: Callable[[Schema], int],
    made: Outcome,
    has_free: bool = False,
    *,
    is_inside: bool = False,
) -> int:
    """How many requests of a run were executed; what came of them goes into `made`.

    It stops at `limits.TURN_ANSWER_BYTES` of answers, if they may be much larger than the
    requests. `has_free`: some answers may be free; in a group that changes definitions none is:
    what is below it may be gone. `is_inside`: they are part of the open transaction, from which one
    that fails is undone alone.
    """
    version = schema_version(group.schema)
    number, wanted, before = 0, run.count, made.size_bytes
    while number < wanted and (
        not number or made.size_bytes - before <= TURN_ANSWER_BYTES or not run.may_grow
    ):
        rest = run.behind(number) if number else run
        done = group.execute_batch(
            rest.data,
            rest.columns,
            rest.space_ids,
            limit_bytes=TURN_ANSWER_BYTES,
            is_inside=is_inside,
        )
        count = done.count
        if not count:
            break
        which = 0
        if (
            has_free
            and not group.changed_schema
            and made.add_free(run, number, rest, done, version)
        ):
            which = kernel.BOUND
        made.add(rest.answers(done, version, which), count, len(done.refused))
        number += count
    return number


def execute(group: Group, request: Request, access: Access) -> bytes:
    """Run one request in a group. Returns the body of its answer. Raises `RequestError`."""
    kind = request.type
    if kind == RowType.SELECT:
        selecting = select_body(group.engine, request, access)
        while True:
            try:
                next(selecting)
            except StopIteration as end:
                return b"".join(end.value)
    ops = request.tuple if kind == RowType.UPDATE else request.ops
    change = Change(
        RowType(kind),
        request.space_id,
        key=request.key,
        tuple=None if kind == RowType.UPDATE else request.tuple,
        ops=ops,
        index_id=request.index_id,
        index_base=request.index_base,
    )
    old, new = group.execute(change, access)
    if kind == RowType.UPSERT:
        return _NO_DATA
    found = old if kind == RowType.DELETE else new
    return _NO_DATA if found is None else data_body((found,))


def select_body(engine: Engine, request: Request, access: Access) -> Reading:
    """Find what a SELECT asks for, piece by piece. Returns the body of the answer, in parts; of a
    system view it has what the user may know. Raises `RequestError`."""
    view = VIEWS.get(request.space_id)
    shown: Callable[[bytes], bool] | None = None
    space_id = request.space_id
    if view is not None:
        space_id = view.source_id
        shown = row_filter(request.space_id, access, engine.schema)

    wanted = Select.packed(
        engine.schema,
        space_id,
        request.key or NO_TUPLE,
        request.iterator,
        index=request.index_id,
        limit=None if shown else request.limit,
        offset=0 if shown else request.offset,
        after=behind(request.after),
    )
    walk = Walk(engine, wanted)
    if shown is not None:
        found = _shown(walk, shown, request)
    elif request.fetch_position:
        found = ((len(tuples), b"".join(tuples)) for tuples in walk)
    else:
        found = (piece.block() for piece in pieces(engine, wanted))
    parts: list[bytes] = []
    count = size = 0
    for number, data in found:
        parts.append(data)
        count += number
        size += len(data)
        if size > IPROTO_ANSWER_BYTES:
            text = f"Failed to allocate {size} bytes in iproto for the answer of a select"
            raise RequestError(ErrorCode.MEMORY_ISSUE, text, hint="ask for less at a time")
        yield
    return data_parts(count, parts, walk.position if request.fetch_position and count else None)


def _shown(
    walk: Walk, shown: Callable[[bytes], bool], request: Request
) -> Iterator[tuple[int, bytes]]:
    """The tuples of a system view that a user may know: how many, and their bytes, by pieces."""
    first, last, at = request.offset, request.offset + request.limit, 0
    for tuples in walk:
        rows = [row for row in tuples if shown(row)]
        chosen = rows[max(first - at, 0) : max(last - at, 0)]
        at += len(rows)
        if chosen:
            walk.end_at(chosen[-1])
        yield len(chosen), b"".join(chosen)
        if at >= last:
            return
