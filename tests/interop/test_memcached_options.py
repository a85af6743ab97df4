"""What TAP clients may ask of our endpoint besides the plain stream: spaces, filters, forms, TTL,
pending vbuckets, expiry, logins, signs of life."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interop.kvclient import KvClient, store
from interop.serving import Serving
from interop.test_memcached_endpoint import ACK, FUTURE, data, serve, set_state, take_until
from interop.test_memcached_logins import log_in
from logweir.errors import ConfigError
from logweir.limits import TAP_VALUE_BYTES
from logweir.replication.bucket.item import Item, VbucketState, pack_item
from logweir.replication.memcached.wire.codec import (
    Opcode,
    Packet,
    Status,
    encode_ack,
    encode_answer,
)
from logweir.replication.memcached.wire.messages import (
    Connect,
    Opaque,
    Option,
    TapMessage,
    encode_connect,
    encode_tap,
)
from logweir.replication.protocols import parse_listen_url
from logweir.replication.service import users
from logweir.store.schema.access import Privilege
from logweir.wal.mp import unpack

NUMBERED = [("id", "unsigned"), ("name", "string")]


def opaques(messages: list[TapMessage]) -> list[tuple[int | None, int]]:
    """Subtypes and vbuckets of TAP_OPAQUE."""
    return [(m.number, m.vbucket) for m in messages if m.opcode == Opcode.TAP_OPAQUE]


def until(stream: Iterator[TapMessage], subtype: Opaque) -> list[TapMessage]:
    """What comes up to an opaque of that subtype, with it."""
    taken = []
    for message in stream:
        taken.append(message)
        if message.opcode == Opcode.TAP_OPAQUE and message.number == subtype:
            return taken
    raise AssertionError(f"the stream ended before {subtype!r}")


# --- other spaces ---------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_any_space_is_a_stream(tmp_path: Path, encoding: str) -> None:
    """What is there, then changes of all kinds; keys and tuples as JSON or as MsgPack."""
    decode = json.loads if encoding == "json" else unpack
    listen = [parse_listen_url(f"tap://:0/space:orders?value={encoding}")]
    with Serving(tmp_path / "s", listen=listen, guest="all") as server:
        log = server.log
        log.create_space("orders", NUMBERED, primary=["id"])
        log.append("orders", [(n, f"o{n}") for n in range(10_000)])
        with KvClient(server.port) as consumer:
            stream = consumer.stream(Connect(b"index", ACK))
            there = until(stream, Opaque.CLOSE_BACKFILL)
            found = {tuple(decode(m.key)): decode(m.value) for m in there if m.key}
            assert found == {(n,): [n, f"o{n}"] for n in range(10_000)}
            assert len(data(there)) == 10_000
            log.replace("orders", (7, "seven"))
            log.update("orders", 8, [["=", 1, "eight"]])
            log.upsert("orders", (20_000, "new"), [["=", 1, "x"]])
            log.delete("orders", 9)
            log.insert("orders", (30_000, "end"))
            live = []
            for message in stream:
                live.append(message)
                if message.key and decode(message.key) == [30_000]:
                    break
        seen = [(m.opcode, decode(m.key), decode(m.value) if m.value else None) for m in live]
        assert seen == [
            (Opcode.TAP_MUTATION, [7], [7, "seven"]),
            (Opcode.TAP_MUTATION, [8], [8, "eight"]),
            (Opcode.TAP_MUTATION, [20_000], [20_000, "new"]),
            (Opcode.TAP_DELETE, [9], None),
            (Opcode.TAP_MUTATION, [30_000], [30_000, "end"]),
        ]


def test_a_space_is_chosen_truncated_and_dropped(tmp_path: Path) -> None:
    """SELECT_BUCKET chooses it; commands on it are refused; a truncation is a flush; one that is
    not there is refused; the end of the space is the end of its streams."""
    with serve(tmp_path / "s") as server:
        log = server.log
        log.create_space("two", [("a", "string"), ("b", "integer")], primary=["a", "b"])
        log.insert("two", ("x", -1))
        with KvClient(server.port) as client:
            choose = Packet(Opcode.SELECT_BUCKET, b"space:two")
            nowhere = Packet(Opcode.SELECT_BUCKET, b"space:none")
            answers = client.ask(nowhere, choose, Packet(Opcode.GET, b"k"), store(b"k"))
            assert [answer.status for answer in answers] == [1, 0, 0x83, 0x83]
            stream = client.stream(Connect(b"", Option(0)))
            there = until(stream, Opaque.CLOSE_BACKFILL)
            assert [m.key for m in there if m.key] == [b'["x", -1]']
            log.truncate("two")
            assert next(stream).opcode == Opcode.TAP_FLUSH
            log.drop_space("two")
            log.create_space("other", NUMBERED, primary=["id"])
            assert list(stream) == []


def test_a_space_dump_under_writes_is_one_position(tmp_path: Path) -> None:
    """Two rows that a writer keeps equal are equal at the end of each dump."""
    listen = [parse_listen_url("tap://:0/space:pairs")]
    with Serving(tmp_path / "s", listen=listen, guest="all") as server:
        log = server.log
        log.create_space("pairs", [("id", "unsigned"), ("n", "unsigned")], primary=["id"])
        log.append("pairs", [(n, 0) for n in range(12_000)])
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                with log.transaction() as tx:
                    tx.update("pairs", 0, [["=", 1, number]])
                    tx.update("pairs", 11_999, [["=", 1, number]])

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(3):
                with KvClient(server.port) as consumer:
                    found = {
                        m.key: json.loads(m.value)[1]
                        for m in consumer.stream(Connect(b"", Option.DUMP))
                        if m.key
                    }
                assert len(found) == 12_000
                assert found[b"[0]"] == found[b"[11999]"]
        finally:
            stop.set()
            writer.join()


def test_a_named_stream_of_a_space_goes_on(tmp_path: Path) -> None:
    """Across a restart, with checkpoints and the position of its name."""
    connect = Connect(b"indexer", ACK)
    listen = [parse_listen_url("tap://:0/space:orders")]
    with Serving(tmp_path / "s", listen=listen, guest="all") as server:
        server.log.create_space("orders", NUMBERED, primary=["id"])
        server.log.insert("orders", (1, "one"))
        with KvClient(server.port) as consumer:
            stream = consumer.stream(connect)
            until(stream, Opaque.CLOSE_BACKFILL)
            server.log.insert("orders", (2, "two"))
            take_until(stream, b"[2]")
            server.log.insert("orders", (3, "three"))
            take_until(stream, b"[3]")  # which acknowledges the one before
    with Serving(tmp_path / "s", listen=listen, guest="all") as server:
        server.log.insert("orders", (4, "four"))
        with KvClient(server.port) as consumer:
            again = take_until(consumer.stream(connect), b"[4]")
        assert [key for _, key in data(again)] == [b"[3]", b"[4]"]


@pytest.mark.parametrize(
    "text", ["?value=xml", "?form=3", "?sweep=-1", "?noop=0", "?noop=x", "?sasl=no"]
)
def test_options_that_mean_nothing_are_refused(tmp_path: Path, text: str) -> None:
    """At the start, naming the option."""
    with pytest.raises(ConfigError):
        Serving(tmp_path / "s", listen=[parse_listen_url(f"tap://:0/b{text}")]).__enter__()


# --- pipelines ------------------------------------------------------------------------------------


def resident_bytes() -> int:
    """What this process, in which the server runs, holds in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def link_of(server: Serving, client: KvClient) -> Any:
    """The server's end of a connection."""
    peer = f"127.0.0.1:{client.socket.getsockname()[1]}"
    found: list[Any] = []

    def is_there() -> bool:
        found[:] = [link for link in server.server.listener.links if link.peer == peer]
        return bool(found)

    server.wait(is_there)
    return found[0]


