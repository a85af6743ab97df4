"""Our endpoint on sockets: commands, streams, names, takeover, restarts."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import bmemcached
import pytest

from interop.kvclient import KvClient, store
from interop.serving import Serving
from logweir.limits import TAP_BODY_BYTES, TAP_VALUE_BYTES
from logweir.replication.bucket.item import VbucketState
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status, encode_request
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
from logweir.replication.service.verifiers import verifier
from logweir.wal.failpoint import arm, disarm

FUTURE = 2**64 - 1
ACK = Option.SUPPORT_ACK


def serve(folder: Path, **options: Any) -> Serving:
    """A server with bucket b that lets guests do everything."""
    options.setdefault("guest", "all")
    return Serving(folder, listen=[parse_listen_url("tap://:0/b")], **options)


def set_state(client: KvClient, vbucket: int, state: VbucketState) -> None:
    """Change a vbucket."""
    extras = int(state).to_bytes(4, "big")
    (answer,) = client.ask(Packet(Opcode.SET_VBUCKET, extras=extras, vbucket=vbucket))
    assert answer.status == 0


def take_until(stream: Iterable[TapMessage], key: bytes) -> list[TapMessage]:
    """What comes up to the mutation of a key, with it."""
    taken = []
    for message in stream:
        taken.append(message)
        if message.key == key:
            return taken
    raise AssertionError(f"the stream ended before {key!r}")


def applied(messages: Iterable[TapMessage]) -> dict[bytes, bytes]:
    """What a consumer has after some messages."""
    items: dict[bytes, bytes] = {}
    for message in messages:
        if message.opcode == Opcode.TAP_MUTATION:
            items[message.key] = message.value
        elif message.opcode == Opcode.TAP_DELETE:
            items.pop(message.key, None)
        elif message.opcode == Opcode.TAP_FLUSH:
            items.clear()
    return items


def data(messages: Iterable[TapMessage]) -> list[tuple[int, bytes]]:
    """Opcodes and keys of mutations, deletions and flushes."""
    kinds = (Opcode.TAP_MUTATION, Opcode.TAP_DELETE, Opcode.TAP_FLUSH)
    return [(m.opcode, m.key) for m in messages if m.opcode in kinds]


def test_what_is_answered_survives_a_restart(tmp_path: Path) -> None:
    """Items, CAS and flags are there again, and changes go on."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(*(store(b"k%d" % n, b"v%d" % n, flags=n) for n in range(100)))
        (before,) = client.ask(Packet(Opcode.GET, b"k7"))
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        (after,) = client.ask(Packet(Opcode.GET, b"k7"))
        assert after == before
        (changed,) = client.ask(store(b"k7", b"new", cas=after.cas))
        assert changed.status == 0
        assert changed.cas > after.cas
        (again,) = client.ask(store(b"k7", b"lost", cas=after.cas))
        assert again.status == Status.EXISTS


