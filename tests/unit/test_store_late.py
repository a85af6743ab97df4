"""Runs that the state gets late: nobody who reads can tell, and no crash loses them."""

from __future__ import annotations

import errno
import os
import threading
from array import array
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logweir.errors import RequestError, WalError, WriteFailed, WriterPoisoned
from logweir.limits import LATE_AFTER, LATE_ASIDE_BYTES, LATE_ROWS
from logweir.recovery.faults import Fault, FaultyFileSystem
from logweir.store import late as late_module
from logweir.store import open as open_store
from logweir.store.append import append_tuples, store_run
from logweir.store.bulk import Keys
from logweir.store.commit import Job
from logweir.store.group import Group
from logweir.store.log import Log
from logweir.store.references import LargeTuple
from logweir.store.request import Request
from logweir.store.run import Run, Sight
from logweir.wal.failpoint import arm, disarm
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType


def open_log(folder: Path, filesystem: FileSystem = OS) -> Log:
    """A store with a plain space and one of two indexes."""
    log = open_store(folder, filesystem=filesystem)
    if not any(space.name == "t" for space in log.spaces()):
        log.create_space("t", [("id", "unsigned"), ("n", "unsigned")], primary=["id"])
        log.create_space(
            "u", [("id", "unsigned"), ("n", "unsigned")], primary=["id"], indexes={"n": ("n",)}
        )
    return log


def run_of(log: Log, *rows: tuple[int, object], space: str = "t") -> Job:
    """A job of REPLACEs."""
    tuples = [pack(list(row)) for row in rows]
    bounds = array("Q", (0,))
    for data in tuples:
        bounds.append(bounds[-1] + len(data))
    run = Run(log.schema.space(space).id, b"".join(tuples), bounds)

    def apply(group: Group) -> None:
        if not store_run(group, run.space_id, RowType.REPLACE, run.packed, run.bounds):
            for data in tuples:
                group.execute(Request(RowType.REPLACE, run.space_id, tuple=data))
                group.divide()

    return Job(apply, len(run.packed), run=run)


class Placed:
    """A maker of tuples of a space of (id; n, id), all with the same n, that notes when it makes
    them. `reads`: what it says that it looks at."""

    def __init__(
        self, log: Log, n: int, *ids: int, reads: tuple[int, ...] = (), knows_keys: bool = False
    ) -> None:
        self.space_id = log.schema.space("placed").id
        self.size_bytes = 10 * len(ids)
        self.reads = reads
        self.first_lsns: list[int] = []
        self.plain = 0
        self._n = n
        self._ids = ids
        self._knows_keys = knows_keys

    def make(self, sight: Sight, first_lsn: int) -> Run:
        """See `RunMaker`."""
        self.first_lsns.append(first_lsn)
        tuples = [pack([number, self._n, first_lsn]) for number in self._ids]
        bounds = array("Q", accumulate(map(len, tuples), initial=0))
        prefix = b"\x31" + self._n.to_bytes(8, "big")
        keys = None
        if self._knows_keys:
            ends = array("Q", range(0, 9 * len(tuples) + 1, 9))
            keys = Keys(b"".join(b"\x31" + n.to_bytes(8, "big") for n in self._ids), ends)
        return Run(self.space_id, b"".join(tuples), bounds, prefix, keys)

    def job(self) -> Job:
        """The change, also for the ordinary way."""

        def apply(group: Group) -> None:
            self.plain += 1
            for number in self._ids:
                data = pack([number, self._n, 0])
                group.execute(Request(RowType.REPLACE, self.space_id, tuple=data))
                group.divide()

        return Job(apply, self.size_bytes, run=self)


def placed(log: Log) -> None:
    """The space that `Placed` is for."""
    fields = [("id", "unsigned"), ("n", "unsigned"), ("lsn", "unsigned")]
    log.create_space("placed", fields, primary=["id"], indexes={"n": ("n", "id")})
    calm(log)


def calm(log: Log) -> None:
    """So many groups of runs that the next ones are late."""
    for number in range(LATE_AFTER):
        log.run_job(run_of(log, (number, 0)))


