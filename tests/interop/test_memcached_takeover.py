"""Vbuckets that move: takeovers under writes, and servers in a chain."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from interop.kvclient import KvClient, store
from interop.serving import Serving
from interop.test_memcached_endpoint import ACK, serve, set_state, take_until
from logweir.replication.bucket import joint
from logweir.replication.bucket.item import VbucketState
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status, encode_request
from logweir.replication.memcached.wire.messages import (
    Connect,
    Option,
    TapMessage,
    encode_connect,
    encode_tap,
)
from logweir.replication.protocols import parse_url
from logweir.replication.service import users
from logweir.store.schema.access import Privilege


def rows(server: Serving) -> list[tuple[Any, ...]]:
    """The bucket's tuples without how far they may still go."""
    return [row[:10] for row in server.log.select("b")]


def test_an_item_that_moves_is_removed_where_it_was(tmp_path: Path) -> None:
    """A key is in one vbucket at a time, and followers of the other one see it go."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        set_state(client, 1, VbucketState.ACTIVE)
        client.ask(store(b"k", b"old"))
        with KvClient(server.port) as consumer:
            stream = consumer.stream(Connect(b"n", ACK))
            take_until(stream, b"k")
            client.ask(store(b"k", b"new", vbucket=1), store(b"end"))
            found = [(m.opcode, m.vbucket) for m in take_until(stream, b"end") if m.key]
        assert found == [
            (Opcode.TAP_DELETE, 0),
            (Opcode.TAP_MUTATION, 1),
            (Opcode.TAP_MUTATION, 0),
        ]
        assert client.ask(Packet(Opcode.GET, b"k"))[0].status == Status.NOT_FOUND


def migrate(source: int, destination: int, vbucket: int) -> None:
    """What a migrator does: hand the producer's packets on, and the answers back."""
    options = ACK | Option.TAKEOVER_VBUCKETS | Option.LIST_VBUCKETS
    with KvClient(source) as left, KvClient(destination) as right:
        left.socket.sendall(encode_connect(Connect(b"mover", options, vbuckets=(vbucket,))))

        def back() -> None:
            while (answer := right.receive()) is not None:
                left.send(answer)

        answers = threading.Thread(target=back, daemon=True)
        answers.start()
        while (packet := left.receive()) is not None:
            right.socket.sendall(encode_request(packet))
        right.socket.shutdown(1)
        answers.join(20)


def test_what_is_taken_in_turns_is_not_held_by_a_pending_vbucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer of a takeover goes on behind what took long; a client's request stays held."""
    monkeypatch.setattr(joint, "_JOB_SECONDS", 0.0)
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        set_state(client, 1, VbucketState.PENDING)
        taken = [
            encode_tap(TapMessage(Opcode.TAP_MUTATION, b"k%d" % n, b"v", vbucket=1))
            for n in range(50)
        ]
        client.socket.sendall(b"".join(taken))
        server.wait(lambda: server.log.count("b") == 50)
        with KvClient(server.port) as held:
            held.socket.sendall(encode_request(Packet(Opcode.GET, b"k0", vbucket=1)))
            held.socket.settimeout(0.2)
            with pytest.raises(TimeoutError):
                held.receive()
            set_state(client, 1, VbucketState.ACTIVE)
            held.socket.settimeout(20)
            answer = held.receive()
        assert answer is not None
        assert answer.value == b"v"


