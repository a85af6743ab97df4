"""The pipeline's readers of running servers, without Spark: partitions are made and read here."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from interop.realtarantool import RealTarantool
from interop.serving import Serving
from logweir.errors import (
    ConfigError,
    PositionUnavailable,
    RequestError,
    SourceStopped,
    Unreachable,
)
from logweir.pipeline.landing import land
from logweir.pipeline.options import ScanOptions, SinkOptions
from logweir.pipeline.parts import Part, PartWriter, SinkLayout
from logweir.pipeline.peersources import PeerReader, PeerStream, TopicReader, TopicStream
from logweir.replication.protocols import parse_listen_url
from logweir.replication.tank.client import Client
from logweir.wal.mp import pack


def lsns(batches: Any) -> list[int]:
    """Of all rows."""
    return [lsn for batch in batches for lsn in batch.column("lsn").to_pylist()]


def read_all(reader: Any, partitions: Any) -> list[Any]:
    """The batches of all partitions."""
    return [batch for one in partitions for batch in reader.read(one)]


def test_rows_of_our_server_come_between_two_positions(tmp_path: Path) -> None:
    """A stream's batches hold each row once; a second reading of a batch gives the same rows."""
    with Serving(tmp_path / "data", guest="replicate") as server:
        server.log.create_space("t", format=[("id", "unsigned")])
        options = ScanOptions.parse({"url": f"tarantool://127.0.0.1:{server.port}"})
        stream = PeerStream(options)
        start = stream.initialOffset()
        for number in range(50):
            server.log.insert("t", (number,))
        middle = stream.latestOffset(start, ReadAllAvailable())
        first = lsns(read_all(stream, stream.partitions(start, middle)))
        assert first == list(range(1, server.log.vclock.signature + 1))
        assert lsns(read_all(stream, stream.partitions(start, middle))) == first
        assert stream.partitions(middle, middle) == []
        reader = PeerReader(ScanOptions.parse({**options.to_text(), "spaces": "512"}))
        batches = read_all(reader, reader.partitions())
        assert len(lsns(batches)) == 50
        assert batches[0].column("block_offset").null_count == batches[0].num_rows


@pytest.mark.tarantool
def test_a_real_tarantool_is_followed_anonymously(tmp_path: Path) -> None:
    """Rows of a Tarantool arrive as in its log, and it registers no replica."""
    with RealTarantool(tmp_path / "box", listen="127.0.0.1:0") as box:
        box.eval("box.schema.user.grant('guest', 'replication')")
        box.eval("box.schema.space.create('t'):create_index('pk')")
        box.eval("for i = 1, 100 do box.space.t:insert{i, 'x'} end")
        reader = PeerReader(ScanOptions.parse({"url": f"tarantool://127.0.0.1:{box.port}"}))
        found = read_all(reader, reader.partitions())
        assert lsns(found)[-100:] == list(range(lsns(found)[-100], lsns(found)[-1] + 1))
        assert lsns(found)[-1] == box.eval("return box.info.lsn")[0]
        assert box.eval("return box.space._cluster:count()") == [1]


def test_a_position_that_the_server_removed_is_named(tmp_path: Path) -> None:
    """A stream whose start is older than the server's logs fails with both positions."""
    with Serving(
        tmp_path / "data", guest="replicate", open_options={"checkpoint_count": 1}
    ) as server:
        stream = PeerStream(ScanOptions.parse({"url": f"tarantool://127.0.0.1:{server.port}"}))
        for number in range(3):
            server.log.create_space(f"t{number}", format=[("id", "unsigned")])
            server.log.snapshot()
        end = stream.latestOffset({"vclock": {}}, ReadAllAvailable())
        with pytest.raises(PositionUnavailable, match="removed the logs"):
            read_all(stream, stream.partitions({"vclock": {}}, end))


