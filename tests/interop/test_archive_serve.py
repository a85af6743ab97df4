"""A server that archives its store: metrics, status, and what is left when either is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest
from support.nursery import LOGWEIR, Program
from support.ports import free_port
from support.waiting import until

import logweir
from logweir.archive.catalog import Catalog
from logweir.archive.fetch import drill
from logweir.archive.objects import open_objects


def run(*words: object) -> str:
    """What the program prints."""
    code, out, err = LOGWEIR.run(*words)
    assert code == 0, err
    return out


class Served:
    """A server as a process."""

    def __init__(self, folder: Path, place: str, process: Program, port: int) -> None:
        self.place = place
        self.folder = folder
        self.process = process
        self.url = f"tarantool://127.0.0.1:{port}"
        self._metrics = f"http://127.0.0.1:{port + 1}/metrics"

    def figures(self) -> dict[str, float]:
        """Its metrics about the archive."""
        with urllib.request.urlopen(self._metrics, timeout=60) as answer:
            text = answer.read().decode()
        found = re.findall(r'^logweir_archive_(\w+){place="([^"]*)"} (\S+)$', text, re.M)
        assert {place for _, place, _ in found} <= {self.place}
        return {name: float(value) for name, _, value in found}

    def insert(self, first: int, count: int) -> None:
        """Add tuples over its port."""
        for number in range(first, first + count):
            run("insert", self.url, "t", json.dumps([number, "x"]))

    def children(self) -> list[int]:
        """Processes that it has started."""
        found: list[int] = []
        for task in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            with suppress(OSError):  # a thread that has ended meanwhile
                found += map(int, task.read_text().split())
        return found


@contextmanager
def serving(folder: Path, place: str) -> Iterator[Served]:
    """A server with the space `t`, configured by a file."""
    with logweir.open(folder) as log:
        log.create_space("t", [("id", "unsigned"), ("value", "string")])
    port = free_port()
    config = folder.with_suffix(".toml")
    config.write_text(
        f'listen = ["tarantool://127.0.0.1:{port}"]\nallow-guest = "all"\narchive = "{place}"\n'
        f'archive-every = 0.05\nmetrics = "127.0.0.1:{port + 1}"\n'
    )
    words = ["serve", str(folder), "--config", str(config), "--json"]
    with LOGWEIR.begin(*words, stdin=DEVNULL, stdout=PIPE, stderr=PIPE) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["ready"]
            yield Served(folder, place, process, port)
        finally:
            process.terminate()
            process.communicate()


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter: it ended behind the opening
        return False


def is_level(server: Served) -> bool:
    """Whether everything is archived."""
    found = server.figures()
    return bool(found["last_success_timestamp_seconds"]) and not found["lag_rows"]


@pytest.mark.kill
def test_a_server_archives_and_starts_its_archiver_again(tmp_path: Path) -> None:
    """What it answered is archived soon; metrics, status and `retain list` tell; a killed archiver
    is counted and followed by another, and none outlives the server."""
    place = str(tmp_path / "a")
    with serving(tmp_path / "s", place) as server:
        server.insert(0, 2)
        until(lambda: is_level(server), 60)
        assert server.figures()["errors_total"] == 0
        (child,) = server.children()
        os.kill(child, signal.SIGKILL)
        until(lambda: server.figures()["errors_total"] == 1, 60)
        server.insert(2, 1)
        until(lambda: is_level(server) and server.children() not in ([], [child]), 60)
        found = server.figures()
        assert (found["lag_bytes"], found["lag_seconds"]) == (0, 0)
        told = json.loads(run("status", server.url, "--json"))["archive"]
        assert (told["place"], told["lag_rows"], told["error"]) == (place, 0, "")
        until(lambda: '"archive"' in run("retain", "list", server.url, "--json"), 60)
        (child,) = server.children()
        server.process.kill()
        server.process.wait()
        until(lambda: not is_alive(child), 60)
    assert drill(place, tmp_path / "s").ok
    assert len(Catalog.load(open_objects(place)).points()) == 1


def test_a_place_that_fails_holds_nobody_up(tmp_path: Path) -> None:
    """The server answers; errors and the lag are in its metrics; it goes on when the place does."""
    (tmp_path / "a").write_text("no folder")
    place = str(tmp_path / "a" / "b")
    with serving(tmp_path / "s", place) as server:
        server.insert(0, 2)
        until(lambda: server.figures()["errors_total"] >= 2, 60)
        found = server.figures()
        assert found["lag_rows"] >= 2
        assert found["lag_bytes"] > 0
        assert found["last_success_timestamp_seconds"] == 0
        told = json.loads(run("status", server.url, "--json"))["archive"]
        assert place in told["error"]
        (tmp_path / "a").unlink()
        until(lambda: is_level(server), 120)
        assert drill(place, tmp_path / "s").tuples == 2
