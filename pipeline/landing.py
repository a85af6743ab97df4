"""A DataFrame into a running server: one connection, in order, each batch once.

One batch of a stream is one transaction of the server, with the batch's number in
`logweir_position` (source `spark`, stream = the query's name): a batch that is committed again,
because a crash came between this commit and Spark's, is found there and left out, whole. So it has
to fit `limits.IPROTO_FRAME_BYTES`. A batch write has no number and goes in several transactions,
cut between those of its rows.

A server of logweir does it by the function `logweir_land`, which its operator allows with
``--functions logweir.pipeline.landing``; it may write to every space. A Tarantool, which has no
such function, does it by EVAL, so the user needs the right to execute on the universe; tuples reach
it as MsgPack and are stored byte for byte. Throughput is that of one connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from logweir.errors import ConfigError, ErrorCode, LimitExceeded, RequestError
from logweir.limits import IPROTO_FRAME_BYTES
from logweir.pipeline.options import ORIGIN, SinkOptions
from logweir.pipeline.publish import part_rows
from logweir.replication.iproto.client import Client, open_client
from logweir.replication.iproto.wire.codec import IprotoKey, RequestType
from logweir.replication.protocols import parse_url
from logweir.replication.stream.positions import POSITION_SPACE, make_spaces
from logweir.store import Log
from logweir.store.engine.request import Request
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

if TYPE_CHECKING:
    from logweir.pipeline.parts import Part

FUNCTION: Final = "logweir_land"
SOURCE: Final = "spark"
_CHUNK_BYTES: Final = 1024 * 1024
_FRAME_ROOM: Final = 4096
_TAKEN: Final = (
    *(RowType.INSERT, RowType.REPLACE, RowType.UPDATE, RowType.DELETE, RowType.UPSERT),
)

Change = tuple[int, int, bytes, bytes, int]
"""Type, space id, tuple (of a delete or update: key), operations, index base."""

LUA: Final = r"""
local query, batch, changes = ...
local ffi = require('ffi')
if not pcall(function() return ffi.C.box_upsert end) then
    ffi.cdef[[
    typedef struct tuple box_tuple_t;
    int box_insert(uint32_t, const char *, const char *, box_tuple_t **);
    int box_replace(uint32_t, const char *, const char *, box_tuple_t **);
    int box_delete(uint32_t, uint32_t, const char *, const char *, box_tuple_t **);
    int box_update(uint32_t, uint32_t, const char *, const char *, const char *, const char *,
                   int, box_tuple_t **);
    int box_upsert(uint32_t, uint32_t, const char *, const char *, const char *, const char *,
                   int, box_tuple_t **);
    ]]
