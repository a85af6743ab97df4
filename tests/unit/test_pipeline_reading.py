"""The pipeline without Spark: options, plan, and the batches of every sample."""

from __future__ import annotations

import pickle
import sys
import uuid
from array import array
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from samples import DAMAGED, GOOD, damaged, sample
from support.logs import forget_end

import logweir
from logweir import pipeline
from logweir.errors import ChainGap, ConfigError, CorruptBlock, WalError
from logweir.limits import PIPELINE_OPENING_BYTES
from logweir.pipeline.columns import COLUMNS, arrow_schema
from logweir.pipeline.frames import scan_options
from logweir.pipeline.jobs.checks import check_blocks
from logweir.pipeline.options import ScanOptions
from logweir.pipeline.plan import plan
from logweir.pipeline.readers import LogweirReader
from logweir.pipeline.reading import scan
from logweir.pipeline.source import LogweirSource
from logweir.pipeline.storage import UrlFileSystem, open_storage
from logweir.wal.block import encode_block, encode_fixheader
from logweir.wal.columns import encode_run
from logweir.wal.crc32c import checksum
from logweir.wal.damage import Damage
from logweir.wal.mp import pack
from logweir.wal.reader import WalReader, read_meta
from logweir.wal.render import value_json
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter, WriterOptions
from logweir.wal.xrow import Row, RowType, encode_row

ALL = [name for name in COLUMNS if name not in ("crc_ok", "damage")]


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """All rows as dictionaries."""
    return [row for batch in batches for row in batch.to_pylist()]


def rows(base: bytes, count: int, first: int, *, replica_id: int = 1) -> bytearray:
    """`count` REPLACEs with lsns from `first` on."""
    bodies = [b"\x82\x10\xcd\x02\x00\x21" + pack([first + i, base]) for i in range(count)]
    return encode_run(
        type=RowType.REPLACE,
        replica_id=replica_id,
        first_lsn=first,
        timestamp=1000.0 + first,
        source=b"".join(bodies),
        bounds=array("Q", accumulate(map(len, bodies), initial=0)),
    )


def write_log(folder: Path, *, blocks: int, per_block: int, base: bytes, max_bytes: int) -> None:
    """Logs of `blocks` blocks, uncompressed."""
    folder.mkdir(exist_ok=True)
    options = WriterOptions(max_bytes=max_bytes, compress_threshold_bytes=None)
    writer = WalWriter(folder, uuid.UUID(int=7), AppendPoint(VClock()), options=options)
    for number in range(blocks):
        last = (number + 1) * per_block
        writer.write([rows(base, per_block, last - per_block + 1)], VClock({1: last}))
    writer.close()


# --- every sample ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOOD)
def test_batches_hold_what_the_real_program_read(name: str) -> None:
    """Every row of every file of a Tarantool's folder, column by column, in its order."""
    found = rows_of(pipeline.batches(sample(name).folder, columns=ALL))
    expected = [(file, row) for file in sample(name).files for row in file.rows]
    order = sorted(
        range(len(expected)),
        key=lambda at: (expected[at][0].path.name.split(".")[0], expected[at][0].path.suffix),
    )
    assert len(found) == len(expected)
    for row, at in zip(found, order, strict=True):
        file, wanted = expected[at]
        body = wanted.get("body", {})
        assert row["file"] == file.path.name
        assert row["type_name"] == wanted["type"]
        assert row["lsn"] == wanted.get("lsn", 0)
        assert row["replica_id"] == wanted.get("replica_id", 0)
        assert row["group_id"] == wanted.get("group_id", 0)
        assert row["ts"] == wanted.get("timestamp", 0.0)
        assert row["space_id"] == body.get("space_id")
        is_update = row["type"] == RowType.UPDATE
        part = row["ops" if is_update else "tuple"]
        assert (part.hex() if part is not None else None) == body.get("tuple_mp")
        assert (row["key"].hex() if row["key"] is not None else None) == body.get("key_mp")


