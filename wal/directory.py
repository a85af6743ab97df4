"""The index of a folder: which snapshots and logs are there and how they follow one another.

A name is a decimal number up to its first dot and `xlog`, `snap` or `vylog` behind it; what else
is in the folder is listed but not looked into. The `VClock` of the header, not the name, is what
counts; its signature must be the number in the name. Files of one kind must have strictly ordered
vclocks, and all files the same `Instance`. Source: Tarantool 2.6.0, `xdir_scan` in `xlog.c`.
"""

from __future__ import annotations

import os
import re
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from logweir.errors import CorruptFile, PositionUnavailable, WalError
from logweir.wal.damage import Damage, DamageKind
from logweir.wal.filesystem import OS, FileSystem, each, explaining
from logweir.wal.meta import Meta
from logweir.wal.reader import Block, WalReader
from logweir.wal.replacing import replaced
from logweir.wal.vclock import VClock

if TYPE_CHECKING:
    from logweir.wal.selection import Bound

Suffix = Literal["xlog", "snap", "vylog"]
_NAME: Final = re.compile(r"([0-9]+)\.(xlog|snap|vylog)")
_KIND_OF: Final = {"xlog": "XLOG", "snap": "SNAP", "vylog": "VYLOG"}


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the folder. `signature`: of its name; `size`: bytes when it was looked at;
    `looked`: what `look` of `scan_directory` found in it."""

    path: Path
    suffix: Suffix
    signature: int
    meta: Meta
    size: int
    looked: object = field(default=None, compare=False)

    @property
    def vclock(self) -> VClock:
        """Of an xlog: the state before its first row; of a snap: what it contains."""
        return self.meta.vclock


@dataclass(slots=True)
class DirectoryIndex:
    """What stands in a folder. `snaps`, `xlogs`: usable files, oldest first; `others`: names that
    are no log files; `damage`: files whose header or name is wrong, in the order of names."""

    path: Path
    snaps: list[LogFile] = field(default_factory=list)
    xlogs: list[LogFile] = field(default_factory=list)
    vylogs: list[LogFile] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)

    @property
    def instance(self) -> uuid.UUID | None:
        """The instance that the folder belongs to: that of the newest snapshot, else the one most
        logs name."""
        for snap in reversed(self.snaps):
            if snap.meta.instance is not None:
                return snap.meta.instance
        found = Counter(log.meta.instance for log in self.xlogs if log.meta.instance is not None)
        return found.most_common(1)[0][0] if found else None

    @property
    def files(self) -> list[LogFile]:
        """All usable files, by signature, a snapshot before the log of the same one."""
        return sorted(
            [*self.snaps, *self.xlogs, *self.vylogs],
            key=lambda file: (file.signature, file.suffix),
        )

    def newest_snap(self) -> LogFile | None:
        """The newest usable snapshot."""
        return self.snaps[-1] if self.snaps else None

    def unusable(self) -> WalError:
        """Why there is nothing to begin with: of files that are there the first that cannot be
        used, else that there is no snapshot, or nothing at all (`no_store`)."""
        if not self.damage and not self.xlogs:
            return no_store(self.path)
        return (self.damage or [no_snapshot(self.path)])[0].to_error()

    def xlogs_after(self, vclock: VClock) -> list[LogFile]:
        """The logs that a reader at `vclock` must read: from the last one that is not after it.

        Empty where every log begins after `vclock` (rows are missing then) or there is none.
        """
        first = None
        for i, log in enumerate(self.xlogs):
            if vclock.covers(log.vclock):
                first = i
        return [] if first is None else self.xlogs[first:]

    def check_logs(self, behind: int) -> None:
        """Raise `WalError` if a log with a higher number than `behind` cannot be read, so that
        nobody knows which rows it holds."""
        for damage in self.damage:
            path = Path(damage.file)
            if damage.kind in _UNKNOWN and path.suffix == ".xlog" and int(path.stem) > behind:
                raise damage.to_error()

    def check_start(self, start: Bound) -> None:
        """Raise `PositionUnavailable` if logs that hold rows from `start` on were removed."""
        if not self.xlogs:
            return
        oldest = self.xlogs[0]
        match start:
            case int(signature):
                is_there = signature > oldest.signature
            case VClock() as vclock:
                is_there = any(vclock.covers(log.vclock) for log in self.xlogs)
            case bound:
                is_there = bound.lsn > oldest.vclock.lsn(bound.replica_id)
        if not is_there:
            raise removed(start, oldest.vclock)

    def check_since(self, time: float, filesystem: FileSystem = OS) -> None:
        """The same for the rows from a time on, in seconds since the epoch."""
        if not self.xlogs or not self.xlogs[0].vclock:
            return  # the log is there from its very beginning
        for log in self.xlogs:
            with WalReader(log.path, filesystem=filesystem) as reader:
                first = next(iter(reader.blocks()), None)
            if isinstance(first, Block):
                if time < first.columns.timestamp[0]:
                    raise removed(time, first.columns.timestamp[0])
                return
            if isinstance(first, Damage):
                return  # nobody knows, and reading names the damage


def removed(wanted: Bound | float, oldest: VClock | float) -> PositionUnavailable:
    """The error for a place before the oldest log that is left."""
    return PositionUnavailable(
        wanted,
        oldest,
        "the newest row",
        hint="the older logs were removed: start from a snapshot instead",
    )


def no_store(path: Path | str) -> WalError:
    """The error for a folder that holds neither a log nor a snapshot, or is not there."""
    is_there = os.path.lexists(path)
    return WalError(
        "there is no snapshot and no log in the folder."
        if is_there
        else "there is no such folder.",
        path=str(path),
        hint="look at the path, or make a store there with `logweir init`",
    )


def no_snapshot(path: Path) -> Damage:
    """What is wrong with a folder that has logs alone."""
    return Damage(
        DamageKind.MISSING_SNAPSHOT,
        str(path),
        0,
        0,
        "there are logs but no snapshot to start from.",
        hint="put the snapshot back, or take a copy of the folder that has one",
    )


def scan_directory(
    path: Path, filesystem: FileSystem = OS, look: Callable[[WalReader], object] | None = None
) -> DirectoryIndex:
    """Read the names and headers of a folder. `look`: is given each file while it is open. Raises
    `WalError` if the folder cannot be listed."""
    index = DirectoryIndex(path)
    with explaining(path):
        names = filesystem.list_directory(path)
    found: list[LogFile] = []
    logs: list[re.Match[str]] = []
    gone = replaced(path, names, filesystem)
    for name in names:
        if name in gone:
            continue
        match = _NAME.fullmatch(name)
        if match is None:
            index.others.append(name)
            continue
        logs.append(match)
    for loaded in each(filesystem, partial(_load, path, filesystem, look), logs):
        if isinstance(loaded, Damage):
            index.damage.append(loaded)
        elif loaded is not None:
            found.append(loaded)
    for suffix, kept in (("snap", index.snaps), ("xlog", index.xlogs), ("vylog", index.vylogs)):
        kept += sorted(
            (file for file in found if file.suffix == suffix), key=lambda file: file.signature
        )
    _check_instance(index)
    _check_order(index)
    index.damage.sort(key=lambda damage: damage.file)
    return index


def _load(
    folder: Path,
    filesystem: FileSystem,
    look: Callable[[WalReader], object] | None,
    name: re.Match[str],
) -> LogFile | Damage | None:
    path, signature = folder / name[0], int(name[1])
    suffix: Suffix = name[2]  # type: ignore[assignment]
    try:
        with WalReader(path, filesystem=filesystem, skip_damage=look is not None) as reader:
            meta, size = reader.meta, reader.size
            looked = None if look is None else look(reader)
    except CorruptFile as error:
        kind = DamageKind.HEADER
        return Damage(kind, str(path), error.offset or 0, 0, error.reason, hint=error.hint)
    except WalError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None  # removed since the folder was listed
        return Damage(DamageKind.UNREADABLE, str(path), 0, 0, error.reason, hint=error.hint)
    if meta.kind != _KIND_OF[suffix]:
        text = f"the first line says {meta.kind}, the name says {suffix}."
        return Damage(DamageKind.HEADER, str(path), 0, size, text, hint=_FOREIGN_HINT)
    if meta.vclock.signature != signature:
        text = f"the header's vclock {meta.vclock} has signature {meta.vclock.signature}, "
        text += f"the name says {signature}."
        hint = "the file was renamed, or its header was changed: give it its right name"
        return Damage(DamageKind.NAME, str(path), 0, size, text, hint=hint)
    return LogFile(path, suffix, signature, meta, size, looked)


_UNKNOWN: Final = (DamageKind.UNREADABLE, DamageKind.HEADER)
_FOREIGN_HINT: Final = "the file does not belong here: move it away"


def _check_instance(index: DirectoryIndex) -> None:
    ours = index.instance
    for kept in (index.snaps, index.xlogs, index.vylogs):
        for file in list(kept):
            if ours is not None and file.meta.instance not in (ours, None):
                text = f"the header names instance {file.meta.instance}, the folder's is {ours}."
                index.damage.append(
                    Damage(
                        DamageKind.FOREIGN, str(file.path), 0, file.size, text, hint=_FOREIGN_HINT
                    )
                )
                kept.remove(file)


def _check_order(index: DirectoryIndex) -> None:
    for kept in (index.snaps, index.xlogs):
        last: LogFile | None = None
        for file in list(kept):
            if last is not None and file.vclock.compare(last.vclock) != ">":
                text = f"its vclock {file.vclock} does not come after {last.vclock} of {last.path}."
                index.damage.append(
                    Damage(DamageKind.ORDER, str(file.path), 0, file.size, text, hint=_FOREIGN_HINT)
                )
                kept.remove(file)
            else:
                last = file