end
local function apply(kind, space, a, b, base)
    local result = ffi.new('box_tuple_t *[1]')
    local pa, pb = ffi.cast('const char *', a), ffi.cast('const char *', b)
    if kind == 2 then return ffi.C.box_insert(space, pa, pa + #a, result) end
    if kind == 3 then return ffi.C.box_replace(space, pa, pa + #a, result) end
    if kind == 4 then
        return ffi.C.box_update(space, 0, pa, pa + #a, pb, pb + #b, base, result)
    end
    if kind == 5 then return ffi.C.box_delete(space, 0, pa, pa + #a, result) end
    return ffi.C.box_upsert(space, 0, pa, pa + #a, pb, pb + #b, base, result)
end
if jit then jit.off(apply, true) end
local positions = box.space.logweir_position
if query ~= '' and positions == nil then
    positions = box.schema.space.create('logweir_position', {if_not_exists = true, format = {
        {'source', 'string'}, {'stream', 'string'}, {'instance', 'string'},
        {'tokens', 'map'}, {'time', 'unsigned'}}})
    positions:create_index('primary', {if_not_exists = true, parts = {
        {1, 'string'}, {2, 'string'}, {3, 'string'}}})
end
box.begin()
local done, problem = pcall(function()
    if query ~= '' then
        local known = positions:get{'spark', query, ''}
        if known ~= nil and known[4].batch >= batch then return false end
        positions:replace{'spark', query, '', {batch = batch},
                          math.floor(require('clock').time() * 1000)}
    end
    for number, change in ipairs(changes) do
        if apply(unpack(change)) ~= 0 then
            local failure = box.error.last()
            error(('row %d: %s (error %d)'):format(number - 1, failure.message, failure.code), 0)
        end
    end
    return true
end)
if done and problem then box.commit() else box.rollback() end
if not done then error(problem, 0) end
return problem
"""


def logweir_land(log: Log, query: str, batch: int, changes: Sequence[Sequence[Any]]) -> bool:
    """Apply the changes of one batch in one transaction. Called over the network.

    `query`, `batch`: its name; "" for none. `changes`: type, space id, tuple or key, operations,
    index base. Returns whether they were applied: not where the batch was there already.
    """
    if query:
        make_spaces(log)
    with log.transaction() as transaction:
        if query:
            known = transaction.get(POSITION_SPACE, (SOURCE, query, ""))
            if known is not None and known[3]["batch"] >= batch:
                transaction.rollback()
                return False
            position = [SOURCE, query, "", {"batch": batch}, time.time_ns() // 1_000_000]
            space = transaction.schema.space(POSITION_SPACE)
            transaction.execute(Request(RowType.REPLACE, space.id, tuple=pack(position)))
        for number, change in enumerate(changes):
            try:
                transaction.execute(_request(*change))
            except RequestError as error:
                text = f"row {number}: {error.message}"
                raise RequestError(error.code, text, hint=error.hint) from error
    return True


def _request(kind: int, space: int, first: bytes, ops: bytes, base: int) -> Request:
    """A change as the store's request."""
    if kind in (RowType.INSERT, RowType.REPLACE):
        return Request(RowType(kind), space, tuple=first)
    if kind == RowType.DELETE:
        return Request(RowType.DELETE, space, key=first)
    if kind == RowType.UPDATE:
        return Request(RowType.UPDATE, space, key=first, ops=ops, index_base=base)
    if kind == RowType.UPSERT:
        return Request(RowType.UPSERT, space, tuple=first, ops=ops, index_base=base)
    raise RequestError(ErrorCode.UNKNOWN_REQUEST_TYPE, f"type {kind} is no change")


def land(options: SinkOptions, query: str, batch: int, parts: Sequence[Part]) -> None:
    """Send all rows of the parts, in order. `query`: "" for a write that is no stream's.

    Raises `RequestError` if the server refuses a row (nothing of that transaction is there),
    `LimitExceeded` if a batch is too large for one, `Unreachable`, `ConfigError`.
    """
    url = parse_url(options.url, origin=ORIGIN)
    if url.scheme != "tarantool":
        raise ConfigError(
            "url", f"rows are written to tarantool:// only, not {url.scheme}://", origin=ORIGIN
        )
    asyncio.run(_land(options, query, batch, parts))


async def _land(options: SinkOptions, query: str, batch: int, parts: Sequence[Part]) -> None:
    async with open_client(parse_url(options.url, origin=ORIGIN)) as client:
        by_eval = False
        for changes in _transactions(parts, whole=bool(query)):
            by_eval = await _send(client, query, batch, changes, by_eval=by_eval)


async def _send(
    client: Client, query: str, batch: int, changes: list[Change], *, by_eval: bool
) -> bool:
    """One transaction. Returns whether it took EVAL."""
    arguments = [query, batch, [list(change) for change in changes]]
    if not by_eval:
        try:
            body = {int(IprotoKey.FUNCTION_NAME): FUNCTION, int(IprotoKey.TUPLE): arguments}
            await client.call(RequestType.CALL, body)
            return False
        except RequestError as error:
            if error.code != ErrorCode.NO_SUCH_PROC:
                raise
    try:
        body = {int(IprotoKey.EXPR): LUA, int(IprotoKey.TUPLE): arguments}
        await client.call(RequestType.EVAL, body)
    except RequestError as error:
        if error.code in (
            *(ErrorCode.UNSUPPORTED, ErrorCode.UNKNOWN_REQUEST_TYPE, ErrorCode.ACCESS_DENIED),
        ):
            raise RequestError(
                error.code,
                f"{client.url} has no function {FUNCTION}, and EVAL was refused: {error.message}.",
                hint="start a logweir with --functions logweir.pipeline.landing; in a Tarantool "
                "grant the user execute on universe",
            ) from error
        raise
    return True


def _transactions(parts: Sequence[Part], *, whole: bool) -> Iterator[list[Change]]:
    """The changes of all parts: in one piece, or in pieces that end where a transaction does."""
    changes: list[Change] = []
    size = 0
    for part in parts:
        for columns in part_rows(part):
            ends = set(columns.transaction_ends().tolist())
            for row, kind in enumerate(columns.type.tolist()):
                if kind not in _TAKEN:
                    continue
                changed = kind in (RowType.UPDATE, RowType.DELETE)
                first = columns.key_bytes(row) if changed else columns.tuple_bytes(row)
                ops = columns.ops_bytes(row) or b""
                base = columns.index_base[row]
                changes.append((kind, columns.space_id[row], first or b"", ops, base))
                size += len(first or b"") + len(ops) + 32
                if size > IPROTO_FRAME_BYTES - _FRAME_ROOM - len(LUA):
                    raise LimitExceeded(
                        "IPROTO_FRAME_BYTES",
                        IPROTO_FRAME_BYTES,
                        size,
                        hint="a batch is one transaction: set max_rows_per_batch or "
                        "max_bytes_per_batch of the stream that is read",
                    )
                if not whole and size >= _CHUNK_BYTES and row + 1 in ends:
                    yield changes
                    changes, size = [], 0
    if changes or whole:
        yield changes
