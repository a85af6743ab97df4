"""`logweir bench recover`: opening a folder, by how it was left and how long its log is.

"reopened" was closed in order or its process was killed: the state is there. "rebuilt" has lost its
state (a power cut) and applies the whole log. Tarantool reads the same folder into memory.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Final

from logweir.store import open as open_store
from logweir.tools.bench.append import BENCH_FORMAT, bench_tuples
from logweir.tools.bench.harness import Case, Result, compare
from logweir.tools.bench.tarantool import find_tarantool, run_script

_BATCH: Final = 1000

_LUA: Final = """
local clock = require('clock')
local start = clock.monotonic()
box.cfg{memtx_dir = arg[1], wal_dir = arg[1], log = 'peer.log', memtx_memory = 2^30,
        read_only = true, checkpoint_interval = 0}
print(clock.monotonic() - start)
os.exit(0)
"""


def run_recover(
    directory: Path, *, rows: int = 300_000, rounds: int = 3
) -> tuple[int, list[Result]]:
    """Returns the log's bytes and the results; the baseline is reopening a tenth of the log."""
    small, large = directory / "small", directory / "large"
    _fill(small, rows // 10)
    _fill(large, rows)
    cases = [
        Case(f"reopened, {rows // 10} rows", lambda: _reopen(small), 1),
        Case(f"reopened, {rows} rows", lambda: _reopen(large), 1),
        Case(f"reopened after a kill, {rows} rows", lambda: _reopen(large, kill=True), 1),
        Case(f"rebuilt, {rows} rows", lambda: _rebuild(large), 1),
    ]
    if find_tarantool() is not None:
        cases.append(Case(f"tarantool, {rows} rows", lambda: _tarantool(directory, large), 1))
    size = sum(path.stat().st_size for path in large.glob("*.xlog"))
    return size, compare(cases, rounds=rounds)


def _fill(folder: Path, rows: int) -> None:
    with open_store(folder, "write", checkpoint_interval=0) as log:
        log.create_space("bench", BENCH_FORMAT)
        for first in range(1, rows + 1, _BATCH):
            log.append("bench", bench_tuples(_BATCH, first), one_transaction=False)


def _reopen(folder: Path, *, kill: bool = False) -> float:
    start = time.perf_counter()
    log = open_store(folder, checkpoint_interval=0)
    seconds = time.perf_counter() - start
    if kill:
        log.inner.abandon()
        return _reopen(folder)
    log.close()
    return seconds


def _rebuild(folder: Path) -> float:
    shutil.rmtree(folder / "state")
    return _reopen(folder)


def _tarantool(directory: Path, folder: Path) -> float:
    copy = directory / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for path in folder.glob("*.[xs]*"):
        if path.suffix in (".xlog", ".snap"):
            shutil.copy(path, copy)
    return run_script(directory, _LUA, copy)
