"""Every recording is met: rows stored as the server sent them, faults answered as workers do."""

from __future__ import annotations

import json
import re

import pytest

from interop.synapsemodel import Peer, captures, lines_of, wire, wire_rows
from logweir.replication.synapse.follow.catchup import Page
from logweir.replication.synapse.follow.cursors import Tracker
from logweir.replication.synapse.wire.codec import Dialect, encode_row
from logweir.replication.synapse.wire.units import Cursor, Fetch


def catch_ups() -> list[tuple[str, int, list[str]]]:
    """Stream, token and the server's answer of each catch-up in the recording of D1."""
    found: list[tuple[str, int, list[str]]] = []
    asked: tuple[str, int] | None = None
    answer: list[str] = []
    for who, text in captures()["D1/catchup"]["records"]:
        if who == "#":
            if asked is not None:
                found.append((*asked, answer))
            match = re.fullmatch(r"catch-up (\w+) (\d+)", text)
            asked, answer = (match[1], int(match[2])) if match else None, []
        elif who == "S" and asked is not None and text.startswith(("RDATA ", "POSITION ")):
            answer.append(text)
    return [one for one in found if len(one[2]) > 1]


@pytest.mark.parametrize(("stream", "token", "answer"), catch_ups(), ids=lambda one: str(one)[:12])
def test_recorded_catch_up_is_stored_row_for_row(
    stream: str, token: int, answer: list[str]
) -> None:
    """Each stream and token that was asked for; the rows are those that were sent, by tokens."""
    end = next(i for i, line in enumerate(answer) if line.startswith(f"POSITION {stream} "))
    peer = Peer(Tracker({(stream, "master"): Cursor(token, token)}))
    peer.greet()
    assert peer.lines(answer[end]) == [f"REPLICATE {stream} {token}"]
    rows = [line for line in answer[:end] if line.startswith(f"RDATA {stream} ")]
    peer.lines(*rows)
    assert peer.tracker.cursors[stream, "master"].last == token
    peer.lines(answer[end])
    expected = sorted(wire_rows(rows, Dialect.D1)[stream], key=lambda one: one[0])
    assert peer.stored.rows(stream) == expected
    assert peer.tracker.cursors[stream, "master"].last == int(answer[end].split(" ")[-1])


def test_every_stream_with_rows_was_caught_up_in_the_recording() -> None:
    """The recording is not read in part only."""
    assert {stream for stream, _, _ in catch_ups()} >= {"events", "receipts", "typing", "presence"}
    asked = [(stream, token) for stream, token, _ in catch_ups()]
    assert ("events", 1) in asked
    assert ("events", 12) in asked


def pages(name: str) -> list[tuple[str, int, int, dict[str, object]]]:
    """Stream, range and body of every answer 200 with rows in a recording of HTTP."""
    found = []
    asked: re.Match[str] | None = None
    for _, text in captures()[name]["records"]:
        if match := re.match(r"GET \S*?/(\w+)/\w+\?from_token=(-?\d+)&upto_token=(-?\d+)", text):
            asked = match
        elif asked is not None and text.startswith("200 "):
            body = json.loads(text.removeprefix("200 "))
            found.append((asked[1], int(asked[2]), int(asked[3]), body))
    return [one for one in found if one[3]["updates"]]


@pytest.mark.parametrize("name", ["D2/http_catchup", "D3/http_catchup"])
def test_recorded_pages_of_missed_rows_are_stored_row_for_row(name: str) -> None:
    """Every answer of a real server, for a follower that was left where it was asked from."""
    found = pages(name)
    assert len(found) >= 3
    for stream, after, upto, body in found:
        peer = Peer(Tracker({(stream, "master"): Cursor(after, after)}))
        peer.greet()
        tokens = f"{upto}" if name.startswith("D2") else f"{upto} {upto}"
        peer.lines(f"POSITION {stream} master {tokens}")
        wanted = Fetch(stream, "master", after, upto)
        assert peer.stored.fetches == [wanted]
        updates = body["updates"]
        assert isinstance(updates, list)
        rows = [(token, encode_row(json.dumps(row))) for token, row in updates]
        reached, limited = body["upto_token"], body["limited"]
        assert isinstance(reached, int)
        peer.act(peer.session.take_page(wanted, Page(rows, reached, limited=bool(limited))))
        # `federation` was once answered with rows behind the range: they come live
        assert peer.stored.rows(stream) == [(t, row) for t, row in updates if t <= reached]


TO_WORKERS = [
    name
    for name in captures()
    if "/client_" in name and "cmds" not in name and "http" not in name and "normal" not in name
]

TOLERATED = ("blank_line", "one_word", "unknown_command", "bad_json")
"""What real workers drop a server for and we pass over."""


@pytest.mark.parametrize("name", TO_WORKERS)
def test_faults_of_servers_are_met_as_a_real_worker_meets_them(name: str) -> None:
    """ERROR and a close where the worker did that, but for a few; no row of a fault is stored."""
    records = captures()[name]["records"]
    refused = any(who == "C" and text.startswith("ERROR") for who, text in records)
    peer = Peer(
        Tracker({("typing", "master"): Cursor(4, 4)}),
        dialect=Dialect(name[:2]),
        server_name="logweir.test",
    )
    for line in lines_of(name, "S"):
        if match := re.fullmatch(r"<(\d+) bytes>", line):
            peer.feed(b"PING " + b"x" * (int(match[1]) - 5) + b"\n")
        else:
            peer.feed(wire(line))
    if name.endswith("server_silent"):
        peer.session.deadline_passed(30.0)
    sent = peer.answer()
    if name.endswith(TOLERATED):
        assert not peer.session.close_reason
    else:
        assert any(line.startswith("ERROR") for line in sent) == refused
        assert bool(peer.session.close_reason) == refused
    assert peer.stored.units == {}


def test_workers_were_recorded_in_three_dialects() -> None:
    """Nothing of what was tried against a worker is left out for one of them."""
    tried = {
        dialect: {name[3:] for name in TO_WORKERS if name.startswith(dialect)}
        for dialect in ("D1", "D2", "D3")
    }
    assert tried["D1"] == tried["D2"] == tried["D3"]
    assert len(tried["D1"]) >= 11
