"""The pipeline on a real server of the S3 protocol, through pyarrow's file system."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from samples import damaged, sample
from support.folding import look_here, staged_here, state_here
from support.nursery import Nursery
from support.objectstore import object_store, s3_url

from logweir import pipeline
from logweir.errors import ConfigError, CorruptBlock, LogweirError, WalError
from logweir.pipeline.jobs.checks import check_blocks
from logweir.pipeline.jobs.compact import publish
from logweir.pipeline.jobs.delta import DeltaPlace
from logweir.pipeline.jobs.folding import prepare
from logweir.pipeline.onefile import ENDINGS, write_file
from logweir.pipeline.options import ScanOptions
from logweir.pipeline.plan import plan
from logweir.pipeline.storage import open_storage
from logweir.pipeline.targets import open_target
from logweir.recovery import examine

pytestmark = pytest.mark.leaves  # pyarrow's S3 keeps what it waits with
CRASHED = "04-crashed"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Where the object store answers."""
    pytest.importorskip("moto.server")
    with object_store() as found:
        yield found


def put(port: int, folder: Path, prefix: str) -> str:
    """Copies a folder into the store. Returns its URL."""
    from pyarrow import fs

    url = s3_url(port, prefix)
    store, root = fs.FileSystem.from_uri(url)
    for path in folder.iterdir():
        if path.is_file():
            with store.open_output_stream(f"{root}/{path.name}") as file:
                file.write(path.read_bytes())
    return url


def checked(location: str) -> list[Any]:
    """Every range of every file, by checksum and unpacked."""
    splits = plan(ScanOptions(paths=(location,), settled=False, split_bytes=3000)).splits
    return [check_blocks(one, unpack=True) for split in splits for one in split.ranges]


def test_what_is_read_of_an_object_store_is_what_the_folder_has(port: int) -> None:
    """Rows, typed rows, checks of both kinds, definitions and the state, in several splits."""
    folder = sample(CRASHED).folder
    url = put(port, folder, "whole")
    columns = ["lsn", "space_id", "key", "tuple", "ops"]
    names = sample(CRASHED).space_names
    space = next(name for number, name in names.items() if number >= 512)
    every: Any = ({"columns": columns}, {"space": space})
    for given in every:
        here = pipeline.batches(folder, **given).read_all()
        assert here.num_rows
        assert pipeline.batches(url, **given, split_bytes=3000).read_all().equals(here)
    assert checked(url) == checked(str(folder))
    assert len(checked(url)) > 3
    filesystem, path = open_storage(url)
    there = examine(path, filesystem=filesystem).to_json()
    assert [one["size"] for one in there["files"]] == [
        one["size"] for one in examine(folder).to_json()["files"]
    ]
    assert there["damage"] == []
    prepared = prepare(look_here, [url])
    assert prepared.vclock == sample(CRASHED).vclock
    assert state_here(prepared) == state_here(prepare(look_here, [folder]))


def test_faults_of_an_object_store_are_told_without_keys(port: int) -> None:
    """Damage with file and byte; a prefix, a bucket and a server that are not there."""
    url = put(port, damaged("c-flipped-payload-byte").folder, "damaged")
    with pytest.raises(CorruptBlock) as caught:
        pipeline.batches(url).read_all()
    assert caught.value.offset
    assert str(caught.value.path).startswith("bucket/damaged/")
    assert "hidden-secret" not in str(caught.value)
    for wrong in (
        s3_url(port, "nowhere"),
        url.replace("@bucket/", "@no-such-bucket/"),
        s3_url(9, "damaged"),
    ):
        with pytest.raises(LogweirError) as failed:
            pipeline.batches(wrong).read_all()
        assert "hidden-secret" not in str(failed.value)


def read_table(port: int, prefix: str) -> Any:
    """A table as deltalake reads it, None if there is none."""
    from deltalake import DeltaTable

    options = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "hidden-secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }
    url = f"s3://bucket/{prefix}"
    if not DeltaTable.is_deltatable(url, options):
        return None
    return DeltaTable(url, storage_options=options).to_pyarrow_table()


def test_a_table_in_an_object_store_is_there_whole_or_not_at_all(port: int) -> None:
    """Files of tasks that nobody commits, as a killed driver leaves them, and those of a repeated
    task are in no table; the second to commit is refused, and nothing of it is there."""
    rows = pa.table({"id": pa.array(range(100), pa.int64()), "text": ["x"] * 100})
    store = DeltaPlace(s3_url(port, "table"))

    def written() -> list[tuple[str, int, int]]:
        told = [batch for task in (0, 50) for batch in task_of(rows.slice(task, 50))]
        return [(one["name"], one["rows"], one["size"]) for b in told for one in b.to_pylist()]

    def task_of(part: pa.Table) -> list[pa.RecordBatch]:
        return list(store.writing(rows.schema)(iter(part.to_batches(max_chunksize=20))))

    store.check_new()
    written()
    assert read_table(port, "table") is None
    task_of(rows.slice(0, 50))
    kept, late = written(), written()
    store.check_new()
    store.create(rows.schema, kept)
    assert read_table(port, "table").sort_by("id").equals(rows)
    for taken in (store.check_new, lambda: store.create(rows.schema, late)):
        with pytest.raises(ConfigError, match=r"s3://bucket/table is there already\."):
            taken()
    assert read_table(port, "table").num_rows == 100
    empty = DeltaPlace(s3_url(port, "empty"))
    assert list(empty.writing(rows.schema)(iter(rows.slice(0, 0).to_batches()))) == []
    empty.create(rows.schema, [])
    assert read_table(port, "empty").num_rows == 0


