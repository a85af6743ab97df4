"""Opening a folder: from what is on disk to a store that can go on.

1. The folder is locked; a process that has it already is named.
2. The state (`store.state.state`) is used where it can be trusted, else thrown away before LMDB
   sees it.
3. `recovery.examine` looks at the log: only behind the state's position if there is one, so that
   opening does not depend on the length of the log. `recovery.plan` refuses what would lose rows.
4. Without a state the newest whole snapshot is loaded: primary keys in bulk, other indexes after.
5. The rows behind it are applied, in large transactions, each with its position.
6. The log's writer goes on where recovery says; if rows were lost at the end, behind every lsn
   that they may have had, in a new file.

A fresh folder gets a snapshot of the 513 rows that a fresh Tarantool 2.6.0 has, with UUIDs of its
own.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final

from logweir.errors import WalError
from logweir.recovery import RecoveryPlan, RecoveryReport, examine, plan
from logweir.store.commit.committer import Opened
from logweir.store.engine.engine import Plans
from logweir.store.engine.synchro import SynchroQueue
from logweir.store.recover.belonging import BROKEN, Kept, discard, is_refusal, trusted
from logweir.store.recover.loading import Source, load
from logweir.store.schema.definition import SystemSpace
from logweir.store.schema.schema import Schema
from logweir.store.state import base
from logweir.store.state.references import LogFiles
from logweir.store.state.state import State
from logweir.store.state.statetxn import Position
from logweir.wal.directory import no_store
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import FileSystem, explain, explaining, make_folders
from logweir.wal.lease import LOCK_NAME
from logweir.wal.mp import pack, unpack, unpack_at
from logweir.wal.replacing import finish_replacing
from logweir.wal.resync import resync
from logweir.wal.snapshot import new_snapshot
from logweir.wal.vclock import VClock
from logweir.wal.writer import INPROGRESS, AppendPoint, WalWriter, WriterOptions

STATE_NAME: Final = "state"


def open_folder(
    path: Path,
    *,
    create: bool,
    force_recovery: bool,
    options: WriterOptions,
    filesystem: FileSystem,
    clock: Callable[[], float] = time.time,
) -> Opened:
    """Open a folder for changes: see the module. Raises `WalError` and its kinds."""
    with contextlib.ExitStack() as stack:
        _prepare_folder(path, create, filesystem)
        try:  # no `with`, where an interrupt could come in leaving it: the lock would be held
            lock = filesystem.lock(path / LOCK_NAME)
            filesystem = lock.__enter__()
        except OSError as error:
            raise explain(error, str(path / LOCK_NAME)) from error
        stack.callback(lock.__exit__, None, None, None)  # whatever went wrong, it is given free
        finish_replacing(path, filesystem)
        _remove_unfinished(path, filesystem)
        state = State(path / STATE_NAME, LogFiles(path, filesystem), filesystem)
        stack.callback(state.close, clean=False)
        kept = trusted(state, path, filesystem)
        found = _recovered(
            state, kept, path, create, force_recovery, options.is_synced, filesystem, clock
        )
        decided, position, vclock = found.plan, found.position, found.vclock
        append_point = decided.append_point
        free = _first_free(vclock, found.replica_id, decided, found.given_up)
        if free != vclock:
            vclock = free
            append_point = AppendPoint(vclock, append_point.prev_vclock)
            if not found.waiting:
                _set_position(state, vclock)
            failpoint("opening.after_reserve")
        with state.read() as txn:
            stands = txn.position()
        is_unlogged = position is not None and position.unlogged
        at = replace(append_point, is_logged=not is_unlogged)
        writer = WalWriter(path, found.instance, at, options=options, filesystem=filesystem)
        if append_point is not decided.append_point:
            # Else the damaged log would be the newest, and its end be looked at again.
            stack.callback(writer.abandon)
            writer.begin()
        return Opened(
            path=path,
            filesystem=filesystem,
            lock=stack.pop_all(),
            report=decided.report,
            instance=found.instance,
            replica_id=found.replica_id,
            state=state,
            schema=found.schema,
            waiting=found.waiting,
            settled_since=decided.start if position is None else position.vclock,
            plans=found.plans,
            vclock=vclock,
            writer=writer,
            anchor=None if stands is None else stands.place,
            needs_snapshot=(
                decided.needs_snapshot or append_point is not decided.append_point or is_unlogged
            ),
        )


def _remove_unfinished(path: Path, filesystem: FileSystem) -> None:
    """Remove what was never whole: snapshots and logs that somebody was killed at."""
    for name in filesystem.list_directory(path):
        if name.endswith((f".snap{INPROGRESS}", f".xlog{INPROGRESS}")):
            with contextlib.suppress(OSError):  # it takes room, and does no other harm
                filesystem.remove(path / name)


def _first_free(
    vclock: VClock, replica_id: int, decided: RecoveryPlan, given_up: Position | None
) -> VClock:
    """The state from which on we write: behind every lsn of ours that a lost row may have had.

    Somebody may have got such a row, and would take another one with its lsn for the same (trap
    14). `given_up`: a position whose newest rows are no longer in the log.
    """
    lsn = vclock.lsn(replica_id) + decided.lsn_reserve
    if given_up is not None:
        lsn = max(lsn, given_up.vclock.lsn(replica_id))
    if (mark := decided.report.end_mark) is not None:
        lsn = max(lsn, mark.vclock.lsn(replica_id))
    return vclock.with_lsn(replica_id, lsn)


def _set_position(state: State, vclock: VClock) -> None:
    """Of a state that holds all there is. Its last row stays where it is, but the next opening is
    to look at what stands behind that."""
    with state.write() as txn:
        before = txn.position()
        place = None if before is None else before.place
        txn.set_position(Position(vclock, None if place is None else place.nowhere))


def _prepare_folder(path: Path, create: bool, filesystem: FileSystem) -> None:
    try:
        if create:
            make_folders(filesystem, path)
        names = filesystem.list_directory(path)
    except OSError as error:
        is_absent = not create and isinstance(error, FileNotFoundError)
        raise (no_store(path) if is_absent else explain(error, str(path))) from error
    if any(name.endswith((".snap", ".xlog")) for name in names):
        return
    if not create:
        raise no_store(path)  # before a lock file is left in a folder that is none of ours
    # Who made the folder, perhaps we before a crash, need not have made its name durable. Where we
    # may not sync we make none, see `make_folders`: there it is for who made it for us to do.
    with contextlib.suppress(PermissionError):
        filesystem.sync_directory(path.parent)


@dataclass(slots=True)
class _Recovered:
    """A state at the end of the log. `position`: up to where it was already; None if it was
    made from a snapshot; `given_up`: that of one whose newest rows are no longer in the log."""

    plan: RecoveryPlan
    position: Position | None
    plans: Plans
    schema: Schema
    waiting: SynchroQueue
    vclock: VClock
    instance: uuid.UUID
    replica_id: int
    given_up: Position | None = None


def _recovered(
    state: State,
    kept: Kept | None,
    path: Path,
    create: bool,
    force: bool,
    is_synced: bool,
    filesystem: FileSystem,
    clock: Callable[[], float],
) -> _Recovered:
    """Look at the log, decide, and bring the state to its end: what was kept of it, else a new
    one."""
    reason = ""  # why what was kept must go; it does once all is known that replaces it
    given_up = None
    while True:
        report = _examined(path, None if reason else kept, filesystem)
        if report.is_empty:
            if not create:
                raise no_store(path)
            if kept is not None and not force:
                raise kept.refusal(report)
            bootstrap(path, filesystem=filesystem, timestamp=clock())
            continue
        if kept is not None and not reason and (reason := kept.behind(report)):
            continue
        decided = plan(report, force=force)
        if kept is not None and not reason:
            reason = kept.misfit(decided, force=force) or kept.before(decided)
            if kept.is_ahead(decided):
                given_up = kept.position
            if reason and decided.since is not None:
                continue
        if kept is not None and reason:
            discard(state, reason)
            kept = None
        _check_cut(kept, decided)
        _make_stable(decided, filesystem, is_synced)
        try:
            found = _at_end(state, kept, decided)
        except BROKEN as error:
            if kept is None or is_refusal(error):
                if isinstance(error, base.Error):
                    raise state.unusable(error) from error
                raise
            reason = f"it cannot be used: {error}"
            continue
        decided.prepare()
        found.given_up = given_up
        return found


def _examined(path: Path, kept: Kept | None, filesystem: FileSystem) -> RecoveryReport:
    """The log behind the state; all of it where that does not stand in it."""
    since = None if kept is None else kept.since
    if since is not None:
        with contextlib.suppress(WalError):
            return examine(path, since=since, filesystem=filesystem)
    return examine(path, filesystem=filesystem)


def _check_cut(kept: Kept | None, decided: RecoveryPlan) -> None:
    """Never cut off what is applied: the invariant behind every answer that was given."""
    at, place = decided.append_point, None if kept is None else kept.position.place
    if place is None or at.path is None or at.path.name != place.file:
        return
    if at.size < place.offset:
        raise WalError(
            f"the log ends before byte {place.offset}, up to which it is applied.",
            path=str(at.path),
            offset=at.size,
            hint=f"keep a copy of the folder; without its folder {STATE_NAME!r} it is read anew",
        )


def _make_stable(decided: RecoveryPlan, filesystem: FileSystem, is_synced: bool) -> None:
    """Have what was read on stable storage, before anything is built on it: names, too, since who
    was killed behind a rename has not synced it.

    `is_synced`: also of logs that never promised to be. Other programs, Tarantool among them, may
    acknowledge rows of a log that they have not synced.
    """
    report = decided.report
    with explaining(report.directory):
        for path in [log.path for log in report.xlogs if not log.meta.is_ours]:
            filesystem.sync_file(path)
        filesystem.sync_directory(report.directory)
    if (end := decided.append_point.unsynced) is not None:
        resync(end, filesystem, whole=is_synced and not end.is_known)


def _at_end(state: State, kept: Kept | None, decided: RecoveryPlan) -> _Recovered:
    position = None if kept is None else kept.position
    start = decided.start if position is None else position.vclock
    end = decided.vclock.merge(start)
    plans = Plans()
    schema, waiting = load(state, plans, Source.of(decided, end), position)
    _empty_temporary(state, schema)
    instance = _instance(decided.report)
    with state.read() as txn:
        replica_id = _replica_id(txn, schema, instance)
    return _Recovered(decided, position, plans, schema, waiting, end, instance, replica_id)


def _empty_temporary(state: State, schema: Schema) -> None:
    """Rows of temporary spaces do not outlive the process that wrote them."""
    spaces = [space for space in schema if space.is_temporary]
    with state.read() as before:
        names = [
            (space.id, index.id)
            for space in spaces
            for index in space.indexes
            if before.count(space.id, index.id)
        ]
    if names:
        with state.write() as txn:
            for space_id, index_id in names:
                txn.drop(space_id, index_id)


def _instance(report: RecoveryReport) -> uuid.UUID:
    if report.instance is None:
        raise WalError(
            "no file of the folder says which instance it belongs to.",
            path=str(report.directory),
            hint="files of version 0.12 without `Server` or `Instance` can be read, not opened",
        )
    return report.instance


def _replica_id(txn: Any, schema: Schema, instance: uuid.UUID) -> int:
    """Our number in `_cluster`; 0 for an anonymous replica, which has no row there."""
    cluster = schema.space(SystemSpace.CLUSTER)
    tree = txn.tree(cluster.id, 0)
    for _, data in tree.ascending(b"") if tree is not None else ():
        row = unpack(data)
        if str(row[1]).lower() == str(instance):
            return int(row[0])
    return 0


def bootstrap(
    path: Path,
    *,
    filesystem: FileSystem,
    timestamp: float,
    instance: uuid.UUID | None = None,
    cluster: uuid.UUID | None = None,
) -> uuid.UUID:
    """Write the first snapshot of a new replica set. Returns the instance's UUID."""
    instance = instance or uuid.uuid4()
    cluster = cluster or uuid.uuid4()
    data = resources.files("logweir.store.schema").joinpath("bootstrap.msgpack").read_bytes()
    at = 0
    with new_snapshot(
        path, VClock(), instance, timestamp=timestamp, filesystem=filesystem
    ) as writer:
        while at < len(data):
            (space_id, row), at = unpack_at(data, at)
            if space_id == SystemSpace.CLUSTER:
                row = [row[0], str(instance)]
            elif space_id == SystemSpace.SCHEMA and row[0] == "cluster":
                row = ["cluster", str(cluster)]
            writer.write(space_id, [pack(row)])
        writer.finish()
    return instance
