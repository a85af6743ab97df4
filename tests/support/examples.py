"""Runs the examples of Markdown pages.

A fence ```` ```python ```` is a program; all of a page's are run one after the other, in one
process, in an empty folder. A fence ```` ```console ```` is a session in the same folder: lines
that begin with ``$ `` are commands, the lines after one are what it prints (stdout and stderr),
where ``…`` stands for anything in a line, and a line that is ``…`` for any lines. A command
without such lines may print what it wants.

A command that ends with `` &`` is a server: what is behind it on the page runs once it is ready, as
it tells a service manager, and at the page's end it is ended. Ports of loopback that a page names
are exchanged, each for one that is free, so pages may run beside one another.

Programs, and the command `logweir` in sessions, are copies of a process that has imported it.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from support.nursery import LOGWEIR
from support.ports import free_port

_FENCE = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PORT = re.compile(r"(?<=127\.0\.0\.1:)[1-9][0-9]+")
_LOOK_SECONDS = 0.5
_TIMEOUT_SECONDS = 400
_STRICT = "import warnings; warnings.simplefilter('error'); del warnings\n"


def examples(text: str) -> list[tuple[str, str]]:
    """The fences of a page that can be run: kind and text."""
    return _FENCE.findall(text)


def commands(session: str) -> list[tuple[str, list[str]]]:
    """The commands of a console fence, each with the lines that it is said to print."""
    found: list[tuple[str, list[str]]] = []
    for line in session.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif (line == ">" or line.startswith("> ")) and found and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line[2:]}", [])
        elif found:
            found[-1][1].append(line)
    return found


def matches(expected: list[str], printed: list[str]) -> bool:
    """Whether what was printed is what the page says."""
    if not expected:
        return True
    parts = ["(?:.*\n)*?" if line.strip() == "…" else _line_pattern(line) for line in expected]
    whole = "".join(f"{line.rstrip()}\n" for line in printed)
    return re.fullmatch("".join(parts), whole) is not None


def _line_pattern(line: str) -> str:
    return ".*".join(map(re.escape, line.rstrip().split("…"))) + "\n"


def run_page(page: Path, folder: Path) -> list[str]:
    """Run a page's examples in `folder`. Returns what went wrong, one text each."""
    programs: list[str] = []
    complaints: list[str] = []
    with ExitStack() as servers:
        shell = Shell(folder, servers)
        for kind, text in examples(with_free_ports(page.read_text("utf-8"))):
            if kind == "python":
                programs.append(text)
                continue
            # A session sees what the programs above it left, so these run now.
            complaints += run_python("\n".join(programs), folder)
            programs = []
            complaints += shell.run(text)
        complaints += run_python("\n".join(programs), folder)
    return complaints


def with_free_ports(text: str) -> str:
    """The same page, on ports on which nobody listens."""
    ports: dict[str, int] = {}
    return _PORT.sub(lambda found: str(ports.setdefault(found[0], free_port())), text)


def run_python(program: str, folder: Path) -> list[str]:
    """Run one program in its own process: an interpreter where it starts Spark, whose Java waits
    for the end of the one that started it."""
    if not program.strip():
        return []
    if "pipeline" in program:
        done = subprocess.run(
            [sys.executable, "-P", "-W", "error", "-c", program],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
        )
        return [f"{program}\n{done.stderr}"] if done.returncode else []
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with contextlib.chdir(folder), LOGWEIR.start(_STRICT + program, (), **streams) as running:
        _, complaint = running.communicate(timeout=_TIMEOUT_SECONDS)
        return [f"{program}\n{complaint}"] if running.wait() else []


class Shell:
    """Runs sessions in `folder`. `ends`: what ends the servers that they start."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        self._ends = ends
        own = ends.enter_context(tempfile.TemporaryDirectory())
        path = [own, str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        # In the order in which it was said, as on a terminal.
        self._environment = {**os.environ, "PATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}
        self._options: dict[str, Any] = {
            "cwd": folder,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
            "pass_fds": [LOGWEIR.command(Path(own))],
        }

    def run(self, session: str) -> list[str]:
        """Run the commands of one session. Returns what went wrong."""
        complaints = []
        for command, expected in commands(session):
            if command.endswith(" &"):
                self._ends.enter_context(self._running(command.removesuffix(" &")))
                continue
            done = subprocess.run(
                ["bash", "-c", command],
                env=self._environment,
                timeout=_TIMEOUT_SECONDS,
                **self._options,
            )
            printed = done.stdout.splitlines()
            if done.returncode and "echo $?" not in command:
                complaints.append(f"$ {command}\nexit code {done.returncode}\n{done.stdout}")
            elif not matches(expected, printed):
                complaints.append(
                    f"$ {command}\nprinted:\n{done.stdout}\nsaid:\n" + "\n".join(expected)
                )
        return complaints

    @contextmanager
    def _running(self, command: str) -> Iterator[None]:
        """A server, from when it is ready; at the end it is ended. Raises `RuntimeError` if it
        cannot be started, or does not end in order."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind("")  # a free abstract name
            manager.settimeout(_LOOK_SECONDS)
            name = "@" + manager.getsockname()[1:].decode()
            with subprocess.Popen(
                ["bash", "-c", command],
                env={**self._environment, "NOTIFY_SOCKET": name},
                **self._options,
            ) as server:
                try:
                    while server.poll() is None and not _is_told(manager):
                        pass
                    if server.poll() is None:
                        yield
                finally:
                    server.terminate()
                    printed, _ = server.communicate()
            if server.returncode:
                raise RuntimeError(f"{command} &\n{printed}")


def _is_told(manager: socket.socket) -> bool:
    try:
        return manager.recv(100) == b"READY=1"
    except TimeoutError:
        return False
