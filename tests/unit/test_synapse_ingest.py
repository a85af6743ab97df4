"""Changes of an upstream in a real store: one transaction per unit, once each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import logweir
from interop.synapsemodel import lines_of, wire, wire_rows
from logweir.errors import SourceStopped
from logweir.replication.stream import positions
from logweir.replication.synapse.client_session import ClientSession, Greeted
from logweir.replication.synapse.follow.cursors import Tracker
from logweir.replication.synapse.follow.ingest import Intake
from logweir.replication.synapse.wire.codec import Dialect, encode_row
from logweir.replication.synapse.wire.units import Change, Cursor, Gap, Unit
from logweir.store import Log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A fresh store."""
    with logweir.open(tmp_path / "data") as opened:
        yield opened


def unit(token: int, *rows: str, cursor: Cursor | None = None, more: bool = False) -> Unit:
    """A unit of stream `s`."""
    packed = [encode_row(f'["{row}"]') for row in rows]
    return Unit("s", "master", 1, token, packed, more, cursor or Cursor(token, token))


def stored(log: Log, space: str = "synapse_s") -> list[tuple[object, ...]]:
    """What is in a stream's space."""
    return [tuple(row) for row in log.select(space)]


def transactions(log: Log) -> list[int]:
    """Rows per transaction of the log, definitions left out."""
    return [len(one.rows) for one in log.rows() if one.rows[0].space_id >= 512]


def test_unit_is_one_transaction_with_its_position(log: Log) -> None:
    """Rows and position stand and fall together."""
    intake = Intake(log, "logweir.test", clock=lambda: 1.5)
    assert intake.store([unit(8, "a", "b", cursor=Cursor(8, 5))]) == 2
    assert stored(log) == [("master", 8, 0, ["a"]), ("master", 8, 1, ["b"])]
    assert transactions(log) == [3]
    assert log.select(positions.POSITION_SPACE) == [
        ("synapse:logweir.test", "s", "master", {"last": 8, "resume": 5}, 1500)
    ]
    assert Intake(log, "logweir.test").cursors() == {("s", "master"): Cursor(8, 5)}


def test_units_of_one_batch_are_transactions_of_their_own(log: Log) -> None:
    """The position follows with the last one."""
    Intake(log, "x").store([unit(1, "a"), unit(2, "b", "c"), unit(3, "d")])
    assert transactions(log) == [1, 2, 2]


def test_many_single_rows_are_transactions_of_their_own(log: Log) -> None:
    """The bulk way gives what the slow way gives."""
    intake = Intake(log, "x")
    changes: list[Change] = [unit(token, f"r{token}") for token in range(1, 301)]
    changes.insert(200, unit(2**40, "x", "y"))
    del changes[201:]
    assert intake.store(changes) == 202
    assert transactions(log) == [1] * 200 + [3]
    assert [row[1] for row in stored(log)] == [*range(1, 201), 2**40, 2**40]
    assert intake.store(changes) == 202
    assert transactions(log) == [1] * 200 + [3, 1]


def test_unit_that_comes_again_is_left_alone_completed_or_replaced(log: Log) -> None:
    """Equal rows cost nothing, missing ones are added, others replace the unit."""
    intake = Intake(log, "x")
    intake.store([unit(8, "a", "b")])
    before = log.vclock.signature
    intake.store([unit(8, "a", "b")])
    assert log.vclock.signature == before + 1
    intake.store([unit(8, "a", "b", "c")])
    assert [row[3] for row in stored(log)] == [["a"], ["b"], ["c"]]
    assert log.vclock.signature == before + 3
    intake.store([unit(8, "c", "a")])
    assert stored(log) == [("master", 8, 0, ["c"]), ("master", 8, 1, ["a"])]


