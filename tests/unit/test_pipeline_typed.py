"""Typed columns, errors on their way, and parts of snapshots: the jobs' pieces without Spark."""

from __future__ import annotations

import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from samples import sample
from support.folding import staged_here, state_here

from logweir import errors
from logweir.errors import ConfigError, DecodeError, LogweirError, WalError
from logweir.pipeline.jobs.compact import publish
from logweir.pipeline.jobs.imports import pack_batches
from logweir.pipeline.jobs.typed import TypedColumns, plain
from logweir.pipeline.jobs.work import TaskError, carrying, typed_errors
from logweir.store.schema.definition import FieldDef, SpaceDef
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.named import REST
from logweir.wal.mp import pack, unpack_at
from logweir.wal.snapshot import read_snapshot

KINDS = list(FieldType)


def space(*kinds: FieldType) -> SpaceDef:
    """A space with a field of each of these types, named after it."""
    fields = tuple(FieldDef(kind.label, kind, is_nullable=True) for kind in kinds)
    return SpaceDef(600, 1, "typed", fields=fields)


VALUES: list[list[Any]] = [
    [
        2**64 - 1,
        "text",
        1.5,
        0.25,
        -(2**63),
        True,
        b"\0\xff",
        "1",
        Decimal("1.50"),
        uuid.UUID(int=7),
    ],
    [0, "", 2**63, float("inf"), 2**64 - 1, False, b"", 1, Decimal("-1e30"), uuid.UUID(int=0)],
    [None] * 10,
    ["wrong", 5, "no number", 1, 1.5, "true", "text", None, 1.0, "u"],
    [
        1,
        "\udcff\udcfe",
        Decimal("0.1"),
        -0.0,
        1,
        None,
        None,
        [1, {"a": None}],
        None,
        None,
        "more",
        None,
        3,
    ],
]
ORDER = [
    *(FieldType.UNSIGNED, FieldType.STRING, FieldType.NUMBER, FieldType.DOUBLE),
    *(FieldType.INTEGER, FieldType.BOOLEAN, FieldType.VARBINARY, FieldType.ANY),
    *(FieldType.DECIMAL, FieldType.UUID),
]


@pytest.mark.parametrize("integers", ["decimal", "long"])
@pytest.mark.parametrize("values", VALUES, ids=range(len(VALUES)))
def test_every_tuple_comes_back_from_its_columns(values: list[Any], integers: str) -> None:
    """Unsigned 64-bit numbers, decimals, misfits, bytes that are no text, extra fields: carried."""
    typed = TypedColumns(space(*ORDER), integers)
    batch = pa.RecordBatch.from_arrays(typed.of([pack(values)]), schema=typed.schema)
    (again,) = typed.from_columns(batch)
    wanted = list(values)
    while wanted and wanted[-1] is None:
        wanted.pop()
    assert repr(again) == repr(wanted)


def test_what_does_not_fit_stands_in_rest() -> None:
    """A number beyond BIGINT is null there and whole in `_rest`; a fitting one is not."""
    typed = TypedColumns(space(FieldType.UNSIGNED), "long")
    columns = typed.of([pack([2**64 - 1]), pack([2**63 - 1]), None])
    assert columns[0].to_pylist() == [None, 2**63 - 1, None]
    assert columns[1].to_pylist() == ['{"0": 18446744073709551615}', None, None]
    exact = TypedColumns(space(FieldType.UNSIGNED)).of([pack([2**64 - 1])])
    assert exact[0].to_pylist() == [Decimal(2**64 - 1)]


def test_decimals_of_a_scale_are_numbers() -> None:
    """Exactly, with all 38 digits and both signs; what has more of them is whole in `_rest`; and a
    scale that no column has is refused."""
    typed = TypedColumns(space(FieldType.DECIMAL), decimals="2")
    largest, least = Decimal("9" * 36 + ".99"), Decimal("-" + "9" * 36 + ".99")
    fitting = [Decimal(text) for text in ("1.5", "-0.07", "1E+3", "2.500", "0.000")]
    given = [*fitting, largest, least, Decimal("0.001"), Decimal("1E+36"), 7]
    column, rest = typed.of([*(pack([value]) for value in given), pack([None]), None])
    assert column.type == pa.decimal128(38, 2)
    assert column.to_pylist() == [*fitting, largest, least, *[None] * 5]
    odd = ['{"0": {"$decimal": "0.001"}}', '{"0": {"$decimal": "1E+36"}}', '{"0": 7}']
    assert rest.to_pylist() == [*[None] * 7, *odd, None, None]
    batch = pa.RecordBatch.from_arrays([column, rest], schema=typed.schema)
    assert [one[0] for one in typed.from_columns(batch)[:10]] == given
    with pytest.raises(DecodeError, match="decimal"):
        typed.of([b"\x91\xc7\x03\x01\x02\xaa\x1c"])
    for wrong in ("39", "-1", "float", ""):
        with pytest.raises(ConfigError, match="decimals"):
            TypedColumns(space(), decimals=wrong)


def test_names_that_differ_in_case_only_are_told_apart() -> None:
    """Spark would not tell them apart; `_rest` stays ours."""
    fields = tuple(FieldDef(name, FieldType.ANY) for name in ("a", "A", REST, "a_2"))
    typed = TypedColumns(SpaceDef(600, 1, "named", fields=fields))
    names = [one.name.lower() for one in typed.columns]
    assert len(set(names)) == 4
    assert REST not in names


