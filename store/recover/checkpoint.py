"""Checkpoints: snapshots, and the removal of what they make superfluous.

A checkpoint closes the current log, so that a log begins where the snapshot ends, and writes the
snapshot from a read view while writers go on. It is due after `interval_seconds` or `log_bytes`;
it is looked for after each commit, so an idle store makes none. After it, snapshots beyond the
newest `count` are removed, and logs that neither the oldest snapshot kept, nor a follower, nor a
backup under way, nor a reader with a lease (`wal.lease`) still needs. A lease that keeps a file
for longer than `LEASE_SECONDS` counts no more. Followers' positions are in the file
`logweir.followers` (JSON, replaced as a whole), so a restart does not forget them.
Source: Tarantool 2.6.0 (`checkpoint_count` 2, `checkpoint_interval` 3600 s, `gc.c`).
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from logweir.errors import (
    ConfigError,
    ErrorCode,
    LogweirError,
    PositionUnavailable,
    RequestError,
)
from logweir.limits import LEASE_SECONDS
from logweir.recovery import RecoveryReport
from logweir.recovery.chain import border
from logweir.recovery.logscan import scan_log, scan_snapshot
from logweir.store.recover.belonging import anchor
from logweir.store.state.state import StateError
from logweir.wal.damage import DamageKind
from logweir.wal.directory import DirectoryIndex, LogFile, scan_directory
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import OS, FileSystem, explain, explaining
from logweir.wal.lease import holders, is_leased, unleased
from logweir.wal.newfile import replace_file
from logweir.wal.place import Place
from logweir.wal.process import OfProcess, start_thread
from logweir.wal.snapshot import new_snapshot
from logweir.wal.vclock import VClock

if TYPE_CHECKING:
    from logweir.store.inner import Inner

FOLLOWERS_NAME: Final = "logweir.followers"


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """`count`: snapshots kept; `interval_seconds`: between two, 0 never; `log_bytes`: of log
    written since the last one, 0 never."""

    count: int = 2
    interval_seconds: float = 3600.0
    log_bytes: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError("checkpoint_count", f"{self.count} is not at least 1")
        if self.interval_seconds < 0:
            raise ConfigError("checkpoint_interval", f"{self.interval_seconds} is below 0")
        if self.log_bytes < 0:
            raise ConfigError("checkpoint_wal_threshold", f"{self.log_bytes} is below 0")


class Checkpoints(OfProcess):
    """Makes the checkpoints of one `Log` and removes old files. Thread-safe."""

    def __init__(self, log: Inner, options: CheckpointOptions, report: RecoveryReport) -> None:
        self._log = log
        self.options = options
        self._is_whole = {one.path: not one.damage for one in report.files if one.kind == "snap"}
        """Of the snapshots that somebody has read, or written."""
        self._busy = threading.Lock()  # one checkpoint at a time
        self._removing = threading.Lock()  # one removal at a time, which waits for commits
        self._guard = threading.Lock()  # of what follows
        self._pins: dict[int, frozenset[Path]] = {}
        self._kept_since: dict[Path, float] = {}  # by a lease alone
        self._followers = read_followers(log.path, log.filesystem)
        self._newest: tuple[VClock, Place] | None = None  # the last snapshot and its end
        self._is_named = True  # the last snapshot, durably, unless that failed
        self._removals = 0
        self._oldest: tuple[int, VClock] = (-1, VClock())
        self._begin_interval()
        self._thread: threading.Thread | None = None
        self.last_error: str | None = None
        self._belong()

    def _left_behind(self) -> None:
        self._busy, self._removing = threading.Lock(), threading.Lock()
        self._guard = threading.Lock()

    # --- making -----------------------------------------------------------------------------------

    def make(self) -> Path:
        """A checkpoint now; waits for one under way. Returns the snapshot's path."""
        with self._busy:
            path = self.write()
        self.collect()
        return path

    def write(self) -> Path:
        """Write the snapshot of now, or find it; nothing is removed."""
        log = self._log
        with contextlib.ExitStack() as stack:
            view = stack.enter_context(log.rotated_view())
            newest = self._newest_whole(self._index())[-1:]
            if newest and newest[0].vclock == view.vclock:
                if not self._is_named:
                    with explaining(log.path):
                        log.filesystem.sync_directory(log.path)
                    self._is_named = True
                log.end_marks.put(newest[0].path, newest[0].size, view.vclock)
                return newest[0].path
            with new_snapshot(
                log.path,
                view.vclock,
                log.instance,
                timestamp=log.now(),
                filesystem=log.filesystem,
            ) as writer:
                for space in view.snapshot_spaces():
                    writer.write(space.id, view.tuples(space), local=space.is_local)
                self._is_named = False
                path = writer.finish()
                self._is_named = self._is_whole[path] = True
            if writer.last_block is not None:
                self._newest = (view.vclock, Place.written(writer.last_block))
        log.end_marks.put(path, writer.size, view.vclock)
        self._begin_interval()
        return path

    def _begin_interval(self) -> None:
        options = self.options
        self._bytes_left = options.log_bytes or sys.maxsize
        self._due_at = time.monotonic() + (options.interval_seconds or math.inf)

    def after_commit(self, logged_bytes: int) -> None:
        """Begin a checkpoint in a thread of its own if one is due."""
        self._bytes_left -= logged_bytes
        if self._bytes_left > 0 and time.monotonic() < self._due_at:
            return
        if not self._guard.acquire(blocking=False):
            return
        try:
            if self._thread is None or not self._thread.is_alive():
                self._begin_interval()
                start_thread("logweir-checkpoint", self._in_background, self._keep_thread)
        finally:
            self._guard.release()

    def _keep_thread(self, thread: threading.Thread | None) -> None:
        self._thread = thread

    def _in_background(self) -> None:
        try:
            self.make()
            self.last_error = None
        except (LogweirError, OSError, StateError) as error:
            self.last_error = str(error)

    def close(self) -> None:
        """Wait for a checkpoint under way."""
        thread = self._thread
        if thread is not None:
            thread.join()

    # --- removing ---------------------------------------------------------------------------------

    def collect(self) -> list[Path]:
        """Remove what nobody needs any more. Returns the files removed."""
        with self._removing:  # else one takes into the state from a file that another one removed
            return self._collect()

    def _collect(self) -> list[Path]:
        while True:
            with self._guard:
                superfluous = self._superfluous()
                newest = self._newest_whole(self._index())[-1:]
            # Where opening had a state nobody has read the one that is to take their place.
            unread = [snap for snap in newest if snap.path not in self._is_whole]
            if not unread or all(file.suffix == "xlog" for file in superfluous):
                break
            self._look_at(unread[0])
        # Not under the guard: who has it never waits for a commit.
        if superfluous and self._newest is not None:
            anchor(self._log, *self._newest, {file.path.name for file in superfluous})
        _move_in(self._log, [file.path for file in superfluous if file.path.suffix == ".xlog"])
        with self._guard:
            still = {file.path for file in self._superfluous()}
            try:
                return list(self._removed([file for file in superfluous if file.path in still]))
            finally:
                self._removals += 1

    def _removed(self, files: list[LogFile]) -> Iterator[Path]:
        """Remove files, oldest first, also after a power cut: one that came back alone would leave
        a gap."""
        log = self._log
        if files:  # the name of a snapshot that takes their place may not be on the disk yet
            log.filesystem.sync_directory(log.path)
        for file in files:
            failpoint("checkpoint.before_remove")
            with unleased(log.path, file.signature) as is_free:
                if not is_free and not self._is_overdue(file.path):
                    if file.suffix == "xlog":
                        return  # it was taken since it was looked for
                    continue
                try:
                    log.filesystem.remove(file.path)
                    log.filesystem.sync_directory(log.path)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    raise explain(error, str(file.path)) from error
            yield file.path

    def _superfluous(self) -> list[LogFile]:
        """Files that nobody needs any more, the oldest first: snapshots, then logs."""
        index = self._index()
        newest = self._newest_whole(index)
        if not newest:
            return []
        kept = newest + [one for one in index.snaps if self._is_pinned(one) and one not in newest]
        needed = min((snap.vclock for snap in kept), key=lambda v: v.signature)
        unneeded = [
            snap
            for snap in index.snaps
            if snap not in kept and snap.signature < newest[-1].signature
        ]
        logs = logs_before(index, self._followers.values(), snapshot=needed)
        logs = list(takewhile(lambda log: not self._is_pinned(log), logs))  # no gap in between
        self._kept_since = {
            file.path: self._kept_since.get(file.path, time.monotonic())
            for file in [*unneeded, *logs]
        }
        free = [snap for snap in unneeded if not self._is_leased(snap)]
        return free + list(takewhile(lambda log: not self._is_leased(log), logs))

    def _newest_whole(self, index: DirectoryIndex) -> list[LogFile]:
        """The snapshots that stay, the oldest first: none that is known to be damaged."""
        whole = [snap for snap in index.snaps if self._is_whole.get(snap.path, True)]
        return whole[-self.options.count :]

    def _is_pinned(self, file: LogFile) -> bool:
        return any(file.path in pinned for pinned in self._pins.values())

    def _is_leased(self, file: LogFile) -> bool:
        if self._is_overdue(file.path):
            return False
        return is_leased(self._log.path, file.signature, file.signature)

    def _is_overdue(self, path: Path) -> bool:
        since = self._kept_since.get(path)
        return since is not None and time.monotonic() - since > LEASE_SECONDS

    def pinned_bytes(self) -> dict[str, int]:
        """See `Inner.pinned_bytes`."""
        with self._guard:
            followers = dict(self._followers)
            if not followers:
                return {}
            index = self._index()
        kept = self._kept_for(index, followers)
        return {name: sum(log.size for log in logs) for name, logs in kept.items()}

    def _kept_for(
        self, index: DirectoryIndex, followers: Mapping[str, VClock]
    ) -> dict[str, list[LogFile]]:
        """The logs that no snapshot needs and each follower does."""
        kept = self._newest_whole(index)
        if not kept:
            return {name: [] for name in followers}
        superfluous = logs_before(index, snapshot=kept[0].vclock)
        return {
            name: superfluous[len(logs_before(index, [position], snapshot=kept[0].vclock)) :]
            for name, position in followers.items()
        }

    def _keepers(
        self, index: DirectoryIndex, followers: Mapping[str, VClock], leases: Mapping[int, int]
    ) -> list[dict[str, Any]]:
        """Who keeps logs that no snapshot needs, who keeps most of them first: followers, and
        processes that read here."""
        kept = {("follower", name): logs for name, logs in self._kept_for(index, followers).items()}
        snaps = self._newest_whole(index)
        spare = logs_before(index, snapshot=snaps[0].vclock) if snaps else []
        for pid, first in leases.items():
            kept["process", str(pid)] = [log for log in spare if log.signature >= first]
        found = [
            {
                "kind": kind,
                "name": name,
                "bytes": sum(log.size for log in logs),
                "oldest_log": logs[0].path.name if logs else None,
                "age_seconds": _age_seconds(logs[0].path) if logs else None,
            }
            for (kind, name), logs in kept.items()
        ]
        return sorted(found, key=lambda one: -one["bytes"])

    def oldest_row(self) -> VClock:
        """Where the oldest log begins: rows behind it can be read. The folder is only looked at
        where logs were removed since the last time."""
        removals, oldest = self._oldest
        if removals != self._removals:
            removals = self._removals
            index = self._index()
            if not index.xlogs:
                return self._log.committer.vclock
            oldest = index.xlogs[0].vclock
            if not index.damage:  # else it is asked again: an older one may be readable then
                self._oldest = (removals, oldest)
        return oldest

    def _index(self) -> DirectoryIndex:
        return scan_directory(self._log.path, self._log.filesystem)

    @contextlib.contextmanager
    def backup(self) -> Iterator[list[Path]]:
        """Files of a backup, which stay while the context is open. They are read before: opening,
        where it has a state, has not looked at them."""
        while True:
            with self._pinned() as (snap, *logs):
                if not self._look_at(snap):
                    continue
                self._check_logs(snap.vclock, logs)
                yield [snap.path, *(log.path for log in logs)]
                return

    @contextlib.contextmanager
    def _pinned(self) -> Iterator[list[LogFile]]:
        """The newest snapshot that is not known to be damaged, and the logs behind it; kept."""
        with self._guard:
            index = self._index()
            if not (snaps := self._newest_whole(index)):
                text = "there is no whole snapshot to back up"
                hint = "`Log.snapshot` writes one"
                raise RequestError(ErrorCode.MISSING_SNAPSHOT, text, hint=hint)
            newest = snaps[-1]
            logs = index.xlogs_after(newest.vclock)
            index.check_logs(logs[0].signature if logs else -1)
            pin = max(self._pins, default=0) + 1
            self._pins[pin] = frozenset(file.path for file in (newest, *logs))
        try:
            yield [newest, *logs]
        finally:
            with self._guard:
                del self._pins[pin]

    def _look_at(self, snap: LogFile) -> bool:
        """Read a snapshot: whether it is whole, from now on known. Raises `CorruptBlock` where it
        cannot be opened, which says nothing about it."""
        scan = scan_snapshot(snap, self._log.filesystem, lambda count: None)
        for damage in scan.report.damage:
            if damage.kind is DamageKind.UNREADABLE and not damage.offset:
                raise damage.to_error()
        self._is_whole[snap.path] = not scan.located
        return not scan.located

    def _check_logs(self, start: VClock, logs: Sequence[LogFile]) -> None:
        """Raise what is wrong behind `start` with logs that follow one another, as far as they are
        written."""
        newest, written = self._log.durable_end
        for log, following in zip_longest(logs, logs[1:]):
            scan = scan_log(log, self._log.filesystem, lambda count: None)
            found = [one.damage for one in scan.located if not one.is_before(start)]
            if scan.tail is not None and (log.path == newest or not scan.is_torn_in_order):
                found.append(scan.tail)
            if log.path == newest:
                found = [one for one in found if one.offset < written]
            if following is not None:
                at_end = border(log, scan.reached, scan.report.end_offset, following)
                found += [] if at_end is None else [at_end]
            if found:
                hint = "`Log.snapshot` writes what the store holds: back that up"
                raise replace(found[0], hint=hint).to_error()

    # --- followers --------------------------------------------------------------------------------

    def retain_from(self, name: str, position: VClock) -> None:
        """`retain`, of one. Raises `PositionUnavailable` if the log does not reach that far, or
        has no longer all that is behind it."""
        with self._guard:  # else what is behind it may be removed in between
            self._check_position(position)
            self._keep({name: position})

    def _check_position(self, position: VClock) -> None:
        oldest, newest = self.oldest_row(), self._log.committer.vclock
        if not (newest.covers(position) and position.covers(oldest.without_local())):
            raise PositionUnavailable(
                position, oldest, newest, hint="who is behind the log starts from a snapshot"
            )

    def retain(self, positions: Mapping[str, VClock]) -> None:
        """Keep the logs behind each position for the follower of that name."""
        with self._guard:
            self._keep(positions)

    def _keep(self, positions: Mapping[str, VClock]) -> None:
        followers = {**self._followers, **positions}
        if followers != self._followers:
            self._save_followers(followers)

    def release(self, name: str) -> None:
        """Forget `name`; it need not be known."""
        with self._guard:
            if name in self._followers:
                rest = {other: at for other, at in self._followers.items() if other != name}
                self._save_followers(rest)

    def _save_followers(self, followers: dict[str, VClock]) -> None:
        path = self._log.path / FOLLOWERS_NAME
        text = json.dumps({name: str(at) for name, at in sorted(followers.items())}, indent=1)
        with explaining(path):
            replace_file(self._log.filesystem, path, text.encode(), "followers.before_rename")
        self._followers = followers

    def status(self) -> dict[str, Any]:
        """The part of `Log.status` about snapshots and retention."""
        index = self._index()
        newest = index.newest_snap()
        with self._guard:
            oldest = min(self._followers.items(), key=lambda one: one[1].signature, default=None)
            positions = dict(self._followers)
            backups = len(self._pins)
        leases = holders(self._log.path)
        return {
            "snapshots": [snap.path.name for snap in index.snaps],
            "last_snapshot": newest.path.name if newest else None,
            "checkpoint_error": self.last_error,
            "oldest_row": dict(index.xlogs[0].vclock) if index.xlogs else None,
            "log_files": len(index.xlogs),
            "followers": {name: dict(at) for name, at in positions.items()},
            "backups": backups,
            "leases": {str(pid): first for pid, first in leases.items()},
            "log_keepers": self._keepers(index, positions, leases),
            "oldest_log_kept_by": oldest[0] if oldest else None,
        }


