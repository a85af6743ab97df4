"""The follower's session: recordings replayed, and everything a server does wrong."""

from __future__ import annotations

import json

import pytest

from interop.synapsemodel import Peer, captures, lines_of, wire, wire_rows
from logweir import limits
from logweir.replication.synapse.client_session import RedisSession
from logweir.replication.synapse.follow.catchup import Page
from logweir.replication.synapse.follow.cursors import Tracker
from logweir.replication.synapse.wire.codec import Dialect, decode_row_value, encode_row
from logweir.replication.synapse.wire.units import Cursor, Fetch, Gap

LIVE = {"D1/live": Dialect.D1, "D2/live": Dialect.D2, "D3/live": Dialect.D3}


def after_positions(lines: list[str]) -> list[str]:
    """What a follower takes that begins now: the lines from the first POSITION on."""
    first = next(i for i, line in enumerate(lines) if "POSITION " in line)
    return lines[first:]


@pytest.mark.parametrize("name", LIVE)
def test_live_recording_is_stored_row_for_row(name: str) -> None:
    """Every row behind the first POSITION is there once, in order; those before it are dropped."""
    peer = Peer()
    lines = lines_of(name, "S")
    for line in lines:
        peer.feed(wire(line))
    assert peer.session.dialect is LIVE[name]
    assert not peer.session.close_reason
    expected = wire_rows(after_positions(lines), LIVE[name])
    assert len(expected) > 9
    for stream, rows in expected.items():
        assert peer.stored.rows(stream) == rows
    stored = sum(len(rows) for rows in peer.stored.units.values())
    assert stored == sum(map(len, expected.values()))
    assert peer.stored.cursors["events", "master"].last == 31
    counted = captures()[name]["line_counts"]["S RDATA"]
    early = sum(line.startswith("RDATA") for line in lines) - stored
    assert counted == stored + early


@pytest.mark.parametrize("name", LIVE)
def test_live_recording_in_any_portions_gives_the_same(name: str) -> None:
    """Whole feed and byte by byte."""
    data = b"".join(map(wire, lines_of(name, "S")))
    whole, pieces = Peer(), Peer()
    greeting = data.index(b"\n", data.index(b"PING")) + 1
    whole.feed(data[:greeting])
    whole.feed(data[greeting:])
    for byte in data:
        pieces.feed(bytes((byte,)))
    assert whole.stored.units == pieces.stored.units
    assert whole.stored.cursors == pieces.stored.cursors


def test_one_line_finds_dialect_and_streams() -> None:
    """NAME and PING at once, REPLICATE ALL NOW after the greeting, and nothing else."""
    peer = Peer()
    assert peer.answer() == ["NAME logweir", "PING 1"]
    assert peer.greet() == ["REPLICATE ALL NOW"]
    assert peer.lines("POSITION events 5") == []
    assert peer.session.dialect is Dialect.D1


def test_catch_up_of_d1_recording_is_stored_row_for_row() -> None:
    """A real server's answer to `REPLICATE events 1`, as an upstream that was left at 1."""
    lines = lines_of("D1/catchup", "S")
    rows = [line for line in lines if line.startswith("RDATA events")]
    end = next(i for i, line in enumerate(lines) if line == "POSITION events 31")
    first = [line for line in lines[:end] if line.startswith("RDATA events")]
    peer = Peer(Tracker({("events", "master"): Cursor(1, 1)}))
    peer.greet()
    assert peer.lines("POSITION events 31") == ["REPLICATE events 1"]
    peer.lines(*first)
    assert peer.stored.units == {}
    assert peer.tracker.cursors["events", "master"].last == 1
    peer.lines("POSITION events 31")
    assert peer.stored.rows("events") == wire_rows(rows[: len(first)], Dialect.D1)["events"]
    assert peer.tracker.cursors["events", "master"] == Cursor(31, 31)


def test_server_that_is_ahead_of_nothing_gives_a_lower_position() -> None:
    """The real answer to a token ahead of the server: all that it has now is asked for."""
    assert "POSITION events 31" in lines_of("D1/catchup", "S")
    peer = Peer(Tracker({("events", "master"): Cursor(999999, 999999)}))
    peer.greet()
    assert peer.lines("POSITION events 31") == ["REPLICATE events 0"]
    assert any(isinstance(change, Gap) for change in peer.stored.other)
    assert peer.tracker.cursors["events", "master"] == Cursor(0, 0, epoch=2)


