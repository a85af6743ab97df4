"""What servers and tools do with a disk beside a store's own changes: a backup, a restore, a
repair, a trim, an archive, a join, publishes, changes of topics; with each of their calls to it
failing in turn, and counted. Rows of docs/reliability.md, as those of `measuring`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import logweir
from logweir.archive.archiver import Archiver
from logweir.archive.catalog import Catalog
from logweir.archive.fetch import restore_archive
from logweir.archive.objects import FolderObjects
from logweir.errors import LogweirError
from logweir.recovery import RepairResult, repair, restore
from logweir.recovery.faults import FaultyFileSystem, SimFileSystem, every_fault
from logweir.recovery.faults.faulty import KINDS, Run, flipped
from logweir.recovery.trim import trim
from logweir.replication.iproto.follow.join import join
from logweir.replication.protocols import parse_url
from logweir.replication.topic.bundle import Message, check_bundle, encode_bundle
from logweir.replication.topic.partition import Append
from logweir.replication.topic.requests import PublishResult
from logweir.replication.topic.spaces import (
    create_topic,
    delete_topic,
    set_config,
    set_partitions,
    topics_of,
)
from logweir.replication.topic.store import StoredTopics
from logweir.testing.measuring import Measured, readable_rows, work
from logweir.testing.meshing import Member
from logweir.testing.store import CrashStore
from logweir.wal.filesystem import OS, FileSystem, make_folders
from logweir.wal.vclock import VClock

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
    more, or a repair says what it could not read."""
    sound = disk.copy()
    done = copy(sound)
    lost = done.lost if isinstance(done, RepairResult) else ()
    whole = readable_rows(sound, to)
    assert whole

    def is_sound(run: Run[object]) -> bool:
        left = run.filesystem.inner
        assert isinstance(left, SimFileSystem)
        if run.error is not None:
            with contextlib.suppress(LogweirError):  # where it had its name, and all is there
                copy(left)
        there = readable_rows(left, to)
        if isinstance(run.outcome, RepairResult) and run.outcome.lost != lost:
            is_told = there == whole or run.outcome.rows_lost != 0
            return (
                left.open_files == 0 and there is not None and set(there) <= set(whole) and is_told
            )
        return left.open_files == 0 and there == whole

    return disk.copy, is_sound


def _copied(
    states: int,
    fault: dict[str, Any],
    *,
    how: Callable[[Path, Path, FileSystem], object],
    harm: Callable[[SimFileSystem, Path], None] = lambda disk, folder: None,
) -> Measured:
    """A store, to which `harm` was done, is copied into a new folder by `how`, and stays as it
    is."""
    with CrashStore() as store:
        work(store)
        folder, to = store.path, store.path.with_name("copy")
        harm(store.disk, folder)

        def copy(filesystem: FileSystem) -> object:
            return how(folder, to, filesystem)

        make, is_whole = _copies(store.disk, to, copy)
        source = store.disk.files(folder)

        def is_sound(run: Run[object]) -> bool:
            left = run.filesystem.inner
            assert isinstance(left, SimFileSystem)
            return is_whole(run) and left.files(folder) == source

        return _each(make, copy, is_sound, states, fault)


def _restored(folder: Path, to: Path, filesystem: FileSystem) -> object:
    return restore(folder, to, at=VClock({1: 12}), verify=True, filesystem=filesystem)


