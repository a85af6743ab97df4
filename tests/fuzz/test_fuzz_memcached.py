"""Recorded TAP bytes, broken at random: a value or our own error, never anything else.

The seed is fixed and shown on failure; `FUZZ_ROUNDS` in the environment asks for more rounds.
"""

from __future__ import annotations

import os
import random

import pytest
from support.tapmodel import Server, Users, captures, sent

from logweir.errors import LogweirError
from logweir.replication.bucket.item import Item, pack_item, unpack_item
from logweir.replication.memcached.client_session import ClientSession
from logweir.replication.memcached.wire.codec import PacketBuffer
from logweir.replication.memcached.wire.messages import (
    Connect,
    Option,
    decode_connect,
    decode_filter,
    decode_tap,
)
from logweir.testing.damage import damaged

SEED = 11210
ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "20"))


@pytest.mark.parametrize("side", ["c2s", "s2c"])
def test_broken_packets_give_a_value_or_our_error(side: str) -> None:
    """All decoders, over all recordings."""
    chance = random.Random(SEED)
    for name in captures():
        data = sent(name, side)
        for round_number in range(ROUNDS):
            found, _ = PacketBuffer().feed(damaged(data, chance))
            for packet in found:
                for decode in (decode_connect, decode_filter, decode_tap):
                    try:
                        decode(packet)
                    except LogweirError:
                        continue
                    except Exception as error:
                        pytest.fail(f"{name} {side} round {round_number} seed {SEED}: {error!r}")


def test_broken_clients_get_whole_packets_only() -> None:
    """What a session answers to broken streams can be split into packets again."""
    chance = random.Random(SEED)
    mechanisms = Users("PLAIN", "CRAM-MD5", "SCRAM-SHA-1")
    for name in captures():
        for _ in range(ROUNDS):
            server = Server(credentials=mechanisms)
            data = damaged(sent(name, "c2s"), chance)
            out = b"".join(server.feed(data[i : i + 9]) for i in range(0, len(data), 9))
            if data[:1] < b"\x80":  # it has become text
                assert not out or out.endswith(b"\r\n")
                continue
            buffer = PacketBuffer()
            _, problem = buffer.feed(out)
            assert problem is None
            assert len(buffer) == 0


def test_broken_servers_end_or_go_on() -> None:
    """A consumer never raises, and says why it ends."""
    chance = random.Random(SEED)
    ended = 0
    for name in captures():
        for _ in range(ROUNDS):
            session = ClientSession(Connect(b"n", Option.SUPPORT_ACK))
            data = damaged(sent(name, "s2c"), chance)
            for at in range(0, len(data), 100):
                session.receive_data(data[at : at + 100], 0.0)
            session.acknowledge()
            ended += bool(session.close_reason)
    assert ended > ROUNDS


@pytest.mark.parametrize("mechanism", ["PLAIN", "CRAM-MD5", "SCRAM-SHA-1", "SCRAM-SHA-256"])
def test_broken_logins_come_to_an_end(mechanism: str) -> None:
    """Words of either side, broken on their way: in or refused on both sides, never an exception;
    nobody comes in with a word of which a byte is missing or changed that counts."""
    chance = random.Random(SEED)
    came_in = 0
    for _ in range(5 * ROUNDS):
        session = ClientSession(Connect(b"n"), user="ada", password="lovelace")
        server = Server(credentials=Users(mechanism), must_login=True)
        for _ in range(6):
            asked = session.data_to_send()
            answered = server.feed(damaged(asked, chance) if chance.random() < 0.3 else asked)
            answered = damaged(answered, chance) if chance.random() < 0.2 else answered
            session.receive_data(answered, 0.0)
            if session.close_reason or server.session.close_reason:
                break
        came_in += server.session.user == "ada"
        assert server.session.user in (None, "ada")
    assert 0 < came_in < 5 * ROUNDS


def test_broken_tuples_are_items_or_refused() -> None:
    """What stands in a bucket's space, broken: an item or our own error. (A checked format lets
    none of these in; a reader of the log may still meet one.)"""
    chance = random.Random(SEED)
    whole = pack_item(Item(b"key", 3, b"value", 1, 2, 3, 4, 5, "6", b"meta", 7))
    good = 0
    for _ in range(200 * ROUNDS):
        data = damaged(whole, chance)
        try:
            item = unpack_item(data)
        except (LogweirError, TypeError):
            continue
        good += isinstance(item, Item)
    assert good
