"""A server under a service manager, and the files for it in tools/deploy."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
from support.leaks import Leaks

from interop.test_iproto_cli import CODE
from logweir.tools.cli.configfile import declared
from logweir.tools.cli.main import load_command
from logweir.tools.cli.notify import notify

DEPLOY = Path(__file__).parents[2] / "tools" / "deploy"


def manager(name: str) -> socket.socket:
    """A socket as a service manager has it."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(name)
    listening.settimeout(60)
    return listening


@pytest.mark.kill
def test_the_manager_is_told_when_it_serves_reloads_and_stops(tmp_path: Path) -> None:
    """READY=1 comes when clients are taken, and again after each reload."""
    name = str(tmp_path / "notify")
    with manager(name) as listening:
        words = ["serve", tmp_path / "store", "--listen", f"tank://unix/:{tmp_path / 'tank'}"]
        with subprocess.Popen(
            [sys.executable, "-c", CODE, *words],
            stderr=subprocess.DEVNULL,
            env={**os.environ, "NOTIFY_SOCKET": name},
        ) as process:
            assert listening.recv(1000) == b"READY=1"
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(tmp_path / "tank"))
            process.send_signal(signal.SIGHUP)
            assert re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=\d+", listening.recv(1000))
            assert listening.recv(1000) == b"READY=1"
            process.send_signal(signal.SIGTERM)
            assert listening.recv(1000) == b"STOPPING=1"
            assert process.wait(30) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="abstract names are Linux's")
def test_the_manager_may_have_an_abstract_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As systemd gives it to some; its first letter is `@` then."""
    name = f"logweir-{os.getpid()}"
    with manager(f"\0{name}") as listening:
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        notify("READY=1", "STATUS=x")
        assert listening.recv(1000) == b"READY=1\nSTATUS=x"


def handed(
    sockets: list[socket.socket], *words: object, owner: str = "$$"
) -> subprocess.Popen[bytes]:
    """The program with these sockets, as a manager starts it: it is process `owner` for them."""
    files = " ".join(f"{3 + at}<&{one.fileno()}" for at, one in enumerate(sockets))
    script = f'LISTEN_PID={owner} LISTEN_FDS={len(sockets)} exec "$@" {files}'
    return subprocess.Popen(
        ["bash", "-c", script, "bash", sys.executable, "-c", CODE, *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[one.fileno() for one in sockets],
    )


@pytest.mark.kill
def test_clients_that_come_before_the_server_are_answered(tmp_path: Path) -> None:
    """The manager listens: who has connected meanwhile is served then, over TCP and at a file,
    which is there still when the server has stopped."""
    file = str(tmp_path / "tarantool")
    with (
        socket.create_server(("127.0.0.1", 0)) as port,
        socket.socket(socket.AF_UNIX) as local,
        socket.create_connection(port.getsockname()) as first,
        socket.socket(socket.AF_UNIX) as second,
    ):
        local.bind(file)
        local.listen()
        second.connect(file)
        listen = [f"tarantool://127.0.0.1:{port.getsockname()[1]}", f"tarantool://unix/:{file}"]
        words = [word for one in listen for word in ("--listen", one)]
        with handed([port, local], "serve", tmp_path / "store", *words) as process:
            for client in (first, second):
                client.settimeout(60)
                assert client.recv(9, socket.MSG_WAITALL) == b"Tarantool"
            process.terminate()
            assert process.wait(30) == 0
        with socket.socket(socket.AF_UNIX) as third:
            third.connect(file)


@pytest.mark.parametrize(
    ("owner", "kind", "reason"),
    [
        ("$$", socket.SOCK_STREAM, b"listen (LISTEN_FDS): no address of this server is 127"),
        ("$$", socket.SOCK_DGRAM, b"is no socket that listens for streams"),
        ("1", socket.SOCK_STREAM, b"cannot be bound"),
    ],
)
def test_a_socket_that_nobody_would_serve_is_told(
    owner: str, kind: socket.SocketKind, reason: bytes, tmp_path: Path
) -> None:
    """Its clients would wait for ever; and what is handed to another process is not taken."""
    with socket.socket(socket.AF_INET, kind) as one:
        one.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            one.listen()
        number = one.getsockname()[1] if owner == "1" else 0
        words = ["serve", tmp_path / "store", "--listen", f"tarantool://127.0.0.1:{number}"]
        with handed([one], *words, owner=owner) as process:
            told = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert reason in b" ".join(told.split())


@pytest.mark.parametrize("name", ["", "/none/there", "@none", "vsock:2:1", "/" + "x" * 300])
def test_a_manager_that_cannot_be_told_stops_nobody(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the variable holds: no error, and no socket that stays open."""
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    leaks = Leaks()
    notify("READY=1")
    assert leaks.found() == []


def test_files_of_deploy_name_options_that_there_are() -> None:
    """The unit starts a command with its options, the container sets variables of the same."""
    serve = load_command("serve")
    unit = ConfigParser(strict=False, interpolation=None, delimiters="=")
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "logweir.service")
    program, command, *words = unit["Service"]["ExecStart"].split()
    assert (Path(program).name, command, unit["Service"]["Type"]) == ("logweir", "serve", "notify")
    known = {option for one in serve.params for option in one.opts}
    assert {word for word in words if word.startswith("-")} <= known
    variables = re.findall(
        r"^\W*(?:ENV )?LOGWEIR_(\w+)=", (DEPLOY / "Containerfile").read_text(), re.M
    )
    assert "DIRECTORY" in variables
    assert {name.lower() for name in variables} <= set(declared(serve))
