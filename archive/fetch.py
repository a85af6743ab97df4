"""What an archive restores: a state at a point in time, as a new folder; and the drill.

The objects that make the state are fetched into a folder for temporary files and compared with the
SHA-256 of their entries; from there `recovery.restore` makes the new folder, so that a restore of
an archive and one of a folder are the same, up to the transaction.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from logweir.archive.catalog import DATA, Catalog, Sources
from logweir.archive.entry import Entry
from logweir.archive.objects import open_objects, pieces_of
from logweir.errors import CorruptFile, PositionUnavailable, WalError
from logweir.recovery.restore import RestoreResult, restore
from logweir.store import open as open_store
from logweir.store.recover.compare import compare_states
from logweir.wal.filesystem import OS, FileSystem, explain
from logweir.wal.vclock import VClock

Progress = Callable[[int], object]
"""Called with the bytes fetched so far."""


@dataclass(frozen=True, slots=True)
class Drill:
    """What a drill found. `vclock`: of the state that was restored; `spaces`, `tuples`: in it;
    `differing`: tuples that differ from the source's at that position, by space, None if there
    was no source; `passed`: objects that could not be used, and why."""

    vclock: VClock
    spaces: int
    tuples: int
    differing: dict[str, int] | None
    passed: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all is as it was."""
        return not self.differing and not self.passed


def restore_archive(
    location: str,
    to: Path,
    *,
    at: VClock | datetime | float | None = None,
    dry_run: bool = False,
    verify: bool = False,
    filesystem: FileSystem = OS,
    tell: Callable[[str], object] = lambda text: None,
    progress: Progress | None = None,
) -> RestoreResult:
    """Write the state of the archive at `location` at `at` into the new folder `to`.

    `at`, `dry_run`, `verify`: as `recovery.restore`; takes as much room in the folder for temporary
    files as the objects do. A snapshot that is damaged or missing is told, and an older one taken.
    Raises `PositionUnavailable` with what can be restored, `CorruptFile` where an object is damaged
    or missing, with the rows that are lost by it, `ConfigError`, `WalError`.
    """
    until = at.timestamp() if isinstance(at, datetime) else at
    catalog = _catalog(location, tell)
    last = max((one.last_time for one in catalog.points() if one.last_time is not None), default=0)
    if isinstance(until, float) and until > last > 0:
        moment = datetime.fromtimestamp(last, UTC).isoformat()
        tell(f"the newest row that is archived is of {moment}: what came later is not known")
    with tempfile.TemporaryDirectory(prefix="logweir-restore-") as scratch:
        _fetched(catalog, until, Path(scratch), tell, progress)
        try:
            result = restore(
                Path(scratch), to, at=until, dry_run=dry_run, verify=verify, filesystem=filesystem
            )
        except PositionUnavailable as error:
            raise catalog.unavailable(until) from error
    return replace(result, directory=Path(catalog.objects.location))


def drill(
    location: str,
    against: Path | None = None,
    *,
    tell: Callable[[str], object] = lambda text: None,
    progress: Progress | None = None,
) -> Drill:
    """Restore the newest state of an archive into a folder for temporary files, load it, and
    compare every tuple with the store in the folder `against` at the same position.

    Raises as `restore_archive`, and `PositionUnavailable` if the source has not that position
    any more.
    """
    passed: list[str] = []

    def told(text: str) -> None:
        passed.append(text)
        tell(text)

    with tempfile.TemporaryDirectory(prefix="logweir-drill-") as scratch:
        copy, source = Path(scratch, "copy"), Path(scratch, "source")
        vclock = restore_archive(location, copy, verify=True, tell=told, progress=progress).vclock
        differing: dict[str, int] | None = None
        if against is not None:
            restore(against, source, at=vclock)
            differing = {}
            for one in compare_states(source, copy, Path(scratch)):
                differing[one.space] = differing.get(one.space, 0) + 1
        with open_store(copy) as log:
            counts = [log.count(space.id) for space in log.spaces()]
    return Drill(vclock, len(counts), sum(counts), differing, tuple(passed))


def _catalog(location: str, tell: Callable[[str], object]) -> Catalog:
    catalog = Catalog.load(open_objects(location))
    for text in catalog.damaged:
        tell(text)
    if not catalog.entries:
        hint = "look at the address; `logweir archive DIR --to PLACE` makes one"
        raise WalError("there is no archive.", path=catalog.objects.location, hint=hint)
    return catalog


def _fetched(
    catalog: Catalog,
    until: VClock | float | None,
    to: Path,
    tell: Callable[[str], object],
    progress: Progress | None,
) -> Sources:
    """Fetch what makes a state, from an older snapshot where a newer one is not whole."""
    unusable: set[str] = set()
    first: CorruptFile | None = None
    while True:
        try:
            sources = catalog.choose(until, frozenset(unusable))
        except PositionUnavailable:
            if first is None:
                raise
            raise first from None
        try:
            _fetch(catalog, sources, to, progress)
        except _Unusable as error:
            (to / error.entry.file).unlink(missing_ok=True)
            if not catalog.is_there(error.entry):
                catalog = Catalog.load(catalog.objects)  # another object took its place meanwhile
                continue
            if error.entry != sources.snapshot:
                raise
            first = first or error
            tell(str(error))
            unusable.add(error.entry.name)
        else:
            return sources


def _fetch(catalog: Catalog, sources: Sources, to: Path, progress: Progress | None) -> None:
    done = 0
    for entry in sources.entries:
        digest = hashlib.sha256()
        target = to / entry.file
        if not entry.offset:
            target.unlink(missing_ok=True)
        try:
            with (
                closing(catalog.objects.open(DATA + entry.name)) as source,
                open(target, "ab") as out,
            ):
                at, have = entry.offset, out.tell()
                for piece in pieces_of(source, 0, entry.size):
                    digest.update(piece)
                    out.write(piece[max(have - at, 0) :])
                    at += len(piece)
                    done += len(piece)
                    if progress is not None:
                        progress(done)
                size = source.size()
        except CorruptFile as error:
            raise _Unusable(catalog, entry, f"is damaged: {error.reason}") from error
        except WalError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise _Unusable(catalog, entry, "is missing.") from error
            raise
        except OSError as error:
            raise explain(error, str(target)) from error
        if digest.hexdigest() != entry.sha256 or size != entry.size:
            raise _Unusable(catalog, entry, "is damaged: its SHA-256 is not that of its entry.")


class _Unusable(CorruptFile):
    """An object that is damaged or missing, with what cannot be restored without it."""

    def __init__(self, catalog: Catalog, entry: Entry, text: str) -> None:
        if entry.kind == "snapshot":
            text += f" It is the state at {entry.vclock}."
            hint = "an older snapshot, and the logs behind it, may do"
        else:
            text += f" It has the {entry.rows} rows between {entry.start} and {entry.vclock}."
            hint = f"what is before them restores: --at-vclock '{entry.start}'; a snapshot behind "
            hint += "them restores what comes later"
        where = f"{catalog.objects.location}/{DATA}{entry.name}"
        super().__init__(text, path=where, hint=hint)
        self.entry = entry
