"""`logweir capture` through kills on all sides: of itself at each step, and of its upstream."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from support.nursery import LOGWEIR, Program
from support.ports import free_port
from support.waiting import until

import logweir
from interop.realtarantool import RealTarantool
from logweir.replication.capture.token import Token

TAKER = """
import os

def note(captured):
    with open(os.environ["TAKEN"], "a") as file:
        file.write(f"{captured.changes[-1].lsn}\\n")

def take(captured, tx):
    tx.insert("seen", (captured.changes[-1].lsn, len(captured.changes)))
    for change in captured.changes:
        if change.type_name == "DELETE":
            tx.delete("copy", change.key)
        elif change.type_name == "UPDATE":
            tx.update("copy", change.key, change.ops)
        elif change.type_name == "UPSERT":
            tx.upsert("copy", change.given, change.ops)
        else:
            tx.replace("copy", change.tuple)
    note(captured)
"""
MIRROR = """
from taker import note

def mirror(captured, tx):
    tx.insert("seen", (captured.changes[-1].lsn, len(captured.changes)))
    for change in captured.changes:
        known = tx.get("copy", change.key)
        assert change.is_known and known in (None, change.before), (known, change)
        if change.tuple is None:
            tx.delete("copy", change.key)
        else:
            tx.replace("copy", change.tuple)
    note(captured)
"""
SETUP = """
box.schema.user.create('reader', {password = 'secret'})
box.schema.user.grant('reader', 'replication')
box.schema.space.create('t', {format = {{'id', 'unsigned'}, {'count', 'integer'}}})
box.space.t:create_index('p')
"""
WORK = """
local first, last = ...
for i = first, last do
    box.begin()
    box.space.t:replace{i, 0}
    box.space.t:upsert({i % 7, 1}, {{'+', 2, 1}})
    if i % 3 == 0 then box.space.t:delete{i} end
    box.space.t:update({i % 7}, {{'+', 2, 10}})
    box.commit()
