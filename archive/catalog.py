"""What a place holds and can restore, by its entries alone.

::

    archive/identity              of which store the archive is; written first
    data/NAME                     the objects
    entries/NAME                  an entry for each object that counts; written last, removed first

A snapshot and the logs behind it, as far as each begins where the one before it ends, make a range
of restore points: every transaction in it is one. Of a log there are its tails, one behind the
other, until it is closed; then the whole of it, which takes their place. An object without an entry
is what somebody was killed at: it counts nowhere, and is removed once it cannot come to count.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from logweir.archive.entry import ENTRY_BYTES, Entry
from logweir.archive.objects import Objects
from logweir.errors import ConfigError, DecodeError, PositionUnavailable, WalError
from logweir.limits import ARCHIVE_TAIL_BYTES
from logweir.wal.crc32c import checksum
from logweir.wal.failpoint import failpoint
from logweir.wal.vclock import VClock

DATA: Final = "data/"
_ENTRIES: Final = "entries/"
_IDENTITY: Final = "archive/identity"
_READERS: Final = 16
_NEW: Final = ".new"
_MERGED: Final = 16
_SMALL_BYTES: Final = 64 * 1024
"""So many tails of at most so many bytes become one; the next step with what came out of that."""


@dataclass(frozen=True, slots=True)
class Keep:
    """What retention leaves: every restore point of the last `seconds`, and the newest `snapshots`
    with all behind them; whichever is more. None for neither: everything stays."""

    seconds: float | None = None
    snapshots: int | None = None


@dataclass(frozen=True, slots=True)
class Archived:
    """What there is of one log. `parts`: its whole, or its tails, the first from byte 0 on."""

    file: str
    parts: tuple[Entry, ...]

    @property
    def start(self) -> VClock:
        """The state before its first row."""
        return self.parts[0].start

    @property
    def vclock(self) -> VClock:
        """The state after the last row that is archived."""
        return self.parts[-1].vclock

    @property
    def end(self) -> int:
        """The byte of the file up to which it is archived."""
        return self.parts[-1].end

    @property
    def is_whole(self) -> bool:
        """Whether it is closed and nothing more will come."""
        return self.parts[-1].kind == "log"

    def mergeable(self) -> tuple[Entry, ...]:
        """The last tails, if they are so many and small that one should take their place."""
        first, size = len(self.parts), _SMALL_BYTES
        while True:
            begin = first
            while begin and self.parts[begin - 1].size <= size and not self.is_whole:
                begin -= 1
            if first - begin < _MERGED or self.end - self.parts[begin].offset > ARCHIVE_TAIL_BYTES:
                return self.parts[first:]
            first, size = begin, self.end - self.parts[begin].offset


@dataclass(frozen=True, slots=True)
class Points:
    """A range of restore points: each transaction from `start` to `vclock`. Times: of the earliest
    and the latest row in it, None without rows."""

    start: VClock
    vclock: VClock
    first_time: float | None
    last_time: float | None


@dataclass(frozen=True, slots=True)
class Sources:
    """The objects that a state is made of. `logs`: oldest first; the first may lie before the
    snapshot, to prove a time."""

    snapshot: Entry
    logs: tuple[Archived, ...]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All of them, the snapshot first."""
        return (self.snapshot, *(part for log in self.logs for part in log.parts))


