"""The program as a whole: options, exit codes, errors, pipes."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.logs import ORDERS, SPACE_ROW, write_log, write_snapshot
from typer.testing import CliRunner

import logweir
from logweir import errors
from logweir.store.schema.fieldtype import FieldType
from logweir.tools.cli import main
from logweir.wal.filesystem import explain

PROGRAM = Path(sys.executable).parent / "logweir"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the installed program; stdout is no terminal."""
    return subprocess.run(
        [PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )


def test_version_is_printed() -> None:
    """--version prints name and version and ends well."""
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("logweir ")
    assert done.stdout.strip().split()[1][0].isdigit()


def test_the_module_is_the_program() -> None:
    """For where the folder of programs is not in PATH."""
    module = [sys.executable, "-P", "-m", "logweir", "--version"]
    done = subprocess.run(module, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, run("--version").stdout)


def test_help_lists_every_command() -> None:
    """--help shows all commands with what they are for."""
    done = run("--help")
    for name, text in main.COMMANDS.items():
        assert any(line.split()[:1] == [name] for line in done.stdout.splitlines()), name
        assert text.split()[0] in done.stdout


NETWORK = {"asyncio", "ssl", "uvloop", "logweir.replication"}
STORE = {"logweir.store.log", "logweir.store.commit"}
LIBRARIES = {"lmdb", "msgpack", "backports.zstd", "rich", "pyarrow", "crcmod", "crc32c"}
SERVER = {"prometheus_client", "cramjam", "logweir.replication.server"}
SOCKETS = NETWORK - {"logweir.replication"}
OPERATING = [
    *(["user", "list", "store"], ["snapshot", "store"], ["topic", "list", "store"]),
    *(["retain", "list", "store"], ["user", "add", "store", "r", "--role"]),
]
"""Commands for a folder or a server, on a folder."""


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["--help"], NETWORK | STORE | SERVER | LIBRARIES | {"logweir.wal", "pydantic"}),
        (["--version"], NETWORK | STORE | SERVER | LIBRARIES | {"logweir.wal", "pydantic"}),
        (["info", "store"], NETWORK | SERVER | {"rich", "lmdb", "crcmod", "logweir.store.log"}),
        (["cat", "store"], NETWORK | STORE | SERVER | {"rich", "lmdb", "crcmod"}),
        (["top", "--help"], STORE | SERVER | {"rich", "lmdb", "logweir.wal.reader"}),
        (["get", "store", "t", "1"], NETWORK | SERVER | {"rich", "crcmod"}),
        (["import", "store", "t"], NETWORK | SERVER | {"rich"}),
        (["space", "create", "store", "u"], SOCKETS | SERVER | {"rich"}),
        (["select", "tarantool://127.0.0.1:1", "t"], STORE | SERVER | {"rich", "uvloop"}),
        (["diff", "store", "store"], SERVER | {"rich", "uvloop"}),
        (["play", "store", "tarantool://127.0.0.1:1"], SERVER | STORE | {"rich"}),
        (["status", "nothing"], SERVER | STORE | {"rich", "lmdb"}),
        *((words, SOCKETS | SERVER | {"rich"}) for words in OPERATING),
        (
            ["doctor", "store"],
            {"rich", "cramjam", "pyarrow", "logweir.replication.greenstack.wire.codec"},
        ),
    ],
)
def test_a_command_imports_what_it_needs(
    words: list[str], absent: set[str], tmp_path: Path
) -> None:
    """Who has a folder needs no network, who asks a server no store, and neither of them what only
    a server needs."""
    with logweir.open(tmp_path / "store") as log:
        log.create_space("t")
    code = (
        "import sys; from logweir.tools.cli.main import run\n"
        "try: run()\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, input="")
    loaded = done.stderr.splitlines()[-1].split()
    assert "logweir.tools.cli.main" in loaded, done.stderr
    assert sorted(absent & set(loaded)) == []


def test_help_needs_neither_store_nor_server() -> None:
    """Nor do wrong options; the report, which counts keys, reads how they are made."""
    code = (
        "import sys; from logweir.tools.cli.main import load_command\n"
        "absent = set(sys.argv[1].split(','))\n"
        "for name in sys.argv[2].split(','):\n"
        "    load_command(name)\n"
        "    if found := absent & set(sys.modules): sys.exit(f'{name} imports {found}')\n"
    )
    absent = SERVER | STORE | {"lmdb", "rich", "pyarrow", "logweir.store.engine.engine"}
    absent |= {"logweir.replication.iproto.follow.join"}
    names = [name for name in main.COMMANDS if name != "report"]
    command = [sys.executable, "-P", "-c", code, ",".join(absent), ",".join(names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_server_without_its_libraries_names_the_extra(tmp_path: Path) -> None:
    """The library alone brings none of them."""
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from logweir.tools.cli.main import run; run()\n"
    )
    command = [sys.executable, "-c", code, "serve", "store"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "logweir[serve]" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_is_missing_is_told_where_much_is(tmp_path: Path) -> None:
    """As in an installation with `cli` alone, which each wheel is tried in."""
    logweir.open(tmp_path / "store").close()
    names = ("cramjam", "numpy", "prometheus_client", "redis", "starlette", "uvloop", "yaml")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({names}))\n"
        "from logweir.tools.cli.main import run; run()\n"
    )
    command = [sys.executable, "-c", code, "doctor", "store"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert re.search(r"^\w+ +kernels ", done.stdout, re.M), done.stderr
    assert re.search("^ok +settings ", done.stdout, re.M)
    assert re.search(r"^note +listen .*\n.*logweir\[serve\]", done.stdout, re.M), done.stdout
    assert done.returncode == 0


def test_every_command_module_is_in_the_table() -> None:
    """A module that has a command can be reached from the command line."""
    folder = Path(main.__file__).parent
    texts = {path.stem: path.read_text("utf-8") for path in folder.glob("*.py")}
    found = {(name, "command") for name, text in texts.items() if "\ndef command(" in text}
    for name in {home for home, _ in main.HOMES.values()}:
        found |= {(name, one) for one in re.findall(r"^def ([a-z]\w*)\(", texts[name], re.M)}
    assert found == {main.HOMES.get(name, (name, "command")) for name in main.COMMANDS}


def test_types_of_fields_stand_in_the_help_of_space() -> None:
    """All that there are: the error of one that is none is Tarantool's, which names no other."""
    told = " ".join(CliRunner().invoke(main.app, ["space", "--help"]).stdout.split())
    named = told.partition("Types: ")[2].partition(".")[0].split(", ")
    assert named == sorted(one.label for one in FieldType)


@pytest.mark.parametrize("name", list(main.COMMANDS))
def test_every_command_explains_itself(name: str) -> None:
    """Each command has help that begins with what the list of commands says or more."""
    result = CliRunner().invoke(main.app, [name, "--help"])
    assert result.exit_code == 0
    assert f"Usage: logweir {name}" in result.stdout
    assert "--json" in result.stdout
    assert "--debug" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["info"], ["info", "--nonsense", "x"], ["info", "a", "b"], ["--nonsense"]],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    """Unknown commands and options and missing arguments are wrong usage, told on stderr."""
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Usage: logweir" in done.stderr


def test_a_command_that_is_nearly_right_is_suggested() -> None:
    assert "Did you mean 'verify'?" in run("verifyy").stderr


@pytest.mark.parametrize("name", list(main.COMMANDS))
def test_help_names_values_as_people_do(name: str) -> None:
    """By a word, a letter or the choices: nothing of Python's types."""
    result = CliRunner().invoke(main.app, [name, "--help"], terminal_width=200)
    usage, _, tables = result.stdout.partition("Options:")
    tables = usage.partition("Arguments:")[2] + tables
    shown = re.findall(r"^ {2}(?:-\w, )?(\S+.*?)(?: {2,}|$)", tables, re.M)
    assert shown
    assert [text for text in shown if re.search(r"[<{]|\b(str|int|float|list|path)\b", text)] == []
    line = usage.partition("\n\n")[0]
    assert not re.search(r"[<{]|\[\[", line), line


def test_the_values_of_an_option_are_named() -> None:
    """Choices, numbers and what an option calls its value itself."""
    shown = " ".join(run("serve", "--help").stdout.split())
    assert "--durability fsync|write|none " in shown
    assert "--memory N " in shown
    assert "--listen ADDRESS " in shown
    assert "logweir serve [OPTIONS] DIR " in shown
    assert "logweir cat [OPTIONS] PATH... " in " ".join(run("cat", "--help").stdout.split())


@pytest.mark.parametrize("style", ["hex", "yaml", "table"])
def test_rows_that_are_no_json_are_not_printed_with_json(style: str, tmp_path: Path) -> None:
    """`--json` is not passed over in silence."""
    logweir.open(tmp_path).close()
    done = run("cat", "--format", style, "--json", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--json (option): it cannot be printed as {style}" in done.stderr


def bad_paths(folder: Path) -> dict[str, tuple[Path, int]]:
    """Paths that cannot be used, with the exit code that each gives."""
    (folder / "loop").symlink_to("loop")
    (folder / "text").write_text("no log at all\n")
    (folder / "empty").write_bytes(b"")
    os.mkfifo(folder / "pipe")
    return {
        "missing": (folder / "missing", 2),
        "under a file": (folder / "text" / "x", 2),
        "symlink loop": (folder / "loop", 2),
        "named pipe": (folder / "pipe", 2),
        "device": (Path("/dev/null"), 2),
        "text": (folder / "text", 3),
        "empty": (folder / "empty", 3),
        "name too long": (folder / ("x" * 300), 4),
    }


@pytest.mark.parametrize(
    "what",
    [
        "missing",
        "under a file",
        "symlink loop",
        "named pipe",
        "device",
        "text",
        "empty",
        "name too long",
    ],
)
def test_unusable_path_is_one_line_on_stderr(what: str, tmp_path: Path) -> None:
    """A path that cannot be used gives one line with the path and a hint, and no traceback."""
    path, code = bad_paths(tmp_path)[what]
    done = run("info", path)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.startswith("logweir: error: ")
    assert done.stderr.count("\n") == 1
    assert str(path) in done.stderr


@pytest.mark.parametrize(
    "words",
    [["init", "s3://b/x"], ["restore", "s", "--to", "s3://b/x"], ["cat", "s", "tarantool://h"]],
)
def test_an_address_is_no_folder(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is made here under its name."""
    monkeypatch.chdir(tmp_path)
    logweir.open("s").close()
    done = CliRunner().invoke(main.app, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{words[-1]} is an address" in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("name", main.COMMANDS)
def test_rights_are_not_looked_at_beforehand(name: str) -> None:
    """Else a folder of somebody else would be wrong usage (2), and not out of reach (4)."""
    for one in main.load_command(name).params:
        assert not getattr(one.type, "readable", False), one.name


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_rights_cannot_be_reached(tmp_path: Path) -> None:
    """A file that this user may not read is exit code 4."""
    path = tmp_path / "x.xlog"
    path.write_bytes(b"")
    path.chmod(0)
    done = run("info", path)
    assert done.returncode == 4
    assert "give this user the right to it" in done.stderr


def test_debug_adds_the_traceback(tmp_path: Path) -> None:
    """--debug shows where an error came from; without it nothing of that is shown."""
    assert "Traceback" not in run("info", tmp_path / "missing").stderr
    done = run("--debug", "info", tmp_path / "missing")
    assert done.returncode == 2
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("before", [True, False])
def test_global_options_stand_before_or_after_the_command(before: bool, tmp_path: Path) -> None:
    """--json means the same in both places."""
    write_snapshot(tmp_path, {280: [SPACE_ROW]})
    write_log(tmp_path, ORDERS)
    done = run(*(["--json", "info"] if before else ["info", "--json"]), tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith('{"path": ')


def test_reader_that_goes_away_ends_the_program_quietly(tmp_path: Path) -> None:
    """A closed pipe gives exit code 141 and no message."""
    write_log(tmp_path, ORDERS)
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [PROGRAM, "info", tmp_path], stdout=write_end, stderr=subprocess.PIPE, text=True
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("words", [["info", "."], ["--help"], ["get", "--help"], ["--version"]])
def test_full_disk_under_stdout_is_an_error(words: list[str], tmp_path: Path) -> None:
    """Results and help that cannot be written are not lost without a word."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    write_log(tmp_path, ORDERS)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [PROGRAM, *words], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 4
    assert done.stderr.startswith("logweir: error: ")
    assert "Traceback" not in done.stderr


def test_letters_that_the_terminal_cannot_show_do_not_end_the_program(tmp_path: Path) -> None:
    """Output in an encoding without the letter is escaped."""
    folder = tmp_path / "Wehr-Ü"
    folder.mkdir()
    write_snapshot(folder, {280: [SPACE_ROW]})
    write_log(folder, ORDERS)
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([PROGRAM, "info", folder], capture_output=True, env=environment)
    assert done.returncode == 0
    assert b"Wehr-\\xdc" in done.stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.LogweirError("x"), 1),
        (errors.DecodeError("x"), 3),
        (errors.WalError("x"), 1),
        (errors.CorruptFile("x"), 3),
        (errors.CorruptBlock("x"), 3),
        (errors.ChainGap("x", expected=1, found=2), 3),
        (errors.RecoveryRefused("x", report=None), 3),
        (errors.WriteFailed("x"), 1),
        (errors.WriterPoisoned("x", first_cause=OSError()), 1),
        (errors.DirectoryLocked("x"), 4),
        (errors.RequestError(errors.ErrorCode.TUPLE_FOUND, "x"), 1),
        (errors.LocalProtocolError("x"), 1),
        (errors.RemoteProtocolError("x"), 4),
        (errors.LimitExceeded("X", 1, 2), 1),
        (errors.PositionUnavailable(1, 2, 3), 1),
        (errors.SourceStopped("x"), 1),
        (errors.ConfigError("x", "y"), 2),
        (errors.Unreachable("x", "y"), 4),
    ],
)
def test_every_error_has_its_exit_code(error: errors.LogweirError, code: int) -> None:
    """The table of docs/errors.md holds."""
    assert main.exit_code(error) == code