@pytest.mark.parametrize("shape", ["reads", "changes", "one by one", "pending"])
def test_pipelined_reads_of_large_values_wait_for_the_client(tmp_path: Path, shape: str) -> None:
    """Some answers are made, the others when those are taken; all come, in order, also what stands
    behind them, and a change behind them is not seen by those before it."""
    count, value = 60 if shape == "one by one" else 300, bytes(TAP_VALUE_BYTES)
    touch = bytes(4)
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(store(b"big", value), store(b"p"))
        wanted = [Packet(Opcode.GET, b"big", opaque=n) for n in range(count)]
        if shape == "changes":
            wanted[0:0] = [replace(store(b"a"), opaque=9000)] * 3
        elif shape == "one by one":
            wanted = [Packet(Opcode.GAT, b"big", extras=touch, opaque=n) for n in range(count)]
        elif shape == "pending":
            set_state(client, 3, VbucketState.PENDING)
            wanted[200:200] = [replace(store(b"w", vbucket=3), opaque=9001)]
        behind = [replace(store(b"big", b"small"), opaque=9002), Packet(Opcode.GET, b"big")]
        before = resident_bytes()
        with KvClient(server.port) as other:
            link = link_of(server, other)
            other.send(*wanted, *behind)
            server.wait(lambda: link.unsent_bytes > 0)
            server.wait(lambda: not link.writable or shape == "pending")
            assert link.unsent_bytes < 12 * 1024 * 1024
            assert resident_bytes() - before < 100 * 1024 * 1024
            if shape == "pending":
                set_state(client, 3, VbucketState.ACTIVE)
            assert client.ask(Packet(Opcode.NOOP))[0].status == 0
            answers = [other.receive() for _ in (*wanted, *behind)]
            assert resident_bytes() - before < count * TAP_VALUE_BYTES + 150 * 1024 * 1024
        assert [each and each.opaque for each in answers] == [
            packet.opaque for packet in (*wanted, *behind)
        ]
        assert {each and each.status for each in answers} == {0}
        sizes = [len(each.value) for each in answers if each and each.opaque < count]
        assert sizes == [len(value)] * count + [len(b"small")]


