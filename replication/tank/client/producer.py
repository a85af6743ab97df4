"""Publishing to a Tank broker in batches: messages gathered into bundles, one per partition.

With `repeat_seconds` bundles have numbers from here, and what is in doubt is published again; see
`tank.client.repeating`.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Self, TypedDict, Unpack

from logweir.errors import ConfigError, LogweirError
from logweir.replication.tank.client.connection import now_ms, refused
from logweir.replication.tank.client.repeating import Numbered, Wanted
from logweir.replication.tank.wire.messages import PublishResult
from logweir.replication.topic.bundle import Message

if TYPE_CHECKING:
    from logweir.replication.tank.client import Client

BATCH_MESSAGES: Final = 255
"""Most messages of a bundle by default: one client in the field counts them in 8 bits."""
BATCH_BYTES: Final = 256 * 1024
LINGER_SECONDS: Final = 0.005
BUFFER_BYTES: Final = 32 * 1024 * 1024
IN_FLIGHT: Final = 8
_MOST: Final = 0xFF  # bundles of a request
Compression = Literal["auto", "snappy", "none"]
_COMPRESS: Final[Mapping[str, bool | None]] = {"auto": None, "snappy": True, "none": False}


class ProducerOptions(TypedDict, total=False):
    """See `Producer`."""

    batch_messages: int
    batch_bytes: int
    linger_seconds: float
    buffer_bytes: int
    compression: Compression
    repeat_seconds: float


class SendOptions(TypedDict, total=False):
    """See `Producer.send`."""

    key: bytes | None
    partition: int | None
    time_ms: int | None


@dataclass(slots=True)
class _Batch(Wanted):
    """With who waits for what becomes of each message."""

    futures: list[asyncio.Future[None]] = field(default_factory=list)
    size_bytes: int = 0


class Producer:
    """Gathers messages into bundles, one per partition, and publishes them in order.

    A bundle goes out when it has `batch_messages` or `batch_bytes`, or `linger_seconds` after its
    first message. At most `buffer_bytes` wait; then `send` does. A message without a partition goes
    to that of its key's CRC-32, without a key to each partition in turn, bundle by bundle.
    `compression`: "auto" compresses above 1024 bytes or 512 messages. `repeat_seconds`: how long a
    publish whose connection broke is tried again, each message being stored once; 0: it is not.
    """

    def __init__(
        self,
        client: Client,
        *,
        batch_messages: int = BATCH_MESSAGES,
        batch_bytes: int = BATCH_BYTES,
        linger_seconds: float = LINGER_SECONDS,
        buffer_bytes: int = BUFFER_BYTES,
        compression: Compression = "auto",
        repeat_seconds: float = 0,
    ) -> None:
        if compression not in _COMPRESS:
            raise ConfigError("compression", f"{compression!r} is none of {', '.join(_COMPRESS)}")
        self._client = client
        self._batch_messages = batch_messages
        self._batch_bytes = batch_bytes
        self._linger_seconds = linger_seconds
        self._buffer_bytes = buffer_bytes
        if repeat_seconds < 0:
            raise ConfigError("repeat_seconds", f"{repeat_seconds} is below 0")
        self._compress = _COMPRESS[compression]
        self._numbered = Numbered(client, repeat_seconds) if repeat_seconds else None
        self._open: dict[tuple[str, int], _Batch] = {}
        self._ready: deque[_Batch] = deque()
        self._waiting_bytes = 0
        self._in_flight: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._counts: dict[str, int] = {}
        self._turns: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.flush()

    async def send(
        self,
        topic: str,
        content: bytes,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        time_ms: int | None = None,
    ) -> asyncio.Future[None]:
        """Add one message; waits only while the buffer is full.

        Returns a future that is done once the broker has stored it, or fails with `PeerRefused`,
        or with `Unreachable` if that is not known. `time_ms`: now unless given.
        """
        await self._room.wait()
        place = (topic, await self._choose(topic, key) if partition is None else partition)
        batch = self._open.setdefault(place, _Batch(*place, [], self._compress))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        batch.messages.append(Message(0, now_ms() if time_ms is None else time_ms, key, content))
        batch.futures.append(future)
        size = len(content) + len(key or b"")
        batch.size_bytes += size
        self._waiting_bytes += size
        if self._waiting_bytes > self._buffer_bytes:
            self._room.clear()
        if len(batch.messages) >= self._batch_messages or batch.size_bytes >= self._batch_bytes:
            self._close_batch(place)
            self._pump()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._linger_seconds, self._linger_over)
        return future

    async def send_and_wait(
        self, topic: str, content: bytes, **options: Unpack[SendOptions]
    ) -> None:
        """Add one message and wait until the broker has stored it."""
        await (await self.send(topic, content, **options))

    async def flush(self) -> None:
        """Publish everything and wait for the outcome of all; failures are in the futures."""
        self._linger_over()
        while self._in_flight:
            await asyncio.wait(tuple(self._in_flight))

    async def _choose(self, topic: str, key: bytes | None) -> int:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = len(await self._client.partitions(topic))
        if key:
            return zlib.crc32(key) % count
        return self._turns.get(topic, 0) % count

    def _linger_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for place in tuple(self._open):
            self._close_batch(place)
        self._pump()

    def _close_batch(self, place: tuple[str, int]) -> None:
        self._ready.append(self._open.pop(place))
        self._turns[place[0]] = self._turns.get(place[0], 0) + 1

    def _pump(self) -> None:
        while self._ready and len(self._in_flight) < (1 if self._numbered else IN_FLIGHT):
            batches = self._next_batches()
            task = asyncio.get_running_loop().create_task(self._publish(batches))
            self._in_flight.add(task)
            task.add_done_callback(self._landed)

    def _next_batches(self) -> list[_Batch]:
        """Those of the next request: where they have numbers from here, one of each partition."""
        if self._numbered is None:
            return [self._ready.popleft() for _ in range(min(len(self._ready), _MOST))]
        taken: dict[tuple[str, int], _Batch] = {}
        later = deque[_Batch]()
        for ready in self._ready:
            place = (ready.topic, ready.partition)
            if len(taken) < _MOST and place not in taken:
                taken[place] = ready
            else:
                later.append(ready)
        self._ready = later
        return list(taken.values())

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled():
            task.result()
        self._pump()

    async def _publish(self, batches: Sequence[_Batch]) -> None:
        outcomes: Sequence[PublishResult | LogweirError]
        try:
            if self._numbered is not None:
                outcomes = await self._numbered.publish(batches)
            else:
                outcomes = await self._client.publish([batch.part() for batch in batches])
        except LogweirError as error:
            outcomes = [error] * len(batches)
        for batch, outcome in zip(batches, outcomes, strict=True):
            self._waiting_bytes -= batch.size_bytes
            problem = outcome if isinstance(outcome, LogweirError) else None
            if isinstance(outcome, PublishResult) and outcome is not PublishResult.STORED:
                problem = refused(f"publish to {batch.topic}/{batch.partition}", outcome)
            for future in batch.futures:
                if future.done():
                    continue
                if problem is None:
                    future.set_result(None)
                else:
                    future.set_exception(problem)
                    future.exception()  # who does not look at it has chosen not to
        if self._waiting_bytes <= self._buffer_bytes:
            self._room.set()
