"""CHANGE_VB_FILTER: a stream goes over to other vbuckets."""

from __future__ import annotations

import threading
from pathlib import Path

from interop.kvclient import KvClient, store
from interop.test_memcached_endpoint import ACK, data, serve, set_state, take_until
from interop.test_memcached_options import opaques, until
from logweir.replication.bucket.item import VbucketState
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status
from logweir.replication.memcached.wire.messages import (
    Connect,
    Opaque,
    Option,
)


def filter_request(name: bytes, *vbuckets: int) -> Packet:
    """CHANGE_VB_FILTER."""
    pairs = b"".join(vbucket.to_bytes(2, "big") + bytes(8) for vbucket in vbuckets)
    value = len(vbuckets).to_bytes(2, "big") + pairs
    return Packet(Opcode.CHANGE_VB_FILTER, name, value)


def test_a_filter_change_brings_what_is_missing(tmp_path: Path) -> None:
    """What the new vbucket holds, framed, then the mark, then its changes; the old one ends; a
    reconnect for more than was had begins anew."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        for vbucket in (1, 2):
            set_state(client, vbucket, VbucketState.ACTIVE)
            client.ask(*(store(b"%d-%d" % (vbucket, n), vbucket=vbucket) for n in range(3)))
        connect = Connect(b"mover", ACK | Option.LIST_VBUCKETS, vbuckets=(1,))
        with KvClient(server.port) as consumer:
            stream = consumer.stream(connect)
            first = until(stream, Opaque.CLOSE_BACKFILL)
            assert {key[:1] for _, key in data(first)} == {b"1"}
            assert client.ask(filter_request(b"nobody", 2))[0].status == Status.NOT_FOUND
            bad = Packet(Opcode.CHANGE_VB_FILTER, b"mover", b"\0\2")
            assert client.ask(bad)[0].status == Status.INVALID
            assert client.ask(filter_request(b"mover", 2))[0].status == 0
            second = until(stream, Opaque.COMPLETE_VB_FILTER_CHANGE)
            assert opaques(second) == [
                (Opaque.INITIAL_VBUCKET_STREAM, 2),
                (Opaque.CLOSE_BACKFILL, 2),
                (Opaque.COMPLETE_VB_FILTER_CHANGE, 0),
            ]
            assert [key for _, key in data(second)] == [b"2-0", b"2-1", b"2-2"]
            client.ask(store(b"1-late", vbucket=1), store(b"2-late", vbucket=2))
            assert [m.key for m in take_until(stream, b"2-late")] == [b"2-late"]
            client.ask(store(b"2-more", vbucket=2))
            take_until(stream, b"2-more")
        both = Connect(b"mover", ACK | Option.LIST_VBUCKETS, vbuckets=(1, 2))
        with KvClient(server.port) as consumer:
            again = until(consumer.stream(both), Opaque.CLOSE_BACKFILL)
        keys = [key for _, key in data(again)]
        assert len(keys) == len(set(keys)) == 9


def test_a_filter_change_under_writes_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """While both vbuckets are written: each change once, of the new one from its first on."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        for vbucket in (1, 2):
            set_state(client, vbucket, VbucketState.ACTIVE)
        writer_client = KvClient(server.port)
        numbers = range(1500)

        def write() -> None:
            for n in numbers:
                writer_client.ask(
                    *(store(b"%d-%d" % (vb, n % 700), b"%d" % n, vbucket=vb) for vb in (1, 2))
                )
            writer_client.ask(store(b"end", vbucket=2))

        writer = threading.Thread(target=write)
        with KvClient(server.port) as consumer:
            connect = Connect(b"mover", ACK | Option.LIST_VBUCKETS, vbuckets=(1,))
            stream = consumer.stream(connect)
            taken = until(stream, Opaque.CLOSE_BACKFILL)
            writer.start()
            taken += take_until(stream, b"1-300")
            assert client.ask(filter_request(b"mover", 1, 2))[0].status == 0
            taken += take_until(stream, b"end")
        writer.join()
        writer_client.close()
        for vbucket in (1, 2):
            values = [int(m.value) for m in taken if m.key.startswith(b"%d-" % vbucket)]
            latest = {m.key: m.value for m in taken if m.key.startswith(b"%d-" % vbucket)}
            assert latest == {b"%d-%d" % (vbucket, n % 700): b"%d" % n for n in range(800, 1500)}
            if vbucket == 1:
                assert values == list(numbers)
            else:
                assert len(values) == len(set(values))