@pytest.mark.parametrize("name", GOOD)
def test_batches_equal_the_plain_reader_in_every_column(name: str) -> None:
    """Offsets, headers, bodies, transactions and JSON are those of `wal.reader`, whatever the
    size of a batch."""
    for batch_bytes in (1, 1000, 1 << 20):
        found = rows_of(pipeline.batches(sample(name).folder, columns=ALL, batch_bytes=batch_bytes))
        at = 0
        files = sorted(sample(name).files, key=lambda f: (f.path.name[:20], f.path.suffix))
        for file in files:
            with WalReader(file.path) as reader:
                for block in reader.blocks():
                    assert not isinstance(block, Damage)
                    columns = block.columns
                    for number in range(len(columns)):
                        row, at = found[at], at + 1
                        assert (row["block_offset"], row["row_in_block"]) == (block.offset, number)
                        assert row["tsn"] == columns.tsn[number]
                        assert row["header"] + row["body"] == columns.row_bytes(number)
                        assert row["body"] == columns.body_bytes(number)
                        assert row["ops"] == columns.ops_bytes(number)
                        assert row["tuple"] == columns.tuple_bytes(number)
                        for part in ("key", "tuple", "ops"):
                            raw = row[part]
                            text = None if raw is None else value_json(raw)
                            assert row[f"{part}_json"] == text
        assert at == len(found)


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named_or_left_out(name: str) -> None:
    """A damaged folder raises a typed error that names a file, or gives every row that the plain
    reader salvages, and with `report` a row per damaged place."""
    folder = damaged(name).folder
    kept: list[Damage] = []
    expected = [(row.lsn, row.body) for row in logweir.read(folder, on_damage=kept.append)]
    options: dict[str, Any] = {"columns": ["lsn", "body"], "kinds": "xlog,snap"}
    found = rows_of(pipeline.batches(folder, on_error="skip", **options))
    assert [(row["lsn"], row["body"]) for row in found] == expected
    reported = rows_of(
        pipeline.batches(
            folder, on_error="report", columns=["file", "block_offset", "crc_ok", "damage"]
        )
    )
    places = [row for row in reported if not row["crc_ok"]]
    damages = [row["damage"] for row in places]
    inner = [one for one in kept if "tail" not in one.kind]
    assert {row["block_offset"] for row in places} >= {one.offset for one in inner if one.size}
    if any("_tail:" not in one or "other than logweir" in one for one in damages):
        with pytest.raises(WalError) as caught:
            rows_of(pipeline.batches(folder, **options))
        assert Path(caught.value.path).name in {path.name for path in folder.iterdir()}
    else:
        assert rows_of(pipeline.batches(folder, **options)) == found


# --- splitting and skipping -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["exact", "resync", "none"])
@pytest.mark.parametrize("split_bytes", [1, 300, 5000, 1 << 25])
def test_any_split_gives_the_same_rows(mode: str, split_bytes: int, tmp_path: Path) -> None:
    """Every row once and in order, however the files are cut."""
    write_log(tmp_path, blocks=60, per_block=3, base=b"x" * 40, max_bytes=4000)
    options = scan_options(tmp_path, split_bytes=split_bytes, split_mode=mode, columns=["lsn"])
    planned = plan(options)
    found = [row["lsn"] for split in planned.splits for row in rows_of(scan(split, options))]
    assert found == list(range(1, 181))
    if split_bytes == 300 and mode != "none":
        assert len(planned.splits) > 20
    assert planned.size == sum(path.stat().st_size for path in tmp_path.glob("*.xlog")) - sum(
        source.first_block for source in planned.sources
    )


def test_a_block_inside_a_value_does_not_deceive_an_exact_split(tmp_path: Path) -> None:
    """Values that hold whole valid blocks: `exact` gives each row once with any split."""
    inner = b"".join(bytes(part) for part in encode_block(rows(b"inner", 2, 9000)))
    write_log(tmp_path, blocks=20, per_block=1, base=inner * 5, max_bytes=1 << 30)
    for split_bytes in (1, 97, 300, 1000):
        found = rows_of(pipeline.batches(tmp_path, split_bytes=split_bytes, columns=["lsn"]))
        assert [row["lsn"] for row in found] == list(range(1, 21))


