"""The driver of the real program itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from interop.realtarantool import RealTarantool, TarantoolDied, TarantoolError
from logweir.wal.mp import pack

pytestmark = pytest.mark.tarantool


def test_exact_bytes_go_in_and_come_out(tmp_path: Path) -> None:
    """Integers wider than needed keep their width through a replace and a get."""
    wide = bytes.fromhex("9201cf0000000000000001")
    with RealTarantool(tmp_path) as box:
        box.eval("box.schema.space.create('t'):create_index('p')")
        assert box.dml([("replace", 512, wide), ("get", 512, pack([1]))]) == [wide, wide]
        assert box.eval_raw("return box.space.t:get(...)", [1]) == b"\x91" + wide


def test_errors_carry_the_number(tmp_path: Path) -> None:
    """A refused request answers with its number, an error of Lua with -1."""
    with RealTarantool(tmp_path, listen=None) as box:
        answer = box.dml([("replace", 999, pack([1]))])
        assert answer == [(36, "Space '999' does not exist")]
        with pytest.raises(TarantoolError) as caught:
            box.eval("not lua")
        assert caught.value.code == -1


def test_driving_it_writes_no_row(tmp_path: Path) -> None:
    """The folder of a driven Tarantool holds what an undisturbed one would."""
    with RealTarantool(tmp_path) as box:
        assert box.eval("return box.info.vclock") == [{}]
        assert isinstance(box.port, int)
    assert sorted(os.listdir(tmp_path)) == ["0" * 20 + ".snap", "0" * 20 + ".xlog"]


def test_it_recovers_after_a_kill(tmp_path: Path) -> None:
    """What was acknowledged before SIGKILL is there after a start on the same folder."""
    with RealTarantool(tmp_path, listen=None) as box:
        box.eval("box.schema.space.create('t'):create_index('p')")
        box.dml([("insert", 512, pack([number])) for number in range(10)])
        box.kill()
    with RealTarantool(tmp_path, listen=None) as box:
        assert box.eval("return box.space.t:count()") == [10]


def test_a_refusal_to_start_is_told_with_its_log(tmp_path: Path) -> None:
    """A folder that Tarantool cannot recover raises, with the end of its log."""
    (tmp_path / ("0" * 20 + ".snap")).write_bytes(b"SNAP\n0.13\n")
    with pytest.raises(TarantoolDied, match="can't initialize storage"), RealTarantool(tmp_path):
        pass
