"""Spools in an object store: followers that are killed at each step, or overtaken."""

from __future__ import annotations

import os
import signal
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.nursery import Nursery
from support.objectstore import object_store, s3_url

from interop.test_pipeline_spool_owners import KILLED
from interop.test_pipeline_spools import (
    SCHEMES,
    batch,
    bucket_server,
    homeserver,
    item,
    read_all,
    stream_of,
    upto,
)
from logweir.errors import ConfigError, DirectoryLocked, WalError
from logweir.pipeline import spool as spools
from logweir.pipeline.spoolplace import SpoolPlace
from logweir.pipeline.storage import OWNERS, SpoolFileSystem, open_storage
from logweir.wal.failpoint import arm, disarm

pytest.importorskip("moto.server")
pytestmark = pytest.mark.leaves  # pyarrow's S3 keeps what it waits with


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server of the S3 protocol."""
    with object_store() as found:
        yield found


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where copies of spools are made: a folder for each test."""
    made = tmp_path / "scratch"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


def objects(url: str) -> set[str]:
    """The objects at the place of a spool."""
    filesystem, folder = open_storage(f"spool+{url}")
    assert isinstance(filesystem, SpoolFileSystem)
    return set(filesystem.sizes(folder))


def taken_apart(rows: list[tuple[int, Any]]) -> dict[bytes, list[bytes]]:
    """The values that rows of bucket b give each key, one after the other."""
    found: dict[bytes, list[bytes]] = {}
    for _, row in rows:
        found.setdefault(row[0], []).append(row[2])
    return found


def check_each_once(rows: list[tuple[int, Any]], count: int) -> None:
    """Items 0 … `count` - 1 were there; then k3 got the value "new", which it may have got before
    the spool heard of it."""
    found = taken_apart(rows)
    assert found.pop(b"k3") in ([b"v", b"new"], [b"new"])
    assert found == {b"k%d" % number: [b"v"] for number in range(count) if number != 3}


TAKEN = """
import sys
from logweir.pipeline.spool import taken
from logweir.replication.protocols import parse_url

with taken(parse_url(sys.argv[1]), sys.argv[2]):
    pass
"""


IMPORTED = """
from pyarrow import dataset, fs
from pyspark.sql.streaming import datasource
from logweir.pipeline import spool, spoolplace, spoolsources
from logweir.replication import protocols, server
for url in ("tap://127.0.0.1:1/b", "greenstack://127.0.0.1:1/b", "synapse://127.0.0.1:1"):
    protocols.parse_url(url)
"""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Where followers come from."""
    with Nursery(IMPORTED) as made:
        yield made


def kill_at(nursery: Nursery, program: str, place: str, *words: str) -> None:
    """Run a follower, which is killed at that place."""
    name, _, count = place.partition("@")
    told = {"LOGWEIR_FAILPOINTS": f"{name}=kill@{count or 1}", "TMPDIR": tempfile.gettempdir()}
    with nursery.start(program, words, told) as follower:
        try:
            assert follower.wait(60) == -signal.SIGKILL
        finally:
            follower.kill()


# --- without kills --------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_spool_at_a_url_is_as_one_in_a_folder(
    tmp_path: Path, scratch: Path, port: int, scheme: str
) -> None:
    """Batches go on where the one before was, a stream where its checkpoint is, whatever machine
    they run on: nothing stays on this one."""
    spool = s3_url(port, f"alike-{scheme}")
    with bucket_server(tmp_path / "up", scheme, 20) as (server, url):
        rows = batch(url, spool=spool, spaces="b")
        assert rows == batch(url, spool=tmp_path / "here", spaces="b")
        server.log.replace("b", item(3, b"new"))
        check_each_once(batch(url, spool=spool, spaces="b"), 20)
        assert not list(scratch.iterdir())
        stream = stream_of(url, spool, spaces="b")
        start = stream.initialOffset()
        middle = upto(stream, start, lambda rows: len(rows) == 21)
        assert start["spool"] == stream.spool.instance
        stream.commit(middle)
        stream.stop()
        server.log.replace("b", item(20))
        stream = stream_of(url, spool, spaces="b")
        check_each_once(read_all(stream, stream.partitions(start, middle)), 20)
        end = upto(stream, middle, bool)
        assert read_all(stream, stream.partitions(middle, end))[0][1][0] == b"k20"
        stream.stop()
    assert not list(scratch.iterdir())


def test_a_log_that_is_closed_has_few_parts(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are one object, its EOF marker another; snapshots take the place of logs."""
    monkeypatch.setattr(spools, "PIPELINE_SPLIT_BYTES", 2000)
    spool = s3_url(port, "few")
    with bucket_server(tmp_path / "up", "greenstack", 5) as (server, url):
        stream = stream_of(url, spool, spaces="b")
        position = stream.initialOffset()
        for number in range(5, 30):
            server.log.replace("b", item(number))
            position = upto(stream, position, bool)
        logs = {name[:25] for name in objects(spool) if ".xlog" in name}
        assert len(logs) > 2
        for number in range(3):
            stream.spool.keep(stream.spool.vclock)
            stream.spool._log.snapshot()
            server.log.replace("b", item(number, b"new"))
            position = upto(stream, position, bool)
        stream.stop()
    left = [name for name in objects(spool) if ".xlog" in name]
    assert len({name[:25] for name in left}) < len(logs)
    assert len(left) <= 2 * len({name[:25] for name in left})
    assert len({name for name in objects(spool) if ".snap" in name}) == 2


