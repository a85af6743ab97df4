"""The pipeline's readers of upstreams that are followed into a folder, without Spark: partitions
are made and read here, and Spark's checkpoint is a variable."""

from __future__ import annotations

import asyncio
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from support.tapmodel import sent

import logweir
from interop.serving import Serving
from interop.tapserver import Peer, TapServer
from interop.test_memcached_captures import recorded, state
from interop.test_synapse_source import Homeserver, http_of, serving
from logweir.errors import (
    ConfigError,
    PeerRefused,
    PositionUnavailable,
    SourceStopped,
    Unreachable,
)
from logweir.pipeline.options import ScanOptions
from logweir.pipeline.spoolsources import SpoolReader, SpoolStream
from logweir.pipeline.tail import Tail
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status, encode_answer
from logweir.replication.memcached.wire.messages import Option, TapMessage, encode_tap
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.stream import positions
from logweir.wal import failpoint
from logweir.wal.mp import unpack

DUMPS = ["dump-ack-go", "dump-ep-python", "dump-noack-vblist-go", "dump-spymemcached"]
SCHEMES = ("tap", "greenstack")


def read_all(reader: Any, partitions: Any) -> list[tuple[int, list[Any] | None]]:
    """Type and tuple (of a deletion its key) of all rows."""
    found = []
    for one in partitions:
        for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(one))):
            for row in batch.select(["type", "tuple", "key"]).to_pylist():
                found.append((row["type"], unpack(row["tuple"] or row["key"])))
    return found


def batch(url: object, **options: object) -> list[tuple[int, Any]]:
    """All rows of one batch."""
    given = {"url": str(url), **{key: str(value) for key, value in options.items()}}
    reader = SpoolReader(ScanOptions.parse(given))
    return read_all(reader, reader.partitions())


def stream_of(url: object, spool: Path | str, **options: object) -> SpoolStream:
    """A stream's reader, as Spark makes it."""
    given = {key: str(value) for key, value in options.items()}
    return SpoolStream(ScanOptions.parse({"url": str(url), "spool": str(spool), **given}))


def upto(stream: SpoolStream, start: dict[str, Any], done: Callable[[list[Any]], bool]) -> Any:
    """Ask for offsets, as Spark does, until the rows behind `start` are enough: the last one."""
    for _ in range(4000):
        end = stream.latestOffset(start, ReadAllAvailable())
        if done(read_all(stream, stream.partitions(start, end))):
            return end
        threading.Event().wait(0.005)
    raise AssertionError("the rows did not come")


def item(number: int, value: bytes = b"v") -> tuple[Any, ...]:
    """The tuple of a document."""
    return (b"k%d" % number, 0, value, 0, 0, number + 1, 0, 0, "", b"")


@contextmanager
def bucket_server(folder: Path, scheme: str, count: int = 0) -> Iterator[tuple[Serving, str]]:
    """A server of ours with bucket b, and b's address in one protocol."""
    listen = [parse_listen_url("tap://:0/b"), parse_listen_url("greenstack://:0")]
    with Serving(folder, listen=listen, guest="all") as server:
        for number in range(count):
            server.log.replace("b", item(number))
        yield server, f"{scheme}://127.0.0.1:{server.urls[SCHEMES.index(scheme)].port}/b"


@contextmanager
def homeserver(
    dialect: str, kind: type[Homeserver] = Homeserver
) -> Iterator[tuple[Homeserver, asyncio.AbstractEventLoop]]:
    """A homeserver with its streams, in a loop of a thread of its own."""
    home, ready, loop = kind(dialect), threading.Event(), asyncio.new_event_loop()
    over = asyncio.Event()

    async def main() -> None:
        async with serving(home):
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield home, loop
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(20)
        loop.close()


# --- batch: where it ends -------------------------------------------------------------------------


def give(*stream: bytes) -> Callable[[Peer], None]:
    """Send bytes to who asks for a dump, and close."""

    def script(peer: Peer) -> None:
        asked = peer.connect()
        for data in stream:
            peer.socket.sendall(data)
        peer.socket.shutdown(socket.SHUT_WR)
        while peer.receive() is not None:
            pass
        assert asked.options & Option.DUMP

    return script


