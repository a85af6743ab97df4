"""Examining a folder: every file, every block, and how the files follow one another. Reads only.

What is looked at, in this order:

1. names and headers (`wal.directory`): kind, signature, instance, order of vclocks;
2. every snapshot: checksums, rows, EOF marker;
3. every log: checksums, rows, whole transactions, order of lsns;
4. every border between two logs: `PrevVClock` of the newer is `VClock` of the older, **and** the
   vclock really reached at the end of the older is `VClock` of the newer. Comparing headers alone
   would miss rows that an older file lost at its end;
5. from the newest whole snapshot: which logs must be read, and which damage stands in their way;
6. whether that goes as far as the end mark (`wal.endmark`) says, if there is one.

How a file may end without being damaged:

==============  ================================================================================
ending          accepted
==============  ================================================================================
clean           always
unclosed, torn  in the newest log; in an older one (with a warning) where no row is missing
zero, unsynced  as torn, in a log that logweir wrote (header `Version`). A real Tarantool 2.6.0
                refuses a file that ends in zeros (observed), so in its logs this is damage
anything else   never
==============  ================================================================================

Damage that lies before the snapshot (in older logs, or in front of a row that the snapshot holds)
is reported but does not block. A damaged snapshot does not block where an older whole one has every
row behind it in the logs. Sources: Tarantool 2.6.0, observed; `recovery.cc`, `memtx_engine.c`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from logweir.errors import DecodeError, WalError
from logweir.recovery.chain import border, foreign_tail, missing_begin, missing_end, own_mark
from logweir.recovery.headerless import scan_headerless
from logweir.recovery.logscan import Located, LogScan, scan_log, scan_snapshot
from logweir.recovery.report import HOLE_ITEM, FileReport, Hole, LogPosition, RecoveryReport
from logweir.recovery.unfinished import UNFINISHED_NAME, unfinished_copy
from logweir.wal.damage import Damage, DamageKind, FileEnd
from logweir.wal.directory import DirectoryIndex, LogFile, Suffix, no_snapshot, scan_directory
from logweir.wal.endmark import EndMark, load_end_mark
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.resync import Unsynced
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes there are."""

Scans = Callable[[Sequence[LogFile], Sequence[LogFile]], list[LogScan]]
"""Reads snapshots and logs, as `scan_snapshot` and `scan_log` do, all of the first, then all of the
others: for whoever can read many files at a time."""

_ATTEMPTS: Final = 5


def examine(
    directory: Path,
    *,
    since: LogPosition | None = None,
    filesystem: FileSystem = OS,
    progress: Progress | None = None,
    headerless: bool = False,
    scans: Scans | None = None,
) -> RecoveryReport:
    """Read a folder and say what it holds. Never writes.

    `since`: everything up to there is known to be applied, so only what is behind it is read: the
    cost does not depend on the log's length. If it does not lie in the folder's log the whole
    folder is read, and the report's `since` is None. `headerless`: also read logs whose text header
    is damaged, if they surely belong here (`recovery.headerless`). Raises `WalError` if the folder
    cannot be listed.
    """
    for attempt in range(_ATTEMPTS):
        examination = _Examination(Path(directory), since, filesystem, progress, headerless, scans)
        try:
            return examination.run()
        except WalError as error:
            # A live folder: files may be removed between the listing and the reading.
            if not isinstance(error.__cause__, FileNotFoundError) or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("not reached")


