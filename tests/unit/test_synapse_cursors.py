"""Units and cursors: every row of the decision table, and what surrounds it."""

from __future__ import annotations

from pathlib import Path

import pytest

import logweir
from interop.synapsemodel import Stored
from logweir.errors import DecodeError, LimitExceeded, Unreachable
from logweir.limits import SYNAPSE_ANEW_TOKENS
from logweir.replication.protocols import parse_url
from logweir.replication.synapse.follow.cursors import Tracker
from logweir.replication.synapse.follow.source import SynapseSource
from logweir.replication.synapse.wire.codec import Dialect, encode_row
from logweir.replication.synapse.wire.units import Ask, Change, Cursor, Fetch, Gap, Moved, Unit

MASTER = "master"


class Flow:
    """One stream of one upstream."""

    def __init__(
        self, dialect: Dialect, last: int | None, resume: int | None = None, stream: str = "s"
    ) -> None:
        self.stream = stream
        cursors = {}
        if last is not None:
            cursors[stream, MASTER] = Cursor(last, last if resume is None else resume)
        self.tracker = Tracker(cursors)
        self.tracker.connected(dialect)
        self.stored = Stored()
        self.done: list[Change] = []

    def rdata(self, token: int | None, row: str, instance: str = MASTER) -> None:
        """A row."""
        self.tracker.rdata(self.stream, instance, token, encode_row(f'["{row}"]'))
        self.take()

    def position(self, *tokens: int, instance: str = MASTER) -> None:
        """A POSITION."""
        self.tracker.position(self.stream, instance, tokens[0], tokens[-1])
        self.take()

    def take(self) -> None:
        """Do what is to be done."""
        changes = self.tracker.take()
        self.done += changes
        self.stored.apply(changes)

    def all_of(self, kind: type) -> list[Change]:
        """The changes of one kind so far."""
        return [change for change in self.done if type(change) is kind]

    def cursor(self, instance: str = MASTER) -> Cursor:
        """Where the tracker stands."""
        return self.tracker.cursors[self.stream, instance]

    def rows(self, epoch: int = 1, instance: str = MASTER) -> list[tuple[int, str]]:
        """What is stored."""
        found = self.stored.rows(self.stream, epoch, instance)
        return [(token, value[0]) for token, value in found]

    def live(self) -> None:
        """POSITION where the cursor is."""
        self.position(self.cursor().last)
        self.done.clear()


def test_row_1_interrupted_catch_up_keeps_the_cursor_and_asks_again() -> None:
    """D1: rows of a broken catch-up move nothing; they come again and replace themselves."""
    flow = Flow(Dialect.D1, 1)
    flow.position(9)
    assert flow.all_of(Ask) == [Ask("s", 1)]
    for token, row in ((2, "a"), (2, "b"), (3, "c")):
        flow.rdata(token, row)
    flow.tracker.connected(Dialect.D1)
    assert flow.cursor() == Cursor(1, 1)
    flow.position(9)
    assert flow.all_of(Ask) == [Ask("s", 1)] * 2
    for token, row in ((2, "a"), (2, "b"), (3, "c")):
        flow.rdata(token, row)
    flow.position(3)
    assert flow.rows() == [(2, "a"), (2, "b"), (3, "c")]
    assert flow.cursor() == Cursor(3, 3)


def test_row_1_catch_up_over_the_limit_is_written_in_pieces_and_replaces_itself() -> None:
    """D1: what does not fit is stored as it comes, the cursor still waits for POSITION."""
    tracker = Tracker({("s", MASTER): Cursor(1, 1)}, limit_bytes=250)
    flow = Flow(Dialect.D1, 1)
    flow.tracker = tracker
    tracker.connected(Dialect.D1)
    flow.position(9)
    for token, row in ((3, "a"), (2, "b"), (2, "c"), (3, "d"), (2, "e")):
        flow.rdata(token, row)
    assert flow.all_of(Unit)
    assert flow.cursor() == Cursor(1, 1)
    flow.position(3)
    assert sorted(flow.rows()) == [(2, "b"), (2, "c"), (2, "e"), (3, "a"), (3, "d")]
    assert flow.cursor() == Cursor(3, 3)
    assert tracker.held_bytes == 0


def test_row_1a_resume_is_one_unit_behind_last() -> None:
    """D1: the last unit may not have been whole, so it is asked for again."""
    flow = Flow(Dialect.D1, 5)
    flow.live()
    flow.rdata(6, "a")
    flow.rdata(8, "b")
    assert flow.cursor() == Cursor(8, 6)
    flow.tracker.connected(Dialect.D1)
    flow.position(8)
    assert flow.all_of(Ask) == [Ask("s", 6)]


