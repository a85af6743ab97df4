"""A Tarantool to compare with: a Lua program that times itself, told what to do line by line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Self

from logweir.errors import Unreachable
from logweir.tools.bench.child import Child


def find_tarantool() -> str | None:
    """The program's path, None if none is installed."""
    return shutil.which("tarantool")


def run_script(directory: Path, program: str, *words: object) -> float:
    """The number that a Lua program with those arguments tells. Raises `Unreachable`."""
    with _Script(directory, program, *words) as script:
        return script.number()


class _Script(Child):
    def __init__(self, directory: Path, program: str, *words: object) -> None:
        executable = find_tarantool()
        if executable is None:
            raise Unreachable("tarantool", "the program is not installed.")
        script = directory / "peer.lua"
        script.write_text(program, encoding="utf-8")
        command = [executable, str(script), *map(str, words)]
        super().__init__(command, folder=directory, errors=False)

    def number(self) -> float:
        """The next line, which is one. Raises `Unreachable`."""
        answer = self.told().strip()
        try:
            return float(answer)
        except ValueError:
            raise Unreachable("tarantool", f"answered {answer!r}.") from None


class TarantoolPeer(_Script):
    """One process. `program`: Lua that reads lines from stdin and answers each with a line. Raises
    `Unreachable` if no Tarantool is installed, or it does not start."""

    def __enter__(self) -> Self:
        super().__enter__()
        self.ask("ready")
        return self

    def ask(self, line: str) -> float:
        """Send one line; the answer is a number. Raises `Unreachable` if the process ended."""
        self.tell(line)
        return self.number()
