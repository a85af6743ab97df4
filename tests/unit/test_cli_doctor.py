"""`logweir doctor`: what it finds missing of machine, folder and settings."""

from __future__ import annotations

import json
import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import logweir
from logweir.compiled import FINDER
from logweir.tools.cli import surroundings
from logweir.tools.cli.main import app


def look(*words: object, **environment: str) -> tuple[Result, dict[str, list[dict[str, str]]]]:
    """What the program left, and its findings by check."""
    result = CliRunner().invoke(
        app, ["doctor", "--json", *map(str, words)], env={"LOGWEIR_LISTEN": "", **environment}
    )
    told: dict[str, list[dict[str, str]]] = {}
    for one in json.loads(result.stdout)["findings"]:
        told.setdefault(one["check"], []).append(one)
    assert result.exit_code == (not json.loads(result.stdout)["ok"])
    return result, told


@pytest.fixture
def port() -> Iterator[int]:
    """A port of this machine on which somebody listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


def settings(tmp_path: Path, **options: Any) -> Path:
    """A file of `serve`, which listens where nobody does, unless told."""
    file = tmp_path / "serve.toml"
    options = {"listen": ["tarantool://127.0.0.1:0"], **options}
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items()))
    return file


def test_all_is_well(tmp_path: Path) -> None:
    """Of a store, and of a folder that is not there; neither is left changed."""
    with logweir.open(tmp_path / "store"):
        pass
    before = sorted(os.listdir(tmp_path / "store"))
    for folder in (tmp_path / "store", tmp_path / "not" / "there"):
        result, told = look(folder, "--config", settings(tmp_path))
        assert result.exit_code == 0, result.output
        checks = {"python", "kernels", "extras", "clock", "folder", "disk", "room", "sync"}
        assert checks | {"settings", "listen"} <= told.keys()
        assert told["folder"][0]["state"] == "ok"
        assert [one["state"] for one in told.get("files", ())] == ["ok"] * folder.exists()
        assert told["settings"][0]["found"].endswith("serve.toml")
    assert sorted(os.listdir(tmp_path / "store")) == before
    assert not (tmp_path / "not").exists()


def test_files_that_cannot_be_read_are_a_problem(tmp_path: Path) -> None:
    """The first by name, how many they are, and what tells more."""
    for number in range(3):
        (tmp_path / f"{number:020d}.xlog").write_bytes(b"no log")
    result, told = look(tmp_path, "--config", settings(tmp_path))
    assert result.exit_code == 1
    (files,) = told["files"]
    assert files["state"] == "problem"
    assert f"{tmp_path / ('0' * 20)}.xlog at byte 6: no empty line" in files["found"]
    assert "3 of them cannot be used" in files["found"]
    assert files["hint"] == f"`logweir verify {tmp_path}` tells what is lost"


def test_for_people_a_line_each(tmp_path: Path) -> None:
    """And what to do behind an arrow, under what was found."""
    tmp_path.chmod(0o777)
    done = CliRunner().invoke(app, ["doctor", str(tmp_path), "--config", str(settings(tmp_path))])
    lines = done.stdout.splitlines()
    number = next(at for at, line in enumerate(lines) if "mode 0777" in line)
    assert lines[number].startswith("note     folder ")
    assert lines[number + 1].strip() == f"→ chmod o= {tmp_path}"


def test_store_in_use_is_told(tmp_path: Path) -> None:
    """By its process; it is not disturbed."""
    with logweir.open(tmp_path / "store") as log:
        _, told = look(tmp_path / "store", "--config", settings(tmp_path))
        assert told["use"][0]["found"] == f"process {os.getpid()} has it open"
        log.create_space("more")
    _, told = look(tmp_path / "store", "--config", settings(tmp_path))
    assert told["use"][0]["found"] == "no process has it open"


def test_folder_that_cannot_be(tmp_path: Path) -> None:
    """A file in its place, and one whose files are not ours."""
    (tmp_path / "file").write_text("")
    result, told = look(tmp_path / "file", "--config", settings(tmp_path))
    assert (result.exit_code, told["folder"][0]["state"]) == (1, "problem")
    if os.geteuid() == 0:
        pid = os.fork()
        if not pid:
            os.seteuid(65534)
            found = [one.state for one in surroundings.folder_findings(tmp_path / "store")]
            os._exit(0 if found[0] == "problem" and "sync" not in found else 1)
        assert os.waitpid(pid, 0)[1] == 0


def test_clock_that_went_back(tmp_path: Path) -> None:
    """The newest log is of a later time than now."""
    with logweir.open(tmp_path / "store") as log:
        log.create_space("one")
    newest = max((tmp_path / "store").glob("*.xlog"))
    later = time.time() + 1000
    os.utime(newest, (later, later))
    _, told = look(tmp_path / "store", "--config", settings(tmp_path))
    assert [one["state"] for one in told["clock"]] == ["ok", "note"]
    assert "went back" in told["clock"][1]["found"]


def leave_out(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it could not be compiled."""
    FINDER.find_spec(kernel)  # what the extension has is known once it is loaded
    monkeypatch.setattr(FINDER, "_has", FINDER._has - {kernel})


