"""Recorded Greenstack bytes, broken at random: a value or our own error, never anything else.

The seed is fixed and shown on failure; `FUZZ_ROUNDS` in the environment asks for more rounds.
"""

from __future__ import annotations

import os
import random

import pytest
from support.gsmodel import CAPTURES, Server, frames, sent, spellings, vectors

from logweir.errors import LogweirError
from logweir.replication.greenstack.client_session import ClientSession
from logweir.replication.greenstack.follow.incoming import Incoming
from logweir.replication.greenstack.wire import messages
from logweir.replication.greenstack.wire.codec import Frame, FrameBuffer, Opcode, encode_frame
from logweir.replication.greenstack.wire.messages import Feature, Mark
from logweir.testing.damage import damaged
from logweir.wal.vclock import VClock

SEED = 11211
ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "20"))
DECODERS = (
    *(messages.Hello.decode, messages.HelloAnswer.decode, messages.decode_sasl),
    *(messages.decode_sasl_answer, messages.decode_keepalive, messages.decode_bucket),
    *(messages.decode_buckets, messages.decode_create, messages.decode_delete),
    *(messages.decode_role, messages.decode_mutation, messages.decode_get_answer),
    *(messages.MutationAnswer.decode, messages.decode_get, messages.StreamOpen.decode),
    *(messages.decode_opened, messages.decode_close, messages.decode_remove),
    *(messages.Mark.decode, messages.decode_ack, messages.decode_notice),
)


def test_broken_payloads_give_a_value_or_our_error() -> None:
    """All decoders, over the payloads of all single frames."""
    chance = random.Random(SEED)
    payloads = [
        frame.payload
        for one in vectors().values()
        for data in spellings(one)
        for frame in frames(data)
    ]
    for round_number in range(ROUNDS):
        for payload in payloads:
            data = damaged(payload, chance)
            for decode in DECODERS:
                try:
                    decode(data)
                except LogweirError:
                    continue
                except Exception as error:
                    pytest.fail(
                        f"{decode} round {round_number} seed {SEED}: {error!r} {data.hex()}"
                    )


def test_broken_clients_get_whole_frames_only() -> None:
    """What a session answers to broken streams can be cut into frames again."""
    chance = random.Random(SEED)
    for name in CAPTURES:
        for _ in range(ROUNDS):
            server = Server("PLAIN", "CRAM-MD5", "SCRAM-SHA-256", hello=False)
            data = damaged(sent(name, "c2s"), chance)
            out = b"".join(server.feed(data[i : i + 9]) for i in range(0, len(data), 9))
            assert b"".join(map(encode_frame, frames(out))) == out


def test_broken_servers_end_or_go_on() -> None:
    """A client never raises, and says why it ends."""
    chance = random.Random(SEED)
    ended = 0
    for name in CAPTURES:
        for _ in range(ROUNDS):
            session = ClientSession(bytes, user="ada", password="x", features=tuple(Feature))
            data = damaged(sent(name, "s2c"), chance)
            for at in range(0, len(data), 100):
                session.receive_data(data[at : at + 100], 0.0)
            ended += bool(session.close_reason)
    assert ended > ROUNDS


def test_broken_streams_give_steps_or_our_error() -> None:
    """Pushed frames of all kinds, with entries and payloads broken; some are taken, some not."""
    chance = random.Random(SEED)
    pushes = {Opcode.MUTATION, Opcode.REMOVE, Opcode.TRUNCATE, Opcode.STREAM_MARK}
    begin = encode_frame(Frame(Opcode.STREAM_MARK, payload=Mark(1, VClock()).encode()))
    data = sent("03-flags-lanes", "c2s") + sent("01-basic", "c2s")
    taken = refused = 0
    for _ in range(10 * ROUNDS):
        incoming = Incoming(VClock())
        for frame in FrameBuffer().feed(begin + damaged(data, chance))[0]:
            if frame.opcode in pushes and frame.payload:
                try:
                    taken += incoming.take(frame) is not None
                except LogweirError:
                    refused += 1
                    break
    assert taken > refused > 0