def test_d3_worker_recording_gives_what_the_worker_took() -> None:
    """RDATA before POSITION, a batch, an old token, an unknown stream, jumps, a reset."""
    peer = Peer(Tracker({("typing", "master"): Cursor(0, 0)}))
    peer.greet()
    fetched = []
    for line in lines_of("D3/client_normal", "S"):
        peer.feed(wire(line))
        for fetch in peer.stored.fetches:
            fetched.append((fetch.stream, fetch.after, fetch.upto))
            rows = [(9, encode_row('["fetched"]'))] if fetch.upto == 9 else []
            peer.act(peer.session.take_page(fetch, Page(rows, fetch.upto, limited=False)))
        peer.stored.fetches.clear()
    assert [token for token, _ in peer.stored.rows("typing")] == [2, 4, 4, 5, 9]
    assert [token for token, _ in peer.stored.rows("typing", epoch=2)] == [4]
    assert fetched == [("typing", 5, 9), ("typing", 0, 3)]
    assert peer.tracker.cursors["typing", "master"] == Cursor(4, 4, epoch=2)
    assert peer.session.last_error == "test"
    assert not peer.session.close_reason


def test_d1_worker_recording_is_taken_with_every_odd_thing_in_it() -> None:
    """An early row, an old token, an unknown stream, a jump and a reset, in the D1 dialect."""
    peer = Peer(Tracker({("typing", "master"): Cursor(0, 0)}), dialect=Dialect.D1)
    for line in lines_of("D1/client_normal", "S"):
        peer.feed(wire(line))
    assert not peer.session.close_reason
    assert [token for token, _ in peer.stored.rows("typing")] == [2, 3, 4, 4, 5]
    asked = [line for line in peer.answer() if line.startswith("REPLICATE typing")]
    assert asked == ["REPLICATE typing 4", "REPLICATE typing 0"]
    assert peer.tracker.cursors["typing", "master"].epoch == 2


def test_long_row_that_a_live_server_leaves_out_is_no_fault() -> None:
    """Tokens 4, 5, 7 came from a real server; 6 never does."""
    peer = Peer()
    for line in lines_of("D3/long_row", "S"):
        peer.feed(wire(line))
    assert [token for token, _ in peer.stored.rows("tag_account_data")] == [4, 5, 7]


def test_wedged_catch_up_ends_in_a_gap() -> None:
    """The real error of a row that is too long, twice; then the stream goes on."""
    error = next(line for line in lines_of("D1/long_row_catchup", "S") if "too long" in line)
    tracker = Tracker({("tag_account_data", "master"): Cursor(5, 5)})
    for _ in range(2):
        peer = Peer(tracker)
        peer.greet()
        assert peer.lines("POSITION tag_account_data 7")[-1] == "REPLICATE tag_account_data 5"
        peer.lines(error)
        peer.session.receive_eof(1.0)
        assert "too long" in peer.session.close_reason
        peer.session.lost()
    last = Peer(tracker)
    last.greet()
    assert last.lines("POSITION tag_account_data 7") == []
    assert any(isinstance(change, Gap) for change in last.stored.other)


def test_shutdown_in_a_catch_up_is_no_refusal() -> None:
    """The server's farewell does not count against the stream."""
    tracker = Tracker({("s", "master"): Cursor(5, 5)})
    for _ in range(3):
        peer = Peer(tracker)
        peer.greet()
        assert peer.lines("POSITION s 7")[-1] == "REPLICATE s 5"
        peer.lines("ERROR server shutting down")
        peer.session.lost()


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("RDATA typing master x []", "ERROR failed to parse line"),
        ("RDATA typing master", "ERROR failed to parse line"),
        ("POSITION typing master x x", "ERROR failed to parse line"),
        ("POSITION typing master 1 99999999999999999999", "ERROR failed to parse line"),
        ("POSITION typing 3", "ERROR failed to parse line"),
        ("NAME x", "ERROR failed to parse line: invalid command: NAME"),
        (" PING 1", None),
        ("FROB 1", None),
        ("", None),
        ("\r", None),
        ("PING", None),
        ("PING 5\r", None),
        ("SYNC abc", None),
        ("REMOTE_SERVER_UP other.example", None),
        ("PING " + "x" * 16379, None),
        ("PING " + "x" * 16380, "ERROR Line length exceeded"),
        ("x" * 20005, "ERROR Line length exceeded"),
    ],
)
def test_what_a_server_may_and_may_not_send(line: str, answer: str | None) -> None:
    """Faults are answered and close; what is only new or odd is passed over."""
    peer = Peer()
    peer.greet()
    peer.lines("POSITION typing master 4 4", "RDATA typing master 5 [1]")
    sent = peer.lines(line, "RDATA typing master 6 [2]")
    rows = [value for _, value in peer.stored.rows("typing")]
    if answer is None:
        assert sent == []
        assert rows == [[1], [2]]
        assert not peer.session.close_reason
    else:
        assert sent[0].startswith(answer)
        assert len(sent[0]) < 400
        assert rows == [[1]]
        assert peer.session.close_reason


