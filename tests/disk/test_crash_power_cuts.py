"""`logweir crashtest --power-cut`: planted mistakes are caught, what is right is not blamed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.crashing import (
    NEEDS_COMPILER,
    crashtest,
    journal,
    own_cache,  # noqa: F401 - a fixture
    program,
    told,
)
from typer.testing import CliRunner, Result

from logweir.tools.cli.main import app

pytestmark = [pytest.mark.kill, NEEDS_COMPILER]


def cut(folder: Path, run: str, check: str, *options: str) -> Result:
    """What the command says of power cuts and two commands."""
    return crashtest(folder, "--power-cut", "--run", run, "--check", check, *options)


def cut_journal(folder: Path, bug: str, *options: str) -> Result:
    """The same of the documentation's example."""
    return crashtest(folder, "--power-cut", *journal(bug), *options)


@pytest.mark.parametrize("model", ["posix", "ext4"])
def test_the_right_program_is_not_blamed(model: str, tmp_path: Path) -> None:
    """In no state: all the different ones of a short run."""
    result = cut_journal(tmp_path, "", "--model", model, "--states", "45")
    assert result.exit_code == 0, result.output
    fault = told(result)
    assert fault["failure"] is None
    assert fault["tried"] > 30
    assert fault["acknowledged"] > 100