def test_synapse_goes_on_in_a_spool_at_a_url(port: int, nursery: Nursery) -> None:
    """Rows of a server that forgets: each once."""
    spool = s3_url(port, "synapse")
    with homeserver("D1") as (home, loop):
        url = f"synapse://127.0.0.1:{home.port}?start=all"
        for token in range(1, 5):
            loop.call_soon_threadsafe(home.add, "events", token, [token])
        batch(url, spool=spool)
        kill_at(nursery, TAKEN, "spool.after_begun", url, f"spool+{spool}")
        loop.call_soon_threadsafe(home.add, "events", 5, [5])
        rows = batch(url, spool=spool, spaces="synapse_events")
    assert [row[3] for _, row in rows] == [[token] for token in range(1, 6)]


# --- kills ----------------------------------------------------------------------------------------

STEPS = [
    *("after_claim", "before_begun", "after_begun"),
    *(f"{when}_put@{number}" for when in ("before", "after") for number in (1, 2, 4, 6)),
    *("before_merge", "after_merge"),
]
KILLS = [
    (scheme, step)
    for number, step in enumerate(STEPS)
    for place, scheme in enumerate(SCHEMES)
    if os.environ.get("LOGWEIR_SPOOLS") == "all" or number % 2 == place
]


@pytest.mark.kill
@pytest.mark.parametrize(("scheme", "step"), KILLS)
def test_a_follower_that_is_killed_loses_and_doubles_nothing(
    tmp_path: Path, port: int, nursery: Nursery, scheme: str, step: str
) -> None:
    """At each step, in the first run and in one that finds a spool; its disk goes with it."""
    spool = s3_url(port, f"kill-{scheme}-{step}")
    words = f"spool+{spool}"
    with bucket_server(tmp_path / "up", scheme, 40) as (server, url):
        kill_at(nursery, TAKEN, f"spool.{step}", url, words)
        server.log.replace("b", item(3, b"new"))
        check_each_once(batch(url, spool=spool, spaces="b"), 40)
        for number in range(40, 50):
            server.log.replace("b", item(number))
        if not step.endswith(("4", "6")):  # so many parts it has not, now
            kill_at(nursery, TAKEN, f"spool.{step}", url, words)
        check_each_once(batch(url, spool=spool, spaces="b"), 50)


