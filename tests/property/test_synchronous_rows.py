"""Rows of synchronous spaces against a model: any history, any kill, one state."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import logweir
from logweir.errors import ErrorCode, LimitExceeded, RequestError
from logweir.store.commit import group
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.engine.synchro import encode_decision
from logweir.store.log import Log
from logweir.wal.columns import RowColumns
from logweir.wal.mp import pack
from logweir.wal.xrow import Row, RowType, encode_row

OWNER, OTHER = 5, 6
SPACES = {"s": 600, "a": 601}
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["s", "a"]), st.integers(0, 5)),
        st.tuples(st.just("confirm"), st.integers(0, 6)),
        st.tuples(st.just("rollback"), st.integers(0, 6)),
        st.tuples(st.just("all"), st.just(0)),  # a ROLLBACK that names no lsn
        st.tuples(st.sampled_from(["kill", "close", "rebuild", "snapshot"]), st.just(0)),
    ),
    max_size=40,
)


class Model:
    """What Tarantool's queue does, in the plainest words."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, int]] = {"s": {}, "a": {}}
        self.queue: list[tuple[int, str, int]] = []  # lsn, space, key

    def insert(self, lsn: int, space: str, key: int) -> None:
        if self.queue or space == "s":
            self.queue.append((lsn, space, key))
        else:
            self.rows[space][key] = lsn

    def confirm(self, upto: int) -> None:
        while self.queue and (self.queue[0][1] == "a" or self.queue[0][0] <= upto):
            lsn, space, key = self.queue.pop(0)
            self.rows[space][key] = lsn

    def rollback(self, since: int) -> None:
        self.queue = [entry for entry in self.queue if entry[0] < since]


def feed(log: Log, row: Row) -> None:
    columns = RowColumns.scan(encode_row(row))
    log.inner.run_job(Job(lambda group: group.add_transaction(columns, 0, 1), 100))


def replace_row(lsn: int, space: str, key: int, origin: int = OWNER) -> Row:
    body = pack({0x10: SPACES[space], 0x21: [key, lsn]})
    return Row(RowType.REPLACE, origin, lsn, 1.5, tsn=lsn, body=body)


def decision(kind: RowType, lsn: int, about: int, owner: int = OWNER) -> Row:
    return Row(kind, owner, lsn, 1.5, tsn=lsn, body=encode_decision(owner, about % 2**64))


def prepared(folder: Path) -> None:
    with logweir.open(folder) as log:
        for name, number in SPACES.items():
            options = {"is_sync": True} if name == "s" else {}
            log.insert("_space", (number, 1, name, "memtx", 0, options, []))
            log.insert("_index", (number, 0, "p", "tree", {"unique": True}, [[0, "unsigned"]]))


def check(log: Log, model: Model, lsn: int) -> None:
    assert log.waiting == len(model.queue)
    assert log.vclock.lsn(OWNER) == lsn
    for name, rows in model.rows.items():
        assert {row[0]: row[1] for row in log.select(name)} == rows