end
"""
STEPS = [
    "capture.after_function",
    "capture.before_commit",
    "wal.before_write",
    "wal.after_write_before_sync",
    "wal.after_sync",
    "store.after_sync_before_publish",
    "capture.after_commit",
]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[RealTarantool]:
    """A Tarantool that always has the same port."""
    with RealTarantool(tmp_path / "box", listen=f"127.0.0.1:{free_port()}") as box:
        box.eval(SETUP)
        yield box


class Capturing:
    """The program, as it is started again and again."""

    def __init__(self, folder: Path, port: int | None, function: str, *kept: str) -> None:
        self._folder = folder
        (folder / "taker.py").write_text(TAKER)
        (folder / "mirrors.py").write_text(MIRROR)
        self.taken = folder / "taken"
        self.taken.touch()
        url = f"tarantool://reader:secret@127.0.0.1:{port}"
        self._command = ["capture", url, "--exec", function, "--space", "t", *kept]

    def start(self, *options: str, step: str = "") -> Program:
        """Start it. `step`: the failpoint that ends it, with its count."""
        environment = {
            "PYTHONPATH": str(self._folder),
            "TAKEN": str(self.taken),
            "LOGWEIR_FAILPOINTS": step,
        }
        return LOGWEIR.begin(*self._command, *options, environment=environment)

    def run(self, *options: str, step: str = "") -> int:
        """Its exit code."""
        with self.start(*options, step=step) as process:
            return process.wait(120)

    def lsns(self) -> list[int]:
        """Of the transactions that the function was given, in order."""
        return list(map(int, self.taken.read_text().split()))


def contents(box: RealTarantool) -> list[tuple[Any, ...]]:
    """Those of the upstream."""
    return [tuple(row) for row in box.eval("return box.space.t:select()")[0]]


@pytest.mark.tarantool
def test_exactly_once_through_kills_of_the_program(box: RealTarantool, tmp_path: Path) -> None:
    """Killed at each step, some transactions on: in the end the store has what the master has, and
    saw each transaction once, since `seen` takes none twice."""
    store = tmp_path / "own"
    with logweir.open(store) as own:
        own.create_space("copy", [("id", "unsigned"), ("count", "integer")])
        own.create_space("seen", [("lsn", "unsigned"), ("changes", "unsigned")])
    program = Capturing(tmp_path, box.port, "taker:take", "--store", str(store))
    made = 0
    for turn, step in enumerate(STEPS):
        box.eval(WORK, [made + 1, made + 10])
        made += 10
        assert program.run("--once", step=f"{step}=kill@{3 + turn % 3}") == -signal.SIGKILL
    assert program.run("--once") == 0
    with logweir.open(store) as own:
        assert own.select("copy") == contents(box)
        assert own.count("seen") == made
        assert [lsn for lsn, _ in own.select("seen")] == sorted(set(program.lsns()))


@pytest.mark.tarantool
def test_images_through_kills_of_the_program(box: RealTarantool, tmp_path: Path) -> None:
    """What was there before each change is what the one before it left; in the end the images are
    what the master has. Killed in the first copy, too."""
    store = tmp_path / "own"
    with logweir.open(store) as own:
        own.create_space("copy", [("id", "unsigned"), ("count", "integer")])
        own.create_space("seen", [("lsn", "unsigned"), ("changes", "unsigned")])
    box.eval(WORK, [1, 20])
    kept = "--store", str(store), "--images"
    program = Capturing(tmp_path, box.port, "mirrors:mirror", *kept)
    for step in ("wal.before_write=kill@4", "capture.after_fill=kill"):
        assert program.run("--once", step=step) == -signal.SIGKILL
        box.eval(WORK, [21, 25])
    assert program.run("--once") == 0
    assert program.lsns() == []
    made = 25
    for turn, step in enumerate(STEPS):
        box.eval(WORK, [made + 1, made + 10])
        made += 10
        assert program.run("--once", step=f"{step}=kill@{3 + turn % 3}") == -signal.SIGKILL
    assert program.run("--once") == 0
    with logweir.open(store) as own:
        images = [tuple(row[3]) for row in own.select("logweir_image")]
        assert images == contents(box)
        assert own.count("seen") == made - 25
        assert set(own.select("copy")) <= set(images)


@pytest.mark.tarantool
def test_exactly_once_through_kills_of_the_upstream(box: RealTarantool, tmp_path: Path) -> None:
    """It waits for the master that comes back, and goes on where it was."""
    store = tmp_path / "own"
    with logweir.open(store) as own:
        own.create_space("copy", [("id", "unsigned"), ("count", "integer")])
        own.create_space("seen", [("lsn", "unsigned"), ("changes", "unsigned")])
    program = Capturing(tmp_path, box.port, "taker:take", "--store", str(store))
    box.eval(WORK, [1, 10])
    with program.start() as process:
        for turn in range(1, 4):
            until(lambda wanted=turn * 10: len(program.lsns()) == wanted, seconds=60)
            box.kill()
            box.start()
            box.eval(WORK, [turn * 10 + 1, turn * 10 + 10])
        until(lambda: len(program.lsns()) == 40, seconds=60)
        process.terminate()
        assert process.wait(60) == 0
    with logweir.open(store) as own:
        assert own.select("copy") == contents(box)
        assert own.count("seen") == 40


@pytest.mark.tarantool
def test_at_least_once_with_a_token_file(box: RealTarantool, tmp_path: Path) -> None:
    """In order, none left out; again is only the one at which it was killed."""
    program = Capturing(tmp_path, box.port, "taker:note", "--token", str(tmp_path / "token"))
    made = 0
    for step in ("capture.after_function", "capture.before_commit", "capture.after_commit"):
        box.eval(WORK, [made + 1, made + 5])
        made += 5
        assert program.run("--once", step=f"{step}=kill@2") == -signal.SIGKILL
    assert program.run("--once") == 0
    lsns = program.lsns()
    once = [lsn for lsn, _ in groupby(lsns)]
    assert once == sorted(set(lsns))
    assert (len(once), len(lsns)) == (made, made + 2)


@pytest.mark.tarantool
def test_a_function_that_raises_ends_it(box: RealTarantool, tmp_path: Path) -> None:
    """Exit code 1; where the place is kept nothing has changed."""
    (tmp_path / "broken.py").write_text("def f(captured): raise KeyError('x')\n")
    program = Capturing(tmp_path, box.port, "broken:f", "--token", str(tmp_path / "token"))
    box.eval(WORK, [1, 1])
    for options in (("--once",), ()):
        assert program.run(*options) == 1
        if (tmp_path / "token").exists():  # what was passed over before it
            reached = Token.parse((tmp_path / "token").read_text().strip()).vclock
            assert not reached.covers(box.eval("return box.info.vclock")[0])
