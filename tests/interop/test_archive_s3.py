"""An archive in an object store: a real server of the S3 protocol, and the program as a process."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from disk.test_archive_kill import STEPS
from support.nursery import LOGWEIR, Program
from support.objectstore import object_store, s3_url
from support.waiting import until

import logweir
from logweir.testing.valve import Valve


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Where the object store answers."""
    pytest.importorskip("moto.server")
    with object_store() as found:
        yield found


def start(*words: object, **environment: str) -> Program:
    """The program with these words."""
    return LOGWEIR.begin(*words, stdout=PIPE, stderr=PIPE, environment=environment)


def run(*words: object, **environment: str) -> tuple[int, Any, str]:
    """Its exit code, the JSON that it printed, and what it complained."""
    with start(*words, "--json", **environment) as done:
        out, complaints = done.communicate(timeout=120)
    assert "hidden-secret" not in out + complaints
    assert "Traceback" not in complaints
    return done.returncode, json.loads(out) if out else None, complaints


def fill(folder: Path, count: int, *, snapshot: bool = False) -> None:
    """Add tuples, in small logs."""
    with logweir.open(folder, wal_max_size=1000) as log:
        if not any(space.name == "t" for space in log.spaces()):
            log.create_space("t")
        first = log.count("t")
        for number in range(first, first + count):
            log.insert("t", (number, "x" * 30))
        if snapshot:
            log.snapshot()


def test_an_archive_in_an_object_store(port: int, tmp_path: Path) -> None:
    """All that a folder can: tails, whole logs, snapshots, retention, status, drill, restore."""
    store, url = tmp_path / "s", s3_url(port, "whole")
    fill(store, 30)
    code, told, complaints = run("archive", store, "--to", url)
    assert (code, complaints) == (0, "")
    middle = told["vclock"]
    for _ in range(2):
        fill(store, 30, snapshot=True)
        code, told, _ = run("archive", store, "--to", url)
        assert code == 0
    code, status, _ = run("archive", "status", url, "--against", store)
    assert (code, status["damage"], status["lag"]["rows"]) == (0, [], 0)
    assert status["location"] == "s3://bucket/whole"
    assert (status["snapshots"], len(status["points"])) == (3, 1)
    code, found, _ = run("archive", "drill", url, "--against", store)
    assert (code, found["ok"], found["tuples"]) == (0, True, 90)
    at = json.dumps(middle).replace('"', "")
    code, _, _ = run("restore", "--from", url, "--to", tmp_path / "r", "--at-vclock", at)
    assert code == 0
    with logweir.open(tmp_path / "r") as log:
        assert log.count("t") == 30
    code, told, _ = run("archive", store, "--to", url, "--keep-snapshots", 1)
    assert (code, told["removed"] > 0) == (0, True)
    code, status, _ = run("archive", "status", url)
    assert (code, status["snapshots"]) == (0, 1)
    code, _, complaints = run("restore", "--from", url, "--to", tmp_path / "no", "--at-vclock", at)
    assert code == 1
    assert "s3://bucket/whole restores" in complaints
    code, _, complaints = run("archive", "status", f"{url}&nonsense=1")
    assert (code, "s3://bucket/whole" in complaints) == (2, True)
    fill(tmp_path / "other", 1)
    code, _, complaints = run("archive", tmp_path / "other", "--to", url)
    assert code == 2
    assert "s3://bucket/whole is of instance" in complaints


@pytest.mark.kill
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_each_step_leaves_what_counts(step: str, port: int, tmp_path: Path) -> None:
    """The entries that are there have their objects, and the next run makes all of it."""
    store, url = tmp_path / "s", s3_url(port, step)
    words = ("archive", store, "--to", url, "--keep-snapshots", 2)
    fill(store, 20)
    if step != "archive.after_identity":
        assert run(*words)[0] == 0
    fill(store, 20, snapshot=True)  # the tail that is there becomes a whole log, and goes
    with start(*words, LOGWEIR_FAILPOINTS=f"{step}=kill") as killed:
        killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    code, status, _ = run("archive", "status", url)
    assert (code, status["damage"]) == (int(step == "archive.after_identity"), [])
    assert run(*words)[0] == 0
    code, found, _ = run("archive", "drill", url, "--against", store)
    assert (code, found["tuples"]) == (0, 40)


def test_an_object_store_that_cannot_be_reached(port: int, tmp_path: Path) -> None:
    """A typed error with its name and no key; an archiver that follows tries again, and the store
    goes on meanwhile."""
    store = tmp_path / "s"
    fill(store, 20)
    with Valve(port) as valve:
        url = s3_url(valve.port, "far")
        follower = start(
            *("archive", store, "--to", url, "--follow", "--every", "0.05", "--json"),
        )
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["error"] == ""
        valve.target = 1  # nobody listens there
        valve.cut()
        fill(store, 20)
        told = json.loads(follower.stdout.readline())
        assert told["errors"] == 1
        assert "s3://bucket/far" in told["error"]
        assert "hidden-secret" not in told["error"]
        code, _, complaints = run("archive", "status", url)
        assert code == 4
        assert "s3://bucket/far" in complaints
        fill(store, 20)
        valve.target = port

        def has_gone_on() -> bool:
            assert follower.stdout is not None
            return not json.loads(follower.stdout.readline())["error"]

        until(has_gone_on, 120)
        until(lambda: run("archive", "status", url, "--against", store)[1]["lag"]["rows"] == 0, 120)
        follower.terminate()
        follower.communicate()
        assert follower.returncode == 0
        assert run("archive", "drill", url, "--against", store)[0] == 0
