"""Reading a split: groups of blocks while all is in order, the log's own reader where it is not.

Blocks are read by windows: headers walked by the kernel, checksums compared, payloads unpacked and
put one after the other until there are about `batch_bytes` of rows, which the kernel reads in
one go. At the first thing that is out of order (a header, a checksum, a malformed row, a
transaction across blocks, the file's end) the place goes to `wal.reader`, which says what it is; so
damage means here what it means everywhere:

* a log must follow the one before it, or rows are missing (`ChainGap`): by the header, which names
  the log before it, and, if that was not closed in order, by how far it reaches;
* an unfinished end is an ending, not damage, and only listed (`report`), unless `recovery` takes it
  for damage too, as zeros in a log of another program; with `live=false` every log must be closed
  by its EOF marker;
* a snapshot without EOF marker is not complete, which is damage;
* damage is raised (`on_error=fail`), left out (`skip`), or left out and listed (`report`).

`verify=false` does not compare checksums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from logweir.errors import ChainGap, DecodeError, LimitExceeded, WalError
from logweir.limits import VCLOCK_COMPONENTS
from logweir.pipeline.arrow import BatchBuilder, Group, Place
from logweir.pipeline.counting import Counter
from logweir.pipeline.missing import begins_behind, lost_within, reached
from logweir.pipeline.options import ScanOptions
from logweir.pipeline.plan import Range, Source, Split
from logweir.pipeline.plan import plan as make_plan
from logweir.pipeline.storage import CutFileSystem, open_storage
from logweir.recovery.chain import foreign_tail, is_bad_tail
from logweir.store.engine.settling import SAYS
from logweir.store.schema.definition import SystemSpace
from logweir.wal.block import FIXHEADER_BYTES, decompress
from logweir.wal.columns import RowColumns
from logweir.wal.crc32c import checksum
from logweir.wal.damage import TAIL_KINDS, Damage, DamageKind, FileEnd
from logweir.wal.filesystem import FileSystem, ReadFile, explain
from logweir.wal.lease import leased
from logweir.wal.reader import WalReader
from logweir.wal.settled import Settled
from logweir.wal.vclock import VClock
from logweir.wal.walk import Walked, walk_blocks
from logweir.wal.xrow import FLAG_COMMIT

_OPEN_ENDS: Final = frozenset(map(FileEnd, TAIL_KINDS)) | {FileEnd.UNCLOSED}


def batches(options: ScanOptions) -> Iterator[pa.RecordBatch]:
    """All batches of a scan, in the order of the log, without Spark.

    Logs are read once: where a row makes a space synchronous, what comes from there on is planned
    anew, since rows behind decide about it.
    """
    with leased(*options.paths):
        planned = make_plan(options, looks=False)
        try:
            for split in planned.splits:
                yield from scan(split, options, planned.spaces)
            return
        except _MayWait as found:
            behind = found
        planned = make_plan(options, waits=True)
        for split in _from(planned.splits, behind.path, behind.offset):
            yield from scan(split, options, planned.spaces)


class _MayWait(Exception):
    """A row of the block there makes a space synchronous."""

    def __init__(self, path: str, offset: int) -> None:
        self.path = path
        self.offset = offset


def _from(splits: Sequence[Split], path: str, offset: int) -> Iterator[Split]:
    """What is left of splits from the block at a place on."""
    is_behind = False
    for split in splits:
        ranges = []
        for one in split.ranges:
            begins = not is_behind and one.source.path == path and one.end > offset
            is_behind |= begins
            if is_behind:
                ranges.append(one._replace(start=offset, exact=True) if begins else one)
        yield Split(tuple(ranges), split.damage)


def scan(
    split: Split, options: ScanOptions, spaces: frozenset[int] = frozenset()
) -> Iterator[pa.RecordBatch]:
    """The batches of one split. `spaces`: ids of the wanted spaces, empty for all.

    Memory: one window and one group of about `batch_bytes`. Raises `CorruptBlock`, `CorruptFile`,
    `ChainGap`, `WalError` as the module says.
    """
    builder = builder_of(options, spaces)
    for one in split.ranges:
        for item in groups(one, options):
            if isinstance(item, Damage):
                if options.on_error == "report":
                    place = _place(one.source)
                    text = f"{item.kind}: {item.message}"
                    yield from builder.damage(place, item.offset, text)
            else:
                yield from builder.build(item)
    for damage in split.damage:
        place = Place(Path(damage.file).name, damage.file, -1, damage.file.endswith(".xlog"))
        yield from builder.damage(place, damage.offset, f"{damage.kind}: {damage.message}")
    yield from builder.rest()


def builder_of(options: ScanOptions, spaces: frozenset[int]) -> BatchBuilder:
    """What makes the batches that the options ask for. `spaces`: as of `scan`."""
    return (Counter if options.counts else BatchBuilder)(options, spaces)


def groups(one: Range, options: ScanOptions) -> Iterator[Group | Damage]:
    """The rows of one range, and, unless `on_error` is `fail`, what is damaged in it."""
    filesystem, _ = open_storage(one.source.location)
    cut = CutFileSystem(filesystem, one.source.size)
    try:
        file = cut.open_read(Path(one.source.path))
    except OSError as error:
        raise _unreadable(error, one.source.path) from error
    try:
        _check_same(one.source, file)
        found = _Ranged(one, options, cut, file).groups()
        if not one.source.looked:
            found = _looking(found)
        yield from found if one.source.settled.is_all else _settled(found, one.source.settled)
    except OSError as error:
        raise _unreadable(error, one.source.path) from error
    finally:
        file.close()


def _check_same(source: Source, file: ReadFile) -> None:
    """Raise `WalError` if the file has not what it had when the scan was planned."""
    hint = "load it again"
    if file.size() < source.size:
        text = "the file became shorter since the scan was planned: "
        text += f"{file.size()} of {source.size} bytes."
        raise WalError(text, path=source.path, hint=f"another program cut it; {hint}")
    if source.head is not None and checksum(file.read(source.first_block, 0)) != source.head:
        text = "the file was replaced by another one of its name since the scan was planned."
        raise WalError(text, path=source.path, hint=hint)


def _unreadable(error: OSError, path: str) -> WalError:
    """The typed error for a file of a plan. No lease stands behind a plan that Spark keeps: where
    it was made the worker has ended, and who will use it, or when, nobody knows."""
    if not isinstance(error, FileNotFoundError):
        return explain(error, path)
    return WalError(
        "the file is gone since the scan was planned.",
        path=path,
        hint="it was collected when newer snapshots stood for it; load the DataFrame anew, inside "
        "`with pipeline.leased(folder):` if its files have to stay until it was read",
    )


def _looking(found: Iterator[Group | Damage]) -> Iterator[Group | Damage]:
    """The groups in front of one that says that a space is synchronous. Raises `_MayWait`."""
    for item in found:
        if not isinstance(item, Damage):
            defines = (item.number("space_id") == np.uint64(SystemSpace.SPACE)).any()
            if defines and SAYS in item.columns.data:
                raise _MayWait(item.place.path, int(item.offsets[0]))
        yield item


def _settled(found: Iterator[Group | Damage], settled: Settled) -> Iterator[Group | Damage]:
    """The groups up to the first row that is not settled, with NOPs for those that were undone."""
    for item in found:
        if isinstance(item, Damage):
            yield item
            continue
        columns = settled.shown(item.columns)
        count = settled.count(columns)
        if count == len(columns):
            yield Group(item.place, columns, item.offsets, item.firsts)
            continue
        if count:
            firsts = item.firsts[item.firsts < count]
            first = RowColumns.scan(columns.data[: columns.row_offset[count]])
            yield Group(item.place, first, item.offsets[: len(firsts)], firsts)
        return


def _place(source: Source) -> Place:
    return Place(Path(source.path).name, source.path, source.number, source.kind == "XLOG")


@dataclass(slots=True)
class _Pending:
    """Blocks that are gathered. `offsets`: of each in the file; `starts`: of its rows in `parts`;
    `size`: bytes of rows; `end`: where the last block ends in the file."""

    parts: list[bytes | memoryview] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    size: int = 0
    end: int = 0


class _Ranged:
    def __init__(
        self, one: Range, options: ScanOptions, filesystem: FileSystem, file: ReadFile
    ) -> None:
        self._range = one
        self._source = one.source
        self._options = options
        self._filesystem = filesystem
        self._file = file
        self._place = _place(one.source)
        self._at = one.start
        """Everything before it was yielded."""

    def groups(self) -> Iterator[Group | Damage]:
        source = self._source
        if (
            source.gap
            and self._range.start == source.first_block
            and not begins_behind(source.vclock, self._options)
        ):
            yield self._gap(source.gap, source.first_block, source.vclock)
        if not self._range.exact:
            with self._reader() as reader:
                found = reader.find_block(self._range.start)
            self._at = self._range.end if found is None else found
        yield from self._quick()
        if self._at < self._range.end or self._range.end == self._source.size:
            yield from self._slow()
        if source.lost is not None and self._range.end == source.size:
            yield self._tolerated(source.lost)

    def _reader(self) -> WalReader:
        skips = self._options.on_error != "fail"
        return WalReader(self._source.path, filesystem=self._filesystem, skip_damage=skips)

    # --- while all is in order --------------------------------------------------------------------

    def _quick(self) -> Iterator[Group]:
        pending = _Pending()
        limit = self._options.batch_bytes
        for walked in walk_blocks(self._file, self._at, self._range.end, whole=True):
            window = memoryview(walked.window)
            whole = True
            for offset, end, data in self._payloads(walked, window):
                if data is None:
                    whole = False
                    break
                pending.parts.append(data)
                pending.offsets.append(offset)
                pending.starts.append(pending.size)
                pending.size += len(data)
                pending.end = end
                if pending.size >= limit:
                    group = self._group(pending)
                    if group is None:
                        return
                    yield group
                    pending = _Pending()
            if pending.size:
                group = self._group(pending)
                if group is None:
                    return
                yield group
                pending = _Pending()
            if not whole:
                return

    def _payloads(
        self, walked: Walked, window: memoryview
    ) -> Iterator[tuple[int, int, bytes | memoryview | None]]:
        """Offset, end and rows of each block; None for the rows of one that is not in order."""
        verify, at = self._options.verify, walked.at
        columns = [walked.column(number).tolist() for number in range(4)]
        for offset, size, crc, packed in zip(*columns, strict=True):
            start = offset + FIXHEADER_BYTES
            stop = start + size
            payload = window[start:stop]
            data: bytes | memoryview | None = payload
            if not size or (verify and checksum(payload) != crc):
                data = None
            elif packed:
                try:
                    data = decompress(payload)
                except (DecodeError, LimitExceeded):
                    data = None
            yield at + offset, at + stop, data
            if data is None:
                return

    def _group(self, pending: _Pending) -> Group | None:
        """The rows of the gathered blocks, None if something about them is not in order."""
        try:
            data = b"".join(pending.parts)
            columns = RowColumns.scan(data)
            columns.transaction_ends()
        except (DecodeError, LimitExceeded):
            return None
        starts = np.array(pending.starts, dtype=np.uint64)
        group = Group(
            self._place,
            columns,
            np.array(pending.offsets, dtype=np.uint64),
            np.searchsorted(np.frombuffer(columns.row_offset, dtype=np.uint64), starts),
        )
        if not _in_order(group, starts):
            return None
        self._at = pending.end
        return group

    # --- where it is not --------------------------------------------------------------------------

    def _slow(self) -> Iterator[Group | Damage]:
        with self._reader() as reader:
            for item in reader.blocks(self._at):
                if item.offset >= self._range.end and self._range.end < self._source.size:
                    return
                if isinstance(item, Damage):
                    if is_bad_tail(item, reader.meta):
                        yield self._tolerated(foreign_tail(item))
                    elif item.kind not in TAIL_KINDS:
                        yield self._tolerated(item)
                    elif self._options.on_error == "report":
                        yield item
                else:
                    yield Group(
                        self._place,
                        item.columns,
                        np.array([item.offset], dtype=np.uint64),
                        np.zeros(1, dtype=np.int64),
                    )
            if self._range.end == self._source.size:
                yield from self._ending(reader)

    def _tolerated(self, damage: Damage) -> Damage:
        """The damage, if the options let it pass."""
        if self._options.on_error == "fail":
            raise damage.to_error()
        return damage

    def _gap(self, text: str, offset: int, expected: VClock, found: VClock | None = None) -> Damage:
        """Missing rows, if the options let that pass. Raises `ChainGap`."""
        path, hint = self._source.path, "rows are missing: `logweir verify` shows where"
        if self._options.on_error == "fail":
            raise ChainGap(text, path=path, expected=expected, found=found, hint=hint)
        return Damage(DamageKind.GAP, path, offset, 0, text, hint)

    def _ending(self, reader: WalReader) -> Iterator[Damage]:
        """Whether the file may end as it does."""
        if reader.end not in _OPEN_ENDS:
            return
        source = self._source
        if source.mark is not None and reader.end_offset < source.mark.offset:
            lost = lost_within(Path(source.path), source.mark, self._filesystem, self._options)
            if lost is not None:
                yield self._tolerated(lost)
                return
        if source.kind == "XLOG" and source.following is not None:
            end = reached(Path(source.path), self._filesystem)
            if end.covers(source.following):
                return
            text = f"ends at {end}, the next log begins at {source.following}."
            yield self._gap(text, reader.end_offset, source.following, end)
        elif source.kind == "SNAP":
            text = "the snapshot has no EOF marker: it is not complete."
            hint = "use an older snapshot and the logs behind it"
            damage = Damage(DamageKind.NO_EOF, source.path, reader.end_offset, 0, text, hint)
            yield self._tolerated(damage)
        elif source.kind == "XLOG" and not self._options.live:
            text = f"the log has no EOF marker ({reader.end}), and live is false."
            hint = "it is still written to, or its writer was killed; live=true takes it as it is"
            damage = Damage(DamageKind.NO_EOF, source.path, reader.end_offset, 0, text, hint)
            yield self._tolerated(damage)


def _in_order(group: Group, starts: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> bool:
    """Whether every block begins with a row and ends with a transaction, all numbers bounded."""
    columns = group.columns
    offsets = np.frombuffer(columns.row_offset, dtype=np.uint64)
    if (group.firsts == len(offsets)).any() or (offsets[group.firsts] != starts).any():
        return False
    lasts = np.append(group.firsts[1:], len(offsets)) - 1
    return (
        bool((group.number("flags")[lasts] & np.uint64(FLAG_COMMIT)).all())
        and int(group.number("replica_id").max()) < VCLOCK_COMPONENTS
        and not int(group.number("lsn").max()) >> 63
    )