@pytest.mark.parametrize("name", DUMPS)
def test_a_batch_of_tap_is_the_dump_that_ep_engine_gave(tmp_path: Path, name: str) -> None:
    """Recorded dumps end without a word: whole, since each vbucket's beginning has its end."""
    _, wanted = recorded(name)
    with TapServer(give(b"".join(map(encode_tap, wanted)))) as upstream:
        rows = batch(f"tap://127.0.0.1:{upstream.port}/b", spaces="b", spool=tmp_path / "s")
    items = {(row[1], row[0]): row[2] for _, row in rows}
    assert items == {place: value for place, (value, _, _) in state(wanted).items()}
    assert len(rows) == len(items)


def test_a_broken_dump_is_no_batch(tmp_path: Path) -> None:
    """One vbucket's end is missing: an error, and nothing was removed meanwhile."""
    _, wanted = recorded("dump-ack-go")
    cut = b"".join(map(encode_tap, wanted[:-1]))
    with TapServer(give(cut)) as upstream, pytest.raises(Unreachable, match="closed"):
        batch(f"tap://127.0.0.1:{upstream.port}/b")
    whole = b"".join(map(encode_tap, wanted))
    with TapServer(give(whole[:-7])) as upstream, pytest.raises(Unreachable):
        batch(f"tap://127.0.0.1:{upstream.port}/b")


def test_a_default_engine_ends_by_closing(tmp_path: Path) -> None:
    """It marks nothing: with `eof=whole` what came is the batch, without it the end is no end;
    nothing at all is told as what it is."""
    data = sent("default-engine-dump-go", "s2c")
    with TapServer(give(data)) as upstream, pytest.raises(SourceStopped, match="eof=whole"):
        batch(f"tap://127.0.0.1:{upstream.port}/b", spaces="b")
    with TapServer(give(data)) as upstream:
        rows = batch(f"tap://127.0.0.1:{upstream.port}/b?eof=whole", spaces="b")
    assert sorted(row[0] for _, row in rows) == sorted(
        [b"n:t9d", b"bkexqw", b"6bsj2d3", b"iny21pkdt_7:9", b"x10"]
    )
    with TapServer(give()) as upstream, pytest.raises(Unreachable, match="closed"):
        batch(f"tap://127.0.0.1:{upstream.port}/b")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_second_batch_into_the_same_spool_has_what_changed(tmp_path: Path, scheme: str) -> None:
    """Rows that were there come once; a change and a removal are one row each."""
    spool = tmp_path / "spool"
    with bucket_server(tmp_path / "up", scheme, 20) as (server, url):
        first = batch(url, spool=spool, spaces="b")
        assert [row[:3] for _, row in first] == [
            [b"k%d" % n, 0, b"v"] for n in sorted(range(20), key=str)
        ]
        server.log.replace("b", item(3, b"new"))
        server.log.delete("b", b"k4")
        second = batch(url, spool=spool, spaces="b")
        assert second[:20] == first
        changed, *removed = sorted(second[20:], key=lambda one: one[1][0])
        assert changed[1][:3] == [b"k3", 0, b"new"]
        assert removed[-1] == (5, [b"k4"])
        assert {row[0] for _, row in removed} == {b"k4"}
        assert batch(url, spool=spool, spaces="b") == second
        assert batch(url, spool=spool, spaces="b", vclock_to="{1: 0}") == []
    with logweir.open(spool) as log:
        assert {bytes(row[0]): row[2] for row in log.select("b")} == {
            b"k%d" % n: b"new" if n == 3 else b"v" for n in range(20) if n != 4
        }


def test_a_dump_makes_checkpoints_void(tmp_path: Path) -> None:
    """What comes behind them would be older than what the dump gave: the next stream asks anew."""
    spool = tmp_path / "spool"
    with bucket_server(tmp_path / "up", "tap", 5) as (server, url):
        source = [parse_url(url)]
        with Serving(spool, follow=source) as follower:
            follower.wait(lambda: follower.server.is_caught_up)
            server.log.snapshot()
            server.log.replace("b", item(1, b"x"))
            follower.wait(lambda: positions.position(follower.log, url, "tap", "b"))
        batch(url, spool=spool)
        with logweir.open(spool) as log:
            assert positions.position(log, url, "tap", "b") == {}
        stream = stream_of(url, spool, spaces="b")
        start = stream.initialOffset()
        rows = read_all(
            stream, stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
        )
        stream.stop()
        assert len(rows) == 6


