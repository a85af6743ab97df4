"""Runs the examples of Markdown pages.

A fence ```` ```python ```` is a program; all of a page's are run one after the other, in one
process, in an empty folder. A fence ```` ```console ```` is a session in the same folder: lines
that begin with ``$ `` are commands, the lines after one are what it prints (stdout and stderr),
where ``…`` stands for anything in a line, and a line that is ``…`` for any lines. A command
without such lines may print what it wants.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

_FENCE = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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
    for kind, text in examples(page.read_text("utf-8")):
        if kind == "python":
            programs.append(text)
            continue
        # A session sees what the programs above it left, so these run now.
        complaints += run_python("\n".join(programs), folder)
        programs = []
        complaints += run_console(text, folder)
    return complaints + run_python("\n".join(programs), folder)


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


def run_console(session: str, folder: Path) -> list[str]:
    """Run the commands of one session."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    complaints = []
    for command, expected in commands(session):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PATH": path},
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