@pytest.mark.parametrize("dialect", [Dialect.D1, Dialect.D3])
@pytest.mark.parametrize(
    "row", ["[{", "[NaN]", "[99999999999999999999999]", "[" * 5000, "[" * 600 + "]" * 600]
)
def test_row_that_cannot_be_stored_holds_nothing_up(dialect: Dialect, row: str) -> None:
    """A gap at its token, no answer, and the rows after it as ever."""
    peer = Peer(dialect=dialect)
    peer.greet()
    who = "" if dialect is Dialect.D1 else "master "
    tokens = "4" if dialect is Dialect.D1 else "4 4"
    peer.lines(f"POSITION typing {who}{tokens}", f"RDATA typing {who}5 [1]")
    sent = peer.lines(f"RDATA typing {who}6 {row}", f"RDATA typing {who}7 [2]")
    assert sent == []
    assert not peer.session.close_reason
    assert peer.stored.rows("typing") == [(5, [1]), (7, [2])]
    (gap,) = [change for change in peer.stored.other if isinstance(change, Gap)]
    assert (gap.stream, gap.after, gap.upto) == ("typing", 5, 6)
    assert gap.reason


def test_rows_before_a_fault_in_the_same_read_are_kept() -> None:
    """A unit that was whole is stored, the broken one and those behind it are not."""
    peer = Peer()
    peer.greet()
    peer.feed(
        b"POSITION t master 4 4\nRDATA t master 5 [1]\nRDATA t master x []\nRDATA t master 7 []\n"
    )
    assert peer.stored.rows("t") == [(5, [1])]
    assert peer.answer()[0].startswith("ERROR ")


def test_line_that_is_not_text_closes_without_an_answer() -> None:
    """As real peers do."""
    peer = Peer()
    peer.greet()
    peer.feed(b"PING \xff\xfe\n")
    assert peer.answer() == []
    assert "UTF-8" in peer.session.close_reason


def test_wrong_server_is_refused() -> None:
    """The text that real followers send."""
    peer = Peer(server_name="other.test")
    peer.answer()
    assert peer.lines("SERVER logweir.test") == ["ERROR Wrong remote"]
    assert peer.session.wrong_server
    assert peer.session.close_reason


def test_half_a_line_is_nothing() -> None:
    """A connection that ends in the middle of a line."""
    peer = Peer()
    peer.greet()
    peer.feed(b"POSITION t master 4 4\nRDATA t master 5 [1]")
    peer.session.receive_eof(0.0)
    assert peer.stored.rows("t") == []
    assert peer.session.close_reason


def test_silence_ends_the_connection_and_pings_go_out() -> None:
    """PING after 5 s without a line of ours, the end after 30 s without one of theirs."""
    peer = Peer()
    peer.greet()
    session = peer.session
    now, pings = 0.0, 0
    while not session.close_reason:
        deadline = session.next_deadline()
        assert deadline is not None
        assert deadline > now
        now = deadline
        session.deadline_passed(now)
        pings += sum(line.startswith("PING") for line in peer.answer())
        if session.close_reason:
            break
    assert now == 30.0
    assert pings == 5
    assert session.receive_data(b"PING 1\n", now) == ()


def test_server_that_says_nothing_at_all_is_given_up() -> None:
    """Without SERVER nothing begins."""
    peer = Peer()
    peer.session.receive_data(b"PING 1\n", 20.0)
    peer.session.deadline_passed(25.0)
    assert "no SERVER" in peer.session.close_reason