def test_row_1b_row_with_the_last_token_again_is_added_to_its_unit() -> None:
    """D1: an equal token belongs to the same unit, in one read or in two."""
    flow = Flow(Dialect.D1, 7)
    flow.live()
    flow.rdata(8, "a")
    flow.rdata(8, "b")
    flow.tracker.rdata("s", MASTER, 9, encode_row('["c"]'))
    flow.tracker.rdata("s", MASTER, 9, encode_row('["d"]'))
    flow.take()
    units = flow.all_of(Unit)
    assert [(unit.token, len(unit.rows), unit.more) for unit in units] == [
        (8, 1, False),
        (8, 1, True),
        (9, 2, False),
    ]
    assert flow.rows() == [(8, "a"), (8, "b"), (9, "c"), (9, "d")]
    assert flow.cursor() == Cursor(9, 8)


def test_row_2_batch_rows_and_the_number_are_one_unit() -> None:
    """D1: a, b and the numbered c."""
    flow = Flow(Dialect.D1, 5)
    flow.live()
    flow.rdata(None, "a")
    flow.rdata(None, "b")
    assert not flow.done
    flow.rdata(8, "c")
    assert [len(unit.rows) for unit in flow.all_of(Unit)] == [3]
    assert flow.cursor() == Cursor(8, 5)
    assert flow.tracker.held_bytes == 0


def test_row_3_lost_connection_throws_an_open_batch_away() -> None:
    """D1: nothing is stored of a unit whose end did not come."""
    flow = Flow(Dialect.D1, 5)
    flow.live()
    flow.rdata(None, "a")
    flow.tracker.connected(Dialect.D1)
    flow.position(5)
    flow.rdata(6, "b")
    assert flow.rows() == [(6, "b")]


def test_row_4_upstream_behind_begins_an_epoch_from_0() -> None:
    """D1, cursor 40, position 31: a gap with both numbers, then all that there is now."""
    flow = Flow(Dialect.D1, 40, stream="events")
    flow.position(31)
    reason = "reset: the upstream's tokens went back from 40 to 31"
    assert flow.all_of(Gap) == [Gap("events", MASTER, 40, 31, reason)]
    assert flow.all_of(Ask) == [Ask("events", 0)]
    flow.rdata(30, "x")
    flow.rdata(32, "live")
    flow.position(32)
    flow.rdata(33, "b")
    assert flow.rows(epoch=2) == [(30, "x"), (32, "live"), (33, "b")]
    assert flow.rows() == []
    assert flow.cursor() == Cursor(33, 32, epoch=2)


def test_position_that_goes_back_again_and_again_is_a_fault() -> None:
    """D1: a server does so once in a connection, when it was restarted; each time is an epoch."""
    flow = Flow(Dialect.D1, 40)
    flow.position(31)
    flow.position(31)
    with pytest.raises(DecodeError):
        flow.position(30)
    flow.tracker.connected(Dialect.D1)
    flow.position(30)
    assert flow.cursor().epoch == 3


def test_row_5_row_before_a_position_is_dropped() -> None:
    """D3: the POSITION to come will have it fetched."""
    flow = Flow(Dialect.D3, 0)
    flow.rdata(1, "a")
    assert not flow.done


def test_row_6_missed_rows_are_fetched_and_later_ones_wait() -> None:
    """D3, cursor 4: POSITION 8 9 fetches (4, 9]; what arrives meanwhile follows in order."""
    flow = Flow(Dialect.D3, 4)
    flow.live()
    flow.position(8, 9)
    assert flow.all_of(Fetch) == [Fetch("s", MASTER, 4, 9)]
    flow.rdata(None, "x")
    flow.rdata(10, "y")
    flow.position(10, 12)
    flow.rdata(13, "z")
    assert flow.all_of(Unit) == []
    flow.tracker.fetched(
        "s", MASTER, [(5, encode_row('["p"]')), (5, encode_row('["q"]'))], 9, limited=False
    )
    flow.take()
    assert flow.rows() == [(5, "p"), (5, "q"), (10, "x"), (10, "y"), (13, "z")]
    assert flow.cursor() == Cursor(13, 13)
    assert flow.tracker.held_bytes == 0


def test_row_7_position_that_joins_on_needs_no_fetch() -> None:
    """D3, cursor 9: POSITION 9 12."""
    flow = Flow(Dialect.D3, 9)
    flow.live()
    flow.position(9, 12)
    assert flow.done == [Moved("s", MASTER, Cursor(12, 12))]


