"""Consumers that come back: vbuckets with a checkpoint go on, the others begin anew; an
acknowledgement anywhere is a place to go on from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.kvclient import KvClient, store
from interop.serving import Serving
from interop.test_memcached_endpoint import ACK, FUTURE, applied, data, serve, set_state
from interop.test_memcached_options import opaques
from interop.test_memcached_source import following, keys, status
from logweir.replication.bucket.item import VbucketState
from logweir.replication.memcached.wire.codec import Opcode, Packet
from logweir.replication.memcached.wire.messages import Connect, Opaque, Option, TapMessage
from logweir.replication.runner import SourceState

OPTIONS = ACK | Option.CHECKPOINT | Option.LIST_VBUCKETS
BOTH = (1, 2)


def until_key(stream: Iterator[TapMessage], key: bytes) -> list[TapMessage]:
    """What comes up to the end of the checkpoint of a key."""
    taken: list[TapMessage] = []
    for message in stream:
        taken.append(message)
        if message.opcode == Opcode.TAP_CHECKPOINT_END and any(m.key == key for m in taken):
            return taken
    raise AssertionError(f"the stream ended before {key!r}")


def checkpoint(server: Serving, vbucket: int) -> int:
    """The id of the last checkpoint of a vbucket that is there now."""
    connect = Connect(b"", OPTIONS, vbuckets=(vbucket,))
    with KvClient(server.port) as consumer:
        for message in consumer.stream(connect):
            if message.opcode == Opcode.TAP_CHECKPOINT_END:
                assert message.number
                return message.number
    raise AssertionError("no checkpoint")


def come_back(
    server: Serving, checkpoints: tuple[tuple[int, int], ...], last: bytes, name: bytes = b""
) -> list[TapMessage]:
    """What a consumer of both vbuckets is sent, up to a key."""
    connect = Connect(name, OPTIONS, vbuckets=BOTH, checkpoints=checkpoints)
    with KvClient(server.port) as consumer:
        return until_key(consumer.stream(connect), last)


def of(messages: list[TapMessage], vbucket: int) -> list[bytes]:
    """Keys of its mutations and deletions, in order."""
    return [m.key for m in messages if m.key and m.vbucket == vbucket]


def prepare(client: KvClient) -> None:
    """Both vbuckets, with ten items each."""
    for vbucket in BOTH:
        set_state(client, vbucket, VbucketState.ACTIVE)
        client.ask(*(store(b"%d-%d" % (vbucket, n), vbucket=vbucket) for n in range(10)))


@pytest.mark.parametrize("other", [(), ((2, 2**60),), ((2, 0),), ((7, 3),)])
def test_only_what_has_no_checkpoint_begins_anew(
    tmp_path: Path, other: tuple[tuple[int, int], ...]
) -> None:
    """Of the vbucket with a pair comes what changed; all of the one without, or with an id that we
    never gave, framed; an id below everything brings the changes since the beginning."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        prepare(client)
        known = checkpoint(server, 1)
        client.ask(Packet(Opcode.DELETE, b"1-3", vbucket=1), store(b"1-new", vbucket=1))
        client.ask(store(b"2-end", vbucket=2))
        taken = come_back(server, ((1, known), *other), b"2-end")
        assert of(taken, 1) == [b"1-3", b"1-new"]
        assert sorted(of(taken, 2)) == sorted([*(b"2-%d" % n for n in range(10)), b"2-end"])
        framed = {2} if other != ((2, 0),) else set()
        for subtype in (Opaque.INITIAL_VBUCKET_STREAM, Opaque.CLOSE_BACKFILL):
            assert {vb for number, vb in opaques(taken) if number == subtype} == framed
        again = checkpoint(server, 1)
        client.ask(store(b"1-last", vbucket=1), store(b"2-last", vbucket=2))
        both = tuple((vb, again) for vb in BOTH)
        assert data(come_back(server, both, b"2-last")) == [
            (Opcode.TAP_MUTATION, b"1-last"),
            (Opcode.TAP_MUTATION, b"2-last"),
        ]


def test_checkpoints_do_not_go_back(tmp_path: Path) -> None:
    """A consumer with different ids is sent none below those that it has."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        prepare(client)
        early = checkpoint(server, 1)
        client.ask(*(store(b"2-%d" % n, b"more", vbucket=2) for n in range(20)))
        late = checkpoint(server, 2)
        assert late > early
        client.ask(store(b"2-end", vbucket=2))
        taken = come_back(server, ((1, early), (2, late)), b"2-end")
        assert data(taken) == [(Opcode.TAP_MUTATION, b"2-end")]
        ends = [m for m in taken if m.opcode == Opcode.TAP_CHECKPOINT_END]
        floors = {1: early, 2: late}
        assert all((m.number or 0) >= floors[m.vbucket] for m in ends)


@pytest.mark.parametrize("missing", [False, True])
def test_a_flush_between_the_checkpoints_costs_nothing(tmp_path: Path, missing: bool) -> None:
    """It empties the consumer's copy of the vbucket that was behind it as well, so all of that one
    comes again."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        prepare(client)
        early = checkpoint(server, 1)
        client.ask(Packet(Opcode.FLUSH))
        client.ask(*(store(b"2-after%d" % n, vbucket=2) for n in range(5)))
        late = checkpoint(server, 2)
        client.ask(store(b"1-end", vbucket=1))
        if missing:
            set_state(client, 3, VbucketState.ACTIVE)
            client.ask(*(store(b"3-%d" % n, vbucket=3) for n in range(5)))
        pairs = ((1, early), (2, late))
        wanted = (1, 2, 3) if missing else BOTH
        connect = Connect(b"", OPTIONS, vbuckets=wanted, checkpoints=pairs)
        with KvClient(server.port) as consumer:
            stream = consumer.stream(connect)
            taken = until_key(stream, b"1-end")
            client.ask(store(b"2-end", vbucket=2))
            taken += until_key(stream, b"2-end")
        there = {row[0]: row[2] for row in server.log.select("b")}
        assert applied(taken) == there
        assert len(there) == (12 if missing else 7)


