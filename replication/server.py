"""One server: a store, the addresses it listens on, the upstreams it follows.

What each protocol makes of an address: `logweir.replication.protocols`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from logweir.limits import CONNECTIONS, MEMORY_BYTES, METRICS_CONNECTIONS, STATUS_GAPS
from logweir.replication.administration import Administration
from logweir.replication.httpconversation import PAGES
from logweir.replication.listener import Listener, Service
from logweir.replication.loop import BUSY_POLL_SECONDS
from logweir.replication.metrics import Metrics
from logweir.replication.metricsport import METRICS, MetricsService
from logweir.replication.protocols import (
    SCHEMES,
    check_addresses,
    check_place,
    stall_seconds,
    wire_protocols,
)
from logweir.replication.recent import RecentErrors
from logweir.replication.runner import (
    Runner,
    SourceState,
    Timing,
)
from logweir.replication.service.access import guest_grants
from logweir.replication.service.names import Names
from logweir.replication.service.protocol import (
    CHECKSUMS_FUNCTION,
    STATUS_FUNCTION,
    Surroundings,
    WireProtocol,
)
from logweir.replication.service.rights import StoreUsers
from logweir.replication.service.shared import Options, Shared
from logweir.replication.stream import positions
from logweir.replication.stream.hub import Hub
from logweir.replication.stream.places import Places
from logweir.replication.urls import Url
from logweir.replication.web import web_service
from logweir.replication.web.board import Board
from logweir.store.log import Log
from logweir.store.view import space_checksums
from logweir.wal.follow import Follower
from logweir.wal.settled import Settled
from logweir.wal.vclock import VClock
from logweir.wal.writer import VERSION


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Settings. `guest`: what a user who has not said who he is may do (see
    `service.access.guest_grants`); `functions`: module whose functions CALL may call; `tls`: for
    every address that is listened on; `replication_timeout_seconds`: see `service.shared`;
    `retain_max_bytes`: of old logs kept for one follower, 0 without bound; `once`: of every
    upstream only what it had when it was asked; `metrics`, `web`: where these are served over HTTP,
    see `replication.metricsport`, `replication.web.service`; `memory_bytes`: see
    `replication.budget`; `connections`: open at a time; `ready_lag_seconds`: how far behind an
    upstream this server may be and be ready; `busy_poll_seconds`: how long it looks for more, when
    it has answered, before it sleeps, 0 not at all; `sockets`: on which somebody listens for it
    already, see `replication.handedover`.

    Raises `ConfigError` if two upstreams would fill the same (see `replication.service.names`), and
    for options of addresses, so that no store is made for what cannot run.
    """

    listen: Sequence[Url] = ()
    follow: Sequence[Url] = ()
    once: bool = False
    guest: str = "none"
    functions: str = ""
    read_only: bool = False
    replication_timeout_seconds: float = 1.0
    retain_max_bytes: int = 0
    metrics: Url | None = None
    web: Url | None = None
    tls: ssl.SSLContext | None = field(default=None, compare=False)
    memory_bytes: int = MEMORY_BYTES
    connections: int = CONNECTIONS
    ready_lag_seconds: float = 10.0
    busy_poll_seconds: float = BUSY_POLL_SECONDS
    sockets: Sequence[socket.socket] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        Names(self.follow, SCHEMES)
        check_addresses(self.listen, self.follow, once=self.once)
        for page in filter(None, (self.metrics, self.web)):
            check_place(page)


