"""Synapse lines, rows and cursors over all inputs."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from interop.synapsemodel import Peer
from logweir.replication.synapse.follow.catchup import Page
from logweir.replication.synapse.follow.cursors import Tracker
from logweir.replication.synapse.wire import kernel
from logweir.replication.synapse.wire.codec import (
    Dialect,
    Position,
    Rdata,
    decode_row_value,
    encode,
    encode_row,
    parse,
    row_text,
)
from logweir.replication.synapse.wire.rows import render
from logweir.replication.synapse.wire.units import Cursor

TOKENS = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters=" \n\r"), min_size=1, max_size=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | TOKENS
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.sampled_from(Dialect), NAMES, NAMES, TOKENS, TOKENS, VALUES)
def test_commands_come_back(
    dialect: Dialect, stream: str, instance: str, previous: int, token: int, value: Any
) -> None:
    """What is written is read again, as far as the dialect can say it."""
    who = "master" if dialect is Dialect.D1 else instance
    before = previous if dialect in (Dialect.D3, Dialect.D4) else token
    for command in (
        Rdata(stream, who, token, json.dumps(value)),
        Rdata(stream, who, None, json.dumps(value)),
        Position(stream, who, before, token),
    ):
        if len(line := encode(command, dialect)) < 16384:
            assert parse(line.decode()[:-1], dialect) == command


@given(VALUES)
def test_rows_come_back(value: Any) -> None:
    """By the compiled loop or the ordinary way, compact and with spaces."""
    text = json.dumps(value)
    packed = encode_row(text)
    out = bytearray(3 * len(text) + kernel.ROOM_BYTES)
    size = kernel.encode(text.encode(), out)
    assert size < 0 or out[:size] == packed
    for spaced in (True, False):
        shown = row_text(decode_row_value(packed), spaced=spaced)
        assert json.loads(shown) == value
        assert render(packed, form="spaced" if spaced else "compact") in (None, shown)


@given(st.text(alphabet='[]{},:"1aN \\un', max_size=12))
def test_whatever_the_compiled_loop_takes_is_a_row(text: str) -> None:
    """It takes nothing that the ordinary way refuses."""
    out = bytearray(3 * len(text) + kernel.ROOM_BYTES)
    size = kernel.encode(text.encode(), out)
    if size >= 0:
        assert out[:size] == encode_row(text)


UNITS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=12)
"""Upstream units: step of the token, number of rows."""


@settings(max_examples=60)
@given(UNITS, st.lists(st.integers(0, 40), max_size=4), st.sampled_from(["D1", "D3"]))
def test_whenever_the_connection_breaks_every_row_is_stored_once(
    steps: list[tuple[int, int]], breaks: list[int], dialect: str
) -> None:
    """A real server's rules on one side, any number of broken connections on the other."""
    units: list[tuple[int, list[str]]] = []
    token = 0
    for step, rows in steps:
        token += step
        units.append((token, [f'["{token}-{place}"]' for place in range(rows)]))
    tracker = Tracker({("s", "master"): Cursor(0, 0)})
    stored = Peer(tracker).stored
    sent = 0
    for lines_until_break in [*breaks, 10**6]:
        peer = Peer(tracker)
        peer.stored = stored
        sent = _converse(peer, units, sent, lines_until_break, dialect == "D1")
        peer.session.receive_eof(0.0)
    expected = [(number, json.loads(row)) for number, rows in units for row in rows]
    assert stored.rows("s") == expected
    assert tracker.held_bytes == 0


def _converse(
    peer: Peer, units: list[tuple[int, list[str]]], sent: int, budget: int, d1: bool
) -> int:
    """One connection that ends after `budget` lines. Returns how many units exist upstream."""
    who = "" if d1 else "master "
    peer.greet()
    current = units[sent - 1][0] if sent else 0

    def send(line: str) -> bool:
        nonlocal budget
        budget -= 1
        if budget < 0:
            return False
        for answer in peer.lines(line):
            if answer.startswith("REPLICATE s "):
                asked.append(int(answer.rsplit(" ", 1)[1]))
        for fetch in peer.stored.fetches:
            rows = [
                (number, encode_row(row))
                for number, texts in units[:sent]
                if fetch.after < number <= fetch.upto
                for row in texts
            ]
            peer.act(peer.session.take_page(fetch, Page(rows, fetch.upto, limited=False)))
        peer.stored.fetches.clear()
        return True

    asked: list[int] = []
    position = f"POSITION s {current}" if d1 else f"POSITION s master {current} {current}"
    if not send(position):
        return sent
    for after in list(asked):
        for number, rows in units[:sent]:
            if number > after:
                for row in rows:
                    if not send(f"RDATA s {number} {row}"):
                        return sent
        if not send(position):
            return sent
    while sent < len(units):
        number, rows = units[sent]
        sent += 1
        for place, row in enumerate(rows):
            name = "batch" if place < len(rows) - 1 else number
            if not send(f"RDATA s {who}{name} {row}"):
                return sent
    return sent
