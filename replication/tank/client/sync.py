"""The Tank client without asyncio: the same classes, each call waits for its result.

::

    with Client("tank://127.0.0.1:11011") as client:
        client.create_topic("events", 2)
        with client.producer() as producer:
            producer.send("events", b"hello", key=b"user:1")
        with client.consumer("events", start="begin") as consumer:
            for record in consumer:
                print(record.number, record.content)

An event loop runs in a thread of its own per `Client`; its calls may come from any thread. What is
said of errors and places in `logweir.replication.tank.client` holds here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from logweir.limits import CONNECT_SECONDS
from logweir.replication.tank import client as aio
from logweir.replication.tank.client import Record, Start
from logweir.replication.tank.client.producer import Producer as AsyncProducer
from logweir.replication.tank.wire.messages import PartitionState, StatusAnswer
from logweir.replication.urls import Url

__all__ = ["Client", "Consumer", "Producer"]

T = TypeVar("T")


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="logweir-tank", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for what `work` gives. An interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """The same for a plain function, called in the loop."""

        async def work() -> T:
            return function()

        return self.run(work())

    def close(self) -> None:
        """Stop the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Client:
    """One broker; see `client.Client`."""

    def __init__(
        self, url: str | Url = "tank://127.0.0.1:11011", *, connect_seconds: float = CONNECT_SECONDS
    ) -> None:
        self._loop = _Loop()
        self._client = self._loop.call(lambda: aio.Client(url, connect_seconds=connect_seconds))

    def __enter__(self) -> Self:
        try:
            self._loop.run(self._client.connection())
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and end the thread."""
        self._loop.run(self._client.close())
        self._loop.close()

    def topics(self) -> Sequence[tuple[str, bool, int]]:
        """(name, enabled, number of partitions) of every topic."""
        return self._loop.run(self._client.topics())

    def partitions(self, topic: str) -> Sequence[PartitionState]:
        """First and last number of each partition."""
        return self._loop.run(self._client.partitions(topic))

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> None:
        """Make a topic."""
        self._loop.run(self._client.create_topic(topic, partitions, config))

    def reload(self, topic: str, partition: int = 0) -> None:
        """Let the broker apply a changed configuration."""
        self._loop.run(self._client.reload(topic, partition))

    def status(self) -> StatusAnswer:
        """How the broker is."""
        return self._loop.run(self._client.status())

    def producer(self, **options: Any) -> Producer:
        """A producer; options as of `client.Client.producer`."""
        return Producer(self._loop, self._loop.call(lambda: self._client.producer(**options)))

    def consumer(
        self,
        topic: str,
        partitions: Iterable[int] | None = None,
        *,
        start: Start | Mapping[int, Start] = "begin",
        group: str = "",
        reset: Literal["error", "begin", "end"] = "error",
        **options: int,
    ) -> Consumer:
        """A consumer; further options as of `client.Client.consumer`."""
        made = self._client.consumer(
            topic, partitions, start=start, group=group, reset=reset, **options
        )
        return Consumer(self._loop, made)


class Producer:
    """See `client.Producer`. Leaving its block waits until everything is published."""

    def __init__(self, loop: _Loop, producer: AsyncProducer) -> None:
        self._loop = loop
        self._producer = producer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.flush()

    def send(
        self,
        topic: str,
        content: bytes,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        time_ms: int | None = None,
    ) -> Future[None]:
        """Add one message; waits only while the buffer is full. The future tells its outcome."""
        outcome: Future[None] = Future()

        def landed(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is None:
                outcome.set_result(None)
            else:
                outcome.set_exception(error)

        async def work() -> None:
            sent = await self._producer.send(
                topic, content, key=key, partition=partition, time_ms=time_ms
            )
            sent.add_done_callback(landed)

        self._loop.run(work())
        return outcome

    def flush(self) -> None:
        """Publish everything and wait for the outcome of all."""
        self._loop.run(self._producer.flush())


class Consumer:
    """See `client.Consumer`. Iterating waits for the next message without end."""

    def __init__(self, loop: _Loop, consumer: aio.Consumer) -> None:
        self._loop = loop
        self._consumer = consumer

    def __enter__(self) -> Self:
        self._loop.run(self._consumer.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.run(self._consumer.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[Record]:
        while True:
            yield self.get()

    def get(self) -> Record:
        """The next message, waited for."""
        return self._loop.run(self._consumer.get())

    def get_many(
        self, most_messages: int = 1000, *, wait_ms: int | None = None
    ) -> Sequence[Record]:
        """Up to so many messages; none if none came within `wait_ms`."""
        return self._loop.run(self._consumer.get_many(most_messages, wait_ms=wait_ms))

    def position(self, partition: int) -> int:
        """Number of the next message that will be given out."""
        return self._loop.call(lambda: self._consumer.position(partition))

    def seek(self, partition: int, number: int) -> None:
        """Go on with message `number`, or the next one behind it."""
        self._loop.call(lambda: self._consumer.seek(partition, number))

    def seek_to_begin(self, *partitions: int) -> None:
        """Go to the oldest message there is."""
        self._loop.run(self._consumer.seek_to_begin(*partitions))

    def seek_to_end(self, *partitions: int) -> None:
        """Go behind the last message."""
        self._loop.run(self._consumer.seek_to_end(*partitions))

    def seek_to_time(self, time_ms: int, *partitions: int) -> None:
        """Go to the first message with that time or a later one."""
        self._loop.run(self._consumer.seek_to_time(time_ms, *partitions))

    def commit(self) -> None:
        """Keep the place of every partition at the broker under the group's name."""
        self._loop.run(self._consumer.commit())

    def committed(self) -> Mapping[int, int]:
        """The places that the group has committed."""
        return self._loop.run(self._consumer.committed())