def test_a_batch_reads_what_it_wrote(tmp_path: Path) -> None:
    """Quiet and loud requests of one write, answered in order."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        answers = client.batch(
            store(b"k", b"1", Opcode.SETQ),
            Packet(Opcode.GET, b"k"),
            Packet(Opcode.DELETEQ, b"k"),
            Packet(Opcode.GET, b"k"),
            Packet(Opcode.GETQ, b"k"),
        )
        assert [(answer.status, answer.value) for answer in answers] == [
            (0, b"1"),
            (Status.NOT_FOUND, b"Not found"),
        ]


def add_user(server: Serving, name: str, password: str, bits: int) -> None:
    """A user of the store with privileges on everything."""
    server.log.insert("_user", (40, 1, name, "user", {"chap-sha1": verifier(password)}))
    server.log.insert("_priv", (1, 40, "universe", 0, bits))


STRANGERS: dict[str, bytes] = {
    "noop": encode_request(Packet(Opcode.NOOP, opaque=7)),
    "get": encode_request(Packet(Opcode.GET, b"k", opaque=7)),
    "quiet get": encode_request(Packet(Opcode.GETQ, b"k", opaque=7)),
    "set": encode_request(replace(store(b"k"), opaque=7)),
    "stat": encode_request(Packet(Opcode.STAT, opaque=7)),
    "quit": encode_request(Packet(Opcode.QUIT, opaque=7)),
    "select": encode_request(Packet(Opcode.SELECT_BUCKET, b"b", opaque=7)),
    "stream": encode_connect(Connect(b"n", Option.DUMP, opaque=7)),
    "takeover": encode_connect(Connect(b"n", Option.TAKEOVER_VBUCKETS, opaque=7)),
    "mutation": encode_tap(TapMessage(Opcode.TAP_MUTATION, b"k", b"v", opaque=7)),
    "deregister": encode_request(Packet(Opcode.DEREGISTER_TAP_CLIENT, b"n", opaque=7)),
    "unknown": encode_request(Packet(0x77, opaque=7)),
}


@pytest.mark.parametrize("name", STRANGERS)
@pytest.mark.parametrize("how", ["guest", "option"])
def test_where_sasl_is_required_other_commands_end_the_connection(
    tmp_path: Path, name: str, how: str
) -> None:
    """Status 20, the same opcode and opaque, then the end; nothing behind it is done. VERSION,
    the mechanisms and wrong passwords do not end it."""
    query = "?sasl=required" if how == "option" else ""
    listen = [parse_listen_url(f"tap://:0/b{query}")]
    guest = "all" if how == "option" else "none"
    with Serving(tmp_path / "s", listen=listen, guest=guest) as server:
        with KvClient(server.port) as client:
            wrong = Packet(Opcode.SASL_AUTH, b"PLAIN", b"\0ada\0wrong")
            before = (Packet(Opcode.VERSION), Packet(Opcode.SASL_LIST_MECHS), wrong)
            step = Packet(Opcode.SASL_STEP, b"PLAIN", b"x")
            answers = [answer.status for answer in client.ask(*before, step)]
            assert answers == [0, 0, Status.AUTH_ERROR, Status.AUTH_ERROR]
            client.socket.sendall(STRANGERS[name] + encode_request(store(b"behind")))
            refusal = client.receive()
            assert refusal is not None
            assert refusal.opcode == STRANGERS[name][1]
            assert (refusal.status, refusal.opaque) == (Status.AUTH_ERROR, 7)
            assert client.receive() is None
        assert server.log.count("b") == 0
        assert [link for link in server.server.listener.links if link.is_open] == []


def test_guests_may_do_nothing_until_told(tmp_path: Path) -> None:
    """A user with grants logs in and may; one without gets status 20, and may try others."""
    with serve(tmp_path / "s", guest="none") as server:
        add_user(server, "ada", "lovelace", 0xFFFFFFFF)
        users.add_user(server.log, "byron", password="childe")
        with KvClient(server.port) as client:
            login = Packet(Opcode.SASL_AUTH, b"PLAIN", b"\0byron\0childe")
            again = Packet(Opcode.SASL_AUTH, b"PLAIN", b"\0ada\0lovelace")
            asked = (login, store(b"k"), Packet(Opcode.GET, b"k"), Packet(Opcode.NOOP))
            answers = [answer.status for answer in client.ask(*asked, again, store(b"k"))]
            assert answers == [0, Status.AUTH_ERROR, Status.AUTH_ERROR, 0, 0, 0]
        with KvClient(server.port) as client:
            assert client.ask(login)[0].status == 0
            client.socket.sendall(encode_connect(Connect(b"n", Option.DUMP)))
            refusal = client.receive()
            assert refusal is not None
            assert (refusal.opcode, refusal.status) == (Opcode.TAP_CONNECT, Status.AUTH_ERROR)
            assert client.receive() is None
        with KvClient(server.port) as client:
            login = Packet(Opcode.SASL_AUTH, b"PLAIN", b"\0ada\0lovelace")
            wrong = Packet(Opcode.SASL_AUTH, b"PLAIN", b"\0ada\0wrong")
            statuses = [answer.status for answer in client.ask(wrong, login, store(b"k"))]
            assert statuses == [Status.AUTH_ERROR, 0, 0]


def test_a_real_python_client_reads_and_writes(tmp_path: Path) -> None:
    """python-binary-memcached: login, text, numbers, many at once, CAS, counters, deletion."""
    with serve(tmp_path / "s", guest="none") as server:
        add_user(server, "ada", "lovelace", 0xFFFFFFFF)
        client = bmemcached.Client((f"127.0.0.1:{server.port}",), "ada", "lovelace")
        try:
            assert client.set("text", "grün")
            assert client.set("number", 5)
            assert client.set_multi({f"k{n}": n for n in range(50)}) in (True, [])
            assert client.get_multi([f"k{n}" for n in range(50)]) == {f"k{n}": n for n in range(50)}
            assert client.get("text") == "grün"
            assert not client.add("text", "again")
            _, cas = client.gets("text")
            assert client.cas("text", "new", cas)
            assert not client.cas("text", "lost", cas)
            assert client.incr("count", 3) in (0, 3)
            assert client.delete("text")
            assert client.get("text") is None
            assert client.flush_all()
            assert client.get("number") is None
        finally:
            client.disconnect_all()


def test_dump_holds_exactly_what_is_there(tmp_path: Path) -> None:
    """Framed, without what was deleted, then closed; flags right with option 100."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(*(store(b"k%04d" % n, b"v%d" % n, flags=n) for n in range(5000)))
        client.ask(*(Packet(Opcode.DELETE, b"k%04d" % n) for n in range(0, 5000, 2)))
        for options in (Option(0), ACK, Option.FIX_FLAG_BYTEORDER):
            with KvClient(server.port) as consumer:
                messages = list(consumer.stream(Connect(b"d", Option.DUMP | options)))
            assert applied(messages) == {b"k%04d" % n: b"v%d" % n for n in range(1, 5000, 2)}
            assert len(data(messages)) == 2500
            assert all(m.item_flags == int(m.key[1:]) for m in messages if m.key)
            numbers = [m.number for m in messages if m.opcode == Opcode.TAP_OPAQUE]
            opening = [Opaque.ENABLE_AUTO_NACK] if options & ACK else []
            assert numbers == [
                *opening,
                Opaque.INITIAL_VBUCKET_STREAM,
                Opaque.CLOSE_BACKFILL,
                Opaque.CLOSE_TAP_STREAM,
            ]