def test_row_8_stream_in_memory_that_went_back_begins_an_epoch() -> None:
    """D3, cursor 12, typing at 3: the new epoch fetches what there is and ends at 3."""
    flow = Flow(Dialect.D3, 12, stream="typing")
    flow.live()
    flow.position(3, 3)
    assert flow.all_of(Gap)
    assert flow.all_of(Fetch) == [Fetch("typing", MASTER, 0, 3)]
    flow.tracker.fetched("typing", MASTER, [(3, encode_row('["new"]'))], 3, limited=False)
    flow.take()
    assert flow.cursor() == Cursor(3, 3, epoch=2)
    assert flow.rows(epoch=2) == [(3, "new")]


def test_database_stream_that_went_back_in_d3_goes_on_in_an_epoch() -> None:
    """A real server gives the last tokens of account_data out again after a restart: which rows
    are new cannot be told, so all are fetched."""
    flow = Flow(Dialect.D3, 12, stream="account_data")
    flow.rdata(12, "dropped")
    flow.position(11, 11)
    assert [change.upto for change in flow.all_of(Gap)] == [11]  # type: ignore[union-attr]
    assert flow.all_of(Fetch) == [Fetch("account_data", MASTER, 0, 11)]
    flow.rdata(12, "another")
    flow.tracker.fetched("account_data", MASTER, [(11, encode_row('["again"]'))], 11, limited=False)
    flow.take()
    assert flow.rows(epoch=2) == [(11, "again"), (12, "another")]
    assert flow.cursor() == Cursor(12, 12, epoch=2)


def test_long_stream_that_went_back_is_not_fetched_from_the_beginning() -> None:
    """From D2 on nothing bounds what a server would send: the stream goes on where it stands."""
    for token in (SYNAPSE_ANEW_TOKENS, SYNAPSE_ANEW_TOKENS + 1):
        flow = Flow(Dialect.D3, 10**9)
        flow.position(token, token)
        fetches = token <= SYNAPSE_ANEW_TOKENS
        assert flow.all_of(Fetch) == ([Fetch("s", MASTER, 0, token)] if fetches else [])
        assert flow.cursor() == (Cursor(0, 0, 2) if fetches else Cursor(token, token, 2))
        (gap,) = flow.all_of(Gap)
        assert ("are missing" in gap.reason) != fetches  # type: ignore[union-attr]


def test_row_that_cannot_be_stored_is_left_out_of_its_unit() -> None:
    """Numbered, in a batch, alone; in every place: the unit has its token and a gap tells."""
    for dialect in (Dialect.D1, Dialect.D3):
        flow = Flow(dialect, 4)
        flow.live()
        flow.rdata(None, "a")
        flow.tracker.unreadable("s", MASTER, 5, "odd")
        flow.tracker.unreadable("s", MASTER, None, "odder")
        flow.rdata(6, "b")
        flow.tracker.unreadable("s", MASTER, 7, "alone")
        flow.rdata(8, "c")
        assert flow.rows() == [(5, "a"), (6, "b"), (8, "c")]
        assert flow.all_of(Gap) == [
            Gap("s", MASTER, 4, 5, "odd"),
            Gap("s", MASTER, 5, 6, "odder"),
            Gap("s", MASTER, 6, 7, "alone"),
        ]
        assert flow.cursor() == Cursor(8, 7 if dialect is Dialect.D1 else 8)
        assert flow.tracker.held_bytes == 0
    flow.tracker.unreadable("s", MASTER, 7, "old")
    flow.tracker.unreadable("unknown", MASTER, 7, "not followed")
    flow.take()
    assert len(flow.all_of(Gap)) == 3


def test_row_that_cannot_be_stored_in_a_catch_up_or_while_one_waits() -> None:
    """D1: among what is collected; D3: in the page, and in what waits for it."""
    asked = Flow(Dialect.D1, 4)
    asked.position(9)
    asked.rdata(5, "a")
    asked.tracker.unreadable("s", MASTER, 6, "odd")
    asked.tracker.unreadable("s", MASTER, 5, "odd")
    asked.position(9)
    assert asked.rows() == [(5, "a")]
    assert asked.all_of(Gap) == [Gap("s", MASTER, 5, 6, "odd"), Gap("s", MASTER, 4, 5, "odd")]
    assert asked.cursor() == Cursor(9, 9)
    waits = Flow(Dialect.D3, 4)
    waits.position(9, 9)
    waits.rdata(None, "b")
    waits.tracker.unreadable("s", MASTER, 10, "live")
    waits.rdata(11, "c")
    lost = [(8, "page"), (12, "not asked for")]
    waits.tracker.fetched("s", MASTER, [(7, encode_row('["p"]'))], 9, limited=False, lost=lost)
    waits.take()
    assert waits.rows() == [(7, "p"), (10, "b"), (11, "c")]
    assert waits.all_of(Gap) == [Gap("s", MASTER, 7, 8, "page"), Gap("s", MASTER, 9, 10, "live")]
    assert waits.tracker.held_bytes == 0