@dataclass(slots=True)
class Catalog:
    """The entries of one place. `instance`: the store that it is the archive of, None if it
    holds nothing; `damaged`: entries that cannot be read, a sentence each."""

    objects: Objects
    instance: uuid.UUID | None = None
    entries: dict[str, Entry] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, objects: Objects) -> Catalog:
        """Read all entries of a place. Raises `ConfigError` if they are of several stores,
        `WalError`."""
        found = cls(objects)
        names = [name for name in objects.names(_ENTRIES) if not name.endswith(_NEW)]
        found.instance = _identity(objects)
        with ThreadPoolExecutor(_READERS) as pool:
            for name, entry in zip(names, pool.map(found._read, names), strict=True):
                if isinstance(entry, str):
                    found.damaged.append(entry)
                elif entry is not None:
                    found.entries[name] = entry
        stores = {entry.instance for entry in found.entries.values()}
        stores |= set() if found.instance is None else {found.instance}
        if len(stores) > 1:
            told = " and ".join(sorted(map(str, stores)))
            raise _foreign(objects, f"holds archives of several stores, instances {told}")
        found.instance = next(iter(stores), None)
        return found

    def _read(self, name: str) -> Entry | str | None:
        """An entry; why it is none; None if it was removed meanwhile."""
        try:
            entry = Entry.decode(_content(self.objects, _ENTRIES + name))
        except DecodeError as error:
            return f"entry {name}: {error.reason}"
        except WalError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise
        return entry if entry.name == name else f"entry {name} is that of {entry.name}"

    def belong(self, instance: uuid.UUID) -> None:
        """Make the place that of a store. Raises `ConfigError` if it is another's."""
        if self.instance is None:
            self.objects.put(_IDENTITY, [_identity_text(instance)])
            failpoint("archive.after_identity")
            self.instance = _identity(self.objects)
        if self.instance != instance:
            raise _foreign(self.objects, f"is of instance {self.instance}, not of {instance}")

    def settle(self) -> None:
        """Have what counts durable, before something is removed for it, here or in the store."""
        self.objects.settle(_IDENTITY.partition("/")[0])
        self.objects.settle(_ENTRIES)

    def add(self, entry: Entry) -> None:
        """Let an object count that is there and was read back."""
        failpoint("archive.before_entry")
        self.objects.put(_ENTRIES + entry.name, [entry.encode()])
        failpoint("archive.after_entry")
        self.entries[entry.name] = entry

    def remove(self, entries: Iterable[Entry]) -> int:
        """Remove objects, in that order; none counts any more before it goes. Returns how many."""
        count = 0
        for entry in entries:
            failpoint("archive.before_remove")
            self.objects.remove(_ENTRIES + entry.name)
            failpoint("archive.after_remove_entry")
            self.objects.remove(DATA + entry.name)
            del self.entries[entry.name]
            count += 1
        return count

    # --- what there is ----------------------------------------------------------------------------

    def snapshots(self) -> list[Entry]:
        """The snapshots, oldest first."""
        found = [entry for entry in self.entries.values() if entry.kind == "snapshot"]
        return sorted(found, key=lambda entry: entry.signature)

    def logs(self) -> list[Archived]:
        """The logs, oldest first, each as far as it is archived from its begin on."""
        by_file: dict[str, list[Entry]] = {}
        for entry in self.entries.values():
            if entry.kind != "snapshot":
                by_file.setdefault(entry.file, []).append(entry)
        found = (_put_together(parts) for _, parts in sorted(by_file.items()))
        return [log for log in found if log is not None]

    def log(self, file: str) -> Archived | None:
        """What there is of one log."""
        parts = [one for one in self.entries.values() if one.file == file]
        return _put_together(parts) if parts else None

    def points(self) -> list[Points]:
        """The ranges of restore points, oldest first."""
        found: list[Points] = []
        logs = self.logs()
        for snapshot in self.snapshots():
            reached, used = _reach(snapshot, logs)
            first_time, last_time = _span(part for log in used for part in log.parts)
            one = Points(snapshot.vclock, reached, first_time, last_time)
            if found and found[-1].vclock.covers(one.start):
                before = found.pop()
                whole = before.vclock.merge(reached)
                one = Points(before.start, whole, *_span([before, one]))
            found.append(one)
        return found

    def choose(
        self, until: VClock | float | None, without: frozenset[str] = frozenset()
    ) -> Sources:
        """The objects that make the state at a vclock, at a time, or the newest one.

        `without`: names of objects that cannot be used. Raises `PositionUnavailable`.
        """
        kept = [entry for name, entry in self.entries.items() if name not in without]
        left = Catalog(self.objects, self.instance, {entry.name: entry for entry in kept})
        logs = left.logs()
        found = [
            (reached, snapshot, used)
            for snapshot in left.snapshots()
            for reached, used in [_reach(snapshot, logs)]
        ]
        if until is None and found:
            _, snapshot, used = max(found, key=lambda one: (one[0].signature, one[1].signature))
            return Sources(snapshot, tuple(used))
        for reached, snapshot, used in reversed(found):
            if isinstance(until, VClock):
                base = snapshot.vclock if 0 in until else snapshot.vclock.without_local()
                if until.covers(base) and reached.covers(until):
                    return Sources(snapshot, tuple(_up_to(snapshot, used, until)))
            elif until is not None and (proven := _proven(snapshot, used, logs, until)) is not None:
                return Sources(snapshot, tuple(proven))
        raise left.unavailable(until)

    def unavailable(self, wanted: VClock | float | None) -> PositionUnavailable:
        """The error for what cannot be restored, with what can."""
        points = self.points()
        oldest: object = points[0].start if points else "nothing"
        newest: object = points[-1].vclock if points else "nothing"
        if isinstance(wanted, float | int):
            wanted = float(wanted)
            times = [one for each in points for one in (each.first_time, each.last_time)]
            known = [one for one in times if one is not None]
            oldest, newest = min(known, default="nothing"), max(known, default="nothing")
        told = "; ".join(f"{one.start} to {one.vclock}" for one in points) or "nothing"
        hint = f"{self.objects.location} restores {told}"
        return PositionUnavailable(wanted, oldest, newest, hint=hint)

    # --- what is not needed -----------------------------------------------------------------------

    def replaced(self) -> Iterator[Entry]:
        """Tails in the place of which there is a larger one, or the whole log."""
        file, end = "", 0
        tails = [one for one in self.entries.values() if one.kind == "tail"]
        for one in sorted(tails, key=lambda one: (one.file, one.offset, -one.size)):
            if one.file in self.entries or (one.file == file and one.end <= end):
                yield one
            else:
                file, end = one.file, one.end

    def unneeded(self, keep: Keep, now: float) -> list[Entry]:
        """What no restore point that is kept needs, in the order in which it may go."""
        snapshots = self.snapshots()
        firsts = []
        if keep.seconds is not None:
            old = [one for one in snapshots if one.archived <= now - keep.seconds]
            firsts.append(max(len(old) - 1, 0))
        if keep.snapshots is not None:
            firsts.append(max(len(snapshots) - keep.snapshots, 0))
        if not firsts or not snapshots:
            return []
        oldest = snapshots[min(firsts)]
        files = sorted({one.file for one in self.entries.values() if one.kind != "snapshot"})
        begun = [log.file for log in self.logs() if oldest.vclock.covers(log.start)]
        # One log more: the transaction before the snapshot proves times behind it.
        needed = begun[-2:][0] if begun else ""
        gone = {file for file in files if file < needed}
        logs = [one for one in self.entries.values() if one.file in gone]
        return snapshots[: min(firsts)] + sorted(logs, key=lambda one: (one.file, one.offset))

    def sweep(self) -> int:
        """Remove objects without an entry that cannot come to count. Returns how many."""
        names = [name.removesuffix(_NEW) for name in self.objects.names(DATA)]
        oldest = min((one.signature for one in self.entries.values()), default=0)
        count = 0
        for name in sorted(set(names) - self.entries.keys()):
            number = name.partition(".")[0]
            file = ".".join(name.split(".")[:2])
            is_old = number.isdecimal() and int(number) < oldest
            if is_old or (file != name and file in self.entries):
                self.objects.remove(DATA + name)
                self.objects.remove(DATA + name + _NEW)
                count += 1
        return count

    def missing(self) -> list[Entry]:
        """Entries that count and have no object."""
        names = set(self.objects.names(DATA))
        used = {part.name for log in self.logs() for part in log.parts}
        used |= {one.name for one in self.snapshots()}
        gone = [self.entries[name] for name in sorted(used - names)]
        return [one for one in gone if self.is_there(one)]

    def is_there(self, entry: Entry) -> bool:
        """Whether an entry still counts: an archiver may have removed it since."""
        return isinstance(self._read(entry.name), Entry)


