"""Recorded Synapse lines, broken at random: a value or our own error, never anything else.

The seed is fixed and shown on failure; `FUZZ_ROUNDS` in the environment asks for more rounds.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from interop.synapsemodel import Peer, captures, wire
from logweir.errors import LogweirError
from logweir.replication.synapse.client import TokenFile
from logweir.replication.synapse.client_session import RedisSession
from logweir.replication.synapse.follow.cursors import Tracker
from logweir.replication.synapse.serve.updates import HttpSession
from logweir.replication.synapse.server_session import ServerSession
from logweir.replication.synapse.wire.codec import Dialect, parse, text_of
from logweir.replication.synapse.wire.units import Cursor

SEED = 9092
ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "3"))


def broken(data: bytes, chance: random.Random) -> bytes:
    """`data` with a few bytes changed, removed, doubled or put elsewhere."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(4):
            case 0 if at < len(out):
                out[at] = chance.choice((10, 32, 48, 57, 91, 93, chance.randrange(256)))
            case 1:
                del out[at : at + chance.randint(1, 8)]
            case 2:
                out[at:at] = out[at : at + chance.randint(1, 60)]
            case _:
                out[at:at] = chance.randbytes(chance.randint(1, 4))
    return bytes(out)


def side(name: str, who: str) -> bytes:
    """Everything that one side of a recording sent."""
    return b"".join(wire(text) for sender, text in captures()[name]["records"] if sender == who)


@pytest.mark.parametrize("name", [name for name in captures() if not name.startswith("D4")])
def test_broken_streams_end_a_session_at_most(name: str) -> None:
    """Both sides' sessions; what they answer are whole lines."""
    chance = random.Random(SEED)
    for round_number in range(ROUNDS):
        told = f"{name} round {round_number} seed {SEED}"
        peer = Peer(Tracker({}, start_all=True))
        server = ServerSession(
            0.0, dialect=Dialect(name[:2]), server_name="x", milliseconds=lambda: 1
        )
        data = broken(side(name, "S"), chance)
        cut = chance.randrange(len(data) + 1)
        try:
            peer.feed(data[:cut])
            peer.feed(data[cut:])
        except Exception as error:
            pytest.fail(f"{told}: {error!r}")
        try:
            server.receive_data(broken(side(name, "C") or b"\n", chance), 1.0)
        except Exception as error:
            pytest.fail(f"{told}: {error!r}")
        for sent in (peer.session.data_to_send(), server.data_to_send()):
            assert not sent or sent.endswith(b"\n"), told


def test_broken_lines_give_a_command_or_our_error() -> None:
    """The decoder in every dialect, and Redis messages."""
    chance = random.Random(SEED)
    lines = [wire(text)[:-1] for item in captures().values() for _, text in item["records"][:40]]
    session = RedisSession(Tracker({}))
    for line in lines:
        data = broken(line.split(b"] ")[-1], chance)
        session.receive([data])
        for dialect in Dialect:
            try:
                parse(text_of(data), dialect)
            except LogweirError:
                continue
            except Exception as error:
                pytest.fail(f"{data!r} in {dialect} seed {SEED}: {error!r}")


def test_broken_requests_for_missed_rows_end_a_connection_at_most() -> None:
    """HTTP heads with anything in them: requests, or one answer that refuses, then the end."""
    chance = random.Random(SEED)
    good = (
        b"GET /_synapse/replication/get_repl_stream_updates/typing/x?from_token=4&upto_token=9 "
        b"HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\nabc"
    )
    for number in range(300 * ROUNDS):
        data = broken(good * 3, chance)
        session = HttpSession(0.0)
        cut = chance.randrange(len(data) + 1)
        try:
            found = [*session.receive_data(data[:cut], 0.0), *session.receive_data(data[cut:], 0.0)]
            for _ in found:
                session.answer(200, b"{}")
        except Exception as error:
            pytest.fail(f"{data!r} number {number} seed {SEED}: {error!r}")
        refused = session.data_to_send().count(b"HTTP/1.1 4")
        assert refused <= 1
        assert bool(refused) <= bool(session.close_reason)


def test_file_of_tokens_that_is_broken_is_read_or_refused(tmp_path: Path) -> None:
    """A follower's file with anything in it."""
    chance = random.Random(SEED)
    path = tmp_path / "tokens.json"
    file = TokenFile(path)
    file.save("x.test", {("s", "master"): Cursor(8, 6), ("t", "w"): Cursor(3, 3, 2)})
    good = path.read_bytes()
    assert file.load()[1] == {("s", "master"): Cursor(8, 6), ("t", "w"): Cursor(3, 3, 2)}
    for _ in range(200 * ROUNDS):
        path.write_bytes(broken(good, chance))
        try:
            file.load()
        except LogweirError:
            continue
