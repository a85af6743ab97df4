"""The reader in Java next to the one in Python, that of `batches`: the same rows and errors."""

from __future__ import annotations

import json
import random
import shutil
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from samples import DAMAGED, DATA, GOOD, sample
from spark.feeding import fill
from support.logs import body, delete, insert, update, write_log

from logweir import errors, pipeline
from logweir.pipeline.columns import COLUMNS
from logweir.pipeline.sparkjar import find_compiler, spark_jar
from logweir.wal.mp import Ext
from logweir.wal.xrow import Key, RowType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(find_compiler() is None, reason="there is no Java compiler"),
]

PLAIN = [name for name in COLUMNS if name not in ("crc_ok", "damage")]
APART = [
    ["kind", "type_name", "time", "key_json", "tuple_json", "ops_json", "header"],
    ["file_seq", "size", "body"],
]
"""Columns of which no two are made of the same thing of a row; so are those not named here."""
FIELDS = [
    *(("id", "unsigned"), ("whole", "integer"), ("real", "double"), ("text", "string")),
    *(("yes", "boolean"), ("raw", "varbinary"), ("exact", "decimal"), ("one", "uuid")),
    *(("some", "any"), ("list", "array"), ("named", "map"), ("figure", "number")),
]
SPACE = json.dumps(
    {
        "id": 512,
        "name": "orders",
        "fields": [[name, kind, True] for name, kind in FIELDS],
        "key": [[0, "unsigned", False, None], [3, "string", False, None]],
    }
)
DOUBLES = [
    *(0.0, -0.0, 1.5, 0.1, 1e15, 1e16, 1e17, 123456789012345680.0, 1e-4, 1e-5, 5e-324, 1.7e308),
    *(float("nan"), float("inf"), float("-inf"), 2.0**-1022, 2.0**89, 9007199254740993.0),
    *(2.0**power for power in range(-1074, 1024, 7)),
]
SEED = 11


def value(pick: random.Random, depth: int = 0) -> Any:
    """Any value of MsgPack that has a place in the reader in Java."""
    made: list[Callable[[], Any]] = [
        lambda: None,
        lambda: pick.choice((True, False)),
        lambda: pick.choice((0, 1, 127, 128, 2**31, 2**63 - 1, 2**63, 2**64 - 1)),
        lambda: -pick.choice((1, 32, 33, 128, 129, 2**31, 2**63)),
        lambda: pick.choice(DOUBLES),
        lambda: struct.unpack("d", pick.randbytes(8))[0],
        lambda: pick.choice(("", "a", 'é"\\\n\x01\x7f', "😀" * 40, "x" * 300)),
        lambda: pick.randbytes(pick.choice((0, 1, 2, 3, 40))),
        lambda: Decimal(pick.randrange(-(10**20), 10**20)).scaleb(-pick.randrange(-3, 30)),
        lambda: pick.choice((Decimal("0.00"), Decimal("-0"), Decimal("1E+5"), Decimal("1E-9"))),
        lambda: uuid.UUID(int=pick.randrange(2**128)),
        lambda: Ext(pick.choice((5, 90)), pick.randbytes(pick.choice((1, 4, 7)))),
    ]
    if depth < 3:
        made += [
            lambda: [value(pick, depth + 1) for _ in range(pick.randrange(20))],
            lambda: {f"k{n}": value(pick, depth + 1) for n in range(pick.randrange(20))},
        ]
    return pick.choice(made)()


def fitting(pick: random.Random, kind: str) -> Any:
    """A value for a field of that type, now and then one of another."""
    if pick.randrange(12) == 0:
        return value(pick)
    return {
        "unsigned": lambda: pick.randrange(2 ** pick.randrange(65)),
        "integer": lambda: -pick.randrange(2 ** pick.randrange(64)),
        "double": lambda: pick.choice(DOUBLES),
        "string": lambda: "ü" * pick.randrange(40),
        "boolean": lambda: pick.choice((True, False)),
        "varbinary": lambda: pick.randbytes(pick.randrange(40)),
        "decimal": lambda: Decimal(pick.randrange(10**9)).scaleb(-pick.randrange(9)),
        "uuid": lambda: uuid.UUID(int=pick.randrange(2**128)),
        "array": lambda: [value(pick, 2)],
        "map": lambda: {"k": value(pick, 2)},
    }.get(kind, lambda: value(pick))()


def changes(count: int) -> list[list[tuple[int, bytes]]]:
    """Transactions of one to nine rows about the space and others."""
    pick = random.Random(SEED)

    def change() -> tuple[int, bytes]:
        row = [fitting(pick, kind) for _, kind in FIELDS]
        row = row[: pick.choice((1, 5, len(row), len(row)))]
        row += [value(pick) for _ in range(pick.choice((0, 0, 2)))]
        kind = pick.randrange(8)
        if kind == 0:
            return update(512, [row[0], "k"], [["=", 2, value(pick)]])
        if kind == 1:
            return delete(512, [row[0]])
        if kind == 2:
            parts = (Key.SPACE_ID, 512), (Key.TUPLE, row), (Key.OPS, [["+", 1, 1]])
            return RowType.UPSERT, body(*parts)
        if kind == 3:
            return RowType.NOP, b""
        if kind == 4:
            return 77, body((Key.SPACE_ID, 2**62), (Key.KEY, [1]), (Key.INDEX_ID, 2))
        return insert(pick.choice((512, 512, 700)), row)

    return [[change() for _ in range(pick.randrange(1, 10))] for _ in range(count)]