def state_lsn(log: Log) -> int:
    """Up to where the state is applied, looked at past the log."""
    with log._state.read() as txn:
        position = txn.position()
    return position.vclock.lsn(1) if position else -1


def test_late_runs_are_durable_and_read_at_once(tmp_path: Path) -> None:
    """The state is behind the log until somebody looks; then it is not."""
    with open_log(tmp_path / "s") as log:
        calm(log)
        start = log.vclock
        log.run_job(run_of(log, (1, 7), (2, 8), (1, 9)), [run_of(log, (3, 1)), run_of(log, (2, 2))])
        assert state_lsn(log) == start.lsn(1)
        assert [each.rows[0].lsn - start.lsn(1) for each in log.rows(start)] == [1, 2, 3, 4, 5]
        assert [log.get("t", key) for key in (1, 2, 3)] == [(1, 9), (2, 8), (3, 1)]
        assert state_lsn(log) == log.vclock.lsn(1) == start.lsn(1) + 5


def test_a_killed_process_has_them_in_the_log(tmp_path: Path) -> None:
    """What was late at the end is applied when the folder is opened."""
    log = open_log(tmp_path / "s")
    calm(log)
    log.run_job(run_of(log, (1, 7), (50, 8)))
    assert state_lsn(log) < log.vclock.lsn(1)
    vclock = log.vclock
    log.abandon()
    with open_log(tmp_path / "s") as again:
        assert again.vclock == vclock
        assert (again.get("t", 1), again.get("t", 50)) == ((1, 7), (50, 8))


def test_closing_applies_them(tmp_path: Path) -> None:
    """The position of a closed state is the log's."""
    with open_log(tmp_path / "s") as log:
        calm(log)
        log.run_job(run_of(log, (1, 7)))
    with open_log(tmp_path / "s") as log:
        assert state_lsn(log) == log.vclock.lsn(1)
        assert log.get("t", 1) == (1, 7)


def test_other_changes_see_them(tmp_path: Path) -> None:
    """An update, a transaction, a run that needs another index: each in its order."""
    with open_log(tmp_path / "s") as log:
        calm(log)
        log.run_job(run_of(log, (1, 7)))
        log.update("t", 1, [("+", "n", 1)])
        assert log.get("t", 1) == (1, 8)
        calm(log)
        log.run_job(run_of(log, (1, 20)))
        with log.transaction() as tx:
            assert tx.get("t", 1) == (1, 20)
            tx.replace("t", (1, 21))
        calm(log)
        log.run_job(run_of(log, (1, 30)), [run_of(log, (5, 6), space="u"), run_of(log, (2, 31))])
        assert log.select("u", 6, index="n") == [(5, 6)]
        assert (log.get("t", 1), log.get("t", 2)) == ((1, 30), (2, 31))


def test_a_refused_tuple_refuses_its_own_job_only(tmp_path: Path) -> None:
    """The format is checked before anything is logged."""
    with open_log(tmp_path / "s") as log:
        calm(log)
        good, bad = run_of(log, (1, 7)), run_of(log, (2, "text"))
        log.run_job(good, [bad])
        assert isinstance(bad.error, RequestError)
        assert good.error is None
        assert log.get("t", 1) == (1, 7)
        assert log.get("t", 2) == (2, 0)


def test_many_are_applied_without_a_look(tmp_path: Path) -> None:
    """What waits is bounded: the next group after the limit has the state take it."""
    with open_log(tmp_path / "s") as log:
        calm(log)
        log.run_job(run_of(log, *((number % 9000, 1) for number in range(LATE_ROWS))))
        before = log.vclock.lsn(1)
        log.run_job(run_of(log, (7, 3)))
        assert state_lsn(log) >= before
        assert log.count("t") == 9000
        assert log.get("t", 7) == (7, 3)


