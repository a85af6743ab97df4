"""Replaying a folder into a running server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from interop.realtarantool import RealTarantool
from logweir.errors import RequestError, Unreachable
from logweir.replication.iproto.client import open_client
from logweir.replication.iproto.client.play import play
from logweir.replication.protocols import parse_url

pytestmark = pytest.mark.tarantool

FILL = """
box.schema.user.grant('guest', 'super')
local s = box.schema.space.create('t')
s:create_index('p')
for i = 1, 50 do s:insert{i, i} end
for i = 1, 50, 3 do s:update(i, {{'+', 2, 100}, {'=', 3, 'x'}}) end
for i = 1, 50, 5 do s:delete(i) end
for i = 40, 60 do s:upsert({i, 0}, {{'-', 2, 1}}) end
"""
ALL = "return box.space.t:select()"


def test_rows_of_one_server_make_another_one_equal(tmp_path: Path) -> None:
    """Definitions and data, with the 1-based operations that Lua logs."""
    with RealTarantool(tmp_path / "one") as one, RealTarantool(tmp_path / "two") as two:
        one.eval(FILL)
        two.eval("box.schema.user.grant('guest', 'super')")
        logs = sorted((tmp_path / "one").glob("*.xlog"))
        url = parse_url(f"tarantool://127.0.0.1:{two.port}")
        with pytest.raises(RequestError, match=r"refused row .*'512' does not exist"):
            asyncio.run(play(logs, url))
        two.eval("box.schema.space.create('t'):create_index('p')")
        played = asyncio.run(play(logs, url))
        assert played.sent == 50 + 17 + 10 + 21
        assert played.left_out == 4
        assert two.eval(ALL) == one.eval(ALL)


def test_wrong_password_and_closed_port_are_told(tmp_path: Path) -> None:
    """As errors of ours."""
    with RealTarantool(tmp_path) as box:
        url = parse_url(f"tarantool://admin:x@127.0.0.1:{box.port}")
        with pytest.raises(RequestError, match="Incorrect password"):
            asyncio.run(play([], url))
        with pytest.raises(Unreachable):
            asyncio.run(play([], parse_url("tarantool://127.0.0.1:1")))

        async def killed() -> None:
            async with open_client(parse_url(f"tarantool://127.0.0.1:{box.port}")) as client:
                box.kill()
                await client.call(64)

        with pytest.raises(Unreachable):
            asyncio.run(killed())