@pytest.fixture(scope="module")
def jar(spark: SparkSession) -> None:
    """The session reads in Java."""
    assert spark_jar() is not None, (
        "tools/test, or python -P -m logweir.pipeline.sparkjar, makes it"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of all kinds of values, blocks of it compressed."""
    path = tmp_path_factory.mktemp("java")
    write_log(path, changes(300))
    return path


def read(frame: DataFrame) -> tuple[list[str], int]:
    """The rows of a scan as texts, in order, and how many of them came through Python; -1: it was
    not read in Java."""
    rows = [repr(row) for row in frame.toArrow().to_pylist()]
    nodes = [frame._jdf.queryExecution().executedPlan()]
    while nodes:
        node = nodes.pop()
        if node.metrics().contains("rowsFromPython"):
            is_here = node.supportsColumnar()
            return rows, int(node.metrics().apply("rowsFromPython").value()) if is_here else -1
        nodes += [node.children().apply(i) for i in range(node.children().size())]
    raise AssertionError("no scan of ours")


def texts(*paths: Any, **options: Any) -> list[str]:
    """The rows by the reader in Python."""
    rows: list[str] = []
    for path in paths:
        found = pipeline.batches(path, **options).read_all().to_pylist()
        rows += [repr(row) for row in found]
    return rows


def test_every_column_is_the_same(spark: SparkSession, jar: None, folder: Path) -> None:
    """All columns of rows of all kinds, none of them through Python; some of them, each without
    others that are made of the same; and none."""
    frame = pipeline.scan(spark, folder, columns=PLAIN)
    wanted = texts(folder, columns=PLAIN)
    assert read(frame) == (wanted, 0)
    assert len(wanted) > 1000
    others = [name for name in PLAIN if name not in APART[0] + APART[1]]
    for some in (*APART, others, ["tuple_json", "lsn"]):
        assert read(frame.select(*some)) == (texts(folder, columns=some), 0), some
    assert frame.count() == len(wanted)


def test_every_sample_of_tarantool_is_the_same(spark: SparkSession, jar: None) -> None:
    """Logs and snapshots of the real program."""
    folders = [sample(name).folder for name in GOOD]
    columns = [name for name in PLAIN if name != "file_seq"]
    found, python = read(pipeline.scan(spark, *folders, columns=columns))
    assert (found, python) == (texts(*folders, columns=columns), 0)


@pytest.mark.parametrize(
    ("integers", "decimals"), [("decimal", "string"), ("long", "4"), ("long", "38"), ("long", "0")]
)
def test_fields_of_a_space_are_the_same(
    spark: SparkSession, jar: None, folder: Path, integers: str, decimals: str
) -> None:
    """Values of every type in every field, what fits none in `_rest`, keys for tuples."""
    options = {"space": SPACE, "integers": integers, "decimals": decimals}
    frame = pipeline.scan(spark, folder, **options)
    wanted = texts(folder, **options)
    assert read(frame) == (wanted, 0)
    for columns in (["whole", "lsn"], ["_rest"], ["op", "exact", "figure", "_ops"]):
        assert read(frame.select(*columns)) == (texts(folder, **options, columns=columns), 0)
    assert read(frame.select("whole")) != (wanted, 0)


def test_rows_are_chosen_alike(spark: SparkSession, jar: None, folder: Path) -> None:
    """By positions, replicas, times, spaces and types, with all sizes of batches and splits."""
    for options in (
        {"vclock_from": {1: 100}, "vclock_to": {1: 700}, "batch_rows": 3},
        {"replica_id": 1, "lsn_from": 5, "lsn_to": 300, "split_bytes": 4096, "batch_bytes": 100},
        {"replica_id": 2, "lsn_from": 0, "spaces": [512, 2**62]},
        {"time_from": 1_700_000_100, "time_to": 1_700_000_200, "types": "insert,delete"},
    ):
        found, python = read(pipeline.scan(spark, folder, **options))
        assert (found, python) == (texts(folder, **options), 0), options


def test_what_is_seldom_goes_through_python(spark: SparkSession, jar: None, tmp_path: Path) -> None:
    """A map with keys that are no texts, a tuple that nests deep, a number that is too large for
    its column: rows before it are read in Java, those behind it, and the error, are Python's."""
    deep: Any = 1
    for _ in range(70):
        deep = [deep]
    odd = body((Key.SPACE_ID, 512), (Key.TUPLE, [2, {1: 2}, deep]))
    for name in "abc":
        (tmp_path / name).mkdir()
    write_log(tmp_path / "a", [[insert(512, [n])] for n in range(50)])
    write_log(
        tmp_path / "b", [*([insert(512, [n])] for n in range(50)), [(2, odd)], [insert(512, [1])]]
    )
    write_log(tmp_path / "c", [[insert(512, [1])], [(2**40, odd)]])
    frame = pipeline.scan(spark, tmp_path / "a", tmp_path / "b", columns=["lsn", "tuple_json"])
    assert read(frame) == (texts(tmp_path / "a", tmp_path / "b", columns=["lsn", "tuple_json"]), 2)
    assert read(frame.select("lsn"))[1] == 0
    with pytest.raises(errors.CorruptBlock) as caught:
        texts(tmp_path / "c")
    with pytest.raises(Exception, match="does not fit its column") as raised:
        read(pipeline.scan(spark, tmp_path / "c"))
    assert str(caught.value) in str(raised.value)
    assert read(pipeline.scan(spark, tmp_path / "c", columns=["lsn"]))[1] == 0


@pytest.fixture(scope="module")
def damaged(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The log cut, followed by zeros, changed by a bit, and with bytes in it twice."""
    pick = random.Random(SEED)
    source = next(folder.glob("*.xlog"))
    places = []
    for number in range(8):
        data = bytearray(source.read_bytes())
        at = pick.randrange(len(data) // 2, len(data))
        if number < 4:
            data[at] ^= 1 << pick.randrange(8)
        elif number < 7:
            data[at:] = bytes(600 * (number - 4))
        else:
            data[at:at] = data[at - 50 : at]
        places.append(tmp_path_factory.mktemp("damaged"))
        (places[-1] / source.name).write_bytes(data)
    return places


def test_damage_is_listed_alike(spark: SparkSession, jar: None, damaged: list[Path]) -> None:
    """The damaged samples of Tarantool and ours, with `report` and `skip`."""
    places = [*(DATA / "05-damaged" / name for name in DAMAGED), *damaged]
    columns = [name for name in COLUMNS if name != "file_seq"]
    report: dict[str, Any] = {"on_error": "report", "settled": False, "columns": columns}
    wanted = sorted(texts(*places, **report))
    assert sorted(read(pipeline.scan(spark, *places, **report))[0]) == wanted
    assert sum("'crc_ok': False" in row for row in wanted) > 10
    skip = {"on_error": "skip", "columns": ["lsn", "tuple"], "verify": False}
    assert read(pipeline.scan(spark, *damaged, **skip))[0] == texts(*damaged, **skip)


def test_damage_is_the_same_error(spark: SparkSession, jar: None, damaged: list[Path]) -> None:
    """By file and byte, as the reader in Python tells it."""
    names = [name for name in DAMAGED if name[0] in "dervx"]
    said: dict[Path, str] = {}
    for place in (*(DATA / "05-damaged" / name for name in names), damaged[0]):
        try:
            wanted = texts(place)
        except errors.LogweirError as error:
            said[place] = str(error)
        else:
            assert read(pipeline.scan(spark, place))[0] == wanted
    for place, text in said.items():
        with pytest.raises(Exception, match=place.name) as raised:
            read(pipeline.scan(spark, place))
        assert text in str(raised.value)
    assert len(said) >= 4


def test_files_that_change_after_the_plan_are_told(
    spark: SparkSession, jar: None, tmp_path: Path
) -> None:
    """A log that became shorter, one of another store in its place, and none: errors of Python's;
    what is appended is not read, also by another query of the DataFrame with other columns."""
    fill(tmp_path, 0, 30)
    log = max(tmp_path.glob("*.xlog"))
    frame = pipeline.scan(spark, tmp_path, kinds="xlog")
    count = frame.count()
    fill(tmp_path, 30, 10)
    assert len(read(frame.select("lsn", "tuple"))[0]) == count
    kept = log.read_bytes()
    log.write_bytes(kept[: len(kept) // 2])
    with pytest.raises(Exception, match="became shorter"):
        frame.select("type").collect()
    fill(tmp_path / "other", 0, 60)
    shutil.copy(max((tmp_path / "other").glob("*.xlog")), log)
    with pytest.raises(Exception, match="was replaced by another one"):
        frame.select("lsn").collect()
    log.unlink()
    with pytest.raises(Exception, match="is gone since the scan was planned"):
        frame.select("key").collect()


def test_other_sources_stay_in_python(spark: SparkSession, jar: None, tmp_path: Path) -> None:
    """Counts, a zip of columns that Java does not make, joins of two scans: as without the jar."""
    fill(tmp_path, 0, 30)
    counts = spark.read.format("logweir").option("counts", "true").load(str(tmp_path))
    assert read(counts.select("kind", "rows"))[1] == -1
    assert counts.agg({"rows": "sum"}).collect()[0][0] == pipeline.scan(spark, tmp_path).count()
    left = pipeline.scan(spark, tmp_path, spaces="t").select("lsn", "tuple")
    right = pipeline.scan(spark, tmp_path, spaces="t").select("lsn", "key")
    assert left.join(right, "lsn").count() == 30
    plan = left._jdf.queryExecution().optimizedPlan()
    size = int(plan.stats().sizeInBytes())
    assert 0 < size < sum(path.stat().st_size for path in tmp_path.glob("*.*"))