@pytest.mark.kill
@pytest.mark.parametrize("place", ["spool.before_put@5", "spool.after_put@5"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_streams_follower_that_is_killed_loses_and_doubles_nothing(
    tmp_path: Path, scratch: Path, port: int, nursery: Nursery, scheme: str, place: str
) -> None:
    """What it had acknowledged is at the place, what it had not comes again. Its copy goes when the
    next one begins."""
    spool = s3_url(port, f"stream-{scheme}-{place}")
    with bucket_server(tmp_path / "up", scheme, 40) as (server, url):
        kill_at(nursery, KILLED, place, url, spool)
        (left,) = scratch.iterdir()
        server.log.replace("b", item(3, b"new"))
        stream = stream_of(url, spool, spaces="b")
        start = stream.initialOffset()
        assert not left.exists()

        def is_whole(rows: list[Any]) -> bool:
            found = taken_apart(rows)
            return len(found) == 40 and found[b"k3"][-1] == b"new"

        end = upto(stream, start, is_whole)
        stream.stop()
        check_each_once(read_all(stream, stream.partitions(start, end)), 40)
    assert not list(scratch.iterdir())


# --- two at a time --------------------------------------------------------------------------------


def test_who_comes_last_has_the_spool(tmp_path: Path, scratch: Path, port: int) -> None:
    """The one before hears of it with the next row, and acknowledges nothing more. Each has its
    own copy."""
    spool = s3_url(port, "overtaken")
    with bucket_server(tmp_path / "up", "tap", 10) as (server, url):
        first, second = (stream_of(url, spool, spaces="b") for _ in range(2))
        start = first.initialOffset()
        middle = upto(first, start, lambda rows: len(rows) == 10)
        end = upto(second, start, lambda rows: len(rows) == 10)
        rows = read_all(second, second.partitions(start, end))
        assert rows == read_all(first, first.partitions(start, middle))
        assert len(list(scratch.iterdir())) == 2
        server.log.replace("b", item(10))
        end = upto(second, middle, bool)
        with pytest.raises(DirectoryLocked, match="has taken the spool over"):
            upto(first, middle, lambda rows: False)
        first.stop()
        server.log.replace("b", item(11))
        last = upto(second, end, bool)
        second.stop()
        found = taken_apart(read_all(second, second.partitions(start, last)))
    assert found == {b"k%d" % number: [b"v"] for number in range(12)}


def test_what_an_owner_puts_that_was_overtaken_counts_nowhere(tmp_path: Path, port: int) -> None:
    """Wherever it comes too late; nor does what is not whole. The next one removes both."""
    spool, log, snap = s3_url(port, "late"), f"{7:020d}.xlog", f"{9:020d}.snap"
    filesystem, folder = open_storage(f"spool+{spool}")

    def seen() -> dict[str, bytes]:
        found = {}
        for name in filesystem.list_directory(folder):
            file = filesystem.open_read(folder / name)
            found[name] = file.read(100, 0)
            file.close()
        return found

    def begun(name: str) -> SpoolPlace:
        made = SpoolPlace(spool)
        (tmp_path / name).mkdir()
        made.fetch(tmp_path / name)
        return made

    first = begun("first")
    first.put(log, 0, 3, [b"abc"])
    first.put(log, 3, 5, [b"d", b"e"])
    second = begun("second")
    assert (tmp_path / "second" / log).read_bytes() == b"abcde"
    for late in ((log, 5, 6, [b"X"]), (snap, 0, 1, [b"X"])):
        with pytest.raises(OSError, match="has taken the spool over"):
            first.put(*late)
    with pytest.raises(OSError, match="has taken the spool over"):
        first.remove(log)
    assert seen() == {log: b"abcde"}
    second.put(log, 5, 7, [b"fg"])
    second.put(snap, 0, 9, [b"cut off"])
    assert seen() == {log: b"abcdefg"}
    assert len(objects(spool)) == 6
    third = begun("third")
    assert seen() == {log: b"abcdefg"}
    assert len(objects(spool)) == 3
    reading = filesystem.open_read(folder / log)
    assert reading.read(2, 2) == b"cd"
    third.merge(log, 7, [b"abcdefg"])
    assert len(objects(spool)) == 1
    assert reading.read(5, 2) == b"cdefg"
    third.remove(log)
    assert (reading.size(), reading.read(9, 3)) == (7, b"defg")
    with pytest.raises(OSError, match=r"00007\.xlog"):
        reading.read(1, 1)
    with pytest.raises(FileNotFoundError):
        filesystem.open_read(folder / log)


def test_who_sweeps_late_takes_nothing_of_who_came_since(tmp_path: Path, port: int) -> None:
    """An owner that sleeps between its last look for a claim and its sweep."""
    spool, log = s3_url(port, "sweeps"), f"{7:020d}.xlog"
    filesystem, folder = open_storage(f"spool+{spool}")
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first = SpoolPlace(spool)
    came: list[SpoolPlace] = []

    def comes() -> None:
        disarm()
        second = SpoolPlace(spool)
        second.fetch(tmp_path / "second")
        second.put(log, 0, 3, [b"abc"])
        came.append(second)

    arm("spool.before_sweep", comes)
    first.fetch(tmp_path / "first")
    assert filesystem.open_read(folder / log).read(9, 0) == b"abc"
    came[0].put(log, 3, 4, [b"d"])
    with pytest.raises(OSError, match="has taken the spool over"):
        first.put(log, 0, 1, [b"X"])


def test_little_of_a_spool_that_is_fetched_is_in_memory(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large its parts are, and however many."""
    spool, log = s3_url(port, "large"), f"{7:020d}.xlog"
    wanted = b"".join(bytes([number]) * 99_991 for number in range(200))
    first = SpoolPlace(spool)
    (tmp_path / "first").mkdir()
    first.fetch(tmp_path / "first")
    first.put(log, 0, 9_000_000, [wanted[:9_000_000]])
    for at in range(9_000_000, len(wanted), 500_000):
        first.put(log, at, min(at + 500_000, len(wanted)), [wanted[at : at + 500_000]])
    monkeypatch.setattr("logweir.pipeline.spoolplace.PIPELINE_WINDOW_BYTES", 100_000)
    second = SpoolPlace(spool)
    (tmp_path / "second").mkdir()
    tracemalloc.start()
    try:
        second.fetch(tmp_path / "second")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "second" / log).read_bytes() == wanted
    assert most < 5_000_000


def test_what_an_owner_was_writing_of_what_it_found_does_not_count(tmp_path: Path) -> None:
    """Where a file system shows a file that is not whole: the one before counts still."""
    spool, log = f"file://{tmp_path}/spool", f"{7:020d}.xlog"
    filesystem, folder = open_storage(f"spool+{spool}")

    def begun(name: str) -> SpoolPlace:
        made = SpoolPlace(spool)
        (tmp_path / name).mkdir()
        made.fetch(tmp_path / name)
        return made

    first = begun("first")
    first.put(log, 0, 3, [b"abc"])
    first.put(log, 3, 5, [b"de"])
    first._write(f"{log}.{5:020d}-{5:020d}.{first._owner}", [])  # no part: it would come forever
    (own,) = (tmp_path / "spool" / OWNERS).glob("*.begun")
    data = f"{log}.{0:020d}-{3:020d}.{own.stem}\n".encode()
    for size in (0, 1, len(data)):
        (own.parent / f"{99:08d}{'0' * 16}.begun").write_bytes(data[:size])
        assert filesystem.open_read(folder / log).read(9, 0) == b"abcde"
    second = begun("second")
    assert (tmp_path / "second" / log).read_bytes() == b"abcde"
    second.put(log, 5, 6, [b"f"])
    assert filesystem.open_read(folder / log).read(9, 0) == b"abcdef"
    (one,) = (tmp_path / "spool" / OWNERS).glob("*.begun")
    one.write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="there is no spool"):
        open_storage(f"spool+{spool}")[0].list_directory(folder)


@pytest.mark.parametrize(
    ("spool", "error"),
    [
        ("s3://key:hidden-secret@nowhere/x?endpoint_override=127.0.0.1:PORT&scheme=http", WalError),
        ("nothing://x/y", ConfigError),
    ],
)
def test_a_place_that_is_none_is_told(
    tmp_path: Path, scratch: Path, port: int, spool: str, error: type[Exception]
) -> None:
    """Without its keys; nothing is left."""
    with bucket_server(tmp_path / "up", "tap", 1) as (_, url):
        with pytest.raises(error) as told:
            batch(url, spool=spool.replace("PORT", str(port)))
        assert "hidden-secret" not in str(told.value)
    assert not list(scratch.iterdir())
