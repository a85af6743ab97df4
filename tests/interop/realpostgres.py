"""A real PostgreSQL for tests: a cluster of its own at a unix socket, not run by root.

It syncs nothing: its data would go with the machine only, not with a process of it that is killed.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
import pytest

PASSWORD = "pg%word: of/tests"
_START_SECONDS = 30.0


def _programs() -> Path:
    """The newest PostgreSQL's folder. Skips where there is none."""
    found = [*Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if found:
        return max(found, key=lambda one: int(one.parts[-3])).parent
    program = shutil.which("initdb")
    if program is None:
        pytest.skip("no PostgreSQL on this machine")
    return Path(program).resolve().parent


class RealPostgres:
    """It runs until the `with` block ends. `folder`: of its socket; databases of user `synapse`."""

    def __init__(self) -> None:
        self._programs = _programs()
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            try:
                user = pwd.getpwnam("postgres")
            except KeyError:
                pytest.skip("no user postgres on this machine")
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self.folder = Path(tempfile.mkdtemp(prefix="logweir-pg"))  # a short name: of a socket
        try:
            if self._as:
                os.chown(self.folder, self._as["user"], self._as["group"])
            self._make()
        except BaseException:
            shutil.rmtree(self.folder)
            raise

    def _make(self) -> None:
        password = self.folder / "word"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        options = ["-U", "synapse", "-A", "scram-sha-256", "--pwfile", password, "--no-sync"]
        options += ["-E", "UTF8", "--locale=C", "-D", self.folder / "data"]
        made = subprocess.run(
            [self._programs / "initdb", *options], cwd=self.folder, capture_output=True, **self._as
        )
        assert made.returncode == 0, made.stderr[-2000:]
        self.start()
        self.sql("CREATE DATABASE synapse", "postgres")

    def start(self) -> None:
        """Start it, again on the same data; it takes connections then."""
        settings = ["listen_addresses=", f"unix_socket_directories={self.folder}", "fsync=off"]
        settings += ["full_page_writes=off", "max_connections=100", "shared_buffers=32MB"]
        command = [self._programs / "postgres", "-D", self.folder / "data"]
        command += [word for one in settings for word in ("-c", one)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, **self._as
            )
        until = time.monotonic() + _START_SECONDS
        while subprocess.run(
            [self._programs / "pg_isready", "-q", "-h", self.folder], **self._as
        ).returncode:
            text = (self.folder / "log").read_text()[-2000:]
            assert self._process.poll() is None, text
            assert time.monotonic() < until, text

    def kill(self) -> None:
        """SIGKILL of the process that takes connections; its others end at once."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it; connections are cut off."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)

    def sql(self, statement: str, database: str = "synapse") -> list[tuple[Any, ...]]:
        """What a statement finds; [] for one that finds nothing."""
        options = {"host": str(self.folder), "user": "synapse", "password": PASSWORD}
        with psycopg.connect(dbname=database, autocommit=True, **options) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.stop()
        shutil.rmtree(self.folder)