def test_a_client_that_never_reads_is_cut_off_and_costs_little(tmp_path: Path) -> None:
    """It leaves; nothing of what it asked for is made any more, and others are served."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(store(b"big", bytes(TAP_VALUE_BYTES)))
        other = KvClient(server.port)
        link = link_of(server, other)
        other.send(*(Packet(Opcode.GET, b"big") for _ in range(3000)))
        server.wait(lambda: link.unsent_bytes > 0)
        server.wait(lambda: not link.writable)
        other.close()
        server.wait(lambda: link not in server.server.listener.links)
        assert link.sent_bytes < 100 * 1024 * 1024
        assert client.ask(Packet(Opcode.GET, b"big"))[0].status == 0


# --- flushes --------------------------------------------------------------------------------------


# --- vbuckets -------------------------------------------------------------------------------------


def test_requests_to_a_pending_vbucket_wait(tmp_path: Path) -> None:
    """Until it is active, in order, whatever stands behind them on the connection; once it is dead
    they are refused; a client that goes away leaves nothing behind."""
    with (
        serve(tmp_path / "s") as server,
        KvClient(server.port) as client,
        KvClient(server.port) as other,
        KvClient(server.port) as third,
    ):
        set_state(client, 3, VbucketState.PENDING)
        other.send(store(b"k", b"1", vbucket=3), Packet(Opcode.GET, b"k", vbucket=3))
        other.send(store(b"z", b"2"), Packet(Opcode.GET, b"k", vbucket=3))
        third.send(Packet(Opcode.GET, b"k", vbucket=3))
        (service,) = {link._conversation.service for link in server.server.listener.links}
        server.wait(lambda: len(service._waiting) == 2)
        assert client.ask(Packet(Opcode.GET, b"z"))[0].status == Status.NOT_FOUND
        third.close()
        server.wait(lambda: len(service._waiting) == 1)
        set_state(client, 3, VbucketState.ACTIVE)
        answers = [other.receive() for _ in range(4)]
        assert [each and each.value for each in answers] == [b"", b"1", b"", b"1"]
        set_state(client, 3, VbucketState.PENDING)
        other.send(Packet(Opcode.GET, b"k", vbucket=3))
        server.wait(lambda: len(service._waiting) == 1)
        set_state(client, 3, VbucketState.DEAD)
        refused = other.receive()
        assert refused is not None
        assert refused.status == Status.NOT_MY_VBUCKET
        assert not service._waiting


@pytest.mark.parametrize("is_long", [False, True])
def test_a_pipeline_waits_in_its_middle(tmp_path: Path, is_long: bool) -> None:
    """What stands before the pending vbucket is done, what stands behind it is not; then all is
    answered, in order, each once."""
    count = 500 if is_long else 2
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        set_state(client, 3, VbucketState.PENDING)
        with KvClient(server.port) as other:
            before = [store(b"a%d" % n, b"before") for n in range(count)]
            held = [store(b"p", b"held", vbucket=3), Packet(Opcode.GET, b"p", vbucket=3)]
            behind = [Packet(Opcode.GET, b"a%d" % n) for n in range(count)]
            behind += [store(b"a%d" % n, b"behind") for n in range(count)]
            wanted = [
                replace(packet, opaque=n) for n, packet in enumerate([*before, *held, *behind])
            ]
            other.send(*wanted)
            server.wait(lambda: server.log.get("b", b"a%d" % (count - 1)) is not None)
            (service,) = {link._conversation.service for link in server.server.listener.links}
            server.wait(lambda: bool(service._waiting))
            assert {row[2] for row in server.log.select("b")} == {b"before"}
            set_state(client, 3, VbucketState.ACTIVE)
            answers = [other.receive() for _ in wanted]
        assert [each and each.opaque for each in answers] == list(range(len(wanted)))
        assert {each and each.status for each in answers} == {0}
        assert [each and each.value for each in answers[count + 1 : 2 * count + 2]] == [
            b"held",
            *([b"before"] * count),
        ]
        assert {row[2] for row in server.log.select("b")} == {b"behind", b"held"}


def test_a_stopped_server_leaves_no_request_half_done(tmp_path: Path) -> None:
    """A request that waits when the server stops was not made."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        set_state(client, 3, VbucketState.PENDING)
        client.send(store(b"k", vbucket=3))
        (service,) = {link._conversation.service for link in server.server.listener.links}
        server.wait(lambda: len(service._waiting) == 1)
    with serve(tmp_path / "s") as server:
        assert server.log.get("b", b"k") is None