def test_a_batch_of_a_busy_server_ends(tmp_path: Path) -> None:
    """Greenstack tells where it stood when it was asked: what is written meanwhile keeps nobody."""
    with bucket_server(tmp_path / "up", "greenstack", 3) as (server, url):
        batch(url, spool=tmp_path / "spool")
        over = threading.Event()

        def write() -> None:
            number = 3
            while not over.is_set():
                server.log.replace("b", item(number % 50, b"%d" % number))
                number += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            rows = batch(url, spool=tmp_path / "spool", spaces="b")
        finally:
            over.set()
            writer.join()
        assert len(rows) >= 3


def test_a_batch_of_synapse_is_what_the_server_can_still_give(tmp_path: Path) -> None:
    """D1 over its own connection; from D2 on over HTTP, and without that the loss is a row."""
    with homeserver("D1") as (home, loop):
        for token in range(1, 30):
            loop.call_soon_threadsafe(home.add, "events", token, [token], [token, "b"])
        url = f"synapse://127.0.0.1:{home.port}"
        rows = batch(url, spaces="synapse_events")
        assert [row[3] for _, row in rows] == [
            row for token in range(1, 30) for row in home.units["events"][token]
        ]
        with pytest.raises(ConfigError, match="start=now begins with what comes"):
            batch(f"{url}?start=now")
    with homeserver("D3") as (home, loop), http_of(home) as address:
        for token in range(1, 9):
            loop.call_soon_threadsafe(home.add, "events", token, [token])
        url = f"synapse://127.0.0.1:{home.port}"
        rows = batch(f"{url}?http={address}", spaces="synapse_events")
        assert [row[3] for _, row in rows] == [[token] for token in range(1, 9)]
        (gap,) = batch(url, spaces="logweir_gap")
        assert gap[1][1] == "events"


class Hesitating(Homeserver):
    """Its POSITIONs come one by one."""

    def replicate(self, words: list[str], writer: asyncio.StreamWriter) -> None:
        if words != ["ALL", "NOW"]:
            super().replicate(words, writer)
            return
        self.writers.add(writer)
        for number, stream in enumerate(sorted(self.units, reverse=True)):
            line = self.position(stream).encode() + b"\n"
            asyncio.get_running_loop().call_later(0.3 * number, writer.write, line)


def test_a_batch_waits_for_every_position(tmp_path: Path) -> None:
    """The first one has nothing behind it, which is no end yet."""
    with homeserver("D1", Hesitating) as (home, loop):
        loop.call_soon_threadsafe(home.add, "events", 7, ["there"])
        rows = batch(f"synapse://127.0.0.1:{home.port}", spaces="synapse_events")
        assert [row[3] for _, row in rows] == [["there"]]


def test_batches_of_synapse_go_on_in_a_spool(tmp_path: Path) -> None:
    """The first begins where the server is; the next has what came since."""
    spool = tmp_path / "spool"
    with homeserver("D1") as (home, loop):
        url = f"synapse://127.0.0.1:{home.port}"
        loop.call_soon_threadsafe(home.add, "events", 1, ["before"])
        batch(url, spool=spool)
        loop.call_soon_threadsafe(home.add, "events", 2, ["after"])
        assert [row[3] for _, row in batch(url, spool=spool, spaces="synapse_events")] == [
            ["after"]
        ]


def test_a_homeserver_without_streams_is_told(tmp_path: Path) -> None:
    """No POSITION ever comes: the batch ends with an error."""
    with homeserver("D1") as (home, _):
        home.units.clear()
        with pytest.raises(Unreachable, match="no stream can be followed"):
            batch(f"synapse://127.0.0.1:{home.port}")


