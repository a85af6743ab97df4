"""Layers were kept until the collector of cycles came by, by a reader until its next read, and what
the state needed to take them for ever: a server grew under load, and stayed so."""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from support.waiting import until

import logweir
from logweir.store.log import Log
from logweir.store.state import layers
from logweir.store.state.stackkernel import Layer

FIELDS = [("id", "unsigned"), ("n", "unsigned"), ("s", "string")]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector of cycles."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def count_layers() -> int:
    """How many there are, needed or not."""
    return sum(isinstance(thing, Layer) for thing in gc.get_objects())


def opened(folder: Path) -> Log:
    """A store with a space of two indexes."""
    log = logweir.open(folder, durability="write")
    log.create_space("t", FIELDS)
    log.create_index("t", "n", {"parts": ["n"], "unique": False})
    return log


def change(log: Log, key: int) -> None:
    """Changes of each kind, and refused ones."""
    log.replace("t", (key, key, "a"))
    log.update("t", key, [["=", "n", key + 1]])
    log.upsert("t", (key, key, "b"), [["=", "s", "c"]])
    log.append("t", [(1000 + 2 * key, 1, "d"), (1001 + 2 * key, 1, "d")])
    with contextlib.suppress(logweir.RequestError):
        log.insert("t", (key, 1, "e"))
    with contextlib.suppress(logweir.RequestError):
        log.append("t", [(key, 1, "e")])
    with contextlib.suppress(logweir.RequestError), log.transaction() as tx:
        tx.delete("t", key)
        tx.insert("t", (1000 + 2 * key, 1, "e"))
    with log.read_view() as view:
        assert view.get("t", key) is not None
    assert log.get("t", key) == (key, key + 1, "c")


def test_layers_go_with_who_needs_them_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was changed, refused and looked at: only those on the stack are there."""
    monkeypatch.setattr(layers, "LAYER_SECONDS", 10**9)
    with uncollected(), opened(tmp_path) as log:
        before = count_layers()
        for key in range(30):
            change(log, key)
        assert count_layers() - before < 20


def test_an_idle_reader_keeps_no_layer(tmp_path: Path) -> None:
    """What it has read is forgotten when the state takes it, not when it reads again."""
    with uncollected(), opened(tmp_path) as log:
        log.replace("t", (1, 1, "a"))
        assert log.get("t", 1) == (1, 1, "a")
        log._committer.layers.apply()
        assert count_layers() == 0
        assert log.get("t", 1) == (1, 1, "a")


CHANGE_AND_REST = """
import json, sys
sys.path.insert(0, "tests")
import logweir
from random import Random
from support.waiting import until
def anonymous_mib():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) // 1024
random = Random(1)
with logweir.open(sys.argv[1], durability="write") as log:
    log.create_space("t", [("id", "unsigned"), ("s", "string")])
    before = most = anonymous_mib()
    for _ in range(60):
        log.append("t", [(random.randrange(2**40), "x" * 1000) for _ in range(1000)])
        most = max(most, anonymous_mib())
    until(lambda: anonymous_mib() < before + 30)
    print(json.dumps([before, most, log.count("t")]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is read from /proc (Linux)")
def test_memory_is_given_back_when_no_more_changes_come(tmp_path: Path) -> None:
    """Without a further change or read, and within the seconds that `until` waits."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHANGE_AND_REST, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    before, most, count = json.loads(done.stdout)
    assert most > before + 60  # there was something to be given back
    assert count == 60_000


def test_the_state_is_not_closed_while_somebody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives memory back as soon as nobody does."""
    monkeypatch.setattr(layers, "STATE_KEPT_BYTES", 1)
    monkeypatch.setattr(layers, "LAYER_SECONDS", 0.0)
    with opened(tmp_path) as log:
        with log.read_view() as view:
            log.replace("t", (1, 1, "a"))
            until(lambda: not log._committer.layers.stack)
            log._committer.layers._give_back()
            assert log._committer.layers._kept_bytes
            assert view.count("t") == 0
        until(lambda: not log._committer.layers._kept_bytes)
        assert log.get("t", 1) == (1, 1, "a")


def test_memory_is_given_back_while_others_read_and_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody finds a state that is just closed."""
    monkeypatch.setattr(layers, "STATE_KEPT_BYTES", 1)
    monkeypatch.setattr(layers, "LAYER_SECONDS", 0.0)
    given: list[bool] = []
    give_back = layers.heap.give_back
    monkeypatch.setattr(layers.heap, "give_back", lambda: (give_back(), given.append(True)))
    failed: list[BaseException] = []

    def work(first: int) -> None:
        random = Random(first)
        try:
            while len(given) < 20 and not failed:
                key = first + random.randrange(10)
                row = (key, random.randrange(100), "a")
                assert log.replace("t", row) == row
                assert log.get("t", key) == row
                assert row in log.select("t", row[1], index="n")
                with log.read_view() as view:
                    assert view.get("t", key) is not None
        except BaseException as error:
            failed.append(error)

    with opened(tmp_path) as log:
        threads = [threading.Thread(target=work, args=(first,)) for first in (0, 100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
