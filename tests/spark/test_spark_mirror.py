"""`cdc` as a mirror: a Delta table that has what the space has."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import fs
from spark.feeding import forget_last_commit, thaw
from spark.test_spark_kill import killed
from support.objectstore import object_store, s3_url
from support.waiting import until

import logweir
from logweir import pipeline
from logweir.errors import ConfigError
from logweir.pipeline.jobs.delta import DeltaPlace
from logweir.wal import failpoint
from logweir.wal.mp import unpack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

deltalake = pytest.importorskip("deltalake")

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FORMAT = [
    ("Id", "unsigned"),
    ("n", "integer"),
    {"name": "S.`s", "type": "any", "is_nullable": True},
]


def change(folder: Path, seed: int, count: int) -> None:
    """Change rows in all ways, few keys again and again."""
    pick = random.Random(seed)
    with logweir.open(folder) as log:
        if "t" not in [space.name for space in log.schema]:
            log.create_space("t", format=FORMAT)
            log.create_space("other")
        for _ in range(count):
            key, kind = pick.randrange(40), pick.randrange(10)
            if kind < 4:
                log.replace("t", [key, pick.randrange(9), *["x", None, [1]][: pick.randrange(4)]])
            elif kind < 6:
                log.update("t", key, [("+", 1, 1), ("=", -1, pick.randrange(5))])
            elif kind < 8:
                log.upsert("t", [key, 1], [("+", 1, 10)])
            else:
                log.delete("t", key)
            log.replace("other", [key])


def truncate(folder: Path) -> None:
    with logweir.open(folder) as log:
        log.truncate("t")


def wanted(folder: Path) -> list[Any]:
    with logweir.open(folder, create=False) as log:
        return sorted(list(one) for one in log.select("t"))


def shown(table: Path | str) -> list[Any]:
    rows = DeltaPlace(str(table)).table().to_pyarrow_table().to_pylist()
    found = sorted((unpack(row["_tuple"]) for row in rows), key=lambda one: one[0])
    columns = sorted((int(row["Id"]), int(row["n"]), row["S.`s"], row["_rest"]) for row in rows)
    assert columns == [
        (
            *one[:2],
            json.dumps(one[2]) if one[2:3] not in ([], [None]) else None,
            json.dumps({str(n): value for n, value in enumerate(one[3:], 3)}) if one[3:] else None,
        )
        for one in found
    ]
    return found


def follow(spark: SparkSession, folder: Path, checkpoint: str = "c", **options: Any) -> None:
    given = {"to": folder.with_name("to"), "format": "delta", "space": "t", "mirror": True}
    kept = folder.parent / checkpoint
    pipeline.cdc(spark, folder, checkpoint=kept, **{**given, **options}).awaitTermination()


def test_a_mirror_has_what_the_space_has(spark: SparkSession, tmp_path: Path) -> None:
    """Begun with a state, then updates, upserts, deletes and a truncation in batches of few rows,
    with a batch that is repeated."""
    folder, table = tmp_path / "from", tmp_path / "to"
    change(folder, 1, 150)
    with logweir.open(folder) as log:
        log.snapshot()
    follow(spark, folder)
    assert shown(table) == wanted(folder)
    change(folder, 2, 250)
    follow(spark, folder, max_rows_per_batch=300)
    assert shown(table) == wanted(folder)
    version = deltalake.DeltaTable(str(table)).version()
    forget_last_commit(tmp_path / "c")
    follow(spark, folder, max_rows_per_batch=300)
    assert deltalake.DeltaTable(str(table)).version() == version
    change(folder, 3, 20)
    truncate(folder)
    change(folder, 4, 25)
    follow(spark, folder)
    assert shown(table) == wanted(folder)
    with pytest.raises(ConfigError, match="another checkpoint"):
        follow(spark, folder, "d")
    with pytest.raises(ConfigError, match="mirror"):
        follow(spark, folder, format="parquet")
    with pytest.raises(ConfigError, match="spaces"):
        follow(spark, folder, spaces="other")
    assert shown(table) == wanted(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "from", "to"]


def test_tables_in_an_object_store_grow_and_stay_fresh(spark: SparkSession, tmp_path: Path) -> None:
    """A mirror and a table of changes, through a failure in front of each transaction, and with a
    batch that is repeated: each has what it has to have, once."""
    pytest.importorskip("moto.server")
    folder = tmp_path / "from"

    def fail() -> None:
        raise RuntimeError("failed here")

    with object_store() as port:
        kinds = {"mirror": "mirror.before_table", "changes": "delta.before_commit"}
        urls = {name: s3_url(port, name) for name in kinds}

        def run(name: str) -> None:
            follow(spark, folder, name, to=urls[name], mirror=name == "mirror")

        for seed in (1, 2):
            change(folder, seed, 60)
            for name, place in kinds.items():
                if seed == 1 or name == "mirror":
                    failpoint.arm(place, fail)
                    try:
                        with pytest.raises(Exception, match="failed here"):
                            run(name)
                    finally:
                        failpoint.disarm()
                    assert (DeltaPlace(urls[name]).table() is not None) == (seed == 2)
                run(name)
                kinds[name] = place.replace("table", "merge")
            forget_last_commit(tmp_path / list(kinds)[seed - 1])
            run(list(kinds)[seed - 1])
            assert shown(urls["mirror"]) == wanted(folder)
            found = DeltaPlace(urls["changes"]).table().to_pyarrow_table()["lsn"].to_pylist()
            there = pipeline.batches(folder, space="t", columns=["lsn"]).read_all()["lsn"]
            assert sorted(found) == sorted(there.to_pylist())
        store, root = DeltaPlace(urls["mirror"]).arrow()
        stage = store.get_file_info(f"{root}/_logweir-stage")
        assert stage.type == fs.FileType.NotFound


@pytest.mark.kill
@pytest.mark.timeout(500)
def test_a_mirror_survives_a_killed_driver_at_every_step(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Killed before and after the table appears, before and after a merge of what came meanwhile:
    begun again it has what the space has, and each merge was made once."""
    job, kept = tmp_path / "job", tmp_path / "kept"
    folder, table = tmp_path / "from", job / "to"
    words = ["-c", "from logweir.tools.cli.main import run; run()", "pipeline", "cdc", str(folder)]
    words += ["--to", str(table), "--checkpoint", str(job / "c"), "--space", "t", "--mirror"]
    words += ["--every", "0.1", "--master", "local[1]"]
    versions = []
    *places, last = (
        f"mirror.{when}_{step}" for step in ("table", "merge") for when in ("before", "after")
    )
    told = {"FREEZE": str(job), "FREEZE_TO": str(kept), "FREEZE_AT": ",".join(places)}

    def go_on() -> None:
        until((kept / places[1]).exists, 240)
        change(folder, 2, 40)

    change(folder, 1, 40)
    killed(words, tmp_path, last, go_on, **told)
    shutil.copytree(job, kept / last)
    for place in (*places, last):
        thaw(kept / place, job)
        there = deltalake.DeltaTable.is_deltatable(str(table))
        versions.append(deltalake.DeltaTable(str(table)).version() if there else None)
        assert (table / "_logweir-stage").is_dir() == place.endswith("merge")
        follow(spark, folder, "job/c", to=table)
        assert shown(table) == wanted(folder)
        assert sorted(path.name for path in job.iterdir()) == ["c", "to"]
        versions.append(deltalake.DeltaTable(str(table)).version())
    assert versions == [None, 0, 0, 1, 0, 1, 1, 1]
