"""Following a Synapse homeserver over the channel of its Redis (D2 to D4), see `source`.

Also at a unix socket, with `tls=1` and what belongs to it. `dbid=N` is the database that is
selected: channels are those of all databases. Nothing but ``REPLICATE `` is ever published.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, Final

from logweir.errors import ConfigError, LogweirError, SourceStopped, Unreachable
from logweir.limits import CONNECT_SECONDS, SYNAPSE_WAITING_BYTES
from logweir.replication.runner import Progress, SourceState
from logweir.replication.synapse.client_session import RedisSession, take_page
from logweir.replication.synapse.follow.contents import Database
from logweir.replication.synapse.follow.cursors import Tracker
from logweir.replication.synapse.follow.source import Flow, Upstream, read_options
from logweir.replication.urls import Url
from logweir.store import Log

_PING_SECONDS: Final = 10.0
_REDIS_MESSAGES: Final = 1000
_DATABASES: Final = 2**31


def read_dbid(url: Url) -> int:
    """The database that an address names. Raises `ConfigError`."""
    dbid = url.option("dbid") or "0"
    if not (dbid.isascii() and dbid.isdigit() and int(dbid) < _DATABASES):
        raise ConfigError("dbid", f"{dbid!r} is no database", hint="write dbid=N, such as 0")
    return int(dbid)


class SynapseRedisSource(Upstream):
    """A homeserver's Redis channel, for a `Runner`. The server's name is the address's path.
    `secret`: for missed rows; `database`: with contents; None: as the options say. Raises
    `ConfigError`."""

    def __init__(
        self,
        url: Url,
        log: Log,
        *,
        once: bool = False,
        secret: str | None = None,
        database: Database | None = None,
    ) -> None:
        super().__init__(url, log, once, read_options(url, secret, database))
        self.server_name = url.path[0]
        self._dbid = read_dbid(url)

    def _tls(self) -> dict[str, Any]:
        """What the library takes for TLS."""
        url = self._url
        if not url.flag("tls"):
            return {}
        found = {"ssl": True, "ssl_check_hostname": True}
        files = {"ssl_certfile": url.option("certificate"), "ssl_keyfile": url.option("key")}
        ca = url.option("ca")
        files["ssl_ca_path" if Path(ca).is_dir() else "ssl_ca_certs"] = ca
        return found | {name: file for name, file in files.items() if file}

    async def attempt(self, progress: Progress) -> None:
        try:
            from redis import asyncio as redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import RedisError
        except ImportError as error:
            raise SourceStopped(
                "the package `redis` is not installed", hint="pip install 'logweir[redis]'"
            ) from error
        tracker = await self.tracker(self.server_name)
        client = redis.Redis(
            host=self._url.host,
            port=self._url.port,
            unix_socket_path=self._url.socket or None,
            username=self._url.user or None,
            password=self._url.secret() or None,
            **self._tls(),
            db=self._dbid,
            socket_connect_timeout=CONNECT_SECONDS,
            retry=Retry(NoBackoff(), 0),  # what was published meanwhile would be lost unseen
        )
        try:
            async with client.pubsub() as subscription:
                await subscription.subscribe(self.server_name)
                if await subscription.get_message(timeout=CONNECT_SECONDS) is None:
                    raise Unreachable(self.url, "Redis does not confirm the subscription")
                reader = _RedisReader(self, subscription, tracker, progress)
                await client.publish(self.server_name, "REPLICATE ")
                _check_cancelled()
                await reader.run()
        except RedisError as error:
            raise Unreachable(self.url, f"Redis: {error}") from error
        finally:
            await _closed(client)


async def _closed(client: Any) -> None:
    """Close the library's client, which leaves connections open if that is cancelled. Who cancels
    hears of that alone, whatever comes of the closing."""
    closing = asyncio.ensure_future(client.aclose())
    try:
        await asyncio.shield(closing)
    except asyncio.CancelledError:
        await asyncio.gather(closing, return_exceptions=True)
        raise


def _check_cancelled() -> None:
    """Raises `CancelledError` in a task that was cancelled: the library may have kept that to
    itself."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class _RedisReader:
    """One subscription that is confirmed."""

    def __init__(
        self,
        source: SynapseRedisSource,
        subscription: Any,
        tracker: Tracker,
        progress: Progress,
    ) -> None:
        self._source = source
        self._subscription = subscription
        self._tracker = tracker
        self._session = RedisSession(tracker)
        self._flow = Flow(source, progress)
        self._flow.on_page = partial(take_page, tracker)
        self._room = asyncio.Event()
        self._flow.on_room = self._room.set
        self._began_at = self._heard = asyncio.get_running_loop().time()
        progress.state(SourceState.SYNCING)

    async def run(self) -> None:
        """Until the end, which raises."""
        reading = asyncio.get_running_loop().create_task(self._read())
        try:
            await self._flow.run(self._settled)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            if self._flow.has_unstored:
                self._source.forget()

    def _settled(self) -> bool:
        now = asyncio.get_running_loop().time()
        return self._source.has_caught_up(self._tracker, now, self._began_at, self._heard)

    async def _read(self) -> None:
        try:
            while True:
                messages = await self._messages()
                _check_cancelled()
                self._heard = asyncio.get_running_loop().time()
                self._flow.add(self._session.receive(messages))
                while self._flow.waiting_bytes > SYNAPSE_WAITING_BYTES:
                    self._room.clear()
                    await self._room.wait()
        except asyncio.CancelledError:
            raise
        except LogweirError as error:
            self._flow.end(error)
        except Exception as error:  # the library's own, and those of the socket
            self._flow.end(Unreachable(self._source.url, f"Redis: {error}"))

    async def _messages(self) -> list[bytes]:
        """What was published, at least one message, or nothing after a sign of life of Redis."""
        first = await self._subscription.get_message(timeout=_PING_SECONDS)
        if first is None:
            await self._subscription.ping()
            first = await self._subscription.get_message(timeout=CONNECT_SECONDS)
            if first is None:
                raise Unreachable(self._source.url, "Redis is silent")
        found = []
        while first is not None:
            if first["type"] == "message":
                found.append(first["data"])
            elif first["type"] == "subscribe":
                raise Unreachable(self._source.url, "the connection to Redis was made anew")
            if len(found) >= _REDIS_MESSAGES:
                break
            first = await self._subscription.get_message(timeout=0.0)
        return found
