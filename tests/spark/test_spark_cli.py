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


COMMANDS = """
import json, os, sys
from logweir.tools.cli.main import run
from logweir.tools.cli.pipeline import _session

for name, words in json.loads(sys.argv[1]).items():
    sys.argv = ["logweir", "pipeline", *words]
    kept = os.dup(1), os.dup(2)
    for number, kind in enumerate(("out", "err"), 1):
        os.dup2(os.open(f"{name}.{kind}", os.O_WRONLY | os.O_CREAT), number)
    code = 0
    try:
        run()
    except SystemExit as end:
        code = end.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    for number, one in enumerate(kept, 1):
        os.dup2(one, number)
        os.close(one)
    with open(f"{name}.code", "w") as file:
        file.write(str(code))

with _session("local[1]", {}) as spark:
    try:
        print("begun", flush=True)
        spark._jvm.java.lang.Thread.sleep(600_000)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""
"""Runs commands as the program does, one after the other, and in the end what one does that takes
long: a Java takes longer to start than any of them."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which commands have run: of each what it printed, and its exit code. One is
    ended by a signal, and the program at last by Ctrl-C."""
    folder = tmp_path_factory.mktemp("commands")
    crashed, broken = sample("04-crashed").folder, damaged("c-flipped-payload-byte").folder
    with logweir.open(folder / "data") as log:
        log.create_space("t", format=[("id", "unsigned"), ("price", "decimal")])
        for number in range(40):
            log.insert("t", [number, Decimal(number) / 4])
    stats = ["stats", crashed, "--json", "--option", "types=update", "--option", "kinds=xlog"]
    stream = ["cdc", "data", "--to", "out-cdc", "--checkpoint", "cp", "--space", "t", "--json"]
    stream += ["--format", "json", "--decimals", "2", "--option", "max_rows_per_batch=15"]
    commands: dict[str, list[object]] = {
        "compact": ["compact", crashed, "--to", "new", "--json", "--master", "local[2]"],
        "damage": ["export", broken, "--to", "out", "--master", "local[1]"],
        "stats": [*stats, "--conf", "spark.master=local[1]"],
        "cdc": [*stream, "--master", "local[1]"],
        "empty": ["verify", "data", "nothing", "--master", "local[1]"],
    }
    (folder / "nothing").mkdir()
    commands["fresh"] = ["cdc", "data", "--to", "out-fresh", "--checkpoint", "cp-fresh"]
    commands["fresh"] += ["--space", "t", "--every", "0.1", "--format", "json"]
    commands["fresh"] += ["--master", "local[1]", "--plot", "batches.svg"]
    given = json.dumps({name: [*map(str, words)] for name, words in commands.items()})
    program = subprocess.Popen(
        [sys.executable, "-P", "-c", COMMANDS, given],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    with program:
        assert program.stdout is not None
        fresh, state = folder / "cp-fresh" / "commits" / "0", Path(f"/proc/{program.pid}/stat")
        until(lambda: fresh.exists() or program.poll() is not None, 400)
        program.terminate()
        if begun := program.stdout.readline():
            until(lambda: state.read_text().rpartition(")")[2].split()[0] == "S")
            program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=120)
    for kind, text in (("out", begun + out), ("err", err), ("code", str(program.returncode))):
        (folder / f"interrupted.{kind}").write_text(text)
    return folder


def told(folder: Path, name: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    code, out, err = ((folder / f"{name}.{kind}").read_text() for kind in ("code", "out", "err"))
    return int(code), out, err


def test_compact_tells_what_it_made(ran: Path) -> None:
    """`compact --json` prints one object; stderr stays empty; the snapshot opens."""
    code, out, err = told(ran, "compact")
    assert (code, err) == (0, "")
    assert json.loads(out)["vclock"] in ({"1": 174}, {"1": "174"})
    with logweir.open(ran / "new", create=False) as log:
        assert log.vclock.lsn(1) == 174


def test_damage_is_one_line_and_exit_code_3(ran: Path) -> None:
    """A job over damaged files ends with the error, its place and a hint, no traceback."""
    code, _, err = told(ran, "damage")
    assert code == 3
    (line,) = err.strip().splitlines()
    assert "error" in line
    assert "at byte" in line
    assert not (ran / "out").exists()


def test_a_folder_with_nothing_in_it_is_not_whole(ran: Path) -> None:
    """As `logweir verify` says: it may be a disk that is not mounted."""
    code, out, err = told(ran, "empty")
    assert (code, out) == (1, "")
    assert "nothing: there is no snapshot and no log in the folder" in err


def test_options_of_the_scan_and_of_spark_reach_them(ran: Path) -> None:
    """`--option` leaves rows out, `--conf` says where Spark runs."""
    code, out, err = told(ran, "stats")
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert {(row["kind"], row["type_name"]) for row in rows} == {("xlog", "UPDATE")}


def test_a_stream_says_how_many_rows_it_took(ran: Path) -> None:
    """`cdc --json`, of a stream that has taken nothing before, in several batches; numbers of a
    scale as `--decimals` says."""
    code, out, err = told(ran, "cdc")
    assert code == 0, err
    found = json.loads(out)
    assert (found["rows"], found["batches"] > 2) == (40, True)
    text = "".join(part.read_text() for part in (ran / "out-cdc").glob("part-*"))
    prices = {line.partition('"price":')[2].strip("}") for line in text.splitlines()}
    assert prices == {f"{number / 4:.2f}" for number in range(40)}


def test_a_table_that_stays_fresh_is_ended_by_a_signal(ran: Path) -> None:
    """`cdc --every` has no other end: it tells what it did then."""
    assert told(ran, "fresh") == (0, "out-fresh: 40 rows in 1 batch\n", "")
    assert (ran / "batches.svg").read_bytes().startswith(b"<?xml")


def test_ctrl_c_shows_no_traceback_of_spark(ran: Path) -> None:
    """Wherever the job is. PySpark may warn that it could not end Java in order."""
    code, out, err = told(ran, "interrupted")
    assert (code, out) == (0, "begun\ninterrupted\n")
    assert "Traceback" not in err


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
