"""A real Tarantool opens what a kill leaves of a store that writes ahead, with every row.

`LOGWEIR_AHEAD_KILLS=100 tools/test tests/interop/test_written_ahead_kills.py` kills a hundred
times.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import threading
from pathlib import Path

import pytest

import logweir
from interop.realtarantool import RealTarantool
from logweir.recovery.trim import trim

pytestmark = pytest.mark.tarantool

KILLS = int(os.environ.get("LOGWEIR_AHEAD_KILLS", "5"))
SEED = 20261122


def writer(folder: Path, seed: int, pipe: int) -> None:
    """Change a store until killed: rows alone and by hundreds, of any size."""
    dice = random.Random(seed)
    log = logweir.open(
        folder, wal_max_size=2**20, checkpoint_interval=0, write_ahead=dice.choice((4096, 2**20))
    )
    if "kv" not in {space.name for space in log.spaces()}:
        log.create_space("kv", [("id", "unsigned"), ("text", "string")])
    number = log.count("kv")
    os.write(pipe, number.to_bytes(8, "big"))
    large = dice.random() < 0.5
    while True:
        count = dice.choice((1, 1, 2, 300 if large else 5))
        text = dice.randbytes(dice.choice((3, 60, 2500 if large else 200))).hex()
        log.append("kv", [(number + i, text) for i in range(count)])
        number += count
        os.write(pipe, number.to_bytes(8, "big"))


def killed(folder: Path, seed: int) -> int:
    """Run the writer and kill it. Returns how many rows it had acknowledged."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            writer(folder, seed, write_end)
        finally:
            os._exit(1)
    os.close(write_end)
    data = os.read(read_end, 8)
    threading.Event().wait(random.Random(seed).choice((0.02, 0.1, 0.4)))
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    while select.select([read_end], [], [], 5)[0] and (piece := os.read(read_end, 65536)):
        data += piece
    os.close(read_end)
    return int.from_bytes(data[len(data) // 8 * 8 - 8 : len(data) // 8 * 8], "big")


def test_a_killed_store_opens_in_tarantool_with_every_row(tmp_path: Path) -> None:
    """At any moment, killed four times on the same folder; a trimmed copy too."""
    ahead = 0
    for number in range(KILLS):
        folder = tmp_path / f"store{number // 4}"
        acknowledged = killed(folder, SEED + number)
        copy = tmp_path / f"copy{number}"
        copy.mkdir()
        for path in folder.iterdir():
            if path.suffix in (".xlog", ".snap"):
                shutil.copy(path, copy)
        newest = max(copy.glob("*.xlog")).read_bytes()
        ahead += newest.endswith(bytes(600))
        if number % 5 == 4:
            trim(copy)
        with RealTarantool(copy, cfg={"memtx_memory": 2**29}) as box:
            (count, newest_key) = box.eval(
                "local s = box.space.kv return s:count(), (s.index[0]:max() or {-1})[1]"
            )
            assert count >= acknowledged, (number, box.log_text()[-2000:])
            assert newest_key == count - 1
        shutil.rmtree(copy)
    assert ahead > KILLS // 2  # else this tried something else