@example([("s", 0), ("a", 0), ("close", 0), ("s", 1), ("kill", 0), ("confirm", 0)], False)
@example([("s", 0), ("a", 0), ("rebuild", 0), ("s", 1), ("snapshot", 0), ("rollback", 0)], True)
@example([("s", 0), ("s", 1), ("s", 1), ("confirm", 0), ("s", 0), ("s", 2)], True)
@example([("s", 0), ("s", 1), ("a", 2)], False)
@settings(max_examples=40, deadline=None)
@given(steps, st.booleans())
def test_any_history_gives_the_model(history: list[tuple[str, int]], confirms: bool) -> None:
    """What waits is not seen, what is undone never was, whenever the process dies, and whether the
    state is kept or made anew from the log and its snapshots."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "d"
        prepared(folder)
        model, lsn = Model(), 0
        log = logweir.open(folder, durability="write", checkpoint_count=1)
        try:
            for what, number in history:
                if what in SPACES:
                    lsn += 1
                    feed(log, replace_row(lsn, what, number))
                    model.insert(lsn, what, number)
                elif what in ("confirm", "rollback", "all"):
                    about = -1 if what == "all" else max(lsn - number, 0)
                    waits = [entry[0] for entry in model.queue if entry[1] == "s"]
                    if what == "rollback":  # it names a row that waits
                        about = next((one for one in waits if one >= about), 2**40)
                    kind = RowType.CONFIRM if what == "confirm" else RowType.ROLLBACK
                    lsn += 1
                    feed(log, decision(kind, lsn, about))
                    model.confirm(about) if what == "confirm" else model.rollback(about)
                elif what == "snapshot":
                    log.snapshot()
                else:
                    log.close() if what == "close" else log.inner.abandon()
                    if what == "rebuild":
                        shutil.rmtree(folder / "state")
                    log = logweir.open(folder, durability="write", checkpoint_count=1)
                check(log, model, lsn)
            if model.queue:
                with pytest.raises(RequestError) as refused:
                    log.replace("a", (99, 0))
                assert refused.value.code == ErrorCode.UNCOMMITTED_FOREIGN_SYNC_TXNS
                assert log.end_waiting(confirm=confirms) == len(model.queue)
                model.confirm(lsn) if confirms else model.rollback(0)
            log.replace("s", (99, 0))
            assert log.waiting == 0
            model.rows["s"][99] = 0
        finally:
            log.close()
        for made_anew in (False, True):
            if made_anew:
                shutil.rmtree(folder / "state")
            with logweir.open(folder) as log:
                check(log, model, lsn)


def test_transaction_that_cannot_be_applied_is_not_logged(tmp_path: Path) -> None:
    """It is tried behind what waits, when it comes: the log never holds one that stops it."""
    prepared(tmp_path / "d")
    with logweir.open(tmp_path / "d") as log:
        body = pack({0x10: 600, 0x21: [1, "first"]})
        feed(log, Row(RowType.INSERT, OWNER, 1, 1.5, tsn=1, body=body))
        for space, key in ((600, 1), (700, 2)):
            bad = pack({0x10: space, 0x21: [key, "second"]})
            with pytest.raises(RequestError):
                feed(log, Row(RowType.INSERT, OWNER, 2, 1.5, tsn=2, body=bad))
        assert (log.waiting, log.vclock.lsn(OWNER)) == (1, 1)
        feed(log, decision(RowType.CONFIRM, 2, 1))
        assert log.select("s") == [(1, "first")]


def test_only_the_owner_decides_and_others_that_wait_are_not_dropped(tmp_path: Path) -> None:
    """A transaction of a further instance waits for what was before it, whatever becomes of that;
    what that instance decides is about rows of its own, of which none may wait."""
    prepared(tmp_path / "d")
    with logweir.open(tmp_path / "d") as log:
        for first, kind in ((1, RowType.ROLLBACK), (3, RowType.CONFIRM)):
            feed(log, replace_row(first, "s", first))
            feed(log, replace_row(first, "a", first, OTHER))
            with pytest.raises(RequestError) as refused:
                feed(log, replace_row(first + 1, "s", 9, OTHER))
            assert refused.value.code == ErrorCode.UNCOMMITTED_FOREIGN_SYNC_TXNS
            feed(log, decision(kind, first + 1, first, OTHER))
            assert log.waiting == 2
            feed(log, decision(kind, first + 1, first))
            assert log.waiting == 0
        assert log.select("s") == [(3, 3)]
        assert log.select("a") == [(1, 1), (3, 3)]


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that decides nothing fills no memory: what is over the limit is not taken."""
    monkeypatch.setattr(group, "SYNCHRO_QUEUE_BYTES", 75)
    prepared(tmp_path / "d")
    with logweir.open(tmp_path / "d") as log:
        feed(log, replace_row(1, "s", 1))
        feed(log, replace_row(2, "a", 2))
        with pytest.raises(LimitExceeded, match="SYNCHRO_QUEUE_BYTES"):
            feed(log, replace_row(3, "s", 3))
        assert log.waiting == 2
        feed(log, decision(RowType.CONFIRM, 3, 1))
        feed(log, replace_row(4, "s", 4))
        assert (log.waiting, log.select("a")) == (1, [(2, 2)])


def test_decision_that_cannot_be_applied_changes_nothing(tmp_path: Path) -> None:
    """What comes behind a ROLLBACK may not fit without the rows that are undone: then it is not
    taken, and all waits on."""
    prepared(tmp_path / "d")
    with logweir.open(tmp_path / "d") as log:
        log.insert("a", (1, 0))
        feed(log, replace_row(1, "s", 1))
        feed(log, Row(RowType.DELETE, OWNER, 2, 1.5, tsn=2, body=pack({0x10: 601, 0x20: [1]})))
        body = pack({0x10: 601, 0x21: [1, 1]})
        feed(log, Row(RowType.INSERT, OTHER, 1, 1.5, tsn=1, body=body))
        rows = [replace_row(2, "a", 2, OTHER), decision(RowType.ROLLBACK, 3, 1)]
        columns = RowColumns.scan(b"".join(map(encode_row, rows)))

        def apply(group: Group) -> None:  # as who follows does: what fits is taken
            group.add_transaction(columns, 0, 1)
            mark = group.mark()
            with pytest.raises(RequestError, match="Duplicate key"):
                group.add_transaction(columns, 1, 2)
            group.rollback(mark)

        log.inner.run_job(Job(apply, 100))
        assert (log.waiting, log.vclock.lsn(OWNER)) == (4, 2)
        feed(log, decision(RowType.CONFIRM, 3, 1))
        assert (log.select("s"), log.select("a")) == ([(1, 1)], [(1, 1), (2, 2)])


def test_rows_go_on_waiting_where_their_decision_is_given_up(tmp_path: Path) -> None:
    """The lsn of ours that is left free for the lost row does not move the state over what waits
    again."""
    prepared(tmp_path / "d")
    with logweir.open(tmp_path / "d") as log:
        for lsn in (1, 2):
            feed(log, replace_row(lsn, "s", lsn))
        log.snapshot()
        before = log.vclock
        assert log.end_waiting(confirm=True) == 2
    max((tmp_path / "d").glob("*.xlog")).unlink()
    for _ in range(2):
        with logweir.open(tmp_path / "d", force_recovery=True) as log:
            assert (log.waiting, log.count("s")) == (2, 0)
            assert log.vclock.lsn(1) == before.lsn(1) + 1
            log.inner.abandon()
