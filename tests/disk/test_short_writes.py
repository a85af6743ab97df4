"""Each write of a process cut short in turn: what it leaves is, byte for byte, what it leaves else.

A store with logs, snapshots, a follower's position, a backup and an archive of it, in a process of
its own with `support/failing.c` in front of the C library.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "support" / "failing.c"

PROGRAM = r"""
import ctypes, hashlib, json, os, shutil, sys
from pathlib import Path
import logweir
from logweir.archive.archiver import Archiver
from logweir.archive.objects import FolderObjects
from logweir.recovery import restore

library = ctypes.CDLL(sys.argv[1])
library.fail_name.restype = ctypes.c_char_p
base, folder = Path("base").absolute(), Path("whole").absolute()
store, backup, archive = (folder / name for name in ("store", "backup", "archive"))
with logweir.open(base, clock=lambda: 1e9) as log:
    log.create_space("kv", [("id", "unsigned"), ("value", "string")])
library.fail_below(os.fsencode(folder))

def look_after():
    with Archiver(store, FolderObjects(archive), clock=lambda: 1e9) as archiver:
        archiver.look()

def work(done):
    log = logweir.open(store, clock=lambda: 1e9, wal_max_size=4000, checkpoint_interval=0.0)
    with log:
        for number in range(60):
            log.insert("kv", (number, "x" * 90))
            done.append(number)
            if number == 20:
                log.retain("somebody", log.vclock)
                log.snapshot()
                look_after()
        log.append("kv", [(number, "y" * number) for number in range(100, 180)])
        done += range(100, 180)
        log.snapshot()
        with log.transaction() as tx:
            tx.insert("kv", (60, "z"))
            tx.update("kv", 1, [("=", "value", "new")])
        done.append(60)
    restore(store, backup)
    look_after()

def left():
    # Digests of all that is there, but of what names the process, its run or pages of LMDB.
    return {
        str(one.relative_to(folder)): hashlib.sha256(one.read_bytes()).hexdigest()
        for one in sorted(folder.rglob("*"))
        if one.is_file() and "state" not in one.parts and one.name != "logweir.lock"
    }

def tuples(of):
    with logweir.open(of) as log:
        return [list(row) for row in log.select("kv")]

def run(at, lasts):
    # The call that was cut short, "" for none; the error; what is lost; files and tuples.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copytree(base, store)
    error, done = "", []
    library.fail_at(at, 0, lasts)
    try:
        work(done)
    except logweir.LogweirError as caught:
        error = repr(caught)
    call = library.fail_name().decode()
    library.fail_at(0, 0, 0)
    there = left()
    found = [tuples(one) for one in (store, backup) if one.exists()]
    keys = {row[0] for row in found[0]}
    return call, error, [one for one in done if one not in keys], there, found

whole = run(10**6, 0)
assert run(10**6, 0) == whole, "it leaves not twice the same"
def look(at, lasts):
    call, error, lost, files, rows = run(at, lasts)
    names = sorted(one for one in {*whole[3], *files} if whole[3].get(one) != files.get(one))
    return call, error, lost, names, rows == whole[4]

found = []
while not found or found[-1][0]:
    found.append(look(len(found) + 1, 0))
library.fail_only(b"pwritev")  # which are ours, and none of LMDB's
print(json.dumps([sorted(whole[3]), look(1, 1), found[:-1]]))
"""


@pytest.mark.slow
def test_no_write_that_is_cut_short_makes_a_difference(tmp_path: Path) -> None:
    """Of logs, snapshots, marks, followers, a backup and an archive, and of all of them at once;
    LMDB takes a short write for a disk that failed, and then it is told, and no tuple is lost."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler on this machine, or no Linux")
    library = tmp_path / "failing.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(library)],
        cwd=tmp_path,
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    files, at_once, single = json.loads(done.stdout)
    kinds = {(Path(one).parts[0], Path(one).suffix) for one in files}
    assert kinds >= {
        (of, end) for of in ("store", "backup", "archive") for end in (".snap", ".xlog")
    }
    assert at_once[1:] == ["", [], [], True]
    ours = [one for one in single if one[0].startswith("pwritev")]
    assert len(ours) > 100
    for call, error, lost, differs, is_same in single:
        assert lost == [], (call, error)
        if call.startswith("pwritev") or not error:
            assert (error, differs, is_same) == ("", [], True), call
    told = {one[1].partition("(")[0] for one in single if one not in ours}
    assert told == {"", "LogStopped"}
