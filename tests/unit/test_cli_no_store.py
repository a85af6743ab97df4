"""What each command says of a folder that holds no store: the same words, and nothing is made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from logweir.errors import ConfigError
from logweir.replication.protocols import parse_url
from logweir.replication.server import ServerOptions
from logweir.tools.cli import main

COMMANDS = [
    *("space list DIR", "get DIR s 1", "select DIR s", "select DIR s --as-of 1:5", "export DIR s"),
    *("history DIR s 1", "insert DIR s [1]", "replace DIR s [1]", "upsert DIR s [1] [['=',1,1]]"),
    *("update DIR s 1 [['=',1,1]]", "delete DIR s 1", "import DIR s", "info DIR", "verify DIR"),
    *("report DIR --json", "report DIR -o NEW.html", "cat DIR", "cat --follow DIR"),
    *("verify DIR --state", "repair DIR --to NEW", "trim DIR", "backup DIR --to NEW"),
    *("archive DIR --to NEW", "restore DIR --to NEW", "snapshot DIR", "diff DIR DIR"),
    *("play DIR tarantool://127.0.0.1:1", "status DIR", "retain list DIR", "gaps DIR"),
    *("retain release DIR x", "gaps DIR --forget", "forget DIR @u:s", "user list DIR"),
    *("topic list DIR", "topic config DIR t", "tap names DIR", "changes DIR --space s -o NEW.csv"),
    *(
        "capture DIR --exec json:dumps --once --store NEW",
        "capture DIR --exec json:dumps --token NEW",
    ),
]
OTHERS = {
    **{name: "makes a store" for name in ("init", "serve", "follow")},
    **{name: "of a server" for name in ("top",)},
    "config": "of settings",
    "doctor": "tells whether a store could be there",
    "pipeline": "needs Spark: the same error, of places that may be URLs",
    **{name: "makes its own folders" for name in ("crashtest", "bench")},
}


def test_every_command_is_tried() -> None:
    """Or there is a reason why not."""
    tried = {text.split()[0] for text in COMMANDS}
    assert tried | OTHERS.keys() == main.COMMANDS.keys()
    assert not tried & OTHERS.keys()


@pytest.mark.parametrize("text", COMMANDS)
def test_a_folder_that_holds_no_store(text: str, tmp_path: Path) -> None:
    """Empty, or with files of others: exit code 1, for a timer whose disk is not mounted."""
    folder = tmp_path / "folder"
    folder.mkdir()
    words = text.replace("DIR", str(folder)).replace("NEW", str(tmp_path / "new")).split()
    words = [word.replace("'", '"') for word in words]
    for names in ([], ["notes.txt"]):
        for name in names:
            (folder / name).write_text("x")
        result = CliRunner().invoke(main.app, words)
        assert result.exit_code == 1, result.output
        assert result.stdout == ""
        assert result.stderr == (
            f"logweir: error: {folder}: there is no snapshot and no log in the folder. hint: look "
            "at the path, or make a store there with `logweir init`\n"
        )
        assert [one.name for one in folder.iterdir()] == names
        assert list(tmp_path.iterdir()) == [folder]


LOOK_AT_NONE = ("retain", "play", "select DIR s --as-of")
"""Commands that say something else of a folder whose files cannot be read: of who keeps logs, of a
server, and that there is no such position."""


@pytest.mark.parametrize("text", [one for one in COMMANDS if not one.startswith(LOOK_AT_NONE)])
def test_a_folder_of_which_no_file_can_be_read(text: str, tmp_path: Path) -> None:
    """Damage, with exit code 3 and the name of a file; not that there is nothing."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("00000000000000000000.snap", "00000000000000000005.xlog"):
        (folder / name).write_bytes(b"x" * 3000)
    words = text.replace("DIR", str(folder)).replace("NEW", str(tmp_path / "new")).split()
    result = CliRunner().invoke(main.app, [word.replace("'", '"') for word in words])
    assert result.exit_code == 3, result.output
    assert ".snap" in result.output or ".xlog" in result.output or text.startswith("repair")
    assert "there is no snapshot and no log" not in result.output
    assert not (tmp_path / "new").exists()


def test_a_module_that_is_none_leaves_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that cannot be imported: it is looked at before a folder is made."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "broken_functions.py").write_text("1 / 0")
    for module in ("no_such_module", "broken_functions", "../x"):
        words = ["serve", str(tmp_path / "new"), "--functions", module]
        result = CliRunner().invoke(main.app, [*words, "--listen", "tarantool://127.0.0.1:0"])
        assert result.exit_code == 2, result.output
        assert "cannot be imported" in result.stderr
        assert not (tmp_path / "new").exists()