def test_wrong_columns_and_values_are_refused_by_name() -> None:
    """A column that is no field; a value that a field cannot hold."""
    typed = TypedColumns(space(FieldType.UNSIGNED, FieldType.BOOLEAN))
    with pytest.raises(ConfigError, match="nothing"):
        typed.from_columns(pa.RecordBatch.from_pydict({"nothing": [1]}))
    with pytest.raises(DecodeError, match="unsigned"):
        typed.from_columns(pa.RecordBatch.from_pydict({"unsigned": [1.5]}))
    with pytest.raises(DecodeError, match="boolean"):
        typed.from_columns(pa.RecordBatch.from_pydict({"boolean": ["maybe"]}))
    with pytest.raises(ConfigError, match="integers"):
        TypedColumns(space(), "float")


def test_plain_columns_become_tuples() -> None:
    """What CSV and Parquet give: text of numbers, lists, structs, times."""
    batch = pa.RecordBatch.from_pydict({"unsigned": ["7"], "any": [{"a": [1, None]}]})
    wanted = space(FieldType.UNSIGNED, FieldType.ANY)
    (packed,) = pack_batches(wanted, [batch])
    data = packed.column("tuples")[0].as_py()
    assert unpack_at(data, 0)[0] == [7, {"a": [1, None]}]
    assert plain([("k", 1)]) == {"k": 1}


@pytest.mark.parametrize(
    "error",
    [
        errors.CorruptBlock("bad.", path="/a b/1.xlog", offset=97, hint="do"),
        errors.CorruptFile("no header.", path="/x", hint="look"),
        errors.ChainGap("rows.", path="/x", expected="{1: 5}", found="{1: 7}", hint="verify"),
        errors.RequestError(errors.ErrorCode.UNSUPPORTED, "no collation", hint="install"),
        errors.LimitExceeded("ROWS", 5, 6, hint="less"),
        errors.DecodeError("cut", offset=3),
        errors.ConfigError("key", "wrong", origin="option", hint="right"),
        errors.PositionUnavailable("{1: 5}", "{}", "{1: 4}", hint="wait"),
        errors.Unreachable("tank://h", "gone"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_a_task_arrives_as_what_it_was(error: LogweirError) -> None:
    """Class, message, place and hint survive being text in Spark's exception."""
    pyspark = pytest.importorskip("pyspark.errors")

    def fail() -> Any:
        raise error
        yield

    with pytest.raises(TaskError) as sent:
        list(carrying(fail)())
    with pytest.raises(LogweirError) as caught, typed_errors():
        raise pyspark.PySparkException(f"Traceback …\n{sent.value}\n at java.lang.Thread")
    found = caught.value
    assert str(found) == str(error)
    if not isinstance(error, errors.Unreachable):
        assert type(found) is type(error)
    assert getattr(found, "offset", None) == getattr(error, "offset", None)


def test_an_error_of_the_data_source_is_read_from_its_traceback() -> None:
    """What the format itself raises has no mark: class, file and byte are read from the text."""
    pyspark = pytest.importorskip("pyspark.errors")
    error = errors.CorruptBlock("block checksum is 1.", path="/data/1.xlog", offset=97, hint="copy")
    text = f"Traceback:\n  File x\nlogweir.errors.CorruptBlock: {error}\n\tat org.apache"
    with pytest.raises(errors.CorruptBlock) as caught, typed_errors():
        raise pyspark.PySparkException(text)
    assert (caught.value.path, caught.value.offset) == ("/data/1.xlog", 97)
    with pytest.raises(pyspark.PySparkException), typed_errors():
        raise pyspark.PySparkException("something of Spark's own")


def test_a_task_that_ran_twice_counts_once(tmp_path: Path) -> None:
    """Parts of other attempts lie in the staging folder and are in no snapshot."""
    stage, target = tmp_path / "stage", tmp_path / "target"
    stage.mkdir()
    target.mkdir()
    prepared, parts = staged_here(sample("04-crashed").folder, stage)
    assert len(list(stage.iterdir())) == 2 * len(parts)
    done = publish(prepared, parts, stage, target, 1.0)
    found: dict[int, list[bytes]] = {}
    for block in read_snapshot(done.path):
        columns = block.columns
        for row in range(len(columns)):
            found.setdefault(columns.space_id[row], []).append(columns.tuple_bytes(row) or b"")
    assert found == state_here(prepared)
    assert done.rows == sum(map(len, found.values()))


def test_a_part_that_is_not_as_it_was_written_is_refused(tmp_path: Path) -> None:
    """Another byte in a staged part: no snapshot, and nothing half-written."""
    stage, target = tmp_path / "stage", tmp_path / "target"
    stage.mkdir()
    target.mkdir()
    prepared, parts = staged_here(sample("04-crashed").folder, stage)
    data = bytearray((stage / parts[0].name).read_bytes())
    data[-1] ^= 1
    (stage / parts[0].name).write_bytes(data)
    with pytest.raises(WalError, match="CRC"):
        publish(prepared, parts, stage, target, 1.0)
    assert list(target.iterdir()) == []
