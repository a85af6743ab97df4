"""tarantool-driver, the client of node, next to a real Tarantool."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop import nodeclients
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from logweir.replication.service import users
from logweir.store.schema.access import Privilege

_THERE = """
box.schema.create_space('orders', {format = {{'id', 'unsigned'}, {'what', 'string'}}})
box.space.orders:create_index('primary')
box.schema.user.create('alice', {password = 'wonder'})
box.schema.user.grant('alice', 'read,write', 'space', 'orders')
box.schema.user.grant('alice', 'execute', 'universe')
"""


@nodeclients.needed
@pytest.mark.tarantool
def test_tarantool_driver_is_answered_as_by_tarantool(tmp_path: Path) -> None:
    """Every call, those that are refused, too; but for Lua and SQL, which are not here."""
    with RealTarantool(tmp_path / "box") as box:
        box.eval(_THERE)
        assert box.port is not None
        there = nodeclients.told("tarantool.js", box.port)
    with Serving(tmp_path / "store") as serving:
        log = serving.log
        log.create_space("orders", format=[("id", "unsigned"), ("what", "string")])
        users.add_user(log, "alice", password="wonder")
        both = Privilege.READ | Privilege.WRITE
        users.grant(log, "alice", both, users.Target("space", "orders"))
        users.grant(log, "alice", Privilege.EXECUTE, users.Target("universe"))
        here = nodeclients.told("tarantool.js", serving.port)
    assert (there["one"], there["count"]) == ([[1, "bolts"]], 202)
    assert {what for what in there if here[what] != there[what]} == {"eval", "sql"}
    assert (there["eval"], here["eval"][:25]) == ([1], "error: EVAL is switched o")