def test_nobody_needs_to_look(tmp_path: Path) -> None:
    """A thread has the state take them soon."""
    with open_log(tmp_path / "s") as log:
        calm(log)
        log.run_job(run_of(log, (1, 7)))
        applied = threading.Event()
        take = log._late._applying

        def noted() -> None:
            take()
            applied.set()

        log._late._applying = noted
        log.run_job(run_of(log, (2, 7)))
        assert applied.wait(30)
        assert state_lsn(log) == log.vclock.lsn(1)


def test_a_view_in_between_ends_being_late(tmp_path: Path) -> None:
    """Who reads between the groups finds the state applied with each."""
    with open_log(tmp_path / "s") as log:
        calm(log)
        for number in range(2 * LATE_AFTER):
            log.run_job(run_of(log, (number, 1)))
            assert log.get("t", number) == (number, 1)
            log.run_job(run_of(log, (number, 2)))
            assert state_lsn(log) == log.vclock.lsn(1)


def test_a_stop_behind_the_sync_leaves_them_in_the_log(tmp_path: Path) -> None:
    """The log has failed then, and opening again finds the rows."""
    log = open_log(tmp_path / "s")
    calm(log)

    def stop() -> None:
        raise RuntimeError("stopped")

    arm("store.after_sync_before_state_commit", stop)
    try:
        with pytest.raises(WalError, match="stopped"):
            log.run_job(run_of(log, (1, 7)))
    finally:
        disarm()
    log.abandon()
    with open_log(tmp_path / "s") as again:
        assert again.get("t", 1) == (1, 7)


def test_runs_of_a_space_whose_tuples_keep_their_places_are_late(tmp_path: Path) -> None:
    """Both indexes have what is new and what was there, now and after a kill."""
    log = open_log(tmp_path / "s")
    placed(log)
    one, two = Placed(log, 7, 3, 1, 3), Placed(log, 7, 2, 1)
    before = log.vclock.lsn(1)
    log.run_job(two.job(), [run_of(log, (9, 9)), one.job()])
    assert (one.first_lsns, two.first_lsns) == ([before + 2], [before + 5])
    assert one.plain == two.plain == 0
    assert state_lsn(log) == before
    expected = [(1, 7, before + 5), (2, 7, before + 5), (3, 7, before + 2)]
    assert log.select("placed") == log.select("placed", 7, index="n") == expected
    calm(log)
    three = Placed(log, 7, 3, 2)
    log.run_job(three.job())
    assert three.plain == 0
    assert state_lsn(log) < log.vclock.lsn(1)
    log.abandon()
    expected[1:] = [(number, 7, three.first_lsns[0]) for number in (2, 3)]
    with open_log(tmp_path / "s") as log:
        assert log.select("placed") == log.select("placed", 7, index="n") == expected
        calm(log)
        four = Placed(log, 7, 0, 3)
        log.run_job(four.job())
        assert four.plain == 0
        expected[2:] = [(3, 7, four.first_lsns[0])]
        expected.insert(0, (0, 7, four.first_lsns[0]))
        assert log.select("placed") == log.select("placed", 7, index="n") == expected


@pytest.mark.parametrize("where", ["state", "waiting", "group", "first", "last"])
def test_a_tuple_that_may_change_its_place_goes_the_ordinary_way(
    tmp_path: Path, where: str
) -> None:
    """Where another place is known, be it in the state, in what waits, or in the same group."""
    with open_log(tmp_path / "s") as log:
        placed(log)
        before: list[Job] = []
        if where == "waiting":
            log.run_job(Placed(log, 7, 1, 2).job())
        elif where == "group":
            before = [Placed(log, 7, 1, 2).job()]
        else:
            rows = {"state": [7], "first": [3, 8], "last": [8, 9]}[where]
            for number, n in enumerate(rows, 1):
                log.replace("placed", (number, n, 0))
            calm(log)
        moved = Placed(log, 8, 1)
        log.run_job(moved.job(), before)
        assert moved.plain == 1
        assert log.select("placed", 8, index="n") == [
            (number, 8, 0) for number in ((1, 2) if where == "first" else (1,))
        ]
        assert (1, 7) not in [row[:2] for row in log.select("placed")]
        assert len(log.select("placed", 7, index="n")) == (where in ("waiting", "group"))