# --- expiry and TTL -------------------------------------------------------------------------------


def test_what_expires_is_removed_without_being_asked_for(tmp_path: Path) -> None:
    """The walk makes DELETE rows, which followers see; what has not expired stays."""
    listen = [parse_listen_url("tap://:0/b?sweep=0.05")]
    with (
        Serving(tmp_path / "s", listen=listen, guest="all") as server,
        KvClient(server.port) as client,
        KvClient(server.port) as consumer,
    ):
        old = (store(b"old%d" % n, expiry=1_000_000_000) for n in range(600))
        stream = consumer.stream(Connect(b"n", ACK | Option.BACKFILL, backfill=FUTURE))
        assert next(stream).number == Opaque.ENABLE_AUTO_NACK
        server.wait(lambda: server.server.settled.readers == 1)
        client.batch(*(store(b"new%d" % n, expiry=4_000_000_000) for n in range(600)))
        client.ask(*old)
        server.wait(lambda: server.log.count("b") == 600)
        assert not [row for row in server.log.select("b") if row[0].startswith(b"old")]
        gone: set[bytes] = set()
        while len(gone) < 600:
            message = next(stream)
            if message.opcode == Opcode.TAP_DELETE:
                gone.add(message.key)
        assert gone == {b"old%d" % n for n in range(600)}


def test_hops_are_counted(tmp_path: Path) -> None:
    """What came with TTL n is sent with n - 1, removals too; what came with 1 goes no further, and
    neither does its removal; what is written here starts at 255 again; TTL 0 is refused."""

    def push(client: KvClient, *messages: TapMessage) -> list[int]:
        client.socket.sendall(b"".join(map(encode_tap, messages)))
        answers = [client.receive() for _ in messages]
        return [answer.status for answer in answers if answer is not None]

    def mutation(key: bytes, ttl: int) -> TapMessage:
        return TapMessage(Opcode.TAP_MUTATION, key, b"1", ttl=ttl, wants_ack=True)

    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        made = [mutation(b"far", 200), mutation(b"last", 1), mutation(b"none", 0)]
        assert push(client, *made) == [0, 0, Status.INVALID]
        removal = TapMessage(Opcode.TAP_DELETE, b"far", ttl=9, wants_ack=True)
        for is_live in (False, True):
            with KvClient(server.port) as consumer:
                connect = Connect(b"", ACK | (Option.BACKFILL if is_live else Option(0)))
                if is_live:
                    connect = Connect(b"", connect.options, backfill=FUTURE)
                stream = consumer.stream(connect)
                if is_live:
                    next(stream)
                    server.wait(lambda: server.server.settled.readers == 1)
                    assert push(client, *made, removal) == [0, 0, Status.INVALID, 0]
                    client.ask(Packet(Opcode.APPEND, b"last", b"0"))
                client.ask(store(b"zz"))
                sent = [(m.opcode, m.key, m.ttl) for m in take_until(stream, b"zz") if m.key]
            wanted = [(Opcode.TAP_MUTATION, b"far", 199)]
            if is_live:
                wanted.append((Opcode.TAP_DELETE, b"far", 8))
                wanted.append((Opcode.TAP_MUTATION, b"last", 255))
            assert sent == [*wanted, (Opcode.TAP_MUTATION, b"zz", 255)]


