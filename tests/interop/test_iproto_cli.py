"""The commands serve, follow, status, play and user, as processes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest
from support.nursery import LOGWEIR
from support.ports import free_port

import logweir
from interop.rawclient import RawClient

CODE = "from logweir.tools.cli.main import run; run()"


def told(*words: object, stdin: str = "") -> tuple[int, str, str]:
    """Run one command. Returns exit code, stdout, stderr."""
    return LOGWEIR.run(*words, given=stdin)


@contextmanager
def serving(*words: object) -> Iterator[dict[str, Any]]:
    """`logweir serve --json`, and what it says when it is ready."""
    listen = ("--json", "--listen", "tarantool://127.0.0.1:0")
    with LOGWEIR.begin("serve", *words, *listen, stdout=PIPE, stderr=DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def test_serve_follow_status_and_play(tmp_path: Path) -> None:
    """One store is served, another one copies it, rows are played into it, its status is told."""
    with logweir.open(tmp_path / "one") as log:
        log.create_space("t")
        for number in range(10):
            log.insert("t", (number, "x"))
    with serving(tmp_path / "one", "--allow-guest", "all") as ready:
        url = ready["listen"][0]
        code, out, _ = told("follow", url, tmp_path / "two", "--once", "--json")
        assert (code, json.loads(out)["state"]) == (0, "following")
        port = int(url.rpartition(":")[2])
        with RawClient(port) as client:
            assert not client.ask(3, {0x10: 512, 0x21: [100, "by a client"]}).is_error
        code, out, _ = told("follow", url, tmp_path / "two", "--once", "--json")
        assert code == 0
        code, out, _ = told("status", url, "--json")
        status = json.loads(out)
        assert (code, status["spaces"]["t"], status["state"]) == (0, 11, "running")
        code, out, _ = told("status", url)
        assert (code, "spaces  " in out, "\nlisteners:\n" in out) == (0, True, True)
        assert not re.search(r"[\[\]']|\b(None|True|False)\b", out), out
        code, _, err = told("play", tmp_path / "one", url)
        assert code == 1
        assert "Duplicate key" in err
    with logweir.open(tmp_path / "two", create=False) as log:
        assert log.get("t", 100) == (100, "by a client")
        assert log.replica_id == 2
    code, _, err = told("status", url)
    assert code == 4
    assert "hint" in err


@pytest.mark.parametrize("is_new", [True, False])
def test_that_a_store_is_new_is_said(is_new: bool, tmp_path: Path) -> None:
    """Who starts a server on a folder whose disk is not mounted is to see it."""
    if not is_new:
        with logweir.open(tmp_path) as log:
            log.create_space("t")
    words = ["serve", tmp_path, "--listen", f"tank://unix/:{tmp_path / 'socket'}"]
    with LOGWEIR.begin(*words, stderr=PIPE) as process:
        assert process.stderr is not None
        said = []
        while "logweir: serving" not in "".join(said):
            said.append(process.stderr.readline())
            assert said[-1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    new = f"logweir: {tmp_path} is a new store: nothing was ever written to it\n"
    assert (new in said) is is_new


def test_users_are_managed_and_count(tmp_path: Path) -> None:
    """Added with a password from stdin, granted, listed, refused, dropped."""
    store = tmp_path / "store"
    with logweir.open(store) as log:
        log.create_space("t")
    assert told("user", "add", store, "alice", "--password-stdin", stdin="wonder\n")[0] == 0
    assert told("user", "add", store, "alice", "--password-stdin", stdin="x\n")[0] == 1
    assert told("user", "add", store, "writers", "--role")[0] == 0
    assert told("user", "grant", store, "writers", "read,write", "--on", "space:t")[0] == 0
    assert told("user", "grant", store, "alice", "writers")[0] == 0
    code, _, err = told("user", "grant", store, "alice", "fly,read")
    assert code == 2
    assert "'fly' is not a right" in err
    code, out, _ = told("user", "list", store, "--json")
    alice = next(one for one in json.loads(out) if one["name"] == "alice")
    assert alice["password"] is True
    assert [one["name"] for one in json.loads(out) if one["password"]] == ["alice"]
    role = {"on": "role", "object": 33, "object_name": "writers", "rights": ["execute"]}
    assert role in alice["grants"]
    _, out, _ = told("user", "list", store)
    assert "execute on functions 1 … 67; write on spaces _collation, _truncate; read on " in out
    assert "roles public, writers; session,usage on universe" in out
    with serving(store) as ready:
        port = int(ready["listen"][0].rpartition(":")[2])
        with RawClient(port, "alice", "wonder") as client:
            assert not client.ask(2, {0x10: 512, 0x21: [1]}).is_error
            assert int(client.ask(2, {0x10: 304, 0x21: [99]}).error().code) == 42
    assert told("user", "revoke", store, "alice", "writers")[0] == 0
    assert told("user", "passwd", store, "alice", "--password-stdin", stdin="new\n")[0] == 0
    with serving(store) as ready:
        port = int(ready["listen"][0].rpartition(":")[2])
        with RawClient(port, "alice", "new") as client:
            assert int(client.ask(2, {0x10: 512, 0x21: [2]}).error().code) == 42
    assert told("user", "drop", store, "alice")[0] == 0
    assert told("user", "drop", store, "guest")[0] == 1


def test_bad_options_are_usage_errors(tmp_path: Path) -> None:
    """Exit code 2, one line, no traceback."""
    for words in (
        ["--listen", "http://x"],
        ["--follow", "tarantool://"],
        ["--functions", "no_such_module"],
        ["--metrics", "nowhere"],
        ["--listen", "tarantool://user@127.0.0.1:0"],
    ):
        code, _, err = told("serve", tmp_path / "store", *words)
        assert code == 2, words
        assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_that_is_stopped_before_it_serves_says_so(tmp_path: Path, number: int) -> None:
    """A signal while the folder is still being opened ends it with a line and a code."""
    store = tmp_path / "store"
    with logweir.open(store):
        pass
    code = (
        "import os\n"
        "import logweir\n"
        "from logweir.tools.cli import main\n"
        "opened = logweir.open\n"
        "def stopped(*args, **options):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    return opened(*args, **options)\n"
        "logweir.open = stopped\n"
        "main.run()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", str(store), "--listen", "tarantool://127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "logweir: stopped before it served\n"
    logweir.open(store).close()


@contextmanager
def master_of(folder: Path) -> Iterator[str]:
    """A server with a space, as a master of others. Yields its address."""
    with logweir.open(folder) as log:
        log.create_space("t")
        log.insert("t", (1, "x"))
    with serving(folder, "--allow-guest", "all") as ready:
        yield ready["listen"][0]


def test_serve_of_a_new_folder_joins_first(tmp_path: Path) -> None:
    """It belongs to the set of the master that it follows before anybody can ask it anything."""
    with master_of(tmp_path / "one") as url:
        with (
            serving(tmp_path / "two", "--follow", url, "--allow-guest", "all") as ready,
            RawClient(int(ready["listen"][0].rpartition(":")[2])) as client,
        ):
            assert client.ask(1, {0x10: 512, 0x20: [1], 0x12: 1}).body[0x30] == [[1, "x"]]
        with serving(tmp_path / "two", "--follow", url):
            pass  # a store already: it goes on
    with (
        logweir.open(tmp_path / "one", create=False) as one,
        logweir.open(tmp_path / "two", create=False) as two,
    ):
        assert two.get("_schema", "cluster") == one.get("_schema", "cluster")
        assert (two.replica_id, two.count("_cluster")) == (2, 2)


def test_serve_that_cannot_join_leaves_nothing(tmp_path: Path) -> None:
    """It does not begin a replica set of its own in place of the one that it was to follow."""
    url = f"tarantool://127.0.0.1:{free_port()}"
    listen = ("--listen", "tarantool://127.0.0.1:0")
    code, _, err = told("serve", tmp_path / "two", "--follow", url, *listen)
    assert code == 4
    assert url in err
    with master_of(tmp_path / "one") as url:
        refused = url.replace("tarantool://", "tarantool://nobody:wrong@")
        code, _, err = told("serve", tmp_path / "two", "--follow", refused, *listen)
        assert code == 4
        assert "nobody" in err
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


@pytest.mark.parametrize("file", [False, True], ids=["", "log-file"])
def test_an_upstream_that_is_away_is_told_once(file: bool, tmp_path: Path) -> None:
    """By the log if it is beside the messages, and by these if it is elsewhere."""
    words = ["follow", f"tank://127.0.0.1:{free_port()}/t", tmp_path / "copy"]
    words += ["--log-file", tmp_path / "log"] if file else []
    with LOGWEIR.begin(*words, stderr=PIPE) as process:
        assert process.stderr is not None
        lines = []
        while not lines or "logweir: waiting" not in lines[-1]:
            lines.append(process.stderr.readline())
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    assert ("Connection refused" in lines[-1]) == file
    logged = (tmp_path / "log").read_text().splitlines() if file else lines
    (line,) = [one for one in logged if "source.waiting" in one]
    assert "Connection refused" in line


@pytest.mark.parametrize("command", ["follow", "serve"])
def test_a_master_that_is_not_there_yet_is_waited_for(command: str, tmp_path: Path) -> None:
    """As long as it is said, and no longer; nothing is left behind by who waited in vain."""
    port = free_port()
    url, copy = f"tarantool://127.0.0.1:{port}", tmp_path / "two"
    words = {
        "follow": ["follow", url, copy, "--once"],
        "serve": ["serve", copy, "--follow", url, "--listen", "tarantool://127.0.0.1:0"],
    }[command]
    code, _, err = told(*words, "--wait", "1.4")  # longer than a first attempt takes under load
    assert (code, " s for it" in err, copy.exists()) == (4, True, False), err
    with LOGWEIR.begin(*words, "--wait", 120, stderr=PIPE) as process:
        assert process.stderr is not None
        assert "waiting 120 s for it" in process.stderr.readline()
        with logweir.open(tmp_path / "one") as log:
            log.create_space("t")
        with serving(tmp_path / "one", "--allow-guest", "all", "--listen", url):
            assert any("logweir: copied" in line for line in process.stderr)
            if command == "serve":
                assert any("logweir: serving" in line for line in process.stderr)
                process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    with logweir.open(copy, create=False) as log:
        assert log.count("t") == 0
