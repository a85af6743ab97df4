"""What stands in layers over the state, next to a dict: whatever is changed, looked at, put into
the state, killed and opened again, in any order."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

import logweir
from logweir.store.engine.engine import Plans
from logweir.store.engine.executing import Executor
from logweir.store.log import Log
from logweir.store.state import layers, stacked
from logweir.store.state import state as state_module
from logweir.store.state.stackkernel import Layer
from logweir.store.view import ReadView
from logweir.wal.failpoint import arm, disarm
from logweir.wal.mp import unpack

Model = dict[int, tuple[int, int, str]]


def opened(folder: Path) -> Log:
    """A store with a space of two indexes, the second of them not unique."""
    log = logweir.open(folder, durability="write")
    if log.schema.get("t") is None:
        fields = [("id", "unsigned"), ("n", "unsigned"), ("s", "string")]
        log.create_space("t", fields, primary=["id"])
        log.create_index("t", "n", ["n", "id"])
    return log


def check(view: ReadView, model: Model, random: Random) -> None:
    """All of a view that may be asked for is that of the model."""
    space = view.engine.schema.space("t")
    assert [tuple(unpack(row)) for row in view.tuples(space)] == sorted(model.values())
    assert view.count("t") == len(model)
    second = view.engine.schema.index(space, "n")
    ordered = sorted(model.values(), key=lambda row: row[1::-1])
    for is_back in (False, True):
        found = view.engine.entries(space, second, b"", None, reverse=is_back)
        assert [tuple(unpack(row)) for row in found] == ordered[:: -1 if is_back else 1]
    for key in [random.randrange(60) for _ in range(4)]:
        assert view.get("t", key) == model.get(key)
    assert view.select("t", limit=3) == sorted(model.values())[:3]


def change(to: Any, model: Model, random: Random) -> None:
    """One statement, of any kind."""
    key, n = random.randrange(60), random.randrange(5)
    match random.randrange(5):
        case 0:
            with contextlib.suppress(logweir.RequestError):
                to.insert("t", (key, n, "i"))
                model[key] = (key, n, "i")
        case 1:
            to.delete("t", key)
            model.pop(key, None)
        case 2:
            to.update("t", key, [["=", "n", n]])
            if key in model:
                model[key] = (key, n, model[key][2])
        case 3:
            to.upsert("t", (key, n, "u"), [["=", "s", "v"]])
            model[key] = (key, model[key][1], "v") if key in model else (key, n, "u")
        case _:
            to.replace("t", (key, n, "r"))
            model[key] = (key, n, "r")


@pytest.mark.parametrize("seed", range(12))
def test_layers_are_a_dict(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views keep what they began with; a rollback undoes all; a kill loses nothing."""
    random = Random(seed)
    monkeypatch.setattr(stacked, "LAYER_BYTES", random.choice([2_000, 20_000, 10**9]))
    monkeypatch.setattr(layers, "LAYER_SECONDS", random.choice([0.0, 0.01, 10**9]))
    monkeypatch.setattr(layers, "STATE_KEPT_BYTES", random.choice([1, 10**9]))
    model: Model = {}
    for _ in range(4):
        log = opened(tmp_path / "s")
        with contextlib.ExitStack() as stack:
            views: list[tuple[ReadView, Model]] = []
            for _ in range(60):
                action = random.randrange(12)
                if action < 6:
                    change(log, model, random)
                elif action == 6:
                    first = random.randrange(1000, 10**6)
                    rows = [(first + i, i % 5, "a") for i in range(random.randrange(1, 40))]
                    with contextlib.suppress(logweir.RequestError):
                        log.append("t", rows)
                        model.update({row[0]: row for row in rows})
                elif action == 7:
                    inside = dict(model)
                    with contextlib.suppress(ZeroDivisionError), log.transaction() as tx:
                        for _ in range(random.randrange(8)):
                            change(tx, inside, random)
                        if random.random() < 0.4:
                            raise ZeroDivisionError
                        model = inside
                elif action == 8:
                    log.inner.change_base(lambda txn: None)
                elif action == 9 and len(views) < 4:
                    views.append((stack.enter_context(log.read_view()), dict(model)))
                elif action == 10:
                    log.create_index("t", "extra", {"parts": ["s"], "unique": False})
                    log.drop_index("t", "extra")
                with log.read_view() as view:
                    check(view, model, random)
            for view, seen in views:
                check(view, seen, random)
        log.inner.abandon() if random.random() < 0.6 else log.close()
    with opened(tmp_path / "s") as log, log.read_view() as view:
        check(view, model, random)


