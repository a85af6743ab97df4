"""The store against a plain dict, through crashes and reopenings."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import logweir
from logweir.errors import ErrorCode, RequestError

KEYS = st.integers(0, 30)
TEXTS = st.text(max_size=8)
NUMBERS = st.integers(-100, 100)


class StoreMachine(RuleBasedStateMachine):
    """Every acknowledged change is there after any crash; nothing else is."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="logweir-model-"))
        self.model: dict[int, tuple[int, str, int]] = {}
        self.log: logweir.Log | None = None
        self.rows = 0

    @initialize()
    def start(self) -> None:
        self.log = self.open()
        self.log.create_space(
            "things",
            format=[("id", "unsigned"), ("text", "string"), ("number", "integer")],
            indexes={
                "text": {"parts": ["text"], "unique": False},
                "number": {"parts": ["number"], "unique": True},
            },
        )

    def open(self) -> logweir.Log:
        return logweir.open(self.folder, "write", wal_max_size=1500, checkpoint_count=2)

    def other_with(self, number: int, key: int) -> bool:
        return any(row[2] == number for id_, row in self.model.items() if id_ != key)

    @rule(key=KEYS, text=TEXTS, number=NUMBERS)
    def insert(self, key: int, text: str, number: int) -> None:
        if key in self.model or self.other_with(number, key):
            with pytest.raises(RequestError) as caught:
                self.log.insert("things", (key, text, number))
            assert caught.value.code == ErrorCode.TUPLE_FOUND
        else:
            assert self.log.insert("things", (key, text, number)) == (key, text, number)
            self.model[key] = (key, text, number)

    @rule(key=KEYS, text=TEXTS, number=NUMBERS)
    def replace(self, key: int, text: str, number: int) -> None:
        if self.other_with(number, key):
            with pytest.raises(RequestError):
                self.log.replace("things", (key, text, number))
        else:
            self.log.replace("things", (key, text, number))
            self.model[key] = (key, text, number)

    @rule(key=KEYS)
    def delete(self, key: int) -> None:
        assert self.log.delete("things", key) == self.model.pop(key, None)

    @rule(key=KEYS, text=TEXTS)
    def update(self, key: int, text: str) -> None:
        found = self.log.update("things", key, [["=", "text", text]])
        if key in self.model:
            self.model[key] = (key, text, self.model[key][2])
        assert found == self.model.get(key)

    @rule(key=KEYS, number=NUMBERS)
    def upsert(self, key: int, number: int) -> None:
        if self.other_with(number, key):
            return
        self.log.upsert("things", (key, "new", number), [["=", 2, number]])
        old = self.model.get(key)
        self.model[key] = (key, "new" if old is None else old[1], number)

    @rule(data=st.lists(st.tuples(KEYS, TEXTS), max_size=5), fails=st.booleans())
    def transaction(self, data: list[tuple[int, str]], fails: bool) -> None:
        class Undo(Exception):
            pass

        changed = dict(self.model)
        try:
            with self.log.transaction() as tx:
                for key, text in data:
                    if key in changed:
                        tx.update("things", key, [["=", 1, text]])
                        changed[key] = (key, text, changed[key][2])
                if fails:
                    raise Undo
        except Undo:
            return
        self.model = changed

    @rule(data=st.lists(st.tuples(KEYS, TEXTS, NUMBERS), min_size=1, max_size=4))
    def append(self, data: list[tuple[int, str, int]]) -> None:
        keys = [row[0] for row in data]
        numbers = [row[2] for row in data]
        fresh = (
            len(set(keys)) == len(keys)
            and len(set(numbers)) == len(numbers)
            and not any(key in self.model or self.other_with(n, key) for key, _, n in data)
        )
        if fresh:
            assert self.log.append("things", data) == len(data)
            self.model.update({row[0]: row for row in data})
        else:
            with pytest.raises(RequestError):
                self.log.append("things", data)

    @rule()
    def truncate(self) -> None:
        self.log.truncate("things")
        self.model = {}

    @rule()
    def snapshot(self) -> None:
        assert self.log.snapshot().exists()

    @rule()
    def crash(self) -> None:
        """A killed process: the state is as the last commit left it."""
        before = self.log.vclock
        self.log.inner.abandon()
        self.log = self.open()
        assert self.log.vclock == before

    @rule()
    def power_cut(self) -> None:
        """The state cannot be trusted and is rebuilt from snapshot and log."""
        before = self.log.vclock
        self.log.inner.abandon()
        shutil.rmtree(self.folder / "state")
        self.log = self.open()
        assert self.log.vclock == before

    @rule()
    def close(self) -> None:
        before = self.log.vclock
        self.log.close()
        self.log = self.open()
        assert self.log.vclock == before
        assert self.log.report.ok

    @precondition(lambda self: self.log is not None)
    @invariant()
    def holds_what_the_model_holds(self) -> None:
        log = self.log
        assert log is not None
        rows = [self.model[key] for key in sorted(self.model)]
        assert log.select("things") == rows
        assert log.count("things") == len(rows)
        by_text: list[Any] = log.select("things", index="text")
        expected = sorted(self.model.values(), key=lambda row: (row[1].encode(), row[0]))
        assert by_text == expected
        by_number = log.select("things", index="number")
        assert by_number == sorted(self.model.values(), key=lambda row: row[2])

    def teardown(self) -> None:
        if self.log is not None:
            self.log.close()
        shutil.rmtree(self.folder)


StoreMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
TestStoreModel = StoreMachine.TestCase
