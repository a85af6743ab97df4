"""What servers and tools do with a disk beside a store's own changes: a backup, an archive, a join,
publishes; with each of their calls to it failing in turn, and counted. Rows of docs/reliability.md,
as those of `measuring`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import logweir
from logweir.archive.archiver import Archiver
from logweir.archive.catalog import Catalog
from logweir.archive.fetch import restore_archive
from logweir.archive.objects import FolderObjects
from logweir.errors import LogweirError
from logweir.recovery import restore
from logweir.recovery.faults import FaultyFileSystem, SimFileSystem, every_fault
from logweir.recovery.faults.faulty import KINDS, Run
from logweir.replication.iproto.follow.join import join
from logweir.replication.protocols import parse_url
from logweir.replication.topic.bundle import Message, check_bundle, encode_bundle
from logweir.replication.topic.partition import Append
from logweir.replication.topic.requests import PublishResult
from logweir.replication.topic.spaces import create_topic
from logweir.replication.topic.store import StoredTopics
from logweir.testing.measuring import Measured, readable_rows, work
from logweir.testing.meshing import Member
from logweir.testing.store import CrashStore
from logweir.wal.filesystem import OS, FileSystem, make_folders

__all__ = ["OPERATIONS"]

_ANSWER_SECONDS: Final = 30.0
_PUBLISHES: Final = 3
_INSTANCE: Final = uuid.UUID(int=7, version=4)


def _each(
    make: Callable[[], FileSystem],
    operation: Callable[[FaultyFileSystem], object],
    is_sound: Callable[[Run[object]], bool],
    states: int,
    fault: dict[str, Any],
) -> Measured:
    """The 1st, 2nd, … call of an operation fails, `states` at most; `is_sound`: whether what it
    left keeps its promise."""
    tried = broken = typed = 0
    for run in itertools.islice(every_fault(make, operation, kinds=KINDS, **fault), states):
        if not run.failed:
            break
        tried += 1
        typed += isinstance(run.error, LogweirError)
        is_foreign = run.error is not None and not isinstance(run.error, LogweirError)
        broken += is_foreign or not is_sound(run)
    return Measured(tried, broken, f"{typed} typed errors, {tried - typed} went on")


def _copies(
    disk: SimFileSystem, to: Path, copy: Callable[[FileSystem], object]
) -> tuple[Callable[[], SimFileSystem], Callable[[Run[object]], bool]]:
    """For what makes a folder `to`: it is whole, or what is there is made whole by the same once
    more."""
    sound = disk.copy()
    copy(sound)
    whole = readable_rows(sound, to)
    assert whole

    def is_sound(run: Run[object]) -> bool:
        left = run.filesystem.inner
        assert isinstance(left, SimFileSystem)
        if run.error is not None:
            with contextlib.suppress(LogweirError):  # where it had its name, and all is there
                copy(left)
        return left.open_files == 0 and readable_rows(left, to) == whole

    return disk.copy, is_sound


def _backup(states: int, fault: dict[str, Any]) -> Measured:
    """A store is copied into a new folder, which is what `logweir backup` does."""
    with CrashStore() as store:
        work(store)
        folder, to = store.path, store.path.with_name("copy")

        def copy(filesystem: FileSystem) -> object:
            return restore(folder, to, filesystem=filesystem)

        make, is_whole = _copies(store.disk, to, copy)
        source = readable_rows(store.disk, folder)

        def is_sound(run: Run[object]) -> bool:
            left = run.filesystem.inner
            assert isinstance(left, SimFileSystem)
            return is_whole(run) and readable_rows(left, folder) == source

        return _each(make, copy, is_sound, states, fault)


def _archive(states: int, fault: dict[str, Any]) -> Measured:
    """A store is archived in a folder; the calls are those about both."""
    with tempfile.TemporaryDirectory(prefix="logweir-archive-") as scratch:
        folder, place = Path(scratch, "store"), Path(scratch, "place")
        with logweir.open(folder, wal_max_size=1500) as log:
            log.create_space("t", [("id", "unsigned"), ("value", "string")])
            for number in range(20):
                log.insert("t", (number, "x" * 60))
            log.snapshot()
            end = log.vclock

        def archive(filesystem: FileSystem) -> None:
            objects = FolderObjects(place, filesystem)
            with Archiver(folder, objects, filesystem=filesystem) as archiver:
                archiver.look()

        def is_sound(run: Run[object]) -> bool:
            try:
                is_half = bool(Catalog.load(FolderObjects(place)).missing())
                archive(OS)
                found = restore_archive(str(place), Path(scratch, "restored"), dry_run=True)
                return not is_half and found.vclock == end
            except LogweirError:
                return False
            finally:
                shutil.rmtree(place, ignore_errors=True)

        return _each(lambda: OS, archive, is_sound, states, fault)


def _join(states: int, fault: dict[str, Any]) -> Measured:
    """A server is copied into a new folder, as one of its replica set."""
    with tempfile.TemporaryDirectory(prefix="logweir-join-") as scratch:
        with logweir.open(Path(scratch, "0")) as log:
            log.create_space("t", [("id", "unsigned"), ("value", "string")])
            log.append("t", [(number, "x" * 60) for number in range(50)])
        member = Member(0, Path(scratch, "0"), [])
        member.start()
        try:
            url = parse_url(f"tarantool://127.0.0.1:{member.port}")
            disk, to = SimFileSystem(), Path("/somewhere/copy")
            make_folders(disk, to.parent)

            def copy(filesystem: FileSystem) -> object:
                return asyncio.run(join(url, to, instance=_INSTANCE, filesystem=filesystem))

            copy(disk.copy())  # gives it a place in _cluster, and so all later copies the same rows
            make, is_sound = _copies(disk, to, copy)
            return _each(make, copy, is_sound, states, fault)
        finally:
            member.end(signal.SIGTERM)


async def _publish_some(log: logweir.Log, promise: Callable[[int], None]) -> None:
    """Bundles, one after the other; `promise`: called for each that is stored."""
    topics = StoredTopics(log)
    try:
        for number in range(_PUBLISHES):
            data = encode_bundle([Message(0, 1, None, b"%d" % number)])
            head, time_ms = check_bundle(data)
            answered: asyncio.Future[Sequence[PublishResult]] = asyncio.Future()
            topics.append([Append(1, 0, "t", 0, data, head, time_ms, None)], answered.set_result)
            results = await asyncio.wait_for(answered, _ANSWER_SECONDS)
            if list(results) == [PublishResult.STORED]:
                promise(number)
    finally:
        await topics.close()


def _publishes(states: int, fault: dict[str, Any]) -> Measured:
    """Bundles are published to a topic of a store, which is opened before and closed behind."""

    def publish(store: CrashStore) -> None:
        with store.open(wal_max_size=600) as log:
            asyncio.run(_publish_some(log, store.promise))

    def there(store: CrashStore) -> Iterator[bytes]:
        with store.open() as log:
            for row in log.select("t"):
                yield from (one for one in row if isinstance(one, bytes))

    tried = broken = typed = 0
    with CrashStore() as store:
        with store.open() as log:
            create_topic(log, "t", 1, now_seconds=0)
        runs = store.failing_calls(publish, kinds=KINDS, **fault)
        for run in itertools.islice(runs, states):
            if run.where == "none failed":
                break
            tried += 1
            typed += isinstance(run.error, LogweirError)
            try:
                found = b"".join(there(run))
                is_sound = all(b"%d" % number in found for number in run.promised)
            except LogweirError:
                is_sound = False
            is_foreign = run.error is not None and not isinstance(run.error, LogweirError)
            broken += is_foreign or not is_sound
    return Measured(tried, broken, f"{typed} typed errors, {tried - typed} went on")


OPERATIONS: Final[dict[str, Callable[[int, dict[str, Any]], Measured]]] = {
    "a backup": _backup,
    "an archive": _archive,
    "a join": _join,
    "publishes": _publishes,
}
"""By what is told of it: how many calls at most, and how each fails (`Fault`)."""