def test_a_server_of_another_replica_set_is_refused(tmp_path: Path) -> None:
    """Its first rows have the positions that the checkpoint says were read; also where it came to
    the other's address behind the plan of a batch."""
    starts, planned = [], []
    for name in ("first", "second"):
        with Serving(tmp_path / name, guest="replicate") as server:
            server.log.create_space("t", format=[("id", "unsigned")])
            options = ScanOptions.parse({"url": f"tarantool://127.0.0.1:{server.port}"})
            stream = PeerStream(options)
            starts.append(stream.initialOffset())
            end = stream.latestOffset(starts[-1], ReadAllAvailable())
            assert end["vclock"] == {"1": server.log.vclock.signature}
            planned += stream.partitions(starts[-1], end)
            if name == "second":
                with pytest.raises(ConfigError, match="the checkpoint was made with"):
                    stream.latestOffset(starts[0], ReadAllAvailable())
                with pytest.raises(ConfigError, match="the checkpoint was made with"):
                    stream.partitions(starts[0], end)
                with pytest.raises(SourceStopped, match="the positions to"):
                    read_all(stream, planned[:1])
                assert lsns(read_all(stream, planned[1:]))


def test_a_server_that_is_not_there_is_named() -> None:
    """Nobody listens: `Unreachable` with the address."""
    reader = PeerReader(ScanOptions.parse({"url": "tarantool://127.0.0.1:1"}))
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        reader.partitions()


def test_what_a_server_cannot_do_is_refused() -> None:
    """By name, before anything is read."""
    with pytest.raises(ConfigError, match="max_rows_per_batch"):
        PeerStream(ScanOptions.parse({"url": "tarantool://h", "max_rows_per_batch": "5"}))
    with pytest.raises(ConfigError, match="memcached cannot be followed"):
        PeerReader(ScanOptions.parse({"url": "memcached://h"}))
    with pytest.raises(ConfigError, match="spaces"):
        TopicReader(ScanOptions.parse({"url": "tank://h/t", "spaces": "512"}))


def test_what_came_by_another_protocol_is_read_from_the_logweir_that_has_it(
    tmp_path: Path,
) -> None:
    """A change that a memcached client wrote is a row of the server's log, as of any other."""
    listen = [parse_listen_url("tarantool://:0"), parse_listen_url("memcached://:0")]
    with Serving(tmp_path / "data", listen=listen, guest="all") as server:
        key, value = b"k" * 250, b"text"
        extras = bytes(8)
        packet = struct.pack(
            "!BBHBBHIIQ", 0x80, 1, len(key), 8, 0, 0, 8 + len(key) + len(value), 1, 0
        )
        with socket.create_connection(("127.0.0.1", server.urls[1].port), timeout=10) as client:
            client.sendall(packet + extras + key + value)
            assert client.recv(24)[6:8] == b"\0\0"
        options = ScanOptions.parse({"url": f"tarantool://127.0.0.1:{server.urls[0].port}"})
        stream = PeerStream(options)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadAllAvailable())
        found = read_all(stream, stream.partitions(start, end))
        tuples = [one for batch in found for one in batch.column("tuple").to_pylist()]
        assert any(one is not None and key in one and value in one for one in tuples)


def test_a_topic_is_read_with_a_task_per_partition(tmp_path: Path) -> None:
    """Messages of two partitions, capped batches, the same numbers as were published."""

    async def publish(url: str) -> None:
        async with Client(url) as client:
            await client.create_topic("events", 2)
            async with client.producer() as producer:
                for number in range(20):
                    await producer.send("events", b"m%d" % number, partition=number % 2)

    with Serving(tmp_path / "data", listen=[parse_listen_url("tank://:0")]) as server:
        url = f"tank://127.0.0.1:{server.port}"
        asyncio.run(publish(url))
        options = ScanOptions.parse({"url": f"{url}/events", "max_rows_per_batch": "8"})
        stream = TopicStream(options)
        position = stream.initialOffset()
        found: list[bytes] = []
        sizes = []
        while True:
            following = stream.latestOffset(position, stream.getDefaultReadLimit())
            partitions = stream.partitions(position, following)
            if not partitions:
                break
            batches = read_all(stream, partitions)
            sizes.append((len(partitions), sum(batch.num_rows for batch in batches)))
            found += [one for batch in batches for one in batch.column("content").to_pylist()]
            position = following
        assert sizes == [(2, 8), (2, 8), (2, 4)]
        assert sorted(found) == sorted(b"m%d" % number for number in range(20))
        assert stream.latestOffset(position, ReadMaxRows(1)) == position
        reader = TopicReader(ScanOptions.parse({"url": f"{url}/events/1"}))
        assert len(reader.partitions()) == 1
        numbers = [
            int(one)
            for batch in read_all(reader, reader.partitions())
            for one in batch.column("number").to_pylist()
        ]
        assert numbers == list(range(1, 11))


