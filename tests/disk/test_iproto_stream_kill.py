"""A server is killed in the middle of COMMITs of streams."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from subprocess import PIPE

import pytest
from support.nursery import LOGWEIR

import logweir
from interop.rawclient import RawClient

ROWS = 5
COMMITS = 200
PASSES = 20
STEPS = (
    "wal.before_write",
    "wal.after_write_before_sync",
    "wal.after_sync",
    "store.after_sync_before_publish",
    "store.after_publish",
)


def commit(client: RawClient, space: int, number: int) -> None:
    """One transaction of `ROWS` rows, two after the other in each of two streams."""
    stream = 1 + number % 2
    assert not client.ask(14, stream=stream).is_error
    for part in range(ROWS):
        body = {0x10: space, 0x21: [number * ROWS + part, number]}
        assert not client.ask(2, body, stream=stream).is_error
    assert not client.ask(15, stream=stream).is_error


@pytest.mark.kill
@pytest.mark.parametrize("step", STEPS)
def test_a_commit_is_whole_or_was_never_there(tmp_path: Path, step: str) -> None:
    """What was answered is there, one more may be, and none is there in part; what was only begun
    is not."""
    with logweir.open(tmp_path / "s") as log:
        log.create_space("t", [("id", "unsigned"), ("n", "unsigned")], primary=["id"])
        space = log.schema.space("t").id
    words = ["serve", str(tmp_path / "s"), "--listen", "tarantool://127.0.0.1:0"]
    words += ["--allow-guest", "all", "--json", "--quiet"]
    environment = {"LOGWEIR_FAILPOINTS": f"{step}=kill@{PASSES}"}
    answered = 0
    with LOGWEIR.begin(*words, stdout=PIPE, environment=environment) as process:
        assert process.stdout is not None
        port = int(json.loads(process.stdout.readline())["listen"][0].rpartition(":")[2])
        with RawClient(port) as client:
            client.ask(14, stream=9)
            client.ask(2, {0x10: space, 0x21: [10**9, 0]}, stream=9)
            with contextlib.suppress(EOFError, ConnectionError):
                for number in range(COMMITS):
                    commit(client, space, number)
                    answered += 1
    assert process.returncode == -signal.SIGKILL
    assert 5 < answered < COMMITS
    with logweir.open(tmp_path / "s") as log:
        found = [number for _, number in log.select("t")]
        assert len(found) // ROWS - answered in (0, 1)
        assert found == [number for number in range(len(found) // ROWS) for _ in range(ROWS)]
