"""The example of the Spark guide runs as it stands, on the folder of a running Tarantool."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from interop.realtarantool import RealTarantool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "spark_follow.py"
SETUP = """
box.schema.space.create('customers',
    {format = {{'id', 'unsigned'}, {'name', 'string'}, {'city', 'string'}}})
box.space.customers:create_index('primary')
box.schema.space.create('orders',
    {format = {{'id', 'unsigned'}, {'customer', 'unsigned'}, {'price', 'unsigned'}}})
box.space.orders:create_index('primary')
for i = 1, 6 do
    box.space.customers:insert{i, 'customer ' .. i, i % 2 == 0 and 'Oslo' or 'Lima'}
end
"""
ORDERS = """
local first, last = ...
for i = first, last do box.space.orders:replace{i, i % 6 + 1, 10} end
box.space.orders:delete{first}
"""


@pytest.mark.tarantool
def test_the_example_follows_a_running_tarantool(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Changes are followed over two runs, spaces joined, and a picture is drawn."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    folder, out = tmp_path / "tarantool", tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(sys, "argv", ["spark_follow.py", str(folder), str(out), "1"])
    with RealTarantool(folder, listen=None) as server:
        server.eval(SETUP)
        server.eval(ORDERS, [1, 30])
        runpy.run_path(str(EXAMPLE))
        first = capsys.readouterr().out
        server.eval(ORDERS, [31, 60])
        runpy.run_path(str(EXAMPLE))
        second = capsys.readouterr().out
        (orders,) = server.eval("return box.space.orders:count()")
    assert "31 changes of orders so far" in first
    assert "62 changes of orders so far" in second
    assert orders == 58
    assert "Lima: 30 orders, 300 in all" in second
    picture = (out / "rows.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 5000
