"""What no path, option or place is, is refused by name, before anything is read or started."""

from __future__ import annotations

import json
import math
import os
import resource
import uuid
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from samples import sample
from support.folding import look_here

from logweir import pipeline
from logweir.errors import ConfigError, WalError
from logweir.pipeline.jobs import exports
from logweir.pipeline.jobs.commits import commit, read_places
from logweir.pipeline.jobs.exports import _seconds, changes, lines
from logweir.pipeline.jobs.folding import prepare
from logweir.pipeline.jobs.places import Place, told_as
from logweir.pipeline.jobs.work import typed_errors
from logweir.pipeline.options import ScanOptions
from logweir.pipeline.parts import PartWriter, SinkLayout
from logweir.pipeline.storage import UrlFileSystem, connect
from logweir.wal.directory import scan_directory
from logweir.wal.mp import pack

NO_PATHS = [None, 3, b"data", "", "a\0b", [None], [["data"]]]
NO_SPARK: Any = None
NAME = "orders"
CALLS: dict[str, Callable[[Any, Path], object]] = {
    "batches": lambda given, folder: pipeline.batches(given),
    "state": lambda given, folder: pipeline.state(NO_SPARK, given),
    "table": lambda given, folder: pipeline.table(NO_SPARK, given, "t"),
    "verify": lambda given, folder: pipeline.verify(NO_SPARK, given),
    "compact": lambda given, folder: pipeline.compact(NO_SPARK, given, folder),
    "compact to": lambda given, folder: pipeline.compact(NO_SPARK, folder, given),
    "export": lambda given, folder: pipeline.export(NO_SPARK, given, folder / "new"),
    "export to": lambda given, folder: pipeline.export(NO_SPARK, folder, given),
    "delta to": lambda given, folder: pipeline.export(NO_SPARK, folder, given, format="delta"),
    "cdc": lambda given, folder: pipeline.cdc(NO_SPARK, given, folder, folder),
    "cdc checkpoint": lambda given, folder: pipeline.cdc(NO_SPARK, folder, folder, given),
    "import": lambda given, folder: pipeline.import_rows(NO_SPARK, given, folder, "t"),
    "import to": lambda given, folder: pipeline.import_frame(NO_SPARK, given, "t"),
    "zip": lambda given, folder: pipeline.py_files(given),
    "leased": lambda given, folder: pipeline.leased(folder, given).__enter__(),
}


@pytest.mark.parametrize("given", NO_PATHS, ids=repr)
@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_what_is_no_path_is_refused(
    call: Callable[[Any, Path], object], given: Any, tmp_path: Path
) -> None:
    """By every call that takes one."""
    with pytest.raises(ConfigError, match="is no path and no URL"):
        call(given, tmp_path)


@pytest.mark.parametrize("call", ["state", "compact", "export", "import"])
def test_no_path_at_all_is_refused(call: str, tmp_path: Path) -> None:
    """A job over nothing is a mistake, and not an empty answer."""
    with pytest.raises(ConfigError, match="names no folder or file"):
        CALLS[call]([], tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spaces": [10**30]}, r"spaces .*000 is no id of a space"),
        ({"types": [10**30]}, r"types .*000 is no type of row"),
        ({"types": "insrt"}, r"types .*'insrt' is no type of row"),
        ({"time_from": "yesterday"}, r"time_from .*'yesterday' is no time"),
        ({"vclock_from": '{"1": 1.5}'}, r"vclock_from .*is no vclock"),
        ({"vclock_from": '{"1": true}'}, r"vclock_from .*is no vclock"),
        ({"vclock_from": '{"1": "x"}'}, r"vclock_from .*is no vclock"),
        ({"vclock_to": '{"1": -1}'}, r"vclock_to .*unexpected '-'"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_refused_with_its_option(
    options: dict[str, Any], message: str
) -> None:
    """Not with what Python says of it, and not later."""
    with pytest.raises(ConfigError, match=message):
        pipeline.batches(sample("02-spaces").folder, **options)


def test_a_vclock_in_json_is_the_vclock() -> None:
    """With text for keys, as offsets have them, in any order."""
    parsed = ScanOptions.parse({"path": "/data", "vclock_from": '{"2": 7, "1": 5}'})
    assert parsed.vclock_from == {1: 5, 2: 7}


@pytest.mark.parametrize("url", ["tarantool://h:3301", "tank://h/t", "tap://h/b", "synapse://h"])
def test_the_address_of_a_server_is_no_path(url: str) -> None:
    """The error says where it belongs."""
    with pytest.raises(ConfigError, match=r"is the address of a server.*give it as url"):
        pipeline.batches(url).read_all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"until": "2026-01-01"}, "until .*no vclock and no time.*seconds since 1970"),
        ({"until": [1]}, "until .*no vclock and no time"),
        ({"until": math.nan}, "until .*is nan"),
        ({"until": {1: -5}}, "until .*lsn -5"),
        ({"until": {99: 1}}, "until .*replica id 99"),
        ({"until": {"1": 5}}, "until .*no vclock"),
        ({"parts": 0}, "parts .*'0'"),
        ({"parts": "some"}, "parts .*'some'"),
        ({"split_bytes": -1}, "split_bytes .*'-1'"),
        ({"spacess": ["t"]}, "spacess .*is no option of a state.*parts, snapshot, spaces"),
    ],
    ids=str,
)
def test_a_state_of_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    """A time that is no number was no bound once, and a list one that holds nothing."""
    with pytest.raises(ConfigError, match=message):
        pipeline.state(NO_SPARK, sample("02-spaces").folder, **options)


