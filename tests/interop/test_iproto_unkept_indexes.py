"""Indexes that logweir does not keep (BITSET, RTREE, of a function): the data is followed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from interop.realtarantool import RealTarantool
from interop.serving import Serving
from interop.test_iproto_cli import told
from logweir.errors import ErrorCode, RequestError
from logweir.replication.iproto.follow.join import join
from logweir.replication.protocols import parse_url
from logweir.wal.mp import Value

pytestmark = pytest.mark.tarantool

SETUP = """
box.schema.user.grant('guest', 'replication')
box.schema.func.create('shout', {
    body = [[function(row) return {string.upper(row[4])} end]],
    is_deterministic = true, is_sandboxed = true
})
"""
MAKE = """
box.schema.space.create(..., {format = {
    {'id', 'unsigned'}, {'bits', 'unsigned'}, {'place', 'array'}, {'name', 'string'}
}}):create_index('p')
local space = box.space[...]
space:create_index('bits', {type = 'bitset', parts = {2, 'unsigned'}, unique = false})
space:create_index('place', {type = 'rtree', parts = {3, 'array'}, unique = false})
space:create_index('shout', {func = 'shout', parts = {{1, 'string'}}})
space:create_index('name', {parts = {4, 'string'}})
space:insert{1, 3, {0, 0}, 'one'}
space:insert{2, 6, {5, 5}, 'two'}
space:update(1, {{'=', 2, 7}})
space:delete(2)
"""
UNKEPT = ("bits", "place", "shout")


def check(serving: Serving, name: str, rows: list[list[Value]], gone: str = "") -> None:
    log = serving.log

    def is_defined() -> bool:
        space = log.schema.get(name)
        return space is not None and "name" in [index.name for index in space.indexes]

    serving.wait(is_defined)  # the space and each index come in transactions of their own
    serving.wait(lambda: [list(row) for row in log.select(name)] == rows)
    assert [list(row) for row in log.select(name, index="name")] == sorted(
        rows, key=lambda row: str(row[3])
    )
    for index in set(UNKEPT) - {gone}:
        with pytest.raises(RequestError, match=f"does not keep .*'{index}'") as refused:
            log.select(name, index=index)
        assert refused.value.code == ErrorCode.UNSUPPORTED


def test_data_with_unkept_indexes_is_followed(tmp_path: Path) -> None:
    """By JOIN and by rows that come later, over a restart, with changes of ours; a real replica of
    ours has the indexes."""
    with RealTarantool(tmp_path / "master") as master:
        master.eval(SETUP)
        master.eval(MAKE, ["joined"])
        url = parse_url(f"tarantool://127.0.0.1:{master.port}")
        joined = asyncio.run(join(url, tmp_path / "ours"))
        said = " ".join(joined.warnings)
        assert len(joined.warnings) == 3
        assert all(word in said for word in ("'bits'", "BITSET", "RTREE", "functional"))
        first: list[list[Value]] = [[1, 7, [0, 0], "one"]]
        with Serving(tmp_path / "ours", follow=[url], guest="replicate") as serving:
            master.eval(MAKE, ["followed"])
            check(serving, "joined", first)
            check(serving, "followed", first)
            master.eval("box.space.joined:insert{3, 1, {1, 1}, 'a three'}")
            check(serving, "joined", [*first, [3, 1, [1, 1], "a three"]])
            serving.log.insert("followed", (9, 8, [2, 1], "ours"))
            serving.log.update("followed", 9, [["=", "place[2]", 2]])  # by the reference engine
            options = {"replication": f"127.0.0.1:{serving.port}", "replication_timeout": 0.3}
            replica = RealTarantool(tmp_path / "replica", listen=None, cfg=options)
            with replica:
                found = replica.eval("""
                    local space = box.space.followed
                    return space.index.bits:select(8, {iterator = 'bits_all_set'}),
                        space.index.shout:select('OURS'), space.index.place:select({0, 0})
                """)
                ours, one = [9, 8, [2, 2], "ours"], [1, 7, [0, 0], "one"]
                assert found == [[ours], [ours], [one]]
            master.eval("""
                box.space.followed.index.place:drop()
                box.space.followed.index.name:alter({parts = {{4, 'string'}, {1, 'unsigned'}}})
                box.space.followed:insert{4, 4, {4, 4}, 'a four'}
            """)
            followed: list[list[Value]] = [*first, [4, 4, [4, 4], "a four"], [9, 8, [2, 2], "ours"]]
            check(serving, "followed", followed, gone="place")
        with Serving(tmp_path / "ours", follow=[url]) as serving:
            check(serving, "followed", followed, gone="place")
    code, out, _ = told("--json", "info", tmp_path / "ours")
    found = {(one["space"], one["index"], one["type"]) for one in json.loads(out)["unkept_indexes"]}
    kinds = zip(UNKEPT, ("BITSET", "RTREE", "functional"), strict=True)
    expected = {(space, *kind) for kind in kinds for space in ("joined", "followed")}
    assert found == expected - {("followed", "place", "RTREE")}
    assert code == 0