def test_more_rows_of_a_unit_go_behind_it(log: Log) -> None:
    """Also when the first part was stored by another process."""
    Intake(log, "x").store([unit(8, "a")])
    Intake(log, "x").store([unit(8, "b", "c", more=True)])
    assert [row[2:] for row in stored(log)] == [(0, ["a"]), (1, ["b"]), (2, ["c"])]


def test_epochs_do_not_meet(log: Log) -> None:
    """A token that comes again in the next epoch is another row."""
    intake = Intake(log, "x")
    intake.store([unit(3, "old")])
    renewed = unit(3, "new", cursor=Cursor(3, 3, 2))
    renewed.epoch = 2
    intake.store([renewed])
    assert stored(log) == [("master", 3, 0, ["old"]), ("master#2", 3, 0, ["new"])]
    assert Intake(log, "x").cursors() == {("s", "master"): Cursor(3, 3, 2)}


def test_gaps_are_kept(log: Log) -> None:
    """They are there for the operator."""
    Intake(log, "x", clock=lambda: 2.0).store([Gap("s", "master", 40, 31, "behind")])
    assert positions.gaps(log) == [
        positions.Gap("synapse:x", "s", "master", 32, 40, "behind", 2000)
    ]


def test_stream_that_an_earlier_version_stopped_goes_on_in_the_next_epoch(log: Log) -> None:
    """Its position says that the tokens had gone back; all that there is now is to be asked for."""
    Intake(log, "x")
    tokens = {"last": 40, "resume": 39, "stopped": "the upstream is behind us: it stands at 31"}
    log.insert(positions.POSITION_SPACE, ["synapse:x", "s", "master", tokens, 0])
    assert Intake(log, "x").cursors() == {("s", "master"): Cursor(0, 0, 2)}


def test_negative_tokens_and_odd_names_are_stored(log: Log) -> None:
    """Names from the network are escaped in names of spaces."""
    odd = unit(-5, "a")
    odd.stream = "a/b\u00e9"
    Intake(log, "x", name="second").store([odd])
    assert stored(log, "synapse_second_a%2Fb%C3%A9") == [("master", -5, 0, ["a"])]


def test_second_server_needs_a_name_of_its_own(log: Log) -> None:
    """Two upstreams must not fill the same spaces."""
    Intake(log, "one.test").store([unit(1, "a")])
    with pytest.raises(SourceStopped, match="name="):
        Intake(log, "two.test")
    Intake(log, "two.test", name="two").store([unit(1, "b")])
    assert stored(log) == [("master", 1, 0, ["a"])]
    assert stored(log, "synapse_two_s") == [("master", 1, 0, ["b"])]


@pytest.mark.parametrize(("name", "dialect"), [("D1/live", Dialect.D1), ("D3/live", Dialect.D3)])
def test_recording_in_any_portions_with_restarts_is_stored_once(
    log: Log, name: str, dialect: Dialect
) -> None:
    """A real conversation, cut anywhere, each portion stored by a new process."""
    lines = lines_of(name, "S")
    first = next(i for i, line in enumerate(lines) if line.startswith("POSITION"))
    data = b"".join(map(wire, lines))
    chance = random.Random(5)
    session = ClientSession(0.0, milliseconds=lambda: 0)
    tracker = Tracker({})
    greeting = data.index(b"\n", data.index(b"PING")) + 1
    session.receive_data(data[:greeting], 0.0)
    session.begin(tracker, 0.0)
    data = data[greeting:]
    while data:
        size = chance.randint(1, 3000)
        part, data = data[:size], data[size:]
        events = session.receive_data(part, 0.0)
        changes = [event for event in events if not isinstance(event, Greeted)]
        Intake(log, "logweir.test").store(changes)
        Intake(log, "logweir.test").store(changes[-3:])
    expected = wire_rows(lines[first:], dialect)
    for stream, rows in expected.items():
        found = [(row[1], row[3]) for row in log.select(f"synapse_{stream}")]
        assert found == rows
    assert Intake(log, "logweir.test").cursors() == tracker.cursors
