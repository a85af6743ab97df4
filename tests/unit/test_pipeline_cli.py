"""`logweir pipeline`: what is told before Spark is started."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.places import mounted, remount_read_only
from typer.testing import CliRunner

from logweir.tools.cli import output
from logweir.tools.cli.jobbar import Batch, share_done, thin
from logweir.tools.cli.jobtopics import TOPICS
from logweir.tools.cli.main import app, load_command
from logweir.tools.cli.output import Output


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["compact", "."], "--to"),
        (["cdc", ".", "--to", "x"], "--checkpoint"),
        (["state", ".", "--at-time", "2026-01-01", "--at-vclock", "{1: 5}"], "--at-time"),
        (["fly", "."], "JOB"),
        (["verify", "no/such/folder"], "no such file or directory"),
        (["stats", ".", "--conf", "executor.memory=4g"], "begin with spark."),
        (["stats", ".", "--option", "types"], "KEY=VALUE"),
        (["import", ".", "--to", "x", "--space", "t", "--field", "m"], "KEY:VALUE"),
        (["stats", ".", "--option", "colour=red"], "colour"),
        (["stats", ".", "--option", "space=t"], "space"),
        (["state", ".", "--option", "types=insert"], "--option"),
        (["export", ".", "--to", "x", "--what", "state", "--option", "types=insert"], "--option"),
        (["export", ".", "--to", "x", "--mirror"], "--mirror"),
        (["verify", ".", "--at-time", "2026-01-01"], "it is for compact, export, state, diff"),
        (["stats", ".", "--format", "parquet"], "is not for stats"),
        (["export", ".", "--to", "x", "--decimals", "39"], "--decimals"),
        (["export", ".", "--to", "x", "--option", "decimals=2"], "decimals is given by"),
        (["cdc", ".", "--to", "x", "--checkpoint", "c", "--mirror"], "--space"),
        (["verify", ".", "--plot", "rows.txt"], "is no picture's name"),
        (["diff", ".", ".", "--plot", "no/such/folder/a.png"], "there is no folder"),
        (["import", ".", "--to", "x", "--space", "t", "--plot", "a.png"], "is not for import"),
    ],
)
def test_wrong_usage_is_told_before_spark_starts(words: list[str], complaint: str) -> None:
    """What is missing, or is another job's, is named, with exit code 2."""
    result = CliRunner().invoke(app, ["pipeline", *words])
    assert result.exit_code == 2
    assert complaint in result.output


def test_a_library_that_is_missing_is_told_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of tables of Delta: a Java that starts for nothing takes a while."""
    monkeypatch.setitem(sys.modules, "deltalake", None)
    for words in (["cdc", ".", "--checkpoint", "c", "--space", "t", "--mirror"], ["export", "."]):
        words += [] if "--mirror" in words else ["--format", "delta"]
        result = CliRunner().invoke(app, ["pipeline", *words, "--to", "x", "--master", "no-spark"])
        assert result.exit_code == 2
        assert "pip install deltalake" in " ".join(result.output.split())


def test_a_picture_that_cannot_be_written_is_told_before_spark_starts(tmp_path: Path) -> None:
    """A folder of that name; a disk that is read only."""
    (tmp_path / "a.png").mkdir()
    with mounted(tmp_path / "disk", 1 << 20) as disk:
        remount_read_only(disk)
        for picture in (tmp_path / "a.png", disk / "b.svg"):
            result = CliRunner().invoke(app, ["pipeline", "state", ".", "--plot", str(picture)])
            assert result.exit_code == 2
            assert "cannot be written" in " ".join(result.output.split())


@pytest.mark.parametrize("job", list(TOPICS))
def test_help_of_a_job_tells_of_it_alone(job: str) -> None:
    """What it does, an example that can be copied, and no option of others."""
    topic = TOPICS[job]
    shown = CliRunner().invoke(app, ["pipeline", job, "--help"]).output
    assert shown.startswith(f"Usage: logweir pipeline {job} [OPTIONS] PATH...")
    assert f"  logweir {topic.example}\n" in shown
    tables = shown.partition("Arguments:")[2]
    command = load_command("pipeline")
    others = {name for one in TOPICS.values() for name in one.options} - set(topic.options)
    told = set(re.findall(r"^ {2}(?:-\w, )?(--[\w-]+)", tables, re.M)) - {"--help"}
    options = [one for one in command.params if one.param_type_name == "option"]
    assert told == {one.opts[0] for one in options if one.name not in others} - {"--help"}
    words = topic.example.split()[1:]
    assert command.make_context("logweir pipeline", words).params["job"] == job


class _Stderr(io.StringIO):
    """Where messages go, a terminal or none."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_tells_rows_a_second_and_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    """On a terminal; by the clock since the stage began, anew where another one begins; elsewhere
    nothing is written."""
    clock = [0.0]
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    shown = _Stderr(is_terminal)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("COLUMNS", "120")
    with Output().progress("Exporting", 100) as advance:
        for now, done, rows in ((2, 10, 3000), (4, 50, 8000), (10, 5, 100), (12, 20, 1000)):
            clock[0] = now
            advance(done, rows)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.getvalue())
    wanted = r"Exporting .* 20% [-\d]+:[-\d]+:[-\d]+ 1,000 rows, 500/s"
    assert re.search(wanted, text) if is_terminal else text == ""
    assert ("8,000 rows, 4,000/s" in text) == is_terminal  # not from when it was planned on


def test_a_stream_is_as_far_as_its_offsets_say() -> None:
    """From where its first batch began to where the log ends, in hundredths; nothing is known of a
    log whose end was not told."""

    def batch(start: int | None, here: int | None, end: int | None) -> SimpleNamespace:
        texts = [
            None if lsn is None else f'{{"vclock": {{"1": {lsn}}}}}' for lsn in (start, here, end)
        ]
        names = ("startOffset", "endOffset", "latestOffset")
        return SimpleNamespace(sources=[SimpleNamespace(**dict(zip(names, texts, strict=True)))])

    first = batch(100, 150, 300)
    assert share_done(first, first) == 25
    assert share_done(first, batch(150, 250, 300)) == 75
    assert share_done(batch(None, 50, 100), batch(50, 100, 100)) == 100
    assert share_done(first, batch(150, 250, None)) == 100
    assert share_done(first, batch(150, None, 300)) == 0
    unknown = SimpleNamespace(startOffset="null", endOffset="null", latestOffset="null")
    assert share_done(SimpleNamespace(sources=[unknown]), batch(None, 50, 100)) == 50


def test_a_stream_of_many_batches_is_told_in_few_entries() -> None:
    """Those of long ago together; their rows and their number are as they were."""
    seen: dict[int, Batch] = {}
    for number in range(3_000):
        seen |= {one: Batch(f"{one}", one) for one in range(max(0, number - 99), number + 1)}
        thin(seen)
        assert len(seen) <= 1000
    assert [*seen] == sorted(seen)
    assert sum(one.batches for one in seen.values()) == 3_000
    assert sum(one.rows for one in seen.values()) == sum(range(3_000))
    assert {number: one.batches for number, one in seen.items() if one.batches == 1}.keys() >= {
        *range(2_800, 3_000)
    }
    assert all(one.time == str(number) for number, one in seen.items())