def read_followers(folder: Path, filesystem: FileSystem = OS) -> dict[str, VClock]:
    """For whom logs are kept in a folder, and from where. Raises `ConfigError` if the file that
    tells it is damaged, `WalError`."""
    path = folder / FOLLOWERS_NAME
    data = b"{}"
    with (
        explaining(path),
        contextlib.suppress(FileNotFoundError),
        contextlib.closing(filesystem.open_read(path)) as file,
    ):
        data = file.read(file.size(), 0)
    try:
        return {name: VClock.parse(text) for name, text in json.loads(data).items()}
    except (ValueError, AttributeError, TypeError, LogweirError) as error:
        raise ConfigError(
            FOLLOWERS_NAME,
            f"cannot be read: {error}",
            origin=str(path),
            hint="remove the file: the followers' logs are then no longer kept for them",
        ) from error


def logs_before(
    index: DirectoryIndex, followers: Iterable[VClock] = (), *, snapshot: VClock | None = None
) -> list[LogFile]:
    """Logs all of whose rows a snapshot and every follower have, who get none of local spaces;
    never the newest, and none behind one that the disk does not give: where that stays and they
    go, there is a gap."""
    positions = list(followers)
    unread = [Path(one.file) for one in index.damage if one.kind is DamageKind.UNREADABLE]
    last = min((int(path.stem) for path in unread if path.suffix == ".xlog"), default=math.inf)
    removable = []
    for log, following in zip(index.xlogs, index.xlogs[1:], strict=False):
        end = following.vclock
        is_needed = snapshot is not None and not snapshot.covers(end)
        is_needed = is_needed or not all(one.covers(end.without_local()) for one in positions)
        if is_needed or log.signature > last:
            break
        removable.append(log)
    return removable


def _age_seconds(path: Path) -> float | None:
    """How long ago a file was written last; None of one that is gone."""
    with contextlib.suppress(OSError):
        return max(time.time() - path.stat().st_mtime, 0.0)
    return None


def _move_in(log: Inner, paths: Sequence[Path]) -> None:
    """Put into the state what it refers to in log files, so that these may be removed.

    In steps, between which others commit. Raises `WalError`.
    """
    numbers = [int(path.stem) for path in paths]
    while numbers:
        files, is_done = log.change_base(lambda txn: (txn.files, txn.move_in(numbers[0])))
        if is_done:  # and committed: no later view refers to it
            files.retire(numbers.pop(0))