def test_a_dump_under_writes_is_one_position(tmp_path: Path) -> None:
    """Two counters that a writer keeps equal are equal at CLOSE_BACKFILL, in each of many dumps,
    and no item comes that was not there."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.batch(*(store(b"m%06d" % n, b"x" * 100, Opcode.SETQ) for n in range(6000)))
        log = server.log
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                with log.transaction() as tx:
                    for key in (b"a", b"z"):
                        row = (key, 0, b"%d" % number, 0, 0, number, 0, 0, "", b"")
                        tx.replace("b", row)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            server.wait(lambda: log.get("b", b"z") is not None)
            for _ in range(3):
                with KvClient(server.port) as consumer:
                    found = applied(consumer.stream(Connect(b"", Option.DUMP)))
                assert found[b"a"] == found[b"z"]
                assert len(found) == 6002
        finally:
            stop.set()
            writer.join()


def test_everything_then_live_comes_once(tmp_path: Path) -> None:
    """A stream that begins while somebody writes has each change once."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(*(store(b"old%d" % n) for n in range(500)))
        with KvClient(server.port) as consumer:
            stream = consumer.stream(Connect(b"n", ACK))
            messages = [next(stream)]
            client.send(*(store(b"new%d" % n, b"%d" % n) for n in range(500)))
            while len(data(messages)) < 1000:  # what came before the first chunk was read is in it
                messages.append(next(stream))
            client.ask(store(b"last"))
            messages += take_until(stream, b"last")
        keys = [key for _, key in data(messages)]
        assert len(keys) == len(set(keys)) == 1001


