"""The last errors of the log in a server's status, and what it tells of spaces and old logs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import logweir
from logweir.limits import RECENT_ERRORS, RECENT_TEXT_CHARACTERS
from logweir.replication.logs import get_logger
from logweir.replication.recent import _HINTS, RecentErrors
from logweir.wal.lease import leased

ROOT = Path(__file__).resolve().parents[2]
LOG = get_logger("logweir.replication")


@pytest.fixture
def recent() -> Iterator[RecentErrors]:
    """One that listens."""
    made = RecentErrors()
    made.begin()
    yield made
    made.end()


def test_warnings_and_errors_are_told_with_what_to_do(recent: RecentErrors) -> None:
    """The newest first; what is no warning is not; a hint of its own takes precedence."""
    LOG.info("link.closed", peer="p")
    LOG.warning("source.waiting", url="tank://h:1", reason="refused", seconds=1.5)
    LOG.error("odd", name="n", error="e", hint="do this")
    try:
        raise ValueError("inside")
    except ValueError as error:
        LOG.error("link.failed", peer="p:1", exc_info=error)
    failed, odd, waiting = recent.status()
    assert (failed["level"], failed["where"], failed["why"]) == (
        "error",
        "p:1",
        "ValueError: inside",
    )
    assert (odd["event"], odd["where"], odd["why"], odd["hint"]) == ("odd", "n", "e", "do this")
    assert (waiting["level"], waiting["where"], waiting["why"], waiting["times"]) == (
        "warning",
        "tank://h:1",
        "refused",
        1,
    )
    assert "address" in waiting["hint"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", waiting["time"])
    LOG.error("bare")
    assert (recent.status()[0]["where"], recent.status()[0]["why"]) == ("", "")
    recent.end()
    LOG.error("later")
    assert len(recent.status()) == 4


def test_what_is_kept_is_bounded(recent: RecentErrors) -> None:
    """The same again counts; of many the last ones are there; long texts are cut."""
    for _ in range(3):
        LOG.warning("login.failed", peer="p", user="u")
    (one,) = recent.status()
    assert one["times"] == 3
    for number in range(RECENT_ERRORS + 7):
        LOG.warning("source.waiting", url=f"u{number}", reason="x" * 10_000)
    told = recent.status()
    assert len(told) == RECENT_ERRORS
    assert told[0]["where"] == f"u{RECENT_ERRORS + 6}"
    assert len(told[0]["why"]) == RECENT_TEXT_CHARACTERS


def test_hints_are_of_events_that_there_are() -> None:
    """Every event that has advice stands in the code of the server."""
    code = "".join(path.read_text() for path in (ROOT / "replication").rglob("*.py"))
    code += (ROOT / "tools" / "cli" / "reload.py").read_text()
    own = (ROOT / "replication" / "recent.py").read_text()
    others = code.replace(own, "")
    assert [name for name in _HINTS if f'"{name}"' not in others] == []


def test_spaces_and_their_bytes_are_told(tmp_path: Path) -> None:
    """Engine, tuples, indexes, and bytes once they are in the state."""
    with logweir.open(tmp_path) as log:
        log.create_space("t", indexes={"second": {"parts": [2], "unique": False}})
        for number in range(500):
            log.insert("t", (number, "x" * 200, number))
        log.snapshot()
        status = log.status()
        (space,) = status["space_details"]
        assert (space["id"], space["name"], space["engine"]) == (512, "t", "memtx")
        assert space["indexes"] == ["primary", "second"]
        assert (space["tuples"], status["spaces"]) == (500, {"t": 500})
    with logweir.open(tmp_path) as log:
        (space,) = log.inner.holdings()
        assert 500 * 200 < space["bytes"] < 500 * 200 * 4
        assert log.inner.progress().items() <= log.status().items()


def test_who_keeps_old_logs_is_told(tmp_path: Path) -> None:
    """Followers and processes, with bytes that no snapshot needs; who keeps most comes first."""
    with logweir.open(tmp_path) as log:
        log.create_space("t")
        log.retain("late", log.vclock)
        sizes = []
        for number in range(4):
            log.insert("t", (number, "x" * 1000))
            log.snapshot()
            sizes.append(log.inner.pinned_bytes()["late"])
        log.retain("here", log.vclock)
        with leased(tmp_path):
            keepers = log.status()["log_keepers"]
        assert [(one["kind"], one["name"]) for one in keepers[:1]] == [("follower", "late")]
        late = keepers[0]
        assert late["bytes"] == sizes[-1] > 2000
        assert (tmp_path / late["oldest_log"]).is_file()
        assert 0.0 <= late["age_seconds"] < 3600.0
        here = next(one for one in keepers if one["name"] == "here")
        assert (here["bytes"], here["oldest_log"], here["age_seconds"]) == (0, None, None)
        if sys.platform == "linux":
            (reader,) = [one for one in keepers if one["kind"] == "process"]
            assert (reader["name"], reader["bytes"]) == (str(os.getpid()), late["bytes"])
        log.release("late")
        assert log.status()["log_keepers"][0]["bytes"] == 0