@pytest.mark.parametrize(
    "options",
    [
        *({"until": kind(10**10)} for kind in (int, np.int64, np.float32, Fraction, Decimal)),
        {"until": math.inf},
        {"parts": 2.0},
        {"parts": np.int64(2)},
        {"split_bytes": 1e6},
    ],
    ids=repr,
)
def test_numbers_of_any_type_bound_a_state(options: dict[str, Any]) -> None:
    """As what a table or a calculation gives."""
    folder, plain = sample("02-spaces").folder, {"until": 1e10} if "until" in options else {}
    found, wanted = (prepare(look_here, [folder], **one) for one in (options, plain))
    assert found.plan.end == wanted.plan.end


@pytest.mark.parametrize("given", [np.int64(5), np.float32(1.5), Decimal(5), 0, "5"], ids=repr)
def test_seconds_may_be_of_any_type(given: object) -> None:
    """They are shown to Spark as they are."""
    assert _seconds(given) == float(str(given))


def test_the_only_space_of_a_state_may_be_named_alone() -> None:
    """Its name was taken for names of one letter once."""
    folder = sample("02-spaces").folder
    alone, listed = (prepare(look_here, [folder], spaces=one) for one in (NAME, [NAME]))
    assert alone.plan.only == listed.plan.only
    assert alone.plan.only


def test_a_state_is_not_exported_by_options_of_a_scan(tmp_path: Path) -> None:
    """They were passed over in silence once."""
    with pytest.raises(ConfigError, match=r"time_from .*of changes, not of the state"):
        pipeline.export(NO_SPARK, tmp_path, tmp_path / "n", what="state", time_from="2026-01-01")


@pytest.mark.parametrize("size", [0, -1, "large"])
def test_a_check_in_parts_of_no_size_is_refused(size: Any) -> None:
    """By name."""
    with pytest.raises(ConfigError, match=r"split_bytes .*is not a whole number"):
        pipeline.verify(NO_SPARK, sample("02-spaces").folder, split_bytes=size)


@pytest.mark.parametrize("call", [changes, lines])
def test_columns_of_all_spaces_cannot_be_chosen(call: Callable[..., object]) -> None:
    """They were passed over in silence once."""
    with pytest.raises(ConfigError, match=r"columns .*is not for rows of all spaces"):
        call(NO_SPARK, sample("02-spaces").folder, columns=["lsn"])


# --- what file systems and Spark say --------------------------------------------------------------


class _Refusing:
    """A file system that lets nobody in, and says so as that of Azure without a login does."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*given: Any) -> Any:
            raise pa.ArrowException("Unknown error: no token.\nSee the log.")

        return refuse


def test_errors_of_arrow_are_ours() -> None:
    """Also those that are no `OSError`; their lines become one."""
    refusing = UrlFileSystem(_Refusing())
    with pytest.raises(WalError, match=r"no token. see the log"):
        scan_directory(Path("logs"), refusing)
    with pytest.raises(OSError, match=r"no token. See the log"):
        refusing.open_read(Path("logs/1.xlog"))
    with pytest.raises(WalError, match="no token"), told_as("abfs://logs"):
        _Refusing().delete_file("x")


def test_what_is_drawn_around_an_error_is_left_out() -> None:
    """deltalake colours what it says."""
    with pytest.raises(WalError, match=r"t: Generic error ↳ walk dir\.$"), told_as("t"):
        raise OSError("Generic error\n   \x1b[31m↳\x1b[0m walk dir")


def test_what_spark_says_of_an_argument_is_told_with_it() -> None:
    """Its first line, without Java's; elsewhere it stays what it is; an error of ours counts."""
    said = 'An error occurred while calling o9.start.\n: org.a.B: No FileSystem for "x"\n\tat C'
    ours = "Traceback\nlogweir.errors.ConfigError: path (option): no file. Hint: look\n"
    with pytest.raises(ConfigError, match=r'Spark cannot use it: No FileSystem for "x"\. Hint: h'):
        _raise_of_spark(said, "checkpoint", "h")
    with pytest.raises(PySparkException):
        _raise_of_spark(said)
    full = (
        "Job aborted: Lost task\n\tat A\nCaused by: java.io.IOException: No space left on device\n"
    )
    with pytest.raises(WalError, match=r"out: No space left on device\. Hint: look at the place"):
        _raise_of_spark(full, where="out")
    with pytest.raises(PySparkException):
        _raise_of_spark("a worker died\nCaused by: java.io.EOFException\n\tat A", where="out")
    with pytest.raises(ConfigError, match=r"path \(option\): no file\. Hint: look"):
        _raise_of_spark(ours, "checkpoint")


