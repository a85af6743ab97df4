"""Keeping one upstream followed: connect, follow, back off and connect again, or stop and say why.

States::

    CONNECTING ─► SYNCING ─► FOLLOWING        each may fall back to WAITING, or to STOPPED
        ▲                        │
        └────── WAITING ◄────────┘

`WAITING` is the pause after a failure that another attempt may mend: the first is
`limits.BACKOFF_FIRST_SECONDS`, each next one twice as long up to `limits.BACKOFF_MAX_SECONDS`, and
each is multiplied with a random number from 0.5 to 1, so that many followers of one master do not
come back together. It starts anew once an attempt reached FOLLOWING. `STOPPED` is final: only an
operator can mend what is named in `last_error`, or, if that is "", all that was to be taken was.

An attempt that shows no life (`Progress.alive`) for `stall_seconds` is ended as stalled. A runner
that is to follow *once* ends when FOLLOWING is reached, or the peer refuses what it asks for.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Protocol

from logweir.errors import LogweirError, PeerRefused, SourceStopped, Unreachable
from logweir.limits import BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS
from logweir.replication.logs import get_logger
from logweir.replication.metrics import Metrics, StreamFigures
from logweir.replication.urls import STALL_SECONDS, Url

_log = get_logger("logweir.replication")


class SourceState(StrEnum):
    """Where the following of an upstream stands."""

    CONNECTING = "connecting"
    SYNCING = "syncing"
    FOLLOWING = "following"
    WAITING = "waiting"
    STOPPED = "stopped"


STATES: Final = tuple(str(state) for state in SourceState)


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """What an operator sees. `rows`: applied since the start; `lag_seconds`: None if not known;
    `stopped_parts`: streams or partitions that are not followed any more, and why."""

    url: str
    state: SourceState = SourceState.CONNECTING
    last_error: str = ""
    attempts: int = 0
    rows: int = 0
    position: str = ""
    lag_seconds: float | None = None
    stopped_parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """The state, and why if the source waits or has stopped: while it connects or copies,
        the last error is that of an earlier attempt."""
        failed = self.state in (SourceState.WAITING, SourceState.STOPPED) and self.last_error
        return f"{self.state}: {self.last_error}" if failed else f"{self.state}"

    def behind(self, lag_seconds: float) -> str:
        """What it has not caught up with, "" if it has, but for `lag_seconds` at most, or if
        all that was to be taken was. A part that is not followed any more does not count."""
        if self.state == SourceState.STOPPED and not self.last_error:
            return ""
        if self.state != SourceState.FOLLOWING:
            return self.told
        lag = self.lag_seconds
        return f"{lag:.1f} seconds behind" if lag is not None and lag > lag_seconds else ""


@dataclass(frozen=True, slots=True)
class Timing:
    """Clock, pause and chance of a runner, replaceable in tests. Times in seconds."""

    now: Callable[[], float] = field(default=lambda: asyncio.get_running_loop().time())
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random
    first_seconds: float = BACKOFF_FIRST_SECONDS
    max_seconds: float = BACKOFF_MAX_SECONDS
    stall_seconds: float = STALL_SECONDS

    def backoff_seconds(self, failures: int) -> float:
        """How long to wait after so many failures in a row (1 …)."""
        whole = min(self.max_seconds, self.first_seconds * 2.0 ** min(failures - 1, 30))
        return whole * (0.5 + 0.5 * self.chance())


class Progress(Protocol):
    """What an attempt tells its runner."""

    def alive(self) -> None:
        """Something came from the upstream."""

    def state(self, state: SourceState) -> None:
        """SYNCING or FOLLOWING was reached."""

    def applied(self, rows: int, position: str, lag_seconds: float | None) -> None:
        """`rows` more are durable here; `position`: where we stand now."""

    def streams(self, read: Callable[[], Iterable[StreamFigures]]) -> None:
        """`read` tells how each stream stands, for the metrics."""

    def part_stopped(self, part: str, reason: str) -> None:
        """One stream, topic or partition is not followed any more; the others are."""

    def finished(self) -> None:
        """All that was to be taken is durable here: the attempt ends, and no other follows."""


class Source(Protocol):
    """One upstream in one protocol."""

    @property
    def url(self) -> str:
        """Its address, without a password."""

    async def attempt(self, progress: Progress) -> None:
        """Connect and follow until the connection ends.

        Raises `SourceStopped` if another attempt cannot help, any other `LogweirError` or
        `OSError` if it may.
        """


class UrlSource(Source):
    """The address of a `Source`."""

    def __init__(self, url: Url) -> None:
        self._url = url

    @property
    def url(self) -> str:
        return str(self._url)


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Runner(Progress):
    """Follows one source until it is stopped or cancelled. Implements `Progress` for it.

    `once`: only until it is caught up. `failure`: what ended the last attempt that failed.
    """

    def __init__(
        self,
        source: Source,
        *,
        metrics: Metrics,
        timing: Timing | None = None,
        once: bool = False,
    ) -> None:
        self.failure: LogweirError | OSError | None = None
        self._source = source
        self._metrics = metrics
        self._once = once
        self._caught_up = asyncio.Event()
        self._timing = timing or Timing()
        self._status = SourceStatus(source.url)
        self._failures = 0
        self._last_life = 0.0
        self._is_finished = False
        self._changed = asyncio.Event()

    @property
    def status(self) -> SourceStatus:
        """How it stands now."""
        return self._status

    async def changed(self) -> SourceStatus:
        """Wait for the next change of the status and return it."""
        await self._changed.wait()
        return self._status

    def alive(self) -> None:
        self._last_life = self._timing.now()

    def state(self, state: SourceState) -> None:
        self.alive()
        if state == SourceState.FOLLOWING:
            self._failures = 0
            self._set(state=state, last_error="")
            if self._once:
                self._caught_up.set()
        else:
            self._set(state=state)

    def applied(self, rows: int, position: str, lag_seconds: float | None) -> None:
        self.alive()
        self._metrics.source_rows(self._source.url, rows)
        self._status = replace(
            self._status, rows=self._status.rows + rows, position=position, lag_seconds=lag_seconds
        )
        self._wake()

    def streams(self, read: Callable[[], Iterable[StreamFigures]]) -> None:
        self._metrics.source_streams(self._source.url, read)

    def part_stopped(self, part: str, reason: str) -> None:
        if self._status.stopped_parts.get(part) != reason:
            parts = {**self._status.stopped_parts, part: reason}
            self._status = replace(self._status, stopped_parts=parts)
            _log.error("source.part_stopped", url=self._source.url, part=part, reason=reason)
            self._wake()

    def finished(self) -> None:
        self._is_finished = True

    async def run(self) -> SourceStatus:
        """Follow until the source stops for good, or has caught up; returns the last status."""
        while self._status.state != SourceState.STOPPED:
            self._set(state=SourceState.CONNECTING, attempts=self._status.attempts + 1)
            try:
                await self._attempt()
                if self._caught_up.is_set():
                    break
                if self._is_finished:
                    self._set(state=SourceState.STOPPED, last_error="")
                    break
                problem = "the upstream closed the connection"
                self.failure = Unreachable(self._source.url, problem)
            except (LogweirError, OSError) as error:
                self.failure = error
                problem = self._told(error)
                is_refused = self._once and isinstance(error, PeerRefused)
                if is_refused or isinstance(error, SourceStopped):
                    self._set(state=SourceState.STOPPED, last_error=problem)
                    _log.error("source.stopped", url=self._source.url, reason=problem)
                    break
            except Exception as error:  # the outermost place: nobody else would hear of it
                if not _is_in_loop():  # it is only taken apart
                    raise
                _log.error("source.failed", url=self._source.url, exc_info=error)
                problem = f"internal error: {type(error).__name__}"
                self.failure = Unreachable(self._source.url, problem)
            self._failures += 1
            pause_seconds = self._timing.backoff_seconds(self._failures)
            self._set(state=SourceState.WAITING, last_error=problem)
            _log.warning(
                "source.waiting", url=self._source.url, reason=problem, seconds=pause_seconds
            )
            await self._timing.pause(pause_seconds)
        return self._status

    def _told(self, error: Exception) -> str:
        """What went wrong, without the address, which stands beside it wherever it is told."""
        return (str(error) or type(error).__name__).removeprefix(f"{self._source.url}: ")

    async def _attempt(self) -> None:
        self.alive()
        work = asyncio.ensure_future(self._source.attempt(self))
        watch = asyncio.ensure_future(self._watch())
        caught_up = asyncio.ensure_future(self._caught_up.wait())
        try:
            await asyncio.wait((work, watch, caught_up), return_when=asyncio.FIRST_COMPLETED)
            if self._caught_up.is_set():
                return
            if not work.done():
                raise TimeoutError(
                    f"stalled: nothing came for {self._timing.stall_seconds:g} seconds"
                )
            work.result()
        finally:
            for task in (work, watch, caught_up):
                task.cancel()
            await asyncio.gather(work, watch, caught_up, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            left = self._last_life + self._timing.stall_seconds - self._timing.now()
            if left <= 0:
                return
            await self._timing.pause(left)

    def _set(self, state: SourceState, **others: Any) -> None:
        before, self._status = self._status, replace(self._status, state=state, **others)
        self._metrics.source_state(self._source.url, state, STATES)
        if state != before.state:
            _log.info("source.state", url=self._source.url, state=str(state))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
