"""The store as it was, against what it answered then; and a Tarantool's folder against snapshots
that it wrote itself."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from property.test_key_history import STEPS, Told
from property.test_settled_rows import commit
from property.test_synchronous_rows import decision, prepared, replace_row
from samples import sample
from support.icu import needs_icu

import logweir
from logweir.errors import ChainGap, PositionUnavailable, RecoveryRefused, RequestError
from logweir.store.past import as_of
from logweir.store.schema.definition import SYSTEM_ID_MAX
from logweir.testing.forking import error_of, in_child
from logweir.wal.mp import pack
from logweir.wal.reader import read_meta
from logweir.wal.snapshot import read_snapshot
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where states are made."""
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def store(tmp_path: Path) -> Iterator[logweir.Log]:
    """A store with a space of things."""
    with logweir.open(tmp_path / "store", "write", checkpoint_count=1, wal_max_size=500) as log:
        log.create_space("things", format=[("id", "unsigned"), ("text", "string")])
        yield log


def content(log: Any) -> list[Any]:
    """All things by either index, and the fields that they have."""
    fields = [field.name for field in log.schema.space("things").fields]
    rows = log.select("things"), log.select("things", iterator="GE", key="0", index="text")
    return [fields, *rows, log.count("things"), *(log.get("things", row[0]) for row in rows[0])]


