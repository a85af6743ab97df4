"""The compiled kernels of typed columns under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.sanitizing import FIND, ROOT, built

KERNELS = {
    f"logweir.pipeline.{name}": ROOT / "pipeline" / f"{name}.py"
    for name in ("jsonkernel", "typedkernel")
}
FEED = """
sys.path.insert(0, "tests")
from property.test_pipeline_typed_kernel import feed
from logweir.pipeline import jsonkernel, typedkernel
assert jsonkernel.COMPILED and typedkernel.COMPILED
assert all(one.__file__.startswith(sys.argv[1]) for one in (jsonkernel, typedkernel))
told = [feed(seed, damaged=bool(seed % 4)) for seed in range(int(sys.argv[2]))]
print(told.count("columns"), told.count("error"))
"""


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder of the extensions, and the environment that they run in."""
    folder = tmp_path_factory.mktemp("sanitized")
    return folder, built(folder, KERNELS)


@pytest.mark.slow
def test_hostile_tuples_stay_in_their_buffers(sanitized: tuple[Path, dict[str, str]]) -> None:
    """No read or write of the compiled kernels leaves its buffer: tuples of every type, whole and
    damaged, and the columns are those of one object per cell."""
    folder, environment = sanitized
    rounds = os.environ.get("LOGWEIR_FUZZ_ROUNDS", "400")
    run = subprocess.run(
        [sys.executable, "-P", "-c", FIND + FEED, str(folder), rounds],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    columns, errors = map(int, run.stdout.split())
    assert columns > int(rounds) // 4
    assert errors > int(rounds) // 20
