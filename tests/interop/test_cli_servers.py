"""Statements, import and export from the shell on a running server, ours and a real Tarantool's."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import subprocess
import sys
import termios
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from interop.realtarantool import RealTarantool
from interop.serving import Serving
from interop.test_iproto_cli import CODE, told
from logweir.replication.capture.token import Token
from logweir.replication.service import users
from logweir.store.schema.access import Privilege

USERS = [
    {"name": "id", "type": "unsigned"},
    {"name": "name", "type": "string"},
    {"name": "age", "type": "unsigned", "is_nullable": True},
]


@dataclass
class Server:
    """A server with a space of users. `content`: what it holds."""

    url: str
    content: Callable[[], list[Any]]


@pytest.fixture(params=["logweir", pytest.param("tarantool", marks=pytest.mark.tarantool)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Each kind, with a user who may do all."""
    if request.param == "logweir":
        with Serving(tmp_path / "ours") as serving:
            log = serving.log
            indexes = {"name": {"parts": ["name"]}, "age": {"parts": ["age"], "unique": False}}
            log.create_space("users", format=USERS, indexes=indexes)
            log.create_space("pairs", primary=[(1, "string"), (0, "unsigned")])
            users.add_user(log, "u", password="p w")
            rights = Privilege.READ | Privilege.WRITE
            users.grant(log, "u", rights, users.Target("universe", ""))
            yield Server(
                f"tarantool://u:p%20w@127.0.0.1:{serving.port}",
                lambda: [list(row) for row in log.select("users")],
            )
        return
    with RealTarantool(tmp_path / "theirs") as box:
        box.eval(
            """
            local s = box.schema.space.create('users', {format = ...})
            s:create_index('primary', {parts = {'id'}})
            s:create_index('name', {parts = {{'name', collation = 'unicode_ci'}}})
            s:create_index('age', {parts = {'age'}, unique = false})
            local p = box.schema.space.create('pairs')
            p:create_index('primary', {parts = {{2, 'string'}, {1, 'unsigned'}}})
            box.schema.user.create('u', {password = 'p w'})
            box.schema.user.grant('u', 'read,write', 'universe')
            """,
            [USERS],
        )
        yield Server(
            f"tarantool://u:p%20w@127.0.0.1:{box.port}",
            lambda: box.eval("return box.space.users:select()")[0],
        )


def rows(*words: object, stdin: str = "") -> list[Any]:
    """The JSON lines of a command that must go well."""
    code, out, err = told(*words, stdin=stdin)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_each_statement_on_a_server(server: Server) -> None:
    """As on a folder, with the same output and exit codes."""
    url = server.url
    assert rows("insert", url, "users", '[1, "ada", 36]') == [[1, "ada", 36]]
    assert rows("replace", url, "users", '{"name": "bob", "id": 2}', "--names") == [
        {"id": 2, "name": "bob"}
    ]
    assert rows("update", url, "users", "1", '[["+", "age", 1], ["=", 1, "Ada"]]') == [
        [1, "Ada", 37]
    ]
    assert rows("upsert", url, "users", '[3, "c", 1]', '[["+", "age", 1]]') == []
    assert rows("get", url, "users", '"bob"', "--index", "name") == [[2, "bob"]]
    ge = ("--iterator", "ge", "--key", "36", "--index", "age")
    assert rows("select", url, "users", *ge) == [[1, "Ada", 37]]
    assert rows("select", url, 512, "--limit", "1", "--offset", "1") == [[2, "bob"]]
    assert rows("delete", url, "users", "3") == [[3, "c", 1]]
    assert server.content() == [[1, "Ada", 37], [2, "bob"]]
    assert told("get", url, "users", "3")[0] == 1
    assert told("delete", url, "users", "3")[0] == 1


def test_what_a_server_refuses_says_why(server: Server) -> None:
    """Refusals are exit code 1, an unreachable server 4; the password is in no message."""
    url = server.url
    rows("insert", url, "users", '[1, "ada"]')
    refused = [
        ("insert", url, "users", '[1, "other"]'),
        ("insert", url, "users", '["x", "y"]'),
        ("select", url, "nix"),
        ("get", url.replace("p%20w", "wrong"), "users", "1"),
    ]
    for words in refused:
        code, out, err = told(*words)
        assert (code, out) == (1, ""), err
        assert "Traceback" not in err
        assert "p%20w" not in err
    code, _, err = told("get", "tarantool://u:p%20w@127.0.0.1:1", "users", "1")
    assert code == 4
    assert "p%20w" not in err
    assert told("get", "tank://127.0.0.1:1", "users", "1")[0] == 2