def test_row_9_position_that_spans_the_cursor_needs_no_fetch() -> None:
    """D3, cursor 10: POSITION 8 12."""
    flow = Flow(Dialect.D3, 10, stream="events")
    flow.position(8, 12)
    assert flow.all_of(Fetch) == []
    assert flow.cursor() == Cursor(12, 12)


def test_row_10_old_unit_is_dropped() -> None:
    """D3, cursor 4: a unit at 3, with its batch row."""
    flow = Flow(Dialect.D3, 4)
    flow.live()
    flow.rdata(None, "a")
    flow.rdata(3, "b")
    assert not flow.done


def test_row_11_position_throws_an_open_batch_away() -> None:
    """D3: a is dropped, the next unit is without it."""
    flow = Flow(Dialect.D3, 6)
    flow.live()
    flow.rdata(None, "a")
    flow.position(6, 7)
    flow.rdata(8, "b")
    assert flow.rows() == [(8, "b")]


def test_row_12_writers_do_not_share_a_batch() -> None:
    """D3: w1 batch a, w2 9 b, w1 10 c."""
    flow = Flow(Dialect.D3, None)
    flow.position(5, 5, instance="w1")
    flow.position(5, 5, instance="w2")
    flow.rdata(None, "a", "w1")
    flow.rdata(9, "b", "w2")
    flow.rdata(10, "c", "w1")
    assert flow.rows(instance="w2") == [(9, "b")]
    assert flow.rows(instance="w1") == [(10, "a"), (10, "c")]


def test_first_contact_begins_now_or_at_the_beginning() -> None:
    """D3 and D1, without a cursor."""
    for dialect in (Dialect.D1, Dialect.D3):
        now = Tracker({})
        now.connected(dialect)
        now.position("s", MASTER, 7, 7)
        assert now.take() == [Moved("s", MASTER, Cursor(7, 7))]
        everything = Tracker({}, start_all=True)
        everything.connected(dialect)
        everything.position("s", MASTER, 7, 7)
        wanted = Ask("s", 0) if dialect is Dialect.D1 else Fetch("s", MASTER, 0, 7)
        assert list(everything.take()) == [Moved("s", MASTER, Cursor(0, 0)), wanted]


def test_catch_up_out_of_order_is_stored_in_order() -> None:
    """D1: account_data came as 3, 2 from a real server."""
    flow = Flow(Dialect.D1, 0)
    flow.position(3)
    flow.rdata(3, "room")
    flow.rdata(2, "global")
    flow.position(3)
    assert [unit.token for unit in flow.all_of(Unit)] == [2, 3]


def test_row_that_came_live_before_its_catch_up_is_taken_once() -> None:
    """D1: live rows between the survey and our REPLICATE are repeated by the catch-up."""
    flow = Flow(Dialect.D1, 3)
    flow.position(5)
    flow.rdata(None, "x")
    flow.rdata(6, "y")
    for token, row in ((4, "a"), (5, "b"), (6, "x"), (6, "y")):
        flow.rdata(token, row)
    flow.position(6)
    assert flow.rows() == [(4, "a"), (5, "b"), (6, "x"), (6, "y")]
    assert flow.tracker.held_bytes == 0


def test_one_catch_up_at_a_time() -> None:
    """D1: the second stream is asked for when the first has its POSITION."""
    tracker = Tracker({("a", MASTER): Cursor(1, 1), ("b", MASTER): Cursor(1, 1)})
    tracker.connected(Dialect.D1)
    tracker.position("a", MASTER, 5, 5)
    tracker.position("b", MASTER, 5, 5)
    assert list(tracker.take()) == [Ask("a", 1)]
    assert not tracker.is_settled
    tracker.position("a", MASTER, 5, 5)
    assert Ask("b", 1) in tracker.take()
    tracker.position("b", MASTER, 5, 5)
    assert tracker.is_settled


def test_catch_up_refused_twice_goes_on_with_a_gap() -> None:
    """D1: a row that is too long wedges the stream; the third connection passes it by."""
    flow = Flow(Dialect.D1, 3)
    for _ in range(2):
        flow.tracker.connected(Dialect.D1)
        flow.position(9)
        assert flow.done[-1] == Ask("s", 3)
        flow.tracker.refused()
    flow.tracker.connected(Dialect.D1)
    flow.position(9)
    assert flow.done[-2:] == [
        Gap("s", MASTER, 3, 9, "the upstream refused 2 times to send it"),
        Moved("s", MASTER, Cursor(9, 9)),
    ]
    flow.rdata(10, "on")
    assert flow.rows() == [(10, "on")]


