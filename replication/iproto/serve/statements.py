"""Requests of iproto clients as statements on a group of the store, and their answers' bodies.

Each is a transaction of its own: one that fails is undone alone. Who checks what stands in
`endpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from logweir.errors import RequestError
from logweir.limits import IPROTO_ANSWER_BYTES, TURN_ANSWER_BYTES
from logweir.replication.iproto.serve.definitions import execute_checked
from logweir.replication.iproto.serve.sysview import VIEWS, row_filter
from logweir.replication.iproto.wire.codec import data_body, encode_answer, encode_error
from logweir.replication.iproto.wire.requests import Request
from logweir.replication.iproto.wire.runs import Run
from logweir.replication.service.access import (
    Access,
)
from logweir.store.commit.group import Group
from logweir.store.engine.batches import Answers
from logweir.store.engine.engine import Engine
from logweir.store.engine.executing import Executor
from logweir.store.engine.paging import Walk, entry_at, entry_of
from logweir.store.engine.reference import bounded
from logweir.store.engine.request import Request as Change
from logweir.store.engine.select import Select
from logweir.store.log import Log
from logweir.store.schema.definition import IndexDef, SpaceDef
from logweir.store.schema.schema import Schema
from logweir.wal.xrow import RowType

__all__ = [
    "NO_TUPLE",
    "SYSTEM_END",
    "Outcome",
    "execute_all",
    "read_run",
    "select_body",
]

SYSTEM_END: Final = 512
_NO_DATA: Final = data_body(())
NO_TUPLE: Final = b"\x90"


@dataclass(slots=True)
class Outcome:
    """What came of requests: the bytes of the answers, to how many requests they are, how many of
    these were refused, and the requests that were not executed."""

    answers: bytes
    count: int
    refused: int
    left: Sequence[Request | Run]


def execute_all(
    group: Group,
    events: Sequence[Request | Run],
    access: Access,
    schema_version: Callable[[Schema], int],
) -> Outcome:
    """Execute requests in a group, each a transaction; one that fails is undone alone. Those behind
    `limits.TURN_ANSWER_BYTES` of answers are left."""
    parts: list[bytes] = []
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
                left = [event.behind(done), *events[at + 1 :]]
                return Outcome(b"".join(parts), count, refused, left)
        else:
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


def read_run(
    log: Log, run: Run, executor: Executor, schema_version: Callable[[Schema], int]
) -> Outcome:
    """Execute SELECTs of a run, as many as `limits.TURN_ANSWER_BYTES` of answers let."""
    done, schema = log.select_batch(
        executor, run.data, run.columns, run.space_ids, TURN_ANSWER_BYTES
    )
    answers = run.answers(done, schema_version(schema))
    left = [run.behind(done.count)] if done.count < run.count else ()
    return Outcome(answers, done.count, len(done.refused), left)


def _execute_run(
    group: Group, run: Run, schema_version: Callable[[Schema], int]
) -> tuple[int, int, bytes]:
    """See `_executed`."""

    def execute(rest: Run) -> Answers:
        return group.execute_batch(
            rest.data, rest.columns, rest.space_ids, limit_bytes=TURN_ANSWER_BYTES
        )

    return _executed(run, execute, schema_version(group.schema))


def _executed(run: Run, execute: Callable[[Run], Answers], version: int) -> tuple[int, int, bytes]:
    """How many requests of a run were executed, how many of these were refused, and the answers.

    It stops at `limits.TURN_ANSWER_BYTES` of these, where they may be much larger than the
    requests.
    """
    count = refused = size = 0
    parts: list[bytes] = []
    while count < run.count and (size <= TURN_ANSWER_BYTES or not run.may_grow):
        rest = run.behind(count) if count else run
        done = execute(rest)
        parts.append(rest.answers(done, version))
        count += done.count
        refused += len(done.refused)
        size += len(parts[-1])
    return count, refused, parts[0] if len(parts) == 1 else b"".join(parts)


def execute(group: Group, request: Request, access: Access) -> bytes:
    """Run one request in a group. Returns the body of its answer. Raises `RequestError`."""
    kind = request.type
    if kind == RowType.SELECT:
        return select_body(group.engine, request, access)
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
    if request.space_id < SYSTEM_END:
        old, new = execute_checked(group, change, access)
    else:
        old, new = group.execute(change)
    if kind == RowType.UPSERT:
        return _NO_DATA
    found = old if kind == RowType.DELETE else new
    return _NO_DATA if found is None else data_body((found,))


def select_body(engine: Engine, request: Request, access: Access) -> bytes:
    """The body of the answer to a SELECT; of a system view it has what the user may know. Raises
    `RequestError`."""
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
    found = bounded(walk, IPROTO_ANSWER_BYTES)
    if shown is not None:
        upto = request.offset + request.limit
        found = islice((row for row in found if shown(row)), request.offset, upto)
    tuples = list(found)
    return data_body(tuples, walk.position if request.fetch_position and tuples else None)