def test_redis_recording_is_stored_row_for_row() -> None:
    """A main process over Redis, bad messages and an unknown instance between."""
    texts = [line.split("] ", 1)[1] for line in lines_of("D4/redis_main", "S")]
    tracker = Tracker({})
    session = RedisSession(tracker)
    peer = Peer(tracker)
    for text in texts:
        peer.stored.apply(session.receive([text.encode()]))
    assert session.dialect is Dialect.D3
    expected = wire_rows([text for text in texts if " other " not in text], Dialect.D4)
    assert sum(map(len, expected.values())) > 40
    for stream, rows in expected.items():
        assert peer.stored.rows(stream) == rows
    assert [token for token, _ in peer.stored.rows("receipts", instance="other")] == [50]
    assert peer.stored.cursors["receipts", "master"].last == 50
    batches = [
        rows
        for (stream, *_, token), rows in peer.stored.units.items()
        if stream == "events" and token == 4
    ]
    assert [len(rows) for rows in batches] == [6]


def test_redis_messages_together_give_the_same_as_one_by_one() -> None:
    """Rows and positions keep their order however many come at once."""
    texts = [line.split("] ", 1)[1].encode() for line in lines_of("D4/redis_main", "S")]
    one, all_ = Peer(), Peer()
    session = RedisSession(one.tracker)
    for text in texts:
        one.stored.apply(session.receive([text]))
    all_.stored.apply(RedisSession(all_.tracker).receive(texts))
    assert one.stored.units == all_.stored.units
    assert one.stored.cursors == all_.stored.cursors


def test_redis_message_that_cannot_be_read_is_passed_over_and_told() -> None:
    """A row that is no JSON leaves a gap, since Redis gives it only once."""
    tracker = Tracker({("t", "w 1"): Cursor(1, 1)})
    session = RedisSession(tracker)
    peer = Peer(tracker)
    peer.stored.apply(
        session.receive(
            [
                b"POSITION t master 4 4",
                b"RDATA t master 5 [",
                b"RDATA t master x []",
                b'RDATA t master 6 ["' + b"x" * limits.SYNAPSE_ROW_BYTES + b'"]',
                b"RDATA t master 7 [7]",
                b"RDATA \xff",
                b"POSITION t",
                b"",
                b"REPLICATE ",
                b'LOCK_RELEASED ["master","a","b"]',
            ]
        )
    )
    assert peer.stored.rows("t") == [(7, [7])]
    assert session.unreadable == 3
    gaps = [change for change in peer.stored.other if isinstance(change, Gap)]
    assert [(gap.after, gap.upto) for gap in gaps] == [(4, 5), (5, 6)]
    assert "it is not JSON" in gaps[0].reason
    assert f"{limits.SYNAPSE_ROW_BYTES} are the most" in gaps[1].reason


def test_fetched_pages_of_a_real_server_are_stored() -> None:
    """HTTP answers as recorded, for a follower that was left at 1."""
    records = captures()["D3/http_catchup"]["records"]
    answer = json.loads(records[1][1].removeprefix("200 "))
    peer = Peer(Tracker({("events", "master"): Cursor(1, 1)}))
    peer.greet()
    peer.lines("POSITION events master 20 20")
    assert peer.stored.fetches == [Fetch("events", "master", 1, 20)]
    rows = [(token, encode_row(json.dumps(row))) for token, row in answer["updates"]]
    peer.act(
        peer.session.take_page(
            Fetch("events", "master", 1, 20), Page(rows, answer["upto_token"], answer["limited"])
        )
    )
    assert peer.stored.rows("events") == [(token, row) for token, row in answer["updates"]]
    assert decode_row_value(rows[0][1])[0] == "ev"
    assert peer.tracker.cursors["events", "master"] == Cursor(20, 20)


def test_flood_of_invented_streams_closes() -> None:
    """Names are not kept without end."""
    peer = Peer()
    peer.greet()
    peer.feed(b"".join(b"POSITION s%d master 1 1\n" % number for number in range(5000)))
    assert peer.answer()[-1].startswith("ERROR failed to parse line: SYNAPSE_STREAMS")
    assert peer.session.close_reason
