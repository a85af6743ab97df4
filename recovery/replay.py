"""Reading what a plan says must be applied: the snapshot's rows, then the logs' behind it.

The unit is a `Batch`: rows `first` … `last - 1` of one block, whole transactions, none of them
applied before. Nearly always that is the whole block. Where a block holds rows that the snapshot or
`after` already has, they are cut off; where they stand in its middle the block comes as several
batches. Memory: one block, whatever the folder's size.

A batch consumer loops like this::

    for batch in replay(plan):
        columns = batch.block.columns
        for i in range(batch.first, batch.last): …   # or hand columns and range to a kernel
        commit(batch.vclock, batch.position)
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from logweir.errors import ChainGap, CorruptBlock
from logweir.limits import DAMAGED_PLACES
from logweir.recovery.policy import RecoveryPlan
from logweir.recovery.report import FileReport, Hole, LogPosition
from logweir.wal.damage import TAIL_KINDS, Damage, FileEnd
from logweir.wal.reader import Block, WalReader
from logweir.wal.vclock import VClock


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to apply: whole transactions, none applied before.

    `block`: where they stand; `first`, `last`: the first row and the row after the last; `lsns`:
    the lsn of each replica id after them (32 numbers); `is_final`: no batch of this block follows.
    """

    block: Block
    first: int
    last: int
    lsns: array[int]
    is_final: bool

    @property
    def vclock(self) -> VClock:
        """The state after these rows."""
        return VClock({i: lsn for i, lsn in enumerate(self.lsns) if lsn})

    @property
    def position(self) -> LogPosition:
        """Where reading would go on after this batch: behind the block, or, where another batch of
        it follows, at the block's begin."""
        offset = self.block.end if self.is_final else self.block.offset
        return LogPosition(self.block.path.rpartition("/")[2], offset, self.vclock)

    @property
    def data(self) -> memoryview:
        """The rows' bytes."""
        columns = self.block.columns
        return memoryview(columns.data)[
            columns.row_offset[self.first] : columns.end_offset[self.last - 1]
        ]


def snapshot_blocks(plan: RecoveryPlan) -> Iterator[Block]:
    """The blocks of the plan's snapshot; nothing if it has none. Raises `CorruptBlock`."""
    if plan.snapshot is None:
        return
    with WalReader(plan.snapshot.path, filesystem=plan.report.filesystem) as reader:
        for item in reader.blocks():
            if isinstance(item, Damage):
                raise _changed(item.file, item.offset)
            yield item
        if reader.end is not FileEnd.CLEAN:
            raise _changed(str(reader.path), reader.end_offset)


def replay(
    plan: RecoveryPlan,
    *,
    after: VClock | None = None,
    until: VClock | float | None = None,
) -> Iterator[Batch]:
    """The rows of the plan's logs that come after its start.

    `after`: what is applied already (default: the plan's start); `until`: stop in front of the
    first transaction that is not in this vclock (its component 0, local rows, counts only if it
    is set), or that is later than this time in seconds since the epoch. Raises `CorruptBlock` or
    `ChainGap` where a file is no longer what was examined, and at damage behind `after` that the
    plan, which may begin later, did not meet.
    """
    for item in walk(plan, after=after, until=until):
        if isinstance(item, Batch):
            yield item


def walk(
    plan: RecoveryPlan,
    *,
    after: VClock | None = None,
    until: VClock | float | None = None,
) -> Generator[Batch | Hole]:
    """As `replay`, with the places where rows are missing: those that the plan, with force, passes
    over, and those that the headers of the logs record."""
    vclock = plan.start if after is None else after
    for number, log in enumerate(plan.xlogs):
        if not vclock.covers(log.vclock):
            if _is_there(vclock, until):
                return
            recorded = Hole.before_log(log.meta, vclock)
            if not plan.force and recorded is None:
                raise ChainGap(
                    f"the log begins at {log.vclock}, what is before it ends at {vclock}.",
                    path=str(log.path),
                    expected=vclock,
                    found=log.vclock,
                    hint="rows are missing: `logweir verify` shows where",
                )
            hole = recorded or Hole(vclock, vclock.merge(log.vclock))
            vclock = vclock.merge(log.vclock)
            yield hole
        yield from (hole for hole in Hole.in_header(log.meta) if hole.before is None)
        lsns = array("Q", vclock.lsns())
        for item in _walk_log(plan, number, lsns, until):
            if item is None:
                return
            yield item
        vclock = _vclock(lsns)


