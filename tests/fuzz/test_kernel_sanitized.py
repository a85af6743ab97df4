"""The compiled kernel under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.sanitizing import ROOT, compile_extension, environment, translate

FEED = """
import sys
sys.path[:0] = sys.argv[1:3]
import sanitized
from array import array
from random import Random
import logweir.wal.columns as columns
from logweir.errors import DecodeError, LimitExceeded
from mutation import mutate, wild_row

assert sanitized.COMPILED
columns.kernel = sanitized
random = Random(int(sys.argv[3]))
base = [wild_row(random) + wild_row(random) for _ in range(300)]
whole = 0
for _ in range(int(sys.argv[4])):
    data = mutate(random, random.choice(base)) if random.random() < 0.7 else random.choice(base)
    sanitized.skip(data, random.randrange(len(data) + 2))
    try:
        rows = columns.RowColumns.scan(data)
    except (DecodeError, LimitExceeded):
        continue
    whole += 1
    for use in (
        rows.transaction_ends,
        rows.last_lsns,
        lambda: rows.packets(0, len(rows), after={}, sync=random.choice((0, 5, 2**50))),
    ):
        try:
            use()
        except DecodeError:
            pass
    columns.encode_columns(
        type=rows.type, replica_id=rows.replica_id, group_id=rows.group_id, lsn=rows.lsn,
        timestamp_bits=rows.timestamp_bits, tsn=rows.tsn, flags=rows.flags, source=data,
        starts=rows.body_offset, stops=rows.end_offset,
    )
    columns.encode_run(
        type=2, replica_id=1, first_lsn=rows.lsn[0] if len(rows) else 0, timestamp=1.5,
        source=data, bounds=array("Q", (0, *rows.end_offset)), prefix=b"pre",
    )
print("whole", whole)
"""


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder of the kernel as an extension `sanitized`, and the environment it runs in."""
    made = environment()
    folder = tmp_path_factory.mktemp("sanitized")
    _build(folder, "sanitized", (ROOT / "wal" / "kernel.py").read_text())
    return folder, made


def _build(folder: Path, name: str, text: str) -> None:
    """Make an extension of the kernel's text."""
    (folder / f"{name}.py").write_text(text)
    shutil.copyfile(ROOT / "wal" / "kernel.pxd", folder / f"{name}.pxd")
    translate(folder, f"{name}.py")
    compile_extension(folder / f"{name}.c")


def _run(
    sanitized: tuple[Path, dict[str, str]], code: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    folder, surrounding = sanitized
    return subprocess.run(
        [sys.executable, "-c", code, str(folder), str(ROOT / "tests"), *arguments],
        env=surrounding,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_hostile_blocks_stay_in_their_buffers(sanitized: tuple[Path, dict[str, str]]) -> None:
    """No read, write or shift of the compiled kernel leaves its bounds on 20 000 hostile blocks."""
    seed, rounds = "1", os.environ.get("LOGWEIR_FUZZ_ROUNDS", "20000")
    run = _run(sanitized, FEED, seed, rounds)
    assert run.returncode == 0, run.stderr[-4000:]
    assert int(run.stdout.split()[1]) > int(rounds) // 10


@pytest.mark.slow
def test_the_sanitizer_sees_what_it_should(sanitized: tuple[Path, dict[str, str]]) -> None:
    """A table that is shorter than its capacity says is caught where the kernel does not look, so
    that the test above can fail."""
    text, check = (ROOT / "wal" / "kernel.py").read_text(), "FLAGS + 1, capacity, count)"
    assert text.count(check) == 1
    _build(sanitized[0], "unchecked", text.replace(check, "1, 0, 0)"))
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import unchecked
from array import array
table = array("Q", [0]) * 12  # the flags of the first of 2 rows would come next
unchecked.transactions(table, 2, 1, array("Q", bytes(400)))
"""
    run = _run(sanitized, code)
    assert run.returncode != 0
    assert "heap-buffer-overflow" in run.stderr, run.stderr
