"""Checkpoints: snapshots, and the removal of what they make superfluous.

A checkpoint closes the current log, so that a log begins where the snapshot ends, and writes the
snapshot from a read view while writers go on. It is due after `interval_seconds` or `log_bytes`;
it is looked for after each commit, so an idle store makes none. After it, snapshots beyond the
newest `count` are removed, and logs that neither the oldest snapshot kept, nor a follower, nor a
backup under way still needs. Followers' positions are in the file `logweir.followers` (JSON,
replaced as a whole), so a restart does not forget them.
Source: Tarantool 2.6.0 (`checkpoint_count` 2, `checkpoint_interval` 3600 s, `gc.c`).
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from logweir.errors import ConfigError, ErrorCode, LogweirError, RequestError
from logweir.store.references import move_in
from logweir.wal.directory import DirectoryIndex, LogFile, scan_directory
from logweir.wal.failpoint import failpoint
from logweir.wal.filesystem import explain, replace_file
from logweir.wal.snapshot import SnapshotWriter
from logweir.wal.vclock import VClock

if TYPE_CHECKING:
    from logweir.store.log import Log

__all__ = ["CheckpointOptions", "Checkpoints"]

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


class Checkpoints:
    """Makes the checkpoints of one `Log` and removes old files. Thread-safe."""

    def __init__(self, log: Log, options: CheckpointOptions) -> None:
        self._log = log
        self.options = options
        self._busy = threading.Lock()  # one checkpoint at a time
        self._guard = threading.Lock()  # of what follows
        self._pins: dict[int, VClock] = {}
        self._followers = self._load_followers()
        self._removals = 0
        self._oldest: tuple[int, VClock] = (-1, VClock())
        self._bytes = 0
        self._last_time = time.monotonic()
        self._thread: threading.Thread | None = None
        self.last_error: str | None = None

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
            newest = self._index().newest_snap()
            if newest is not None and newest.vclock == view.vclock:
                return newest.path
            writer = SnapshotWriter(
                log.path,
                view.vclock,
                log.instance,
                timestamp=log.now(),
                filesystem=log.filesystem,
            )
            try:
                for space in view.snapshot_spaces():
                    writer.write(space.id, view.tuples(space), local=space.is_local)
                path = writer.finish()
            except BaseException:
                writer.abort()
                raise
        self._bytes = 0
        self._last_time = time.monotonic()
        return path

    def after_commit(self, logged_bytes: int) -> None:
        """Begin a checkpoint in a thread of its own if one is due."""
        self._bytes += logged_bytes
        options = self.options
        due = bool(options.log_bytes) and self._bytes >= options.log_bytes
        if options.interval_seconds and not due:
            due = time.monotonic() - self._last_time >= options.interval_seconds
        if not due or not self._guard.acquire(blocking=False):
            return
        try:
            if self._thread is None or not self._thread.is_alive():
                self._bytes = 0
                self._last_time = time.monotonic()
                self._thread = threading.Thread(
                    target=self._in_background, name="logweir-checkpoint", daemon=True
                )
                self._thread.start()
        finally:
            self._guard.release()

    def _in_background(self) -> None:
        try:
            self.make()
            self.last_error = None
        except LogweirError as error:
            self.last_error = str(error)

    def close(self) -> None:
        """Wait for a checkpoint under way."""
        thread = self._thread
        if thread is not None:
            thread.join()

    # --- removing ---------------------------------------------------------------------------------

    def collect(self) -> list[Path]:
        """Remove what nobody needs any more. Returns the files removed."""
        with self._guard:
            superfluous = self._superfluous()
        # Not under the guard: who has it never waits for a commit.
        move_in(self._log, [file.path for file in superfluous if file.path.suffix == ".xlog"])
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
        for file in files:
            failpoint("checkpoint.before_remove")
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
        snaps = index.snaps
        kept = snaps[-self.options.count :]
        pinned = list(self._pins.values())
        kept_or_pinned = kept + [snap for snap in snaps if snap.vclock in pinned]
        found: list[LogFile] = [snap for snap in snaps if snap not in kept_or_pinned]
        if kept:
            needed = min((snap.vclock for snap in kept_or_pinned), key=lambda v: v.signature)
            found += _logs_before(index, [needed, *self._followers.values()])
        return found

    def pinned_bytes(self) -> dict[str, int]:
        """See `Log.pinned_bytes`."""
        with self._guard:
            followers = dict(self._followers)
            if not followers:
                return {}
            index = self._index()
            kept = index.snaps[-self.options.count :]
        if not kept:
            return dict.fromkeys(followers, 0)
        superfluous = _logs_before(index, [kept[0].vclock])
        return {
            name: sum(
                log.size
                for log in superfluous[len(_logs_before(index, [kept[0].vclock, position])) :]
            )
            for name, position in followers.items()
        }

    def oldest_row(self) -> VClock:
        """Where the oldest log begins: rows behind it can be read. The folder is only looked at
        where logs were removed since the last time."""
        removals, oldest = self._oldest
        if removals != self._removals:
            removals = self._removals
            xlogs = self._index().xlogs
            if not xlogs:
                return self._log.vclock
            oldest = xlogs[0].vclock
            self._oldest = (removals, oldest)
        return oldest

    def _index(self) -> DirectoryIndex:
        return scan_directory(self._log.path, self._log.filesystem)

    @contextlib.contextmanager
    def backup(self) -> Iterator[list[Path]]:
        """Files of a backup, which stay while the context is open."""
        with self._guard:
            index = self._index()
            newest = index.newest_snap()
            if newest is None:
                text = "there is no snapshot to back up"
                raise RequestError(ErrorCode.MISSING_SNAPSHOT, text)
            pin = max(self._pins, default=0) + 1
            self._pins[pin] = newest.vclock
        try:
            logs = index.xlogs_after(newest.vclock)
            yield [newest.path, *(log.path for log in logs)]
        finally:
            with self._guard:
                del self._pins[pin]

    # --- followers --------------------------------------------------------------------------------

    def retain(self, positions: Mapping[str, VClock]) -> None:
        """Keep the logs behind each position for the follower of that name."""
        with self._guard:
            followers = {**self._followers, **positions}
            if followers != self._followers:
                self._save_followers(followers)

    def release(self, name: str) -> None:
        """Forget `name`; it need not be known."""
        with self._guard:
            if name in self._followers:
                rest = {other: at for other, at in self._followers.items() if other != name}
                self._save_followers(rest)

    def _load_followers(self) -> dict[str, VClock]:
        path = self._log.path / FOLLOWERS_NAME
        try:
            file = self._log.filesystem.open_read(path)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise explain(error, str(path)) from error
        try:
            found = json.loads(file.read(file.size(), 0))
            return {name: VClock.parse(text) for name, text in found.items()}
        except (ValueError, AttributeError, TypeError, LogweirError) as error:
            raise ConfigError(
                FOLLOWERS_NAME,
                f"cannot be read: {error}",
                origin=str(path),
                hint="remove the file: the followers' logs are then no longer kept for them",
            ) from error
        finally:
            file.close()

    def _save_followers(self, followers: dict[str, VClock]) -> None:
        path = self._log.path / FOLLOWERS_NAME
        text = json.dumps({name: str(at) for name, at in sorted(followers.items())}, indent=1)
        try:
            replace_file(
                self._log.filesystem,
                path,
                text.encode(),
                lambda: failpoint("followers.before_rename"),
            )
        except OSError as error:
            raise explain(error, str(path)) from error
        self._followers = followers

    def status(self) -> dict[str, Any]:
        """The part of `Log.status` about snapshots and retention."""
        index = self._index()
        newest = index.newest_snap()
        with self._guard:
            followers = {name: dict(at) for name, at in self._followers.items()}
            oldest = min(self._followers.items(), key=lambda one: one[1].signature, default=None)
            backups = len(self._pins)
        return {
            "snapshots": [snap.path.name for snap in index.snaps],
            "last_snapshot": newest.path.name if newest else None,
            "checkpoint_error": self.last_error,
            "oldest_row": dict(index.xlogs[0].vclock) if index.xlogs else None,
            "log_files": len(index.xlogs),
            "followers": followers,
            "backups": backups,
            "oldest_log_kept_by": oldest[0] if oldest else None,
        }


def _logs_before(index: DirectoryIndex, positions: list[VClock]) -> list[LogFile]:
    """Logs all of whose rows every one of `positions` has; never the newest."""
    removable = []
    for log, following in zip(index.xlogs, index.xlogs[1:], strict=False):
        end = following.vclock.without_local()
        if not all(position.covers(end) for position in positions):
            break
        removable.append(log)
    return removable
