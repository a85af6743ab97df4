"""Random statements by the compiled engine and by a real Tarantool do the same.

Compared: tuple or error number of every statement, and at the end the tuples of all indexes in
order, HASH ones as a set. Left out are the values which logweir orders otherwise on purpose (see
`store.schema.keys`), and what is no MsgPack.
"""

from __future__ import annotations

import base64
import os
from typing import Any

import pytest

pytest.importorskip("logweir.store.engine.statementkernel")

from support.compiled import ALL, Compiled, Outcome
from support.definitions import row_of
from support.statements import TarantoolDice

from interop.realtarantool import RealTarantool
from logweir.store.engine.request import Request
from logweir.store.schema.definition import IndexType, SpaceDef
from logweir.store.schema.schema import Schema
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

pytestmark = pytest.mark.tarantool

STATEMENTS = int(os.environ.get("LOGWEIR_STATEMENTS", "6000"))
SPACES = 6
ALL_CODE = """
local out = setmetatable({}, {__serialize = 'seq'})
local msgpack, encode = require('msgpack'), require('digest').base64_encode
for i, t in ipairs(box.space[...].index[select(2, ...)]:select({}, {iterator = 'ALL'})) do
    out[i] = encode(msgpack.encode(t), {nowrap = true})
end
return out"""


def change(request: Request) -> tuple[Any, ...]:
    name = request.type.name.lower()
    first = request.tuple if request.key is None else request.key
    return (name, request.space_id, first, request.ops, request.index_base, request.index_id)


def answer(request: Request, outcome: Outcome) -> bytes | int | None:
    """What a client is told."""
    if outcome[0] == "refused":
        return outcome[1]  # type: ignore[return-value]
    _, old, new, _ = outcome
    if request.type is RowType.UPSERT:
        return None
    return old if request.type is RowType.DELETE else new  # type: ignore[return-value]


def define(box: RealTarantool, spaces: list[SpaceDef]) -> None:
    drop = "for _, i in ipairs(...) do if box.space[i] then box.space[i]:drop() end end"
    box.eval(drop, [[space.id for space in spaces]])
    rows = [("insert", 280, pack(row_of(space))) for space in spaces]
    rows += [("insert", 288, pack(row_of(index))) for space in spaces for index in space.indexes]
    for row, found in zip(rows, box.dml(rows), strict=True):
        assert isinstance(found, bytes), (row, found)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_statements_are_alike(seed: int, box: RealTarantool) -> None:
    """Same tuples, same error numbers, same contents of every index."""
    dice = TarantoolDice(seed)
    schema = Schema()
    spaces = [dice.space(610 + number) for number in range(SPACES)]
    for space in spaces:
        schema._put(space)
    define(box, spaces)
    compiled = Compiled(spaces, schema)
    done = 0
    while done < STATEMENTS // 3:
        requests = [dice.statement(dice.choice(spaces)) for _ in range(200)]
        ours = compiled.execute([(request, True) for request in requests])
        theirs = box.dml([change(request) for request in requests])
        for request, one, other in zip(requests, ours, theirs, strict=True):
            expected = other[0] if isinstance(other, tuple | list) else other
            space = schema.space(request.space_id)
            assert answer(request, one) == expected, (request, one, other, space)
        done += len(requests)
        compiled.add_layer()
    assert compiled.referred < done // 4
    for space in spaces:
        for index in space.indexes:
            (found,) = box.eval(ALL_CODE, [space.id, index.id])
            theirs = [base64.b64decode(text) for text in found]
            ((_, _, held),) = compiled.select([(space.id, index.id, 2, ALL, 0, b"\x90")])
            if index.type is IndexType.HASH:
                assert len(b"".join(theirs)) == len(held)  # type: ignore[arg-type]
            else:
                assert b"".join(theirs) == held, (space, index)