def test_small_files_share_a_task(tmp_path: Path) -> None:
    """Files are packed up to `split_bytes`, in order, not too many of them."""
    write_log(tmp_path, blocks=40, per_block=1, base=b"y" * 100, max_bytes=500)
    count = len(list(tmp_path.glob("*.xlog")))
    planned = plan(scan_options(tmp_path))
    assert count > 5
    assert len(planned.splits) == 1
    assert [one.source.number for one in planned.splits[0].ranges] == list(range(count))
    few = plan(scan_options(tmp_path, split_bytes=4 * PIPELINE_OPENING_BYTES))
    assert max(len(split.ranges) for split in few.splits) == 3  # opening them costs, too
    assert [one for split in few.splits for one in split.ranges] == [*planned.splits[0].ranges]


def test_files_that_hold_no_wanted_row_are_not_read(tmp_path: Path) -> None:
    """Bounds by vclock and by lsn leave files out by their headers, and rows exactly."""
    write_log(tmp_path, blocks=100, per_block=1, base=b"z" * 100, max_bytes=2000)
    every = len(plan(scan_options(tmp_path)).sources)
    for options, lsns in (
        ({"vclock_from": {1: 70}}, range(71, 101)),
        ({"vclock_to": {1: 30}}, range(1, 31)),
        ({"replica_id": 1, "lsn_from": 45, "lsn_to": 50}, range(45, 51)),
        ({"replica_id": 2}, range(0)),
        ({"time_from": 1090.0}, range(90, 101)),
        ({"types": "replace", "spaces": [512], "vclock_to": {1: 5}}, range(1, 6)),
        ({"types": "delete"}, range(0)),
        ({"spaces": [513]}, range(0)),
    ):
        found = rows_of(pipeline.batches(tmp_path, columns=["lsn"], **options))
        assert [row["lsn"] for row in found] == list(lsns)
        if "vclock_from" in options or "lsn_to" in options:
            assert len(plan(scan_options(tmp_path, **options)).sources) < every / 2


def test_bounds_do_not_apply_to_snapshots() -> None:
    """Rows of a snapshot have row numbers for lsns: a vclock leaves none of them out."""
    folder = sample("01-fresh").folder
    found = rows_of(pipeline.batches(folder, kinds="snap", vclock_from={1: 10**9}, columns=["lsn"]))
    assert len(found) == 513


def test_spaces_may_be_named() -> None:
    """A name is looked up in the log; one that is not there is refused with its name."""
    folder = sample("02-spaces").folder
    number, name = next(
        (number, name) for number, name in sample("02-spaces").space_names.items() if number >= 512
    )
    by_name = rows_of(pipeline.batches(folder, spaces=name, columns=["space_id", "lsn"]))
    assert by_name
    assert by_name == rows_of(pipeline.batches(folder, spaces=number, columns=["space_id", "lsn"]))
    with pytest.raises(ConfigError, match="no_such_space"):
        list(pipeline.batches(folder, spaces="no_such_space"))


# --- files that are odd ---------------------------------------------------------------------------


def test_missing_and_empty_folders_are_named(tmp_path: Path) -> None:
    """No folder, no file, a folder without logs, an empty file, a file of something else."""
    with pytest.raises(WalError, match="no such file"):
        list(pipeline.batches(tmp_path / "none"))
    with pytest.raises(WalError, match="holds no log or snapshot"):
        list(pipeline.batches(tmp_path))
    (tmp_path / "00000000000000000000.xlog").write_bytes(b"")
    with pytest.raises(WalError, match="empty"):
        list(pipeline.batches(tmp_path))
    (tmp_path / "other.txt").write_text("hello\n\n")
    with pytest.raises(WalError, match=r"other\.txt"):
        list(pipeline.batches(tmp_path / "other.txt"))


