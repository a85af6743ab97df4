"""A state that is made anew has what was there, whether a snapshot or the log says it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import logweir

SPACES: dict[str, dict[str, Any]] = {
    "plain": {"format": [("id", "unsigned"), ("who", "string"), ("tags", "array")]},
    "numbered": {"format": [("id", "unsigned"), ("who", "string")]},
    "long": {"format": [("id", "string"), ("who", "string")]},
}


def fill(log: logweir.Log) -> None:
    """Spaces with indexes of several kinds, one with a sequence, and one with long keys."""
    for name, options in SPACES.items():
        log.create_space(name, primary=["id"], **options)
        log.create_index(name, "who", {"parts": ["who"], "unique": name == "plain"})
    log.create_sequence("numbers", start=7)
    log.use_sequence("numbered", "numbers")
    for number in range(300):
        log.insert("plain", (number, f"name {number}", [number % 3]))
        log.insert("numbered", (None, f"name {number % 10}"))
        log.insert("long", ("k" * 900 + str(number), f"name {number % 10}"))
    log.delete("plain", 5)
    log.update("plain", 6, [("=", 1, "other")])


def held(log: logweir.Log) -> dict[str, Any]:
    """All, by each index, and what a sequence gives next."""
    found: dict[str, Any] = {
        f"{name} by {index}": log.select(name, index=index)
        for name in SPACES
        for index in ("primary", "who")
    }
    found["next"] = log.insert("numbered", (None, "next"))
    return found


@pytest.mark.parametrize("source", ["log", "snapshot"])
def test_a_state_made_anew_is_what_it_was(tmp_path: Path, source: str) -> None:
    """Of the snapshot nothing but that is there."""
    folder = tmp_path / "store"
    with logweir.open(folder) as log:
        fill(log)
        if source == "snapshot":
            log.snapshot()
    shutil.copytree(folder, tmp_path / "kept")
    with logweir.open(tmp_path / "kept") as log:
        wanted = held(log)
    shutil.rmtree(folder / "state")
    with logweir.open(folder) as log:
        assert held(log) == wanted