def test_what_was_found_is_forgotten_when_something_else_changes_the_state(tmp_path: Path) -> None:
    """A tuple that got another place, by an ordinary change; a late run that is no maker's."""
    with open_log(tmp_path / "s") as log:
        placed(log)
        log.run_job(Placed(log, 7, 1).job())
        known = log._late.known
        assert len(known) == 1
        log.run_job(Placed(log, 7, 2).job())
        assert len(known) == 1
        log.run_job(run_of(log, (1, 7)))
        assert log._late.waits
        assert not known
        log.run_job(Placed(log, 7, 3).job())
        assert len(known) == 1
        log.replace("placed", (2, 8, 0))
        moved = Placed(log, 7, 2)
        log.run_job(moved.job())
        assert moved.plain == 1
        assert log.select("placed", 8, index="n") == []
        assert [row[0] for row in log.select("placed", 7, index="n")] == [1, 2, 3]


SHORT_AND_LONG = [range(300), range(5), range(3, 9), range(100, 500), range(2), range(600, 900)]


@pytest.mark.parametrize("ids", [SHORT_AND_LONG, SHORT_AND_LONG[::3], SHORT_AND_LONG[-3::2]])
@pytest.mark.parametrize("knows_keys", [False, True])
def test_long_runs_and_short_ones_of_one_group_keep_their_order(
    tmp_path: Path, knows_keys: bool, ids: list[range]
) -> None:
    """Whether they are joined or not, ascending or not, and whoever makes their keys."""
    with open_log(tmp_path / "s") as log:
        placed(log)
        made = [Placed(log, 7, *some, knows_keys=knows_keys) for some in ids]
        log.run_job(made[-1].job(), [one.job() for one in made[:-1]])
        assert not any(one.plain for one in made)
        last = {
            number: one.first_lsns[0]
            for one, some in zip(made, ids, strict=True)
            for number in some
        }
        expected = [(number, 7, lsn) for number, lsn in sorted(last.items())]
        assert log.select("placed") == log.select("placed", 7, index="n") == expected


def test_a_maker_sees_nothing_that_waits(tmp_path: Path) -> None:
    """What it reads may be behind: then the state takes it first."""
    with open_log(tmp_path / "s") as log:
        placed(log)
        space = log.schema.space("t").id
        log.run_job(run_of(log, (1, 7)))
        blind = Placed(log, 7, 1, reads=(space,))
        log.run_job(blind.job())
        assert (blind.plain, blind.first_lsns) == (1, [])
        assert log.get("t", 1) == (1, 7)
        calm(log)
        sees = Placed(log, 7, 1, reads=(space,))
        log.run_job(sees.job())
        assert (sees.plain, sees.first_lsns) == (0, [log.vclock.lsn(1)])


def begun(log: Log, *jobs: Job) -> threading.Event:
    """Begin a group; set when all its jobs are answered."""
    done = threading.Event()
    left = list(jobs)

    def finished(job: Job) -> None:
        left.remove(job)
        if not left:
            done.set()

    for job in jobs:
        job.finished = finished
    assert log.begin_jobs(jobs)
    return done


@pytest.mark.parametrize("aside_bytes", [1, LATE_ASIDE_BYTES])
def test_a_group_that_is_begun_is_answered_by_another_thread(
    tmp_path: Path, monkeypatch: Any, aside_bytes: int
) -> None:
    """Durable then, and in the right order with what comes behind it, whoever writes it."""
    monkeypatch.setattr(late_module, "LATE_ASIDE_BYTES", aside_bytes)
    with open_log(tmp_path / "s") as log:
        calm(log)
        threads = []
        log.on_commit(lambda vclock: threads.append(threading.get_ident()))
        one, two = run_of(log, (1, 7)), run_of(log, (1, 8), (2, 9))
        done = begun(log, one, two)
        log.update("t", 2, [("+", "n", 1)])
        assert done.is_set()
        assert (one.error, two.error) == (None, None)
        assert threads[0] != threading.get_ident()
        assert (log.get("t", 1), log.get("t", 2)) == ((1, 8), (2, 10))


