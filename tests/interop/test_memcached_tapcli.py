"""`logweir tap` against servers of ours and servers that do what they are told."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from support.nursery import LOGWEIR, Program

import logweir
from interop.kvclient import KvClient, store
from interop.serving import Serving
from interop.tapserver import Peer, TapServer
from interop.test_iproto_cli import told
from interop.test_memcached_endpoint import ACK, serve, set_state, take_until
from interop.test_memcached_source import mutation, opaque
from logweir.replication.bucket.item import VbucketState
from logweir.replication.memcached.push.names import kept_names
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status, encode_answer
from logweir.replication.memcached.wire.messages import Connect, Opaque, Option, TapMessage
from logweir.replication.protocols import parse_listen_url
from logweir.replication.service import users
from logweir.store.schema.access import Privilege


def address(server: Serving | TapServer, query: str = "") -> str:
    """Of bucket b of a server."""
    return f"tap://127.0.0.1:{server.port}/b{query}"


@contextmanager
def watching(*words: object) -> Iterator[Program]:
    """`logweir tap watch` while it runs."""
    with LOGWEIR.begin("tap", "watch", *words, stdout=PIPE, stderr=PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def rows(process: Program, count: int) -> list[dict[str, Any]]:
    """The next so many objects."""
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def listed(where: object) -> dict[str, dict[str, Any]]:
    """What `logweir tap names` lists, by name."""
    code, out, err = told("tap", "names", where, "--json")
    assert code == 0, err
    found = [json.loads(line) for line in out.splitlines()]
    return {one["name"]: one for one in found}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_watch_prints_what_changes_until_it_is_stopped(tmp_path: Path, number: int) -> None:
    """All that is there, then changes of each kind; stopped it ends with code 0."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(store(b"old", b"\xff", flags=7))
        with watching(address(server), "--from", "all", "--json") as process:
            begin, old, end = rows(process, 3)
            assert (begin, end) == (
                {"type": "BACKFILL_BEGIN", "vbucket": 0},
                {"type": "BACKFILL_END", "vbucket": 0},
            )
            assert old["cas"] > 0
            del old["cas"]
            assert old == {
                **{"type": "MUTATION", "vbucket": 0, "key": "old", "flags": 7, "expiry": 0},
                "value": {"$bin": "/w=="},
            }
            client.ask(store(b"new", b"v", expiry=2**31), Packet(Opcode.DELETE, b"old"))
            client.ask(Packet(Opcode.FLUSH))
            new, gone, flush = rows(process, 3)
            assert (new["key"], new["value"], new["expiry"]) == ("new", "v", 2**31)
            assert (gone["type"], gone["key"]) == ("DELETE", "old")
            assert flush["type"] == "FLUSH"
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
            assert (process.returncode, err) == (0, "")


def test_watch_of_a_registered_name_goes_on_where_it_was(tmp_path: Path) -> None:
    """Beginning with now, keys only, one vbucket; the name stays until it is dropped."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        set_state(client, 3, VbucketState.ACTIVE)
        client.ask(store(b"before", vbucket=3))
        words = [address(server), "--vbuckets", "3", "--keys-only", "--name", "n", "--register"]
        with watching(*words, "--json") as process:
            server.wait(lambda: "n" in listed(address(server)))
            assert listed(address(server))["n"]["connected"] is True
            server.wait(lambda: _stream(server).producer.sent_packets > 0)
            client.ask(store(b"elsewhere"), store(b"k0", vbucket=3), store(b"k1", vbucket=3))
            seen = rows(process, 2)
            assert [one["key"] for one in seen] == ["k0", "k1"]
            assert not any("value" in one for one in seen)
            server.wait(lambda: not _stream(server).producer.unacknowledged)
        server.wait(lambda: not listed(address(server))["n"]["connected"])
        assert listed(address(server))["n"]["registered"] is True
        client.ask(store(b"k2", vbucket=3))
        with watching(*words) as process:
            assert process.stdout is not None
            assert '"k2"' in process.stdout.readline()


def _stream(server: Serving) -> Any:
    (service,) = {link._conversation.service for link in server.server.listener.links}
    return next(iter(service.streams.values()))


def test_dump_prints_every_item_and_says_that_it_is_all(tmp_path: Path) -> None:
    """As JSON lines without --json, too; with code 0."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.batch(*(store(b"k%d" % n, b"v%d" % n, Opcode.SETQ) for n in range(700)))
        for words in ((), ("--keys-only",)):
            code, out, err = told("tap", "dump", address(server), *words)
            found = {one["key"]: one for one in map(json.loads, out.splitlines())}
            assert (code, err, len(found)) == (0, "", 700)
            assert found["k5"].get("value") == (None if words else "v5")


