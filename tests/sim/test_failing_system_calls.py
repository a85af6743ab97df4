"""The 1st, 2nd, … system call about a store's folder fails, or writes by half, those of LMDB too:
typed errors only.

In processes of their own, with `support/failing.c` in front of the C library.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest
from support.nursery import Nursery

MEMORY = Path("/dev/shm")
SOURCE = Path(__file__).resolve().parents[1] / "support" / "failing.c"

PREPARE = r"""
import ctypes, errno, json, os, shutil, sys, tempfile, traceback
from pathlib import Path
import logweir
from logweir.recovery import RepairResult, examine, repair, restore
from logweir.recovery.trim import trim
from logweir.replication.topic.spaces import create_topic
from logweir.testing.measuring import readable_rows
from logweir.testing.operations import CHANGES, are_whole
from logweir.wal.filesystem import OS

with tempfile.TemporaryDirectory() as folder, logweir.open(folder) as log:
    log.create_space("kv", [("id", "unsigned")])
    log.snapshot()
"""
"""What is there before it, once for all that fail."""

PROGRAM = r"""
import ctypes, errno, json, os, shutil, sys, traceback
from pathlib import Path
import logweir
from logweir.recovery import RepairResult, examine, repair, restore
from logweir.recovery.trim import trim
from logweir.replication.topic.spaces import create_topic
from logweir.testing.measuring import readable_rows
from logweir.testing.operations import CHANGES, are_whole
from logweir.wal.filesystem import OS

what, durability, names, library = sys.argv[1:]
library = ctypes.CDLL(library)
library.fail_name.restype = ctypes.c_char_p
OPTIONS = {"wal_max_size": 2000, "checkpoint_interval": 0.0}
FORMAT = [("id", "unsigned"), ("value", "string")]
base, folder = Path("base").absolute(), Path("store").absolute()
target = folder.with_name("store-copy")
COPIES = {"restore": lambda: restore(folder, target, verify=True),
          "repair": lambda: repair(folder, target)}
made = 0
with logweir.open(base, **OPTIONS) as log:
    log.create_space("kv", FORMAT)
    log.append("kv", [(number, "x" * 50) for number in range(20)])
    log.snapshot()
    for number in range(20, 40):
        log.insert("kv", (number, "y" * 50))
    if what == "topics":
        create_topic(log, "t", 1, now_seconds=0)
if what == "trim":
    log = logweir.open(base)
    log.insert("kv", (40, "new"))
    log.inner.abandon()
if what == "repair":
    newest = max(base.glob("*.xlog"))
    os.truncate(newest, newest.stat().st_size - 40)
rows = readable_rows(OS, base)
library.fail_below(os.fsencode(folder))

def prepare():
    global made
    made = 0
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    if what == "make":
        return None
    shutil.copytree(base, folder)
    if what in ("open", "verify", "trim", *COPIES):
        return None
    log = logweir.open(folder, durability=durability, **OPTIONS)
    if what not in ("insert", "topics"):
        log.insert("kv", (40, "new"))
    return log

def use(log):
    if what in ("open", "make"):
        return logweir.open(folder, durability=durability, **OPTIONS)
    if what == "verify":
        examine(folder)
    elif what == "trim":
        trim(folder)
    elif what == "topics":
        global made
        for change, _ in CHANGES:
            change(log)
            made += 1
    elif what == "retain":
        log.retain("somebody", log.vclock)
        log.release("somebody")
    elif what == "insert":
        log.insert("kv", (40, "new"))
    else:
        getattr(log.inner if what == "collect" else log, what)()
    return log

def copy(at, number, lasts):
    # The same of a copy to another folder: the source stays, what was begun is made by the same.
    prepare()
    outcome = error = None
    library.fail_at(at, number, lasts)
    try:
        outcome = COPIES[what]()
    except BaseException as caught:
        error = caught
    call = library.fail_name().decode()
    library.fail_at(0, 0, 0)
    wrong = []
    if error is not None and not isinstance(error, logweir.LogweirError):
        wrong.append("".join(traceback.format_exception(error))[-1500:])
    if error is not None:
        if not call:
            raise error
        try:
            outcome = COPIES[what]()
        except logweir.LogweirError:  # it has its name, and all is there
            pass
    if files(folder) != files(base):
        wrong.append("the source is another")
    there = tuples(target)
    told = isinstance(outcome, RepairResult) and outcome.rows_lost not in (0, clean.rows_lost)
    if there != whole and not (told and set(there) <= set(whole)):
        wrong.append(f"the copy is not whole: {there}")
    return call, wrong

def tuples(where):
    with logweir.open(where) as log:
        return [tuple(row) for row in log.select("kv")]

def files(where):
    return {one.name: one.read_bytes() for one in where.iterdir() if one.is_file()}

if what in COPIES:
    prepare()
    clean, whole = COPIES[what](), tuples(target)

