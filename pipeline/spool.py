"""A spool: a store's folder into which an upstream is followed, for readers that go by position;
or a copy of one that is in a place of a URL (`spoolplace`).

What `logweir follow URL FOLDER` does, in a thread of this process: the same sources and rows, and
the place in the upstream in the transaction of the rows that it covers. So the folder can be left
at any moment and gone on with. Readers take the rows from its logs, up to `Spool.vclock`, which is
on disk.

*Once* the thread ends when all is here that the upstream had when it was asked, which each source
judges by its protocol, and any failure before is raised. Without an end a failure is raised that
comes before anything was followed, or that another attempt cannot mend, or that lasts longer than
the address's `stall` (`STALL_SECONDS`); until then the upstream is tried again and again.

The thread goes with its process. A process that waits for an end looks whether the one that
started it is still there, so that nothing is followed for a driver that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

import logweir.store as store
from logweir.errors import DirectoryLocked, LogweirError, SourceStopped, Unreachable, WalError
from logweir.limits import PIPELINE_SPLIT_BYTES
from logweir.pipeline.options import SPOOL
from logweir.pipeline.scratch import scratch
from logweir.pipeline.spoolplace import CopyFileSystem, SpoolPlace
from logweir.replication.protocols import check_addresses
from logweir.replication.runner import Runner, SourceState
from logweir.replication.server import Server, ServerOptions
from logweir.replication.urls import STALL_SECONDS, Url, option_seconds
from logweir.store import CheckpointOptions, Durability
from logweir.wal.vclock import VClock

_LOCK_SECONDS: Final = 3.0
"""How long a query that was stopped may need to let its spool go."""

_LOOK_SECONDS: Final = 0.5
_KEEPER: Final = "spark"


class Spool:
    """One upstream and its folder: a context manager. One at a time per folder; at a URL the one
    who came last, and the one before fails with `DirectoryLocked`.

    `folder`: a path, or a URL as `ScanOptions.spool` has it; `once`: see the module; `keeps_all`:
    no log is ever removed; else logs go behind snapshots, once they are after the position given to
    `keep`. `durability`: see `logweir.open`; at a URL all that is synced is there.
    """

    def __init__(
        self,
        url: Url,
        folder: str,
        *,
        once: bool,
        keeps_all: bool = False,
        durability: Durability = "fsync",
    ) -> None:
        self._url = url
        self._once = once
        self._patience_seconds = option_seconds(url, "stall", STALL_SECONDS)
        check_addresses(follow=[url], once=once)
        self._place: SpoolPlace | None = None
        self._copy = contextlib.ExitStack()
        self._log = self._opened(folder, keeps_all, durability)
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._rows = 0
        self._has_followed = False
        self._away_since: float | None = None
        self._kept: VClock | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="logweir-spool", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def vclock(self) -> VClock:
        """Up to where the rows are on disk."""
        return self._log.vclock

    @property
    def instance(self) -> str:
        """The folder's UUID."""
        return str(self._log.instance)

    def check(self) -> None:
        """Raise what ended the following, if anything did."""
        if self._failure is not None:
            raise self._failure

    def wait(self) -> None:
        """Until the upstream has answered, or, once, until all is here. Raises as `check`."""
        parent = os.getppid()
        while not self._ready.wait(_LOOK_SECONDS):
            if os.getppid() != parent:
                raise SourceStopped(f"{self._url}: who wanted its rows is gone")
        self.check()

    def keep(self, position: VClock) -> None:
        """Rows after `position` are still needed, those before it are not."""
        if position != self._kept:
            self._log.retain(_KEEPER, position)
            self._kept = position

    def close(self) -> None:
        """Stop following and give the folder free. Twice: nothing."""
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        with self._copy:
            self._log.close()

    def _opened(self, folder: str, keeps_all: bool, durability: Durability) -> store.Log:
        interval = 0.0 if keeps_all else CheckpointOptions().interval_seconds
        if not folder.startswith(SPOOL):
            return _opened(folder, interval, durability)
        with self._copy:
            copy = self._copy.enter_context(scratch())
            self._place = SpoolPlace(folder[len(SPOOL) :])
            self._place.fetch(copy)
            log = store.open(
                copy,
                checkpoint_interval=interval,
                wal_max_size=PIPELINE_SPLIT_BYTES,
                write_ahead=0,
                filesystem=CopyFileSystem(self._place),
            )
            self._copy = self._copy.pop_all()
        return log

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._follow())
        except BaseException as error:  # handed on to whoever asks
            lost = None if self._place is None else self._place.lost
            self._failure = self._failure or lost or error
        finally:
            self._ready.set()

    async def _follow(self) -> None:
        server = Server(self._log, ServerOptions(once=self._once))
        await server.start()
        try:
            runner = server.runner(self._url)
            work = (runner.run(), self._watch(runner), self._stop.wait())
            tasks = [asyncio.ensure_future(one) for one in work]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result
            self._look(runner)
        finally:
            await server.stop()

    async def _watch(self, runner: Runner) -> None:
        """Tell when the upstream answers. Raises the failure that is one too many."""
        while True:
            self._look(runner)
            await runner.changed()

    def _look(self, runner: Runner) -> None:
        status = runner.status
        if status.state == SourceState.FOLLOWING or status.rows > self._rows:
            self._rows, self._has_followed, self._away_since = status.rows, True, None
        if status.state in (SourceState.WAITING, SourceState.STOPPED) and status.last_error:
            self._bear(runner)
        elif status.state in (SourceState.SYNCING, SourceState.FOLLOWING) and not self._once:
            self._ready.set()

    def _bear(self, runner: Runner) -> None:
        """A failure: raise it, unless another attempt may be made."""
        failure, now = runner.failure, time.monotonic()
        self._away_since = self._away_since or now
        is_final = runner.status.state == SourceState.STOPPED or isinstance(failure, WalError)
        waited = now - self._away_since
        if is_final or self._once or not self._has_followed or waited > self._patience_seconds:
            if isinstance(failure, LogweirError):
                raise failure
            raise Unreachable(str(self._url), runner.status.last_error) from failure


def _opened(folder: str, interval: float, durability: Durability) -> store.Log:
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return store.open(folder, durability, checkpoint_interval=interval)
        except DirectoryLocked:
            if time.monotonic() >= until:
                raise
            time.sleep(_LOOK_SECONDS / 5)


@contextlib.contextmanager
def taken(url: Url, folder: str, *, is_temporary: bool = False) -> Iterator[Spool]:
    """A spool that has what the upstream had when this was called, and follows no further.

    `is_temporary`: nobody goes on with the folder after a crash. Raises what ended the following
    before, `DirectoryLocked`.
    """
    durability: Durability = "write" if is_temporary else "fsync"
    with Spool(url, folder, once=True, keeps_all=True, durability=durability) as spool:
        spool.wait()
        yield spool