def _walk_log(
    plan: RecoveryPlan, number: int, lsns: array[int], until: VClock | float | None
) -> Iterator[Batch | Hole | None]:
    """The rows of log `number` of the plan that come after `lsns`, which goes along with them; None
    where `until` is reached.

    With force a log gives no rows after the vclock at which the next one begins.
    """
    log = plan.xlogs[number]
    is_newest = number == len(plan.xlogs) - 1
    limit = None if is_newest or not plan.force else plan.xlogs[number + 1].vclock
    report = plan.report.file(log.path)
    if report is None:
        raise _changed(str(log.path), 0)
    damage = list(report.damage)
    for block in _log_blocks(plan, report, _vclock(lsns)):
        met: Damage | None = None
        while damage and damage[0].offset <= block.offset:
            met = damage.pop(0)
        for batch in _batches(block, lsns, limit, until):
            if batch is None:
                yield None
                return
            if met is not None and not plan.force:
                if _is_there(_vclock(lsns), until):
                    yield None
                    return
                raise met.to_error()
            if met is not None and (hole := _hole(batch, _vclock(lsns))):
                yield hole
            met = None
            lsns[:] = batch.lsns
            yield batch
    # An older log's end is compared with where the next one begins.
    is_judged = is_newest and not plan.force and not _is_there(_vclock(lsns), until)
    if is_judged and damage and damage[-1].offset >= report.end_offset:
        raise damage[-1].to_error()


def _is_there(vclock: VClock, until: VClock | float | None) -> bool:
    """Whether everything that was asked for was read, so that what is missing matters not."""
    return isinstance(until, VClock) and vclock.covers(until)


def _hole(batch: Batch, vclock: VClock) -> Hole | None:
    """What is missing between `vclock` and the first rows of a batch."""
    columns = batch.block.columns
    first: dict[int, int] = {}
    for row in range(batch.last - 1, batch.first - 1, -1):
        first[columns.replica_id[row]] = columns.lsn[row] - 1
    before = vclock.merge(first)
    return None if before == vclock else Hole(vclock, before)


def _log_blocks(plan: RecoveryPlan, report: FileReport, vclock: VClock) -> Iterator[Block]:
    """The blocks of one log as they were examined, the damage in it passed over."""
    if vclock.covers(report.last_vclock):
        return
    since = plan.since
    offset = since.offset if since is not None and since.path == report.path.name else None
    known = {damage.offset for damage in report.damage}
    with WalReader(
        report.path,
        filesystem=plan.report.filesystem,
        skip_damage=True,
        header=report.meta if report.header_is_lost else None,
    ) as reader:
        for item in reader.blocks(offset):
            if item.offset >= report.end_offset:
                return
            if isinstance(item, Block):
                yield item
                if item.end >= report.end_offset:
                    return
            elif item.kind in TAIL_KINDS or (
                item.offset not in known and len(known) < DAMAGED_PLACES
            ):
                raise _changed(item.file, item.offset)


def _changed(path: str, offset: int) -> CorruptBlock:
    return CorruptBlock(
        "the file is no longer what was examined.",
        path=path,
        offset=offset,
        hint="another program changed it in the meantime: examine the folder again",
    )


def _batches(
    block: Block, before: array[int], limit: VClock | None, until: VClock | float | None
) -> Iterator[Batch | None]:
    """The rows of one block that `before` does not have, in runs; None where `until` is reached."""
    columns = block.columns
    count = len(columns)
    stop = count if until is None else _stop(block, until)
    lsns = before[:]
    is_new = columns.raise_lsns(lsns) is None
    if is_new and stop == count and (limit is None or limit.covers(_vclock(lsns))):
        yield Batch(block, 0, count, lsns, is_final=True)
        return
    runs = list(_runs(block, before[:], limit, stop))
    for number, (first, last, state) in enumerate(runs, 1):
        is_final = number == len(runs) and stop == count
        yield Batch(block, first, last, state, is_final)
    if stop < count:
        yield None


def _vclock(lsns: array[int]) -> VClock:
    return VClock({i: lsn for i, lsn in enumerate(lsns) if lsn})


def _runs(
    block: Block, lsns: array[int], limit: VClock | None, stop: int
) -> Iterator[tuple[int, int, array[int]]]:
    """Runs of rows in front of row `stop` that `lsns` does not have and `limit` allows; each with
    the state after it."""
    columns = block.columns
    ids, row_lsns = columns.replica_id, columns.lsn
    first = None
    for row in range(stop):
        replica_id, lsn = ids[row], row_lsns[row]
        wanted = lsn > lsns[replica_id] and (limit is None or lsn <= limit.lsn(replica_id))
        if wanted:
            lsns[replica_id] = lsn
            first = row if first is None else first
        elif first is not None:
            yield first, row, lsns[:]
            first = None
    if first is not None:
        yield first, stop, lsns[:]


def _stop(block: Block, until: VClock | float) -> int:
    """The row in front of which `until` says to stop; the number of rows for none."""
    columns = block.columns
    count = len(columns)
    if isinstance(until, VClock):
        free = 0 not in until
        last = columns.last_lsns()
        if all(lsn <= until.lsn(i) or (free and i == 0) for i, lsn in last.items()):
            return count
    for first, end in columns.transactions():
        for row in range(first, end):
            replica_id = columns.replica_id[row]
            if isinstance(until, VClock):
                over = columns.lsn[row] > until.lsn(replica_id) and (replica_id or not free)
            else:
                over = columns.timestamp[row] > until
            if over:
                return first
    return count
