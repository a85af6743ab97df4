"""A trace of real system calls: no answer before the sync that began after its write.

A program commits in every way there is (`disk.committing`) under strace, which makes each sync take
some time, so that an answer that does not wait for it comes before its end.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from codecs import escape_decode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from disk import committing

STRACE = shutil.which("strace")
CALLS = (
    "write,writev,pwritev,pwritev2,pwrite64,fdatasync,fsync,rename,renameat,renameat2,mkdir,mkdirat"
)
SYNC_MICROSECONDS = 20_000
END = r"\325\20\255\355"  # of a log or snapshot that is complete, as strace shows it

_LINE = re.compile(r"(?P<pid>\d+) +(?P<text>.*)")
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)", re.DOTALL)
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+)", re.DOTALL)
_FILE = re.compile(r"\d+<([^>]*)>")
_PLACE = re.compile(r'(?:(?:AT_FDCWD|\d+)(?:<([^>]*)>)?, )?"([^"]*)"')
_PART = re.compile(r'iov_base="((?:[^"\\]|\\.)*)"')
_POSITION = re.compile(r"\], \d+, (\d+)")


@dataclass(frozen=True)
class Call:
    """A finished call. `begin`, `end`: the numbers of its lines; `path`: the file or folder;
    `text`: its arguments; `data`: what is written to a log, at `position`."""

    name: str
    begin: int
    end: int
    path: str
    text: str
    data: bytes
    position: int


def calls_of(trace: Path) -> Iterator[Call]:
    """The calls that succeeded."""
    unfinished: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(trace.read_text(errors="replace").splitlines()):
        found = _LINE.match(line)
        if found is None:
            continue
        pid, text, begin = found["pid"], found["text"], number
        resumed = _RESUMED.match(text)
        if resumed is not None:
            begin, start = unfinished.pop(pid)
            text = start + resumed[1]
        elif text.endswith("<unfinished ...>"):
            unfinished[pid] = number, text.removesuffix("<unfinished ...>").rstrip()
            continue
        call = _CALL.match(text)
        if call is None or int(call[3]) < 0:
            continue
        name, arguments = call[1], call[2]
        file = _FILE.match(arguments)
        if name.startswith(("rename", "mkdir")):
            folder, last = _PLACE.findall(arguments)[-1]
            path = str(Path(folder, last))
            name = "rename" if name.startswith("rename") else "mkdir"
        else:
            path = file[1] if file else ""
        path, data, position = path.removesuffix(".inprogress"), b"", -1
        if name.startswith("pwritev") and path.endswith(".xlog"):
            parts = "".join(_PART.findall(arguments)).encode()
            data, position = escape_decode(parts)[0], int(_POSITION.findall(arguments)[-1])
        yield Call(name, begin, number, path, arguments, data, position)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Call], str, Path]:
    """The calls of the program, what it said, and its folder."""
    if STRACE is None:
        pytest.skip("strace is not installed")
    folder = tmp_path_factory.mktemp("traced")
    command = [STRACE, "-f", "-y", "-s", "2000000", "-o", str(folder / "trace")]
    command += ["-e", f"trace={CALLS}", "-e", "signal=none"]
    command += ["-e", f"inject=fdatasync,fsync:delay_exit={SYNC_MICROSECONDS}"]
    probe = subprocess.run([*command, "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"strace cannot trace here: {probe.stderr.strip()[:200]}")
    program = [sys.executable, committing.__file__, str(folder)]
    done = subprocess.run([*command, *program], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return list(calls_of(folder / "trace")), done.stdout, folder


def marks_of(calls: list[Call], kind: str) -> dict[str, Call]:
    """What the program noted, by name of the change."""
    noted = [call for call in calls if call.path.endswith("/marks")]
    found = [(re.search(rf'"{kind} (\w+);"', call.text), call) for call in noted]
    return {match[1]: call for match, call in found if match}


def is_synced(calls: list[Call], path: str, after: int, before: int) -> bool:
    """Whether a sync of that file or folder began and ended between these lines."""
    return any(
        call.name in ("fsync", "fdatasync")
        and call.path == path
        and call.begin > after
        and call.end < before
        for call in calls
    )


def writes_of(calls: list[Call], name: str) -> Iterator[Call]:
    """Those of the change of that name; two if it stands where one write ends and another begins,
    as it may where the file grows."""
    mark = f"<{name}>".encode()
    logged = [call for call in calls if call.data]
    for call in logged:
        if mark in call.data:
            yield call
    ends = {(call.path, call.position + len(call.data)): call for call in logged}
    for call in logged:
        before = ends.get((call.path, call.position))
        if before and mark in before.data[1 - len(mark) :] + call.data[: len(mark) - 1]:
            yield from (before, call)


def unsafe(calls: list[Call], name: str) -> list[str]:
    """What was not on stable storage when the change of that name was answered."""
    begin, answer = marks_of(calls, "begin")[name], marks_of(calls, "answer")[name]
    early = [call for call in writes_of(calls, name) if begin.end < call.begin]
    early = [call for call in early if call.end < answer.begin]
    if not early:
        return [f"{name}: answered before it was written"]
    wrong = []
    for write in early:
        if not is_synced(calls, write.path, write.end, answer.begin):
            wrong.append(f"{name}: answered before a sync of {write.path}")
        for made in calls:
            is_on_the_way = made.name == "rename" and made.path == write.path
            is_on_the_way |= made.name == "mkdir" and Path(made.path) in Path(write.path).parents
            if not is_on_the_way or made.end > answer.begin:
                continue
            if not is_synced(calls, str(Path(made.path).parent), made.end, answer.begin):
                wrong.append(f"{name}: answered before the name {made.path} was synced")
    return wrong


def test_a_change_is_found_in_two_writes_that_meet_in_it() -> None:
    log = "/store/0.xlog"
    calls = [
        Call("pwritev2", 1, 2, log, "", b"ed5>....", 100),  # behind it first
        Call("pwritev2", 3, 4, log, "", b"..<shared1>..<shar", 82),
        Call("pwritev2", 5, 6, "/store/100.xlog", "", b"ed5>....", 100),
    ]
    assert list(writes_of(calls, "shared5")) == [calls[1], calls[0]]
    assert list(writes_of(calls, "shared1")) == [calls[1]]
    assert list(writes_of(calls, "shared")) == []


def test_no_answer_comes_before_the_sync_that_began_after_its_write(
    traced: tuple[list[Call], str, Path],
) -> None:
    """Of changes, transactions, runs, large tuples, tasks, requests of four protocols, rows that
    were followed; nor before the names of the file and of the folders above it are synced."""
    calls, _, _ = traced
    names = list(marks_of(calls, "answer"))
    assert len(names) > 68
    assert set(names) == set(marks_of(calls, "begin"))
    assert [line for name in names for line in unsafe(calls, name)] == []


def test_the_state_takes_what_is_committed_in_the_trace(
    traced: tuple[list[Call], str, Path],
) -> None:
    """So that answers are looked at that come before and during it, not only between."""
    _, said, _ = traced
    assert int(said) > 10


def test_a_file_is_synced_before_the_marker_that_ends_it(
    traced: tuple[list[Call], str, Path],
) -> None:
    """Also where rows were written while another thread synced the file."""
    calls, _, folder = traced
    ends = [call for call in calls if call.path.endswith(".xlog") and END in call.text]
    assert len(ends) > 5
    assert any(call.path.startswith(str(folder / "aside")) for call in ends)
    for end in ends:
        before = [
            c
            for c in calls
            if c.path == end.path and c.name.startswith("pwritev") and c.end < end.begin
        ]
        assert is_synced(calls, end.path, before[-1].end, end.begin), end.path


def test_files_that_get_their_name_are_synced_before(
    traced: tuple[list[Call], str, Path],
) -> None:
    """Logs, snapshots, positions, the mark of the state: whole under their name or not there."""
    calls, _, _ = traced
    renamed = [call for call in calls if call.name == "rename"]
    kinds = {Path(call.path).suffix or Path(call.path).name for call in renamed}
    assert {".xlog", ".snap", "epoch"} <= kinds
    for call in renamed:
        source = str(Path(call.path).with_name(Path(call.path).name + ".new"))
        written = [c for c in calls if c.path in (call.path, source) and "write" in c.name]
        written = [c for c in written if c.end < call.begin]
        if written:
            last = written[-1]
            assert is_synced(calls, last.path, last.end, call.begin), call.path