@pytest.mark.parametrize(
    ("number", "code"),
    [
        *[(number, 2) for number in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST)],
        *[(number, 4) for number in (errno.EACCES, errno.EIO, errno.EMFILE)],
    ],
)
def test_error_of_the_system_keeps_its_meaning(number: int, code: int) -> None:
    """A wrong path is wrong usage, a file that the system does not hand out is out of reach."""
    cause = OSError(number, os.strerror(number))
    error = explain(cause, "x")
    error.__cause__ = cause
    assert main.exit_code(error) == code


def test_error_of_the_system_says_what_to_do() -> None:
    """Where there is something to say."""
    assert "free some room" in explain(OSError(errno.ENOSPC, "No space left"), "x").hint
    assert explain(OSError("of no number"), "x").hint == ""


def test_completion_knows_commands_and_options() -> None:
    """The shell's completion gets the names of commands, and a command's own options."""
    for words, expected in (("logweir in", "info"), ("logweir info --j", "--json")):
        environment = {
            **os.environ,
            "_LOGWEIR_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
        done = subprocess.run([PROGRAM], capture_output=True, text=True, env=environment)
        assert expected in done.stdout.split()


def test_the_help_of_each_command_fits_its_line() -> None:
    """On a terminal of 80 columns nothing is cut off."""
    assert "..." not in run("--help").stdout.partition("Commands:")[2]


ENDING = """
from logweir.tools.cli import main

def app(prog_name):
    try:
        print("begun", flush=True)
        input()
    finally:
        print("ending", flush=True)
        input()
        print("ended", flush=True)

main.app = app
main.run()
"""


def test_a_second_sigterm_does_not_stop_what_the_first_one_ends() -> None:
    """As `timeout` sends it: to the program, and to its group."""
    program = subprocess.Popen(
        [sys.executable, "-P", "-c", ENDING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        program.terminate()
        assert program.stdout.readline() == "ending\n"
        program.terminate()
        told, errors_told = program.communicate("\n", timeout=60)
    assert (told, errors_told, program.returncode) == ("ended\n", "", 143)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["space", "create", "s", "t", "id:unsigned", "n:string"], "--field id:unsigned"),
        (["space", "drop", "s", "t", "u"], "it takes one NAME"),
        (["serve", "s", "--allow-guest"], "none|read|replicate|write|all"),
    ],
)
def test_words_too_many_and_values_left_out_are_told_with_what_to_do(
    words: list[str], told: str
) -> None:
    """Wrong usage says what the right one is."""
    done = CliRunner().invoke(main.app, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert told in done.stderr
