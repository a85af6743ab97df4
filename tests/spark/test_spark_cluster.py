"""Other places than a session of this process: clusters, a packaged Java, Spark Connect."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from spark.feeding import fill

import logweir
from logweir import pipeline

pytestmark = pytest.mark.spark

JOB = Path(__file__).with_name("cluster_job.py")
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.sql.shuffle.partitions": "2",
}


def ids(folder: Path) -> list[int]:
    """The first fields of all tuples of space 512 in a folder's logs."""
    values = [row.decoded() for row in logweir.read(folder)]
    return [one["tuple"][0] for one in values if one.get("space_id") == 512]


def environment(**changed: str | None) -> dict[str, str]:
    """This process's, with nothing in it that says where the package is."""
    environ = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    environ.pop("PYTHONPATH", None)
    for name, value in changed.items():
        environ.pop(name, None)
        if value is not None:
            environ[name] = value
    return environ


def run(program: list[str], folder: Path, environ: dict[str, str]) -> Any:
    """Run a program in `folder`; what its last line says."""
    ran = subprocess.run(
        program, cwd=folder, env=environ, capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.strip().splitlines()[-1])


def submitted(master: str, folder: Path, what: str, **settings: str) -> Any:
    """What `cluster_job.py` says, run by `spark-submit`; from `folder`/from to `folder`/to."""
    import pyspark

    program = str(Path(pyspark.__file__).with_name("bin") / "spark-submit")
    words = [program, "--master", master, "--py-files", str(folder / "logweir.zip")]
    for name, value in {**SETTINGS, **settings}.items():
        words += ["--conf", f"{name}={value}"]
    words += [str(JOB), str(folder / "from"), str(folder / "to"), what]
    return run(words, folder, environment())


@contextmanager
def started(words: list[str], wanted: str, log: Path) -> Iterator[re.Match[str]]:
    """A program that runs while the body does; what it says of itself, once it does."""
    process = subprocess.Popen(
        words, env=environment(SPARK_NO_DAEMONIZE="1"), stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        with open(log, "w") as kept:
            for line in process.stderr:
                kept.write(line)
                if found := re.search(wanted, line):
                    break
            else:
                pytest.fail(f"{words} ended: {log.read_text()[-2000:]}")
        yield found
    finally:
        process.kill()
        process.communicate()


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A master and two workers under two addresses: Spark makes no second copy of a task on the
    host that has the first."""
    import pyspark

    class_of = str(Path(pyspark.__file__).with_name("bin") / "spark-class")
    deploy = "org.apache.spark.deploy"
    ends = ["--port", "0", "--webui-port", "0"]
    with ExitStack() as running:
        master = running.enter_context(
            started(
                [class_of, f"{deploy}.master.Master", "--host", "127.0.0.1", *ends],
                r"Starting Spark master at (spark://\S+)",
                folder / "master.log",
            )
        )[1]
        for host in ("127.0.0.1", "127.0.0.2"):
            words = [class_of, f"{deploy}.worker.Worker", "--host", host, *ends]
            words += ["--cores", "1", "--memory", "768m", "--work-dir", str(folder / host), master]
            running.enter_context(
                started(words, "Successfully registered with master", folder / f"{host}.log")
            )
        yield master


def test_a_cluster_without_the_package_runs_the_jobs(tmp_path: Path) -> None:
    """`spark-submit --py-files` on two executors: their tasks import the package from the zip
    file, and read, write, follow, check and compact with it."""
    fill(tmp_path / "from", 0, 60)
    pipeline.py_files(tmp_path / "logweir.zip")
    told = submitted("local-cluster[2,1,1024]", tmp_path, "jobs")
    assert all(file.endswith("logweir.zip/logweir/__init__.py") for file in told["files"])
    assert told["partitions"] > 1
    assert told["verified"]
    assert sorted(ids(tmp_path / "to" / "log")) == list(range(60))
    assert sorted(ids(tmp_path / "to" / "stream")) == list(range(60))
    with logweir.open(tmp_path / "to" / "snap", create=False) as log:
        assert [row[0] for row in log.select("t")] == list(range(60))


def test_a_speculative_copy_of_a_task_doubles_nothing(tmp_path: Path) -> None:
    """A task hangs when it has read its rows; Spark runs a copy on the other host, takes its part
    and kills the first: every row is published once, and no staging is left."""
    fill(tmp_path / "from", 0, 60)
    pipeline.py_files(tmp_path / "logweir.zip")
    with standalone(tmp_path) as master:
        told = submitted(
            master,
            tmp_path,
            "slow",
            **{
                "spark.speculation": "true",
                "spark.speculation.interval": "50ms",
                "spark.speculation.minTaskRuntime": "200ms",
                "spark.speculation.quantile": "0.3",
            },
        )
    assert told["partitions"] > 2
    assert told["seconds"] < 100  # what the first attempt waits for
    assert sorted(ids(tmp_path / "to")) == list(range(60))
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == [
        "00000000000000000000.xlog",
        "logweir.lock",
    ]