def test_dump_of_a_server_without_marks_may_not_be_all(tmp_path: Path) -> None:
    """Nor one that breaks off between the marks; `eof=whole` is for the first, not the second."""

    def give(peer: Peer) -> None:
        peer.connect()
        peer.send(mutation(b"a"), mutation(b"b"))

    def break_off(peer: Peer) -> None:
        peer.connect()
        peer.send(opaque(Opaque.INITIAL_VBUCKET_STREAM), mutation(b"a"), mutation(b"b"))

    for script, with_eof in ((give, 0), (break_off, 1)):
        for query, wanted in (("", 1), ("?eof=whole", with_eof)):
            with TapServer(script) as upstream:
                code, out, err = told("tap", "dump", address(upstream, query))
                assert upstream.connects[0].options & Option.DUMP
            assert [json.loads(line)["key"] for line in out.splitlines()] == ["a", "b"]
            assert (code, "may not be all" in err) == (wanted, bool(wanted))


def test_watch_of_a_server_that_streams_nothing_live_says_so() -> None:
    """Exit code 4, as for any server that goes away; what to do instead."""

    def give(peer: Peer) -> None:
        peer.connect()
        peer.send(mutation(b"a"))

    with TapServer(give) as upstream:
        code, out, err = told("tap", "watch", address(upstream), "--from", "all", "--quiet")
        assert (code, '"a"' in out) == (4, True)
        assert "logweir tap dump" in err


def test_watch_names_the_times_that_it_asks_for() -> None:
    """Future only where nothing is said, everything, or since a time."""
    with TapServer(Peer.connect) as upstream:
        for words in ((), ("--from", "all"), ("--from", "2026-01-01T00:00:00Z")):
            assert told("tap", "watch", address(upstream), *words)[0] == 4
        dates = [
            one.backfill if one.options & Option.BACKFILL else None for one in upstream.connects
        ]
        assert dates == [2**64 - 1, None, 1767225600]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dump", "tap://h/b", "--from", "all"), "is not for logweir tap dump"),
        (("watch", "tap://h/b", "--drop", "x"), "is not for logweir tap watch"),
        (("watch", "tap://h/b", "--register"), "needs the --name"),
        (("watch", "tap://h/b?takeover=1&vbuckets=1"), "does not take it"),
        (("watch", "tap://h/b?eof=whole"), "does not take it"),
        (("watch", "tap://h/b", "--vbuckets", "x"), "write vbuckets=5,8-10"),
        (("takeover", "tap://h/b", "tap://i/b", "--vbuckets", "5-3"), "write vbuckets=5,8-10"),
        (("takeover", "tap://h/b", "tap://i/b", "--vbuckets", ","), "write vbuckets=5,8-10"),
        (("watch", "tap://h/b", "--vbuckets", "5-"), "write vbuckets=5,8-10"),
        (("watch", "tap://h/b", "--from", "soon"), "soon"),
        (("dump", "tap://h/b?eof=none"), "write eof=whole"),
        (("dump", "tarantool://h"), "is not TAP"),
        (("takeover", "tap://h/b", "--vbuckets", "1"), "is missing"),
        (("takeover", "tap://h/b", "tap://i/b"), "--vbuckets"),
        (("names", "tarantool://h"), "is not TAP"),
    ],
)
def test_what_an_action_does_not_take_is_refused(words: tuple[str, ...], said: str) -> None:
    """Exit code 2, before any connection."""
    code, _, err = told("tap", *words)
    assert code == 2
    assert said in err


