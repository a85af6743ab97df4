"""Programs that are tested ready made: what to run and what to check with."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from typing import Final

from logweir.tools.crash.programs import Commands

__all__ = ["ENGINES"]


def _python(module: str) -> Commands:
    start = f"{shlex.quote(sys.executable)} -P -m {module}"
    return Commands(f"{start} run {{dir}} {{seed}}", f"{start} check {{dir}} {{acked}}")


ENGINES: Final[dict[str, Callable[[], Commands]]] = {
    "logweir": lambda: _python("logweir.store.workload"),
}
"""Name to commands. Raises `ConfigError` where the program is not installed."""