def test_a_bucket_that_takes_no_table_is_told_without_keys(port: int) -> None:
    """Where tasks write and where the driver commits."""
    store = DeltaPlace(s3_url(port, "table").replace("bucket", "nowhere"))
    rows = pa.table({"id": [1]})
    for ask in (
        lambda: list(store.writing(rows.schema)(iter(rows.to_batches()))),
        lambda: store.create(rows.schema, [("part", 1, 1)]),
    ):
        with pytest.raises(WalError, match="s3://nowhere/table") as found:
            ask()
        assert "hidden-secret" not in str(found.value)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Where jobs come from."""
    with Nursery("import interop.test_pipeline_s3") as made:
        yield made


COMPACT = """
import sys
from pathlib import Path

from support.folding import staged_here

from logweir.pipeline.jobs.compact import publish
from logweir.pipeline.jobs.delta import DeltaPlace
from logweir.pipeline.targets import open_target

filesystem, target = open_target("to", sys.argv[2])
prepared, parts = staged_here(Path(sys.argv[1]), target / "stage", filesystem)
publish(prepared, parts, target / "stage", target, 1.0, filesystem)
"""


def test_a_snapshot_in_an_object_store_is_there_whole_or_not_at_all(
    port: int, nursery: Nursery, tmp_path: Path
) -> None:
    """Killed in front of its end and of its name, or with a part that is not as its task wrote it:
    no snapshot. Made again in the same place, it is that of a folder, byte for byte."""
    folder, url = sample(CRASHED).folder, s3_url(port, "compacted")
    filesystem, target = open_target("to", url)

    def snapshots() -> list[str]:
        return [one for one in filesystem.list_directory(target) if one.endswith(".snap")]

    for place in ("compact.before_end", "compact.before_rename"):
        told = {"LOGWEIR_FAILPOINTS": f"{place}=kill"}
        with nursery.start(COMPACT, [folder, url], told) as killed:
            assert killed.wait(60) < 0
        assert filesystem.list_directory(target / "stage")
        assert snapshots() == []
    prepared, parts = staged_here(folder, target / "stage", filesystem)
    wrong = [replace(one, crc=one.crc ^ 1) for one in parts]
    with pytest.raises(WalError, match="CRC"):
        publish(prepared, wrong, target / "stage", target, 1.0, filesystem)
    assert snapshots() == []
    done = publish(prepared, parts, target / "stage", target, 1.0, filesystem)
    (tmp_path / "stage").mkdir()
    here = publish(*staged_here(folder, tmp_path / "stage"), tmp_path / "stage", tmp_path, 1.0)
    assert snapshots() == [here.path.name]
    assert filesystem.list_directory(target) == [here.path.name, "stage"]
    with closing(filesystem.open_read(done.path)) as file:
        assert file.read(file.size(), 0) == here.path.read_bytes()


ONE_FILE = """
import os
import signal
import sys

from logweir import pipeline
from logweir.pipeline.onefile import write_file
import pyarrow as pa

every = pipeline.batches(sys.argv[1])

def batches():
    yield from every
    if sys.argv[3] == "rows":
        os.kill(os.getpid(), signal.SIGKILL)

write_file(sys.argv[2], pa.RecordBatchReader.from_batches(every.schema, batches()))
"""


@pytest.mark.parametrize("ending", sorted(ENDINGS))
def test_a_file_in_an_object_store_is_that_of_a_folder(
    port: int, nursery: Nursery, tmp_path: Path, ending: str
) -> None:
    """Killed while rows are written and in front of its name: no file. Made again in the same
    place, it is the local one byte for byte; a second one of that name is refused."""
    folder, url = sample(CRASHED).folder, s3_url(port, f"files{ending[1:]}/one{ending}")
    filesystem, path = open_target("to", url)
    for killed in ("rows", "name"):
        points = "output.before_rename=kill" if killed == "name" else ""
        words = [folder, url, killed]
        with nursery.start(ONE_FILE, words, {"LOGWEIR_FAILPOINTS": points}) as writer:
            assert writer.wait(60) == -9
        with pytest.raises(FileNotFoundError):
            filesystem.open_read(path).close()
    done = write_file(url, pipeline.batches(folder))
    here = write_file(tmp_path / f"one{ending}", pipeline.batches(folder))
    assert (done.rows, done.size) == (here.rows, here.size)
    assert done.rows == pipeline.batches(folder).read_all().num_rows > 0
    assert done.name == f"s3://bucket/files{ending[1:]}/one{ending}"
    with closing(filesystem.open_read(path)) as file:
        assert file.read(file.size(), 0) == Path(here.name).read_bytes()
    with pytest.raises(ConfigError, match=rf"{done.name} is there already\."):
        write_file(url, pipeline.batches(folder))


def test_a_place_that_takes_no_file_is_named_without_keys(port: int) -> None:
    """No such bucket, no such file system, and one that nobody serves."""
    folder, url = sample(CRASHED).folder, s3_url(port, "one.csv")
    for where, named in (
        (url.replace("bucket", "nowhere"), "s3://nowhere/one.csv"),
        ("unheard://key:hidden-secret@host/one.csv", "unheard://"),
        (f"ftp://key:hidden-secret@127.0.0.1:{port}/one.csv", "ftp://127.0.0.1"),
    ):
        with pytest.raises(LogweirError, match=named) as found:
            write_file(where, pipeline.batches(folder))
        assert "hidden-secret" not in str(found.value)
