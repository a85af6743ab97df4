"""Lines of the log: as text and as JSON, to stderr and into a file."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from logweir.tools.cli.logoptions import reopen_log, set_level, start_log
from logweir.tools.cli.output import Output
from logweir.wal.logs import get_logger

LOG = get_logger("logweir.test")


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    for one in root.handlers:
        one.close()
    root.handlers = handlers
    root.setLevel(level)


def test_lines_for_people(tmp_path: Path) -> None:
    """Time, level, event and fields."""
    start_log(Output(), "info", "text", tmp_path / "log")
    LOG.info("link.closed", peer="ä", count=3)
    LOG.debug("not.told")
    assert (tmp_path / "log").read_text().endswith(" INFO event='link.closed' peer='ä' count=3\n")
    assert (tmp_path / "log").read_text().count("\n") == 1


def test_lines_for_programs(tmp_path: Path) -> None:
    """One JSON object each, whatever the fields hold; messages of others are events, too."""
    start_log(Output(), "debug", "json", tmp_path / "log")
    LOG.warning("a.b", peer="\n\ud800", count=2**70, tls=True, path=Path("x"), level="mine")
    try:
        raise ValueError("bad")
    except ValueError as error:
        LOG.error("broke", exc_info=error)
        logging.getLogger("other").exception("it %s", "failed")
    lines = (tmp_path / "log").read_text().splitlines()
    event, broke, other = map(json.loads, lines)
    assert list(event)[:4] == ["time", "level", "logger", "event"]  # what people look for first
    assert datetime.fromisoformat(event.pop("time")).utcoffset() is not None
    assert event == {
        **{"level": "warning", "logger": "logweir.test", "event": "a.b"},
        **{"peer": "\n\ud800", "count": 2**70, "tls": True, "path": "x"},
    }
    assert (broke["event"], broke["exception"].splitlines()[-1]) == ("broke", "ValueError: bad")
    assert (other["event"], other["logger"], other["level"]) == ("it failed", "other", "error")
    assert "Traceback" in other["exception"]


def test_level_is_changed_and_quiet_means_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also while it runs; without a file it goes to stderr."""
    start_log(Output(), "error", "text", None)
    LOG.warning("one")
    set_level(Output(), "debug")
    LOG.debug("two")
    set_level(Output(quiet=True), "debug")
    LOG.info("three")
    LOG.warning("four")
    told = capsys.readouterr().err
    assert [name in told for name in ("one", "two", "three", "four")] == [False, True, False, True]


def test_reopened_file_is_a_new_one_and_a_bad_place_changes_nothing(tmp_path: Path) -> None:
    """As programs want it that put logs aside; lines go on into the old file until then."""
    folder = tmp_path / "logs"
    folder.mkdir()
    start_log(Output(), "info", "text", folder / "log")
    LOG.info("one")
    (folder / "log").rename(tmp_path / "old")
    LOG.info("two")
    folder.rmdir()
    with pytest.raises(FileNotFoundError):
        reopen_log()
    LOG.info("three")
    folder.mkdir()
    reopen_log()
    LOG.info("four")
    assert [name in (tmp_path / "old").read_text() for name in ("one", "two", "three")] == [
        True
    ] * 3
    assert (folder / "log").read_text().endswith("event='four'\n")
    assert (folder / "log").read_text().count("\n") == 1