def _span(parts: Iterable[Entry | Points]) -> tuple[float | None, float | None]:
    """The earliest and the latest time of these."""
    times = [(one.first_time, one.last_time) for one in parts]
    firsts = [first for first, _ in times if first is not None]
    lasts = [last for _, last in times if last is not None]
    return min(firsts, default=None), max(lasts, default=None)


def _put_together(parts: list[Entry]) -> Archived | None:
    """The whole of a log, or its tails from byte 0 on as far as they follow one another; they may
    overlap."""
    whole = [one for one in parts if one.kind == "log"]
    if whole:
        return Archived(whole[0].file, (whole[0],))
    found: list[Entry] = []
    end = 0
    while True:
        # Of two archivers one may have other borders; the bytes are the same.
        following = [one for one in parts if one.offset <= end < one.end]
        if not following:
            return Archived(found[0].file, tuple(found)) if found else None
        found.append(max(following, key=lambda one: one.end))
        end = found[-1].end


def _reach(snapshot: Entry, logs: list[Archived]) -> tuple[VClock, list[Archived]]:
    """How far the logs lead on from a snapshot, and those that do."""
    begun = [number for number, log in enumerate(logs) if snapshot.vclock.covers(log.start)]
    reached, used = snapshot.vclock, []
    for log in logs[begun[-1] :] if begun else []:
        if not reached.covers(log.start):
            break
        reached = reached.merge(log.vclock)
        used.append(log)
    return reached, used