def _raise_of_spark(text: str, *given: str, **options: str) -> None:
    with typed_errors(*given, **options):
        raise PySparkException(text)


def test_a_store_is_not_imported_into_a_file(tmp_path: Path) -> None:
    """By name."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(WalError, match="file: not a directory"):
        pipeline.import_frame(NO_SPARK, tmp_path / "file", "t")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"frame": 3}, r"frame \(argument\): is 3, which is no DataFrame of Spark"),
        ({"types": ["map"]}, r"types \(argument\): is \['map'\], which gives no types to columns"),
        ({"types": {"a": 3}}, r"types \(argument\): is \{'a': 3\}, which gives"),
        ({"primary": 3}, r"primary \(argument\): is 3, which names no columns"),
        ({"primary": [None]}, r"primary \(argument\): is \[None\], which names no columns"),
    ],
    ids=repr,
)
def test_an_import_of_nothing_that_it_knows_is_refused(
    tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    """By name, with what to do, and nothing is made; they were Python's errors once."""
    told = dict(wrong)
    with pytest.raises(ConfigError, match=message) as caught:
        pipeline.import_frame(told.pop("frame", NO_SPARK), tmp_path / "new", "t", **told)
    assert caught.value.hint
    if "frame" not in wrong:
        with pytest.raises(ConfigError, match=message):
            pipeline.import_rows(NO_SPARK, tmp_path, tmp_path / "new", "t", **wrong)
    assert os.listdir(tmp_path) == []


def test_a_part_that_the_disk_does_not_take_is_told_with_its_file(tmp_path: Path) -> None:
    """Of a sink, while its rows are added; it was Python's error, without the file, once."""
    writer = PartWriter(tmp_path / "part", SinkLayout(kind="xlog", keeps=False, timestamp=1.0))
    columns = {
        "type": pa.array([2] * 500, pa.int16()),
        "space_id": pa.array([512] * 500, pa.int64()),
        "tuple": pa.array([pack([n, os.urandom(300)]) for n in range(500)], pa.binary()),
    }
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(WalError, match="part: file too large"):
            writer.add(pa.record_batch(columns))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.abandon()
    assert not list(tmp_path.iterdir())


def test_a_note_that_could_not_be_written_makes_no_folder_foreign(tmp_path: Path) -> None:
    """A full disk left an empty one once, after which no checkpoint was the folder's own."""
    to, checkpoint = tmp_path / "to", tmp_path / "checkpoint"
    checkpoint.mkdir()
    query = str(uuid.UUID(int=7))
    (checkpoint / "metadata").write_text(json.dumps({"id": query}))
    (to / "_spark_metadata").mkdir(parents=True)
    (to / "_logweir_query").write_text("")
    exports._check_owner(str(to), str(checkpoint))
    exports._note_owner(str(to), query)
    exports._check_owner(str(to), str(checkpoint))
    with pytest.raises(ConfigError, match="by a query with another checkpoint"):
        exports._check_owner(str(to), str(tmp_path / "other"))
    (to / "_logweir_query").unlink()
    (to / "_logweir_query").mkdir()
    with pytest.raises(WalError, match="_logweir_query: is a directory"):
        exports._note_owner(str(to), query)
    assert sorted(one.name for one in to.iterdir()) == ["_logweir_query", "_spark_metadata"]


def test_google_is_not_asked_for_a_quarter_of_an_hour() -> None:
    """But for a minute, or as long as the URL says."""
    from pyarrow import fs

    def named(url: str) -> Any:
        return fs.FileSystem.from_uri(url)[0]

    bounded, given = "gs://anonymous@b/x?retry_limit_seconds=60", "gs://anonymous@b/x?scheme=http"
    assert connect("gs://anonymous@b/x", "gs")[0].equals(named(bounded))
    assert connect(given, "gs")[0].equals(named(given + "&retry_limit_seconds=60"))
    own = "gs://anonymous@b/x?retry_limit_seconds=5"
    assert connect(own, "gs")[0].equals(named(own))
    assert not named(own).equals(named(bounded))


def test_a_place_without_files_is_nothing_to_take(tmp_path: Path) -> None:
    """As the export of an empty space leaves it."""
    place = Place(str(tmp_path))
    commit(place, [])
    with pytest.raises(ConfigError, match="has no file with rows"):
        read_places(NO_SPARK, [place], "parquet")