def test_a_batch_without_spool_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task's folder is removed, also when the reader is left in the middle or fails."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with bucket_server(tmp_path / "up", "tap", 5) as (_, url):
        reader = SpoolReader(ScanOptions.parse({"url": url, "batch_rows": "1"}))
        (partition,) = reader.partitions()
        rows = iter(reader.read(partition))
        next(rows)
        assert len(list(tmp_path.glob("logweir-scratch-*"))) == 1
        rows.close()
        assert not list(tmp_path.glob("logweir-scratch-*"))
    with pytest.raises(Unreachable):
        list(reader.read(partition))
    assert not list(tmp_path.glob("logweir-scratch-*"))
    assert list(reader.read(None)) == []


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_stream_has_each_row_once_over_restarts(tmp_path: Path, scheme: str) -> None:
    """Rows before and after a restart; a batch is repeated without the upstream."""
    spool = tmp_path / "spool"
    with bucket_server(tmp_path / "up", scheme, 10) as (server, url):
        stream = stream_of(url, spool, spaces="b")
        start = stream.initialOffset()
        middle = upto(stream, start, lambda rows: len(rows) == 10)
        stream.stop()
        server.log.replace("b", item(3, b"away"))
        stream = stream_of(url, spool, spaces="b")
        end = upto(stream, middle, lambda rows: len(rows) == 1)
        server.log.replace("b", item(3, b"live"))
        last = upto(stream, end, lambda rows: len(rows) == 1)
        stream.commit(end)
        stream.stop()
    again = stream_of(url, spool, spaces="b")
    found = [read_all(again, again.partitions(*one)) for one in ((start, middle), (middle, last))]
    assert sorted(row[0] for _, row in found[0]) == sorted(b"k%d" % n for n in range(10))
    assert [row[2] for _, row in found[1]] == [b"away", b"live"]


def test_synapse_units_come_while_they_are_written(tmp_path: Path) -> None:
    """Live rows, a connection that breaks, and a space whose name nobody has defined yet."""
    with homeserver("D1") as (home, loop):
        stream = stream_of(
            f"synapse://127.0.0.1:{home.port}?start=all", tmp_path / "s", spaces="synapse_events"
        )
        start = stream.initialOffset()
        assert (
            read_all(
                stream, stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
            )
            == []
        )
        for token in range(1, 6):
            loop.call_soon_threadsafe(home.add, "events", token, [token])
        middle = upto(stream, start, lambda rows: len(rows) == 5)
        loop.call_soon_threadsafe(home.drop)
        loop.call_soon_threadsafe(home.add, "events", 6, ["missed"])
        end = upto(stream, middle, lambda rows: len(rows) == 1)
        found = read_all(stream, stream.partitions(start, end))
        assert [row[3] for _, row in found] == [[1], [2], [3], [4], [5], ["missed"]]
        stream.stop()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_available_now_ends_at_what_there_was(tmp_path: Path, scheme: str) -> None:
    """Capped batches up to the end; what is written meanwhile is for the next run."""
    spool = tmp_path / "spool"
    with bucket_server(tmp_path / "up", scheme, 30) as (server, url):
        stream = stream_of(url, spool, spaces="b", max_rows_per_batch=10)
        stream.prepareForTriggerAvailableNow()
        server.log.replace("b", item(99))
        position = start = stream.initialOffset()
        steps = 0
        while (end := stream.latestOffset(position, ReadMaxRows(10))) != position:
            position, steps = end, steps + 1
        assert steps > 1
        assert stream.reportLatestOffset() == position
        assert len(read_all(stream, stream.partitions(start, position))) == 30
        stream.stop()
        stream = stream_of(url, spool, spaces="b")
        stream.prepareForTriggerAvailableNow()
        end = stream.latestOffset(position, ReadAllAvailable())
        stream.stop()
        rows = read_all(stream, stream.partitions(position, end))
        assert [row[:3] for _, row in rows] == [[b"k99", 0, b"v"]]


def test_latest_is_behind_what_the_upstream_has(tmp_path: Path) -> None:
    """A new query that begins there has later changes only."""
    with bucket_server(tmp_path / "up", "greenstack", 10) as (server, url):
        stream = stream_of(url, tmp_path / "spool", spaces="b", **{"from": "latest"})
        start = stream.initialOffset()
        server.log.replace("b", item(3, b"new"))
        end = upto(stream, start, bool)
        assert [row[2] for _, row in read_all(stream, stream.partitions(start, end))] == [b"new"]
        stream.stop()