def _up_to(snapshot: Entry, used: list[Archived], until: VClock) -> Iterator[Archived]:
    """Those of `used` that are needed to get from a snapshot to a vclock."""
    reached = snapshot.vclock
    for log in used:
        if reached.covers(until):
            return
        reached = reached.merge(log.vclock)
        yield log


def _proven(
    snapshot: Entry, used: list[Archived], logs: list[Archived], time: float
) -> list[Archived] | None:
    """The logs that prove the state at a time, if it does not lie before the snapshot.

    In front of the first object that has a later row is none; so the cut is not before it.
    """
    if not used:
        return None
    before = logs.index(used[0])
    for number, log in enumerate(logs):
        for part in log.parts:
            if part.last_time is not None and part.last_time > time:
                if log not in used or not part.start.covers(snapshot.vclock):
                    return None
                return logs[max(before - 1, 0) : number + 1]
    return logs[max(before - 1, 0) :] if used[-1] is logs[-1] else None


def _content(objects: Objects, name: str) -> bytes:
    with closing(objects.open(name)) as file:
        return file.read(ENTRY_BYTES, 0)


def _identity_text(instance: uuid.UUID) -> bytes:
    text = f"LOGWEIR-ARCHIVE 1\nInstance: {instance}\n".encode()
    return text + f"Checksum: {checksum(text):08x}\n".encode()


def _identity(objects: Objects) -> uuid.UUID | None:
    """Of which store a place is. Raises `ConfigError` if that cannot be read."""
    try:
        data = _content(objects, _IDENTITY)
    except WalError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    try:
        instance = uuid.UUID(data.decode().split("\n")[1].removeprefix("Instance: "))
    except (ValueError, IndexError):
        instance = None
    if instance is None or data != _identity_text(instance):
        raise _foreign(objects, f"has an {_IDENTITY} that is none of an archive")
    return instance


def _foreign(objects: Objects, text: str) -> ConfigError:
    hint = "give each store a place of its own: another folder or prefix"
    return ConfigError("place", f"{objects.location} {text}", hint=hint)