def test_pages_are_fetched_until_the_end() -> None:
    """A limited answer leads to the next request, one that does not move is a gap."""
    flow = Flow(Dialect.D3, 0)
    flow.position(200, 200)
    flow.tracker.fetched("s", MASTER, [(90, encode_row("[1]"))], 100, limited=True)
    flow.take()
    assert flow.done[-1] == Fetch("s", MASTER, 100, 200)
    flow.tracker.fetched("s", MASTER, [], 100, limited=True)
    flow.take()
    reason = "the rows after 100 were answered up to 100 only"
    assert flow.done[-2:] == [
        Gap("s", MASTER, 100, 200, reason),
        Moved("s", MASTER, Cursor(200, 200)),
    ]


def test_fetch_that_leads_nowhere_leaves_a_gap() -> None:
    """The stream goes on at the position, and the gap is told."""
    flow = Flow(Dialect.D3, 4)
    flow.position(9, 9)
    flow.rdata(10, "a")
    flow.tracker.not_fetched("s", MASTER, "no address")
    flow.take()
    assert flow.all_of(Gap) == [Gap("s", MASTER, 4, 9, "no address")]
    assert flow.rows() == [(10, "a")]


def test_dialect_that_became_newer_resumes_before_the_last_unit() -> None:
    """A D1 cursor in D3: the last unit may not have been whole, so it is fetched again."""
    flow = Flow(Dialect.D3, 8, 6)
    flow.position(8, 8)
    assert flow.all_of(Fetch) == [Fetch("s", MASTER, 6, 8)]


def test_too_much_held_back_is_refused() -> None:
    """A unit that never ends, and a flood of names."""
    tracker = Tracker({("s", MASTER): Cursor(0, 0)}, limit_bytes=1000)
    tracker.connected(Dialect.D3)
    tracker.position("s", MASTER, 0, 0)
    for _ in range(13):
        tracker.rdata("s", MASTER, None, b"x" * 50)
    with pytest.raises(LimitExceeded):
        tracker.rdata("s", MASTER, None, b"x" * 50)
    tracker.position("n" * 256, MASTER, 0, 0)
    tracker.position("n", "i" * 256, 0, 0)
    tracker.take()
    tracker.rdata(
        "n" * 256, MASTER, 1, b"x"
    )  # no stream is called so: it and its rows are not kept
    tracker.rdata("n", "i" * 256, 1, b"x")
    assert not tracker.take()
    assert tracker.cursors.keys() == {("s", MASTER)}
    for number in range(4095):
        tracker.position(f"s{number}", MASTER, 0, 0)
    with pytest.raises(LimitExceeded):
        tracker.position("one more", MASTER, 0, 0)


def test_when_a_source_has_caught_up(tmp_path: Path) -> None:
    """Once: it waits for 5 s for a first stream, then says that there is none; what is behind is
    waited for; all streams that are known here, then a second of silence, or the 5 s."""
    with logweir.open(tmp_path) as log:
        url = parse_url("synapse://127.0.0.1:1")
        for once in (False, True):
            source = SynapseSource(url, log, once=once)
            nobody = source._tracker = Tracker({})
            nobody.connected(Dialect.D2)
            assert not source.has_caught_up(nobody, 104.9, 100.0, 100.0)
            if once:
                with pytest.raises(Unreachable, match="no stream can be followed"):
                    source.has_caught_up(nobody, 105.0, 100.0, 100.0)
            else:
                assert not source.has_caught_up(nobody, 105.0, 100.0, 100.0)
            behind, two = (
                Tracker({("a", MASTER): Cursor(1, 1), ("b", MASTER): Cursor(1, 1)})
                for _ in range(2)
            )
            for tracker, at in ((behind, 9), (two, 1)):
                tracker.connected(Dialect.D2)
                tracker.position("a", MASTER, at, at)
            assert not source.has_caught_up(behind, 105.0, 100.0, 100.0)
            assert not source.has_caught_up(two, 104.9, 100.0, 100.0)
            assert source.has_caught_up(two, 105.0, 100.0, 105.0)
            two.position("b", MASTER, 1, 1)
            assert source.has_caught_up(two, 102.0, 100.0, 102.0) is not once
            assert source.has_caught_up(two, 103.0, 100.0, 102.0)