def test_future_only_sends_nothing_old(tmp_path: Path) -> None:
    """With both dates that mean it; set, append, count, delete and flush as they happen."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(store(b"old"))
        for date in (FUTURE, 0xFFFFFFFF):
            with KvClient(server.port) as consumer:
                stream = consumer.stream(
                    Connect(b"n%d" % date, ACK | Option.BACKFILL, backfill=date)
                )
                first = next(stream)
                assert first.number == Opaque.ENABLE_AUTO_NACK
                server.wait(lambda: server.server.settled.readers == 1)
                client.ask(
                    store(b"k", b"1"),
                    Packet(Opcode.APPEND, b"k", b"0"),
                    Packet(Opcode.DELETE, b"k"),
                    Packet(Opcode.FLUSH),
                    store(b"end"),
                )
                messages = take_until(stream, b"end")
            assert data(messages) == [
                (Opcode.TAP_MUTATION, b"k"),
                (Opcode.TAP_MUTATION, b"k"),
                (Opcode.TAP_DELETE, b"k"),
                (Opcode.TAP_FLUSH, b""),
                (Opcode.TAP_MUTATION, b"end"),
            ]
            assert messages[1].value == b"10"


def test_keys_only_is_honoured(tmp_path: Path) -> None:
    """No value, and the flag that says so."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(store(b"k", b"long value"))
        options = Option.DUMP | Option.REQUEST_KEYS_ONLY
        messages = [m for m in client.stream(Connect(b"", options)) if m.key]
        assert [(m.value, m.has_value) for m in messages] == [(b"", False)]


