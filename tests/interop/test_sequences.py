"""Numbers that sequences give, next to a real Tarantool's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logweir
from interop.realtarantool import RealTarantool, TarantoolError
from logweir.errors import RequestError

pytestmark = pytest.mark.tarantool

CASES: list[tuple[dict[str, Any], list[int | None]]] = [
    ({}, [None, None, 10, None, 5, None]),
    ({"start": 5, "step": 3, "max": 12}, [None, None, None, None]),
    ({"start": 5, "step": 3, "max": 12, "cycle": True}, [None, None, None, None, None]),
    ({"step": -2, "min": -5, "max": -1}, [None, None, None, None]),
    ({"min": 100, "max": 1000, "start": 200}, [5, None, None]),
    ({"min": 100, "max": 103}, [500, None, None]),
    ({"step": -1, "min": -50, "max": -10}, [-100, None, None]),
]


@pytest.mark.parametrize(("options", "given"), CASES)
def test_the_same_numbers_and_errors_as_a_real_one(
    options: dict[str, Any], given: list[int | None], box: RealTarantool, tmp_path: Path
) -> None:
    """Each insert gives the same tuple, or the same error number."""
    box.eval(
        "local o = ... box.schema.sequence.create('s', o) "
        "local s = box.schema.space.create('n', {format = {{'id', 'integer'}}}) "
        "s:create_index('pk', {parts = {{1, 'integer'}}, sequence = 's'})",
        [options],
    )
    ours: list[Any] = []
    theirs: list[Any] = []
    try:
        with logweir.open(tmp_path) as log:
            log.create_space("n", [("id", "integer")])
            log.create_sequence("s", **options)
            log.use_sequence("n", "s")
            for value in given:
                try:
                    ours.append(log.insert("n", (value,))[0])
                except RequestError as error:
                    ours.append(error.name)
                try:
                    code = "local v = ... return box.space.n:insert{v == nil and box.NULL or v}[1]"
                    theirs += box.eval(code, [value])
                except TarantoolError as error:
                    theirs.append(logweir.ErrorCode(error.code).name)
    finally:
        box.eval("box.space.n:drop() box.sequence.s:drop()")
    assert ours == theirs
