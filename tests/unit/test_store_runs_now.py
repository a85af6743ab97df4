"""`Log.commit_runs`: runs made in the caller's thread; what comes before and behind the answer."""

from __future__ import annotations

import errno
import threading
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from logweir.errors import WalError, WriteFailed, WriterPoisoned
from logweir.limits import LATE_AFTER
from logweir.recovery.faults import Fault, FaultyFileSystem
from logweir.store import late as late_module
from logweir.store import open as open_store
from logweir.store.log import Log
from logweir.store.run import Run
from logweir.wal.failpoint import arm, disarm
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.mp import pack


def open_log(folder: Path, filesystem: FileSystem = OS, **options: str) -> Log:
    """A store with a plain space and one of two indexes, so calm that runs are late."""
    log = open_store(folder, filesystem=filesystem, **options)
    if not any(space.name == "t" for space in log.spaces()):
        fields = [("id", "unsigned"), ("n", "unsigned")]
        log.create_space("t", fields, primary=["id"])
        log.create_space("u", fields, primary=["id"], indexes={"n": ("n",)})
    calm(log)
    return log


def calm(log: Log) -> None:
    """Make the next runs late."""
    while not log._late.is_calm:
        log._late.takes(0)


def run(log: Log, *rows: tuple[int, object], space: str = "t") -> Run:
    """REPLACEs."""
    tuples = [pack(list(row)) for row in rows]
    bounds = array("Q", (0,))
    for data in tuples:
        bounds.append(bounds[-1] + len(data))
    return Run(log.schema.space(space).id, b"".join(tuples), bounds)