def test_kernels_that_are_missing_or_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without a compiled file is a note, a library that is missing a problem."""
    leave_out("logweir.wal.crckernel", monkeypatch)
    found = {one.check: one for one in surroundings.machine_findings(10)}["kernels"]
    assert (found.state, "wal.crckernel" in found.found) == ("note", True)
    monkeypatch.setattr(FINDER, "broken", "libnone.so.1: cannot open shared object file")
    found = {one.check: one for one in surroundings.machine_findings(10)}["kernels"]
    assert (found.state, "libnone.so.1" in found.found) == ("problem", True)


def test_kernels_of_a_wheel_are_told_though_it_has_no_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that are Cython alone are left out where a header is missing, without a word."""
    monkeypatch.setattr(logweir, "__path__", [str(tmp_path)])
    leave_out("logweir.store.state.lmdbkernel", monkeypatch)
    found = {one.check: one for one in surroundings.machine_findings(10)}["kernels"]
    assert (found.state, "store.state.lmdbkernel" in found.found) == ("note", True)


def test_limits_that_are_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of open files, a file's size, address space and memory."""
    monkeypatch.setattr(resource, "getrlimit", lambda number: (1000, 1000))
    states = {one.check: one.state for one in surroundings.machine_findings(2000, 1 << 50)}
    assert states["open files"] == states["address space"] == states["memory"] == "note"
    assert states["file size"] == "problem"
    monkeypatch.undo()
    states = {one.check: one.state for one in surroundings.machine_findings(10, 1)}
    assert states["open files"] == states["memory"] == "ok"
    assert "file size" not in states


def test_sync_that_is_slow_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are notes; a disk that takes nothing is a problem."""
    for step, word in ((1.0, "slow"), (0.0, "no disk")):
        ticks = iter(range(1000))
        monkeypatch.setattr(time, "perf_counter", lambda step=step, t=ticks: step * next(t))
        found = {one.check: one for one in surroundings.folder_findings(tmp_path)}["sync"]
        assert (found.state, word in found.found) == ("note", True), found
    monkeypatch.undo()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(surroundings, "create_file", refuse)
    found = {one.check: one for one in surroundings.folder_findings(tmp_path)}["sync"]
    assert (found.state, "no space left" in found.found) == ("problem", True)
    assert not list(tmp_path.iterdir())


def test_settings_that_serve_would_not_take(tmp_path: Path) -> None:
    """Each is told, and the others are looked at nevertheless."""
    result, told = look(LOGWEIR_MEMORY="much")
    assert (result.exit_code, "LOGWEIR_MEMORY" in told["settings"][0]["found"]) == (1, True)
    result, told = look("--config", tmp_path / "none")
    assert (result.exit_code, "cannot be read" in told["settings"][0]["found"]) == (1, True)
    options = {"listen": ["tank:/x", "tank://127.0.0.1:0"], "follow": ["what"], "metrics": "m"}
    more = {"tls-certificate": str(tmp_path / "none"), "web": "127.0.0.1:0"}
    result, told = look("--config", settings(tmp_path, **options, **more))
    assert [one["state"] for one in told["listen"]] == ["problem", "ok"]
    for check in ("upstream", "metrics", "tls"):
        assert told[check][0]["state"] == "problem", told[check]
    assert told["web"][0]["state"] == "ok"


def test_addresses_that_are_taken_or_cannot_be(tmp_path: Path, port: int) -> None:
    """A port that is taken is a note, as it may be by this server; so is an upstream that is away.
    A unix socket needs its folder, and nothing else of its name."""
    (tmp_path / "file").write_text("")
    with closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(str(tmp_path / "left"))
    with closing(socket.socket(socket.AF_UNIX)) as used:
        used.bind(str(tmp_path / "used"))
        used.listen()
        files = [f"tank://unix/:{tmp_path}/{name}" for name in ("left", "used", "file", "no/s")]
        listen = [f"tank://127.0.0.1:{port}", "tank://192.0.2.1:1", *files]
        follow = ["tank://127.0.0.1:1"]
        _, told = look("--config", settings(tmp_path, listen=listen, follow=follow))
    states = ["note", "problem", "ok", "note", "problem", "problem"]
    assert [one["state"] for one in told["listen"]] == states
    assert all(one["hint"] for one in told["listen"] if one["state"] != "ok")
    assert told["upstream"][0]["state"] == "note"
    assert (tmp_path / "left").exists()


def test_one_problem_is_one_problem(tmp_path: Path) -> None:
    """The last line counts in words, of one as of several."""
    file = settings(tmp_path, **{"tls-key": str(tmp_path / "key.pem")})
    _, told = look(tmp_path / "store", "--config", file)
    states = [one["state"] for found in told.values() for one in found]
    assert states.count("problem") == 1
    notes = states.count("note")
    result = CliRunner().invoke(app, ["doctor", str(tmp_path / "store"), "--config", str(file)])
    last = result.stderr.splitlines()[-1]
    assert last == f"logweir: 1 problem, {notes} note{'s' * (notes != 1)}"
