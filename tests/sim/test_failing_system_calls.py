"""The 1st, 2nd, … system call about a store's folder fails, those of LMDB too: typed errors only.

In a process of its own, with `support/failing.c` in front of the C library.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "support" / "failing.c"

PROGRAM = r"""
import ctypes, errno, json, os, shutil, sys, traceback
from pathlib import Path
import logweir
from logweir.recovery import examine

what, durability, names, library = sys.argv[1:]
library = ctypes.CDLL(library)
library.fail_name.restype = ctypes.c_char_p
OPTIONS = {"wal_max_size": 2000, "checkpoint_interval": 0.0}
FORMAT = [("id", "unsigned"), ("value", "string")]
base, folder = Path("base").absolute(), Path("store").absolute()
with logweir.open(base, **OPTIONS) as log:
    log.create_space("kv", FORMAT)
    log.append("kv", [(number, "x" * 50) for number in range(20)])
    log.snapshot()
    for number in range(20, 40):
        log.insert("kv", (number, "y" * 50))
library.fail_below(os.fsencode(folder))

def prepare():
    shutil.rmtree(folder, ignore_errors=True)
    if what == "make":
        return None
    shutil.copytree(base, folder)
    if what in ("open", "verify"):
        return None
    log = logweir.open(folder, durability=durability, **OPTIONS)
    if what != "insert":
        log.insert("kv", (40, "new"))
    return log

def use(log):
    if what in ("open", "make"):
        return logweir.open(folder, durability=durability, **OPTIONS)
    if what == "verify":
        examine(folder)
    elif what == "retain":
        log.retain("somebody", log.vclock)
        log.release("somebody")
    elif what == "insert":
        log.insert("kv", (40, "new"))
    else:
        getattr(log.inner if what == "collect" else log, what)()
    return log

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
    with logweir.open(folder) as log:
        if what != "make":
            found = [row[0] for row in log.select("kv")]
            if found[:40] != list(range(40)) or is_made and found[-1] != 40:
                wrong.append(f"rows are missing: {found}")
            if is_refused and found[-1] == 40:
                wrong.append("a change that was refused is there")
    return call, wrong

calls, wrong = {}, []
for name in names.split(","):
    for lasts in (False, True)[: 1 if name == "EINTR" else 2]:  # Python tries again for ever
        at, call, step = 0, "first", 1 if name == "EIO" else 3
        while call:
            at += step
            call, found = run(at, getattr(errno, name), lasts)
            calls[call] = calls.get(call, 0) + 1
            wrong += [[name, lasts, at, call, text] for text in found]
print(json.dumps([calls, wrong]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`failing.c`, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler on this machine, or no Linux")
    made = tmp_path_factory.mktemp("failing") / "failing.so"
    include = sysconfig.get_path("include")
    command = [compiler, "-shared", "-fPIC", "-O1", f"-I{include}", "-o", str(made), str(SOURCE)]
    subprocess.run([*command, "-ldl"], check=True)
    return made


def failing(
    library: Path, folder: Path, what: str, durability: str, errors: str
) -> tuple[dict[str, int], list[list[object]]]:
    """How often which call failed, and what came of it that should not."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, what, durability, errors, str(library)],
        cwd=folder,
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    calls, wrong = json.loads(done.stdout)
    return {
        name.removesuffix("v2").removesuffix("64").removesuffix("at"): n
        for name, n in calls.items()
    }, wrong


EXPECTED = {
    "make": {"mkdir", "open", "pwritev", "fsync", "close", "rename", "mmap"},
    "open": {"open", "pread", "close", "mmap"},
    "verify": {"open", "pread"},
    "insert": {"pwritev", "fdatasync", "open", "rename", "fsync"},
    "snapshot": {"open", "pwritev", "fdatasync", "close", "rename", "fsync", "unlink", "pwrite"},
    "retain": {"open", "pwritev", "fdatasync", "close", "rename", "fsync"},
    "close": {"pwritev", "fdatasync", "close", "open", "rename", "fsync", "flock"},
}
"""Calls that must be among those that failed, so that the loop does see the whole of it; without
`at` and `64` at their ends."""


@pytest.mark.slow
@pytest.mark.parametrize("errors", ["EIO", "ENOSPC,EMFILE", "EACCES,EINTR"])
@pytest.mark.parametrize("what", [*EXPECTED, "collect"])
def test_only_typed_errors_come_of_failing_system_calls(
    what: str, errors: str, library: Path, tmp_path: Path
) -> None:
    """Whichever fails, once or from then on: an error of the tree, nothing lost, folder free.
    With EIO that is every call, with the other errors every third."""
    calls, wrong = failing(library, tmp_path, what, "fsync", errors)
    assert wrong == []
    if errors == "EIO":
        assert set(calls) >= EXPECTED.get(what, set())


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["write", "none"])
@pytest.mark.parametrize("what", ["close", "snapshot"])
def test_the_same_of_the_weaker_durabilities(
    what: str, durability: str, library: Path, tmp_path: Path
) -> None:
    """There a close has more to write."""
    calls, wrong = failing(library, tmp_path, what, durability, "EIO")
    assert wrong == []
    assert set(calls) >= EXPECTED[what] - {"fdatasync", "pwritev"}
