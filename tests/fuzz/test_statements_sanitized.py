"""Compiled statements, selections and changes of items under AddressSanitizer and UBSan.

`LOGWEIR_SANITIZED`: how many random statements, default 1,500.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.test_memtable_sanitized import FIND, PLACES, PYTEST, built

ROOT = Path(__file__).resolve().parents[2]
NAMES = (
    *("memtable", "merge", "pack", "update", "plan", "layer", "base", "condition", "statement"),
    *("tuple", "select", "row", "item"),
)
KERNELS = {
    "logweir." + ".".join(source.relative_to(ROOT).with_suffix("").parts): source
    for name in NAMES
    for place in PLACES
    for source in ROOT.glob(f"{place}/{name}kernel.pyx")
}
STATEMENTS = os.environ.get("LOGWEIR_SANITIZED", "1500")
CHECK = """
from logweir.store.engine import executing, statementkernel
assert executing.COMPILED and statementkernel.__file__.startswith(sys.argv[1])
"""


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder of the extensions, and the environment that they run in."""
    folder = tmp_path_factory.mktemp("sanitized")
    return folder, {**built(folder, KERNELS), "LOGWEIR_STATEMENTS": STATEMENTS}


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [
        "property/test_statement_kernel.py",
        "unit/test_statement_kernel.py",
        "property/test_reads.py",
        "property/test_item_changes.py",
    ],
)
def test_statements_stay_in_their_memory(sanitized: tuple[Path, dict[str, str]], file: str) -> None:
    """Random and odd ones, refused and undone ones among them, and selections in between."""
    folder, environment = sanitized
    run = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            FIND + CHECK + PYTEST,
            str(folder),
            f"tests/{file}",
        ],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
