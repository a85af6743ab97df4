"""Runs the examples of Markdown pages.

A fence ```` ```python ```` is a program; all of a page's are run one after the other, in one
process, in an empty folder. A fence ```` ```console ```` is a session in the same folder: lines
that begin with ``$ `` are commands, the lines after one are what it prints (stdout and stderr),
where ``…`` stands for anything in a line, and a line that is ``…`` for any lines. A command
without such lines may print what it wants.

A command that ends with `` &`` is a server: what is behind it on the page runs once it is ready, as
it tells a service manager, and at the page's end it is ended. Ports of loopback that a page names
are exchanged, each for one that is free, so pages may run beside one another.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.ports import free_port

_FENCE = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PORT = re.compile(r"(?<=127\.0\.0\.1:)[1-9][0-9]+")
_LOOK_SECONDS = 0.5


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
        for kind, text in examples(with_free_ports(page.read_text("utf-8"))):
            if kind == "python":
                programs.append(text)
                continue
            # A session sees what the programs above it left, so these run now.
            complaints += run_python("\n".join(programs), folder)
            programs = []
            complaints += run_console(text, folder, servers)
        complaints += run_python("\n".join(programs), folder)
    return complaints


def with_free_ports(text: str) -> str:
    """The same page, on ports on which nobody listens."""
    ports: dict[str, int] = {}
    return _PORT.sub(lambda found: str(ports.setdefault(found[0], free_port())), text)


def run_python(program: str, folder: Path) -> list[str]:
    """Run one program in its own process."""
    if not program.strip():
        return []
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
    )
    return [f"{program}\n{done.stderr}"] if done.returncode else []


def run_console(session: str, folder: Path, servers: ExitStack) -> list[str]:
    """Run the commands of one session. `servers`: ends those that it starts."""
    complaints = []
    for command, expected in commands(session):
        if command.endswith(" &"):
            servers.enter_context(running(command.removesuffix(" &"), folder))
            continue
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=_environment(),
            timeout=400,
        )
        printed = done.stdout.splitlines()
        if done.returncode and "echo $?" not in command:
            complaints.append(f"$ {command}\nexit code {done.returncode}\n{done.stdout}")
        elif not matches(expected, printed):
            complaints.append(
                f"$ {command}\nprinted:\n{done.stdout}\nsaid:\n" + "\n".join(expected)
            )
    return complaints


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path}


@contextmanager
def running(command: str, folder: Path) -> Iterator[None]:
    """A server, from when it is ready; at the end it is ended. Raises `RuntimeError` if it
    cannot be started, or does not end in order."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("")  # a free abstract name
        manager.settimeout(_LOOK_SECONDS)
        name = "@" + manager.getsockname()[1:].decode()
        with subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**_environment(), "NOTIFY_SOCKET": name},
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