def test_takeover_under_writes_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """A vbucket moves while clients count in it: what was answered is there, once."""
    with serve(tmp_path / "a") as one, serve(tmp_path / "b") as other:
        with KvClient(one.port) as client:
            set_state(client, 5, VbucketState.ACTIVE)
            client.batch(*(store(b"k%d" % n, b"v", Opcode.SETQ, vbucket=5) for n in range(2000)))
        counted = [0] * 3
        started = threading.Event()

        def count(place: int) -> None:
            key = b"counter%d" % place
            port = one.port
            client = KvClient(port)
            while counted[place] < 300 or port == one.port:
                extras = (1).to_bytes(8, "big") + (1).to_bytes(8, "big") + bytes(4)
                request = Packet(Opcode.INCREMENT, key, extras=extras, vbucket=5)
                status = client.ask(request)[0].status
                if status == 0:
                    counted[place] += 1
                    started.set()
                elif status == Status.NOT_MY_VBUCKET and port == one.port:
                    client.close()
                    port = other.port
                    client = KvClient(port)
                else:
                    assert status in (Status.NOT_MY_VBUCKET, Status.TEMPORARY_FAILURE)
            client.close()

        writers = [threading.Thread(target=count, args=(place,)) for place in range(3)]
        for writer in writers:
            writer.start()
        started.wait(20)
        migrate(one.port, other.port, 5)
        for writer in writers:
            writer.join(30)
        found = {row[0]: row[2] for row in other.log.select("b")}
        assert len(found) == 2003
        assert [int(found[b"counter%d" % place]) for place in range(3)] == counted
        states = [row[1:] for row in one.log.select("logweir_vbucket") if row[1] == 5]
        assert states == [(5, VbucketState.DEAD)]


def test_a_chain_of_servers_holds_the_same(tmp_path: Path) -> None:
    """One follows the other by TAP: everything, then live, across a break; equal rows."""
    with serve(tmp_path / "a") as one, KvClient(one.port) as client:
        client.batch(*(store(b"k%d" % n, b"v", Opcode.SETQ) for n in range(3000)))
        follow = {"follow": [parse_url(f"tap://127.0.0.1:{one.port}/b")]}
        with serve(tmp_path / "b", **follow) as other:
            other.wait(lambda: rows(other) == rows(one))
            client.ask(*(Packet(Opcode.DELETE, b"k%d" % n) for n in range(50)))
            client.ask(store(b"new", b"live", flags=0xDEADBEEF))
            other.wait(lambda: rows(other) == rows(one))
        client.ask(*(Packet(Opcode.DELETE, b"k%d" % n) for n in range(50, 90)))
        with serve(tmp_path / "b", **follow) as other:
            before = other.log.vclock.signature
            other.wait(lambda: rows(other) == rows(one))
            assert other.log.vclock.signature - before < 200
        client.ask(Packet(Opcode.FLUSH), store(b"after"))
        with serve(tmp_path / "b", **follow) as other:
            other.wait(lambda: rows(other) == rows(one))
            assert [row[0] for row in other.log.select("b")] == [b"after"]


def test_states_of_vbuckets_need_a_right_of_their_own(tmp_path: Path) -> None:
    """Who may write changes none, by no command, by no message of a stream, and takes none over;
    what comes in the same packet is done nevertheless."""
    active = int(VbucketState.ACTIVE).to_bytes(4, "big")
    head = bytes.fromhex("00040001ff000000")  # four bytes are private, an answer is wanted, TTL
    changes = [
        Packet(Opcode.SET_VBUCKET, extras=active, vbucket=3),
        Packet(Opcode.DEL_VBUCKET, vbucket=0),
        Packet(Opcode.TAP_VBUCKET_SET, extras=head, value=active, vbucket=3),
    ]
    options = ACK | Option.TAKEOVER_VBUCKETS | Option.LIST_VBUCKETS
    wanted = Packet(
        Opcode.TAP_CONNECT,
        b"mover",
        extras=int(options).to_bytes(4, "big"),
        value=b"\x00\x01\x00\x00",
    )
    with serve(tmp_path / "s", guest="write") as server:
        with KvClient(server.port) as client, KvClient(server.port) as mover:
            told = [one.status for one in client.ask(store(b"a"), *changes, store(b"b"))]
            assert told == [0, *[Status.AUTH_ERROR] * 3, 0]
            (refused,) = mover.ask(wanted)
            assert refused.status == Status.AUTH_ERROR
            states = server.log.select("logweir_vbucket")
            users.grant(server.log, "guest", Privilege.TAKEOVER, users.Target("space", "b"))
            assert [one.status for one in client.ask(*changes[:1], *changes[2:])] == [0, 0]
            assert server.log.select("logweir_vbucket") != states
        with KvClient(server.port) as mover:
            stream = mover.stream(Connect(b"mover", options, vbuckets=(3,)))
            assert next(iter(stream)).opcode == Opcode.TAP_OPAQUE