def test_the_newest_layer_takes_in_what_comes_while_nobody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So there is one to look at, however many changes come; a view that is open has none of it,
    and reads that need no view see all of it, in every index."""
    monkeypatch.setattr(layers, "LAYER_SECONDS", 10**9)
    with opened(tmp_path / "s") as log:
        found = log._committer.layers

        def insert(key: int) -> None:
            log.insert("t", (key, 100 - key, "i"))
            assert log.get("t", key) == (key, 100 - key, "i")
            assert log.select("t", index="n", limit=1)[0][0] == key

        insert(0)
        before = len(found.stack)
        for key in range(1, 30):
            insert(key)
        assert len(found.stack) == before
        assert found.size_bytes == sum(layer.size_bytes for layer in found.stack)
        with log.read_view() as view:
            for key in range(30, 35):
                insert(key)
            assert len(found.stack) > before
            assert view.select("t") == [(key, 100 - key, "i") for key in range(30)]
            assert view.count("t") == 30
        depth = len(found.stack)
        for key in range(35, 60):
            insert(key)
        log.truncate("t")  # stands over what it empties
        assert log.select("t") == []
        insert(7)
        assert len(found.stack) <= depth + 1
        assert found.size_bytes == sum(layer.size_bytes for layer in found.stack)
        log.inner.change_base(lambda txn: None)
        assert log.select("t", index="n") == [(7, 93, "i")]


def test_what_is_stopped_while_it_is_taken_in_is_there_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That stops the store, and whoever reads on sees it in every index."""
    monkeypatch.setattr(layers, "LAYER_SECONDS", 10**9)
    with opened(tmp_path / "s") as log:
        log.insert("t", (1, 1, "i"))
        found = log._committer.layers
        depth = len(found.stack)

        class Stopping(Layer):
            def take(self, layer: Layer) -> int:
                super().take(layer)
                raise KeyboardInterrupt

        top, stopping = found.stack[0], Stopping()
        stopping.tables, stopping.since = top.tables, top.since
        stopping.seal()
        found.stack = (stopping, *found.stack[1:])
        with pytest.raises(KeyboardInterrupt):
            log.insert("t", (2, 2, "i"))
        monkeypatch.undo()
        assert len(found.stack) == depth + 1
        assert log.select("t") == log.select("t", index="n") == [(1, 1, "i"), (2, 2, "i")]
        assert isinstance(log.failure, logweir.LogweirError)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("is_seen", [False, True])