def elsewhere(call: Callable[[], object]) -> object:
    """What another thread gets."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join(30)
    return found[0]


def test_the_answer_finds_the_runs_made_and_followers_not_woken(tmp_path: Path) -> None:
    """Another thread sees them and the position; who follows the log is told after that."""
    with open_log(tmp_path / "s") as log:
        before = log.vclock.lsn(1)
        told: list[object] = []
        log.on_commit(lambda vclock: told.append(vclock.lsn(1)))

        def answer() -> None:
            told.append(elsewhere(lambda: (log.get("t", 1), log.get("t", 2))))
            told.append(log.vclock.lsn(1))

        syncs = log._writer.syncs
        assert log.commit_runs([run(log, (1, 7), (2, 8)), run(log, (1, 9))], answer)
        assert told == [((1, 9), (2, 8)), before + 3, before + 3]
        assert log._writer.syncs == syncs + 1
    with open_store(tmp_path / "s") as again:
        assert [again.get("t", 1), again.get("t", 2)] == [(1, 9), (2, 8)]


def test_one_tuple_that_has_to_go_another_way_is_not_made(tmp_path: Path) -> None:
    """The first of a file, refused, to be packed, of two indexes, of a space that is not there."""
    answers: list[str] = []

    def answer() -> None:
        answers.append("answered")

    with open_log(tmp_path / "s") as log:
        space_id = log.schema.space("t").id
        log.commit_runs([run(log, (1, 5))])
        before = log.vclock
        assert not log.commit_one(space_id, pack([1, "text"]), answer)
        assert not log.commit_one(space_id, pack([1, 1, "x" * 5000]), answer)
        assert not log.commit_one(log.schema.space("u").id, pack([1, 7]), answer)
        assert not log.commit_one(9999, pack([1, 7]), answer)
        log._writer.rotate()
        assert not log.commit_one(space_id, pack([1, 7]), answer)
        assert log.vclock == before
    assert answers == []


def test_runs_that_must_wait_their_turn_are_not_made(tmp_path: Path) -> None:
    """Not calm, none, refused, of two indexes, in a transaction, without a log, closed."""
    answers: list[str] = []

    def answer() -> None:
        answers.append("answered")

    with open_log(tmp_path / "s") as log:
        log._late.disturb()
        assert not log.commit_runs([run(log, (1, 7))], answer)
        calm(log)
        before = log.vclock
        assert not log.commit_runs([], answer)
        assert not log.commit_runs([run(log, (1, "text"))], answer)
        assert not log.commit_runs([run(log, (1, 7)), run(log, (1, "text"))], answer)
        assert not log.commit_runs([run(log, (1, 7), space="u")], answer)
        with log.transaction():
            assert not log.commit_runs([run(log, (1, 7))], answer)
            assert not elsewhere(lambda: log.commit_runs([run(log, (1, 7))], answer))
        assert log.vclock == before
        one = run(log, (1, 8))
    assert not log.commit_runs([one], answer)
    with open_log(tmp_path / "n", durability="none") as log:
        assert not log.commit_runs([run(log, (1, 7))], answer)
    assert answers == []


def test_one_waits_until_the_answer_is_given(tmp_path: Path) -> None:
    """A change of another thread gets the log only behind the runs and their answer."""
    with open_log(tmp_path / "s") as log:
        order: list[str] = []

        def change() -> None:
            log.update("t", 1, [("+", "n", 1)])
            order.append("changed")

        thread = threading.Thread(target=change)

        def answer() -> None:
            thread.start()
            thread.join(0.05)
            order.append("answered")

        assert log.commit_runs([run(log, (1, 7))], answer)
        thread.join(30)
        assert order == ["answered", "changed"]
        assert log.get("t", 1) == (1, 8)


def test_an_answer_that_fails_leaves_the_runs_made(tmp_path: Path) -> None:
    """They are durable, followers are told, and the log goes on."""
    with open_log(tmp_path / "s") as log:
        told: list[int] = []
        log.on_commit(lambda vclock: told.append(vclock.lsn(1)))

        def answer() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            log.commit_runs([run(log, (1, 7))], answer)
        assert told == [log.vclock.lsn(1)]
        assert log.replace("t", (2, 8)) == (2, 8)
        assert log.get("t", 1) == (1, 7)


def test_a_failing_disk_refuses_the_runs(tmp_path: Path) -> None:
    """Of a failed write nothing is left and the log goes on; a failed sync ends it."""
    answers: list[str] = []

    def answer() -> None:
        answers.append("answered")

    faulty = FaultyFileSystem(OS)
    log = open_log(tmp_path / "s", faulty)
    vclock = log.vclock
    faulty.fault = Fault(faulty._counted + 1, {"write"}, errno.ENOSPC)
    with pytest.raises(WriteFailed):
        log.commit_runs([run(log, (1, 7))], answer)
    assert log.vclock == vclock
    assert log.commit_runs([run(log, (3, 8))])
    faulty.fault = Fault(faulty._counted + 1, {"sync"})
    with pytest.raises(WriterPoisoned):
        log.commit_runs([run(log, (1, 9))], answer)
    with pytest.raises(WriterPoisoned):
        log.commit_runs([run(log, (1, 9))], answer)
    assert answers == []
    log.abandon()


def test_a_stop_behind_the_sync_ends_the_log(tmp_path: Path) -> None:
    """Nobody is answered; opening again finds the rows."""
    log = open_log(tmp_path / "s")

    def stop() -> None:
        raise RuntimeError("stopped")

    arm("store.after_sync_before_publish", stop)
    try:
        with pytest.raises(WalError, match="stopped"):
            log.commit_runs([run(log, (1, 7))], lambda: pytest.fail("answered"))
    finally:
        disarm()
    with pytest.raises(WalError):
        log.commit_runs([run(log, (1, 8))])
    log.abandon()
    with open_store(tmp_path / "s") as again:
        assert again.get("t", 1) == (1, 7)


def test_only_a_row_of_groups_without_a_view_is_calm(tmp_path: Path) -> None:
    """`commit_runs` begins where `run_job` would have made a group late, and not before."""
    with open_log(tmp_path / "s") as log:
        log.get("t", 1)
        for _ in range(LATE_AFTER):
            assert not log.commit_runs([run(log, (1, 7))])
            assert not log._late.takes(1)
        assert log.commit_runs([run(log, (1, 7))])


def one(log: Log, key: int, n: object, answer: Callable[[], object] = lambda: None) -> bool:
    """A REPLACE by itself."""
    return log.commit_one(log.schema.space("t").id, pack([key, n]), answer)


def state_lsn(log: Log) -> int:
    """Up to where the state is applied, looked at past the log."""
    with log._state.read() as txn:
        position = txn.position()
    assert position is not None
    return position.vclock.lsn(1)


def test_one_change_is_like_a_run_of_one(tmp_path: Path) -> None:
    """Seen when it is answered, and told to followers behind that; in any order with runs the last
    one holds; the log has the same rows."""
    with open_log(tmp_path / "s") as log:
        told: list[object] = []
        start = dict(log.vclock)
        log.on_commit(lambda vclock: told.append("woken"))

        def answer() -> None:
            told.append(elsewhere(lambda: log.get("t", 1)))

        assert one(log, 1, 7, answer)
        assert told == [(1, 7), "woken"]
        calm(log)
        assert log.commit_runs([run(log, (1, 1), (2, 1), (3, 1))])
        assert one(log, 2, 2)
        assert one(log, 3, 2)
        assert one(log, 3, 3)
        assert log.commit_runs([run(log, (3, 4), (4, 4))])
        assert one(log, 4, 5)
        assert log.select("t") == [(1, 1), (2, 2), (3, 4), (4, 5)]
        rows = [row for transaction in log.rows(start) for row in transaction.rows]
        assert [row.lsn for row in rows] == list(range(start[1] + 1, start[1] + 11))
        assert len({row.body[:5] for row in rows}) == 1
        assert all(row.is_single for row in rows)
    with open_store(tmp_path / "s") as again:
        assert again.select("t") == [(1, 1), (2, 2), (3, 4), (4, 5)]


def test_one_change_that_must_wait_its_turn_is_not_made(tmp_path: Path) -> None:
    """No space, of two indexes, refused, in a transaction, not calm; then of a space made anew."""
    with open_log(tmp_path / "s") as log:
        before = log.vclock
        u = log.schema.space("u").id
        assert not log.commit_one(9999, pack([1, 1]), lambda: None)
        assert not log.commit_one(u, pack([1, 1]), lambda: None)
        assert not one(log, 1, "text")
        with log.transaction():
            assert not one(log, 1, 7)
        log._late.disturb()
        assert not one(log, 1, 7)
        assert log.vclock == before
        calm(log)
        assert one(log, 1, 7)
        log.create_index("t", "n", ["n"])
        calm(log)
        assert not one(log, 1, 8)
        assert log.get("t", 7, index="n") == (1, 7)


def test_a_disk_that_fails_refuses_one_change(tmp_path: Path) -> None:
    """As it refuses runs."""
    faulty = FaultyFileSystem(OS)
    log = open_log(tmp_path / "s", faulty)
    faulty.fault = Fault(faulty._counted + 1, {"write"}, errno.ENOSPC)
    with pytest.raises(WriteFailed):
        one(log, 1, 7, lambda: pytest.fail("answered"))
    assert one(log, 2, 8)
    faulty.fault = Fault(faulty._counted + 1, {"sync"})
    for _ in range(2):
        with pytest.raises(WriterPoisoned):
            one(log, 1, 9, lambda: pytest.fail("answered"))
    log.abandon()
    with open_store(tmp_path / "s") as again:
        assert again.get("t", 2) == (2, 8)


def test_the_state_takes_old_changes_behind_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before it; and a state that cannot takes nothing more, but the change is answered."""
    monkeypatch.setattr(late_module, "LATE_SECONDS", 1000.0)
    log = open_log(tmp_path / "s")
    lsns: list[int] = []
    assert one(log, 1, 7, lambda: lsns.append(state_lsn(log)))
    assert state_lsn(log) == lsns[0] < log.vclock.lsn(1)
    monkeypatch.setattr(late_module, "LATE_ROWS", 2)
    assert one(log, 1, 8, lambda: lsns.append(state_lsn(log)))
    assert lsns[1] == lsns[0]
    assert state_lsn(log) == log.vclock.lsn(1)

    def broken() -> None:
        raise OSError(errno.EIO, "Input/output error")

    assert one(log, 1, 8)
    arm("store.before_apply_commit", broken)
    try:
        assert one(log, 1, 9, lambda: lsns.append(0))
    finally:
        disarm()
    assert lsns[2] == 0
    with pytest.raises(WalError, match="before log and state were alike"):
        log.insert("t", (9, 9))
    log.abandon()
    with open_store(tmp_path / "s") as again:
        assert again.get("t", 1) == (1, 9)
