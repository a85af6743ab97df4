"""What stands before TAP_CONNECT or SELECT_BUCKET in one write: everything in its turn."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from interop.kvclient import KvClient, store
from interop.test_greenstack_joint import one_turn
from interop.test_memcached_endpoint import serve, set_state
from logweir.replication.bucket.item import VbucketState
from logweir.replication.bucket.store import STATES_SPACE, Buckets
from logweir.replication.memcached.serve.endpoint import Conversation
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status, encode_request
from logweir.replication.memcached.wire.messages import Connect, Option, decode_tap, encode_connect

VERSION = Packet(Opcode.VERSION)
DUMP = encode_connect(Connect(b"n", Option.DUMP))

CHANGES = {
    "set": (store(b"k"), [(Opcode.SET, 0)]),
    "quiet set": (store(b"k", opcode=Opcode.SETQ), []),
    "increment": (
        Packet(Opcode.INCREMENT, b"n", extras=bytes(7) + b"\1" + bytes(12)),
        [(Opcode.INCREMENT, 0)],
    ),
    "append": (Packet(Opcode.APPEND, b"there", b"+"), [(Opcode.APPEND, 0)]),
    "flush": (Packet(Opcode.FLUSH), [(Opcode.FLUSH, 0)]),
    "set vbucket": (
        Packet(Opcode.SET_VBUCKET, extras=b"\0\0\0\1", vbucket=3),
        [(Opcode.SET_VBUCKET, 0)],
    ),
    "get": (Packet(Opcode.GET, b"there"), [(Opcode.GET, 0)]),
}


def received(client: KvClient) -> tuple[list[tuple[int, int]], list[tuple[int, bytes]]]:
    """All that comes: opcode and status of the answers, opcode and key of the stream; and that
    they come in this order."""
    answers: list[tuple[int, int]] = []
    stream: list[tuple[int, bytes]] = []
    while (packet := client.receive()) is not None:
        if packet.is_response:
            assert not stream, "an answer inside the stream"
            answers.append((packet.opcode, packet.status))
        elif packet.opcode in (Opcode.TAP_MUTATION, Opcode.TAP_DELETE):
            message = decode_tap(packet)
            stream.append((message.opcode, message.key))
    return answers, stream


@pytest.mark.parametrize("name", CHANGES)
def test_a_stream_begins_after_the_answers_to_what_was_sent_before_it(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A request and TAP_CONNECT in one write: first the answer, then the stream, which has it."""
    caplog.set_level(logging.WARNING)
    request, expected = CHANGES[name]
    with serve(tmp_path / "s") as server:
        with KvClient(server.port) as client:
            client.ask(store(b"there", b"1"))
            client.socket.sendall(encode_request(request) + DUMP)
            answers, stream = received(client)
        assert answers == expected
        there = sorted(row[0] for row in server.log.select("b"))
        assert stream == [(Opcode.TAP_MUTATION, key) for key in there]
    assert not caplog.records


def test_a_stream_waits_for_requests_to_a_pending_vbucket(tmp_path: Path) -> None:
    """They are answered once the vbucket is active, and the stream begins behind them."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as other:
        set_state(other, 5, VbucketState.PENDING)
        with KvClient(server.port) as client:
            waits = encode_request(VERSION) + encode_request(store(b"k", vbucket=5))
            client.socket.sendall(waits + DUMP)
            assert client.receive() is not None
            assert server.log.get("b", b"k") is None
            set_state(other, 5, VbucketState.ACTIVE)
            answers, stream = received(client)
        assert answers == [(Opcode.SET, 0)]
        assert stream == [(Opcode.TAP_MUTATION, b"k")]


def test_what_comes_behind_tap_connect_in_one_write_is_refused(tmp_path: Path) -> None:
    """As it is a moment later, once the stream runs; NOOP succeeds, answers to nothing are passed
    over, and nothing is changed."""
    behind = (
        store(b"late"),
        Packet(Opcode.NOOP),
        Packet(Opcode.VERSION),
        Packet(Opcode.TAP_MUTATION, is_response=True),
        Packet(Opcode.QUIT),
    )
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        client.socket.sendall(
            encode_request(store(b"k")) + DUMP + b"".join(map(encode_request, behind))
        )
        answers, stream = received(client)
        assert answers == [
            (Opcode.SET, 0),
            (Opcode.SET, Status.NOT_SUPPORTED),
            (Opcode.NOOP, 0),
            (Opcode.VERSION, Status.NOT_SUPPORTED),
            (Opcode.QUIT, Status.NOT_SUPPORTED),
        ]
        assert stream == [(Opcode.TAP_MUTATION, b"k")]
        assert server.log.get("b", b"late") is None


def test_a_refused_stream_ends_behind_its_answer(tmp_path: Path) -> None:
    """The change before it is answered; what stands behind it is not."""
    options = Option.TAKEOVER_VBUCKETS | Option.LIST_VBUCKETS
    refused = encode_connect(Connect(b"n", options, vbuckets=(0,)))
    with serve(tmp_path / "s", guest="read") as server, KvClient(server.port) as client:
        client.socket.sendall(
            encode_request(store(b"k")) + refused + encode_request(Packet(Opcode.NOOP))
        )
        answers, _ = received(client)
        assert answers == [
            (Opcode.SET, Status.AUTH_ERROR),
            (Opcode.TAP_CONNECT, Status.AUTH_ERROR),
        ]


def test_requests_that_wait_stay_in_the_bucket_in_which_they_were_made(tmp_path: Path) -> None:
    """A SET to a pending vbucket, then another bucket: the SET is not made there."""
    with serve(tmp_path / "s") as server, KvClient(server.port) as other:
        set_state(other, 5, VbucketState.PENDING)
        Buckets(server.log).make("c")
        server.log.replace(STATES_SPACE, ("c", 5, int(VbucketState.ACTIVE)))
        with KvClient(server.port) as client:
            select = Packet(Opcode.SELECT_BUCKET, b"c")
            client.send(VERSION, store(b"k", vbucket=5), select, store(b"l"))
            assert client.receive() is not None
            set_state(other, 5, VbucketState.ACTIVE)
            found = [client.receive() for _ in range(3)]
        assert [(one.opcode, one.status) for one in found if one is not None] == [
            (Opcode.SET, 0),
            (Opcode.SELECT_BUCKET, 0),
            (Opcode.SET, 0),
        ]
        assert [row[0] for row in server.log.select("b")] == [b"k"]
        assert [row[0] for row in server.log.select("c")] == [b"l"]


def test_what_goes_wrong_at_one_answer_is_nothing_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several clients in one job: that connection ends, the others have their answers."""
    whole, told = Conversation.finish, []

    def finish(self: Conversation, run: Any, error: BaseException | None) -> None:
        told.append(self)
        if len(told) == 2:
            raise RuntimeError("an answer that cannot be given")
        whole(self, run, error)

    with serve(tmp_path / "s") as server, ExitStack() as stack:
        clients = [stack.enter_context(KvClient(server.port)) for _ in range(3)]
        for client in clients:
            client.ask(VERSION)  # the server has all of them
        monkeypatch.setattr(Conversation, "finish", finish)
        before = server.log.inner.commits
        with one_turn(server):
            for number, client in enumerate(clients):
                client.send(store(b"k%d" % number))
        found = [client.receive() for client in clients]
        assert sorted(one is None for one in found) == [False, False, True]
        assert {one.status for one in found if one is not None} == {0}
        assert len(told) == 3
        assert server.log.inner.commits == before + 1
        assert server.log.count("b") == 3
