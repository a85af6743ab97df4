"""A state has room for few databases at first, since readers pay for each, and gets more."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

import pytest

import logweir
from logweir.errors import WalError
from logweir.store.log import Log
from logweir.store.state import state as state_module
from logweir.store.state.state import State

FIRST: Final = 128
SPACES: Final = 150
LONG: Final = "x" * 600  # a key that LMDB does not take in one piece
FIELDS: Final = [("id", "string"), ("n", "unsigned")]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for hardly more than a new store has."""
    monkeypatch.setattr(state_module, "_DATABASES_FIRST", FIRST)


def make_spaces(log: Log) -> None:
    """Spaces of two indexes, with a tuple each."""
    for number in range(SPACES):
        log.create_space(f"s{number}", FIELDS, primary=["id"], indexes={"n": ("n",)})
        log.replace(f"s{number}", (LONG + str(number), number))


def check(log: Log) -> None:
    """All of them are there, under both indexes."""
    for number in range(SPACES):
        row = (LONG + str(number), number)
        assert log.get(f"s{number}", row[0]) == row
        assert log.get(f"s{number}", number, index="n") == row


def test_more_spaces_than_there_is_room_for_at_first(tmp_path: Path) -> None:
    """They are made as ever, and found again after opening, also in a state made anew."""
    with logweir.open(tmp_path / "s") as log:
        assert log._committer.state._databases_max == FIRST
        make_spaces(log)
        log.inner.change_base(lambda txn: None)
        assert log._committer.state._databases_max > FIRST
        check(log)
    with logweir.open(tmp_path / "s") as log:
        assert log._committer.state._databases_max >= 4 * SPACES
        check(log)
        log.snapshot()
    for number in range(2):
        State(tmp_path / "s" / "state").discard()
        with logweir.open(tmp_path / "s") as log:
            check(log)
            log.replace("s0", ("more", SPACES + number))


def test_many_definitions_in_one_transaction(tmp_path: Path) -> None:
    """It begins again where the room ends within it, and nothing of it is doubled."""
    with logweir.open(tmp_path / "s") as log:
        with log.transaction() as tx:
            for number in range(SPACES):
                space_id = 600 + number
                tx.insert("_space", (space_id, 1, f"s{number}", "memtx", 0, {}, []))
                for index in range(2):
                    options = {"unique": True}
                    part = [[index, ("string", "unsigned")[index]]]
                    tx.insert("_index", (space_id, index, f"i{index}", "tree", options, part))
                tx.insert(space_id, (LONG + str(number), number))
        for number in range(SPACES):
            assert log.select(600 + number) == [(LONG + str(number), number)]
            assert log.get(600 + number, number, index=1) == (LONG + str(number), number)


def test_room_is_made_when_no_view_is_open(tmp_path: Path) -> None:
    """A view that is open meanwhile stays as it is; what grows the state waits for its end."""
    with logweir.open(tmp_path / "s") as log:
        made = threading.Event()

        def make() -> None:
            make_spaces(log)
            log.inner.change_base(lambda txn: None)
            made.set()

        thread = threading.Thread(target=make)
        growing = threading.Event()
        log.inner.on_grow(growing.set)
        with log.read_view() as view:
            spaces = {space.id for space in view.engine.schema}
            thread.start()
            assert growing.wait(60)
            assert not made.is_set()
            assert {space.id for space in view.engine.schema} == spaces
            assert view.get("_schema", ["cluster"]) is not None
        thread.join(60)
        assert made.is_set()
        check(log)


def test_there_is_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no more databases may be, a space that needs one is refused, and the rest goes on."""
    monkeypatch.setattr(state_module, "_DATABASES_MAX", FIRST)
    with logweir.open(tmp_path / "s") as log:
        log.create_space("t", FIELDS, primary=["id"])
        with pytest.raises(WalError, match="DBS_FULL"):
            make_spaces(log)
        assert log.replace("t", ("a", 1)) == ("a", 1)
        assert log.get("t", "a") == ("a", 1)


@pytest.mark.parametrize("keys", [b"acb", b"bac", b"acbd", b"cba", b"abc"])
def test_entries_are_loaded_in_any_order(keys: bytes, tmp_path: Path) -> None:
    """A snapshot has its tuples in the order of who wrote it."""
    (tmp_path / "state").mkdir()
    state = State(tmp_path / "state")
    state.open()
    pairs = [(bytes((key,)), bytes((key, key))) for key in keys]
    txn = state.begin()
    txn.load(512, 0, pairs)
    txn.commit()
    with state.read() as txn:
        assert list(txn.items(512, 0)) == sorted(pairs)
    state.close(clean=False)