def _damage(disk: SimFileSystem, folder: Path) -> None:
    """Of the newest log the last quarter is gone, and a bit before that is wrong."""
    name, data = [one for one in disk.files(folder) if one[0].endswith(".xlog")][-1]
    assert data is not None
    with contextlib.closing(disk.open_append(folder / name)) as file:
        file.put([flipped(data, len(data) * 4)[: len(data) // 2 + 1]], 0)
        file.truncate(len(data) * 3 // 4)
        file.sync()


def _trim(states: int, fault: dict[str, Any]) -> Measured:
    """A folder is trimmed whose writer was killed, and left zeros and an unfinished write."""
    with CrashStore() as store:
        with store.open() as log:
            log.create_space("t", [("id", "unsigned"), ("value", "string")])
        log = store.open()
        log.append("t", [(number, "x" * 60) for number in range(50)])
        store.kill()
        folder, disk = store.path, store.disk
        whole, trimmed = readable_rows(disk, folder), disk.copy()
        assert trim(folder, filesystem=trimmed)

        def is_sound(run: Run[object]) -> bool:
            left = run.filesystem.inner
            assert isinstance(left, SimFileSystem)
            there = readable_rows(left, folder)
            if run.error is not None:
                trim(folder, filesystem=left)
            is_cut = left.files(folder) == trimmed.files(folder)
            return left.open_files == 0 and there == whole and is_cut

        return _each(disk.copy, lambda disk: trim(folder, filesystem=disk), is_sound, states, fault)


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

    def is_sound(log: logweir.Log, promised: list[Any]) -> bool:
        found = b"".join(one for row in log.select("t") for one in row if isinstance(one, bytes))
        return all(b"%d" % number in found for number in promised)

    return _topic_calls(publish, is_sound, states, fault)


_KEPT: Final = "log.retention.secs=5"
CHANGES: Final[tuple[tuple[Callable[[logweir.Log], None], dict[str, Any]], ...]] = (
    (
        lambda log: create_topic(log, "new", 2, now_seconds=0),
        {"t": (1, ""), "new": (2, "")},
    ),
    (
        lambda log: set_config(log, "t", _KEPT),
        {"t": (1, _KEPT), "new": (2, "")},
    ),
    (lambda log: set_partitions(log, "new", 3), {"t": (1, _KEPT), "new": (3, "")}),
    (lambda log: delete_topic(log, "t"), {"new": (3, "")}),
)
"""Changes of topics, and which there are then, with their partitions and configurations."""


def _change_topics(store: CrashStore) -> None:
    with store.open(wal_max_size=600) as log:
        for number, (change, _) in enumerate(CHANGES, 1):
            change(log)
            store.promise(number)


def are_whole(log: logweir.Log, made: int) -> bool:
    """Whether the topics of a store that had `t` are those behind so many of `CHANGES`, or the one
    that was under way is made too, whole: there is a space of each, and of no other."""
    topics = {name: (topic.partitions, topic.config_text) for name, topic in topics_of(log).items()}
    known = [{"t": (1, "")}, *(there for _, there in CHANGES)]
    return topics.keys() == {one.name for one in log.schema if one.is_topic} and (
        topics in known[made : made + 2]
    )


def _topics(states: int, fault: dict[str, Any]) -> Measured:
    """Topics are made, changed and deleted: each change is there or not, and those before it."""

    def is_sound(log: logweir.Log, promised: list[Any]) -> bool:
        return are_whole(log, promised[-1] if promised else 0)

    # Half a write over zeros that cannot be cut off again is taken for damage: docs/reliability.md.
    return _topic_calls(_change_topics, is_sound, states, fault | {"part": 0.0})


def _topic_calls(
    use: Callable[[CrashStore], None],
    is_sound: Callable[[logweir.Log, list[Any]], bool],
    states: int,
    fault: dict[str, Any],
) -> Measured:
    """The 1st, 2nd, … call of `use` of a store with the topic `t` fails; `is_sound`: whether all is
    there that was promised."""
    tried = broken = typed = 0
    with CrashStore() as store:
        with store.open() as log:
            create_topic(log, "t", 1, now_seconds=0)
        for run in itertools.islice(store.failing_calls(use, kinds=KINDS, **fault), states):
            if run.where == "none failed":
                break
            tried += 1
            is_typed = isinstance(run.error, LogweirError)
            typed += is_typed
            try:
                with run.open() as log:
                    is_kept = is_sound(log, run.promised)
            except LogweirError:
                is_kept = False
            broken += not is_kept or not (is_typed or run.error is None)
    return Measured(tried, broken, f"{typed} typed errors, {tried - typed} went on")


OPERATIONS: Final[dict[str, Callable[[int, dict[str, Any]], Measured]]] = {
    "a backup": partial(_copied, how=lambda at, to, disk: restore(at, to, filesystem=disk)),
    "a restore": partial(_copied, how=_restored),
    "a repair": partial(
        _copied, how=lambda at, to, disk: repair(at, to, filesystem=disk), harm=_damage
    ),
    "a trim": _trim,
    "an archive": _archive,
    "a join": _join,
    "publishes": _publishes,
    "changes of topics": _topics,
}
"""By what is told of it: how many calls at most, and how each fails (`Fault`)."""
