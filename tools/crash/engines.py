"""Programs that are tested ready made: what to run and what to check with."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Final


def _python(module: str) -> tuple[str, str]:
    start = f"{shlex.quote(sys.executable)} -P -m {module}"
    return f"{start} run {{dir}} {{seed}}", f"{start} check {{dir}} {{acked}}"


def _lua(name: str) -> str:
    return f"tarantool {shlex.quote(str(Path(__file__).parent / 'tarantool' / name))}"


def _tarantool() -> tuple[str, str]:
    """If it refuses to open a folder it ends with code 1, which is told as 3 here."""
    script = (
        f'{_lua("check.lua")} "$1" "$2" || {{ code=$?; [ $code != 1 ] || code=3; exit $code; }}'
    )
    return f"{_lua('run.lua')} {{dir}}", f"sh -c {shlex.quote(script)} sh {{dir}} {{acked}}"


ENGINES: Final[dict[str, tuple[str, str]]] = {
    "logweir": _python("logweir.store.workload"),
    "sqlite": _python("logweir.tools.crash.sqlite"),
    "tarantool": _tarantool(),
}
"""Name to the commands that run and check."""
