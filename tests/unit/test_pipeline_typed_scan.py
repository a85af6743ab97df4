"""Typed changes of a log without Spark: `batches` with a space, and files made of them."""

from __future__ import annotations

import csv
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from samples import sample
from support import cells as oracle
from typer.testing import CliRunner

import logweir
from logweir import errors, pipeline
from logweir.pipeline import cells
from logweir.pipeline.jobs.spaces import columns_of, resolved
from logweir.pipeline.jobs.typed import TypedColumns
from logweir.pipeline.onefile import _gathered, write_file
from logweir.pipeline.options import ScanOptions, list_text
from logweir.pipeline.typedrows import definition_text, space_of_text
from logweir.tools.cli.main import app

FRONT = ["op", "replica_id", "lsn", "time"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a space of several types, whose format had another field at first."""
    path = tmp_path_factory.mktemp("typed") / "data"
    with logweir.open(path) as log:
        fields = [("id", "unsigned"), ("op", "string", True), ("a, b", "any", True)]
        log.create_space("goods", format=[(one[0], one[1]) for one in fields[:1]])
        log.create_space("others", format=[("id", "unsigned")])
        log.append("goods", [[1], [2**64 - 1, "text"], [3, b"\xff", {"k": [1.5, None]}, 7]])
        log.insert("others", [1])
        log.update("goods", 1, [("=", 1, "new")])
        log.upsert("goods", [9, "up"], [("=", 1, "date")])
        log.delete("goods", 9)
    return path


def definition(folder: Path, name: str = "goods") -> Any:
    """The space's definition as it was looked up."""
    return space_of_text(resolved(ScanOptions(paths=(str(folder),), space=name)).space)


@pytest.mark.parametrize("integers", ["decimal", "long"])
def test_changes_of_a_space_are_typed(folder: Path, integers: str) -> None:
    """Each row of the space and no other, its columns those of one object per cell."""
    raw = pipeline.batches(
        folder, kinds="xlog", spaces="goods", columns=["type_name", "lsn", "key", "tuple", "ops"]
    ).read_all()
    found = pipeline.batches(folder, space="goods", integers=integers).read_all()
    assert found.column("op").to_pylist() == raw.column("type_name").to_pylist()
    assert found.column("op").to_pylist() == ["INSERT"] * 3 + ["UPDATE", "UPSERT", "DELETE"]
    assert found.column("lsn").to_pylist() == raw.column("lsn").to_pylist()
    typed = TypedColumns(definition(folder), integers, reserved=(*FRONT, "_ops"))
    wanted = oracle.of_keys(typed, raw.column("key").to_pylist(), raw.column("tuple").to_pylist())
    assert found.column_names == [*FRONT, *typed.types, "_ops"]
    assert [found.column(name).to_pylist() for name in typed.types] == [
        one.to_pylist() for one in wanted
    ]
    operations = [one and json.loads(one) for one in found.column("_ops").to_pylist()]
    assert operations == [None] * 3 + [[["=", 1, "new"]], [["=", 1, "date"]], None]


def test_columns_and_positions_are_chosen(folder: Path) -> None:
    """Some columns in the order asked for, rows after a position; `_rest` is as with all."""
    every = pipeline.batches(folder, space="goods").read_all()
    last = every.column("lsn")[-2].as_py()
    some = pipeline.batches(
        folder, space="goods", columns=["_rest", "lsn"], vclock_from={1: last}
    ).read_all()
    assert some.column_names == ["_rest", "lsn"]
    assert some.to_pylist() == every.select(["_rest", "lsn"]).to_pylist()[-1:]
    whole = pipeline.batches(folder, space="goods", columns=["_rest"]).read_all()
    assert whole.column(0).to_pylist() == every.column("_rest").to_pylist()
    assert any(whole.column(0).to_pylist())


def test_no_row_still_has_columns(folder: Path) -> None:
    """Behind the end there is no batch, and a schema."""
    found = pipeline.batches(folder, space="others", vclock_from={1: 10**9})
    assert found.schema.names == [*FRONT, "id", "_rest", "_ops"]
    assert list(found) == []


def test_names_that_are_none_are_refused_at_once(folder: Path) -> None:
    """A column, a space, options that do not go together: before a batch is read."""
    with pytest.raises(errors.ConfigError, match="nothing"):
        pipeline.batches(folder, space="goods", columns=["lsn", "nothing"])
    with pytest.raises(errors.RequestError, match="nothing"):
        pipeline.batches(folder, space="nothing")
    with pytest.raises(errors.ConfigError, match="spaces"):
        pipeline.batches(folder, space="goods", spaces="others")
    with pytest.raises(errors.ConfigError, match="on_error"):
        pipeline.batches(folder, space="goods", on_error="report")
    with pytest.raises(errors.ConfigError, match="no definition"):
        pipeline.batches(folder, space='{"id": 1}')
    with pytest.raises(errors.ConfigError, match="url has none"):
        resolved(ScanOptions(url="tarantool://h:1", space="goods"))


def test_a_definition_travels_as_text() -> None:
    """Names with commas, odd bytes and paths of keys come back as they were; so do options."""
    from logweir.store.schema.definition import FieldDef, IndexDef, IndexType, PartDef, SpaceDef
    from logweir.store.schema.fieldtype import FieldType

    fields = (FieldDef("a, b", FieldType.MAP), FieldDef("\udcff", FieldType.UNSIGNED, True))
    parts = (PartDef(0, FieldType.STRING, path="x"), PartDef(1, FieldType.UNSIGNED, True))
    space = SpaceDef(700, 1, "o", fields=fields).with_indexes(
        (IndexDef(700, 0, "primary", IndexType.TREE, parts),)
    )
    text = definition_text(space)
    assert definition_text(space_of_text(text)) == text
    options = ScanOptions(paths=("/x",), kinds=("xlog",), space=text, columns=("a, b", "lsn"))
    again = ScanOptions.parse(options.to_text())
    assert again == options
    assert columns_of(again)[0] == ("a, b", "lsn")
    assert list_text(["a", "b"]) == "a,b"


def test_damage_is_raised_as_what_it_is(folder: Path, tmp_path: Path) -> None:
    """A flipped bit in the log: the reader's own error, with file and byte."""
    for file in folder.glob("*.*"):
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    log = max(tmp_path.glob("*.xlog"))
    data = bytearray(log.read_bytes())
    data[data.index(b"text")] ^= 1
    log.write_bytes(data)
    text = definition_text(definition(folder))
    with pytest.raises(errors.CorruptBlock) as caught:
        list(pipeline.batches(tmp_path, space=text))
    assert caught.value.path == str(log)
    assert caught.value.offset is not None


def test_a_real_tarantool_is_read() -> None:
    """The log of a Tarantool: as many rows as the raw scan has."""
    path = sample("04-crashed").folder
    raw = pipeline.batches(path, kinds="xlog", columns=["space_id"]).read_all().column(0)
    wanted = max(one for one in raw.to_pylist() if one is not None)
    found = pipeline.batches(path, space=wanted).read_all()
    assert found.num_rows == raw.to_pylist().count(wanted)


# --- files ----------------------------------------------------------------------------------------


def test_files_hold_what_the_batches_have(folder: Path, tmp_path: Path) -> None:
    """Parquet and Arrow the same table, CSV and JSON lines the same values."""
    for ending in ("parquet", "arrow", "csv", "jsonl"):
        done = write_file(tmp_path / f"out.{ending}", pipeline.batches(folder, space="goods"))
        assert done.rows == 6
    table = pipeline.batches(folder, space="goods").read_all()
    assert pa.parquet.read_table(tmp_path / "out.parquet").equals(table)
    with pa.OSFile(str(tmp_path / "out.arrow")) as file:
        assert pa.ipc.open_file(file).read_all().equals(table)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == list(map(int, table.column("id").to_pylist()))
    assert [line["_rest"] for line in lines] == table.column("_rest").to_pylist()
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as text:
        shown = list(csv.DictReader(text))
    assert [*shown[0]] == table.column_names
    assert [row["_rest"] or None for row in shown] == table.column("_rest").to_pylist()
    assert [int(row["id"]) for row in shown] == list(map(int, table.column("id").to_pylist()))
    assert not list(tmp_path.glob(".*"))


def test_binary_is_base64_in_csv(tmp_path: Path) -> None:
    """CSV has no binary."""
    schema = pa.schema([("b", pa.binary()), ("n", pa.decimal128(20, 0))])
    batch = pa.record_batch([[b"\0\xff", None], [Decimal(1), None]], schema=schema)
    write_file(tmp_path / "o.csv", pa.RecordBatchReader.from_batches(schema, [batch]))
    assert (tmp_path / "o.csv").read_text() == '"b","n"\n"AP8=",1\n,\n'


def test_times_of_any_year_are_text_in_json_lines(tmp_path: Path) -> None:
    """Years that `datetime` does not know are written as `Date` of ECMAScript reads them."""
    wanted = {
        0: "1970-01-01T00:00:00+00:00",
        253_402_300_799_999_999: "9999-12-31T23:59:59.999999+00:00",
        253_402_300_800_000_000: "+010000-01-01T00:00:00+00:00",
        -62_135_596_800_000_001: "+000000-12-31T23:59:59.999999+00:00",
        2**63 - 1: "+294247-01-10T04:00:54.775807+00:00",
        1 - 2**63: "-290308-12-21T19:59:05.224193+00:00",
    }
    times = pa.array([*wanted, None], pa.timestamp("us", tz="UTC"))
    batch = pa.record_batch([times], names=["time"])
    write_file(tmp_path / "o.jsonl", pa.RecordBatchReader.from_batches(batch.schema, [batch]))
    lines = (tmp_path / "o.jsonl").read_text().splitlines()
    assert [json.loads(line)["time"] for line in lines] == [*wanted.values(), None]


def test_nothing_is_left_of_a_file_that_could_not_be_made(folder: Path, tmp_path: Path) -> None:
    """Batches that fail, a name that is taken, another ending, a folder that is not there."""

    def failing() -> Any:
        yield from pipeline.batches(folder, space="goods")
        raise errors.CorruptBlock("bad.", path="/x", offset=5)

    schema = pipeline.batches(folder, space="goods").schema
    with pytest.raises(errors.CorruptBlock, match="bad"):
        write_file(tmp_path / "o.parquet", pa.RecordBatchReader.from_batches(schema, failing()))
    with pytest.raises(errors.ConfigError, match="ends in none"):
        write_file(tmp_path / "o.txt", pipeline.batches(folder, space="goods"))
    with pytest.raises(errors.WalError, match="absent"):
        write_file(tmp_path / "absent" / "o.csv", pipeline.batches(folder, space="goods"))
    assert not list(tmp_path.iterdir())
    (tmp_path / "o.csv").write_text("mine")
    with pytest.raises(errors.ConfigError, match="there already"):
        write_file(tmp_path / "o.csv", pipeline.batches(folder, space="goods"))
    assert (tmp_path / "o.csv").read_text() == "mine"


def test_the_command_writes_the_changes_of_one_space(folder: Path, tmp_path: Path) -> None:
    """Rows and size are told; what is wrong has its exit code and leaves nothing."""
    to = tmp_path / "goods.jsonl"
    arguments = ["changes", str(folder), "--space", "goods", "--columns", "lsn,id", "-o", str(to)]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"to": str(to), "rows": 6, "size": to.stat().st_size}
    every = [json.loads(line) for line in to.read_text().splitlines()]
    assert [sorted(row) for row in every] == [["id", "lsn"]] * 6
    to.unlink()
    last = every[-1]["lsn"]
    some = CliRunner().invoke(app, [*arguments, "--from", f"{{1: {last - 1}}}", "--to", "{1: 99}"])
    assert some.stdout == f"{to}: 1 rows, {to.stat().st_size} B\n"
    assert json.loads(to.read_text()) == every[-1]
    for more, code in (
        ([], 2),  # it is there
        (["--from", "9"], 2),
        (["-o", str(tmp_path / "o.csv"), "--space", "nothing"], 1),
        (["-o", str(tmp_path / "o.csv"), "--columns", "nothing"], 2),
    ):
        assert CliRunner().invoke(app, [*arguments, *more]).exit_code == code, more
    assert list(tmp_path.iterdir()) == [to]


def test_large_rows_are_written_in_smaller_groups() -> None:
    """What is gathered is bounded in bytes, not only in rows: base64 of it fits into a column."""
    batch = pa.RecordBatch.from_arrays([pa.array([bytes(2**24)])], ["tuple"])
    groups = list(_gathered(pa.RecordBatchReader.from_batches(batch.schema, [batch] * 40)))
    assert sum(one.num_rows for one in groups) == 40
    assert max(one.nbytes for one in groups) < 2**28


def test_more_text_than_a_column_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of offsets that begin anew; the bound is made small here."""
    monkeypatch.setattr(cells, "_OFFSET_MAX", 9)
    assert cells.texts(["12345", None, "6789"]).to_pylist() == ["12345", None, "6789"]
    with pytest.raises(errors.LimitExceeded, match="ARROW_OFFSET"):
        cells.texts(["12345", "67890"])