@dataclass(slots=True)
class _Examination:
    """One pass over a folder."""

    directory: Path
    since: LogPosition | None
    filesystem: FileSystem
    progress: Progress | None
    headerless: bool
    scans: Scans | None
    index: DirectoryIndex = field(init=False)
    mark: EndMark | None = None
    silent_mark: str = ""
    snaps: list[LogScan] = field(default_factory=list)
    logs: list[LogScan] = field(default_factory=list)
    first_log: int = 0
    borders: list[list[Damage]] = field(default_factory=list)
    """borders[i]: what is wrong between logs[i] and logs[i + 1]."""
    warnings: list[str] = field(default_factory=list)
    adopted: set[Path] = field(default_factory=set)
    """Logs that are read though their header cannot be."""
    done_bytes: int = 0
    all_bytes: int = 0

    def run(self) -> RecoveryReport:
        mark = load_end_mark(self.directory, self.filesystem)
        self.index = scan_directory(self.directory, self.filesystem)
        self.mark, self.silent_mark = own_mark(mark, self.index)
        self.warnings += [self.silent_mark] if self.silent_mark else []
        self._find_start()
        logs = self.index.xlogs[self.first_log :]
        snaps = self.index.snaps if self.since is None else []
        self.all_bytes = sum(file.size for file in [*logs, *snaps])
        self.all_bytes -= self.since.offset if self.since else 0
        if self.scans is not None:
            found = self.scans(snaps, logs)
            self.snaps, self.logs = found[: len(snaps)], found[len(snaps) :]
        else:
            self._scan(snaps, logs)
        self.borders = [self._border(older, newer) for older, newer in pairwise(self.logs)]
        self._judge_tails()
        return self._report()

    def _scan(self, snaps: list[LogFile], logs: list[LogFile]) -> None:
        """Read the files one after the other."""
        self.snaps = [scan_snapshot(snap, self.filesystem, self._read) for snap in snaps]
        for number, log in enumerate(logs):
            since = self.since if number == 0 else None
            self._adopt(log.signature)
            scan = scan_log(
                log,
                self.filesystem,
                self._read,
                offset=since.offset if since else None,
                vclock=since.vclock if since else None,
            )
            self.logs.append(scan)
        self._adopt(None)

    def _adopt(self, before: int | None) -> None:
        """Read the logs without usable header whose name is in front of `before`, None for all."""
        if not self.headerless:
            return
        for damage in self.index.damage:
            path = Path(damage.file)
            if damage.kind is not DamageKind.HEADER or path.suffix != ".xlog":
                continue
            if path in self.adopted or (before is not None and _signature(path) >= before):
                continue
            starts = [scan.reached for scan in self.logs[-1:]]
            starts += [scan.log.vclock for scan in self.snaps if not scan.located]
            instance = self.index.instance
            scan = scan_headerless(path, starts, instance, self.filesystem, self._read)
            if scan is not None:
                self.adopted.add(path)
                self.logs.append(scan)
                self.index.xlogs.append(scan.log)
                self.index.xlogs.sort(key=lambda log: log.signature)

    def _read(self, count: int) -> None:
        self.done_bytes += count
        if self.progress is not None:
            self.progress(min(self.done_bytes, self.all_bytes), self.all_bytes)

    def _find_start(self) -> None:
        """Set `first_log` from `since`, or forget `since`."""
        since = self.since
        if since is None:
            return
        for number, log in enumerate(self.index.xlogs):
            if log.path.name == since.path:
                if since.offset <= log.size and since.vclock.covers(log.vclock):
                    self.first_log = number
                    return
                break
        self.since = None

    # --- borders and endings ----------------------------------------------------------------------

    def _border(self, older: LogScan, newer: LogScan) -> list[Damage]:
        """What is wrong between two neighbouring logs."""
        found = border(older.log, older.reached, older.report.end_offset, newer.log)
        is_end = (
            found is not None and found.kind is DamageKind.GAP and found.file != str(newer.log.path)
        )
        if found is None or (is_end and older.is_damaged_at_end):
            return []  # the damage at its end explains it: see `_explain`
        return [found]

    def _judge_tails(self) -> None:
        """Decide for each log whether its ending is one; what is not becomes damage."""
        last = len(self.logs) - 1
        for number, scan in enumerate(self.logs):
            is_newest = number == last
            begin = None if is_newest else self.logs[number + 1].log.vclock
            damage = scan.tail
            if damage is None:
                if scan.report.end is FileEnd.UNCLOSED and not is_newest:
                    self.warnings.append(f"{scan.log.path}: was not closed (no EOF marker).")
            elif scan.is_torn_in_order:
                self.warnings.append(str(damage))
            else:
                located = (*scan.located, Located(foreign_tail(damage)))
                self.logs[number] = scan = replace(scan, located=located)
            if begin is not None:
                self.logs[number] = _explain(scan, begin)

    # --- what it means ----------------------------------------------------------------------------

    def _report(self) -> RecoveryReport:
        snapshot = self._newest_good_snapshot()
        start = VClock() if snapshot is None else snapshot.vclock
        if self.since is not None:
            start = self.since.vclock
        blocking = self._blocking_logs(start)
        end = start
        for scan in self._needed_logs(start):
            end = end.merge(scan.reached)
        blocking += self._missing_end(end)
        damaged_snaps = self._damaged_snapshots(snapshot, end, bool(blocking))
        if UNFINISHED_NAME in self.index.others:
            damaged_snaps.insert(0, unfinished_copy(self.directory, self.filesystem))
        unforceable = [*damaged_snaps, *(one for one in blocking if self._is_final(one))]
        every = self._all_damage(damaged_snaps, blocking)
        holes, unreadable = _holes(self.index.xlogs)
        self.warnings += unreadable
        self.warnings += [text for scan in self.logs for text in scan.report.warnings]
        self.warnings += [hole.sentence for hole in holes]
        return RecoveryReport(
            directory=self.directory,
            instance=self.index.instance,
            files=self._files(),
            damage=tuple(every),
            blocking=tuple(dict.fromkeys([*damaged_snaps, *blocking])),
            unforceable=tuple(dict.fromkeys(unforceable)),
            warnings=tuple(self.warnings),
            snapshot=snapshot,
            xlogs=tuple(self.index.xlogs),
            vclock=end,
            append_point=self._append_point(end),
            since=self.since,
            holes=tuple(holes),
            end_mark=self.mark,
            silent_mark=self.silent_mark,
            others=tuple(self.index.others),
            filesystem=self.filesystem,
        )

    def _missing_end(self, end: VClock) -> list[Damage]:
        """What the end mark names and is not there, where no other damage accounts for it."""
        found = missing_end(self.mark, self.index, end)
        damaged = {Path(one.file).name for one in self.index.damage}
        if found is None or (self.mark is not None and self.mark.file in damaged):
            return []
        return [] if self.logs and self.logs[-1].is_damaged_at_end else [found]

    def _newest_good_snapshot(self) -> LogFile | None:
        if self.since is not None:
            return self.index.newest_snap()
        good = [scan.log for scan in self.snaps if not scan.located]
        return good[-1] if good else None

    def _needed_logs(self, start: VClock) -> list[LogScan]:
        """The logs that a reader at `start` must read."""
        first = None
        for number, scan in enumerate(self.logs):
            if start.covers(scan.log.vclock):
                first = number
        return self.logs if first is None else self.logs[first:]

    def _blocking_logs(self, start: VClock) -> list[Damage]:
        """Damage in headers, logs and borders that a reader at `start` meets."""
        needed = self._needed_logs(start)
        blocking = [
            one
            for one in self.index.damage
            if one.file.endswith(".xlog") and Path(one.file) not in self.adopted
        ]
        if needed and not start.covers(needed[0].log.vclock):
            blocking.append(missing_begin(start, needed[0].log))
        skipped = len(self.logs) - len(needed)
        for number, scan in enumerate(needed, skipped):
            blocking += [one.damage for one in scan.located if not one.is_before(start)]
            if number < len(self.borders):
                blocking += self.borders[number]
        return blocking

    def _damaged_snapshots(
        self, chosen: LogFile | None, end: VClock, is_blocked: bool
    ) -> list[Damage]:
        """Damaged snapshots that no older one and its logs make up for."""
        if self.since is not None:
            return []
        newer = -1 if chosen is None else chosen.signature
        bad = [
            one
            for one in self.index.damage
            if one.file.endswith(".snap") and _signature(Path(one.file)) > newer
        ]
        reached_all = True
        for scan in self.snaps:
            if scan.located and scan.log.signature > newer:
                bad += [one.damage for one in scan.located]
                reached_all = reached_all and end.covers(scan.log.vclock)
        if chosen is None:
            if not bad and (self.index.xlogs or self.index.damage or is_blocked):
                bad.append(no_snapshot(self.directory))
            return bad
        highest = max((_signature(Path(one.file)) for one in bad), default=0)
        if bad and reached_all and not is_blocked and end.signature >= highest:
            self.warnings.append(
                f"{bad[0].file} is damaged; {chosen.path.name} and the logs behind it hold every "
                "row."
            )
            return []
        return bad

    def _is_final(self, damage: Damage) -> bool:
        """Whether force does not pass it: an lsn used twice in the newest log (what is next could
        be either of two rows), a file that the system does not let us read, or a folder that was
        never whole."""
        newest = str(self.logs[-1].log.path) if self.logs else ""
        if damage.kind is DamageKind.ORDER:
            return damage.file == newest and damage.size > 0
        return damage.kind in (DamageKind.UNREADABLE, DamageKind.UNFINISHED)

    def _all_damage(self, snaps: list[Damage], blocking: list[Damage]) -> list[Damage]:
        found = list(self.index.damage)
        found += [one.damage for scan in (*self.snaps, *self.logs) for one in scan.located]
        found += [one for border in self.borders for one in border]
        unique = dict.fromkeys([*found, *snaps, *blocking])
        return sorted(unique, key=lambda one: (one.file, one.offset))

    def _files(self) -> tuple[FileReport, ...]:
        files = [
            replace(scan.report, damage=tuple(one.damage for one in scan.located))
            for scan in (*self.snaps, *self.logs)
        ]
        for damage in self.index.damage:
            path = Path(damage.file)
            if path in self.adopted:
                continue
            suffix: Suffix = path.suffix[1:]  # type: ignore[assignment]
            size = max(damage.size, self._size_of(path))
            files.append(FileReport(path, suffix, None, size, damage=(damage,)))
        return tuple(sorted(files, key=lambda one: one.path.name))

    def _size_of(self, path: Path) -> int:
        try:
            with closing(self.filesystem.open_read(path)) as file:
                return file.size()
        except OSError:
            return 0  # what cannot be opened is damage already

    def _append_point(self, end: VClock) -> AppendPoint:
        if not self.logs:
            newest = self.index.xlogs[-1].vclock if self.index.xlogs else None
            return AppendPoint(end, newest)
        scan = self.logs[-1]
        log, report = scan.log, scan.report
        before = self.index.xlogs[-2].vclock if len(self.index.xlogs) > 1 else None
        stop = report.end_offset
        is_closed = report.end is FileEnd.CLEAN
        start = stop if is_closed else report.unsynced_offset
        is_known = is_closed or log.meta.is_synced
        unsynced = Unsynced(log.path, start, stop, is_known) if report.is_ours else None
        if not scan.located and report.is_ours and scan.reached == end:
            return AppendPoint(end, log.vclock, log.path, stop, log.meta, unsynced=unsynced)
        if log.signature == end.signature:  # it holds no row, and its name is wanted
            return AppendPoint(end, before, replaces=log.path)
        return AppendPoint(end, log.vclock, unsynced=unsynced)


def _signature(path: Path) -> int:
    """The number in a name."""
    return int(path.name.split(".")[0])


def _explain(scan: LogScan, begin: VClock) -> LogScan:
    """Say of damage at a log's end what the next log, which begins at `begin`, tells about it."""
    if not scan.is_damaged_at_end:
        return scan
    final = scan.located[-1]
    lost = max(begin.signature - scan.reached.signature, 0)
    replica_id = final.damage.replica_id
    after = None if replica_id is None else begin.lsn(replica_id) + 1
    damage = replace(final.damage, rows_lost=lost, lsn_after=after)
    return replace(scan, located=(*scan.located[:-1], Located(damage)))


def _holes(logs: list[LogFile]) -> tuple[list[Hole], list[str]]:
    """What repairs recorded in the headers, and items that cannot be read."""
    holes: list[Hole] = []
    unreadable: list[str] = []
    for log in logs:
        try:
            holes += Hole.in_header(log.meta)
        except DecodeError as error:
            unreadable.append(f"{log.path}: header item {HOLE_ITEM}: {error.reason}.")
    return holes, unreadable