def test_a_group_is_not_begun_where_it_must_wait_its_turn(tmp_path: Path) -> None:
    """Of another kind, not calm yet, while a transaction is open, refused, or closed."""
    with open_log(tmp_path / "s") as log:
        assert not log.begin_jobs([run_of(log, (1, 7))])
        calm(log)
        assert not log.begin_jobs([Job(lambda group: None)])
        assert not log.begin_jobs([run_of(log, (1, "text"))])
        calm(log)
        with log.transaction():
            assert not log.begin_jobs([run_of(log, (1, 7))])
        calm(log)
        assert begun(log, run_of(log, (1, 7))).wait(30)
        before = log.vclock
    assert not log.begin_jobs([run_of(log, (1, 8))])
    assert log.vclock == before


@pytest.mark.parametrize("aside_bytes", [1, LATE_ASIDE_BYTES])
def test_a_failing_disk_refuses_a_group_that_is_begun(
    tmp_path: Path, monkeypatch: Any, aside_bytes: int
) -> None:
    """Of a failed write nothing is left and the log goes on; a failed sync ends it."""
    monkeypatch.setattr(late_module, "LATE_ASIDE_BYTES", aside_bytes)
    faulty = FaultyFileSystem(OS)
    log = open_log(tmp_path / "s", faulty)
    calm(log)
    jobs = [run_of(log, (1, 7)), run_of(log, (2, 7))]
    vclock = log.vclock
    faulty.fault = Fault(faulty._counted + 1, {"write"}, errno.ENOSPC)
    assert begun(log, *jobs).wait(30)
    assert all(isinstance(job.error, WriteFailed) for job in jobs)
    assert log.vclock == vclock
    log.run_job(run_of(log, (3, 8)))
    calm(log)
    faulty.fault = Fault(faulty._counted + 1, {"sync"})
    job = run_of(log, (1, 9))
    assert begun(log, job).wait(30)
    assert isinstance(job.error, WriterPoisoned)
    with pytest.raises(WriterPoisoned):
        log.run_job(run_of(log, (1, 9)))
    log.abandon()


