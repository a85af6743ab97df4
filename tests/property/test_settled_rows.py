"""Readers of what is settled against a model: any history, any restart, any place to begin at."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from property.test_synchronous_rows import OWNER, SPACES, Model, decision, prepared, replace_row
from support.folding import prepared_here, state_here

import logweir
from logweir import pipeline
from logweir.pipeline.options import ScanOptions
from logweir.pipeline.reading import scan
from logweir.pipeline.tail import Tail
from logweir.store.commit.applying import APPLIED
from logweir.store.commit.jobs import Job
from logweir.store.log import Log
from logweir.wal.columns import RowColumns
from logweir.wal.follow import Follower
from logweir.wal.mp import unpack
from logweir.wal.reader import Block
from logweir.wal.vclock import VClock
from logweir.wal.xrow import Row, RowType, encode_rows

changes = st.one_of(
    st.tuples(st.sampled_from(["s", "a"]), st.integers(0, 5)),
    st.tuples(st.just("confirm"), st.integers(0, 6)),
    st.tuples(st.just("rollback"), st.integers(0, 6)),
    st.tuples(st.just("all"), st.just(0)),  # a ROLLBACK that names no lsn
)
steps = st.lists(
    st.one_of(
        st.lists(changes, min_size=1, max_size=5),  # one commit, mostly one block
        st.sampled_from(["kill", "close", "rebuild", "snapshot"]),
    ),
    max_size=12,
)


class Shown(Model):
    """What is to be shown: `lsns`, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.lsns: list[int] = []

    def insert(self, lsn: int, space: str, key: int) -> None:
        super().insert(lsn, space, key)
        self.lsns += [] if self.queue else [lsn]

    def confirm(self, upto: int) -> None:
        before = [entry[0] for entry in self.queue]
        super().confirm(upto)
        self.lsns += before[: len(before) - len(self.queue)]

    def change(self, lsn: int, what: str, number: int) -> Row:
        """Do what a row does, which is returned."""
        if what in SPACES:
            self.insert(lsn, what, number)
            return replace_row(lsn, what, number)
        about = -1 if what == "all" else max(lsn - 1 - number, 0)
        if what == "confirm":
            self.confirm(about)
            return decision(RowType.CONFIRM, lsn, about)
        waits = [entry[0] for entry in self.queue if entry[1] == "s"]
        if what == "rollback":  # it names a row that waits
            about = next((one for one in waits if one >= about), 2**40)
        self.rollback(about)
        return decision(RowType.ROLLBACK, lsn, about)


def commit(log: Log, rows: list[Row]) -> None:
    """Rows of another instance, each a transaction, in one commit."""
    columns = RowColumns.scan(encode_rows(rows))

    def apply(group: object) -> None:
        for row in range(len(columns)):
            group.add_transaction(columns, row, row + 1)  # type: ignore[attr-defined]

    log.inner.run_job(Job(apply, 100))


def lsns_of(blocks: Iterable[Block]) -> Iterator[int]:
    """Of the changes of the owner, as who shows contents takes them."""
    for block in blocks:
        columns = block.columns
        for kind, replica_id, lsn in zip(
            columns.type, columns.replica_id, columns.lsn, strict=True
        ):
            if kind in APPLIED and replica_id == OWNER:
                yield lsn


class Reader:
    """A follower of what is settled, that comes again at its position."""

    def __init__(self) -> None:
        self.position: VClock | None = None
        self.found: list[int] = []
        self._open: Follower | None = None

    def take(self, log: Log) -> list[int]:
        """All that it was given, ever."""
        if self._open is None:
            start = log.oldest_position if self.position is None else self.position
            self._open = Follower(
                log.path, start, durable=lambda: log.inner.durable_end, settled=log.inner.settled
            )
        self.found += lsns_of(self._open.poll())
        self.position = self._open.vclock
        return self.found

    def leave(self) -> None:
        """Close it; it comes again at the next `take`."""
        if self._open is not None:
            self._open.close()
            self._open = None


