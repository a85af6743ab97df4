"""`Log.commit_large`: large tuples that the state gets later, and what goes the ordinary way."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logweir
from logweir.errors import RequestError, WriteFailed, WriterPoisoned
from logweir.limits import LATE_ROWS
from logweir.recovery.faults import Fault, FaultyFileSystem
from logweir.store.append import append_tuples
from logweir.store.commit import Job
from logweir.store.definition import TOPIC_FIELDS
from logweir.store.largerun import LargeRun
from logweir.store.references import REFERENCE, LargeTuple
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.mp import pack

Row = tuple[int, int, int, int, bytes]


def topic(path: Path, filesystem: FileSystem = OS, **options: object) -> logweir.Log:
    """A store with the space t, so calm that runs are late."""
    given = {"durability": "write", **options}
    log = logweir.open(path, filesystem=filesystem, **given)  # type: ignore[arg-type]
    log.create_space("t", TOPIC_FIELDS, primary=["partition", "first"], if_not_exists=True)
    calm(log)
    return log


def calm(log: logweir.Log) -> None:
    """Make the next runs late."""
    while not log._late.is_calm:
        log._late.takes(0)


def rows_of(first: int, count: int = 3, *, partition: int = 0, size: int = 9000) -> list[Row]:
    """Rows that no compression makes smaller."""
    return [(partition, n, n, 7, os.urandom(size)) for n in range(first, first + count)]


def large(rows: Sequence[Row]) -> list[LargeTuple]:
    """The same as a topic hands them over."""
    found = []
    for row in rows:
        data = pack(list(row))
        found.append(LargeTuple(data[: len(data) - len(row[4])], row[4]))
    return found


def commit(log: logweir.Log, *runs: Sequence[Row], space: str = "t") -> bool:
    """Whether these runs were committed late."""
    space_id = log.schema.space(space).id
    return log.commit_large(lambda schema: [LargeRun(space_id, large(run)) for run in runs])


def waits(log: logweir.Log) -> bool:
    """Whether the state does not have everything yet."""
    return log._late.waits


def position(log: logweir.Log) -> int:
    """Of the state, without having it take what waits."""
    with log._state.read() as txn:
        found = txn.position()
        assert found is not None
        return found.vclock.signature


def references(log: logweir.Log) -> int:
    """How many entries of t are references."""
    with log.read_view() as view:
        tree = view.engine.txn.tree(log.schema.space("t").id, 0)
        assert tree is not None
        with view.engine.txn.raw.cursor(tree.handle) as cursor:
            return sum(value[0] == REFERENCE for value in cursor.iternext(keys=False))


def test_readers_and_followers_see_what_the_state_has_not(tmp_path: Path) -> None:
    """A view has it all, as references; so do the log and a store that is opened again."""
    rows = rows_of(1, 40)
    with topic(tmp_path) as log:
        told: list[int] = []
        log.on_commit(lambda vclock: told.append(vclock.lsn(1)))
        before = log.vclock.lsn(1)
        for at in range(0, 40, 4):
            assert commit(log, rows[at : at + 4])
        assert told == [before + count for count in range(4, 41, 4)]
        assert waits(log)
        assert position(log) < log.vclock.signature
        assert log.select("t") == rows
        assert not waits(log)
        assert position(log) == log.vclock.signature
        assert references(log) == 40
        assert [row.lsn for each in log.rows() for row in each.rows][-40:] == list(
            range(before + 1, before + 41)
        )
    with topic(tmp_path) as again:
        assert again.select("t") == rows


def test_a_killed_process_has_them_in_the_log(tmp_path: Path) -> None:
    """What the state never took is applied when the folder is opened."""
    rows = [*rows_of(1, 3), *rows_of(1, 3, partition=2)]
    log = topic(tmp_path)
    assert commit(log, rows[:3], rows[3:])
    assert waits(log)
    log.abandon()
    with topic(tmp_path) as again:
        assert again.select("t") == rows


def test_taken_keys_are_seen_before_the_state_has_them(tmp_path: Path) -> None:
    """A key that waits, or is not above all of its partition, is left to the ordinary way, and that
    refuses it."""
    rows = rows_of(5)
    with topic(tmp_path) as log:
        assert commit(log, rows)
        end = log.vclock
        for bad in (
            rows_of(7, 1),
            rows_of(4, 1),
            [*rows_of(8, 1), *rows_of(8, 1)],
            [*rows_of(9, 1), *rows_of(8, 1)],
            [*rows_of(8, 1), *rows_of(1, 1, partition=1)],
        ):
            assert not commit(log, bad)
        assert not commit(log, rows_of(8, 2), rows_of(9, 1))
        assert log.vclock == end
        assert waits(log)
        space = log.schema.space("t").id
        with pytest.raises(RequestError, match="Duplicate key"):
            log.run_job(Job(lambda group: append_tuples(group, space, large(rows_of(7, 1)))))
        assert log.select("t") == rows


def test_what_others_write_above_is_seen(tmp_path: Path) -> None:
    """A row that was inserted, replaced or removed meanwhile is looked for again."""
    with topic(tmp_path) as log:
        assert commit(log, rows_of(1))
        log.insert("t", (0, 10, 10, 0, b"ten"))
        calm(log)
        assert not commit(log, rows_of(10, 1))
        assert commit(log, rows_of(11, 1))
        log.delete("t", (0, 11))
        calm(log)
        assert commit(log, rows_of(11, 1))
        log.replace("t", (0, 20, 20, 0, b"twenty"))
        calm(log)
        assert not commit(log, rows_of(20, 1))
        assert [row[1] for row in log.select("t")] == [1, 2, 3, 10, 11, 20]


def test_late_replaces_of_the_same_space_keep_their_order(tmp_path: Path) -> None:
    """One of a tuple that waits, and an insert behind one that waits: the last of each stays."""
    with topic(tmp_path) as log:
        space = log.schema.space("t").id
        assert commit(log, rows_of(1))
        changed = pack([0, 2, 2, 0, b"two"])
        assert not log.commit_one(space, changed, lambda: None)
        log.replace("t", (0, 2, 2, 0, b"two"))
        calm(log)
        assert log.commit_one(space, pack([0, 9, 9, 0, b"nine"]), lambda: None)
        assert waits(log)
        assert not commit(log, rows_of(9, 1))
        assert not commit(log, rows_of(12, 1))  # what is there cannot be looked up now
        assert [row[1] for row in log.select("t")] == [1, 2, 3, 9]
        assert log.get("t", (0, 2)) == (0, 2, 2, 0, b"two")


def test_tuples_that_compress_wait_whole(tmp_path: Path) -> None:
    """They are joined when they are written: their buffers may be used again at once."""
    payload = bytearray(b"again and again " * 2000)
    row = (0, 1, 1, 7, bytes(payload))
    data = pack(list(row))
    view = LargeTuple(data[: len(data) - len(payload)], memoryview(payload))
    with topic(tmp_path) as log:
        space = log.schema.space("t").id
        assert log.commit_large(lambda schema: [LargeRun(space, [view])])
        payload[:] = bytes(len(payload))
        assert waits(log)
        assert log.select("t") == [row]
        assert references(log) == 0


def test_much_is_taken_behind_the_answers(tmp_path: Path) -> None:
    """Without a reader the state takes it once there is enough."""
    with topic(tmp_path) as log:
        first = 1
        while log._late._rows < LATE_ROWS:
            assert commit(log, rows_of(first, 512, size=1))
            first += 512
        log.settle()
        assert not waits(log)
        assert log.count("t") == first - 1


def test_the_ordinary_way_is_left_what_is_not_late(tmp_path: Path) -> None:
    """Where something is to be synced, where the space has a second index, where a tuple does not
    fit, or nothing is given: nothing is done."""
    with topic(tmp_path / "a") as log:
        log.create_space("u", TOPIC_FIELDS, primary=["partition"], indexes={"n": ("time",)})
        calm(log)
        end = log.vclock
        assert not commit(log, rows_of(1), space="u")
        assert not commit(log, [(0, -1, 1, 0, b"x")])
        assert not log.commit_large(lambda schema: None)
        assert not log.commit_large(lambda schema: [])
        with log.transaction():
            assert not commit(log, rows_of(1))
        assert log.vclock == end
    with topic(tmp_path / "b", durability="fsync") as log:
        assert not commit(log, rows_of(1))


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    """The rows and their numbers are free again."""
    disk = FaultyFileSystem(OS)
    with topic(tmp_path, disk) as log:
        assert commit(log, rows_of(1, 1))
        end = log.vclock
        disk.fault = Fault(1, frozenset({"write"}), errno.ENOSPC)
        with pytest.raises(WriteFailed):
            commit(log, rows_of(2))
        disk.fault = None
        assert log.vclock == end
        rows = rows_of(2)
        assert commit(log, rows)
        assert log.select("t")[1:] == rows


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("run"), st.integers(0, 2), st.integers(1, 8), st.integers(1, 3)),
            st.tuples(st.just("put"), st.integers(0, 2), st.integers(1, 30), st.just(0)),
            st.tuples(st.just("delete"), st.integers(0, 2), st.integers(1, 30), st.just(0)),
            st.tuples(st.just("read"), st.just(0), st.just(0), st.just(0)),
        ),
        max_size=30,
    )
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_late_and_ordinary_changes_make_the_state_of_a_plain_dict(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int, int]]
) -> None:
    """Whatever came late: what was refused late was taken, or not above all of its partition."""
    model: dict[tuple[int, int], bytes] = {}
    path = tmp_path_factory.mktemp("late")
    log = topic(path)
    space = log.schema.space("t").id
    for number, (what, partition, first, count) in enumerate(steps):
        calm(log)
        if what == "run":
            rows = rows_of(first, count, partition=partition, size=50 + number)
            is_free = not any((partition, row[1]) in model for row in rows)
            if commit(log, rows):
                assert is_free
            elif is_free:
                tuples = large(rows)
                log.run_job(Job(lambda group, tuples=tuples: append_tuples(group, space, tuples)))
            else:
                continue
            model.update({(row[0], row[1]): row[4] for row in rows})
        elif what == "put":
            payload = os.urandom(20)
            data = pack([partition, first, first, 0, payload])
            if not log.commit_one(space, data, lambda: None):
                log.replace("t", (partition, first, first, 0, payload))
            model[partition, first] = payload
        elif what == "delete":
            log.delete("t", (partition, first))
            model.pop((partition, first), None)
        else:
            assert {row[:2]: row[4] for row in log.select("t")} == model
    log.abandon()
    with topic(path) as again:
        assert {row[:2]: row[4] for row in again.select("t")} == model


# --- syncing aside --------------------------------------------------------------------------------


def test_a_long_file_is_synced_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another thread, once so much is unsynced; closing it then waits for that."""
    monkeypatch.setattr("logweir.store.log.SYNC_ASIDE_BYTES", 50_000)
    threads: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    class Disk(FaultyFileSystem):
        def call(self, kind: str, path: Path) -> None:
            if kind == "sync" and not begun.is_set():
                threads.append(threading.get_ident())
                if threading.current_thread().name == "logweir-aside":
                    begun.set()
                    assert go_on.wait(30)
            super().call(kind, path)

    log = topic(tmp_path, Disk(OS))
    syncs = log._writer.syncs
    rows = rows_of(1, 20)
    for at in range(0, 20, 2):
        assert commit(log, rows[at : at + 2])  # also while it is being synced
    assert begun.wait(30)
    assert threads[-1] != threading.get_ident()
    assert log._writer.syncs == syncs + 1
    closing = threading.Thread(target=log.close)
    closing.start()
    go_on.set()
    closing.join(30)
    assert not closing.is_alive()
    with topic(tmp_path) as again:
        assert again.select("t") == rows


def test_a_sync_aside_that_fails_poisons_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next sync of that file could succeed and say nothing of what was lost."""
    disk = FaultyFileSystem(OS)
    log = topic(tmp_path, disk)
    monkeypatch.setattr("logweir.store.log.SYNC_ASIDE_BYTES", 50_000)
    disk.fault = Fault(1, frozenset({"sync"}), errno.EIO)
    assert commit(log, rows_of(1, 10))
    log._aside.close()  # behind it
    with pytest.raises(WriterPoisoned):
        commit(log, rows_of(11))
    with pytest.raises(WriterPoisoned):
        log.close()
    with topic(tmp_path) as again:
        assert again.count("t") == 10
