"""`logweir pipeline`: what is told before Spark is started."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from logweir.tools.cli.main import app, load_command
from logweir.tools.cli.pipeline import TOPICS


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["compact", "."], "--to"),
        (["cdc", ".", "--to", "x"], "--checkpoint"),
        (["state", ".", "--at-time", "2026-01-01", "--at-vclock", "{1: 5}"], "--at-time"),
        (["fly", "."], "JOB"),
        (["stats", ".", "--conf", "executor.memory=4g"], "begin with spark."),
        (["stats", ".", "--option", "types"], "KEY=VALUE"),
        (["stats", ".", "--option", "colour=red"], "colour"),
        (["stats", ".", "--option", "space=t"], "space"),
        (["state", ".", "--option", "types=insert"], "--option"),
        (["export", ".", "--to", "x", "--what", "state", "--option", "types=insert"], "--option"),
        (["export", ".", "--to", "x", "--mirror"], "--mirror"),
        (["verify", ".", "--at-time", "2026-01-01"], "it is for compact, export, state, diff"),
        (["stats", ".", "--format", "parquet"], "is not for stats"),
        (["cdc", ".", "--to", "x", "--checkpoint", "c", "--mirror"], "--space"),
    ],
)
def test_wrong_usage_is_told_before_spark_starts(words: list[str], complaint: str) -> None:
    """What is missing, or is another job's, is named, with exit code 2."""
    result = CliRunner().invoke(app, ["pipeline", *words])
    assert result.exit_code == 2
    assert complaint in result.output


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