def test_a_state_that_fails_behind_a_begun_group_answers_it_once(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """The group is durable whatever becomes of the state; who comes next is told."""
    monkeypatch.setattr(late_module, "LATE_ROWS", 1)
    log = open_log(tmp_path / "s")
    calm(log)
    log.run_job(run_of(log, (1, 6)))
    answers = []
    done = threading.Event()

    def finished(job: Job) -> None:
        answers.append(job.error)
        done.set()

    job = run_of(log, (1, 7))
    job.finished = finished
    arm("store.before_late_commit", broken)
    try:
        assert log.begin_jobs([job])
    finally:
        disarm()
    assert done.wait(30)
    with pytest.raises(WalError, match="before log and state were alike"):
        log.insert("t", (9, 9))
    log.abandon()
    assert answers == [None]
    with open_log(tmp_path / "s") as again:
        assert again.get("t", 1) == (1, 7)


def test_answers_are_not_held_up_for_the_state(tmp_path: Path, monkeypatch: Any) -> None:
    """What is due is taken while a group is synced behind which more waits, else behind its
    answers; what is overdue in any case."""
    monkeypatch.setattr(late_module, "LATE_ROWS", 2)
    monkeypatch.setattr(late_module, "LATE_SECONDS", 3600)
    with open_log(tmp_path / "s") as log:
        calm(log)
        log.settle()
        for more in (True, False):
            before = state_lsn(log)
            job = run_of(log, (1, 7), (2, 7))
            job.more = False
            assert begun(log, job).wait(30)
            log.settle(is_idle=True)
            assert state_lsn(log) == before
            job = run_of(log, (3, 8))
            job.more = more
            assert begun(log, job).wait(30)
            # A quick disk has synced the third row before the state is told to take two.
            assert state_lsn(log) - before in ((2, 3) if more else (0,))
            log.settle()
            assert state_lsn(log) - before in ((2, 3) if more else (3,))
            log.run_job(run_of(log, (4, 8)))
            log._apply_late()
        before = state_lsn(log)
        assert begun(log, run_of(log, *((number, 9) for number in range(8)))).wait(30)
        job = run_of(log, (9, 9))
        job.more = False
        assert begun(log, job).wait(30)
        assert state_lsn(log) == before + 8
        assert log.count("t") == 9


@given(
    st.lists(
        st.lists(st.integers(0, 300), min_size=1, max_size=12).map(
            lambda keys: keys if keys[0] % 3 else sorted(set(keys))
        ),
        min_size=1,
        max_size=6,
    )
)
def test_the_last_tuple_of_each_key_is_taken(drawn: list[list[int]]) -> None:
    """Pieces that ascend, that begin again, and that are in no order."""
    pieces = []
    expected: dict[bytes, bytes] = {}
    for number, ids in enumerate(drawn):
        keys = [b"%d" % one * (1 + one % 3) for one in ids]
        tuples = [b"%d/%d" % (number, place) for place in range(len(ids))]
        expected |= zip(keys, tuples, strict=True)
        bounds, key_bounds = (
            array("Q", accumulate(map(len, parts), initial=0)) for parts in (tuples, keys)
        )
        made = Keys(b"".join(keys), key_bounds)
        pieces.append(late_module._Piece(512, b"", made, b"".join(tuples), bounds))
    found: dict[bytes, bytes] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(late_module, "_PART_ROWS", 3)
        for new in late_module._latest(pieces):
            last = b""
            for keys, tuples in new.parts():
                assert all(one < other for one, other in pairwise([last, *keys]))
                assert max(map(len, keys)) <= new.longest
                last = keys[-1]
                found |= zip(keys, tuples, strict=True)
    assert found == expected


def broken() -> None:
    """The state cannot be written."""
    raise OSError(errno.EIO, "Input/output error")


def test_late_runs_and_tuples_that_stand_in_the_log_go_together(tmp_path: Path) -> None:
    """A late run replaces tuples that the state refers to, and others come behind it; also where
    the log that is referred to goes."""
    with open_log(tmp_path / "s") as log:
        log.create_space("large", [("id", "unsigned"), ("data", "varbinary")], primary=["id"])
        data = [os.urandom(30_000) for _ in range(4)]
        store_large(log, data[:3])
        calm(log)
        log.run_job(run_of(log, (1, b"small"), space="large"))
        store_large(log, data[3:], first=3)
        log.run_job(run_of(log, (2, b"other"), space="large"))
        expected = [(0, data[0]), (1, b"small"), (2, b"other"), (3, data[3])]
        log.abandon()
    with open_log(tmp_path / "s") as log:
        assert log.select("large") == expected
        calm(log)
        log.run_job(run_of(log, (0, b"last"), space="large"))
        log.snapshot()
        expected[0] = (0, b"last")
        assert log.select("large") == expected
    with open_log(tmp_path / "s") as log:
        assert log.select("large") == expected


def store_large(log: Log, data: list[bytes], first: int = 0) -> None:
    """Store tuples in the way that lets the state refer to them."""
    tuples = []
    for number, payload in enumerate(data, first):
        packed = pack([number, payload])
        tuples.append(LargeTuple(packed[: -len(payload)], payload))
    space = log.schema.space("large").id
    log.run_job(Job(lambda group: append_tuples(group, space, tuples)))


def test_a_callback_that_fails_is_not_the_end(tmp_path: Path, monkeypatch: Any) -> None:
    """What a program's own callback raises is reported; the groups that follow are begun."""
    reported: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    with open_log(tmp_path / "s") as log:
        calm(log)
        job = run_of(log, (1, 7))

        def fail(job: Job) -> None:
            raise RuntimeError("the program's own")

        job.finished = fail
        assert log.begin_jobs([job])
        log.run_job(run_of(log, (2, 7)))
        assert begun(log, run_of(log, (1, 8))).wait(30)
        assert (log.get("t", 1), log.get("t", 2)) == ((1, 8), (2, 7))
    assert [str(one.exc_value) for one in reported] == ["the program's own"]
