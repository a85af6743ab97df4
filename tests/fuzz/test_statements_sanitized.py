"""Compiled statements, selections and changes of items under AddressSanitizer and UBSan.

`LOGWEIR_SANITIZED`: how many random statements, default 1,500, and a 30th of that stores
and items that hypothesis makes up, which costs most here, so they are fewer than without.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.sanitizing import FIND, PYTEST, ROOT, built

NAMES = (
    *("memtable", "merge", "pack", "update", "plan", "layer", "base", "condition", "statement"),
    *("draft", "tuple", "select", "row", "item", "look", "readselect", "readitem", "readget"),
)
SOURCES = [
    source
    for name in NAMES
    for room in ("store", "replication")
    for source in (ROOT / room).rglob(f"{name}kernel.pyx")
]
KERNELS = {
    "logweir." + ".".join(source.relative_to(ROOT).with_suffix("").parts): source
    for source in SOURCES
}
STATEMENTS = os.environ.get("LOGWEIR_SANITIZED", "1500")
CHECK = """
from logweir.store.engine import executing, statementkernel
assert executing.COMPILED and statementkernel.__file__.startswith(sys.argv[1])
"""


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder of the extensions, and the environment that they run in."""
    assert [source.stem.removesuffix("kernel") for source in SOURCES] == [*NAMES]
    folder = tmp_path_factory.mktemp("sanitized")
    more = {"LOGWEIR_STATEMENTS": STATEMENTS, "LOGWEIR_EXAMPLES": str(int(STATEMENTS) // 30 or 1)}
    return folder, {**built(folder, KERNELS), **more}


FILES = (
    "property/test_statement_kernel.py",
    "unit/test_statement_kernel.py",
    "property/test_reads.py",
    "property/test_item_changes.py",
    "property/test_read_kernels.py",
)


@pytest.mark.slow
def test_statements_stay_in_their_memory(sanitized: tuple[Path, dict[str, str]]) -> None:
    """Random and odd ones, refused and undone ones among them, and selections in between: all that
    these files do, in one process, which takes as long to begin as some of them."""
    folder, environment = sanitized
    files = [f"tests/{file}" for file in FILES]
    some = "not (takes_layers[1] or takes_layers[2])"  # one of three seeds of the same
    run = subprocess.run(
        [sys.executable, "-P", "-c", FIND + CHECK + PYTEST, str(folder), *files, "-k", some],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    for file in files:
        assert f"{file} ." in run.stdout, run.stdout
