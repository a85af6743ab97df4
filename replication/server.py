"""One server: a store, the addresses it listens on, the upstreams it follows.

`SERVICES` names the protocols that can be served and `SOURCES` those that can be followed, by the
scheme of their addresses; each is made from the `Server` it belongs to.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from logweir.errors import ConfigError, LogweirError
from logweir.replication.greenstack.endpoint import GreenstackService
from logweir.replication.greenstack.source import GreenstackSource
from logweir.replication.hub import Hub
from logweir.replication.iproto.access import guest_grants
from logweir.replication.iproto.endpoint import IprotoService
from logweir.replication.iproto.functions import Functions, load_functions
from logweir.replication.iproto.service import Options, Shared
from logweir.replication.iproto.source import TarantoolSource
from logweir.replication.iproto.status import STATUS_FUNCTION
from logweir.replication.listener import Listener, Service
from logweir.replication.logs import get_logger
from logweir.replication.metrics import Metrics
from logweir.replication.runner import (
    STALL_SECONDS,
    Runner,
    Source,
    SourceState,
    SourceStatus,
    Timing,
)
from logweir.replication.synapse.endpoint import SynapseService, read_options
from logweir.replication.synapse.source import SynapseRedisSource, SynapseSource
from logweir.replication.tank.endpoint import TankService
from logweir.replication.tank.source import TankSource
from logweir.replication.tank.topics import StoredTopics
from logweir.replication.tap.endpoint import TapService
from logweir.replication.tap.options import read_listen_options
from logweir.replication.tap.source import STALL_SECONDS as TAP_STALL_SECONDS
from logweir.replication.tap.source import TapSource
from logweir.replication.urls import Url, option_seconds
from logweir.store.log import Log
from logweir.wal.follow import Follower

__all__ = ["SERVICES", "SOURCES", "Server", "ServerOptions", "run"]

_log = get_logger("logweir.replication")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Settings. `guest`: what a user who has not said who he is may do (see
    `iproto.access.guest_grants`); `functions`: module whose functions CALL may call; `tls`: for
    every address that is listened on; `replication_timeout_seconds`: see `iproto.service`."""

    listen: Sequence[Url] = ()
    follow: Sequence[Url] = ()
    guest: str = "none"
    functions: str = ""
    read_only: bool = False
    replication_timeout_seconds: float = 1.0
    tls: ssl.SSLContext | None = field(default=None, compare=False)


