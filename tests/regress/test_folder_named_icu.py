"""A folder `icu` beside the program is no ICU: it made every `open` fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("names", [(), ("__init__.py",)], ids=["folder", "package"])
def test_a_folder_named_icu_is_not_taken_for_the_binding(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    """A store opens, is closed, and opens again with the state it had."""
    (tmp_path / "icu").mkdir()
    for name in names:
        (tmp_path / "icu" / name).touch()
    program = """if True:
        import logweir
        for number in range(2):
            with logweir.open("store") as log:
                log.create_space(f"space {number}", [("id", "unsigned")])
        print(len(log.report.files))
    """
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1\n"