def test_what_is_stopped_before_it_stands_over_the_state_comes_from_the_log(
    stop: type[BaseException], is_seen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state that is closed does not say that it holds it."""
    monkeypatch.setattr(layers, "LAYER_SECONDS", 10**9)

    def stopped(*given: object) -> None:
        raise stop

    log = opened(tmp_path / "s")
    log.insert("t", (1, 1, "i"))
    monkeypatch.setattr(stacked, "grown", stopped)
    held = log.read_view() if is_seen else contextlib.nullcontext()
    if not is_seen:  # the newest layer would take it in
        log._committer.layers.apply()
    with held, pytest.raises((stop, logweir.LogweirError)):
        log.insert("t", (2, 2, "i"))
    assert log.failure is not None
    log.close()
    monkeypatch.undo()
    with opened(tmp_path / "s") as log:
        assert log.select("t") == log.select("t", index="n") == [(1, 1, "i"), (2, 2, "i")]


def test_truncated_space_is_empty_over_what_the_state_holds(tmp_path: Path) -> None:
    """And what is put into it later is all there is, before and after the state takes it."""
    with opened(tmp_path / "s") as log:
        log.append("t", ((i, 1, "x") for i in range(100)))
        log.inner.change_base(lambda txn: None)
        with log.read_view() as before:
            log.truncate("t")
            assert log.select("t") == []
            log.insert("t", (7, 7, "y"))
            assert log.select("t") == [(7, 7, "y")]
            assert before.count("t") == 100
        log.inner.change_base(lambda txn: None)
        assert log.select("t") == [(7, 7, "y")]
        assert log.select("t", index="n") == [(7, 7, "y")]


def test_changes_wait_while_the_layers_are_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded: who changes something waits until the state has taken what there is."""
    monkeypatch.setattr(stacked, "LAYER_BYTES", 10_000)
    stopped, go_on = threading.Event(), threading.Event()

    def stop() -> None:
        stopped.set()
        assert go_on.wait(60)

    with opened(tmp_path / "s") as log:
        arm("store.before_apply_commit", stop)
        try:
            done: list[int] = []

            def write() -> None:
                for i in range(200):
                    log.replace("t", (i, 1, "x" * 1000))
                    done.append(i)

            writer = threading.Thread(target=write)
            writer.start()
            assert stopped.wait(60)
            writer.join(0.5)
            assert writer.is_alive()
            assert len(done) < 100
            with log.read_view() as view:
                assert view.count("t") >= len(done)
        finally:
            disarm()
            go_on.set()
        writer.join(60)
        assert not writer.is_alive()
        assert log.count("t") == 200


def test_what_the_state_has_and_the_layers_still_say_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the state has taken layers, and they are not gone yet, others look and change."""
    monkeypatch.setattr(layers, "LAYER_SECONDS", 10**9)
    model: Model = {i: (i, i % 5, "x") for i in range(60)}
    random, looked = Random(1), list[int]()

    def look() -> None:
        disarm()

        def others() -> None:
            with log.read_view() as view:
                check(view, model, random)
            for _ in range(20):
                change(log, model, random)
                check_all()
            looked.append(log.count("t"))

        thread = threading.Thread(target=others)
        thread.start()
        thread.join(60)

    def check_all() -> None:
        assert sorted(log.select("t", limit=100)) == sorted(model.values())
        assert log.count("t") == len(model)
        with log.read_view() as view:
            check(view, model, random)

    with opened(tmp_path / "s") as log:
        log.append("t", ((i, 1, "o") for i in range(30)))
        log.inner.change_base(lambda txn: None)
        log.truncate("t")
        log.append("t", model.values())
        arm("store.after_apply_commit", look)
        try:
            log.inner.committer.layers.apply()
        finally:
            disarm()
        assert looked == [len(model)]
        check_all()
        log.inner.abandon()
    with opened(tmp_path / "s") as log:
        check_all()


def test_changes_lend_one_transaction_on_the_state_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next change has that of the last one, with what was looked up in it; who has it while the
    state takes layers still sees what stood there, and then it ends: no page is kept for it."""
    monkeypatch.setattr(layers, "LAYER_SECONDS", 10**9)
    with opened(tmp_path / "s") as log:
        state = log.inner.committer.state
        log.append("t", ((i, 1, "o") for i in range(30)))
        log.inner.change_base(lambda txn: None)
        log.insert("t", (30, 1, "a"))
        (first,) = state._spare
        known = set(first.trees or ())
        log.insert("t", (31, 1, "a"))
        assert state._spare == [first]
        assert known
        assert set(first.trees or ()) == known

        with log.transaction() as tx:
            tx.insert("t", (32, 1, "a"))
            assert state._spare == []
            log.inner.committer.layers.apply()
            assert tx.get("t", 5) == (5, 1, "o")
            assert tx.get("t", 31) == (31, 1, "a")
        assert state._spare == []
        with pytest.raises(state_module.StateError):
            first.raw.get(b"position")

        log.insert("t", (33, 1, "a"))
        (second,) = state._spare
        assert second is not first
        log.inner.committer.layers.apply()
        assert state._spare == []
        assert [row[0] for row in log.select("t", limit=100)] == [*range(34)]


def test_a_transaction_that_is_given_back_twice_is_lent_once(tmp_path: Path) -> None:
    """As by who was interrupted on his way out; and of those that wait there are few."""
    with opened(tmp_path / "s") as log:
        state = log.inner.committer.state
        one = state.lend()
        one.abort()
        one.abort()
        many = [state.lend() for _ in range(5)]
        assert len(set(map(id, many))) == 5
        assert one in many
        for txn in many:
            txn.abort()
        assert 0 < len(state._spare) < 5
        with state.write():
            pass
        assert state._spare == []


def test_a_group_that_is_ended_twice_leaves_the_next_one_alone(tmp_path: Path) -> None:
    """Which has what it had on the state, and goes on with it."""
    with opened(tmp_path / "s") as log:
        log.append("t", ((i, 1, "o") for i in range(30)))
        log.inner.change_base(lambda txn: None)
        trial, own = log.inner.trial, (Executor(), Plans())
        first = trial(*own)
        first.txn.abort()
        second = trial(*own)
        first.txn.abort()
        third = trial(*own)
        assert first.txn.base is second.txn.base
        assert second.txn.base is not third.txn.base
        third.txn.abort()
        log.inner.change_base(lambda txn: None)
        assert second.txn.count(log.schema.space("t").id, 0) == 30
        second.txn.abort()


class Clock:
    """Stands still until it is told to go on."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_changes_are_spread_over_the_time_that_the_state_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state needed 8 s for what fills the layers once, so a change that takes a part of the
    room that is left is followed by the next one after that part of 8 s, or when it is done."""
    clock = Clock()
    taken, stopped, go_on = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(layers, "time", clock)
    monkeypatch.setattr(stacked, "time", clock)
    monkeypatch.setattr(stacked, "LAYER_BYTES", 20_000)

    def take_long() -> None:
        clock.now += 8
        taken.set()

    def stop() -> None:
        stopped.set()
        assert go_on.wait(60)

    def fill(log: Log) -> None:
        log.append("t", [(i, 1, "x" * 1000) for i in range(22)])

    with opened(tmp_path / "s") as log:
        stack = log.inner.committer.layers
        log.inner.change_base(lambda txn: None)
        try:
            arm("store.before_apply_commit", take_long)
            fill(log)
            assert taken.wait(60)
            stack.reserve(0)  # when the thread has done that
            assert not stack.is_full
            arm("store.before_apply_commit", stop)
            log.truncate("t")
            fill(log)
            assert stopped.wait(60)
            assert not stack.is_full  # nothing came behind what is under way
            log.insert("t", (77, 1, "x" * 2000))
            assert stack.size_bytes < 2 * stacked.LAYER_BYTES
            assert stack.is_full
            assert log.inner.has_to_wait
            clock.now += 0.1
            assert stack.is_full
            clock.now += 16  # longer than it was to need
            assert not stack.is_full
            log.insert("t", (78, 1, "x"))
            assert not stack.is_full
        finally:
            disarm()
            go_on.set()
        log.inner.change_base(lambda txn: None)
        assert not stack.is_full
        assert log.count("t") == 24
