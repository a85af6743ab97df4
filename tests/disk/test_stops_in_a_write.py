"""A process that is stopped between the system calls of one write over zeros written ahead.

A write that ends on another page than it begins is three `pwritev`: a longer filler, all but the
first page, the first page. Behind a sync more zeros may follow, which are three again.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import IO

import pytest

import logweir
from logweir.recovery import examine
from logweir.wal.block import FIXHEADER_BYTES
from logweir.wal.damage import TAIL_KINDS, Damage
from logweir.wal.filler import FILLER_BYTES, filler_zeros
from logweir.wal.follow import Follower
from logweir.wal.reader import WalReader
from logweir.wal.vclock import VClock
from logweir.wal.xrow import Row

SOURCE = Path(__file__).resolve().parents[1] / "support" / "failing.c"
LARGE = 300  # rows of one write: many pages
FEW, MANY = 20, 2000  # rows before it: it goes on behind the zeros that are there, or does not
WRITES = 3
DEFINITIONS = 2  # rows of the space and its index
ID = 600
HEAD = bytes.fromhex("502a4d18")  # behind the fixheader of a filler

PROGRAM = r"""
import ctypes, os, signal, sys
import logweir

folder, at, small, library = sys.argv[1:]
small = int(small)
library = ctypes.CDLL(library)
library.fail_below(os.fsencode(folder))
library.fail_only(b"pwritev")
log = logweir.open(folder, checkpoint_interval=0.0, write_ahead=65536)
log.create_space("kv", [("id", "unsigned"), ("value", "string")], id=600)
log.append("kv", [(number, os.urandom(50).hex()) for number in range(small - 5)])
for number in range(small - 5, small):
    log.insert("kv", (number, "a" * 100))
library.fail_at(int(at), -signal.SIGSTOP, 0)
log.append("kv", [(number, os.urandom(50).hex()) for number in range(small, small + 300)])
library.fail_at(0, 0, 0)
print("done", flush=True)
sys.stdin.read()
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


class Stopped:
    """A process that stands before the `at`th of those calls."""

    def __init__(self, folder: Path, at: int, library: Path, before: int = FEW) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), str(at), str(before), str(library)],
            env={**os.environ, "LD_PRELOAD": str(library)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        _, status = os.waitpid(self._child.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise AssertionError(self._child.communicate()[1])

    def kill(self) -> None:
        self._child.kill()
        self._child.communicate()

    def go_on(self) -> None:
        """Until the write is acknowledged."""
        os.kill(self._child.pid, signal.SIGCONT)
        out: IO[str] | None = self._child.stdout
        assert out is not None
        assert out.readline() == "done\n"


def keys_of(follower: Follower) -> list[int]:
    """The tuples that a follower gives now."""
    return [
        row.decoded()["tuple"][0]
        for block in follower.poll()
        for row in map(block.columns.row, range(len(block.columns)))
        if of_kv(row)
    ]


def read_whole(folder: Path) -> list[int]:
    """The tuples that a reader of the files finds, who meets an unfinished end at most."""
    found: list[int] = []
    for path in sorted(folder.glob("*.xlog")):
        with WalReader(path) as reader:
            for item in reader.blocks():
                if isinstance(item, Damage):
                    assert item.kind in TAIL_KINDS, item
                    break
                rows = map(item.columns.row, range(len(item.columns)))
                found += [row.decoded()["tuple"][0] for row in rows if of_kv(row)]
    return found


def of_kv(row: Row) -> bool:
    return row.decoded().get("space_id") == ID


@pytest.mark.parametrize(
    ("before", "at"), [*((FEW, at) for at in range(1, 7)), (MANY, 1), (MANY, 2), (MANY, 3)]
)
@pytest.mark.parametrize("is_killed", [True, False])
def test_nothing_is_lost_doubled_or_made_up(
    tmp_path: Path, library: Path, before: int, at: int, is_killed: bool
) -> None:
    """All that was acknowledged is there, once, for a reader and a follower that look meanwhile,
    and after the process was killed there, or went on."""
    folder = tmp_path / "store"
    stopped = Stopped(folder, at, library, before)
    try:
        # The zeros behind follow the sync: the write is whole by then.
        there = list(range(before if at <= WRITES else before + LARGE))
        assert read_whole(folder) == there
        with Follower(folder, VClock()) as follower:
            assert keys_of(follower) == there
            if is_killed:
                stopped.kill()
            else:
                stopped.go_on()
                there = list(range(before + LARGE))
            assert keys_of(follower) == there[before if at <= WRITES else len(there) :]
            stopped.kill()
            assert read_whole(folder) == there
            with logweir.open(folder) as log:
                assert [row[0] for row in log.select("kv")] == there
                assert log.vclock.lsn(1) == log.count("kv") + DEFINITIONS
                log.append("kv", [(number, "b") for number in range(5000, 5200)])
            assert keys_of(follower) == list(range(5000, 5200))
        assert not [damage for file in examine(folder).files for damage in file.damage]
        shutil.rmtree(folder / "state")
        with logweir.open(folder) as log:
            assert [row[0] for row in log.select("kv")] == [*there, *range(5000, 5200)]
    finally:
        stopped.kill()


@pytest.mark.parametrize("before", [FEW, MANY])
def test_the_write_is_of_three_calls(tmp_path: Path, library: Path, before: int) -> None:
    """What the file holds before each: a whole filler; one that is longer than the file, alone and
    in front of the rest of the write; the write and a filler again."""
    fillers = []
    for at in range(1, WRITES + (2 if before == FEW else 1)):
        folder = tmp_path / str(at)
        stopped = Stopped(folder, at, library, before)
        (path,) = folder.glob("*.xlog")
        stopped.kill()
        data = path.read_bytes()
        start = data.index(HEAD) - FIXHEADER_BYTES
        zeros = filler_zeros(data[start:])
        assert zeros is not None
        behind = data[start + FILLER_BYTES :]
        fillers.append((zeros - len(behind), any(behind)))
    longer = fillers[1][0]
    assert fillers[:WRITES] == [(0, False), (longer, False), (1, True)]
    if before == FEW:
        assert longer > 1  # the file ends before the write does
        assert fillers[WRITES] == (0, False)
    else:
        assert longer == 1
