"""Recorded connections to ep-engine, played to our endpoint: the client's own bytes go in, and what
comes back means the same as what ep-engine sent.

Told apart on purpose: ep-engine gives items in no order and sends the open checkpoint behind a
backfill once more; we give each once. So compared are the state that a consumer ends with, item
flags included, the framing of each vbucket, and the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.tapmodel import captures, packets, sent

from interop.kvclient import KvClient, store
from interop.serving import Serving
from interop.test_memcached_endpoint import serve, set_state
from logweir.replication.bucket.item import VbucketState
from logweir.replication.memcached.wire.codec import Opcode, Packet, encode_ack, encode_request
from logweir.replication.memcached.wire.messages import (
    Opaque,
    Option,
    TapMessage,
    decode_connect,
    decode_tap,
    encode_tap,
)

LATER = 1_000_000_000  # seconds: what was recorded to expire has
State = dict[tuple[int, bytes], tuple[bytes, int, int]]
DATA = (Opcode.TAP_MUTATION, Opcode.TAP_DELETE, Opcode.TAP_FLUSH)
WHOLE = [
    "custom-spymemcached",
    "dump-ack-go",
    "dump-ep-python",
    "dump-noack-vblist-go",
    "dump-spymemcached",
]


def recorded(name: str) -> tuple[Packet, list[TapMessage]]:
    """The client's TAP_CONNECT and the server's stream."""
    connect = next(p for p in packets(sent(name, "c2s")) if p.opcode == Opcode.TAP_CONNECT)
    found = [p for p in packets(sent(name, "s2c")) if 0x41 <= p.opcode <= 0x47]
    messages = [decode_tap(p) for p in found if not p.is_response]
    return connect, [replace(m, expiry=m.expiry and m.expiry + LATER) for m in messages]


def state(messages: list[TapMessage]) -> State:
    """What a consumer has at the end."""
    items: State = {}
    for message in messages:
        place = (message.vbucket, message.key)
        if message.opcode == Opcode.TAP_MUTATION:
            items[place] = (message.value, message.item_flags, message.expiry)
        elif message.opcode == Opcode.TAP_DELETE:
            items.pop(place, None)
        elif message.opcode == Opcode.TAP_FLUSH:
            items.clear()
    return items


def control(messages: list[TapMessage]) -> list[tuple[int, int, int | None]]:
    """Opcode, vbucket and number of what is no data, the checkpoints' ids left out."""
    return [
        (m.opcode, m.vbucket, m.number)
        for m in messages
        if m.opcode in (Opcode.TAP_OPAQUE, Opcode.TAP_VBUCKET_SET)
    ]


def load(client: KvClient, messages: list[TapMessage]) -> None:
    """Put the items of a stream into vbuckets 0 and 1 of our bucket."""
    set_state(client, 1, VbucketState.ACTIVE)
    for message in messages:
        if message.opcode == Opcode.TAP_MUTATION:
            client.socket.sendall(encode_tap(message, fix_flags=True))
    client.batch()


@contextlib.contextmanager
def played(server: Serving, connect: Packet) -> Iterator[Iterator[TapMessage]]:
    """A stream that was asked for with the recorded bytes; acknowledged as it is read."""
    with KvClient(server.port) as consumer:
        consumer.socket.sendall(encode_request(connect))

        def messages() -> Iterator[TapMessage]:
            while (packet := consumer.receive()) is not None:
                if packet.opcode == Opcode.NOOP:
                    continue
                message = decode_tap(packet)
                yield message
                if message.wants_ack:
                    consumer.socket.sendall(encode_ack(message.opcode, message.opaque))

        yield messages()


@pytest.mark.parametrize("name", WHOLE)
def test_a_recorded_client_gets_what_ep_engine_gave_it(tmp_path: Path, name: str) -> None:
    """The same items with the same flags, framed the same; ACK flags only where they were asked
    for; the same end."""
    connect, wanted = recorded(name)
    options = decode_connect(connect).options
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        load(client, wanted)
        with played(server, connect) as stream:
            found: list[TapMessage] = []
            opaques = {number for _, _, number in control(wanted)}
            while len(control(found)) < len(control(wanted)):
                found.append(next(stream))
            if options & Option.DUMP:
                (end,) = stream
                assert end.number == Opaque.CLOSE_TAP_STREAM
    ends = {Opaque.ENABLE_AUTO_NACK, Opaque.INITIAL_VBUCKET_STREAM, Opaque.CLOSE_BACKFILL}
    assert opaques <= ends | {Opaque.ENABLE_CHECKPOINT_SYNC}
    assert control(found) == control(wanted)
    assert state(found) == state(wanted)
    assert any(m.wants_ack for m in found) == bool(options & Option.SUPPORT_ACK)
    assert {m.ttl for m in found if m.opcode not in DATA} == {255}