BUGS = {
    "early-ack": ("posix", "212 bytes at 0 of log", "It was acknowledged (line 1 and before)"),
    "lost-name": ("posix", "the new file log", "before its folder was synced"),
    "no-tail-check": ("ext4", "of the write of 212 bytes", "Nothing was acknowledged"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_mistake_is_caught_and_named(bug: str, tmp_path: Path) -> None:
    """One operation is named, the one that is enough; the kept folder shows it again."""
    model, lost, when = BUGS[bug]
    result = cut_journal(tmp_path, bug, "--model", model, "--states", "60", "--lives", "1")
    assert result.exit_code == 1, result.output
    failure = told(result)["failure"]
    assert lost in failure["what"]
    assert when in failure["what"]
    assert ";" not in failure["what"]
    again = CliRunner().invoke(app, ["crashtest", "--again", failure["folder"]])
    assert again.exit_code == 1
    assert failure["what"] in again.stdout


def test_ext4_keeps_the_order_of_names(tmp_path: Path) -> None:
    """There the missing sync of a folder costs nothing: a sync of a file saves names, too."""
    result = cut_journal(tmp_path, "lost-name", "--model", "ext4", "--states", "30")
    assert result.exit_code == 0, result.output


def test_the_same_seed_tries_the_same_disks(tmp_path: Path) -> None:
    """The run is recorded anew; what is tried of it follows from the seed."""
    counts = [told(cut_journal(tmp_path, "", "--states", "20", "--seed", "5")) for _ in range(2)]
    assert counts[0] == counts[1]
    assert counts[0]["tried"] == 20


ONCE = """
import os, sys
os.close(os.open(sys.argv[1] + "/lock", os.O_CREAT | os.O_EXCL))
os.fsync(os.open(sys.argv[1], os.O_RDONLY))
print(1, flush=True)
"""


def test_a_program_that_does_not_start_behind_a_cut_is_caught(tmp_path: Path) -> None:
    """Lives but the first begin on a disk that a cut left; the start is what is shown again."""
    run = program(tmp_path / "run.py", ONCE, "{dir}")
    result = cut(tmp_path, run, "true {dir}", "--lives", "12")
    assert result.exit_code == 1, result.output
    failure = told(result)["failure"]
    assert failure["what"].startswith("the program was started on what a power cut in life ")
    assert "FileExistsError" in failure["output"]
    again = CliRunner().invoke(app, ["crashtest", "--again", failure["folder"]])
    assert again.exit_code == 1
    assert "FileExistsError" in again.stdout


STREAMS = r"""
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words) {
    char path[4096];
    int i;
    snprintf(path, sizeof path, "%s/log", words[1]);
    FILE *log = fopen(path, "a");
    for (i = 0; i < 3; i++) {
        fprintf(log, "%d\n", i);
        fflush(log);
        if (count < 3)
            fsync(fileno(log));
        printf("%d\n", i);
        fflush(stdout);
    }
    return 0;
}
"""
LINES = """
import os, sys
log = sys.argv[1] + "/log"
there = open(log).read().split() if os.path.exists(log) else []
missing = set(open(sys.argv[2]).read().split()) - set(there)
sys.exit(f"missing: {missing}" if missing else 0)
"""


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Compiles a program that writes by streams of C, with an option of the compiler."""

    def compiled(option: str) -> Path:
        folder = tmp_path_factory.mktemp("streams")
        (folder / "program.c").write_text(STREAMS)
        command = ["cc", option, "-o", str(folder / "program"), str(folder / "program.c")]
        subprocess.run(command, check=True)
        return folder / "program"

    return compiled


def test_streams_of_c_are_recorded(streams: Callable[[str], Path], tmp_path: Path) -> None:
    """Data, syncs and acknowledgements of a program that knows no file descriptors."""
    check = program(tmp_path / "check.py", LINES, "{dir} {acked}")
    compiled = streams("-O1")
    right = cut(tmp_path, f"{compiled} {{dir}}", check, "--model", "ext4", "--states", "30")
    assert right.exit_code == 0, right.output
    assert told(right)["acknowledged"] > 3
    wrong = cut(tmp_path, f"{compiled} {{dir}} x", check, "--model", "ext4", "--states", "30")
    assert wrong.exit_code == 1, wrong.output


def test_a_program_that_is_linked_statically_is_refused(
    streams: Callable[[str], Path], tmp_path: Path
) -> None:
    """It would be recorded as one that writes nothing."""
    result = cut(tmp_path, f"{streams('-static')} {{dir}}", "true {dir}")
    assert result.exit_code == 2, result.output
    assert "does not take preloaded libraries" in result.stderr


MAPPED = """
import mmap, os, sys
with open(sys.argv[1] + "/map", "w+b") as file:
    file.truncate(4096)
    with mmap.mmap(file.fileno(), 4096) as map:
        map[:3] = b"abc"
        print(1, flush=True)
"""
PAST = """
import ctypes, os, sys
descriptor = os.open(sys.argv[1] + "/log", os.O_CREAT | os.O_WRONLY)
ctypes.CDLL(None).syscall(1, descriptor, b"abc", 3)
print(1, flush=True)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of a system call")
def test_what_goes_past_the_recorder_is_told(tmp_path: Path) -> None:
    """A map is named in a note; a call of the system by its number is found out by the folder."""
    mapped = cut(tmp_path, program(tmp_path / "mapped.py", MAPPED, "{dir}"), "true {dir}")
    assert mapped.exit_code == 0, mapped.output
    assert told(mapped)["notes"] == ["map: written through memory maps, which is not recorded"]
    past = cut(tmp_path, program(tmp_path / "past.py", PAST, "{dir}"), "true {dir}")
    assert past.exit_code == 2, past.output
    assert "changed log in a way that the recorder does not see" in past.stderr


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what to install."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/true").symlink_to(shutil.which("true") or "/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = cut(tmp_path, "true {dir}", "true {dir}")
    assert result.exit_code == 2, result.output
    assert "there is no C compiler" in result.stderr
    assert "--kill needs none" in result.stderr


@pytest.mark.parametrize("engine", ["logweir", "sqlite"])
def test_engines_keep_their_promises(engine: str, tmp_path: Path) -> None:
    """A few disks of each; more by `logweir crashtest --power-cut --engine`."""
    result = crashtest(tmp_path, "--power-cut", "--engine", engine, "--states", "5")
    assert result.exit_code == 0, result.output
    assert told(result)["tried"] == 5


@pytest.mark.tarantool
def test_the_missing_sync_of_a_folder_in_tarantool_is_found(tmp_path: Path) -> None:
    """2.6 renames snapshots and logs and syncs no folder: the first row can be lost."""
    result = crashtest(tmp_path, "--power-cut", "--engine", "tarantool", "--states", "8")
    assert result.exit_code == 1, result.output
    assert "its folder was synced" in told(result)["failure"]["what"]
