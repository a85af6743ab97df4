"""Damaged folders `state/`: only right answers, whatever was done to LMDB's file.

Each damage is tried in a process of its own, for what LMDB does with a bad page is a signal.
"""

from __future__ import annotations

import json
import mmap
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.calls import each

DAMAGES, KILLED = 8 * (13 // each(2)), 6 * (10 // each(2))
"""How many states are damaged, of each kind the same number: twice as many with
`LOGWEIR_CALLS=all`."""
KINDS = ("cut", "zeros", "noise", "bit")

MAKE = """
import os, sys, logweir
os.fsync = os.fdatasync = lambda fd: None  # nothing is lost here, and it takes most of the time
most = 10 if sys.argv[1] == "killed" else 40
def made(folder, words):
    log = logweir.open(folder)
    log.create_space("t", format=[("id", "unsigned"), ("v", "string")])
    log.append("t", ((i, words % i) for i in range(2000)))
    log.create_space("u", format=[("id", "unsigned"), ("v", "string")])
    log.create_index("u", "v", ["v"])
    for i in range(60):
        log.insert("u", (i, "x" * (300 * (i % most)) + str(i)))  # long keys, pages of their own
    log.delete("t", [7])
    return log
log = made("store", "v%d")
made("other", "w%d").close()
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
log.close()
"""

TRY = """
import collections, json, logging, os, random, shutil, sys, tempfile, traceback
from pathlib import Path
import logweir, logweir.errors
from logweir.recovery import examine
from logweir.store.recover.statecheck import check_state
logging.disable(logging.CRITICAL)
os.fsync = os.fdatasync = lambda fd: None
count, kinds = int(sys.argv[1]), sys.argv[2].split()
rng = random.Random(int(sys.argv[3]))

def content(folder):
    with logweir.open(folder) as log:
        log.insert("t", (10**6, "new"))
        log.replace("u", (1, "other"))
        return [
            log.select("t"), log.select("u"), log.select("u", index="v"), log.count("t"),
            log.count("u"), log.get("u", "other", index="v"),
        ]

def hurt(path, kind):
    size = os.path.getsize(path)
    page = rng.randrange(max(size // 4096, 1)) * 4096
    with open(path, "r+b") as file:
        if kind == "cut":
            file.truncate(page + rng.choice((0, 0, 1, 2048)))
        elif kind == "bit":
            at = rng.randrange(size)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes((byte ^ 1 << rng.randrange(8),)))
        else:
            file.seek(page)
            file.write(bytes(4096) if kind == "zeros" else rng.randbytes(4096))
    if kind == "foreign":
        shutil.copy("other/state/data.mdb", path)
    elif kind == "text":
        open(path, "wb").write(b"no database " * 5000)
    elif kind == "empty":
        open(path, "wb").close()

def tried(kind, wanted):
    shutil.rmtree("tried", ignore_errors=True)
    shutil.copytree("store", "tried")
    names = {"epoch": "epoch", "lock": "lock.mdb"}
    hurt("tried/state/" + names.get(kind, "data.mdb"), "bit" if kind == "epoch" else
         "zeros" if kind == "lock" else kind)
    child = os.fork()
    if not child:
        code = 3
        try:
            code = 0 if content("tried") == wanted and content_again(wanted) else 1
        except logweir.errors.LogweirError:
            code = 2
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return ("right", "wrong", "typed", "raw")[os.WEXITSTATUS(status)]

def content_again(wanted):
    with logweir.open("tried") as log:
        if [log.select("t"), log.select("u")] != wanted[:2]:
            return False
    with tempfile.TemporaryDirectory() as scratch:
        found = check_state(examine(Path("tried")), Path(scratch))
        return found.ok and found.entries > 2000

shutil.copytree("store", "whole")
shutil.rmtree("whole/state")
wanted = content("whole")
found = collections.Counter()
for number in range(count):
    kind = kinds[number % len(kinds)]
    found[f"{kind} {tried(kind, wanted)}"] += 1
print(json.dumps(found))
"""


@pytest.fixture(params=["", "py-lmdb"], ids=["chosen", "py-lmdb"], autouse=True)
def binding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What calls LMDB in the processes that are started: not all of them look at a page first."""
    monkeypatch.setenv("LOGWEIR_LMDB", request.param)


def outcomes(folder: Path, ending: str, kinds: tuple[str, ...], count: int) -> dict[str, int]:
    """How often each kind of damage had which outcome."""
    made = subprocess.run([sys.executable, "-c", MAKE, ending], cwd=folder, timeout=120)
    assert made.returncode == (-9 if ending == "killed" else 0)
    run = subprocess.run(
        [sys.executable, "-c", TRY, str(count), " ".join(kinds), "1"],
        cwd=folder,
        timeout=300,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    print(run.stderr)
    found: dict[str, Any] = json.loads(run.stdout)
    assert sum(found.values()) == count
    return found


def test_damage_after_an_orderly_close_never_shows(tmp_path: Path) -> None:
    """Cut, zeroed, overwritten, flipped, foreign: rows and indexes are those of the log."""
    kinds = (*KINDS, "foreign", "text", "empty", "lock")
    found = outcomes(tmp_path, "closed", kinds, DAMAGES)
    assert found == {f"{kind} right": DAMAGES // len(kinds) for kind in kinds}


def test_damaged_pages_after_a_kill_never_show(tmp_path: Path) -> None:
    """There is no checksum to go by, but what is no page of its tree is found. (Of values that
    take several pages, which there are not here, only the first is seen.)"""
    kinds = ("cut", "zeros", "foreign", "text", "empty", "lock")
    found = outcomes(tmp_path, "killed", kinds, KILLED)
    assert found == {f"{kind} right": KILLED // len(kinds) for kind in kinds}


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_flipped_bits_of_the_epoch_never_show(tmp_path: Path, ending: str) -> None:
    """What cannot be understood is not trusted."""
    assert outcomes(tmp_path, ending, ("epoch",), 12) == {"epoch right": 12}


def test_flipped_bits_after_a_kill_never_end_the_process(tmp_path: Path) -> None:
    """One inside a tuple cannot be seen then; whatever it hits, nothing raw is raised."""
    found = outcomes(tmp_path, "killed", ("bit", "noise"), KILLED)
    assert not [name for name in found if "signal" in name or "raw" in name], found
    assert found["bit right"] + found["noise right"] > KILLED // 2


READ = """
import logging, os, logweir
logging.basicConfig(level=logging.WARNING)
os.fsync = os.fdatasync = lambda fd: None
with logweir.open("store") as log:
    log.insert("t", (2000, "new"))
    found = log.select("t")
assert found == [(i, "v%d" % i) for i in range(2000) if i != 7] + [(2000, "new")]
"""

PAGE, BRANCH = 4096, 1


def test_damaged_branch_pages_of_a_large_state_are_found(tmp_path: Path) -> None:
    """After a kill, in a file of more than 512 MiB, most of it a hole: LMDB asserts that a branch
    page has two entries."""
    made = subprocess.run([sys.executable, "-c", MAKE, "killed"], cwd=tmp_path, timeout=120)
    assert made.returncode == -9
    damaged = 0
    with (tmp_path / "store" / "state" / "data.mdb").open("r+b") as file:
        with mmap.mmap(file.fileno(), 0) as data:
            for at in range(2 * PAGE, len(data), PAGE):
                number, _, flags, lower = struct.unpack_from("=QHHH", data, at)
                if number * PAGE == at and flags == BRANCH and lower > 18:
                    struct.pack_into("=H", data, at + 12, 18)
                    damaged += 1
        file.truncate(600 << 20)
    assert damaged
    run = subprocess.run(
        [sys.executable, "-c", READ], cwd=tmp_path, timeout=120, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "has no entries" in run.stderr