class Stream:
    """The stream of Spark without Spark: offsets of one step after the other."""

    def __init__(self, folder: Path) -> None:
        self._options = ScanOptions(paths=(str(folder),), columns=("type", "replica_id", "lsn"))
        self._tail = Tail(self._options)
        self._position = self._tail.oldest()
        self.found: list[int] = []

    def take(self, *, again: bool) -> list[int]:
        """All that it read, ever. `again`: by another process, as after a restart."""
        if again:
            self.close()
            self._tail = Tail(self._options)
        end = self._tail.advance(self._position)
        for split in self._tail.splits(self._position, end):
            self.found += spark_lsns(scan(split, self._options))
        self._position = end
        return self.found

    def close(self) -> None:
        """Close its files."""
        self._tail.close()


def spark_lsns(batches: Iterable[object]) -> list[int]:
    """Of the changes of the owner in Arrow batches."""
    return [
        row["lsn"]
        for batch in batches
        for row in batch.to_pylist()  # type: ignore[attr-defined]
        if row["type"] in APPLIED and row["replica_id"] == OWNER
    ]


def check_state(log: Log) -> None:
    """What the pipeline folds out of the files is what the store shows."""
    prepared = prepared_here(log.path)
    assert prepared.vclock == log.applied
    left = state_here(prepared)
    for name, space_id in SPACES.items():
        folded = [tuple(unpack(data)) for data in left.get(space_id, [])]
        assert folded == log.select(name)


@settings(max_examples=25, deadline=None)
@given(steps)
def test_readers_of_what_is_settled_give_the_model(
    history: list[str | list[tuple[str, int]]],
) -> None:
    """One that stays, one that comes again at its position each time, one that begins with the
    oldest row, the scan and the stream of the pipeline: each gives what is confirmed, in the
    order of the log, each once, and nothing that waits or is undone. A stream takes whole blocks:
    it may be behind."""
    with tempfile.TemporaryDirectory() as parent, contextlib.ExitStack() as stack:
        folder = Path(parent) / "d"
        prepared(folder)
        model, lsn = Shown(), 0
        log = logweir.open(folder, durability="write")
        stays, comes, stream = Reader(), Reader(), Stream(folder)
        stack.callback(stream.close)
        try:
            for step in history:
                if isinstance(step, list):
                    rows = []
                    for what, number in step:
                        lsn += 1
                        rows.append(model.change(lsn, what, number))
                    commit(log, rows)
                elif step == "snapshot":
                    log.snapshot()
                else:
                    stays.leave()
                    log.close() if step == "close" else log.inner.abandon()
                    if step == "rebuild":
                        shutil.rmtree(folder / "state")
                    log = logweir.open(folder, durability="write")
                assert stays.take(log) == model.lsns
                assert comes.take(log) == model.lsns
                comes.leave()
                oldest = log.oldest_position.lsn(OWNER)  # snapshots let older logs go
                left = [one for one in model.lsns if one > oldest]
                fresh = Reader()
                assert fresh.take(log) == left
                fresh.leave()
                given_rows = [row for each in log.rows(settled=True) for row in each.rows]
                shown = [row for row in given_rows if row.type in APPLIED]
                assert [row.lsn for row in shown if row.replica_id == OWNER] == left
                columns = ["type", "replica_id", "lsn"]
                scanned = pipeline.batches(folder, columns=columns, kinds="xlog")
                assert spark_lsns(scanned) == left
                read = stream.take(again=isinstance(step, str))
                assert read == model.lsns[: len(read)]
            check_state(log)
            if model.queue:
                log.end_waiting(confirm=True)
                model.confirm(lsn)
            log.replace("a", (99, 0))
            assert stays.take(log) == comes.take(log) == model.lsns
            check_state(log)
            assert stream.take(again=True) == model.lsns
        finally:
            for one in (stays, comes):
                one.leave()
            log.close()