def test_import_and_export_of_a_server(server: Server, tmp_path: Path) -> None:
    """Rows come out page by page in the order of the key, whatever its parts are, and go in; a bad
    line is named, and all before it are in."""
    url = server.url
    lines = [f'[{n}, "u{n}", {n % 7}]' for n in range(3000)]
    assert rows("import", url, "users", "--json", stdin="\n".join(lines)) == [{"rows": 3000}]
    file = tmp_path / "rows.jsonl"
    code, out, err = told("export", url, "users", "--names")
    assert (code, err) == (0, "logweir: 3000 rows\n")
    file.write_text(out)
    assert rows("import", url, "users", file, "--replace", "--json") == [{"rows": 3000}]
    assert len(server.content()) == 3000
    pairs = [[n, f"k{n % 50:02}", "x" * (n % 90)] for n in range(1500)]
    rows("import", url, "pairs", "--json", stdin="\n".join(map(json.dumps, pairs)))
    assert rows("export", url, "pairs") == sorted(pairs, key=lambda row: (row[1], row[0]))
    more = [f'[{n}, "v{n}"]' for n in range(10_000, 10_040)]
    text = "\n".join([*more[:20], "[20000, 7]", *more[20:]])
    code, out, err = told("import", url, "users", "--batch", "8", stdin=text)
    assert (code, out) == (1, "")
    assert "line 21 of stdin: " in err
    assert {row[1] for row in server.content()} >= {f"v{n}" for n in range(10_000, 10_020)}


def test_large_tuples_are_exported_page_by_page(tmp_path: Path) -> None:
    """However small the first ones are, a page of those that follow fits an answer."""
    with Serving(tmp_path / "ours", guest="all") as serving:
        serving.log.create_space("t")
        serving.log.append("t", [(n, "s") for n in range(1500)])
        big = "x" * 1_000_000
        for n in range(1500, 1600):
            serving.log.insert("t", (n, big))
        found = rows("export", serving.url, "t")
    assert [row[0] for row in found] == list(range(1600))
    assert {len(row[1]) for row in found} == {1, 1_000_000}


def test_a_password_need_not_be_an_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes from a file that the address names, from the environment, or from who sits at the
    terminal, who is asked for it without an echo, also where stdin has the rows."""
    monkeypatch.delenv("LOGWEIR_PASSWORD", raising=False)
    with Serving(tmp_path / "ours") as serving:
        serving.log.create_space("t")
        users.add_user(serving.log, "u", password="secret")
        rights = Privilege.READ | Privilege.WRITE
        users.grant(serving.log, "u", rights, users.Target("universe", ""))
        url = f"tarantool://u@127.0.0.1:{serving.port}"
        assert told("insert", url, "t", "[1]")[0] == 1
        (tmp_path / "password").write_text("secret\n")
        assert told("insert", f"{url}?password_file={tmp_path / 'password'}", "t", "[1]")[0] == 0
        monkeypatch.setenv("LOGWEIR_PASSWORD", "secret")
        assert told("insert", url, "t", "[2]")[0] == 0
        assert told("status", url)[0] == 0
        monkeypatch.delenv("LOGWEIR_PASSWORD")
        code, shown = at_terminal("secret", "import", url, "t", stdin="[3]")
        assert code == 0, shown
        assert "Password of u at 127.0.0.1: " in shown
        assert "secret" not in shown
        assert serving.log.select("t") == [(1,), (2,), (3,)]


def test_a_capture_has_its_password_and_does_not_tell_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the environment, as for other commands; a refusal shows the address without it."""
    monkeypatch.setenv("LOGWEIR_PASSWORD", "secret")
    with Serving(tmp_path / "ours") as serving:
        users.add_user(serving.log, "u", password="secret")
        users.grant(serving.log, "u", Privilege.EXECUTE, users.Target("role", "replication"))
        serving.log.create_space("t")
        serving.log.insert("t", (1,))
        token, where = tmp_path / "token", f"127.0.0.1:{serving.port}"
        words = ["--exec", "builtins:repr", "--space", "t", "--token", token, "--once"]
        code, out, err = told("capture", f"tarantool://u@{where}", *words)
        assert (code, "1 transactions" in out + err) == (0, True), err
        place = Token.parse(token.read_text().strip())
        token.write_text(str(Token(uuid.uuid4(), place.vclock, place.chosen)))
        code, _, err = told("capture", f"tarantool://u:secret@{where}", *words)
        assert (code, f"tarantool://u@{where}" in err, "secret" in err) == (1, True, False)


def at_terminal(typed: str, *words: str, stdin: str) -> tuple[int, str]:
    """Run a command whose terminal is ours, and type a line when it asks. Returns exit code and
    what the terminal shows."""
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    shown = b""
    with subprocess.Popen(
        [sys.executable, "-c", CODE, *words],
        stdin=subprocess.PIPE,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_terminal,
    ) as process:
        os.close(theirs)
        assert process.stdin is not None
        process.stdin.write(stdin.encode())
        process.stdin.close()
        while b": " not in shown:
            shown += os.read(ours, 1000)
        os.write(ours, typed.encode() + b"\n")
        with contextlib.suppress(OSError):  # how Linux tells that the other end is closed
            while more := os.read(ours, 1000):
                shown += more
        code = process.wait(30)
    os.close(ours)
    return code, shown.decode()
