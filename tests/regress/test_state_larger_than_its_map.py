"""Recovery ended with LMDB's own error where the state needed more than the first memory map."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import logweir
from logweir.store.recover.compare import compare_states

ROWS = 20_000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Some megabytes in a space with a secondary index, the state thrown away."""
    folder = tmp_path / "store"
    with logweir.open(folder) as log:
        log.create_space(
            "thing",
            format=[("id", "unsigned"), ("name", "string"), ("text", "string")],
            indexes={"name": ["name"]},
        )
        for start in range(0, ROWS, 1000):
            log.append("thing", [(n, f"name {n}", "x" * 150) for n in range(start, start + 1000)])
    return folder


@pytest.fixture(autouse=True)
def small_map(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    """From here on a state begins with a map of one mebibyte."""
    monkeypatch.setattr("logweir.store.state.state.STATE_MAP_START_BYTES", 1024 * 1024)


def assert_whole(folder: Path) -> None:
    """Every tuple is there, under both indexes, and the store takes changes."""
    with logweir.open(folder) as log:
        assert log.count("thing") == ROWS
        assert log.get("thing", ROWS - 1, index=0) is not None
        assert log.get("thing", f"name {ROWS // 2}", index="name") is not None
        log.insert("thing", (ROWS, "new", ""))
        log.delete("thing", ROWS)


def test_state_is_rebuilt_from_the_log(store: Path) -> None:
    """The rows of the log are applied, however often the map has to grow."""
    shutil.rmtree(store / "state")
    assert_whole(store)


def test_state_is_rebuilt_from_a_snapshot(store: Path) -> None:
    """A snapshot is loaded and its indexes built, however often the map has to grow."""
    with logweir.open(store) as log:
        log.snapshot()
    shutil.rmtree(store / "state")
    assert_whole(store)


def test_states_are_compared(store: Path, tmp_path: Path) -> None:
    """Comparing loads both sides in the same way."""
    other = tmp_path / "other"
    shutil.copytree(store, other)
    with logweir.open(other) as log:
        log.delete("thing", 7)
    found = list(compare_states(store, other, tmp_path / "scratch"))
    assert [(one.space, one.kind) for one in found] == [("thing", "removed")]


def test_a_store_opens_where_addresses_are_few(tmp_path: Path) -> None:
    """In 400 MB of them, as batch systems allow; the map began with a gibibyte."""
    code = (
        "import resource, sys, logweir\n"
        "resource.setrlimit(resource.RLIMIT_AS, (400_000_000,) * 2)\n"
        "with logweir.open(sys.argv[1]) as log:\n"
        "    log.create_space('t')\n"
        "    log.insert('t', (1,))\n"
    )
    for _ in range(2):
        shutil.rmtree(tmp_path / "few" / "state", ignore_errors=True)
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "few")], check=True)
        code = code.replace("    log.create_space('t')\n", "").replace("(1,)", "(2,)")
    with logweir.open(tmp_path / "few") as log:
        assert log.select("t") == [(1,), (2,)]