def test_tuples_with_more_fields_are_still_items(tmp_path: Path) -> None:
    """A field behind the format's that is no TTL is passed over."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        row = unpack(pack_item(Item(b"k", value=b"v", cas=1)))
        server.log.replace("b", (*row, "text"))
        assert client.ask(Packet(Opcode.GET, b"k"))[0].value == b"v"
        (message,) = [m for m in client.stream(Connect(b"", Option.DUMP)) if m.key]
        assert message.ttl == 255


# --- forms, checkpoints, signs of life ------------------------------------------------------------


def test_the_later_form_has_private_bytes(tmp_path: Path) -> None:
    """`form=2.x`: revision and age of mutations, revision of removals, keys of checkpoints; a
    revision that came with an item is given on."""
    listen = [parse_listen_url("tap://:0/b?form=2.x")]
    with (
        Serving(tmp_path / "s", listen=listen, guest="all") as server,
        KvClient(server.port) as client,
    ):
        (stored,) = client.ask(store(b"a"))
        revision = b"\0\0\0\0\0\0\0\7\1"
        came = TapMessage(Opcode.TAP_MUTATION, b"b", b"1", private=revision, wants_ack=True)
        client.socket.sendall(encode_tap(came))
        client.receive()
        with KvClient(server.port) as consumer:
            stream = consumer.stream(Connect(b"n", ACK | Option.CHECKPOINT))
            taken = [next(stream)]
            while taken[-1].opcode != Opcode.TAP_CHECKPOINT_END:
                taken.append(next(stream))
            (removed,) = client.ask(Packet(Opcode.DELETE, b"a"))
            assert removed.status == 0
            while taken[-1].opcode != Opcode.TAP_DELETE:
                taken.append(next(stream))
        private = {m.key: m.private for m in taken}
        assert private[b"b"] == revision
        mutation = next(m for m in taken if (m.opcode, m.key) == (Opcode.TAP_MUTATION, b"a"))
        assert mutation.private == stored.cas.to_bytes(8, "big") + b"\2"
        assert len(taken[-1].private) == 8
        assert len(private[b"checkpoint_start"]) == 8
        assert private[b"checkpoint_end"] == b""


def test_clients_of_closed_checkpoints_are_told_that_they_have_all(tmp_path: Path) -> None:
    """OPEN_CHECKPOINT of each vbucket when nothing is left, and again behind later changes."""
    options = ACK | Option.CHECKPOINT | Option.REGISTERED_CLIENT
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        set_state(client, 1, VbucketState.ACTIVE)
        client.ask(store(b"one"))
        with KvClient(server.port) as consumer:
            stream = consumer.stream(Connect(b"backup", options, closed_only=True))
            until(stream, Opaque.OPEN_CHECKPOINT)
            second = next(stream)
            assert (second.number, second.vbucket) == (Opaque.OPEN_CHECKPOINT, 1)
            client.ask(store(b"two"))
            more = until(stream, Opaque.OPEN_CHECKPOINT)
        assert [m.opcode for m in more] == [
            Opcode.TAP_CHECKPOINT_START,
            Opcode.TAP_MUTATION,
            Opcode.TAP_CHECKPOINT_END,
            Opcode.TAP_OPAQUE,
        ]
        with KvClient(server.port) as consumer:
            stream = consumer.stream(Connect(b"other", options, closed_only=False))
            seen = [next(stream)]
            while seen[-1].opcode != Opcode.TAP_CHECKPOINT_END:
                seen.append(next(stream))
            client.ask(store(b"three"))
            seen += take_until(stream, b"three")
        assert Opaque.OPEN_CHECKPOINT not in [number for number, _ in opaques(seen)]


def test_a_consumer_that_answers_signs_of_life_no_more_is_dropped(tmp_path: Path) -> None:
    """Once it has answered one. One that never does stays."""
    listen = [parse_listen_url("tap://:0/b?noop=0.05")]
    with (
        Serving(tmp_path / "s", listen=listen, guest="all") as server,
        KvClient(server.port) as client,
        KvClient(server.port) as silent,
    ):
        for each in (client, silent):
            each.socket.sendall(encode_connect(Connect(b"", Option(0))))
        packet = client.receive()
        while packet is not None and packet.opcode != Opcode.NOOP:
            packet = client.receive()
        client.socket.sendall(encode_answer(Packet(Opcode.NOOP)))
        noops = 0
        while (packet := client.receive()) is not None:
            noops += packet.opcode == Opcode.NOOP
        assert 2 <= noops <= 3
        seen = 0
        while seen < 5:
            packet = silent.receive()
            assert packet is not None
            seen += packet.opcode == Opcode.NOOP


def test_storms_of_acknowledgements_change_nothing(tmp_path: Path) -> None:
    """Thousands for opaques that were never sent, and the same one again and again."""
    with (
        serve(tmp_path / "s") as server,
        KvClient(server.port) as client,
        KvClient(server.port) as consumer,
    ):
        stream = consumer.stream(Connect(b"n", ACK | Option.BACKFILL, backfill=FUTURE))
        first = next(stream)
        storm = b"".join(encode_ack(Opcode.TAP_MUTATION, n * 7919) for n in range(1, 20_000))
        again = encode_ack(Opcode.TAP_OPAQUE, first.opaque) * 20_000
        consumer.socket.sendall(storm + again)
        (service,) = {link._conversation.service for link in server.server.listener.links}
        (streaming,) = service.streams.values()
        server.wait(lambda: streaming.producer.unknown_acks > 39_000)
        client.ask(store(b"k"), Packet(Opcode.DELETE, b"k"), store(b"end"))
        assert [key for _, key in data(take_until(stream, b"end"))] == [b"k", b"k", b"end"]


# --- logins ---------------------------------------------------------------------------------------


def test_each_bucket_stands_for_itself(tmp_path: Path) -> None:
    """Several buckets: the user's own, one that is chosen; keys, flushes and streams apart."""
    listen = [parse_listen_url("tap://:0/b"), parse_listen_url("tap://:0/ada")]
    options: dict[str, Any] = {"listen": listen, "guest": "all"}
    with Serving(tmp_path / "s", **options) as server, KvClient(server.port) as client:
        users.add_user(server.log, "ada", password="lovelace")
        users.grant(server.log, "ada", Privilege.READ | Privilege.WRITE, users.Target())
        client.ask(store(b"k", b"of b"))
        with KvClient(server.port) as other:
            assert log_in(other, "PLAIN", "lovelace") == 0
            assert other.ask(Packet(Opcode.GET, b"k"))[0].status == Status.NOT_FOUND
            other.ask(store(b"k", b"of ada"))
            with KvClient(server.port) as consumer:
                assert consumer.ask(Packet(Opcode.SELECT_BUCKET, b"ada"))[0].status == 0
                assert consumer.ask(Packet(Opcode.SELECT_BUCKET, b"zz"))[0].status == 1
                values = [m.value for m in consumer.stream(Connect(b"", Option.DUMP)) if m.key]
                assert values == [b"of ada"]
            other.ask(Packet(Opcode.FLUSH))
        assert client.ask(Packet(Opcode.GET, b"k"))[0].value == b"of b"


def test_streams_show_in_the_status_and_share_their_names(tmp_path: Path) -> None:
    """Who is sent what, and who is away; a name counts on all listeners of the server."""
    listen = [parse_listen_url("tap://:0/b"), parse_listen_url("memcached://:0/b")]
    connect = Connect(b"n", ACK)
    with Serving(tmp_path / "s", listen=listen, guest="all") as server:
        with KvClient(server.port) as client, KvClient(server.port) as consumer:
            stream = consumer.stream(connect)
            client.ask(store(b"one"), store(b"two"))
            take_until(stream, b"one")
            (status,) = server.server.status()["streams"]
            assert (status["of"], status["name"]) == ("b", "n")
            assert status["peer"].startswith("127.0.0.1:")
            assert status["sent_packets"] >= 3
            take_until(stream, b"two")
            until_all = server.server.status
            client.ask(store(b"three"))
            take_until(stream, b"three")
        server.wait(lambda: [one["peer"] for one in until_all()["streams"]] == [""])
        (away,) = server.server.status()["streams"]
        assert away["acknowledged"]
        with KvClient(server.urls[1].port) as consumer:
            again = take_until(consumer.stream(connect), b"three")
        assert [key for _, key in data(again)] == [b"three"]