def run(at, number, lasts):
    # Returns the call that failed, "" for none, and what came of it that should not.
    log = prepare()
    error = None
    library.fail_at(at, number, lasts)
    try:
        log = use(log)
    except BaseException as caught:
        error = caught
    call = library.fail_name().decode()
    library.fail_at(0, 0, 0)
    wrong = []
    if error is not None and not isinstance(error, logweir.LogweirError):
        wrong.append("".join(traceback.format_exception(error))[-1500:])
    if error is not None and not call:
        raise error
    is_made = what == "insert" and (error is None or isinstance(error, logweir.StateFailed))
    is_refused = what == "insert" and isinstance(error, logweir.WriteFailed)
    try:
        if log is not None:
            log.close()
    except logweir.LogweirError:
        pass
    error = log = None
    if what == "trim":
        if readable_rows(OS, folder) != rows:
            wrong.append("rows are missing")
        trim(folder)
        if readable_rows(OS, folder) != rows or trim(folder):
            wrong.append("it was not cut")
    with logweir.open(folder) as log:
        if what == "topics" and not are_whole(log, made):
            wrong.append(f"topics behind {made} changes: {list(log.schema)}")
        if what != "make":
            found = [row[0] for row in log.select("kv")]
            if found[:40] != list(range(40)) or is_made and found[-1] != 40:
                wrong.append(f"rows are missing: {found}")
            if is_refused and found[-1] == 40:
                wrong.append("a change that was refused is there")
    return call, wrong

calls, wrong = {}, []
ERRORS = ("EIO", "ENOSPC", "EMFILE", "EACCES", "EINTR")
for name in names.split(","):
    for lasts in (False, True)[: 1 if name == "EINTR" else 2]:  # Python tries again for ever
        at, call, step = 0, "first", 1
        if os.environ.get("LOGWEIR_CALLS") != "all" and (lasts or name not in ("EIO", "SHORT")):
            # Each of these at other calls than the others, the first among the first seven.
            step = 20 if name in ERRORS else 7
            at = 1 + (3 * ERRORS.index(name) + 2 * lasts) % 7 - step if name in ERRORS else 0
        while call:
            at += step
            number = getattr(errno, name, 0)
            call, found = (copy if what in COPIES else run)(at, number, lasts)
            calls[call] = calls.get(call, 0) + 1
            wrong += [[name, lasts, at, call, text] for text in found]
print(json.dumps([calls, wrong]))
"""


@dataclass(frozen=True, slots=True)
class Failing:
    """Processes in which calls fail. `library`: `failing.c`, compiled, in front of all others."""

    library: Path
    nursery: Nursery

    def run(
        self, what: str, durability: str, errors: str
    ) -> tuple[dict[str, int], list[list[object]]]:
        """How often which call failed, and what came of it that should not. In memory: there a sync
        that does not fail need not wait for a disk."""
        words = [what, durability, errors, self.library]
        with (
            tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder,
            contextlib.chdir(folder),
            self.nursery.start(PROGRAM, words, stdin=DEVNULL, stdout=PIPE, stderr=PIPE) as program,
        ):
            told, complained = program.communicate(timeout=600)
            assert program.wait() == 0, complained[-3000:]
        calls, wrong = json.loads(told)
        return {
            name.removesuffix("v2").removesuffix("64").removesuffix("at"): n
            for name, n in calls.items()
        }, wrong


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failing]:
    """See `Failing`."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler on this machine, or no Linux")
    made = tmp_path_factory.mktemp("failing") / "failing.so"
    include = sysconfig.get_path("include")
    command = [compiler, "-shared", "-fPIC", "-O1", f"-I{include}", "-o", str(made), str(SOURCE)]
    subprocess.run([*command, "-ldl"], check=True)
    with Nursery(PREPARE, {"LD_PRELOAD": str(made)}) as nursery:
        yield Failing(made, nursery)


EXPECTED = {
    "make": {"mkdir", "open", "pwritev", "fsync", "close", "rename", "mmap"},
    "open": {"open", "pread", "close", "mmap"},
    "verify": {"open", "pread"},
    "insert": {"pwritev", "fdatasync", "open", "rename", "fsync"},
    "snapshot": {"open", "pwritev", "fdatasync", "close", "rename", "fsync", "unlink", "pwrite"},
    "retain": {"open", "pwritev", "fdatasync", "close", "rename", "fsync"},
    "close": {"pwritev", "fdatasync", "close", "open", "rename", "fsync", "flock"},
    "restore": {"open", "pread", "pwritev", "fdatasync", "close", "rename", "fsync", "mkdir"},
    "repair": {"open", "pread", "pwritev", "fdatasync", "close", "rename", "fsync", "mkdir"},
    "trim": {"open", "pread", "ftruncate", "fdatasync", "close", "flock"},
    "topics": {"pwritev", "fdatasync", "open", "close"},
}
"""Calls that must be among those that failed, so that the loop does see the whole of it; without
`at` and `64` at their ends."""


@pytest.mark.slow
@pytest.mark.parametrize("errors", ["EIO", "ENOSPC,EMFILE", "EACCES,EINTR", "SHORT"])
@pytest.mark.parametrize("what", [*EXPECTED, "collect"])
def test_only_typed_errors_come_of_failing_system_calls(
    what: str, errors: str, failing: Failing
) -> None:
    """Whichever fails, once or from then on: an error of the tree, nothing lost, folder free.
    With EIO every call fails once; from then on, and with other errors, one of the first seven
    and every twentieth behind it, each time others, and all of them with `LOGWEIR_CALLS=all`; with
    SHORT every write is cut short, no error but to LMDB."""
    calls, wrong = failing.run(what, "fsync", errors)
    assert wrong == []
    if errors == "EIO":
        assert set(calls) >= EXPECTED.get(what, set())


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["write", "none"])
@pytest.mark.parametrize("what", ["close", "snapshot"])
def test_the_same_of_the_weaker_durabilities(what: str, durability: str, failing: Failing) -> None:
    """There a close has more to write."""
    calls, wrong = failing.run(what, durability, "EIO")
    assert wrong == []
    assert set(calls) >= EXPECTED[what] - {"fdatasync", "pwritev"}
