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
import functools
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from logweir.limits import CONNECT_SECONDS
from logweir.replication.tank import client as aio
from logweir.replication.tank.client import ConsumerOptions, Record
from logweir.replication.tank.client.producer import Producer as AsyncProducer
from logweir.replication.tank.client.producer import ProducerOptions, SendOptions
from logweir.replication.urls import Url

P = ParamSpec("P")
T = TypeVar("T")
Of = TypeVar("Of")


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


class _Blocking(Generic[Of]):
    """What stands for `of`, an object of the asyncio client, in the loop of a thread."""

    def __init__(self, loop: _Loop, of: Of) -> None:
        self._loop = loop
        self._of = of

    def __enter__(self) -> Self:
        return self


def _waits(
    method: Callable[Concatenate[Of, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Blocking[Of], P], T]:
    """The same method, which waits for its result."""

    @functools.wraps(method)
    def call(blocking: _Blocking[Of], /, *args: P.args, **options: P.kwargs) -> T:
        own = getattr(blocking._of, method.__name__)  # which may be that of a class below
        found: T = blocking._loop.run(own(*args, **options))
        return found

    return call


def _calls(
    method: Callable[Concatenate[Of, P], T],
) -> Callable[Concatenate[_Blocking[Of], P], T]:
    """The same method, called in the loop."""

    @functools.wraps(method)
    def call(blocking: _Blocking[Of], /, *args: P.args, **options: P.kwargs) -> T:
        return blocking._loop.call(lambda: method(blocking._of, *args, **options))

    return call


class Client(_Blocking[aio.Client]):
    """One broker; see `client.Client`."""

    def __init__(
        self, url: str | Url = "tank://127.0.0.1:11011", *, connect_seconds: float = CONNECT_SECONDS
    ) -> None:
        loop = _Loop()
        super().__init__(loop, loop.call(lambda: aio.Client(url, connect_seconds=connect_seconds)))

    def __enter__(self) -> Self:
        try:
            self._loop.run(self._of.connection())
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and end the thread."""
        self._loop.run(self._of.close())
        self._loop.close()

    topics = _waits(aio.Client.topics)
    partitions = _waits(aio.Client.partitions)
    create_topic = _waits(aio.Client.create_topic)
    reload = _waits(aio.Client.reload)
    status = _waits(aio.Client.status)

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """A producer; see `Producer`."""
        return Producer(self._loop, self._loop.call(lambda: self._of.producer(**options)))

    def consumer(
        self,
        topic: str,
        partitions: Iterable[int] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Consumer:
        """A consumer; see `Consumer`."""
        return Consumer(self._loop, self._of.consumer(topic, partitions, **options))

    def member(
        self, topic: str, *, lease_seconds: float = 10.0, **options: Unpack[ConsumerOptions]
    ) -> Member:
        """A member of a group; see `Member`."""

        def make() -> aio.Member:
            return self._of.member(topic, lease_seconds=lease_seconds, **options)

        return Member(self._loop, self._loop.call(make))


class Producer(_Blocking[AsyncProducer]):
    """See `client.Producer`. Leaving its block waits until everything is published."""

    def __exit__(self, *_: object) -> None:
        self.flush()

    def send(self, topic: str, content: bytes, **options: Unpack[SendOptions]) -> Future[None]:
        """Add one message; waits only while the buffer is full. The future tells its outcome."""
        outcome: Future[None] = Future()

        def landed(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is None:
                outcome.set_result(None)
            else:
                outcome.set_exception(error)

        async def work() -> None:
            (await self._of.send(topic, content, **options)).add_done_callback(landed)

        self._loop.run(work())
        return outcome

    flush = _waits(AsyncProducer.flush)


class Consumer(_Blocking[aio.Consumer]):
    """See `client.Consumer`. Iterating waits for the next message without end."""

    def __enter__(self) -> Self:
        self._loop.run(self._of.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._of.__aexit__())

    def __iter__(self) -> Iterator[Record]:
        while True:
            yield self.get()

    get = _waits(aio.Consumer.get)
    get_many = _waits(aio.Consumer.get_many)
    position = _calls(aio.Consumer.position)
    seek = _calls(aio.Consumer.seek)
    seek_to_begin = _waits(aio.Consumer.seek_to_begin)
    seek_to_end = _waits(aio.Consumer.seek_to_end)
    seek_to_time = _waits(aio.Consumer.seek_to_time)
    commit = _waits(aio.Consumer.commit)
    committed = _waits(aio.Consumer.committed)


class Member(Consumer):
    """See `client.Member`."""

    def __init__(self, loop: _Loop, of: aio.Member) -> None:
        super().__init__(loop, of)
        self._member = of

    def partitions(self) -> Sequence[int]:
        """See `client.Member.partitions`."""
        return self._loop.call(self._member.partitions)