def test_takeover_moves_vbuckets_between_servers(tmp_path: Path) -> None:
    """Dead at one and active at the other; others stay, and nothing can be moved twice."""
    with serve(tmp_path / "a") as one, serve(tmp_path / "b") as two, KvClient(one.port) as client:
        for vbucket in (4, 5):
            set_state(client, vbucket, VbucketState.ACTIVE)
            many = (store(b"%d-%d" % (vbucket, n), vbucket=vbucket, flags=n) for n in range(400))
            client.ask(*many)
        words = ("takeover", address(one), address(two), "--vbuckets", "5", "--json")
        code, out, err = told("tap", *words)
        assert (code, json.loads(out)["vbuckets"]) == (0, [5]), err
        moved = {row[0]: row[3] for row in two.log.select("b")}
        assert moved == {b"5-%d" % n: n for n in range(400)}
        states = {row[1]: row[2] for row in one.log.select("logweir_vbucket")}
        assert states == {0: VbucketState.ACTIVE, 4: VbucketState.ACTIVE, 5: VbucketState.DEAD}
        assert two.log.get("logweir_vbucket", ("b", 5)) == ("b", 5, VbucketState.ACTIVE)


def test_takeover_that_a_giver_ends_early_is_an_error(tmp_path: Path) -> None:
    """With the vbuckets that are missing; only an active one was given."""

    def give(peer: Peer) -> None:
        assert peer.connect().options & Option.TAKEOVER_VBUCKETS
        for vbucket, state in ((1, VbucketState.ACTIVE), (2, VbucketState.PENDING)):
            peer.send(TapMessage(Opcode.TAP_VBUCKET_SET, vbucket=vbucket, number=state))

    with serve(tmp_path / "s") as two, TapServer(give) as giver:
        words = ("takeover", address(giver), address(two), "--vbuckets", "1-2")
        code, _, err = told("tap", *words)
        assert (code, "without having given vbucket 2" in err) == (1, True)
        assert two.log.get("logweir_vbucket", ("b", 1)) == ("b", 1, VbucketState.ACTIVE)


def test_takeover_stops_at_what_the_taker_refuses(tmp_path: Path) -> None:
    """The giver keeps the vbucket; with the right it can be moved then."""
    listen = [parse_listen_url("tap://:0/b")]
    with (
        serve(tmp_path / "a") as one,
        Serving(tmp_path / "b", listen=listen, guest="write") as two,
        KvClient(one.port) as client,
    ):
        client.ask(store(b"k"))
        code, _, err = told("tap", "takeover", address(one), address(two), "--vbuckets", "0")
        assert (code, "0x0020" in err) == (1, True)
        assert one.log.get("logweir_vbucket", ("b", 0)) == ("b", 0, VbucketState.ACTIVE)
        users.add_user(two.log, "mover", password="secret")
        users.grant(two.log, "mover", Privilege.READ | Privilege.WRITE, users.Target())
        users.grant(two.log, "mover", Privilege.TAKEOVER, users.Target())
        to = f"tap://mover:secret@127.0.0.1:{two.port}/b"
        code, _, err = told("tap", "takeover", address(one), to, "--vbuckets", "0")
        assert code == 0, err
        assert two.log.get("b", b"k") is not None
        assert one.log.get("logweir_vbucket", ("b", 0)) == ("b", 0, VbucketState.DEAD)


def test_takeover_into_a_bucket_that_may_not_be_chosen_moves_nothing() -> None:
    """What is said there would be about another bucket than the one that was named."""

    def choose(peer: Peer) -> None:
        packet = peer.receive()
        assert packet is not None
        assert packet.opcode == Opcode.SELECT_BUCKET
        peer.socket.sendall(encode_answer(packet, Status.AUTH_ERROR))
        while (packet := peer.receive()) is not None:
            peer.socket.sendall(encode_answer(packet))

    with TapServer(choose) as taker, TapServer(Peer.connect) as giver:
        words = ("takeover", address(giver), address(taker), "--vbuckets", "0")
        code, _, err = told("tap", *words)
        assert (code, "bucket 'b' was refused" in err) == (1, True)
        assert giver.connections == 0


