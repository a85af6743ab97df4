"""`logweir config show`, and where the commands that serve have their values from."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import logweir
from logweir.tools.cli import main
from logweir.tools.cli.configfile import declared, key_of, masked


def run(*words: object, **environment: str) -> Any:
    """The program with these arguments, in this process. Returns what it left."""
    return CliRunner().invoke(main.app, [str(one) for one in words], env=environment)


def test_flags_win_over_variables_and_these_over_the_file(tmp_path: Path) -> None:
    """Of one value each; a variable that is empty is none."""
    file = tmp_path / "serve.toml"
    file.write_text('directory = "d"\nallow-guest = "read"\nread_only = true\nmetrics = "h:1"\n')
    done = run(
        *("config", "show", "--origin", "--json"),
        LOGWEIR_CONFIG=str(file),
        LOGWEIR_ALLOW_GUEST="write",
        LOGWEIR_READ_ONLY="0",
        LOGWEIR_METRICS="",
        LOGWEIR_FOLLOW="tank://a tank://b",
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["directory"] == {"value": "d", "origin": str(file)}
    assert told["allow-guest"] == {"value": "write", "origin": "LOGWEIR_ALLOW_GUEST"}
    assert told["read-only"] == {"value": False, "origin": "LOGWEIR_READ_ONLY"}
    assert told["metrics"] == {"value": "h:1", "origin": str(file)}
    assert told["follow"]["value"] == ["tank://a", "tank://b"]
    assert told["durability"] == {"value": "fsync", "origin": "default"}
    words = ["d", "--listen", "no address"]
    refused = run("serve", *words, LOGWEIR_LISTEN="nor this")
    assert (refused.exit_code, "(--listen)" in refused.stderr) == (2, True), refused.stderr
    refused = run("serve", "d", LOGWEIR_LISTEN="nothing")
    assert (refused.exit_code, "(LOGWEIR_LISTEN)" in refused.stderr) == (2, True), refused.stderr


@pytest.mark.parametrize(
    ("variable", "value"), [("LOGWEIR_MEMORY", "much"), ("LOGWEIR_ALLOW_GUEST", "some")]
)
def test_wrong_variable_is_named(variable: str, value: str) -> None:
    """By the server, and by who only looks."""
    for words in (("serve", "d"), ("config", "show")):
        done = run(*words, **{variable: value})
        assert (done.exit_code, variable in done.stderr) == (2, True), done.stderr


def test_arguments_may_be_variables(tmp_path: Path) -> None:
    """Of both commands that serve; what is missing is told."""
    refused = run("follow", LOGWEIR_URL="odd", LOGWEIR_DIRECTORY=str(tmp_path / "d"))
    assert "'odd'" in refused.stderr
    assert run("follow", LOGWEIR_URL="tank://h:1/t").exit_code == 2


def test_what_is_shown_is_a_file_that_serve_takes(tmp_path: Path) -> None:
    """Each option stands there once, as TOML; given back it shows the same."""
    file = tmp_path / "serve.toml"
    file.write_text(
        'directory = "a \\"b\\" \\u007f"\nlisten = ["tank://:0"]\nmemory = 200_000_000\n'
    )
    shown = run("config", "show", "--config", file).stdout
    values = tomllib.loads(shown)
    assert values["directory"] == 'a "b" \x7f'
    assert values["listen"] == ["tank://:0"]
    known = set(map(key_of, declared(main.load_command("serve"))))
    assert known - set(values) == {"tls-certificate", "tls-key", "tls-client-ca", "log-file"}
    again = tmp_path / "again.toml"
    again.write_text(shown)
    assert run("config", "show", "--config", again).stdout == shown
    with_origin = run("config", "show", "--config", file, "--origin").stdout
    assert tomllib.loads(with_origin) == values
    assert f"memory = 200000000  # {file}" in with_origin


@pytest.mark.parametrize("command", ["serve", "follow", "capture", "archive"])
def test_every_command_that_takes_a_file_is_shown(command: str, tmp_path: Path) -> None:
    """With its own options, arguments among them, and none of another command."""
    file = tmp_path / "x.toml"
    file.write_text({"follow": "url = 'tank://u:s3cret@h:1/t'\n"}.get(command, ""))
    done = run("config", "show", command, "--config", file, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert set(told) == set(map(key_of, declared(main.load_command(command))))
    if command == "follow":
        assert told["url"]["value"] == "tank://u:…@h:1/t"
    refused = run("config", "show", command, LOGWEIR_CONFIG=str(tmp_path / "none.toml"))
    assert refused.exit_code == 2


def test_no_password_is_shown(tmp_path: Path) -> None:
    """Neither by `config show` nor in an error."""
    done = run("config", "show", LOGWEIR_FOLLOW="tarantool://rep:s3cret@one:3301")
    assert "tarantool://rep:…@one:3301" in done.stdout
    file = tmp_path / "serve.toml"
    file.write_text('follow = "tarantool://rep:s3cret@one:3301"\n')
    refused = run("serve", "d", "--config", file)
    assert refused.exit_code == 2
    assert str(file) in refused.stderr
    assert "s3cret" not in done.stdout + refused.output


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("tank://host:1/t", "tank://host:1/t"),
        ("tank://ann@host:1/t", "tank://ann@host:1/t"),
        ("tank://ann:p@host:1", "tank://ann:…@host:1"),
        ("tank://ann:p/@:@host:1", "tank://ann:…@host:1"),
        ("ann:p@host", "ann:…@host"),
        ("tank://unix/:/a/b", "tank://unix/:/a/b"),
        (["tank://a:b@c", 1], ["tank://a:…@c", 1]),
        (None, None),
    ],
)
def test_password_is_masked_wherever_it_stands(address: object, shown: object) -> None:
    """Also where the address could not be read as one."""
    assert masked(address) == shown


@pytest.mark.parametrize(
    "words", [("serve", "d"), ("follow", "tank://h/t", "d"), ("config", "show")]
)
def test_bad_file_is_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Exit code 2, with file, key and what to do, and no traceback."""
    file = tmp_path / "x.toml"
    file.write_text("listn = 1\n")
    done = run(*words, "--config", file)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"logweir: error: listn ({file}): there is no such option. hint:")
    assert done.stderr.count("\n") == 1