def staged(folder: Path, batches: list[pa.RecordBatch]) -> list[Part]:
    """One part per batch."""
    layout = SinkLayout(kind="xlog", keeps=False, timestamp=1.0)
    parts = []
    for number, batch in enumerate(batches):
        writer = PartWriter(folder / f"part-{number}", layout)
        writer.add(batch)
        parts.append(writer.finish())
    return parts


def changes(*rows: tuple[int, Any, Any]) -> pa.RecordBatch:
    """Type, key or tuple, operations, in space 512."""
    kinds = [row[0] for row in rows]
    return pa.RecordBatch.from_pydict(
        {
            "type": pa.array(kinds, pa.int16()),
            "space_id": pa.array([512] * len(rows), pa.int64()),
            "key": pa.array([pack(row[1]) if row[0] in (4, 5) else None for row in rows]),
            "tuple": pa.array([None if row[0] in (4, 5) else pack(row[1]) for row in rows]),
            "ops": pa.array(
                [None if row[2] is None else pack(row[2]) for row in rows], pa.binary()
            ),
        }
    )


CHANGES = [
    changes((2, [1, "one", 1.0], None), (2, [2, "two", 2.0], None), (3, [3, "three", 3.0], None)),
    changes((4, [1], [["=", 1, "ONE"]]), (5, [2], None), (9, [4, "four", 4.0], [["+", 2, 1]])),
]
RESULT = [[1, "ONE", 1.0], [3, "three", 3.0], [4, "four", 4.0]]


def check_landing(url: str, tmp_path: Path, select: Callable[[], list[Any]]) -> None:
    """Rows land in order and once; a batch that is repeated, or fails, changes nothing."""
    options = SinkOptions.parse({"url": url, "query": "orders"})
    parts = staged(tmp_path, CHANGES)
    land(options, "orders", 0, parts)
    assert select() == RESULT
    land(options, "orders", 0, parts)
    assert select() == RESULT
    folder = tmp_path / "bad"
    folder.mkdir()
    bad = staged(folder, [changes((3, [9, "nine", 9.0], None), (2, [1, "again", 0.0], None))])
    with pytest.raises(RequestError, match="row 1"):
        land(options, "orders", 1, bad)
    assert select() == RESULT
    folder = tmp_path / "more"
    folder.mkdir()
    land(options, "orders", 1, staged(folder, [changes((3, [9, "nine", 9.0], None))]))
    assert select() == [*RESULT, [9, "nine", 9.0]]


def test_batches_land_in_our_server_once(tmp_path: Path) -> None:
    """By the function that the operator allowed, with the position in the same transaction."""
    options = {"guest": "all", "functions": "logweir.pipeline.landing"}
    with Serving(tmp_path / "data", **options) as server:
        server.log.create_space("t", format=[("id", "unsigned"), ("s", "string"), ("d", "double")])
        url = f"tarantool://127.0.0.1:{server.port}"
        check_landing(url, tmp_path, lambda: [list(row) for row in server.log.select("t")])
        assert server.log.get("logweir_position", ("spark", "orders", ""))[3] == {"batch": 1}


def test_a_server_without_the_function_says_so(tmp_path: Path) -> None:
    """The hint names the option to start it with."""
    with Serving(tmp_path / "data", guest="all") as server:
        options = SinkOptions.parse({"url": f"tarantool://127.0.0.1:{server.port}"})
        with pytest.raises(RequestError, match=r"--functions logweir\.pipeline\.landing"):
            land(options, "", 0, staged(tmp_path, CHANGES))


@pytest.mark.tarantool
def test_batches_land_in_a_real_tarantool_once(tmp_path: Path) -> None:
    """By EVAL, byte for byte: a whole double stays a double."""
    with RealTarantool(tmp_path / "box", listen="127.0.0.1:0") as box:
        box.eval("box.schema.user.grant('guest', 'super')")
        box.eval("box.schema.space.create('t'):create_index('pk')")
        url = f"tarantool://127.0.0.1:{box.port}"
        check_landing(url, tmp_path, lambda: list(box.eval("return box.space.t:select()")[0]))
        raw = box.eval_raw("return box.space.t:get(3)")
        assert pack([3, "three", 3.0]) in raw
