"""Requests of iproto clients as statements on a group of the store, and their answers' bodies.

Each is a transaction of its own: one that fails is undone alone. Who checks what stands in
`endpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from logweir.errors import ErrorCode, RequestError
from logweir.limits import (
    IPROTO_ANSWER_BYTES,
    OUTPUT_HIGH_BYTES,
)
from logweir.replication.iproto.access import (
    Access,
)
from logweir.replication.iproto.codec import (
    data_body,
)
from logweir.replication.iproto.requests import Request
from logweir.replication.iproto.rights import execute_checked
from logweir.replication.iproto.sysview import VIEWS, row_filter
from logweir.store.engine import Engine
from logweir.store.group import Group
from logweir.store.request import Request as Change
from logweir.store.select import Select, select
from logweir.wal.xrow import RowType

__all__ = [
    "NO_TUPLE",
    "SYSTEM_END",
    "apply_each",
    "execute",
    "run_select",
    "some",
]

SYSTEM_END: Final = 512
_NO_DATA: Final = data_body(())
NO_TUPLE: Final = b"\x90"


def apply_each(
    group: Group, requests: Iterable[Request], access: Access
) -> Iterator[bytes | RequestError]:
    """Run requests in a group, each a transaction; one that fails is undone alone."""
    for request in requests:
        mark = group.mark()
        try:
            result = execute(group, request, access)
        except RequestError as error:
            group.rollback(mark)
            yield error
        else:
            group.divide()
            yield result


def some(results: Iterator[bytes | RequestError]) -> list[bytes | RequestError]:
    """Results up to `limits.OUTPUT_HIGH_BYTES`; those behind are not asked for."""
    taken: list[bytes | RequestError] = []
    size = 0
    for result in results:
        taken.append(result)
        size += len(result) if isinstance(result, bytes) else 0
        if size > OUTPUT_HIGH_BYTES:
            break
    return taken


def execute(group: Group, request: Request, access: Access) -> bytes:
    """Run one request in a group. Returns the body of its answer. Raises `RequestError`."""
    kind = request.type
    if kind == RowType.SELECT:
        return data_body(list(run_select(group.engine, request, access)))
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


def run_select(engine: Engine, request: Request, access: Access) -> Iterator[bytes]:
    """The tuples that a SELECT gives; of a system view those that the user may know."""
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
    )
    found = _bounded(select(engine, wanted))
    if shown is None:
        return found
    return islice(
        (row for row in found if shown(row)), request.offset, request.offset + request.limit
    )


def _bounded(rows: Iterable[bytes]) -> Iterator[bytes]:
    """Raises error 2 where an answer would become larger than `limits.IPROTO_ANSWER_BYTES`."""
    size = 0
    for row in rows:
        size += len(row)
        if size > IPROTO_ANSWER_BYTES:
            text = f"Failed to allocate {size} bytes in iproto for the answer of a select"
            raise RequestError(ErrorCode.MEMORY_ISSUE, text, hint="ask for less at a time")
        yield row
