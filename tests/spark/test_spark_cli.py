"""`logweir pipeline` as a program of its own: results, exit codes, errors in one line."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from samples import damaged, sample
from support.waiting import until
from typer.testing import CliRunner

import logweir
from logweir.tools.cli import pipeline as cli
from logweir.tools.cli.main import app

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT = "{http://www.w3.org/2000/svg}text"
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
    ]
    ran = run(tmp_path, "stats", folder, "--json", *words)
    assert ran.returncode == 0, ran.stderr
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


def test_a_table_that_stays_fresh_is_ended_by_a_signal(tmp_path: Path) -> None:
    """`cdc --every` has no other end: it tells what it did then."""
    with logweir.open(tmp_path / "data") as log:
        log.create_space("t", format=[("id", "unsigned")])
        log.insert("t", [1])
    program = "from logweir.tools.cli.main import run; run()"
    words = ["--to", "out", "--checkpoint", "cp", "--space", "t", "--every", "0.1"]
    words += ["--format", "json", "--master", "local[1]", "--plot", "batches.svg"]
    ran = subprocess.Popen(
        [sys.executable, "-c", program, "pipeline", "cdc", "data", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    with ran:
        until(lambda: (tmp_path / "cp" / "commits" / "0").exists(), 240)
        ran.terminate()
        told, errors = ran.communicate(timeout=120)
    assert (told, errors, ran.returncode) == ("out: 1 row in 1 batch\n", "", 0)
    assert (tmp_path / "batches.svg").read_bytes().startswith(b"<?xml")


INTERRUPTED = """
from logweir.tools.cli.pipeline import _session

with _session("local[1]", {}) as spark:
    try:
        print("begun", flush=True)
        spark._jvm.java.lang.Thread.sleep(600_000)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_ctrl_c_shows_no_traceback_of_spark(tmp_path: Path) -> None:
    """Wherever the job is."""
    ran = subprocess.Popen(
        [sys.executable, "-P", "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    with ran:
        assert ran.stdout is not None
        assert ran.stdout.readline() == "begun\n"
        until(
            lambda: Path(f"/proc/{ran.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
        )
        ran.send_signal(signal.SIGINT)
        told, errors = ran.communicate(timeout=120)
    assert (told, ran.returncode) == ("interrupted\n", 0)
    assert "Traceback" not in errors


@pytest.mark.leaves  # matplotlib keeps the files of its fonts open
def test_every_job_draws_what_it_counted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bar for each file, space or batch, with its name; results and exit codes are as ever."""
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    monkeypatch.setattr(cli, "_session", lambda *_: contextlib.nullcontext(spark))
    data, before = str(tmp_path / "data"), str(tmp_path / "before")
    for name in ("t", "u"):
        with logweir.open(data) as log:
            log.create_space(name, format=[("id", "unsigned"), ("text", "string")])
            log.append(name, [[number, name * 10] for number in range(30)], one_transaction=False)
        if name == "t":
            shutil.copytree(data, before)
            with logweir.open(data) as log:
                log.snapshot()
                log.delete("t", 5)
                log.replace("t", (6, "other"))
    to, checkpoint = str(tmp_path / "to"), str(tmp_path / "checkpoint")
    files = {path.name for path in Path(data).glob("*.[xs]*") if path.suffix != ".lock"}
    wanted: dict[str, tuple[list[str], int, set[str]]] = {
        "verify": ([data], 0, {"rows", "bytes", "whole", *files}),
        "verify --level crc": ([data], 0, {"blocks", "bytes", "whole", *files}),
        "compact": ([data, "--to", to], 0, {"rows", "rows read", "rows of the snapshot"}),
        "export": ([data, "--to", f"{to}-export"], 0, {"bytes"}),
        "cdc --option max_rows_per_batch=20": (
            [data, "--to", f"{to}-cdc", "--checkpoint", checkpoint, "--space", "t"],
            0,
            {"rows"},
        ),
        "state": ([data], 0, {"tuples", "bytes", "t", "u"}),
        "diff": ([before, data], 1, {"tuples", "t", "u", "added", "changed", "removed"}),
        "stats": ([data], 0, {"rows", "INSERT", "space 512, xlog", "space 512, snap"}),
    }
    for job, (words, code, texts) in wanted.items():
        picture = tmp_path / "a.svg"
        words = ["pipeline", *job.split(), *words, "--plot", str(picture)]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == code, (job, result.output)
        told = {one.text or "" for one in ElementTree.parse(picture).iter(TEXT)}
        assert texts <= told, (job, told)
        if job == "export":
            assert any(one.startswith("part-") for one in told)
        if job.startswith("cdc"):
            assert len([one for one in told if re.match(r"\d+, 20\d\d-", one)]) > 1
        picture.unlink()