def test_under_writes_each_change_comes_once(tmp_path: Path) -> None:
    """While both vbuckets are written: of the one with a checkpoint each change behind it, in
    order, of the other what is there and each change behind that."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        prepare(client)
        known = checkpoint(server, 1)

        def write() -> None:
            with KvClient(server.port) as writer:
                for n in range(1500):
                    both = (store(b"%d-%d" % (vb, n % 400), b"%d" % n, vbucket=vb) for vb in BOTH)
                    writer.ask(*both)
                writer.ask(store(b"2-end", vbucket=2))

        thread = threading.Thread(target=write)
        thread.start()
        taken = come_back(server, ((1, known),), b"2-end")
        thread.join()
        values = [int(m.value) for m in taken if m.vbucket == 1 and m.key]
        assert values == list(range(1500))
        others = [(m.key, m.value) for m in taken if m.vbucket == 2 and m.key != b"2-end" and m.key]
        assert len(others) == len(set(others))
        there = {row[0]: row[2] for row in server.log.select("b") if row[1] == 2}
        assert {k: v for k, v in applied(taken).items() if k.startswith(b"2-")} == there


def test_our_source_copies_only_what_it_has_not(tmp_path: Path) -> None:
    """A vbucket that was made while it was away is copied, the others go on."""
    with serve(tmp_path / "a") as upstream, KvClient(upstream.port) as client:
        set_state(client, 1, VbucketState.ACTIVE)
        client.batch(*(store(b"1-%d" % n, opcode=Opcode.SETQ, vbucket=1) for n in range(3000)))
        client.ask(store(b"0"))
        with following(tmp_path / "b", upstream.port) as server:
            server.wait(lambda: len(keys(server)) == 3001)
            client.ask(store(b"0"), store(b"1-live", vbucket=1))
            server.wait(lambda: len(server.log.select("logweir_position")) == 1)
            server.wait(lambda: b"1-live" in keys(server))
        set_state(client, 2, VbucketState.ACTIVE)
        client.ask(*(store(b"2-%d" % n, vbucket=2) for n in range(5)))
        client.ask(store(b"1-0", b"changed", vbucket=1), Packet(Opcode.DELETE, b"1-1", vbucket=1))
        with following(tmp_path / "b", upstream.port) as server:
            server.wait(lambda: status(server).state == SourceState.FOLLOWING)
            server.wait(lambda: server.log.get("b", b"1-1") is None)
            server.wait(lambda: [row[:10] for row in server.log.select("b")]
                        == [row[:10] for row in upstream.log.select("b")])  # fmt: skip
            assert status(server).rows < 100


def test_an_acknowledgement_in_the_middle_of_a_run_is_a_place_to_go_on_from(tmp_path: Path) -> None:
    """Many changes that were committed at once and sent at once: after a break come exactly those
    behind the one that was acknowledged, whatever else changed between them."""
    connect = Connect(b"n", ACK | Option.BACKFILL, backfill=FUTURE)
    keys_ = [b"k%d" % n for n in range(3000)]
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        with KvClient(server.port) as consumer:
            stream = consumer.stream(connect)
            next(stream)
            server.wait(lambda: server.server.settled.readers == 1)
            with server.log.transaction() as tx:
                tx.create_space("other", [("id", "unsigned")], primary=["id"])
            jobs = [store(key, opcode=Opcode.SETQ) for key in keys_]
            client.batch(*jobs[:700])
            server.log.insert("other", (1,))
            client.batch(*jobs[700:])
            seen: list[TapMessage] = []
            while len([message for message in seen if message.wants_ack]) < 2:
                seen += [message] if (message := next(stream)).key else []
            # the second flagged one is not acknowledged: nobody asks for a further message
        first = next(message for message in seen if message.wants_ack)
        server.wait(lambda: server.server.settled.readers == 0)
        with KvClient(server.port) as consumer:
            again = []
            for message in consumer.stream(connect):
                again += [message.key] if message.key else []
                if message.key == keys_[-1]:
                    break
        assert again == keys_[keys_.index(first.key) + 1 :]
        assert len(again) < 3000
