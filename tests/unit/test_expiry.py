"""Tuples that expire: what is read of them, and what is deleted, by the clock."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.waiting import until

import logweir
from logweir.errors import RequestError
from logweir.limits import EXPIRY_BATCH_TUPLES
from logweir.store.expiry import EXPIRY_SPACE
from logweir.testing.clock import SimClock
from logweir.wal.xrow import RowType

NOW = 1_795_000_000
FORMAT = [("id", "unsigned"), {"name": "till", "type": "unsigned", "is_nullable": True}]


@pytest.fixture
def clock() -> SimClock:
    """A clock that stands still."""
    return SimClock(NOW)


@pytest.fixture
def log(tmp_path: Path, clock: SimClock) -> Iterator[logweir.Log]:
    """A store with tuples that expire at NOW + 10, + 20, … and some that never do."""
    with logweir.open(tmp_path / "store", clock=clock) as log:
        make(log)
        log.inner.sweeper.close()  # what is deleted, and when, is the test's to say
        yield log


def make(log: logweir.Log, *, seconds: int = 0) -> None:
    """See `log`."""
    log.create_space("s", FORMAT)
    log.create_index("s", "till", {"parts": ["till"], "unique": False})
    log.set_expiry("s", "till", seconds=seconds)
    log.append("s", [(1, NOW + 10), (2, NOW + 20), (3, NOW + 30), (4, None), (5,)])


def ids(rows: list[tuple[Any, ...]]) -> list[Any]:
    """The first fields."""
    return [row[0] for row in rows]


def test_what_has_expired_is_not_read(log: logweir.Log, clock: SimClock) -> None:
    """By no read: not by key, in order, by another index, counted, in a view or a transaction."""
    assert (ids(log.select("s")), log.count("s")) == ([1, 2, 3, 4, 5], 5)
    clock.advance(20)
    assert log.get("s", 2) is None
    assert log.get("s", 3) == (3, NOW + 30)
    assert ids(log.select("s")) == [3, 4, 5]
    assert ids(log.select("s", iterator="LT", key=4)) == [3]
    assert ids(log.select("s", limit=1, offset=1)) == [4]
    assert ids(log.select("s", index="till", limit=2)) == [4, 5]
    assert log.count("s") == 3
    with log.read_view() as view:
        assert (view.get("s", 1), ids(view.select("s")), view.count("s")) == (None, [3, 4, 5], 3)
    with log.transaction() as tx:
        assert (tx.get("s", 1), tx.get("s", 4), ids(tx.select("s"))) == (None, (4, None), [3, 4, 5])
    assert log.delete_expired() == 2
    assert (ids(log.select("s")), log.count("s")) == ([3, 4, 5], 3)
    log.insert("s", (1, NOW + 100))
    assert log.get("s", 1) == (1, NOW + 100)


def test_it_is_deleted_by_rows_of_the_log(log: logweir.Log, clock: SimClock) -> None:
    """DELETEs, in transactions of bounded size; the history tells them."""
    log.append("s", [(number, NOW + 1) for number in range(1000, 1600)])
    before = log.vclock
    clock.advance(10)
    assert log.delete_expired() == 601
    found = list(log.rows(before))
    assert [len(one.rows) for one in found] == [EXPIRY_BATCH_TUPLES, EXPIRY_BATCH_TUPLES, 89]
    assert {row.type for one in found for row in one.rows} == {RowType.DELETE}
    assert [one.type_name for one in log.history("s", 1)][-1] == "DELETE"
    assert log.delete_expired() == 0


def test_reads_know_at_once_what_expires(log: logweir.Log, clock: SimClock) -> None:
    """From the moment that it was said, and only while it holds; other spaces are as they were."""
    log.create_space("other", FORMAT)
    log.create_index("other", "till", {"parts": ["till"], "unique": False})
    log.insert("other", (1, NOW - 1))
    assert (log.get("other", 1), log.count("other")) == ((1, NOW - 1), 1)
    log.set_expiry("other", "till")
    assert (log.get("other", 1), log.count("other"), log.select("other")) == (None, 0, [])
    log.set_expiry("other", None)
    assert (log.get("other", 1), log.count("other")) == ((1, NOW - 1), 1)
    clock.advance(10)
    assert log.get("s", 1) is None


def test_a_clock_that_jumps(log: logweir.Log, clock: SimClock) -> None:
    """Ahead: what is over by then goes. Back: what is there and not deleted is read again."""
    clock.advance(25)
    assert ids(log.select("s")) == [3, 4, 5]
    clock.advance(-25)
    assert ids(log.select("s")) == [1, 2, 3, 4, 5]
    assert log.delete_expired() == 0
    clock.now = 0
    assert (log.delete_expired(), log.count("s")) == (0, 5)
    clock.now = 2**40
    assert (log.delete_expired(), ids(log.select("s"))) == (3, [4, 5])


def test_seconds_after_a_time(tmp_path: Path, clock: SimClock) -> None:
    """What is in the field may be when it was made."""
    with logweir.open(tmp_path / "s", clock=clock) as log:
        make(log, seconds=100)
        clock.advance(109)
        assert ids(log.select("s")) == [1, 2, 3, 4, 5]
        clock.advance(1)
        assert ids(log.select("s")) == [2, 3, 4, 5]
        assert log.delete_expired() == 1
        clock.now = 50  # less than the seconds
        assert log.delete_expired() == 0


def test_seconds_after_a_time_with_parts(tmp_path: Path, clock: SimClock) -> None:
    """What is not over yet stands before what is, and hides it from nobody."""
    with logweir.open(tmp_path / "s", "write", clock=clock) as log:
        log.create_space("s", [("id", "unsigned"), ("till", "double")])
        log.create_index("s", "till", {"parts": ["till"], "unique": False})
        log.set_expiry("s", "till", seconds=100)
        log.inner.sweeper.close()
        log.append("s", [(1, NOW - 150.5), (2, NOW - 50.5), (3, NOW + 50.5)])
        clock.now = NOW + 0.25
        assert log.delete_expired() == 1
        assert ids(log.select("s")) == [2, 3]
        clock.now = NOW + 50  # in whole seconds, as the clock of a program may tell them
        assert log.delete_expired() == 1
        assert ids(log.select("s")) == [3]


def test_the_thread_deletes_and_begins_again_with_the_store(tmp_path: Path) -> None:
    """Without anybody asking; also in a store that is opened again, and not after it was ended."""
    clock = SimClock(NOW)
    with logweir.open(tmp_path / "s", clock=clock) as log:
        make(log)
        clock.advance(10)
        start = log.inner.commits
        until(lambda: log.inner.commits > start)
        assert [one.type_name for one in log.history("s", 1)][-1] == "DELETE"
    with logweir.open(tmp_path / "s", clock=clock) as log:
        clock.advance(10)
        start = log.inner.commits
        until(lambda: log.inner.commits > start)
        assert [one.type_name for one in log.history("s", 2)][-1] == "DELETE"
        log.set_expiry("s", None)
        clock.advance(1000)
        assert (log.delete_expired(), ids(log.select("s"))) == (0, [3, 4, 5])


def test_another_instance_does_not_delete(log: logweir.Log, clock: SimClock) -> None:
    """A copy is told by the rows of who does; it does not read what has expired either."""
    row = log.get(EXPIRY_SPACE, log.schema.space("s").id)
    assert row is not None
    log.replace(EXPIRY_SPACE, (*row[:4], "of somebody else"))
    clock.advance(10)
    assert log.delete_expired() == 0
    assert log.get("s", 1) is None


def test_another_space_with_the_id_does_not_expire(log: logweir.Log, clock: SimClock) -> None:
    """What was said of a space that is dropped or renamed holds for no other."""
    space_id = log.schema.space("s").id
    log.drop_space("s")
    log.create_space("t", FORMAT, id=space_id)
    log.create_index("t", "till", {"parts": ["till"], "unique": False})
    log.insert("t", (1, NOW - 1))
    assert (log.get("t", 1), log.delete_expired()) == ((1, NOW - 1), 0)


def test_what_cannot_be_is_refused(log: logweir.Log, clock: SimClock) -> None:
    """No such space or field, no index in its order, no seconds; an index that goes stops it."""
    log.create_space("none", [("id", "unsigned"), ("text", "string")])
    for space, field, seconds in (
        ("nowhere", "till", 0),
        ("s", "missing", 0),
        ("s", 7, 0),
        ("s", True, 0),
        ("none", "text", 0),
        ("s", "till", -1),
        ("s", "till", 1.5),
    ):
        with pytest.raises(RequestError):
            log.set_expiry(space, field, seconds=seconds)  # type: ignore[arg-type]
    log.drop_index("s", "till")
    clock.advance(10)
    with pytest.raises(RequestError, match="begins with the number in field 'till'"):
        log.delete_expired()
    assert log.get("s", 1) is None


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["unsigned", "integer", "number", "double", "decimal"]),
    whole=st.lists(st.integers(NOW - 5, NOW + 5), max_size=8),
    parts=st.lists(st.floats(-3, 3), max_size=8),
    now=st.floats(NOW - 6, NOW + 6),
    seconds=st.integers(0, 3),
)
def test_reads_and_deletes_agree(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    whole: list[int],
    parts: list[float],
    now: float,
    seconds: int,
) -> None:
    """For every type of time: what is read is what is left, and that is what is not over."""
    clock = SimClock(NOW - 100)
    times: list[Any] = list(whole)
    if kind in ("number", "double"):
        times = [*map(float, whole), *(NOW + part for part in parts)]
    elif kind == "decimal":
        times = [Decimal(one) for one in whole] + [Decimal(f"{NOW + part:.3f}") for part in parts]
    times.append(None)
    field = {"name": "till", "type": kind, "is_nullable": True}
    with logweir.open(tmp_path_factory.mktemp("s") / "s", "write", clock=clock) as log:
        log.create_space("s", [("id", "unsigned"), field])
        log.create_index("s", "till", {"parts": ["till"], "unique": False})
        log.set_expiry("s", "till", seconds=seconds)
        log.inner.sweeper.close()
        log.append("s", list(enumerate(times)))
        clock.now = now
        wanted = [
            (at, time) for at, time in enumerate(times) if time is None or time + seconds > now
        ]
        assert log.select("s") == wanted
        assert log.count("s") == len(wanted)
        assert log.delete_expired() == len(times) - len(wanted)
        assert log.select("s") == wanted
