"""A server that runs: its log, and what it takes up on SIGHUP."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from support.certificates import Authority
from support.nursery import LOGWEIR
from support.waiting import until

import logweir
from interop.test_iproto_cli import CODE
from logweir.tools.cli.main import load_command
from logweir.tools.cli.output import Output
from logweir.tools.cli.reload import reload_on_hangup


def shown_certificate(port: int) -> bytes:
    """What the server shows of itself to one who asks now."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        context.wrap_socket(plain) as secure,
    ):
        certificate = secure.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a log in JSON."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def events_of(file: Path, event: str) -> list[dict[str, Any]]:
    return [one for one in lines_of(file) if one["event"] == event]


@pytest.mark.kill
def test_hangup_takes_up_level_certificates_and_the_log_file(tmp_path: Path) -> None:
    """What is there anew counts from then on; what cannot be read is told in one line, and what was
    taken up before stays."""
    first, second = (Authority.new(tmp_path, name) for name in ("first", "second"))
    certificate, key, file = (tmp_path / name for name in ("server.pem", "key.pem", "x.toml"))

    def show(pair: Authority) -> bytes:
        certificate.write_bytes(pair.certificate.read_bytes())
        key.write_bytes((tmp_path / f"{pair.name}.key").read_bytes())
        return ssl.PEM_cert_to_DER_cert(pair.certificate.read_text())

    settings = (
        f'listen = ["tarantool://127.0.0.1:0"]\ntls-certificate = "{certificate}"\n'
        f'tls-key = "{key}"\nlog-format = "json"\nlog-file = "{tmp_path / "log"}"\n'
    )
    expected = show(first)
    file.write_text(settings)
    command = [sys.executable, "-c", CODE, "serve", tmp_path / "store", "--config", file, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(json.loads(process.stdout.readline())["listen"][0].rpartition(":")[2])
        assert shown_certificate(port) == expected
        (ready,) = events_of(tmp_path / "log", "listener.ready")
        assert ready["level"] == "info"
        assert ready["logger"] == "logweir.replication"
        assert ready["tls"] is True
        assert not events_of(tmp_path / "log", "link.closed")

        (tmp_path / "log").rename(tmp_path / "log.1")
        expected = show(second)
        file.write_text(settings + 'log-level = "debug"\nread-only = true\n')
        process.send_signal(signal.SIGHUP)
        until(lambda: events_of(tmp_path / "log", "config.reloaded"))
        (reloaded,) = events_of(tmp_path / "log", "config.reloaded")
        assert (reloaded["log_level"], reloaded["needs_restart"]) == ("debug", ["read-only"])
        assert shown_certificate(port) == expected
        until(lambda: events_of(tmp_path / "log", "link.closed"))

        certificate.write_text("no certificate")
        process.send_signal(signal.SIGHUP)
        until(lambda: len(events_of(tmp_path / "log", "config.refused")) == 1)
        show(first)
        file.write_text(settings + "log-level = 1\n")
        process.send_signal(signal.SIGHUP)
        until(lambda: len(events_of(tmp_path / "log", "config.refused")) == 2)
        one, other = events_of(tmp_path / "log", "config.refused")
        assert str(certificate) in one["reason"]
        assert "log-level" in other["reason"]
        assert str(file) in other["reason"]
        assert shown_certificate(port) == expected
        # Three, where the first client's end was noticed behind the change of the level.
        until(lambda: len(events_of(tmp_path / "log", "link.closed")) >= 2)

        (tmp_path / "log").rename(tmp_path / "log.2")
        (tmp_path / "log").mkdir()
        file.write_text(settings)
        process.send_signal(signal.SIGHUP)
        until(lambda: len(events_of(tmp_path / "log.2", "config.refused")) == 3)
        *_, last = events_of(tmp_path / "log.2", "config.refused")
        assert last["reason"].startswith(f"{tmp_path / 'log'}: is a directory.")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, b"Traceback" in errors) == (0, False)
    assert len(events_of(tmp_path / "log.1", "listener.ready")) == 1