LISTENERS = [
    *("tarantool://:0?from=x", "tarantool://unix/:/x?mode=9", "tank://:0?topics="),
    *("tank://:0?from=", "memcached://:0?idle=-1", "memcached://:0?sweep=x", "tap://:0?form=3"),
    *("tap://:0?value=x", "tap://:0?noop=0", "memcached://:0?sasl=x", "greenstack://:0?sweep=-1"),
    *("greenstack://:0?value=x", "synapse://:0?dialect=D9", "synapse://:0?on_long_row=x"),
    *("synapse://:0?http=h:1", "synapse://:0?dialect=D3&http=unix/:/x", "synapse://:0?value=x"),
    *("synapse://:0?auth_file=/no/such", "synapse://:0?streams=", "redis://:0?channels="),
    "redis://:0?from=x",
    "redis://:0?resend=-1",
    *("synapse://:0?keep=maybe", "synapse://:0?relay_up=2", "greenstack://:0?plain="),
    "synapse://:0?keep=1&keep=0",
]
UPSTREAMS = [
    *("tarantool://h?stall=0", "tank://h?start=maybe", "tank://h/t/x", "tank://h/t?topics=a"),
    *("tank://h?stall=x", "tap://h?expiry=x", "tap://h?byteorder=x", "tap://h?takeover=1"),
    *("tap://h?eof=x", "tap://h?eof=whole", "tap://h?vbuckets=x", "greenstack://h?from=x"),
    *("greenstack://h?prefix=%FF", "greenstack://h?keys=1", "greenstack://h?vbuckets=9-1"),
    *("synapse://h?start=x", "synapse://h?dialect=x", "synapse://h?streams="),
    *("synapse://h?retention=x", "synapse://h?enrich=x", "synapse://h?enrich_streams=events"),
    *("synapse://h?auth_file=/no/such", "synapse://h?http=ftp://x", "synapse+redis://h/s?dbid=x"),
    *("synapse+redis://h/s?start=x", "synapse+file:///no/such"),
    *("tank://h?start=nan", "tank://h?start=1e400", "tank://h?start=1e15"),
    *("synapse://h?http=h:99999", "synapse://h?http=[x", "tap://h?takeover=maybe"),
    *("tarantool://h?anonymous=maybe", "tarantool://h?tls=y", "synapse+redis://h/s?tls="),
    *("synapse://h?enrich=sqlite:///no/such", "synapse://h?enrich=sqlite:///dev"),
    f"synapse://h?enrich=sqlite://{__file__}",
]


def test_a_file_of_a_password_of_a_database_that_is_not_there() -> None:
    """Before a store is made, as every other file."""
    text = "synapse://h?enrich=postgresql://u@h/db&enrich_password_file=/no/such"
    with pytest.raises(ConfigError, match=r"^enrich_password_file .*/no/such: No such file"):
        ServerOptions(follow=[parse_url(text)])


@pytest.mark.parametrize(
    "address",
    [
        *("tank://h?tls=1&ca=/no/such", "tarantool://h?tls=1&certificate=/no/such"),
        *("tap://h?tls=1&ca=/dev/null", "synapse+redis://h/s?tls=1&ca=/no/such"),
    ],
)
def test_files_of_tls_that_cannot_be_used(address: str) -> None:
    """Are no reason to try again and again; a folder of certificates can be."""
    with pytest.raises(ConfigError, match="its files of TLS cannot be used"):
        ServerOptions(follow=[parse_url(address)])
    ServerOptions(follow=[parse_url("tank://h?tls=1&ca=/")])


@pytest.mark.parametrize("address", [f"--listen {one}" for one in LISTENERS] + UPSTREAMS)
def test_a_bad_option_of_an_address_leaves_no_store(address: str, tmp_path: Path) -> None:
    """Of any listener and upstream: all of them are read before a folder is made."""
    folder = tmp_path / "new"
    commands = [["serve", str(folder), *address.split()]]
    if address in UPSTREAMS:
        listen = ["--listen", "tarantool://:0"]
        commands = [["follow", address, str(folder)], ["serve", str(folder), *listen]]
        commands[1] += ["--follow", address]
    for words in commands:
        result = CliRunner().invoke(main.app, words)
        assert result.exit_code == 2, result.output
        assert result.stderr.startswith("logweir: error: ")
        assert not folder.exists()


@pytest.mark.parametrize(
    ("text", "variables", "named"),
    [
        ("serve DIR --functions nosuch", {}, "--functions (argument): module"),
        ("serve DIR", {"LOGWEIR_FUNCTIONS": "nosuch"}, "LOGWEIR_FUNCTIONS (argument): module"),
        ("serve DIR --config FILE", {}, "functions (argument): module"),
        ("serve DIR --tls-key x", {}, "--tls-key: needs"),
        ("serve DIR --tls-certificate x", {}, "--tls-certificate (argument): x cannot"),
        ("capture DIR --exec nosuch:x --token x", {}, "--exec (argument): 'nosuch:x'"),
        ("verify FILE --state", {}, "--state (argument): "),
        ("cat DIR --from yesterday", {}, "position (--from): "),
        ("cat DIR --until yesterday", {}, "time (--until): "),
        ("cat DIR --type x", {}, "--type: "),
        ("topic create DIR ../x", {}, "topic (argument): "),
        ("restore DIR --to NEW --at-time x", {}, "time (--at-time): "),
    ],
)
def test_a_setting_has_the_name_that_was_typed(
    text: str, variables: dict[str, str], named: str, tmp_path: Path
) -> None:
    """An option with its dashes, a variable, or the key of a file; no name of Python's."""
    (tmp_path / "file").write_text("functions = 'nosuch'")
    folder = tmp_path / "folder"
    assert CliRunner().invoke(main.app, ["init", str(folder)]).exit_code == 0
    places = {"DIR": folder, "FILE": tmp_path / "file", "NEW": tmp_path / "new"}
    words = [str(places.get(word, word)) for word in text.split()]
    result = CliRunner().invoke(main.app, words, env=variables)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith(f"logweir: error: {named}"), result.stderr
