"""Replaying a plan: every row once, whole transactions, from any position to any other."""

from __future__ import annotations

import tracemalloc
from itertools import accumulate
from pathlib import Path

import pytest
from samples import GOOD, sample
from support.logs import INSTANCE, SPACE_ROW, START, insert, transaction, write_snapshot

from logweir.errors import ChainGap, CorruptBlock
from logweir.recovery import (
    Batch,
    RecoveryPlan,
    RecoveryReport,
    examine,
    plan,
    replay,
    snapshot_blocks,
)
from logweir.recovery.policy import plan_from
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter, WriterOptions
from logweir.wal.xrow import Row, encode_row

Position = tuple[int, int]
"""Replica id and lsn."""


def rows(batches: list[Batch]) -> list[Position]:
    """The rows of batches."""
    return [
        (batch.block.columns.replica_id[i], batch.block.columns.lsn[i])
        for batch in batches
        for i in range(batch.first, batch.last)
    ]


def from_the_first_snapshot(report: RecoveryReport) -> RecoveryPlan:
    """A plan that reads all logs of a whole sample."""
    oldest = next(file for file in report.files if file.kind == "snap").log_file
    return plan_from(report, oldest, force=False)


@pytest.mark.parametrize("which", GOOD)
def test_all_rows_of_all_logs_come_once_and_in_order(which: str) -> None:
    """Exactly the rows that the real program reads from the files, from the oldest snapshot on."""
    one = sample(which)
    expected = [
        (row.get("replica_id", 0), row["lsn"])
        for file in one.files
        if file.path.suffix == ".xlog"
        for row in file.rows
    ]
    source = from_the_first_snapshot(examine(one.folder))
    batches = list(replay(source))
    assert rows(batches) == expected
    assert (batches[-1].vclock if batches else source.start) == one.vclock


@pytest.mark.parametrize("which", GOOD)
def test_the_newest_snapshot_and_what_is_behind_it(which: str) -> None:
    """The plan loads the newest snapshot, whole, and only rows that it does not have."""
    one = sample(which)
    report = examine(one.folder)
    opened = plan(report)
    assert opened.snapshot is not None
    newest = one.file(opened.snapshot.path.name)
    assert sum(len(block.columns) for block in snapshot_blocks(opened)) == len(newest.rows)
    start = opened.snapshot.vclock
    assert all(lsn > start.lsn(i) for i, lsn in rows(list(replay(opened))))
    assert opened.vclock == one.vclock


