"""Recorded Tank bytes, broken at random: a value or our own error, never anything else.

The seed is fixed and shown on failure; `FUZZ_ROUNDS` in the environment asks for more rounds.
"""

from __future__ import annotations

import os
import random

import pytest

from interop.tankmodel import Broker, MemoryTopics, captures, frames
from logweir.errors import DecodeError, LimitExceeded
from logweir.replication.tank.wire.codec import decode_answer, decode_request
from logweir.replication.tank.wire.framing import FrameBuffer
from logweir.replication.tank.wire.messages import FetchStatus, PublishResult
from logweir.replication.topic.bundle import check_bundle, decode_bundle
from logweir.testing.damage import damaged

SEED = 11011
ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "20"))


@pytest.mark.parametrize("side", ["c2s", "s2c"])
def test_broken_frames_give_a_value_or_our_error(side: str) -> None:
    """Both decoders, over all recordings."""
    chance = random.Random(SEED)
    decode = decode_request if side == "c2s" else decode_answer
    for name, item in captures().items():
        for round_number in range(ROUNDS):
            found, _ = FrameBuffer().feed(damaged(item[side], chance))
            for kind, payload in found:
                try:
                    decode(kind, payload)
                except DecodeError:
                    continue
                except Exception as error:
                    pytest.fail(f"{name} {side} round {round_number} seed {SEED}: {error!r}")


def test_broken_clients_never_get_a_byte_outside_the_tables() -> None:
    """A session answers broken streams with frames that our client decoder takes, or closes."""
    chance = random.Random(SEED)
    for item in captures().values():
        for _ in range(ROUNDS):
            topics = MemoryTopics()
            for name in ("events", "orders"):
                topics.create(name, 2)
            broker = Broker(topics)
            session = broker.connect()
            data = damaged(item["c2s"], chance)
            sent = b"".join(broker.feed(session, data[i : i + 9]) for i in range(0, len(data), 9))
            sent += broker.advance(session, 4000.0)
            for kind, payload in frames(sent):
                decode_answer(kind, payload)
    assert {0, 1, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF} == set(FetchStatus)
    assert {0, 1, 2, 3, 4, 10, 0xFC, 0xFD, 0xFE, 0xFF} == set(PublishResult)


def test_broken_bundles_give_messages_or_our_error() -> None:
    """And the check agrees with the decoder."""
    chance = random.Random(SEED)
    bundles = []
    for item in captures().values():
        for kind, payload in frames(item["c2s"]):
            if kind in (1, 5):
                bundles.append(payload[35:])
                bundles.append(payload[43:])
    for data in bundles:
        for _ in range(ROUNDS * 5):
            each = damaged(data, chance)
            try:
                count = len(decode_bundle(each))
            except (DecodeError, LimitExceeded):
                count = 0
            try:
                checked = check_bundle(each)[0].count
            except (DecodeError, LimitExceeded):
                checked = 0
            assert count == checked
