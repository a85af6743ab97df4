"""A Tarantool to compare with: a Lua program that times itself, told what to do line by line."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import TracebackType

from logweir.errors import Unreachable

__all__ = ["TarantoolPeer", "find_tarantool"]


def find_tarantool() -> str | None:
    """The program's path, None if none is installed."""
    return shutil.which("tarantool")


class TarantoolPeer:
    """One process. `program`: Lua that reads lines from stdin and answers each with a line."""

    def __init__(self, directory: Path, program: str) -> None:
        self._directory = directory
        self._script = directory / "peer.lua"
        self._script.write_text(program, encoding="utf-8")
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> TarantoolPeer:
        executable = find_tarantool()
        if executable is None:
            raise Unreachable("tarantool", "the program is not installed.")
        self._process = subprocess.Popen(  # noqa: S603 - a program of the system, our own script
            [executable, str(self._script)],
            cwd=self._directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.ask("ready")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.wait(timeout=30)
            process.stdout.close()

    @property
    def pid(self) -> int:
        """Of the process, while it runs."""
        assert self._process is not None
        return self._process.pid

    def ask(self, line: str) -> float:
        """Send one line; the answer is a number. Raises `Unreachable` if the process ended."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        answer = process.stdout.readline().strip()
        try:
            return float(answer)
        except ValueError:
            raise Unreachable("tarantool", f"answered {answer!r}.") from None
