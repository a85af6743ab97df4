"""The newest Synapse as large homeservers run it: a main process, two that write events, one that
writes what users do, on PostgreSQL and Redis."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.ports import free_port

from interop.realpostgres import PASSWORD, RealPostgres
from interop.realsynapse import Process, RealSynapse, RedisServer, listener, python_of

VERSION = "1.163.2"
_WRITES = ("account_data", "presence", "push_rules", "receipts", "to_device", "typing")


class RealCluster:
    """All of them, running. `home`: the main process; `writers`: the others, by their names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with ExitStack() as stack:
            self.postgres = stack.enter_context(RealPostgres())
            self.broker = stack.enter_context(RedisServer(folder, python_of(VERSION)))
            self.home = RealSynapse(folder, VERSION, self.broker.port, starts=False)
            names = ("persister1", "persister2", "writer1")
            self.writers = {name: _Writer(self.home, name) for name in names}
            self._write_config()
            self.home.start()
            stack.callback(self.home.stop)
            with ThreadPoolExecutor() as pool:
                list(pool.map(_Writer.start, self.writers.values()))
            for writer in self.writers.values():
                stack.callback(writer.stop)
            self._stack = stack.pop_all()

    @property
    def url(self) -> str:
        """What follows it."""
        return f"synapse+file://{self.folder}/hs.yaml"

    def _write_config(self) -> None:
        file = self.folder / "hs.yaml"
        config = json.loads(file.read_text())
        at = {"user": "synapse", "password": PASSWORD, "dbname": "synapse"}
        pool = {"cp_min": 1, "cp_max": 5, "host": str(self.postgres.folder)}
        config["database"] = {
            "name": "psycopg2",
            "args": at | pool,
            "allow_unsafe_locale": True,
        }
        for writer in self.writers.values():
            place = {"host": "127.0.0.1", "port": writer.http_port}
            config["instance_map"][writer.name] = place
        config["stream_writers"] = {
            "events": ["persister1", "persister2"],
            **{stream: ["writer1"] for stream in _WRITES},
        }
        file.write_text(json.dumps(config))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


class _Writer:
    """A worker that writes streams."""

    def __init__(self, home: RealSynapse, name: str) -> None:
        self.name = name
        self._home = home
        self.client_port, self.http_port = free_port(), free_port()
        ports = ((self.client_port, "client"), (self.http_port, "replication"))
        config: dict[str, Any] = {
            "worker_app": "synapse.app.generic_worker",
            "worker_name": name,
            "worker_listeners": [listener(port, "http", what) for port, what in ports],
        }
        (home.folder / f"{name}.yaml").write_text(json.dumps(config))

    def start(self) -> None:
        """Start it, again on the same ports."""
        home = self._home
        module = "synapse.app.generic_worker"
        command = [home.python, "-m", module, "-c", "hs.yaml", "-c", f"{self.name}.yaml"]
        ports = (self.client_port, self.http_port)
        self._process = Process(command, home.folder, self.name, *ports)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def stop(self) -> None:
        """Stop it in order."""
        self._process.stop()