def test_an_expired_item_becomes_a_deletion_when_noticed(tmp_path: Path) -> None:
    """A follower sees the removal, and the log holds it."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(store(b"k", expiry=1_000_000_000), store(b"other"))
        with KvClient(server.port) as consumer:
            stream = consumer.stream(Connect(b"n", ACK))
            take_until(stream, b"other")
            assert client.ask(Packet(Opcode.GET, b"k"))[0].status == Status.NOT_FOUND
            deletion = next(m for m in stream if m.opcode == Opcode.TAP_DELETE)
            assert deletion.key == b"k"
        assert server.log.get("b", b"k") is None


def test_a_named_stream_goes_on_where_it_was_acknowledged(tmp_path: Path) -> None:
    """After a reconnect and after a restart of the server; opaques go on after a reconnect."""
    connect = Connect(b"follower", ACK | Option.BACKFILL, backfill=FUTURE)
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        with KvClient(server.port) as consumer:
            stream = consumer.stream(connect)
            next(stream)
            server.wait(lambda: server.server.settled.readers == 1)
            client.ask(store(b"one"))
            last = take_until(stream, b"one")[-1]
            next_one = threading.Thread(target=lambda: next(stream, None), daemon=True)
            next_one.start()  # asking for the next one acknowledges the last
            client.ask(store(b"two"))
            next_one.join(20)
        client.ask(store(b"three"))
        with KvClient(server.port) as consumer:
            again = take_until(consumer.stream(connect), b"three")
            assert [key for _, key in data(again)] == [b"two", b"three"]
            assert again[0].opaque > last.opaque
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(store(b"four"))
        with KvClient(server.port) as consumer:
            again = take_until(consumer.stream(connect), b"four")
        assert [key for _, key in data(again)] == [b"two", b"three", b"four"]


def test_what_is_acknowledged_counts_no_longer(tmp_path: Path) -> None:
    """Of a consumer that has acknowledged all and waits for more nothing is held, so it is not the
    one that is closed when memory is short."""
    with serve(tmp_path / "s") as server:
        with KvClient(server.port) as client:
            client.ask(*(store(b"k%d" % number, bytes(500_000)) for number in range(3)))
        server.wait(lambda: not server.server.listener.links)
        with KvClient(server.port) as consumer:
            stream = consumer.stream(Connect(b"", ACK))
            assert len(data(take_until(stream, b"k2"))) == 3
            (link,) = server.server.listener.links
            server.wait(lambda: not link.unsent_bytes and link.held_bytes > 500_000)
            rest = threading.Thread(target=list, args=(stream,))
            rest.start()  # acknowledges the last one, and what comes behind it
            server.wait(lambda: link.held_bytes == 0)
            consumer.socket.shutdown(socket.SHUT_RDWR)
            rest.join(20)


def test_logs_are_kept_for_streams_beside_the_event_loop(tmp_path: Path) -> None:
    """Its thread never waits for the disk with it: not in a backfill, not for a position."""
    threads: set[str] = set()
    arm("followers.before_rename", lambda: threads.add(threading.current_thread().name))
    try:
        with serve(tmp_path / "s") as server, KvClient(server.port) as client:
            client.ask(*(store(b"k%d" % number, bytes(20_000)) for number in range(300)))
            with KvClient(server.port) as consumer:
                stream = consumer.stream(Connect(b"n", ACK))
                take_until(stream, b"k0")
                server.wait(lambda: any(":backfill:" in one for one in pinned(server)))
                take_until(stream, b"k99")  # the last one by key
                client.ask(store(b"more"))
                take_until(stream, b"more")
            server.wait(lambda: pinned(server) == ["tap:b:6e"])
    finally:
        disarm()
    assert threads
    assert "serving" not in threads


def test_the_log_is_kept_for_a_backfill_before_its_consumer_takes_anything(tmp_path: Path) -> None:
    """One that acknowledges the beginning late is given all, with what changed meanwhile."""
    keys = {b"k%d" % number for number in range(300)}
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(*(store(key, bytes(20_000)) for key in keys))
        with KvClient(server.port) as consumer:
            stream = consumer.stream(Connect(b"", ACK))
            opening = [next(stream).number for _ in range(2)]
            assert opening == [Opaque.ENABLE_AUTO_NACK, Opaque.INITIAL_VBUCKET_STREAM]
            more = [b"more%d" % number for number in range(4)]
            for key in more:
                client.ask(store(key))
                server.log.snapshot()
            taken = take_until(stream, more[-1])
    assert {message.key for message in taken if message.key} == keys.union(more)


def test_what_a_killed_process_kept_for_a_backfill_goes_at_the_start(tmp_path: Path) -> None:
    """Else its logs would stay for ever; those of a named stream do stay."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(*(store(b"k%d" % number, bytes(20_000)) for number in range(300)))
        with KvClient(server.port) as consumer:
            stream = consumer.stream(Connect(b"n", ACK))
            take_until(stream, b"k99")  # the last one by key
            client.ask(store(b"more"))
            take_until(stream, b"more")
        server.wait(lambda: pinned(server) == ["tap:b:6e"])
        server.log.retain("tap:backfill:1234", {1: 1})
        server.log.retain("somebody", {1: 1})
    with serve(tmp_path / "s") as server:
        assert pinned(server) == ["somebody", "tap:b:6e"]


def pinned(server: Serving) -> list[str]:
    """Who keeps logs."""
    return sorted(server.log.inner.pinned_bytes())


