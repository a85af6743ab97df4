"""`logweir crashtest` in tests: the command, what it says, and where its library is compiled."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from logweir.tools.cli.main import app

JOURNAL = Path(__file__).resolve().parents[2] / "docs/examples/journal.py"
PYTHON = f"{shlex.quote(sys.executable)} -S"
"""Starts a program quickly."""

NEEDS_COMPILER = pytest.mark.skipif(
    sys.platform != "linux" or not (shutil.which("cc") or shutil.which("gcc")),
    reason="no C compiler on this machine, or no Linux",
)


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The library is compiled for these tests, once, and not where the user's is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def crashtest(folder: Path, *options: str) -> Result:
    """What the command says with these options. Failures are kept in `folder`/kept."""
    line = ["--json", "crashtest", "--keep", str(folder / "kept"), *options]
    return CliRunner().invoke(app, line)


def program(path: Path, text: str, arguments: str) -> str:
    """The command that runs a Python program, which is put into a file."""
    path.write_text(text)
    return f"{PYTHON} {shlex.quote(str(path))} {arguments}"


def journal(bug: str = "") -> list[str]:
    """The options that test the documentation's example with a mistake in it."""
    start = f"{PYTHON} {shlex.quote(str(JOURNAL))}"
    return [
        *("--run", f"{start} run {{dir}} {bug}"),
        *("--check", f"{start} check {{dir}} {{acked}} {bug}"),
    ]


def told(result: Result) -> dict[str, Any]:
    """What is said of the one kind of fault."""
    (fault,) = json.loads(result.stdout)["faults"]
    assert isinstance(fault, dict)
    return fault