@pytest.mark.skipif(sys.platform != "linux", reason="leases are locks of Linux")
def test_a_file_that_is_collected_after_planning_is_named(tmp_path: Path) -> None:
    """With what to do; under a lease it stays, and every row is read."""
    with logweir.open(tmp_path, checkpoint_count=1, checkpoint_interval=0) as log:
        log.create_space("t", format=[("id", "unsigned")])
        options = scan_options(tmp_path, kinds="xlog", columns=["lsn"])
        with pipeline.leased(tmp_path):
            planned = plan(options)
            end = log.vclock.signature
            for number in range(3):
                log.insert("t", (number,))
                log.snapshot()
            log.inner.collect()
            found = rows_of(scan(planned.splits[0], options))
            assert [row["lsn"] for row in found] == list(range(1, end + 1))
        log.inner.collect()
        with pytest.raises(WalError, match="is gone since the scan was planned") as caught:
            list(scan(planned.splits[0], options))
    assert planned.sources[0].path in str(caught.value)
    assert "pipeline.leased(folder)" in caught.value.hint


def test_a_file_that_grows_after_planning_is_read_as_it_was(tmp_path: Path) -> None:
    """What is appended between plan and task is not read; what is cut off is an error."""
    with logweir.open(tmp_path) as log:
        log.create_space("t", format=[("id", "unsigned")])
        log.insert("t", (1,))
        options = scan_options(tmp_path, kinds="xlog", columns=["lsn"])
        planned = plan(options)
        last = log.vclock.signature
        for number in range(2, 50):
            log.insert("t", (number,))
        before = rows_of(scan(planned.splits[0], options))
        assert [row["lsn"] for row in before] == list(range(1, last + 1))
        assert len(rows_of(pipeline.batches(tmp_path, kinds="xlog", columns=["lsn"]))) == last + 48
    path = next(tmp_path.glob("*.xlog"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(WalError, match="became shorter"):
        rows_of(scan(planned.splits[0], options))


def test_an_open_end_is_an_ending_unless_rows_are_missing(tmp_path: Path) -> None:
    """A torn newest log is taken as it is, refused with `live=false`; a log that is cut before
    the next one begins is a gap, named with both vclocks."""
    write_log(tmp_path, blocks=30, per_block=1, base=b"x" * 100, max_bytes=2000)
    forget_end(tmp_path)
    first, *_, last = sorted(tmp_path.glob("*.xlog"))
    last.write_bytes(last.read_bytes()[:-10])
    assert len(rows_of(pipeline.batches(tmp_path, columns=["lsn"]))) == 29
    with pytest.raises(CorruptBlock, match="EOF marker"):
        list(pipeline.batches(tmp_path, live=False))
    whole = first.read_bytes()
    first.write_bytes(whole[:-4])  # its writer was killed: nothing is missing
    assert len(rows_of(pipeline.batches(tmp_path, columns=["lsn"]))) == 29
    first.write_bytes(whole[:-50])
    with pytest.raises(ChainGap, match="next log begins"):
        list(pipeline.batches(tmp_path))
    report = {"on_error": "report", "columns": ["damage", "lsn"]}
    told = [row["damage"] for row in rows_of(pipeline.batches(tmp_path, **report))]
    assert [text.partition(":")[0] for text in told if text] == ["torn_tail", "gap", "torn_tail"]


def test_a_log_that_is_missing_between_two_is_a_gap(tmp_path: Path) -> None:
    """Also if both were closed in order: whatever the options, unless reading begins after it; and
    with `report` it is listed."""
    write_log(tmp_path, blocks=60, per_block=1, base=b"x" * 100, max_bytes=2000)
    logs = sorted(tmp_path.glob("*.xlog"))
    after = read_meta(logs[3]).vclock
    logs[2].unlink()
    for options in ({}, {"live": False}, {"vclock_from": {1: 1}}, {"split_mode": "resync"}):
        with pytest.raises(ChainGap, match="a log is missing before this one") as caught:
            rows_of(pipeline.batches(tmp_path, kinds="xlog", **options))
        assert caught.value.path == str(logs[3])
    reported = rows_of(
        pipeline.batches(tmp_path, kinds="xlog", on_error="report", columns=["lsn", "damage"])
    )
    assert [row["damage"][:4] for row in reported if row["damage"]] == ["gap:"]
    rows = rows_of(pipeline.batches(tmp_path, columns=["lsn"], vclock_from=dict(after)))
    assert [row["lsn"] for row in rows] == list(range(after.lsn(1) + 1, 61))


def test_unfinished_ends_are_listed_and_foreign_zeros_are_damage(tmp_path: Path) -> None:
    """As `verify` says: a write that was cut is an ending, zeros in a log that another program
    wrote are none."""
    logs = sample("02-spaces").folder.glob("*.xlog")
    source = max(logs, key=lambda path: path.stat().st_size)
    whole = len(rows_of(pipeline.batches(source, columns=["lsn"])))
    path = tmp_path / source.name
    data = source.read_bytes()
    path.write_bytes(data[:-20])
    report: dict[str, Any] = {"on_error": "report", "columns": ["lsn", "damage"]}
    rows = rows_of(pipeline.batches(path, **report))
    assert [row["damage"].partition(":")[0] for row in rows if row["damage"]] == ["torn_tail"]
    kept = sum(not row["damage"] for row in rows)
    assert 0 < kept < whole
    assert len(rows_of(pipeline.batches(path, columns=["lsn"]))) == kept
    path.write_bytes(data[: -len(data) // 8] + bytes(len(data) // 8))
    with pytest.raises(WalError, match="other than logweir"):
        rows_of(pipeline.batches(path))
    rows = rows_of(pipeline.batches(path, **report))
    assert len([row for row in rows if row["damage"]]) == 1


def test_a_snapshot_without_its_end_is_damage(tmp_path: Path) -> None:
    """A part of a snapshot is no state."""
    snap = next(sample("01-fresh").folder.glob("*.snap"))
    (tmp_path / snap.name).write_bytes(snap.read_bytes()[:-4])
    with pytest.raises(CorruptBlock, match="not complete"):
        list(pipeline.batches(tmp_path))


def test_a_checksum_counts_unless_told(tmp_path: Path) -> None:
    """A flipped byte of a value is damage; with `verify=false` the row comes with it."""
    write_log(tmp_path, blocks=3, per_block=1, base=b"q" * 50, max_bytes=1 << 20)
    path = next(tmp_path.glob("*.xlog"))
    data = bytearray(path.read_bytes())
    data[data.index(b"q" * 50) + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptBlock, match="checksum") as caught:
        list(pipeline.batches(tmp_path))
    assert caught.value.path == str(path)
    assert caught.value.offset
    assert len(rows_of(pipeline.batches(tmp_path, verify=False))) == 3


def test_numbers_that_no_column_holds_are_not_cut(tmp_path: Path) -> None:
    """A type of 70 000 and a space of 2^63 are errors that name the row; `header` and `body`
    carry them."""
    meta = b"XLOG\n0.13\n\nVClock: {}\n\n"
    for name, row in (
        ("type", Row(type=70_000, replica_id=1, lsn=1, tsn=1, body=b"\x81\x10\x01")),
        (
            "space_id",
            Row(type=2, replica_id=1, lsn=1, tsn=1, body=b"\x81\x10\xcf" + b"\xff" * 7 + b"\xfe"),
        ),
        ("tsn", Row(type=2, replica_id=1, lsn=1, tsn=2**64 - 5, commit=True, body=b"\x81\x10\x01")),
    ):
        data = b"".join(bytes(part) for part in encode_block(encode_row(row)))
        (tmp_path / "00000000000000000000.xlog").write_bytes(meta.replace(b"\n\nV", b"\nV") + data)
        with pytest.raises(CorruptBlock, match=f"{name} .* lsn 1 does not fit"):
            list(pipeline.batches(tmp_path))
        (kept,) = rows_of(pipeline.batches(tmp_path, columns=["header", "body"]))
        assert kept["header"] + kept["body"] == encode_row(row)


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lsn_form": "5"}, "lsn_form"),
        ({"lsn_from": "5"}, "add replica_id"),
        ({"replica_id": "32"}, "0 … 31"),
        ({"columns": "lsn,nothing"}, "nothing"),
        ({"columns": "lsn,lsn"}, "twice"),
        ({"columns": "crc_ok"}, "on_error=report"),
        ({"kinds": "vylog"}, "vylog"),
        ({"split_bytes": "0"}, "from 1 on"),
        ({"split_bytes": "9" * 5000}, "from 1 on"),
        ({"verify": "yes"}, "true or false"),
        ({"vclock_from": "{1: x}"}, "vclock"),
        ({"vclock_from": '{"1": "x"}'}, "vclock"),
        ({"vclock_from": "[" * 100_000 + '"'}, "vclock"),
        ({"time_from": "nan"}, "time"),
        ({"types": "truncate"}, "no type"),
        ({"url": "tarantool://h"}, "either a path or a url"),
        ({"paths": "{}"}, "paths"),
        ({"on_error": "ignore"}, "fail, skip, report"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, str], message: str) -> None:
    """Nothing is read with an option that is not understood."""
    with pytest.raises(ConfigError, match=message):
        ScanOptions.parse({"path": "/data", **options})


def test_options_survive_their_text() -> None:
    """`to_text` gives what `parse` reads as the same options, in any case of the names."""
    options = ScanOptions.parse(
        {
            "Path": "/a,b",
            "COLUMNS": "lsn, tuple",
            "spaces": "512,orders",
            "types": "insert,DELETE",
            "vclock_from": '{"1": 5, "2": 7}',
            "time_to": "2026-11-20T00:00:00Z",
            "live": "False",
        }
    )
    assert ScanOptions.parse(options.to_text()) == options
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.vclock_from == VClock({1: 5, 2: 7})


def test_relative_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is planned in one folder is read in another: a worker's need not be the driver's."""
    write_log(tmp_path / "data", blocks=2, per_block=1, base=b"x", max_bytes=1 << 20)
    monkeypatch.chdir(tmp_path)
    options = ScanOptions.parse({"path": "data"})
    monkeypatch.chdir("/")
    assert len(rows_of(scan(plan(options).splits[0], options))) == 2
    assert ScanOptions.parse({"path": "s3://bucket/logs"}).paths == ("s3://bucket/logs",)


def test_readers_take_no_filters_from_spark() -> None:
    """No reader has `pushFilters`: in Spark 4.3.0 what one query pushed down stays with the
    loaded DataFrame, so `df.filter(a)` united with `df.filter(b)` gives the rows of b twice.
    Options, of which each `load()` has its own, leave rows out instead."""
    source = LogweirSource({"path": str(sample("01-fresh").folder)})
    reader = LogweirReader(ScanOptions.parse(dict(source.options)))
    assert "pushFilters" not in {name for one in type(reader).__mro__[:-3] for name in vars(one)}
    again = pickle.loads(pickle.dumps(reader))
    assert sum(len(rows_of(again.read(one))) for one in again.partitions()) == 513
    assert list(again.read(None)) == []


# --- file systems ---------------------------------------------------------------------------------


def test_files_behind_a_url_are_read_alike() -> None:
    """`file://` and a file system of fsspec give the rows of the local folder."""
    import fsspec

    folder = sample("02-spaces").folder
    local = rows_of(pipeline.batches(folder, columns=ALL))
    assert rows_of(pipeline.batches(folder.as_uri(), columns=ALL)) == local
    memory = fsspec.filesystem("memory")
    for path in folder.iterdir():
        memory.pipe(f"/logs/{path.name}", path.read_bytes())
    assert rows_of(pipeline.batches("memory://logs", columns=ALL, split_bytes=3000)) == local
    with pytest.raises(WalError, match="no such file"):
        list(pipeline.batches("memory://nothing"))


def test_arrow_file_systems_are_read_by_ranges() -> None:
    """A `pyarrow.fs` file system lists, reads ranges, and writes nothing."""
    from pyarrow import fs

    folder = sample("02-spaces").folder
    system = UrlFileSystem(fs.LocalFileSystem())
    name = "00000000000000000463.xlog"
    assert name in system.list_directory(folder)
    file = system.open_read(folder / name)
    data = (folder / name).read_bytes()
    assert file.size() == len(data)
    assert file.read(100, 50) == data[50:150]
    assert file.read(100, len(data) - 10) == data[-10:]
    file.close()
    for call in (system.create, system.remove, system.make_directory, system.open_append):
        with pytest.raises(OSError, match="cannot be written"):
            call(folder / name)


def test_an_unknown_file_system_is_named() -> None:
    """Neither pyarrow nor fsspec knows the scheme."""
    with pytest.raises(ConfigError, match="nosuchfs"):
        open_storage("nosuchfs://bucket/logs")


def test_schema_is_what_spark_makes_of_the_ddl() -> None:
    """The batches' Arrow schema equals the one that Spark derives from the columns."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import (
        BinaryType,
        BooleanType,
        DoubleType,
        IntegerType,
        LongType,
        ShortType,
        StringType,
        StructType,
        TimestampType,
    )

    types = {
        "STRING": StringType(),
        "BIGINT": LongType(),
        "INT": IntegerType(),
        "SMALLINT": ShortType(),
        "DOUBLE": DoubleType(),
        "BINARY": BinaryType(),
        "BOOLEAN": BooleanType(),
        "TIMESTAMP": TimestampType(),
    }
    struct = StructType()
    for name, kind in COLUMNS.items():
        struct.add(name, types[kind])
    assert arrow_schema(list(COLUMNS)) == to_arrow_schema(struct, timezone="UTC")


def test_batches_of_a_group_are_of_one_size(tmp_path: Path) -> None:
    """A group that is a little too large for one batch is halved; all its rows are there."""
    write_log(tmp_path, blocks=1, per_block=103, base=b"base", max_bytes=2**40)
    found = list(pipeline.batches(tmp_path, batch_rows=100))
    assert [batch.num_rows for batch in found] == [52, 51]
    assert [row["row_in_block"] for row in rows_of(found)] == list(range(103))
    chosen = list(pipeline.batches(tmp_path, batch_rows=100, replica_id=1, lsn_to=101))
    assert [batch.num_rows for batch in chosen] == [51, 50]
    assert [row["lsn"] for row in rows_of(chosen)] == list(range(1, 102))
    for row in rows_of(chosen):
        assert row["tuple"] == pack([row["lsn"], b"base"])


# --- checks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_right", [True, False])
def test_a_frame_that_does_not_unpack_is_found_by_unpacking(tmp_path: Path, is_right: bool) -> None:
    """Its checksum may match all the same; plain blocks and whole frames pass."""
    write_log(tmp_path, blocks=2, per_block=3, base=b"base", max_bytes=2**40)
    log = min(tmp_path.glob("*.xlog"))
    data = log.read_bytes()
    payload = bytes(encode_block(rows(b"base" * 100, 30, 7))[1])
    if not is_right:
        payload = payload[:-9] + bytes(9)
    header = encode_fixheader("zstd", len(payload), checksum(payload))
    log.write_bytes(data[:-4] + header + payload + data[-4:])
    ((one,),) = [split.ranges for split in plan(ScanOptions(paths=(str(tmp_path),))).splits]
    assert check_blocks(one)[::3] == (3, None)
    blocks, end, bad, reason = check_blocks(one, unpack=True)
    if is_right:
        assert (blocks, end, bad, reason) == (3, len(data) - 4 + 19 + len(payload), None, None)
    else:
        assert (blocks, end, bad) == (2, len(data) - 4, len(data) - 4)
        assert "checksum matches but zstd" in (reason or "")


def test_the_first_of_several_faults_is_told(tmp_path: Path) -> None:
    """A block that does not unpack in front of one with a flipped bit, and behind it."""
    write_log(tmp_path, blocks=1, per_block=3, base=b"base", max_bytes=2**40)
    log = min(tmp_path.glob("*.xlog"))
    data = log.read_bytes()
    frame = bytes(encode_block(rows(b"base" * 100, 30, 7))[1])[:-9] + bytes(9)
    unpackable = encode_fixheader("zstd", len(frame), checksum(frame)) + frame
    plain = encode_fixheader("plain", 5, checksum(b"right")) + b"wrong"
    at = len(data) - 4
    for blocks, told in (((unpackable, plain), "matches but zstd"), ((plain, unpackable), "says")):
        log.write_bytes(data[:-4] + b"".join(blocks) + data[-4:])
        ((one,),) = [split.ranges for split in plan(ScanOptions(paths=(str(tmp_path),))).splits]
        done, end, bad, reason = check_blocks(one, unpack=True)
        assert (done, end, bad) == (1, at, at)
        assert told in (reason or "")
