"""`tuple_bytes` of `logweir.open`: what a tuple may take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logweir
from logweir.errors import ConfigError, ErrorCode, RequestError
from logweir.limits import TOPIC_TUPLE_BYTES, TUPLE_BYTES
from logweir.store.log import Log

MiB = 1024 * 1024
FORMAT: list[Any] = [
    ("id", "unsigned"),
    ("text", "string"),
    {"name": "doc", "type": "map", "is_nullable": True},
]
BY_PATH = {"field": "doc", "path": "k", "type": "unsigned", "is_nullable": True}


def refused(log: Log, size: int) -> None:
    """A tuple of about `size` bytes is refused, in whatever way it comes."""
    text = "x" * size
    with pytest.raises(RequestError) as caught:
        log.insert("t", (9, text))
    assert caught.value.code == ErrorCode.MEMTX_MAX_TUPLE_SIZE
    assert "`tuple_bytes`" in caught.value.hint
    with pytest.raises(RequestError):
        log.append("t", [(9, text)])
    log.replace("t", (8, "x" * (size // 2)))
    with pytest.raises(RequestError):
        log.update("t", 8, [("=", "text", text)])


@pytest.mark.parametrize("is_compiled", [True, False])
def test_tuples_up_to_the_limit_are_taken(tmp_path: Path, is_compiled: bool) -> None:
    """By compiled statements and by the reference engine; spaces made before and after."""
    with logweir.open(tmp_path / "s") as log:
        log.create_space("t", FORMAT, primary=["id"])
        if not is_compiled:
            log.create_index("t", "k", {"parts": [BY_PATH], "unique": False})
        refused(log, MiB)
    with logweir.open(tmp_path / "s", tuple_bytes=4 * MiB) as log:
        log.insert("t", (1, "y" * 3 * MiB))
        log.update("t", 1, [("=", "text", "z" * 3 * MiB)])
        refused(log, 4 * MiB)
        log.create_space("later", FORMAT, primary=["id"])
        log.insert("later", (1, "y" * 3 * MiB))
        log.create_index("t", "more", ["id"])
        log.insert("t", (2, "y" * 3 * MiB))


def test_what_is_there_stays_below_a_lower_limit(tmp_path: Path) -> None:
    """Read again from the log and from a snapshot; what is new is refused."""
    with logweir.open(tmp_path / "s", tuple_bytes=8 * MiB) as log:
        log.create_space("t", FORMAT, primary=["id"])
        log.insert("t", (1, "y" * 5 * MiB))
    for kept in ("log", "snapshot"):
        for child in (tmp_path / "s" / "state").iterdir():
            child.unlink()
        (tmp_path / "s" / "state").rmdir()
        with logweir.open(tmp_path / "s") as log:
            found = log.get("t", 1)
            assert found is not None, kept
            assert len(found[1]) == 5 * MiB
            refused(log, MiB)
            log.snapshot()


@pytest.mark.parametrize("wrong", [0, TUPLE_BYTES - 1, TOPIC_TUPLE_BYTES + 1, True, "4"])
def test_limits_that_cannot_be(tmp_path: Path, wrong: int) -> None:
    with pytest.raises(ConfigError, match="tuple_bytes"):
        logweir.open(tmp_path / "s", tuple_bytes=wrong)
