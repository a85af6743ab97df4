"""The archiver of a server: a process of its own, so that nothing of it stalls the server's loop.

The server writes one line of JSON, the settings, to its standard input, if nobody else reads the
keys of an address, and keeps it open: at its end the archiver ends, too. What the archiver prints
is a line of JSON for each look.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from logweir.archive.archiver import Archiver, Progress
from logweir.archive.catalog import Keep
from logweir.archive.objects import open_objects
from logweir.errors import LogweirError
from logweir.limits import ARCHIVE_WAIT_SECONDS
from logweir.pipeline.options import shown
from logweir.replication.logs import get_logger
from logweir.replication.metrics import ArchiveFigures
from logweir.store.log import Log
from logweir.wal.vclock import VClock

ARCHIVE_FOLLOWER: Final = "archive"
"""For whom a server keeps the logs that are not archived, as `logweir retain list` names it."""

_log = get_logger("logweir.archive")
_PROGRAM: Final = "from logweir.archive.child import main; main()"
_LINE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """What an archiver does. `place`: a folder or URL; `every`: seconds from look to look;
    `keep_for`, `keep_snapshots`: see `Keep`."""

    place: str
    every: float = 1.0
    keep_for: float | None = None
    keep_snapshots: int | None = None

    def check(self) -> None:
        """Raise `ConfigError` if there can be no such place."""
        open_objects(self.place)


class ArchiveProcess:
    """Keeps an archiver running beside a store that this process has open. One event loop.

    `keep`: is told up to where the log is archived, so that what is behind it is not collected.
    """

    def __init__(self, log: Log, settings: Settings, keep: Callable[[VClock], object]) -> None:
        self._log = log
        self._settings = settings
        self._keep = keep
        self._began = time.time()
        self._told: dict[str, Any] = Progress().to_json()
        self._errors = 0
        self._error = ""
        self._child_errors = 0
        self._damaged: set[str] = set()

    async def run(self) -> None:
        """Archive until cancelled. An archiver that ends is started again, later each time."""
        wait = 1.0
        while True:
            before = self._told["started"]
            await self._run_once()
            wait = 1.0 if self._told["started"] != before else wait
            await asyncio.sleep(wait)
            wait = min(2 * wait, ARCHIVE_WAIT_SECONDS)

    async def _run_once(self) -> None:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", _PROGRAM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        self._child_errors = 0
        try:
            settings = {"directory": str(self._log.path.absolute()), **asdict(self._settings)}
            child.stdin.write(f"{json.dumps(settings)}\n".encode())
            while line := await child.stdout.readline():
                self._take(json.loads(line))
            code = await child.wait()
            if not self._error:
                self._failed(f"the archiver ended with {code}", 1)
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()  # as at any other time: the place is whole
            await child.wait()

    def _take(self, told: dict[str, Any]) -> None:
        """One line of the archiver."""
        failed, self._child_errors = told["errors"] - self._child_errors, told["errors"]
        if failed:
            self._failed(told["error"], failed)
        else:
            self._error = ""
        for name in told["damaged"].keys() - self._damaged:
            self._damaged.add(name)
            _log.error("archive.damaged", reason=told["damaged"][name])
        if told["file"] or told["started"]:
            self._told = {**told, "started": told["started"] or self._told["started"]}
            self._keep(VClock({int(one): lsn for one, lsn in told["vclock"].items()}))

    def _failed(self, error: str, count: int) -> None:
        if error != self._error:
            _log.warning("archive.failed", place=shown(self._settings.place), reason=error)
        self._error = error
        self._errors += count

    def figures(self) -> ArchiveFigures:
        """How far it is behind the store, for `Metrics.archive`."""
        archived = VClock({int(one): lsn for one, lsn in self._told["vclock"].items()})
        end = self._log.vclock
        started = self._told["started"]
        is_behind = not archived.covers(end)
        return ArchiveFigures(
            place=shown(self._settings.place),
            rows=max(end.signature - archived.signature, 0),
            bytes=self._bytes_behind() if is_behind else 0,
            seconds=max(time.time() - (started or self._began), 0.0) if is_behind else 0.0,
            last_success=started or 0.0,
            errors=self._errors,
        )

    def _bytes_behind(self) -> int:
        newest, size = self._log.inner.durable_end
        file, offset = self._told["file"], self._told["offset"]
        total = 0
        with contextlib.suppress(OSError), os.scandir(self._log.path) as found:
            for one in found:
                if one.name.endswith(".xlog") and file <= one.name <= newest.name:
                    total += size if one.name == newest.name else one.stat().st_size
                    total -= offset if one.name == file else 0
        return max(total, 0)

    def status(self) -> dict[str, Any]:
        """What an operator could wonder about, in plain values."""
        figures = self.figures()
        return {
            **self._told,
            "place": figures.place,
            "errors": self._errors,
            "error": self._error,
            "lag_rows": figures.rows,
            "lag_bytes": figures.bytes,
            "lag_seconds": figures.seconds,
        }


def main() -> None:
    """The archiver's process: settings from standard input, progress to standard output."""
    settings = json.loads(sys.stdin.readline())
    stop = threading.Event()
    threading.Thread(target=_until_end, args=(stop,), daemon=True).start()
    progress = Progress()

    def report(now: Progress) -> None:
        print(json.dumps(now.to_json()), flush=True)

    try:
        keep = Keep(settings["keep_for"], settings["keep_snapshots"])
        objects = open_objects(settings["place"])
        with Archiver(Path(settings["directory"]), objects, keep=keep) as archiver:
            progress = archiver.progress
            archiver.follow(settings["every"], stop, report)
    except LogweirError as error:
        progress.errors += 1
        progress.error = str(error)
        report(progress)
        raise SystemExit(1) from None
    except BrokenPipeError:
        os._exit(1)  # the server is gone


def _until_end(stop: threading.Event) -> None:
    """Wait for the server's end. What is under way is left as by any kill."""
    sys.stdin.read()
    stop.set()
    os._exit(0)
