"""Rows of `_user`, `_priv` and `_func` written by a program: refused as by a real Tarantool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.waiting import until

import logweir
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from logweir.errors import RequestError
from logweir.wal.mp import pack

pytestmark = pytest.mark.tarantool

FUNC, USER, PRIV = 296, 304, 312
TAIL = ["LUA", "", "function", [], "any", "none", "none", False, False, True, ["LUA"], {}]
TAIL += ["", "2026-01-01 00:00:00", "2026-01-01 00:00:00"]
BEFORE = [
    ("insert", USER, [32, 1, "u", "user", {}]),
    ("insert", USER, [33, 1, "r", "role", {}]),
    ("insert", USER, [34, 1, "s", "role", {}]),
    ("insert", PRIV, [1, 33, "role", 34, 4]),
    ("insert", FUNC, [80, 32, "f", 0, *TAIL]),
    ("insert", PRIV, [1, 32, "function", 80, 4]),
]
WRONG = [
    ("insert", USER, [40, 1, "n" * 65_001, "user", {}]),
    ("insert", USER, [40, 1, "", "user", {}]),
    ("insert", USER, [40, 1, "a\nb", "user", {}]),
    ("insert", USER, [40, 1, "v", "group", {}]),
    ("insert", USER, [40, 1, "v", "user", {"chap-sha1": "short"}]),
    ("insert", USER, [40, 1, "v", "role", {"chap-sha1": "=" * 28}]),
    ("delete", USER, [1]),
    ("delete", USER, [32]),
    ("delete", USER, [34]),
    ("insert", PRIV, [1, 99, "universe", 0, 1]),
    ("insert", PRIV, [99, 32, "universe", 0, 1]),
    ("insert", PRIV, [1, 32, "thing", 0, 1]),
    ("insert", PRIV, [1, 32, "space", 9999, 1]),
    ("insert", PRIV, [1, 32, "function", 99, 4]),
    ("insert", PRIV, [1, 32, "sequence", 99, 1]),
    ("insert", PRIV, [1, 32, "role", 99, 4]),
    ("insert", PRIV, [1, 32, "universe", 0, 0]),
    ("insert", PRIV, [1, 34, "role", 33, 4]),
    ("insert", PRIV, [32, 33, "space", 280, 1]),
    ("insert", FUNC, [32_001, 1, "g", 0, *TAIL]),
    ("insert", FUNC, [81, 1, "a\nb", 0, *TAIL]),
    ("insert", FUNC, [81, 1, "g", 0, "RUBY", *TAIL[1:]]),
    ("insert", FUNC, [80, 32, "f", 1, *TAIL]),
    ("delete", FUNC, [80]),
]


def ours(log: logweir.Log, kind: str, space: int, row: list[Any]) -> int:
    """The number of the error, 0: it was done."""
    try:
        log.delete(space, tuple(row)) if kind == "delete" else log.insert(space, row)
    except RequestError as error:
        return int(error.code)
    return 0


def test_a_program_may_write_what_a_tarantool_takes(tmp_path: Path) -> None:
    """The same numbers of errors, outside and inside of transactions; a replica joins after all."""
    with RealTarantool(tmp_path / "real") as box, Serving(tmp_path / "s", guest="replicate") as we:
        for kind, space, row in (*BEFORE, *WRONG):
            (told,) = box.dml([(kind, space, pack(row))])
            wanted = told[0] if isinstance(told, tuple) else 0
            assert ours(we.log, kind, space, row) == wanted, row[:4]
            assert bool(wanted) == ((kind, space, row) in WRONG)
        with we.log.transaction() as tx:
            with pytest.raises(RequestError, match="user has objects"):
                tx.delete(USER, 32)
            tx.insert(USER, (50, 1, "in time", "user", {}))
        with pytest.raises(RequestError, match="Invalid identifier"):
            we.log.update(USER, 50, [["=", 2, ""]])
        cfg = {"replication": f"127.0.0.1:{we.port}", "replication_connect_timeout": 20}
        with RealTarantool(tmp_path / "replica", listen=None, cfg=cfg) as replica:
            until(lambda: replica.eval("return box.space._func:count(80)") == [1])
            assert replica.eval("return box.space._user:count(), box.space._user:count(50)") == [
                len(we.log.select(USER)),
                1,
            ]
