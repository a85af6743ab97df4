"""The pipeline on a real server of the S3 protocol, through pyarrow's file system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from samples import damaged, sample
from support.folding import look_here, state_here
from support.objectstore import object_store, s3_url

from logweir import pipeline
from logweir.errors import CorruptBlock, LogweirError
from logweir.pipeline.jobs.checks import check_blocks
from logweir.pipeline.jobs.folding import prepare
from logweir.pipeline.options import ScanOptions
from logweir.pipeline.plan import plan
from logweir.pipeline.storage import open_storage
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
