"""A change between the state's commit and the end of what made it stopped the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import logweir
from logweir.store.state.layers import Layers
from logweir.store.state.stackkernel import Stack
from logweir.store.state.statetxn import Txn


def test_a_change_right_behind_the_states_commit_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers that the state has just taken are no longer there to be left alone."""
    commit = Layers._changed_base

    def then_change(layers: Layers, change: Callable[[Txn], object], done: Stack) -> object:
        result = commit(layers, change, done)
        log.insert("kv", (3,))
        return result

    with logweir.open(tmp_path) as log:
        log.create_space("kv", [("id", "unsigned")])
        log.insert("kv", (1,))
        log.insert("kv", (2,))
        with monkeypatch.context() as patched:
            patched.setattr(Layers, "_changed_base", then_change)
            log._committer.layers.apply()
        log.insert("kv", (4,))
    with logweir.open(tmp_path) as log:
        assert log.select("kv") == [(1,), (2,), (3,), (4,)]