def test_logs_that_were_read_may_go(tmp_path: Path) -> None:
    """A position that Spark has committed is kept in the spool, so that its snapshots remove what
    lies before, and nothing else."""
    spool = tmp_path / "spool"
    with bucket_server(tmp_path / "up", "greenstack", 10) as (_, url):
        stream = stream_of(url, spool)
        start = stream.initialOffset()
        end = upto(stream, start, lambda rows: len(rows) > 10)
        log = stream.spool._log
        for number in range(3):
            log.create_space(f"t{number}")
            log.snapshot()
        assert read_all(stream, stream.partitions(start, end))
        stream.commit(stream.latestOffset(end, ReadAllAvailable()))
        log.create_space("last")
        log.snapshot()
        with pytest.raises(PositionUnavailable, match="oldest log"):
            stream_of(url, spool).partitions(start, end)
        stream.stop()


def test_an_offset_names_no_row_that_is_not_on_disk(tmp_path: Path) -> None:
    """A block that is written and not synced is in the file for everybody to read. After a power
    cut it would not be, and other rows would get its numbers."""
    go_on, written, may_sync = threading.Event(), threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        peer.connect()
        peer.send(TapMessage(Opcode.TAP_MUTATION, b"one", b"v"))
        assert go_on.wait(20)
        peer.send(TapMessage(Opcode.TAP_MUTATION, b"two", b"v"))
        peer.receive()

    def before_sync() -> None:
        written.set()
        assert may_sync.wait(20)

    with TapServer(script) as upstream:
        stream = stream_of(f"tap://127.0.0.1:{upstream.port}/b", tmp_path / "s", spaces="b")
        start = stream.initialOffset()
        middle = upto(stream, start, bool)
        failpoint.arm("wal.after_write_before_sync", before_sync)
        try:
            go_on.set()
            assert written.wait(20)
            with closing(Tail(ScanOptions(paths=(str(tmp_path / "s"),)))) as tail:
                assert tail.newest() != stream.spool.vclock
            assert stream.latestOffset(middle, ReadAllAvailable()) == middle
        finally:
            failpoint.disarm()
            may_sync.set()
        upto(stream, middle, bool)
        stream.stop()


# --- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [*SCHEMES, "synapse"])
def test_nobody_who_answers_is_an_error_at_once(tmp_path: Path, scheme: str) -> None:
    """Of a batch, of a stream, and of one that takes what there is."""
    with TapServer(lambda peer: None) as gone:
        url = f"{scheme}://127.0.0.1:{gone.port}"
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1"):
        batch(url)
    stream = stream_of(url, tmp_path / "spool")
    with pytest.raises(Unreachable):
        stream.initialOffset()
    stream.stop()
    with pytest.raises(Unreachable):
        stream.prepareForTriggerAvailableNow()
    stream.stop()


def test_refusals_are_errors(tmp_path: Path) -> None:
    """A server that speaks no TAP, a bucket that is not there."""

    def refuse(peer: Peer) -> None:
        peer.connect()
        peer.socket.sendall(encode_answer(Packet(Opcode.TAP_CONNECT), Status.UNKNOWN_COMMAND))

    with TapServer(refuse) as upstream:
        with pytest.raises(SourceStopped, match="does not speak TAP"):
            batch(f"tap://127.0.0.1:{upstream.port}/b")
        stream = stream_of(f"tap://127.0.0.1:{upstream.port}/b", tmp_path / "spool")
        start: dict[str, Any] = {"vclock": {}}
        with pytest.raises(SourceStopped, match="does not speak TAP"):
            upto(stream, start, lambda rows: False)
        stream.stop()
    with bucket_server(tmp_path / "up", "greenstack") as (_, url), pytest.raises(PeerRefused):
        batch(url.replace("/b", "/nowhere"))