def test_checkpoint_ids_bring_an_old_client_back(tmp_path: Path) -> None:
    """The id of the last checkpoint that ended, given under another name, misses and repeats
    nothing; an id that we never gave brings everything."""
    options = ACK | Option.CHECKPOINT
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(store(b"one"), store(b"two"))
        with KvClient(server.port) as consumer:
            for message in consumer.stream(Connect(b"a", options)):
                if message.opcode == Opcode.TAP_CHECKPOINT_END:
                    break
        assert message.number
        client.ask(store(b"three"), Packet(Opcode.DELETE, b"one"), store(b"four"))
        for number, keys in (
            (message.number, [b"three", b"one", b"four"]),
            (2**60, [b"four", b"three", b"two"]),
        ):
            with KvClient(server.port) as consumer:
                connect = Connect(b"b%d" % number, options, checkpoints=((0, number),))
                messages = []
                for each in consumer.stream(connect):
                    messages.append(each)
                    if each.opcode == Opcode.TAP_CHECKPOINT_END and len(data(messages)) == 3:
                        break
            assert [key for _, key in data(messages)] == keys


def test_a_date_leaves_out_what_is_older(tmp_path: Path) -> None:
    """Changes before it do not come, those since do."""
    clock = [1_000_000.0]
    options = {"clock": lambda: clock[0]}
    with serve(tmp_path / "s", open_options=options) as server, KvClient(server.port) as client:
        client.ask(store(b"old"))
        clock[0] = 2_000_000.0
        client.ask(store(b"new"))
        connect = Connect(b"n", ACK | Option.BACKFILL, backfill=1_500_000)
        with KvClient(server.port) as consumer:
            messages = take_until(consumer.stream(connect), b"new")
        assert [key for _, key in data(messages)] == [b"new"]


def test_names_in_use(tmp_path: Path) -> None:
    """A newcomer takes a name over, and the older connection ends; a registered one is refused
    until it deregisters."""
    with serve(tmp_path / "s") as server:
        connect = Connect(b"n", ACK)
        with KvClient(server.port) as first, KvClient(server.port) as second:
            next(first.stream(connect))
            next(second.stream(connect))
            while first.receive() is not None:
                pass
        silent = Connect(b"s", Option(0))
        with KvClient(server.port) as first, KvClient(server.port) as second:
            next(first.stream(silent))
            next(second.stream(silent))
            while first.receive() is not None:
                pass
        registered = Connect(b"r", Option.REGISTERED_CLIENT)
        with KvClient(server.port) as first, KvClient(server.port) as second:
            next(first.stream(registered))
            second.socket.sendall(encode_connect(registered))
            refusal = second.receive()
            assert refusal is not None
            assert refusal.status == Status.NOT_SUPPORTED
        registered = Connect(b"r", ACK | Option.REGISTERED_CLIENT)
        with KvClient(server.port) as first, KvClient(server.port) as second:
            next(first.stream(registered))
            second.socket.sendall(encode_connect(registered))
            refusal = second.receive()
            assert refusal is not None
            assert (refusal.status, second.receive()) == (Status.NOT_SUPPORTED, None)
        with KvClient(server.port) as client:
            forget = Packet(Opcode.DEREGISTER_TAP_CLIENT, b"r")
            assert [answer.status for answer in client.ask(forget, forget)] == [0, 0]


@pytest.mark.parametrize("listed", [(), (1,), (1, 2), (9,)])
def test_only_the_wanted_vbuckets_come(tmp_path: Path, listed: tuple[int, ...]) -> None:
    """All without a list, nothing of one that is not here; a dead one is left out."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        for vbucket in (1, 2, 3):
            set_state(client, vbucket, VbucketState.ACTIVE)
            client.ask(store(b"k%d" % vbucket, vbucket=vbucket))
        set_state(client, 3, VbucketState.DEAD)
        options = Option.DUMP | (Option.LIST_VBUCKETS if listed else Option(0))
        messages = list(client.stream(Connect(b"", options, vbuckets=listed)))
        found = {m.vbucket for m in messages if m.key}
        assert found == ({1, 2} if not listed else {1, 2} & set(listed))


def test_items_of_vbuckets_that_no_packet_names_are_left_out(tmp_path: Path) -> None:
    """Another protocol put them there: they were an error that cut the stream, in what exists as
    in what changes."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        log = server.log
        log.replace("logweir_vbucket", ("b", 70_000, int(VbucketState.ACTIVE)))
        log.replace("b", (b"far", 70_000, b"v", 0, 0, 5, 0, 0, "", b""))
        client.ask(store(b"near"))
        for options in (ACK, ACK | Option.CHECKPOINT, Option.DUMP):
            with KvClient(server.port) as consumer:
                stream = consumer.stream(Connect(b"s%d" % options, options))
                messages = list(stream) if options & Option.DUMP else take_until(stream, b"near")
                if not options & Option.DUMP:
                    client.ask(store(b"near", b"again"))  # so that nothing is told twice
                    log.replace("b", (b"far", 70_000, b"w", 0, 0, 6, 0, 0, "", b""))
                    client.ask(store(b"end"))
                    messages += take_until(stream, b"end")
                assert {m.vbucket for m in messages} == {0}
                assert b"far" not in {m.key for m in messages}


