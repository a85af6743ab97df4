"""`logweir pipeline` as a program of its own: results, exit codes, errors in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from samples import damaged, sample

import logweir

pytestmark = pytest.mark.spark


def run(tmp_path: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run the program in an empty folder."""
    program = "from logweir.tools.cli.main import run; run()"
    return subprocess.run(
        [sys.executable, "-c", program, "pipeline", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
    )


def test_compact_tells_what_it_made(tmp_path: Path) -> None:
    """`compact --json` prints one object; stderr stays empty; the snapshot opens."""
    folder = sample("04-crashed").folder
    ran = run(tmp_path, "compact", folder, "--to", "new", "--json", "--master", "local[2]")
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["vclock"] == {"1": 174} or told["vclock"] == {"1": "174"}
    assert ran.stderr == ""
    with logweir.open(tmp_path / "new", create=False) as log:
        assert log.vclock.lsn(1) == 174


def test_damage_is_one_line_and_exit_code_3(tmp_path: Path) -> None:
    """A job over damaged files ends with the error, its place and a hint, no traceback."""
    folder = damaged("c-flipped-payload-byte").folder
    ran = run(tmp_path, "export", folder, "--to", "out", "--master", "local[1]")
    assert ran.returncode == 3
    (line,) = ran.stderr.strip().splitlines()
    assert "error" in line
    assert "at byte" in line
    assert not (tmp_path / "out").exists()


def test_a_picture_without_a_place_is_refused_before_spark(tmp_path: Path) -> None:
    """Of another job, too."""
    for words in (
        ["stats", tmp_path, "--plot", "rows.txt"],
        ["state", tmp_path, "--plot", "a.svg"],
    ):
        ran = run(tmp_path, *words)
        assert ran.returncode == 2, ran.stderr
        assert "--plot" in ran.stderr


def test_options_of_the_scan_and_of_spark_reach_them(tmp_path: Path) -> None:
    """`--option` leaves rows out, `--conf` says where Spark runs."""
    folder = sample("04-crashed").folder
    words = [
        "--option",
        "types=update",
        "--option",
        "kinds=xlog",
        "--conf",
        "spark.master=local[1]",
        "--plot",
        str(tmp_path / "rows.svg"),
    ]
    ran = run(tmp_path, "stats", folder, "--json", *words)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "rows.svg").read_text().startswith("<?xml")
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {(row["kind"], row["type_name"]) for row in rows} == {("xlog", "UPDATE")}


def test_a_stream_says_how_many_rows_it_took(tmp_path: Path) -> None:
    """`cdc --json`, of a stream that has taken nothing before, in several batches; numbers of a
    scale as `--decimals` says."""
    with logweir.open(tmp_path / "data") as log:
        log.create_space("t", format=[("id", "unsigned"), ("price", "decimal")])
        for number in range(40):
            log.insert("t", [number, Decimal(number) / 4])
    words = ["--to", "out", "--checkpoint", "cp", "--space", "t", "--format", "json"]
    words += ["--decimals", "2", "--option", "max_rows_per_batch=15", "--master", "local[1]"]
    ran = run(tmp_path, "cdc", "data", *words, "--json")
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert (told["rows"], told["batches"] > 2) == (40, True)
    text = "".join(part.read_text() for part in (tmp_path / "out").glob("part-*"))
    prices = {line.partition('"price":')[2].strip("}") for line in text.splitlines()}
    assert prices == {f"{number / 4:.2f}" for number in range(40)}
