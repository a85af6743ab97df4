"""Requests of iproto clients as statements on a group of the store, and their answers' bodies.

Each is a transaction of its own: one that fails is undone alone. Who checks what stands in
`endpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from logweir.errors import ErrorCode, RequestError
from logweir.limits import IPROTO_ANSWER_BYTES, TURN_ANSWER_BYTES
from logweir.replication.iproto.serve.sysview import VIEWS, row_filter
from logweir.replication.iproto.wire.codec import (
    data_body,
    data_parts,
    encode_answer,
    encode_error,
)
from logweir.replication.iproto.wire.requests import Request
from logweir.replication.iproto.wire.runs import Run
from logweir.replication.service.access import (
    Access,
)
from logweir.store.commit.group import Group
from logweir.store.engine.engine import Engine
from logweir.store.engine.paging import Walk, entry_at, entry_of
from logweir.store.engine.request import Request as Change
from logweir.store.engine.select import Select, pieces
from logweir.store.schema.definition import IndexDef, SpaceDef
from logweir.store.schema.schema import Schema
from logweir.wal.xrow import RowType

SYSTEM_END: Final = 512
_NO_DATA: Final = data_body(())
NO_TUPLE: Final = b"\x90"
Reading = Generator[None, None, list[bytes]]
"""What finds the answer to a SELECT step by step, and returns the parts of its body."""


@dataclass(slots=True)
class Outcome:
    """What came of requests: the bytes of the answers, to how many requests they are, how many of
    these were refused, and the requests that were not executed: a SELECT that is long, by itself,
    is one of these."""

    answers: bytes | bytearray
    count: int
    refused: int
    left: Sequence[Request | Run]


def execute_all(
    group: Group,
    events: Sequence[Request | Run],
    access: Access | None,
    schema_version: Callable[[Schema], int],
) -> Outcome:
    """Execute requests in a group, each a transaction; one that fails is undone alone. `access`: of
    who asks, None where all are of runs, whose rights are looked at before. Those after
    `limits.TURN_ANSWER_BYTES` of answers are left, and those from a SELECT on that is long, or is
    no part of a run: the group is no place to divide it."""
    parts: list[bytes | bytearray] = []
    count = refused = size = 0
    for at, event in enumerate(events):
        if size > TURN_ANSWER_BYTES:
            return Outcome(b"".join(parts), count, refused, events[at:])
        if isinstance(event, Run):
            done, failed, answers = _execute_run(group, event, schema_version)
            count += done
            refused += failed
            parts.append(answers)
            if done < event.count:
                left = [*_left(event, done), *events[at + 1 :]]
                return Outcome(b"".join(parts), count, refused, left)
        elif event.type == RowType.SELECT:
            return Outcome(b"".join(parts), count, refused, events[at:])
        else:
            assert access is not None
            mark = group.mark()
            count += 1
            try:
                body = execute(group, event, access)
            except RequestError as error:
                group.rollback(mark)
                refused += 1
                parts.append(encode_error(event.sync, schema_version(group.schema), error))
            else:
                group.divide()
                parts.append(encode_answer(event.sync, schema_version(group.schema), body))
        size += len(parts[-1])
    return Outcome(parts[0] if len(parts) == 1 else b"".join(parts), count, refused, ())


def _left(run: Run, done: int) -> Sequence[Request | Run]:
    """What is left of a run of which so many requests were executed: with none it halted at once,
    at a SELECT that is long."""
    return [run.behind(done)] if done else run.divided()


def _execute_run(
    group: Group, run: Run, schema_version: Callable[[Schema], int]
) -> tuple[int, int, bytes | bytearray]:
    """How many requests of a run were executed, how many of these were refused, and the answers.

    It stops at `limits.TURN_ANSWER_BYTES` of these, if they may be much larger than the
    requests.
    """
    version = schema_version(group.schema)
    count = refused = size = 0
    parts: list[bytes | bytearray] = []
    while count < run.count and (size <= TURN_ANSWER_BYTES or not run.may_grow):
        rest = run.behind(count) if count else run
        done = group.execute_batch(
            rest.data, rest.columns, rest.space_ids, limit_bytes=TURN_ANSWER_BYTES
        )
        if not done.count:
            break
        parts.append(rest.answers(done, version))
        count += done.count
        refused += len(done.refused)
        size += len(parts[-1])
    return count, refused, parts[0] if len(parts) == 1 else b"".join(parts)


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

    def after(space: SpaceDef, index: IndexDef) -> bytes | None:
        if request.after_position is not None:
            return entry_at(request.after_position, index)
        return None if request.after_tuple is None else entry_of(request.after_tuple, space, index)

    wanted = Select.packed(
        engine.schema,
        space_id,
        request.key or NO_TUPLE,
        request.iterator,
        index=request.index_id,
        limit=None if shown else request.limit,
        offset=0 if shown else request.offset,
        after=after,
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