def test_a_packet_that_is_too_large_ends_the_producer(tmp_path: Path) -> None:
    """Whether it waits for an answer or not: what it believes to be here is not."""
    with serve(tmp_path / "s") as server:
        for value_bytes in (TAP_VALUE_BYTES + 1, TAP_BODY_BYTES):
            with KvClient(server.port) as client:
                value = bytes(value_bytes)
                message = TapMessage(Opcode.TAP_MUTATION, b"k", value, wants_ack=True)
                client.socket.sendall(encode_tap(message))
                refusal = client.receive()
                assert refusal is not None
                assert (refusal.opcode, refusal.status) == (Opcode.TAP_MUTATION, Status.TOO_BIG)
                if value_bytes == TAP_BODY_BYTES:
                    with contextlib.suppress(ConnectionResetError):  # the rest was not read
                        assert client.receive() is None
        assert server.log.count("b") == 0


def test_a_consumer_that_stops_acknowledging_costs_one_window(tmp_path: Path) -> None:
    """What is kept for it does not grow with what is written."""
    connect = Connect(b"n", ACK | Option.BACKFILL, backfill=FUTURE)
    with (
        serve(tmp_path / "s") as server,
        KvClient(server.port) as client,
        KvClient(server.port) as consumer,
    ):
        stream = consumer.stream(connect)
        next(stream)
        server.wait(lambda: server.server.settled.readers == 1)
        client.batch(*(store(b"k%d" % n, bytes(1000), Opcode.SETQ) for n in range(9000)))
        (service,) = {link._conversation.service for link in server.server.listener.links}
        (streaming,) = service.streams.values()
        server.wait(lambda: not streaming.producer.has_room)
        assert streaming.producer.unacknowledged_bytes < 5 * 1024 * 1024
        assert client.ask(Packet(Opcode.GET, b"k8999"))[0].status == 0


def test_an_item_that_no_packet_tells_is_refused_alone(tmp_path: Path) -> None:
    """Another protocol wrote its numbers. An expiry that is too late is the latest one."""
    rows: dict[bytes, tuple[int, int, int]] = {
        b"flags": (1 << 32, 0, 0), b"type": (0, 0, 256), b"late": (0, 1 << 33, 0), b"is": (7, 0, 0),
    }  # fmt: skip
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        for key, (flags, expiry, datatype) in rows.items():
            server.log.replace("b", (key, 0, b"v", flags, expiry, 1, datatype, 0, "", b""))
        told = client.ask(*(Packet(Opcode.GET, key) for key in rows))
        wanted = [Status.INTERNAL, Status.INTERNAL, Status.SUCCESS, Status.SUCCESS]
        assert [answer.status for answer in told] == wanted
        assert [answer.extras for answer in told[2:]] == [bytes(4), b"\0\0\0\x07"]
        (touched, got) = client.ask(
            Packet(Opcode.TOUCH, b"flags", extras=bytes(4)), Packet(Opcode.GETM, b"late")
        )
        assert touched.status == Status.INTERNAL
        assert got.extras == bytes(4) + b"\xff" * 4