def test_takeover_into_a_folder(tmp_path: Path) -> None:
    """As `logweir follow` does with takeover=1 in the address."""
    with serve(tmp_path / "a") as one, KvClient(one.port) as client:
        client.ask(store(b"k", b"v"))
        words = ("takeover", address(one), tmp_path / "new", "--vbuckets", "0")
        code, _, err = told("tap", *words)
        assert code == 0, err
        assert one.log.get("logweir_vbucket", ("b", 0)) == ("b", 0, VbucketState.DEAD)
    with logweir.open(tmp_path / "new") as log:
        assert log.get("b", b"k")[2] == b"v"
        assert log.get("logweir_vbucket", ("b", 0)) == ("b", 0, VbucketState.ACTIVE)


def test_names_are_listed_and_dropped_at_a_server_and_in_a_folder(tmp_path: Path) -> None:
    """Those whose consumer is away, too, of this bucket; what nobody knows is refused."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.ask(store(b"k"))
        for name in (b"a:b", b"kept", b"gone"):
            with KvClient(server.port) as consumer:
                registered = Option.REGISTERED_CLIENT if name == b"kept" else 0
                stream = consumer.stream(Connect(name, ACK | registered))
                while next(stream).number != Opaque.CLOSE_BACKFILL:
                    pass
                client.ask(store(b"after " + name))
                take_until(stream, b"after " + name)
        server.wait(lambda: not any(one["connected"] for one in listed(address(server)).values()))
        found = listed(address(server))
        assert {name: one["registered"] for name, one in found.items()} == {
            **{"a:b": False, "gone": False},
            "kept": True,
        }
        assert told("tap", "names", address(server), "--drop", "gone")[0] == 0
        code, _, err = told("tap", "names", address(server), "--drop", "gone")
        assert (code, "known are: a:b, kept" in err) == (1, True)
    found = listed(tmp_path / "s")
    assert set(found) == {"a:b", "kept"}
    assert found["kept"] | {"seen": ""} == {
        **{"name": "kept", "bucket": "b"},
        **{"registered": True, "seen": ""},
    }
    assert told("tap", "names", tmp_path / "s", "--drop", "a:b")[0] == 0
    with logweir.open(tmp_path / "s") as log:
        assert [one.name for one in kept_names(log)] == [b"kept"]
        assert list(log.inner.pinned_bytes()) == [kept_names(log)[0].label]


def test_names_are_forgotten_for_who_may_read_only(tmp_path: Path) -> None:
    """A user without rights on a bucket does not end others' streams of it."""
    listen = [parse_listen_url("tap://:0/b")]
    with Serving(tmp_path / "s", listen=listen, guest="none") as server:
        users.add_user(server.log, "reader", password="r")
        users.add_user(server.log, "other", password="o")
        users.grant(server.log, "reader", Privilege.READ, users.Target())
        request = Packet(Opcode.DEREGISTER_TAP_CLIENT, b"n")
        for word, status in ((b"\0other\0o", Status.AUTH_ERROR), (b"\0reader\0r", Status.SUCCESS)):
            with KvClient(server.port) as client:
                login = Packet(Opcode.SASL_AUTH, b"PLAIN", word)
                assert [one.status for one in client.ask(login, request)] == [0, status]


def test_dump_takes_item_flags_as_the_address_says() -> None:
    """A big-endian producer does not turn them round."""

    def give(peer: Peer) -> None:
        peer.connect()
        peer.send(TapMessage(Opcode.TAP_MUTATION, b"k", b"v", item_flags=1))

    with TapServer(give) as upstream:
        for query, flags in (("?eof=whole", 1), ("?eof=whole&byteorder=big", 1 << 24)):
            code, out, _ = told("tap", "dump", address(upstream, query))
            assert (code, json.loads(out)["flags"]) == (0, flags)