def test_options_of_one_run_stand_in_no_file_and_no_variable(tmp_path: Path) -> None:
    """`--json` and `--rejoin` hold for the run for which they are given."""
    file = tmp_path / "x.toml"
    file.write_text("rejoin = true\n")
    refused = run("follow", "tank://h/t", tmp_path / "d", "--config", file)
    assert "rejoin" in refused.stderr
    done = run("config", "show", LOGWEIR_JSON="1", LOGWEIR_AS_JSON="1", LOGWEIR_ORIGIN="1")
    assert "listen = []\n" in done.stdout


def test_archive_and_capture_take_a_file(tmp_path: Path) -> None:
    """As what serves does, by the names of their options; what is no setting is refused there."""
    with logweir.open(tmp_path / "store") as log:
        log.create_space("t")
        log.insert("t", (1,))
    file = tmp_path / "archive.toml"
    file.write_text(f"directory = '{tmp_path / 'store'}'\nto = '{tmp_path / 'kept'}'\n")
    assert run("archive", "--config", file).exit_code == 0
    assert json.loads(run("archive", "status", tmp_path / "kept", "--json").stdout)["snapshots"]
    file.write_text("follow = true\n")
    refused = run("archive", "--config", file)
    assert (refused.exit_code, "follow" in refused.stderr) == (2, True), refused.stderr
    file = tmp_path / "capture.toml"
    file.write_text(
        f"where = '{tmp_path / 'store'}'\nexec = 'builtins:repr'\nspace = ['t']\n"
        f"token = '{tmp_path / 'token'}'\n"
    )
    done = run("capture", "--config", file, "--once", "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"transactions": 1}), done.output
    assert run("capture", "--config", file, "--once", LOGWEIR_SPACE="none").exit_code != 0


def test_page_names_the_commands_that_take_a_file() -> None:
    """All of them, and which of them read it anew on SIGHUP."""
    page = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
    settings, _, anew = page.partition("### Without a restart")
    takers = set()
    for name in main.COMMANDS:
        told = run(name, "--help")
        if "TOML file with these options" in " ".join(told.stdout.replace("│", " ").split()):
            takers.add(name)
    assert takers == {"serve", "follow", "capture", "archive"}
    assert all(f"`logweir {name}`" in settings.partition("```toml")[0] for name in takers)
    told = "`serve`, `follow`, `capture` and `archive --follow` read their files anew"
    assert told in " ".join(anew.split())
