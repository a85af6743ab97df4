"""Files of jobs in an object store, whole or not at all, on a real server of the S3 protocol."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.nursery import Nursery
from support.objectstore import object_store, s3_url

from logweir.errors import ConfigError, CorruptFile, LogweirError
from logweir.pipeline.jobs.commits import MANIFEST, check_new, commit, committed, named_files
from logweir.pipeline.jobs.places import Place, Written

pytestmark = pytest.mark.leaves  # pyarrow's S3 keeps what it waits with
ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "text": ["x"] * 100})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Where the object store answers."""
    pytest.importorskip("moto.server")
    with object_store() as found:
        yield found


def put(place: Place, rows: pa.Table = ROWS, ending: str = "parquet") -> list[Written]:
    """What two tasks do."""
    half = rows.num_rows // 2
    told = [
        batch
        for part in (rows.slice(0, half), rows.slice(half))
        for batch in place.writing(rows.schema, ending)(iter(part.to_batches(max_chunksize=20)))
    ]
    return [(one["name"], one["rows"], one["size"]) for b in told for one in b.to_pylist()]


def seen(place: Place) -> list[int]:
    """The ids of a reader by the manifest."""
    found: list[int] = []
    for one in named_files(place):
        filesystem, path = one.arrow()
        found += pq.read_table(path, filesystem=filesystem)["id"].to_pylist()
    return sorted(found)


JOB = """
import sys

from interop.test_pipeline_stores import put

from logweir.pipeline.jobs.commits import check_new, commit
from logweir.pipeline.jobs.places import Place

place = Place(sys.argv[1])
if check_new(place, "q"):
    commit(place, put(place), "q")
"""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Where jobs come from."""
    with Nursery("import interop.test_pipeline_stores") as made:
        yield made


@pytest.mark.parametrize(
    "step", ["in_part", "in_part@5", "before_sweep", "before_manifest", "after_manifest"]
)
def test_a_kill_at_each_step_leaves_all_or_nothing(port: int, nursery: Nursery, step: str) -> None:
    """A reader by the manifest is told that it is under way, or has every row; the same job run
    again ends it, each row once, and no file of the killed one is left."""
    url = s3_url(port, f"killed-{step}".replace("@", "-"))
    place = Place(url)
    point, mark, turn = step.partition("@")
    armed = f"place.{point}=kill{mark}{turn}"
    with nursery.start(JOB, [url], {"LOGWEIR_FAILPOINTS": armed}) as killed:
        assert killed.wait(60) == -9
    if step == "after_manifest":
        assert seen(place) == list(range(100))
    else:
        assert committed(place) is None
        if place.files():
            with pytest.raises(ConfigError, match=f"has no {MANIFEST}"):
                seen(place)
    with nursery.start(JOB, [url]) as again:
        assert again.wait(60) == 0
    assert seen(place) == list(range(100))
    told = committed(place)
    assert told is not None
    assert (told["rows"], told["query"]) == (100, "q")
    assert place.files().keys() == {*told["files"], MANIFEST}
    with pytest.raises(ConfigError, match=r"is there already\."):
        check_new(place)
    with pytest.raises(ConfigError, match=r"is there already\."):
        check_new(place, "another")
    assert not check_new(place, "q")


@pytest.mark.parametrize("kind", ["s3", "memory"])
def test_places_of_every_kind(port: int, kind: str) -> None:
    """Lines and Parquet; other people's files are never touched, a lost file is told."""
    name = uuid.uuid4().hex
    place = Place(s3_url(port, name) if kind == "s3" else f"memory://{name}")
    assert check_new(place)
    left, kept = put(place), put(place)
    commit(place, kept)
    assert seen(place) == list(range(100))
    assert not {one for one, _, _ in left} & place.files().keys()
    lines = Place(place.below("lines").location)
    header = pa.table({"a,b": ["1,2", "3,4"]})
    commit(lines, put(lines, header, "csv"))
    texts = []
    for one in named_files(lines):
        filesystem, path = one.arrow()
        with filesystem.open_input_stream(path) as file:
            texts.append(file.read())
    assert sorted(texts) == [b"a,b\n1,2\n", b"a,b\n3,4\n"]
    torn = place.below("torn")
    files = put(torn)
    with pytest.raises(CorruptFile, match="as its task left it"):
        commit(torn, [(files[0][0], 50, files[0][2] + 1)])
    assert committed(torn) is None
    other = place.below("other")
    filesystem, folder = other.arrow()
    filesystem.create_dir(folder)
    with filesystem.open_output_stream(f"{folder}/notes.txt") as out:
        out.write(b"mine")
    with pytest.raises(ConfigError, match=r"has notes\.txt in it"):
        check_new(other)
    with filesystem.open_output_stream(f"{folder}/{MANIFEST}") as out:
        out.write(b"no json")
    with pytest.raises(CorruptFile, match="is no manifest"):
        committed(other)


def test_batches_under_way_are_passed_over(port: int) -> None:
    """Of the batches of a stream those count that have their manifest."""
    place = Place(s3_url(port, "stream"))
    first, second = place.below("batch=000000000000"), place.below("batch=000000000001")
    commit(first, put(first), "q")
    files = put(second)
    assert seen(place) == list(range(100))
    commit(second, files, "q")
    assert seen(place) == sorted([*range(100), *range(100)])
    told = committed(first)
    assert told is not None
    assert json.dumps(told)


class _Refuses(BaseHTTPRequestHandler):
    """A store that takes no keys."""

    def _refuse(self) -> None:
        body = b"<Error><Code>SignatureDoesNotMatch</Code><Message>wrong</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _refuse

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.mark.parametrize("fault", ["no server", "no bucket", "wrong keys"])
def test_a_place_that_takes_nothing_is_told_soon_without_keys(port: int, fault: str) -> None:
    """Where the driver looks first, where tasks write and where it commits."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        wrong = {
            "no server": s3_url(9, "x"),
            "no bucket": s3_url(port, "x").replace("@bucket/", "@nowhere/"),
            "wrong keys": s3_url(server.server_port, "x"),
        }
        place = Place(wrong[fault])
        looks = () if fault == "no bucket" else (lambda: check_new(place),)  # as one that is empty
        for ask in (*looks, lambda: put(place), lambda: commit(place, [])):
            began = time.monotonic()
            with pytest.raises(LogweirError) as found:
                ask()
            assert time.monotonic() - began < 60
            assert "hidden-secret" not in str(found.value)
            assert "/x" in str(found.value)
        server.shutdown()
