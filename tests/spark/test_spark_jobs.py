"""The jobs on a real Spark session, next to the plain reader, recovery and a real Tarantool."""

from __future__ import annotations

import csv
import json
import os
import shutil
import socket
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import dataset
from samples import damaged, sample
from support.icu import needs_icu

import logweir
from interop.realtarantool import RealTarantool
from logweir import pipeline
from logweir.errors import (
    ChainGap,
    ConfigError,
    CorruptBlock,
    CorruptFile,
    DecodeError,
    LogweirError,
    PositionUnavailable,
    RequestError,
    WalError,
)
from logweir.pipeline.jobs.compact import STAGE
from logweir.pipeline.jobs.folding import looking, prepare
from logweir.pipeline.jobs.work import rows_under_way, typed_errors, watched
from logweir.recovery import examine, restore
from logweir.store.recover.compare import compare_states
from logweir.wal.failpoint import arm, disarm
from logweir.wal.mp import unpack
from logweir.wal.reader import WalReader, read_meta
from logweir.wal.render import row_line
from logweir.wal.xrow import decode_body

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
OPTIONS: Any = {"checkpoint_interval": 0, "checkpoint_count": 9, "durability": "write"}


def differences(first: Path, second: Path, scratch: Path) -> list[Any]:
    """What the plain comparison finds between two states."""
    scratch.mkdir()
    return list(compare_states(first, second, scratch))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with a snapshot in the middle of its changes."""
    path = tmp_path / "data"
    with logweir.open(path, **OPTIONS) as log:
        fields: list[Any] = [("id", "unsigned"), ("name", "string"), ("price", "decimal")]
        fields += [("big", "unsigned"), {"name": "extra", "type": "any", "is_nullable": True}]
        log.create_space("goods", format=fields)
        log.create_space("counts", format=[("s", "string"), ("n", "integer")], primary=["s"])
        for n in range(100):
            log.insert("goods", [n, f"good {n}", Decimal("1.10"), 2**64 - 1 - n])
        log.snapshot()
        for n in range(0, 100, 3):
            log.update("goods", n, [("=", "name", "changed"), ("=", 4, {"a": [n]})])
            log.upsert("counts", [f"k{n % 5}", 1], [("+", 1, 1)])
        for n in range(0, 100, 7):
            log.delete("goods", n)
    return path


def test_rows_are_counted_while_a_job_runs(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """Those of the tasks that are over, as long as another one is under way."""
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    counts: list[int] = []
    opened: list[int] = []

    def told(done: int, total: int) -> None:
        assert done <= total
        counts.append(rows_under_way(spark))
        if (counts[-1] or len(counts) > 200) and not opened:
            opened.append(os.open(gate, os.O_RDWR))

    def wait(batches: Any) -> Any:
        for batch in batches:
            if batch.column("lsn")[0].as_py() > 1:
                open(gate, "rb").close()  # until `told` has seen rows
            yield batch

    rows = pipeline.scan(spark, folder, kinds="xlog", split_bytes=1000)
    assert rows.rdd.getNumPartitions() > 2
    with watched(spark, told):
        count = rows.mapInArrow(wait, rows.schema).count()
    os.close(opened[0])
    assert 0 < max(counts) <= count
    assert rows_under_way(spark) == 0


# --- compact --------------------------------------------------------------------------------------


@needs_icu
@pytest.mark.tarantool
def test_a_real_tarantool_boots_from_a_compacted_snapshot(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its spaces hold what the program held that wrote the logs: every type of key, local spaces,
    sequences, collations; and it goes on from there."""
    wanted = sample("02-spaces")
    done = pipeline.compact(spark, wanted.folder, tmp_path / "new", parts=3)
    assert done.vclock == wanted.vclock
    with RealTarantool(tmp_path / "new", listen=None) as server:
        for space_id, tuples in wanted.spaces.items():
            code = "local out = {} for _, t in box.space[...]:pairs() do out[#out + 1] = t end "
            code += "return out"
            (found,) = server.eval(code, [space_id])
            if space_id not in (272, 320) and space_id in wanted.space_names:
                assert sorted(map(repr, found)) == sorted(repr(unpack(t)) for t in tuples)
        (vclock,) = server.eval("return box.info.vclock")
        assert server.eval("return box.info.ro")
        assert vclock
    assert examine(tmp_path / "new").ok


