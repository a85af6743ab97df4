"""Programs that a benchmark talks with, a line at a time: clients, peers, Lua that times itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from logweir.errors import Unreachable

_END_SECONDS = 60


def python(code: str, *words: object) -> list[str]:
    """The command that runs a line of this very program's Python."""
    return [sys.executable, "-P", "-c", code, *map(str, words)]


class Child:
    """One process; a context manager, which ends its input, and waits for it. `errors`: whether
    what it says on stderr is shown."""

    def __init__(
        self, command: Sequence[str], *, folder: Path | None = None, errors: bool = True
    ) -> None:
        self._command = command
        self._folder = folder
        self._errors = None if errors else subprocess.DEVNULL

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603 - ourselves, or a program of the system
            self._command,
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(_END_SECONDS)
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def tell(self, line: str) -> None:
        """Send one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def told(self) -> str:
        """The next line. Raises `Unreachable` if the process ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unreachable("bench", f"{self._command[0]} ended.")
        return line