def test_an_upstream_that_stays_away_ends_the_stream(tmp_path: Path) -> None:
    """What came before is there; after `stall` seconds without it the query hears of it."""
    with bucket_server(tmp_path / "up", "greenstack", 3) as (_, url):
        stream = stream_of(f"{url}?stall=0.5", tmp_path / "spool", spaces="b")
        start = stream.initialOffset()
        upto(stream, start, lambda rows: len(rows) == 3)
    with pytest.raises(Unreachable):
        upto(stream, start, lambda rows: False)
    stream.stop()


def test_an_upstream_that_comes_back_is_gone_on_with(tmp_path: Path) -> None:
    """Within that time nothing ends: its rows come."""
    with bucket_server(tmp_path / "up", "tap", 3) as (server, url):
        port = server.port
        stream = stream_of(url, tmp_path / "spool", spaces="b")
        start = stream.initialOffset()
        middle = upto(stream, start, lambda rows: len(rows) == 3)
    with Serving(
        tmp_path / "up", listen=[parse_listen_url(f"tap://127.0.0.1:{port}/b")], guest="all"
    ) as server:
        server.log.replace("b", item(7))
        upto(stream, middle, bool)
        assert stream.spool._log.get("b", b"k7") is not None
        stream.stop()


def test_another_folder_under_the_same_checkpoint_is_refused(tmp_path: Path) -> None:
    """Its positions mean other rows; so do those of a folder that has lost some."""
    with bucket_server(tmp_path / "up", "tap", 3) as (_, url):
        stream = stream_of(url, tmp_path / "one")
        start = stream.initialOffset()
        end = upto(stream, start, bool)
        stream.stop()
        other = stream_of(url, tmp_path / "two")
        with pytest.raises(ConfigError, match="the checkpoint was made with"):
            other.initialOffset() and other.latestOffset(end, ReadAllAvailable())
        with pytest.raises(ConfigError, match="the checkpoint was made with"):
            other.partitions(start, end)
        other.stop()
        stream = stream_of(url, tmp_path / "one")
        with pytest.raises(PositionUnavailable, match="has lost rows"):
            stream.latestOffset({**end, "vclock": {"1": 10_000}}, ReadAllAvailable())
        stream.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "tap://h", "kinds": "xlog"}, "kinds .* is for folders"),
        ({"url": "tap://h", "recursive": "true"}, "recursive .* is for folders"),
        ({"url": "tap://h", "from": "latest"}, "from .* is for streams"),
        ({"url": "tap://h", "max_rows_per_batch": "5"}, "max_rows_per_batch .* is for streams"),
        ({"url": "greenstack://h", "vclock_from": "{1: 5}"}, "vclock_from .* give a spool"),
        ({"url": "greenstack://h", "replica_id": "1", "lsn_to": "5"}, "replica_id .* give a spool"),
        ({"url": "tap://h?takeover=1&vbuckets=0"}, "takeover=1 takes vbuckets away"),
        ({"url": "memcached://h"}, "spool|cannot be followed"),
    ],
)
def test_options_of_a_batch_that_make_no_sense_are_refused(
    options: dict[str, str], message: str
) -> None:
    """By name, before anything is asked."""
    with pytest.raises(ConfigError, match=message):
        SpoolReader(ScanOptions.parse(options))


def test_options_of_a_stream_that_make_no_sense_are_refused() -> None:
    """A stream needs a spool that stays; its logs are read in order."""
    with pytest.raises(ConfigError, match=r"spool .* is needed"):
        SpoolStream(ScanOptions.parse({"url": "synapse+redis://h/server"}))
    for name, value in (("split_mode", "none"), ("kinds", "xlog"), ("vclock_to", "{1: 5}")):
        given = {"url": "tap://h", "spool": "/tmp/s", name: value}
        with pytest.raises(ConfigError, match=name):
            SpoolStream(ScanOptions.parse(given))
    for where in ({"path": "data"}, {"url": "tarantool://h"}, {"url": "tank://h/t"}):
        with pytest.raises(ConfigError, match=r"spool .* is for upstreams"):
            ScanOptions.parse({**where, "spool": "/tmp/s"})
    for spool in ("s3://bucket/s", "spool+s3://bucket/s"):
        parsed = ScanOptions.parse({"url": "tap://h", "spool": spool})
        assert parsed == ScanOptions.parse(parsed.to_text())
        assert parsed.spool == "spool+s3://bucket/s"