class Server:
    """Everything that runs on one store. Make it, `start` and `stop` it in one event loop."""

    def __init__(self, log: Log, options: ServerOptions) -> None:
        self.log = log
        self.options = options
        self.metrics = Metrics()
        self.hub = Hub(self._follow)
        functions = load_functions(options.functions) if options.functions else {}
        self.iproto = Shared(
            log,
            self.hub,
            metrics=self.metrics,
            functions=Functions({**functions, STATUS_FUNCTION: self.status}, log),
            options=Options(
                guest=guest_grants(options.guest),
                read_only=options.read_only,
                replication_timeout_seconds=options.replication_timeout_seconds,
            ),
        )
        self.listener = Listener(metrics=self.metrics)
        self.topics: StoredTopics | None = None
        self.greenstack: list[GreenstackService] = []
        self.runners: list[Runner] = []
        self.closers: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[SourceStatus]] = []
        self._stop_listening: Callable[[], None] = lambda: None

    def _follow(self, after: Any) -> Follower:
        log = self.log
        return Follower(log.path, after, durable=lambda: log.durable_end)

    def tank(self) -> TankService:
        """The topics of the store, for one more address."""
        if self.topics is None:
            self.topics = StoredTopics(self.log, read_only=self.options.read_only)
        return TankService(self.topics, metrics=self.metrics)

    async def start(self) -> Sequence[Url]:
        """Listen and follow. Returns the addresses with their real ports. Raises `ConfigError`."""
        self._stop_listening = self.log.on_commit(lambda vclock: self.hub.committed())
        try:
            for url in self.options.listen:
                service = _named(SERVICES, url, "listened on")(self, url)
                await self.listener.listen(url, service, tls=self.options.tls)
            for url in self.options.follow:
                source = _named(SOURCES, url, "followed")(self, url)
                stall_seconds = _STALL_SECONDS.get(url.scheme, STALL_SECONDS)
                timing = Timing(stall_seconds=option_seconds(url, "stall", stall_seconds))
                runner = Runner(source, metrics=self.metrics, timing=timing)
                self.runners.append(runner)
                self._tasks.append(asyncio.create_task(runner.run()))
        except LogweirError:
            await self.stop()
            raise
        return self.listener.urls

    async def stop(self) -> None:
        """End every connection and source. The store stays open."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for service in self.greenstack:
            service.close()
        await self.listener.close()
        for close in self.closers:
            close()
        if self.topics is not None:
            await self.topics.close()
        self.hub.close()
        self._stop_listening()

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

    def status(self) -> dict[str, Any]:
        """What an operator could wonder about, in plain values."""
        ours = self.log.vclock.without_local().signature
        return {
            **self.log.status(),
            "listen": [str(url) for url in self.listener.urls],
            "connections": len(self.listener.links),
            "sources": [
                {
                    "url": runner.status.url,
                    "state": str(runner.status.state),
                    "last_error": runner.status.last_error,
                    "attempts": runner.status.attempts,
                    "rows": runner.status.rows,
                    "position": runner.status.position,
                    "lag_seconds": runner.status.lag_seconds,
                }
                for runner in self.runners
            ],
            "topics": [] if self.topics is None else self.topics.status(),
            "replicas": [
                {
                    "instance": str(one.instance),
                    "replica_id": one.replica_id,
                    "peer": one.peer,
                    "acknowledged": dict(one.acknowledged),
                    "lag_rows": max(ours - one.acknowledged.without_local().signature, 0),
                }
                for one in self.iproto.followers.values()
            ],
        }


def _named(table: Mapping[str, T], url: Url, what: str) -> T:
    try:
        return table[url.scheme]
    except KeyError:
        raise ConfigError(
            str(url), f"{url.scheme} cannot be {what}", hint=f"one of {', '.join(table)}"
        ) from None


def _tap(server: Server, url: Url) -> Service:
    options = read_listen_options(url)
    service = TapService(
        server.iproto,
        url.path[0] if url.path else "",
        options=options.stream,
        encoding=options.encoding,
        sweep_seconds=options.sweep_seconds,
    )
    server.closers.append(service.close)
    return service


def _greenstack(server: Server, url: Url) -> Service:
    service = GreenstackService(
        server.iproto,
        ready=server.caught_up,
        is_ready=lambda: server.is_caught_up,
        plain=url.option("plain") == "1",
    )
    server.greenstack.append(service)
    return service


SERVICES: Final[Mapping[str, Callable[[Server, Url], Service]]] = {
    "tarantool": lambda server, url: IprotoService(server.iproto),
    "tank": lambda server, url: server.tank(),
    "tap": _tap,
    "memcached": _tap,
    "greenstack": _greenstack,
    "synapse": lambda server, url: SynapseService(server.log, server.hub, read_options(url)),
}

SOURCES: Final[Mapping[str, Callable[[Server, Url], Source]]] = {
    "tarantool": lambda server, url: TarantoolSource(server.iproto, url),
    "tank": lambda server, url: TankSource(url, server.log),
    "synapse": lambda server, url: SynapseSource(url, server.log),
    "synapse+redis": lambda server, url: SynapseRedisSource(url, server.log),
    "tap": lambda server, url: TapSource(server.iproto, url),
    "greenstack": lambda server, url: GreenstackSource(server.iproto, url),
}

_STALL_SECONDS: Final[Mapping[str, float]] = {"tap": TAP_STALL_SECONDS}


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run an event loop: uvloop's where that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