@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate,),
)
@given(STEPS)
def test_every_transaction_left_what_the_store_said_then(steps: list[tuple[str, int, int]]) -> None:
    """Tuples by primary and other keys, and definitions, after each transaction that a snapshot is
    left for, across logs, snapshots and reopenings."""
    with tempfile.TemporaryDirectory() as folder:
        told = Told(Path(folder))
        known = {told.log.vclock: content(told.log)}
        for what, key, value in steps:
            told.do(what, key, value)
            known[told.log.vclock] = content(told.log)
        log = told.log
        oldest = next(log.history("things", 0)).vclock
        for vclock in [*known][:: 1 + len(known) // 12]:
            if not vclock.covers(oldest):
                with pytest.raises(PositionUnavailable), log.as_of(vclock=vclock):
                    pass
                continue
            with log.as_of(vclock=vclock) as view:
                assert (view.vclock, content(view)) == (vclock, known[vclock])
        log.close()


@pytest.mark.parametrize(
    "name", [pytest.param("02-spaces", marks=needs_icu), "03-replicaset/instance-1", "04-crashed"]
)
def test_a_tarantool_folder_is_what_its_own_snapshot_says(name: str, tmp_path: Path) -> None:
    """Without that snapshot: from the first one and the logs alone."""
    folder = tmp_path / "copy"
    shutil.copytree(sample(name).folder, folder)
    newest = max(folder.glob("*.snap"))
    wanted: dict[int, list[bytes]] = {}
    for block in read_snapshot(newest.rename(tmp_path / newest.name)):
        for row, space_id in enumerate(block.columns.space_id):
            if space_id > SYSTEM_ID_MAX:
                wanted.setdefault(space_id, []).append(block.columns.tuple_bytes(row) or b"")
    vclock = read_meta(tmp_path / newest.name).vclock
    with as_of(folder, vclock) as view:
        assert view.vclock == vclock
        found = {
            space.id: [pack(list(row)) for row in view.select(space.id)]
            for space in view.schema
            if not space.is_system and space.primary is not None and not space.is_view
        }
    assert wanted
    assert {number: sorted(rows) for number, rows in found.items() if rows} == {
        number: sorted(rows) for number, rows in wanted.items()
    }


def test_inside_a_transaction_it_is_what_was_before(store: logweir.Log) -> None:
    """Nobody ever saw a half of one."""
    before = store.vclock
    with store.transaction() as tx:
        tx.insert("things", (1, "a"))
        tx.insert("things", (2, "b"))
    half = before.with_lsn(1, before.lsn(1) + 1)
    with store.as_of(vclock=half) as view:
        assert (view.vclock, view.count("things")) == (before, 0)
    with store.as_of(vclock=store.vclock) as view:
        assert view.count("things") == 2


def test_a_time_is_what_was_there_then(tmp_path: Path) -> None:
    """What was changed at that time included; until something else comes it stays so; not before
    the logs begin, and not in the time to come. Aware datetimes are times, too."""
    now = [1000.0]
    options: dict[str, Any] = {"checkpoint_count": 1, "checkpoint_interval": 0}
    with logweir.open(tmp_path / "store", "write", clock=lambda: now[0], **options) as log:
        log.create_space("things", format=[("id", "unsigned")])
        for number in range(1, 4):
            now[0] = 1000.0 + 10 * number
            log.insert("things", (number,))
        now[0] = 1050.0
        for time, count in ((1010.0, 1), (1019.9, 1), (1020.0, 2), (1031, 3), (1050.0, 3)):
            for at in (time, datetime.fromtimestamp(time, UTC)):
                with log.as_of(time=at) as view:
                    assert view.count("things") == count
        end = log.vclock.with_lsn(1, log.vclock.lsn(1) - 1)
        with as_of(log.path, 1050.0, end=end, now=now[0]) as view:
            assert (view.vclock, view.count("things")) == (end, 2)  # as far as acknowledged
        log.snapshot()
        now[0] = 1060.0
        log.insert("things", (4,))
        min(log.path.glob("*.xlog")).unlink()  # what was before 1060 is known no more
        for time in (1055.0, 1061.0):
            with pytest.raises(PositionUnavailable) as caught, log.as_of(time=time):
                pass
            assert (caught.value.oldest, caught.value.newest) == (1060.0, 1060.0)


def test_a_place_that_is_not_there_is_refused_with_the_range(store: logweir.Log) -> None:
    """Before the snapshot, behind the end, and what names no place or two."""
    early = store.vclock
    store.insert("things", (1, "a"))
    store.snapshot()
    oldest = store.vclock
    store.insert("things", (2, "a"))
    for wanted in (early, store.vclock.with_lsn(1, 10_000), VClock({9: 1})):
        with pytest.raises(PositionUnavailable) as caught, store.as_of(vclock=wanted):
            pass
        assert (caught.value.oldest, caught.value.newest) == (oldest, store.vclock)
    named: tuple[dict[str, Any], ...] = ({}, {"vclock": early, "time": 1.0}, {"vclock": {1: -1}})
    times = ("2026-11-30T14:30:00Z", datetime(2026, 11, 30), date(2026, 11, 30), True)
    for arguments in (*named, *({"time": one} for one in times)):
        with pytest.raises(RequestError):
            store.as_of(**arguments)


def test_writers_and_collection_leave_a_view_as_it_is(store: logweir.Log, scratch: Path) -> None:
    """It is a state of its own, and nothing of it stays; also where its user fails."""
    store.insert("things", (1, "a"))
    with store.as_of(vclock=store.vclock) as view:
        files = set(store.path.iterdir())
        for number in range(2, 30):
            store.insert("things", (number, "more"))
        store.snapshot()
        assert files - set(store.path.iterdir())  # what it was made of is gone
        assert view.select("things") == [(1, "a")]
        assert list(scratch.iterdir())
    assert list(scratch.iterdir()) == []
    with pytest.raises(RequestError), store.as_of(vclock=store.vclock) as view:
        view.select("none")
    assert list(scratch.iterdir()) == []
    with store.read_view() as now:
        assert now.count("things") == 29
    for over in (view, now):
        for read in (over.select, over.count):
            with pytest.raises(RequestError, match="the view has ended"):
                read("things")
    with pytest.raises(RequestError, match="the view has ended"):
        list(now.tuples(now.schema.space("things")))


def test_what_a_killed_process_leaves_does_not_matter(store: logweir.Log, scratch: Path) -> None:
    """A child of fork that ends in the middle: its folder is in nobody's way, and what its parent
    has open is its parent's."""
    store.insert("things", (1, "a"))
    at = store.vclock

    def end_inside() -> None:
        with as_of(store.path, at) as view:
            os._exit(0 if view.count("things") == 1 else 7)

    with store.as_of(vclock=at) as view:
        assert in_child(lambda: error_of(lambda: view.get("things", 1))) == "UsedAfterFork"
        assert in_child(end_inside) == ""
        assert view.get("things", 1) == (1, "a")
    assert len(list(scratch.iterdir())) == 1
    with store.as_of(vclock=at) as view:
        assert view.select("things") == [(1, "a")]


def test_rows_that_are_missing_are_not_passed_over(store: logweir.Log) -> None:
    """A hole in front of the place is an error; behind it, it does not matter."""
    known = []
    for number in range(40):
        store.insert("things", (number, "text"))
        known.append(store.vclock)
    store.close()
    logs = sorted(store.path.glob("*.xlog"))
    logs[len(logs) // 2].unlink()
    with as_of(store.path, known[0]) as view:
        assert view.select("things") == [(0, "text")]
    with pytest.raises((ChainGap, RecoveryRefused)), as_of(store.path, known[-1]):
        pass


def test_what_waited_then_is_not_seen(tmp_path: Path) -> None:
    """A change that had no CONFIRM at that place; it is seen as of the CONFIRM."""
    prepared(tmp_path / "store")
    with logweir.open(tmp_path / "store", "write") as log:
        commit(log, [replace_row(1, "s", 1)])
        waiting = log.vclock
        commit(log, [decision(RowType.CONFIRM, 2, 1)])
        for vclock, found in ((waiting, []), (log.vclock, [(1, 1)])):
            with log.as_of(vclock=vclock) as view:
                assert view.select("s") == found