class Server:
    """Everything that runs on one store. Make it, `start` and `stop` it in one event loop."""

    def __init__(self, log: Log, options: ServerOptions) -> None:
        self.log = log
        self._committer = log.inner.committer
        self.options = options
        self.metrics = Metrics()
        self.places = Places()
        self.hub = Hub(self._follow, on_gap=self.metrics.stream_gap)
        self.settled = Hub(self._follow_settled, on_gap=self.metrics.stream_gap)
        self.shared = Shared(
            log,
            self.hub,
            self.settled,
            metrics=self.metrics,
            options=Options(
                guest=guest_grants(options.guest),
                read_only=options.read_only,
                replication_timeout_seconds=options.replication_timeout_seconds,
                retain_max_bytes=options.retain_max_bytes,
                connections=options.connections,
                follows=bool(options.follow),
            ),
        )
        self.users = StoreUsers(self.shared)
        self.listener = Listener(
            metrics=self.metrics,
            users=self.users,
            logins=self.shared.logins,
            connections_limit=options.connections,
            memory_bytes=options.memory_bytes,
            sockets=options.sockets,
            busy_poll_seconds=options.busy_poll_seconds,
        )
        administration = Administration(
            log, forget=self._forget, refused=lambda: "the server is read-only" * options.read_only
        )
        around = Surroundings(
            names=Names(options.follow, SCHEMES),
            once=options.once,
            caught_up=self.caught_up,
            is_caught_up=lambda: self.is_caught_up,
            calls={STATUS_FUNCTION: self.status, CHECKSUMS_FUNCTION: self.checksums},
            operator_calls=administration.calls(),
            functions=options.functions,
        )
        self.protocols = [one(self.shared, around) for one in wire_protocols()]
        self._by_scheme = {name: one for one in self.protocols for name in one.schemes}
        self.runners: list[Runner] = []
        self.more_status: dict[str, Callable[[], Any]] = {}
        """What else `status` tells, by its key."""
        self.recent = RecentErrors()
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._tasks: list[asyncio.Task[Any]] = []
        self._stop_listening: Callable[[], None] = lambda: None

    def _follow_settled(self, after: VClock) -> Follower:
        return self._follow(after, self.log.inner.settled)

    def _follow(
        self, after: VClock, settled: Callable[[VClock], Settled] | None = None
    ) -> Follower:
        log, place = self.log, self.places.before(after)
        return Follower(
            log.path,
            after,
            filesystem=log.inner.filesystem,
            durable=lambda: log.inner.durable_end,
            settled=settled,
            place=None if place is None else (place.path, place.offset, place.vclock),
        )

    def _forget(self, name: str) -> None:
        """An operator releases a follower, from another thread."""
        self._loop.call_soon_threadsafe(self.shared.retention.forget, name)

    def _committed(self, vclock: VClock) -> None:
        """After each commit, in its thread."""
        path, offset = self._committer.durable
        self.places.note(vclock, path, offset)
        self.hub.committed()
        self.settled.committed()

    def protocol(self, scheme: str) -> WireProtocol:
        """What serves and follows addresses of that scheme, one of `protocols.SCHEMES`."""
        return self._by_scheme[scheme]

    async def start(self) -> Sequence[Url]:
        """Listen and follow. Returns the addresses with their real ports. Raises `ConfigError`."""
        self.log.inner.check_process()
        end = self.log.inner.durable_end  # looked at first: what is committed then lies after it
        self.places.note(self.log.vclock, *end)
        self._stop_listening = self.log.on_commit(self._committed)
        self.recent.begin()
        try:
            for url in self.options.listen:
                protocol = self.protocol(url.scheme)
                await asyncio.to_thread(protocol.prepare, url)
                for where, service in protocol.services(url):
                    await self._listen(where, service)
            await self._listen_to_browsers()
            self.listener.handed.all_taken()
            for url in self.options.follow:
                runner = self.runner(url)
                self.runners.append(runner)
                self._tasks.append(asyncio.create_task(runner.run()))
            self._tasks.append(asyncio.create_task(self.shared.retention.run()))
        except BaseException:
            await self.stop()
            raise
        return self.urls

    async def _listen(self, url: Url, service: Service) -> None:
        open_to = "" if url.option("sasl") == "required" else self.users.guest_may()
        await self.listener.listen(url, service, tls=self.options.tls, open_to=open_to)

    async def _listen_to_browsers(self) -> None:
        """Serve metrics and the page. Raises `ConfigError`."""
        pages: list[tuple[Url, Service, str]] = []
        if (url := self.options.metrics) is not None:
            pages.append((url, MetricsService(self.metrics, self.unready), "read them"))
        if (url := self.options.web) is not None:
            board = Board(self._look, self.log.inner.holdings)
            service = web_service(self.shared, board, url.host)
            pages.append((url, service, "see the page" * service.shows_guests()))
            self._tasks.append(asyncio.create_task(board.run()))
        for url, page, open_to in pages:
            tls = None if url.option("tls") == "0" else self.options.tls
            is_metrics = url.scheme == METRICS
            await self.listener.listen(
                url,
                page,
                tls=tls,
                open_to=open_to,
                reserve=METRICS_CONNECTIONS if is_metrics else 0,
                takes_logins=not is_metrics,
            )

    def _look(self) -> dict[str, Any]:
        """`status` without spaces."""
        return {**self.log.inner.progress(), **self.activity()}

    @property
    def urls(self) -> Sequence[Url]:
        """The addresses on which the store is served, with their real ports."""
        return tuple(url for url in self.listener.urls if url.scheme not in PAGES)

    @property
    def page_url(self) -> str:
        """Where a browser finds the page, "" if there is none or at a unix socket."""
        for told in self.listener.status():
            url = str(told["url"])
            if url.startswith("web://") and not url.startswith("web://unix/:"):
                where = url.removeprefix("web://").partition("?")[0]
                return f"{'https' if told['tls'] else 'http'}://{where}/"
        return ""

    def runner(self, url: Url) -> Runner:
        """What follows that upstream, not begun. Raises `ConfigError`."""
        source = self.protocol(url.scheme).source(url)
        timing = Timing(stall_seconds=stall_seconds(url))
        return Runner(source, metrics=self.metrics, timing=timing, once=self.options.once)

    async def stop(self) -> None:
        """End every connection and source. The store stays open. Nothing in a child of `fork`,
        whose sockets are its parent's."""
        if self.log.inner.is_foreign:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for protocol in self.protocols:
            protocol.stopping()
        await self.listener.close()
        for protocol in self.protocols:
            await protocol.close()
        await self.shared.retention.close()
        self.hub.close()
        self.settled.close()
        self._stop_listening()
        self.recent.end()

    async def caught_up(self) -> None:
        """Wait until every upstream is followed to its end, or one of them has stopped."""
        while not self.is_caught_up:
            await asyncio.wait(
                [asyncio.ensure_future(runner.changed()) for runner in self.runners],
                return_when=asyncio.FIRST_COMPLETED,
            )

    @property
    def is_caught_up(self) -> bool:
        """Whether every upstream is followed to its end, or has stopped for good."""
        done = (SourceState.FOLLOWING, SourceState.STOPPED)
        return all(runner.status.state in done for runner in self.runners)

    def unready(self) -> list[str]:
        """Why clients should not be sent here now, a sentence for each reason; empty for none."""
        reasons = []
        if self.log.is_closed:
            reasons.append("the store is closed")
        elif self.log.failure is not None:
            reasons.append(f"the log has failed: {self.log.failure}")
        elif (refusal := self.log.inner.refusal()) is not None:
            reasons.append(f"changes are refused: {refusal}")
        if len(self.runners) < len(self.options.follow):
            reasons.append("it starts")
        told = [
            (one.status, one.status.behind(self.options.ready_lag_seconds)) for one in self.runners
        ]
        return reasons + [f"{status.url}: {behind}" for status, behind in told if behind]

    def checksums(self) -> dict[str, Any]:
        """The content of every space at one position, as metrics too. Reads every tuple."""
        with self.log.read_view() as view:
            found = list(space_checksums(view))
        for one in found:
            self.metrics.space_checksum(one.space, one.tuples, one.crc32c)
        return {
            "vclock": dict(view.vclock.without_local()),
            "spaces": [
                {"space": one.space, "tuples": one.tuples, "crc32c": f"{one.crc32c:08x}"}
                for one in found
            ],
        }

    def status(self) -> dict[str, Any]:
        """What an operator could wonder about, in plain values."""
        return {**self.log.status(), **self.activity()}

    def activity(self) -> dict[str, Any]:
        """`status` without the store itself; from any thread."""
        requests = self.metrics.requests()
        return {
            "program": f"logweir {VERSION}",
            "uptime_seconds": self._loop.time() - self._began,
            "listen": [str(url) for url in self.urls],
            "connections": len(self.listener.links),
            "guest_may": self.users.guest_may(),
            "failed_logins": self.shared.logins.failed_in_all,
            "slowed_addresses": self.shared.logins.slowed,
            "refused_connections": dict(self.listener.refusals),
            "memory": self.listener.budget.status(),
            "listeners": self.listener.status(),
            "traffic": [
                {"scheme": scheme, **told, "requests": sum(requests.get(scheme, (0, 0)))}
                for scheme, told in self.listener.traffic().items()
            ],
            "errors": self.recent.status(),
            "pinned_bytes": dict(self.shared.retention.pinned),
            "retain_max_bytes": self.options.retain_max_bytes,
            "sources": [
                {
                    "url": runner.status.url,
                    "state": str(runner.status.state),
                    "last_error": runner.status.last_error,
                    "attempts": runner.status.attempts,
                    "rows": runner.status.rows,
                    "position": runner.status.position,
                    "lag_seconds": runner.status.lag_seconds,
                    "stopped_parts": dict(runner.status.stopped_parts),
                }
                for runner in self.runners
            ],
            "gaps": [asdict(gap) for gap in positions.gaps(self.log)[-STATUS_GAPS:]],
            "readers": [asdict(each) for one in self.protocols for each in one.readings()],
            **{name: told for one in self.protocols for name, told in one.status().items()},
            **{name: told() for name, told in self.more_status.items()},
        }


def raise_file_limit(wanted: int) -> int:
    """Let this process have `wanted` files and sockets open, or as many as it may at most.

    Returns how many it may have now.
    """
    try:
        import resource
    except ImportError:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most
