"""Reading one file from end to end for a report: rows, their order, damage and how it ends.

Checked for every block by the reader: fixheader, checksum, decompression, rows, whole
transactions. Checked here: in a log the lsns of each replica id rise strictly from the header's
`VClock` on (an lsn that comes twice is damage; one that jumps is legal in Tarantool's files, where
a replica logs what it was sent, and only worth a warning); a snapshot holds INSERT rows only and
ends with its EOF marker.

How many rows damage cost is told by the first whole block behind it: the jump of its lsns.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from logweir.errors import CorruptFile, WalError
from logweir.limits import DAMAGED_PLACES, VCLOCK_COMPONENTS
from logweir.recovery.chain import is_bad_tail
from logweir.recovery.report import FileReport
from logweir.wal.columns import RowColumns
from logweir.wal.damage import TAIL_KINDS, Damage, DamageKind, FileEnd
from logweir.wal.directory import LogFile
from logweir.wal.filesystem import FileSystem
from logweir.wal.meta import Meta
from logweir.wal.ordered import Ordered, Stretch
from logweir.wal.reader import Block, WalReader
from logweir.wal.render import words
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

Progress = Callable[[int], None]
"""Called with the number of bytes that were read since the last call."""

Look = Callable[[Block], object]
"""Called with each block that is whole, in the order of the file."""

_PROGRESS_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Located:
    """Damage, and the first row behind it: (replica id, lsn), None if nothing readable follows."""

    damage: Damage
    next_row: tuple[int, int] | None = None

    def is_before(self, vclock: VClock) -> bool:
        """Whether who starts at a vclock has all that was lost here."""
        return self.next_row is not None and vclock.lsn(self.next_row[0]) >= self.next_row[1]


@dataclass(frozen=True, slots=True)
class LogScan:
    """One file that was read. `tail`: its unfinished end, if it has one (`TAIL_KINDS`);
    `first_row`: replica id and lsn of its first row, None if it has none."""

    log: LogFile
    report: FileReport
    located: tuple[Located, ...] = ()
    tail: Damage | None = None
    first_row: tuple[int, int] | None = None

    @property
    def is_torn_in_order(self) -> bool:
        """Whether the unfinished end, if there is one, may be what a crash leaves."""
        return self.tail is None or not is_bad_tail(self.tail, self.log.meta)

    @property
    def is_damaged_at_end(self) -> bool:
        """Whether nothing that is readable follows its last damage."""
        return bool(self.located) and self.located[-1].next_row is None

    @property
    def reached(self) -> VClock:
        """Of a log: the state after its last row."""
        return self.report.last_vclock


@dataclass(slots=True)
class _Counts:
    """What is gathered block by block."""

    rows: int = 0
    blocks: int = 0
    transactions: int = 0
    first: RowColumns | None = None
    last_timestamp: float | None = None
    end: int = 0
    located: list[Located] = field(default_factory=list)
    unnamed: int = 0
    tail: Damage | None = None
    jumps: int = 0
    first_jump: str = ""

    def add(self, block: Block) -> None:
        self.last_timestamp = block.columns.timestamp[-1]
        self.end = block.end
        self.blocks += 1
        self.rows += len(block.columns)
        self.transactions += len(block.columns.transaction_ends())
        if self.first is None:
            self.first = block.columns

    def add_damage(self, damage: Damage, next_row: tuple[int, int] | None = None) -> None:
        if len(self.located) < DAMAGED_PLACES:
            self.located.append(Located(damage, next_row))
        else:
            self.unnamed += 1


def scan_log(
    log: LogFile,
    filesystem: FileSystem,
    progress: Progress,
    known: Sequence[Stretch] = (),
    *,
    offset: int | None = None,
    vclock: VClock | None = None,
    header_is_lost: bool = False,
    look: Look | None = None,
) -> LogScan:
    """Read one log, from `offset` and `vclock` on where they are given, else all of it.

    `known`: stretches that were gone over already. `header_is_lost`: believe `log.meta`, not the
    file. `look`: is shown every block. Raises `WalError` if the file is not there any more.
    """
    start = log.vclock if vclock is None else vclock
    lsns = array("Q", start.lsns())
    counts = _Counts()
    reader = _open(log, filesystem, log.meta if header_is_lost else None)
    if isinstance(reader, LogScan):
        return reader
    with reader:
        pending: list[Damage] = []
        ordered = Ordered(reader, lsns, known)
        for item in _items(reader, offset, progress, None if look else ordered):
            if isinstance(item, Damage):
                if item.kind in TAIL_KINDS:
                    counts.tail = item
                else:
                    pending.append(item)
                continue
            if vclock is not None and not counts.blocks:
                _step_back(item, lsns)
            _add_log_block(item, lsns, counts, pending)
            pending = []
            if look is not None:
                look(item)
        for damage in pending:
            counts.add_damage(damage)
        reached = start.merge({i: lsn for i, lsn in enumerate(lsns) if lsn})
        return _finish(log, reader, counts, ordered, start, reached)


def scan_snapshot(
    snap: LogFile, filesystem: FileSystem, progress: Progress, known: Sequence[Stretch] = ()
) -> LogScan:
    """Read one snapshot. `known`: stretches that were gone over already. Raises `WalError` if the
    file is not there any more."""
    counts = _Counts()
    reader = _open(snap, filesystem)
    if isinstance(reader, LogScan):
        return reader
    with reader:
        ordered = Ordered(reader, array("Q", bytes(8 * VCLOCK_COMPONENTS)), known)
        for item in _items(reader, None, progress, ordered):
            if not isinstance(item, Damage):
                counts.add(item)
                types = item.columns.type.tobytes()
                if types != array("Q", (RowType.INSERT,)).tobytes() * len(item.columns):
                    text = "a row of the snapshot is no INSERT."
                    counts.add_damage(_damage(DamageKind.ROWS, reader, item, text))
            elif item.kind not in TAIL_KINDS:
                counts.add_damage(item)
        if reader.end is not FileEnd.CLEAN and not counts.located:
            text = "the snapshot has no EOF marker: it is not complete."
            at = reader.end_offset
            hint = "nothing can start from it; use an older snapshot or a copy"
            size = reader.size - at
            counts.add_damage(Damage(DamageKind.NO_EOF, str(snap.path), at, size, text, hint=hint))
        return _finish(snap, reader, counts, ordered, snap.vclock, snap.vclock)


def _open(log: LogFile, filesystem: FileSystem, header: Meta | None = None) -> WalReader | LogScan:
    """A reader; or a scan that says why there is none, if the file could be opened before."""
    try:
        return WalReader(log.path, filesystem=filesystem, skip_damage=True, header=header)
    except WalError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise
        kind = DamageKind.HEADER if isinstance(error, CorruptFile) else DamageKind.UNREADABLE
        text = f"cannot be read: {error.reason}"
        damage = Damage(kind, str(log.path), 0, log.size, text, hint=error.hint)
        report = FileReport(
            log.path, log.suffix, log.meta, log.size, log.vclock, log.vclock, damage=(damage,)
        )
        return LogScan(log, report, (Located(damage),))


def _items(
    reader: WalReader, offset: int | None, progress: Progress, ordered: Ordered | None
) -> Iterator[Block | Damage]:
    """The reader's items; a place that the disk cannot read is damage up to the file's end.

    `ordered`: goes over what is in order behind a block, so that this is no item.
    """
    at = reader.first_block if offset is None else offset
    told = offset or 0
    try:
        items = reader.blocks(offset)
        while (item := next(items, None)) is not None:
            yield item
            at = item.end if isinstance(item, Block) else item.offset + item.size
            if ordered is not None and isinstance(item, Block):
                behind = ordered.behind(at)
                if behind > at:
                    at, items = behind, reader.blocks(behind)
            if at - told >= _PROGRESS_BYTES:
                progress(at - told)
                told = at
    except WalError as error:
        hint = error.hint
        text = f"cannot be read: {error.reason}"
        yield Damage(DamageKind.UNREADABLE, str(reader.path), at, reader.size - at, text, hint=hint)
    progress(max(reader.size - told, 0))


def _step_back(block: Block, lsns: array[int]) -> None:
    """Set `lsns` to before a block of which a part is applied already."""
    for replica_id, lsn in zip(block.columns.replica_id, block.columns.lsn, strict=True):
        lsns[replica_id] = min(lsns[replica_id], max(lsn, 1) - 1)


def _add_log_block(block: Block, lsns: array[int], counts: _Counts, pending: list[Damage]) -> None:
    columns = block.columns
    before = sum(lsns)
    odd = columns.raise_lsns(lsns)
    missing = sum(lsns) - before - len(columns)
    if not missing and not pending and odd is None:
        counts.add(block)
        return
    next_row = (columns.replica_id[0], columns.lsn[0])
    for number, damage in enumerate(pending):
        lost = max(missing, 0) if number == len(pending) - 1 else None
        counts.add_damage(replace(damage, rows_lost=lost), next_row)
    if odd is not None:
        replica_id, lsn = columns.replica_id[odd], columns.lsn[odd]
        counts.add_damage(
            Damage(
                DamageKind.ORDER,
                block.path,
                block.offset,
                block.end - block.offset,
                f"lsn {lsn} of replica {replica_id} is used twice or out of order.",
                hint="two programs wrote to this log, or a copy was put together wrongly: restore "
                "from a copy, or keep what is whole with `logweir repair DIR --to NEW`",
                replica_id=replica_id,
                lsn_before=lsns[replica_id],
                lsn_after=lsn,
                rows_lost=0,
            ),
            next_row,
        )
    elif missing and not pending:
        counts.jumps += 1
        if counts.jumps == 1:
            counts.first_jump = (
                f"{block.path} at byte {block.offset}: lsns jump, {missing} are not there up to "
                f"lsn {columns.lsn[-1]} of replica {columns.replica_id[-1]}"
            )
    counts.add(block)


def _damage(kind: DamageKind, reader: WalReader, block: Block, text: str) -> Damage:
    size = block.end - block.offset
    hint = "restore it from a copy, or use an older snapshot"
    return Damage(kind, str(reader.path), block.offset, size, text, hint=hint)


def _finish(
    log: LogFile,
    reader: WalReader,
    counts: _Counts,
    ordered: Ordered,
    first: VClock,
    last: VClock,
) -> LogScan:
    located = counts.located
    if counts.unnamed:
        final = located[-1]
        behind = words(counts.unnamed, "more damaged place")
        text = f"{final.damage.message} Behind it in this file: {behind}."
        located[-1] = Located(replace(final.damage, message=text, rows_lost=None), None)
    warnings = []
    if counts.jumps:
        more = f" ({counts.jumps - 1} more such places)" if counts.jumps > 1 else ""
        warnings.append(
            f"{counts.first_jump}{more}. Legal where it is a replica's log; else rows were lost."
        )
    report = FileReport(
        path=log.path,
        kind=log.suffix,
        meta=reader.meta,
        size=reader.size,
        first_vclock=first,
        last_vclock=last,
        rows=counts.rows + ordered.rows,
        blocks=counts.blocks + ordered.blocks,
        transactions=counts.transactions + ordered.transactions,
        first_timestamp=counts.first.timestamp[0] if counts.first else None,
        last_timestamp=ordered.timestamp if ordered.end > counts.end else counts.last_timestamp,
        end=reader.end,
        end_offset=reader.end_offset,
        unsynced_offset=reader.unsynced_offset,
        damage=tuple(one.damage for one in located),
        warnings=tuple(warnings),
        tail=counts.tail,
    )
    row = None
    if counts.first is not None:
        row = counts.first.replica_id[0], counts.first.lsn[0]
    return LogScan(log, report, tuple(located), counts.tail, row)