@pytest.mark.parametrize("name", ["01-fresh", "03-replicaset/instance-2", "04-crashed"])
def test_compacted_samples_equal_the_folders(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Nothing differs between a folder as opened and the snapshot made of it; it is whole."""
    folder = sample(name).folder
    done = pipeline.compact(spark, [folder], tmp_path / "new")
    assert differences(folder, done.path, tmp_path / "scratch") == []
    assert examine(tmp_path / "new").ok
    assert done.rows > 500


def test_compacting_at_a_vclock_equals_restore(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """The snapshot at a position is the state that `restore` gives there."""
    end = examine(folder).vclock
    until = end.with_lsn(1, end.lsn(1) - 20)
    restore(folder, tmp_path / "restored", at=until)
    done = pipeline.compact(spark, folder, tmp_path / "new", until=until)
    assert done.vclock == until
    assert differences(tmp_path / "restored", done.path, tmp_path / "scratch") == []
    with pytest.raises(PositionUnavailable):
        pipeline.compact(spark, folder, tmp_path / "new", until=end.with_lsn(1, end.lsn(1) + 1))


def test_damage_is_typed_and_leaves_nothing(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """A flipped bit in a log is raised with file and offset; there is no target then."""
    log = max(folder.glob("*.xlog"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 4
    log.write_bytes(data)
    with pytest.raises(CorruptBlock) as caught:
        pipeline.compact(spark, folder, tmp_path / "new")
    assert caught.value.path == str(log)
    assert caught.value.offset
    assert not (tmp_path / "new").exists()


def test_missing_files_and_foreign_files_are_named(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """No snapshot, a missing log, a file that is none, another instance's: typed errors."""
    only_logs = tmp_path / "logs"
    shutil.copytree(folder, only_logs, ignore=shutil.ignore_patterns("*.snap", "state*"))
    with pytest.raises(WalError, match="snapshot"):
        pipeline.compact(spark, only_logs, tmp_path / "new")
    first = min(path.name for path in folder.glob("*.snap"))
    gap = tmp_path / "gap"
    shutil.copytree(folder, gap)
    min(gap.glob("*.xlog")).unlink()
    with pytest.raises(ChainGap):
        pipeline.compact(spark, gap, tmp_path / "new", snapshot=first)
    foreign = tmp_path / "foreign"
    shutil.copytree(folder, foreign)
    (foreign / "00000000000000009999.xlog").write_bytes(b"no log at all\n")
    with pytest.raises(CorruptFile):
        pipeline.compact(spark, foreign, tmp_path / "new")
    mixed = tmp_path / "mixed"
    shutil.copytree(folder, mixed)
    other = sample("04-crashed").folder / "00000000000000000104.xlog"
    shutil.copy(other, mixed / "00000000000000000104.xlog")
    with pytest.raises(CorruptFile):
        pipeline.compact(spark, mixed, tmp_path / "new")
    newest = max(folder.glob("*.snap"))
    with pytest.raises(ConfigError, match="there already"):
        pipeline.compact(spark, folder, folder, until=read_meta(newest).vclock)


def test_a_driver_killed_while_publishing_shows_nothing(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """At each step of the commit: no snapshot under its name before the rename; done again, it is
    complete, and what was left is gone."""
    target = tmp_path / "new"

    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    for name in ("compact.before_end", "compact.before_rename"):
        arm(name, kill)
        try:
            with pytest.raises(Killed):
                pipeline.compact(spark, folder, target)
        finally:
            disarm()
        assert list(target.glob("*.snap")) == []
        left = f"{STAGE}{socket.gethostname()}-999999999-1700000000-1ef7"
        (target / left).mkdir(exist_ok=True)  # a killed driver cannot tidy up
    done = pipeline.compact(spark, folder, target)
    assert [path.name for path in target.iterdir()] == [done.path.name]
    assert differences(folder, done.path, tmp_path / "scratch") == []


def test_a_growing_log_gives_one_cut(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    """Rows that are appended after the look are not in the result, which is a state that was."""
    prepared = prepare(looking(spark), [folder])
    with logweir.open(folder, create=False, **OPTIONS) as log:
        before = {row[0]: row for row in log.select("goods")}
        for n in range(100):
            log.replace("goods", [n, "later", Decimal(1), 1])
    rows = pipeline.state(spark, folder, prepared=prepared).filter("space = 'goods'").collect()
    found = [tuple(unpack(bytes(row["tuple"]))) for row in rows]
    assert {one[0]: one for one in found} == before


# --- export, state, diff, stats -------------------------------------------------------------------


def test_state_and_table_equal_the_store(spark: SparkSession, folder: Path) -> None:
    """All tuples as opened; typed columns carry unsigned 64-bit numbers and decimals whole."""
    with logweir.open(folder, create=False, **OPTIONS) as log:
        goods = log.select("goods")
        counts = log.select("counts")
    rows = pipeline.state(spark, folder).orderBy("space_id", "key").collect()
    assert [tuple(unpack(bytes(r["tuple"]))) for r in rows] == [*goods, *counts]
    typed = pipeline.table(spark, folder, "goods").orderBy("id").collect()
    assert [int(row["big"]) for row in typed] == [one[3] for one in goods]
    assert [Decimal(row["price"]) for row in typed] == [one[2] for one in goods]
    assert [row["extra"] and json.loads(row["extra"]) for row in typed] == [
        one[4] if len(one) > 4 else None for one in goods
    ]
    longs = pipeline.table(spark, folder, "goods", integers="long").orderBy("id").collect()
    assert all(row["big"] is None for row in longs)
    assert [json.loads(row["_rest"])["3"] for row in longs] == [one[3] for one in goods]
    numbers = pipeline.table(spark, folder, "goods", decimals=3).orderBy("id")
    assert dict(numbers.dtypes)["price"] == "decimal(38,3)"
    assert [row["price"] for row in numbers.collect()] == [one[2] for one in goods]
    with pytest.raises(RequestError, match="nowhere"):
        pipeline.table(spark, folder, "nowhere")


def test_exports_read_back_as_the_plain_reader_reads(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """JSON lines are those of `cat`; Parquet, CSV and Delta hold every row of the log."""
    expected = []
    for path in sorted(folder.glob("*.xlog")):
        with WalReader(path) as reader:
            for block in reader.blocks():
                expected += [row_line(block, n, {}) for n in range(len(block.columns))]  # type: ignore[union-attr,arg-type]
    done = pipeline.export(spark, folder, tmp_path / "json", format="json")
    found = [
        line for one in Path(done.path).glob("part-*") for line in one.read_text().splitlines()
    ]
    assert sorted(found) == sorted(expected)
    for name in ("parquet", "csv", "delta"):
        pipeline.export(spark, folder, tmp_path / name, format=name, space="goods")
    count = sum('"space_id": 512,' in line for line in expected)
    assert dataset.dataset(tmp_path / "parquet").count_rows() == count
    tables = [
        list(csv.DictReader(one.read_text().splitlines()))
        for one in (tmp_path / "csv").glob("part-*")
    ]
    assert sum(map(len, tables)) == count
    deltalake = pytest.importorskip("deltalake")
    assert deltalake.DeltaTable(str(tmp_path / "delta")).to_pyarrow_table().num_rows == count
    with pytest.raises(ConfigError, match="there already"):
        pipeline.export(spark, folder, tmp_path / "csv")


def test_a_failed_export_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Damage in the middle: a typed error, no folder, no staging left."""
    with pytest.raises(WalError) as caught:
        pipeline.export(spark, damaged("c-flipped-payload-byte").folder, tmp_path / "out")
    assert caught.value.path
    assert list(tmp_path.iterdir()) == []


def test_diff_equals_the_plain_comparison(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """Between two positions of one archive: the same differences as of the restored folders."""
    end = examine(folder).vclock
    until = end.with_lsn(1, end.lsn(1) - 30)
    restore(folder, tmp_path / "then", at=until)
    plain = differences(tmp_path / "then", folder, tmp_path / "scratch")
    rows = pipeline.diff(spark, folder, folder, first_until=until).collect()
    assert [
        (
            r["space_id"],
            r["space"],
            r["change"],
            r["before"] and bytes(r["before"]),
            r["after"] and bytes(r["after"]),
        )
        for r in rows
    ] == [(d.space_id, d.space, d.kind, d.before, d.after) for d in plain]
    assert len(rows) > 10


def test_stats_count_every_row(spark: SparkSession, folder: Path) -> None:
    """Rows by space and type are those that the plain reader counts."""
    rows = pipeline.stats(spark, folder, kinds="xlog").collect()
    plain = [row for path in folder.glob("*.xlog") for row in logweir.read(path)]
    assert sum(row["rows"] for row in rows) == len(plain)
    updates = [row for row in rows if row["type_name"] == "UPDATE" and row["space_id"] == 512]
    assert updates[0]["rows"] == 34
    assert updates[0]["bytes"] > 0


# --- import and cdc -------------------------------------------------------------------------------


def test_an_export_imports_as_the_same_tuples(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """State → Parquet → a space of another store with the same format: the same tuples, once and
    once more."""
    pipeline.export(spark, folder, tmp_path / "out", what="state", space="goods")
    target = tmp_path / "copy"
    with logweir.open(folder, create=False, **OPTIONS) as log:
        goods = log.select("goods")
        fields = [field.to_map() for field in log.schema.space("goods").fields]
    with logweir.open(target, **OPTIONS) as log:
        log.create_space("goods", format=fields)
    for _ in range(2):
        done = pipeline.import_rows(spark, tmp_path / "out", target, "goods")
        assert (done.rows, done.created) == (len(goods), False)
    with logweir.open(target, create=False, **OPTIONS) as log:
        assert log.select("goods") == goods
    fresh = pipeline.import_rows(spark, tmp_path / "out", tmp_path / "new", "taken", primary=["id"])
    assert fresh.created
    with logweir.open(tmp_path / "new", create=False, **OPTIONS) as log:
        assert [row[0] for row in log.select("taken")] == [row[0] for row in goods]
    with pytest.raises(ConfigError, match="no field"):
        pipeline.import_rows(spark, tmp_path / "out", target, "_schema")


def test_a_new_space_has_the_types_that_are_told(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """An export has a map as its JSON: told that it is one, import makes a map of it again. A field
    that is no column is refused."""
    out = tmp_path / "out"
    pipeline.export(spark, folder, out, what="state", space="goods", format="json")
    given: dict[str, Any] = {"format": "json", "primary": ["id"]}
    with pytest.raises(ConfigError, match="'more' is no column"):
        pipeline.import_rows(spark, out, tmp_path / "no", "goods", types={"more": "map"}, **given)
    types = {"extra": "any", "price": "decimal"}
    pipeline.import_rows(spark, out, tmp_path / "new", "goods", types=types, **given)
    with logweir.open(folder, create=False, **OPTIONS) as log:
        goods = {row[0]: (row[2], row[4] if len(row) > 4 else None) for row in log.select("goods")}
    with logweir.open(tmp_path / "new", create=False, **OPTIONS) as log:
        names = [field.name for field in log.schema.space("goods").fields]
        at = [names.index(name) for name in ("id", "price", "extra")]
        rows = [[row[n] if n < len(row) else None for n in at] for row in log.select("goods")]
    assert {one: (price, extra) for one, price, extra in rows} == goods
    assert any(isinstance(extra, dict) for _, extra in goods.values())


@pytest.mark.parametrize("format", ["csv", "json"])
def test_bytes_and_texts_come_back_from_text(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    """What Spark writes of bytes, and any texts, in columns of any names; text that is no base64 is
    refused, with its column."""
    texts = ["", None, " a ", "b\r\nc\n", 'd"e', '"', "f\\", '\\"g,h', "null", "\t"]
    note = {"name": 'n,o"te', "type": "string", "is_nullable": True}
    fields = [("id", "unsigned"), note, ("da.t`a", "varbinary")]
    store, out, copy = tmp_path / "store", tmp_path / "out", tmp_path / "copy"
    for path in (store, copy):
        with logweir.open(path, **OPTIONS) as log:
            log.create_space("pieces", format=fields)
    with logweir.open(store, **OPTIONS) as log:
        pieces = [(number, text, bytes([0xFF, 0, number])) for number, text in enumerate(texts)]
        for one in pieces:
            log.insert("pieces", one)
    pipeline.export(spark, store, out, what="state", space="pieces", format=format)
    pipeline.import_rows(spark, out, copy, "pieces", format=format)
    with logweir.open(copy, create=False, **OPTIONS) as log:
        assert [tuple(row) for row in log.select("pieces")] == pieces
    wrong = tmp_path / f"wrong.{format}"
    wrong.write_text(
        "id,da.t`a\n9,no*base64\n" if format == "csv" else '{"id": 9, "da.t`a": "*"}\n'
    )
    with pytest.raises(DecodeError, match=r"'da\.t`a' has .* no varbinary"):
        pipeline.import_rows(spark, wrong, copy, "pieces", format=format)


@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_cdc_goes_on_where_it_was(
    spark: SparkSession, folder: Path, tmp_path: Path, format: str
) -> None:
    """Twice over a growing log, and once more with the last commit forgotten: each row once."""
    if format == "delta":
        pytest.importorskip("deltalake")
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    def run() -> int:
        query = pipeline.cdc(spark, folder, out, checkpoint, format=format, space="goods")
        query.awaitTermination()
        reader = spark.read.parquet(str(out)) if format == "parquet" else None
        if reader is not None:
            found = [row["lsn"] for row in reader.select("lsn").collect()]
        else:
            import deltalake

            found = deltalake.DeltaTable(str(out)).to_pyarrow_table()["lsn"].to_pylist()
        assert len(set(found)) == len(found)
        return len(found)

    def there() -> int:
        rows = (row for path in folder.glob("*.xlog") for row in logweir.read(path))
        return sum(decode_body(row.body).space_id == 512 for row in rows if row.body)

    if format == "delta":

        def killed() -> None:
            raise RuntimeError("killed here")

        arm("delta.before_commit", killed)
        try:
            with pytest.raises(Exception, match="killed here"):
                run()
        finally:
            disarm()
        assert list(out.glob("*.parquet"))
        assert not (out / "_delta_log").exists()
    assert run() == there()
    with logweir.open(folder, create=False, **OPTIONS) as log:
        for n in range(200, 230):
            log.insert("goods", [n, "new", Decimal(1), 1])
    assert run() == there()
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()  # as if the driver had been killed between the sink and Spark's own note
    (checkpoint / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    assert run() == there()
    if format == "delta":
        with logweir.open(folder, create=False, **OPTIONS) as log:
            log.insert("goods", [300, "other columns", Decimal(1), 1])
        given = {"format": format, "space": "goods", "integers": "long"}
        with pytest.raises(LogweirError, match="other columns"), typed_errors():
            pipeline.cdc(spark, folder, out, checkpoint, **given).awaitTermination()


@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_cdc_with_another_checkpoint_drops_nothing_in_silence(
    spark: SparkSession, folder: Path, tmp_path: Path, format: str
) -> None:
    """A table takes the rows of a checkpoint that was begun anew at its old place; a folder, in
    which Spark would pass over them, is refused; moved with its checkpoint it goes on."""
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    def run(checkpoint: Path, **options: Any) -> None:
        pipeline.cdc(
            spark, folder, out, checkpoint, format=format, space="goods", **options
        ).awaitTermination()

    def count() -> int:
        if format == "parquet":
            return spark.read.parquet(str(out)).count()
        deltalake = pytest.importorskip("deltalake")
        return deltalake.DeltaTable(str(out)).to_pyarrow_table().num_rows

    run(checkpoint)
    before, end = count(), examine(folder).vclock
    with logweir.open(folder, create=False, **OPTIONS) as log:
        for n in range(300, 320):
            log.insert("goods", [n, "new", Decimal(1), 1])
    aside = tmp_path / "aside"
    shutil.move(checkpoint, aside)
    if format == "delta":
        run(checkpoint, **{"from": str(end)})
    else:
        with pytest.raises(ConfigError, match="another checkpoint"):
            run(checkpoint, **{"from": str(end)})
        run(aside)
    assert count() == before + 20


def test_typed_changes_of_fields_that_are_called_like_their_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    """They get another name, in every format."""
    names = ("id", "time", "op", "lsn", "replica_id", "_ops")
    with logweir.open(tmp_path / "data") as log:
        log.create_space("evt", format=[(name, "unsigned") for name in names])
        log.insert("evt", tuple(range(6)))
    for format in ("parquet", "json", "csv"):
        pipeline.export(spark, tmp_path / "data", tmp_path / format, format=format, space="evt")
    (row,) = spark.read.parquet(str(tmp_path / "parquet")).collect()
    assert row["op"] == "INSERT"
    assert [int(row[name]) for name in ("id", *(f"{name}_2" for name in names[1:]))] == list(
        range(6)
    )


def test_cdc_says_what_was_collected(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    """A checkpoint that needs rows of a log that is gone: a typed error with the positions."""
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    pipeline.cdc(
        spark, folder, out, checkpoint, max_rows_per_batch=60, space="goods"
    ).awaitTermination()
    with logweir.open(folder, create=False, **OPTIONS) as log:
        log.insert("goods", [500, "unread", Decimal(1), 1])
        log.snapshot()
        log.insert("goods", [501, "unread", Decimal(1), 1])
        log.snapshot()
    for path in sorted(folder.glob("*.xlog"))[:-1]:
        path.unlink()
    with pytest.raises(PositionUnavailable), typed_errors():
        pipeline.cdc(spark, folder, out, checkpoint, space="goods").awaitTermination()