@pytest.mark.parametrize("which", ["02-spaces", "03-replicaset/instance-1"])
def test_every_position_divides_the_rows_in_two(which: str) -> None:
    """Replay after the vclock of any batch gives the rest and nothing twice."""
    source = from_the_first_snapshot(examine(sample(which).folder))
    batches = list(replay(source))
    everything = rows(batches)
    step = max(len(batches) // 40, 1)
    for number, done in list(enumerate(accumulate(b.last - b.first for b in batches)))[::step]:
        assert rows(list(replay(source, after=batches[number].vclock))) == everything[done:]


def test_until_a_vclock_cuts_between_transactions() -> None:
    """For every lsn of a log with transactions: all whole ones up to it, no part of one."""
    one = sample("04-crashed")
    source = from_the_first_snapshot(examine(one.folder))
    commits = {
        row["lsn"]
        for file in one.files
        if file.path.suffix == ".xlog"
        for row in file.rows
        if row.get("commit", "tsn" not in row)
    }
    last = 0
    for lsn in range(175):
        last = lsn if lsn in commits else last
        found = rows(list(replay(source, until=VClock({1: lsn}))))
        assert len(found) == last
    assert len(commits) == 155


def test_until_a_time_stops_in_front_of_the_first_later_transaction(tmp_path: Path) -> None:
    """Transactions of that second are in; the next second's are not."""
    write_log_of(tmp_path, [[1], [2, 3], [4]])
    source = plan(examine(tmp_path))
    assert len(rows(list(replay(source, until=START + 1)))) == 1
    assert len(rows(list(replay(source, until=START + 1.9)))) == 1
    assert len(rows(list(replay(source, until=START + 2)))) == 3
    assert len(rows(list(replay(source, until=START)))) == 0
    assert len(rows(list(replay(source, until=START + 10)))) == 4


def write_log_of(
    folder: Path, transactions: list[list[int]], *, blocks: int = 1, max_bytes: int = 2**20
) -> None:
    """A folder with a snapshot and these transactions of replica 1, `blocks` to a block."""
    write_snapshot(folder, {280: [SPACE_ROW]})
    options = WriterOptions(max_bytes=max_bytes)
    writer = WalWriter(folder, INSTANCE, AppendPoint(VClock()), options=options)
    for first in range(0, len(transactions), blocks):
        group = transactions[first : first + blocks]
        data = b"".join(
            transaction(lsns[0], [insert(512, [lsn]) for lsn in lsns]) for lsns in group
        )
        writer.write([data], VClock({1: group[-1][-1]}))
    writer.close()


def test_rows_that_are_in_the_snapshot_are_cut_off_a_block(tmp_path: Path) -> None:
    """A block that the snapshot divides comes as the part behind it."""
    write_log_of(tmp_path, [[1], [2, 3], [4], [5, 6]], blocks=4)
    write_snapshot(tmp_path, {280: [SPACE_ROW]}, VClock({1: 3}))
    (batch,) = replay(plan(examine(tmp_path)))
    assert (batch.first, batch.last) == (3, 6)
    assert batch.block.columns.lsn[batch.first] == 4
    assert bytes(batch.data) == batch.block.data[batch.block.columns.row_offset[3] :]
    assert batch.position.offset == batch.block.end


def test_rows_of_another_replica_in_the_middle_divide_a_block(tmp_path: Path) -> None:
    """One block, rows of two replicas, one of them known: the rest comes in runs, none twice."""
    write_snapshot(tmp_path, {280: [SPACE_ROW]})
    order = [(1, 1), (2, 1), (2, 2), (1, 2), (1, 3), (2, 3), (1, 4)]
    block = b"".join(
        encode_row(Row(2, replica_id=i, lsn=lsn, tsn=lsn, body=insert(512, [lsn])[1]))
        for i, lsn in order
    )
    writer = WalWriter(tmp_path, INSTANCE, AppendPoint(VClock()))
    writer.write([block], VClock({1: 4, 2: 3}))
    writer.close()
    source = plan(examine(tmp_path))
    batches = list(replay(source, after=VClock({2: 2})))
    assert [(batch.first, batch.last) for batch in batches] == [(0, 1), (3, 7)]
    assert rows(batches) == [(1, 1), (1, 2), (1, 3), (2, 3), (1, 4)]
    assert batches[0].position.offset == batches[0].block.offset
    assert batches[-1].position.offset == batches[0].block.end
    assert batches[-1].vclock == {1: 4, 2: 3}
    assert rows(list(replay(source, after=VClock({1: 4, 2: 3})))) == []
    since = examine(tmp_path, since=batches[0].position)
    assert since.ok
    assert since.vclock == {1: 4, 2: 3}
    assert rows(list(replay(plan(since)))) == [(1, 2), (1, 3), (2, 3), (1, 4)]


def test_local_rows_count_only_where_the_vclock_names_them() -> None:
    """`until` without component 0 lets all local rows pass, with it only those up to there."""
    source = from_the_first_snapshot(examine(sample("02-spaces").folder))
    free = rows(list(replay(source, until=VClock({1: 450}))))
    assert max(lsn for i, lsn in free if i == 0) == 8
    bound = rows(list(replay(source, until=VClock({0: 3, 1: 450}))))
    assert max(lsn for i, lsn in bound if i == 0) == 3
    assert len(bound) < len(free)


def test_memory_does_not_depend_on_the_number_of_rows(tmp_path: Path) -> None:
    """One block at a time, whatever the log's size."""
    write_log_of(tmp_path, [[lsn] for lsn in range(1, 60_001)], blocks=1000, max_bytes=10**6)
    source = plan(examine(tmp_path))
    tracemalloc.start()
    try:
        count = sum(batch.last - batch.first for batch in replay(source))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 60_000
    assert peak < 8 * 2**20


def test_a_log_that_changed_since_it_was_examined_is_an_error(tmp_path: Path) -> None:
    """A plan is only as good as the bytes it was made from."""
    write_log_of(tmp_path, [[1], [2], [3]])
    source = plan(examine(tmp_path))
    path = next(tmp_path.glob("*.xlog"))
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptBlock, match="no longer what was examined"):
        list(replay(source))


def test_rows_that_came_after_the_examination_are_not_read(tmp_path: Path) -> None:
    """A live folder: the plan's end is the end that was examined."""
    write_log_of(tmp_path, [[1], [2], [3]])
    report = examine(tmp_path)
    writer = WalWriter(tmp_path, INSTANCE, report.append_point)
    writer.write([transaction(4, [insert(512, [4])])], VClock({1: 4}))
    assert rows(list(replay(plan(report)))) == [(1, 1), (1, 2), (1, 3)]
    writer.close()


def test_reading_from_further_back_meets_the_damage_there(tmp_path: Path) -> None:
    """A plan from an older snapshot does not pass over what is missing behind it."""
    write_log_of(tmp_path, [[lsn] for lsn in range(1, 61)], max_bytes=700)
    write_snapshot(tmp_path, {280: [SPACE_ROW]}, VClock({1: 50}))
    second, third = sorted(tmp_path.glob("*.xlog"))[1:3]
    begin = int(third.name[:20])
    good = third.read_bytes()
    data = bytearray(good)
    data[-5] ^= 1
    third.write_bytes(data)
    report = examine(tmp_path)
    assert plan(report).lost == ()
    source = from_the_first_snapshot(report)
    with pytest.raises((CorruptBlock, ChainGap)):
        list(replay(source))
    before = rows(list(replay(source, until=VClock({1: begin}))))
    assert before == [(1, lsn) for lsn in range(1, begin + 1)]
    third.write_bytes(good)
    second.unlink()
    with pytest.raises(ChainGap) as caught:
        list(replay(from_the_first_snapshot(examine(tmp_path))))
    assert caught.value.found == {1: begin}