def test_a_manager_hears_ready_once_behind_all_that_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hangups at once, the second of which fails of what nobody thought of."""
    context = load_command("serve").make_context("serve", [str(tmp_path / "store")])
    begun, gates = (tuple(threading.Event() for _ in range(2)) for _ in range(2))
    numbers = iter(range(2))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "m"))

    def prepare() -> Callable[[], None]:
        number = next(numbers)
        begun[number].set()
        assert gates[number].wait(20)
        if number:
            raise KeyError("what nobody thought of")
        return lambda: None

    async def test(notified: socket.socket) -> None:
        reload_on_hangup(Output(), context, prepare)
        for _ in gates:
            os.kill(os.getpid(), signal.SIGHUP)
            told = await asyncio.to_thread(notified.recv, 100)
            assert told.startswith(b"RELOADING=1\n")
        gates[0].set()
        assert await asyncio.to_thread(begun[1].wait, 20)
        assert not select.select([notified], [], [], 0)[0]
        gates[1].set()
        assert await asyncio.to_thread(notified.recv, 100) == b"READY=1"

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "m"))
        notified.settimeout(20)
        asyncio.run(test(notified))


@pytest.mark.kill
@pytest.mark.parametrize("command", ["archive", "capture"])
def test_hangup_reaches_commands_without_an_event_loop(command: str, tmp_path: Path) -> None:
    """While they wait for the next row: the level and the log's file count from then on, and what
    cannot be read is told; SIGTERM ends them still."""
    with logweir.open(tmp_path / "store") as store:
        store.create_space("t")
        store.insert("t", (1,))
    file, log = tmp_path / "x.toml", tmp_path / "log"
    words = {
        "archive": ["--follow", "--to", tmp_path / "kept", "--every", "100"],
        "capture": ["--exec", "builtins:repr", "--token", tmp_path / "token"],
    }[command]
    settings = f'log-format = "json"\nlog-file = "{log}"\nlog-level = "info"\n'
    file.write_text(settings)
    program = [sys.executable, "-c", CODE, command, tmp_path / "store", *words, "--config", file]
    manager = tmp_path / "m"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified, ExitStack() as stack:
        notified.bind(str(manager))
        notified.settimeout(30)
        environment = {**os.environ, "NOTIFY_SOCKET": str(manager)}
        process = stack.enter_context(
            subprocess.Popen(
                [*map(str, program), "--json"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
            )
        )
        assert notified.recv(100) == b"READY=1"
        log.rename(tmp_path / "log.1")
        file.write_text(
            settings.replace("info", "debug") + 'name = "other"\n' * (command == "capture")
        )
        process.send_signal(signal.SIGHUP)
        assert notified.recv(100).startswith(b"RELOADING=1\n")
        assert notified.recv(100) == b"READY=1"
        (reloaded,) = events_of(log, "config.reloaded")
        later = ["name"] if command == "capture" else []
        assert (reloaded["log_level"], reloaded["needs_restart"]) == ("debug", later)
        file.write_text("log-level = 1\n")
        process.send_signal(signal.SIGHUP)
        until(lambda: events_of(log, "config.refused"))
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, b"")


STOPPED = """
import os, signal
from logweir.wal import failpoint
def stop():
    failpoint.disarm()
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM)
failpoint.arm("{place}", stop)
"""


@pytest.mark.kill
@pytest.mark.parametrize(
    ("place", "count"), [("snapshot.before_rename", 0), ("wal.after_eof_before_sync", 1)]
)
def test_signals_while_a_store_is_opened_or_closed_end_capture_in_order(
    place: str, count: int, tmp_path: Path
) -> None:
    """SIGHUP ends nothing, before there is something to reload and after that; SIGTERM is heard
    where reading begins."""
    with logweir.open(tmp_path / "store") as store:
        store.create_space("t")
        store.insert("t", (1,))
    words = ["--exec", "builtins:print", "--store", tmp_path / "kept", "--once", "--space", "t"]
    program = [STOPPED.format(place=place) + CODE, "capture", tmp_path / "store", *words]
    done = subprocess.run(
        [sys.executable, "-c", *map(str, program)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, f"logweir: {count} transactions\n")


@pytest.mark.kill
def test_a_server_answers_while_it_reads_its_files_anew(tmp_path: Path) -> None:
    """From a disk that gives nothing: here a pipe that nobody has written into yet."""
    file = tmp_path / "x.toml"
    settings = (
        'listen = ["memcached://127.0.0.1:0"]\n'
        f'log-format = "json"\nlog-file = "{tmp_path / "log"}"\n'
    )
    file.write_text(settings)
    words = ["serve", tmp_path / "store", "--config", file, "--json"]
    with LOGWEIR.begin(*words, stdout=PIPE) as process, ExitStack() as stack:
        stack.callback(process.kill)
        assert process.stdout is not None
        port = int(json.loads(process.stdout.readline())["listen"][0].rpartition(":")[2])
        file.unlink()
        os.mkfifo(file)
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            process.send_signal(signal.SIGHUP)
            with file.open("w") as pipe:  # opened once it reads
                client.sendall(b"version\r\n")
                assert client.recv(100).startswith(b"VERSION")
                assert not events_of(tmp_path / "log", "config.reloaded")
                pipe.write(settings + 'log-level = "debug"\n')
        until(lambda: events_of(tmp_path / "log", "config.reloaded"))
        (reloaded,) = events_of(tmp_path / "log", "config.reloaded")
        assert reloaded["log_level"] == "debug"
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.kill
@pytest.mark.parametrize("command", ["serve", "capture"])
def test_a_stop_waits_for_no_files_that_are_read_anew(tmp_path: Path, command: str) -> None:
    """Nobody writes into the pipe before the program has ended."""
    file, token = tmp_path / "x.toml", tmp_path / "token"
    with logweir.open(tmp_path / "store") as log:
        log.create_space("t")
        log.insert("t", (1,))
    options = {
        "serve": ["--listen", "tarantool://127.0.0.1:0", "--json"],
        "capture": ["--exec", "builtins:print", "--space", "t", "--token", token],
    }
    file.write_text("")
    words = [command, tmp_path / "store", "--config", file, *options[command]]
    with LOGWEIR.begin(*words, stdout=PIPE) as process, ExitStack() as stack:
        stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline()  # it is ready, or has begun
        file.unlink()
        os.mkfifo(file)
        process.send_signal(signal.SIGHUP)
        with file.open("w"):  # opened once it reads
            process.terminate()
            assert process.wait(30) == 0