@pytest.mark.parametrize("name", ["live-checkpoint-go", "noop-flush-raw", "nack-raw"])
def test_recorded_changes_are_sent_as_ep_engine_sent_them(tmp_path: Path, name: str) -> None:
    """What was changed then is changed again, each by its command; what comes is the same, in the
    same order, in checkpoints where they were asked for."""
    connect, wanted = recorded(name)
    changes = [m for m in wanted if m.opcode in DATA]
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        set_state(client, 1, VbucketState.ACTIVE)
        removed = [m for m in changes if m.opcode == Opcode.TAP_DELETE]
        client.ask(*(store(m.key, vbucket=m.vbucket) for m in removed), store(b"before"))
        with played(server, connect) as stream:
            found = [next(stream)] if decode_connect(connect).options & Option.SUPPORT_ACK else []
            server.wait(lambda: server.server.settled.readers == 1)
            for m in changes:
                if m.opcode == Opcode.TAP_MUTATION:
                    client.ask(store(m.key, m.value, vbucket=m.vbucket, flags=m.item_flags))
                elif m.opcode == Opcode.TAP_DELETE:
                    client.ask(Packet(Opcode.DELETE, m.key, vbucket=m.vbucket))
                else:
                    client.ask(Packet(Opcode.FLUSH))
            while len([m for m in found if m.opcode in DATA]) < len(changes):
                found.append(next(stream))
    seen = [(m.opcode, m.vbucket, m.key, m.value, m.item_flags) for m in found if m.opcode in DATA]
    assert seen == [(m.opcode, m.vbucket, m.key, m.value, m.item_flags) for m in changes]
    assert control(found) == control(wanted)
    has_checkpoints = bool(decode_connect(connect).options & Option.CHECKPOINT)
    assert any(m.opcode == Opcode.TAP_CHECKPOINT_START for m in found) == has_checkpoints


def test_a_recorded_takeover_is_given(tmp_path: Path) -> None:
    """The migrator's request: pending, framed items, active, the end; the vbucket is dead then."""
    connect, wanted = recorded("takeover-vbucketmigrator-source")
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        load(client, wanted)
        with played(server, connect) as stream:
            found = list(stream)
        assert control(found)[:-1] == control(wanted)
        assert found[-1].number == Opaque.CLOSE_TAP_STREAM
        there = {place for place in state(found) if place[1]}
        assert there >= set(state(wanted))
        (answer,) = client.ask(Packet(Opcode.GET_VBUCKET, vbucket=1))
        assert answer.value == int(VbucketState.DEAD).to_bytes(4, "big")


def test_a_recorded_consumer_resumes(tmp_path: Path) -> None:
    """Two connections under one name: what the first left unacknowledged comes again, and then
    what happened meanwhile; the recorded answers are played, too."""
    c2s = packets(sent("resume-named-raw", "c2s"))
    first = next(p for p in c2s if p.opcode == Opcode.TAP_CONNECT)
    _, wanted = recorded("resume-named-raw")
    split = max(i for i, m in enumerate(wanted) if m.number == Opaque.ENABLE_AUTO_NACK)
    before = [m for m in wanted[:split] if m.opcode in DATA]
    again = [m for m in wanted[split:] if m.opcode in DATA]
    unacknowledged = [m for m in before if m.key in {each.key for each in again}]
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        with played(server, first) as stream:
            next(stream)
            server.wait(lambda: server.server.settled.readers == 1)
            acknowledged = [m for m in before if m not in unacknowledged]
            client.ask(*(store(m.key, m.value) for m in acknowledged))
            taken = [next(stream) for _ in acknowledged]
            assert [m.key for m in taken] == [m.key for m in acknowledged]
            (service,) = {link._conversation.service for link in server.server.listener.links}
            client.ask(*(store(m.key, m.value) for m in unacknowledged))
            taken = [next(stream) for _ in unacknowledged]  # acknowledges those before
            server.wait(lambda: service.names.find("b", b"resume-A").position is not None)
        missed = [m for m in again if m not in unacknowledged]
        late = [m for m in missed if m.key not in {each.key for each in before}]
        client.ask(*(store(m.key, m.value) for m in late))
        with played(server, first) as stream:
            found: list[TapMessage] = []
            while len([m for m in found if m.opcode in DATA]) < len(again):
                found.append(next(stream))
        assert [(m.key, m.value) for m in found if m.opcode in DATA] == [
            (m.key, m.value) for m in again
        ]


@pytest.mark.parametrize("name", sorted(n for n in captures() if "scripted" in n))
def test_scripted_streams_are_followed_without_a_fault(tmp_path: Path, name: str) -> None:
    """Every packet type in both forms, pushed into our endpoint as a producer would: each that
    asks for an answer gets one, and the connection stays."""
    _, messages = recorded(name)
    with serve(tmp_path / "s") as server, KvClient(server.port) as client:
        set_state(client, 102, VbucketState.ACTIVE)
        for packet in packets(sent(name, "s2c")):
            client.socket.sendall(encode_request(packet))
        answers = client.batch()
    asked = [m.opaque for m in messages if m.wants_ack]
    assert [a.opaque for a in answers if 0x41 <= a.opcode <= 0x47] == asked
    assert {a.status for a in answers} == {0}
