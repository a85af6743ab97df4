"""What tests of the Tank protocol share: the recordings, and topics that live in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logweir.limits import TANK_UNSTORED_BYTES
from logweir.replication.tank.push import WaitIndex
from logweir.replication.tank.server_session import ServerSession, Waiting
from logweir.replication.tank.wire.framing import FrameBuffer
from logweir.replication.tank.wire.messages import (
    Create,
    CreateError,
    Publish,
    PublishResult,
    ReloadError,
    Request,
)
from logweir.replication.topic.bundle import encode_varint, make_sparse, read_head
from logweir.replication.topic.partition import Append, Chunk, Extent

DATA = Path(__file__).parent.parent / "data" / "tank"


def captures() -> dict[str, dict[str, Any]]:
    """The recordings by name; `c2s` and `s2c` as bytes."""
    out = {}
    with (DATA / "captures.jsonl").open() as file:
        for line in file:
            item = json.loads(line)
            item["c2s"] = bytes.fromhex(item["c2s"])
            item["s2c"] = bytes.fromhex(item["s2c"])
            out[item["name"]] = item
    return out


def frames(data: bytes) -> list[tuple[int, bytes]]:
    """The whole frames of recorded bytes."""
    found, _ = FrameBuffer().feed(data)
    return [(kind, bytes(payload)) for kind, payload in found]


@dataclass
class Partition:
    """Bundles with their numbers, in order."""

    bundles: list[tuple[int, int, bytes]] = field(default_factory=list)
    written_bytes: int = 0

    def add(self, first: int, last: int, data: bytes) -> None:
        """Store a bundle without any check."""
        self.bundles.append((first, last, data))
        self.written_bytes += len(encode_varint(len(data))) + len(data)


class MemoryTopics:
    """Topics in memory, for sessions under test. Implements `TopicReader`."""

    def __init__(self) -> None:
        self.read_only = False
        self.content: dict[str, list[Partition]] = {}
        self.configs: dict[str, bytes] = {}
        self.unreadable: set[tuple[str, int]] = set()

    def create(self, name: str, partitions: int, config: bytes = b"") -> None:
        """Make a topic."""
        self.content[name] = [Partition() for _ in range(partitions)]
        self.configs[name] = config

    def partitions(self, topic: str) -> int | None:
        found = self.content.get(topic)
        return None if found is None else len(found)

    def writable(self, topic: str) -> bool:
        return topic in self.content

    def creatable(self, topic: str) -> bool:
        del topic
        return not self.read_only

    def is_topic(self, name: str) -> bool:
        return name in self.content

    def extent(self, topic: str, partition: int) -> Extent | None:
        if (topic, partition) in self.unreadable:
            return None
        found = self.content[topic][partition]
        if not found.bundles:
            return Extent(0, 0, 0)
        return Extent(found.bundles[0][0], found.bundles[-1][1], found.written_bytes)

    def read(self, topic: str, partition: int, start: int, limit_bytes: int) -> Chunk:
        base = 0
        out = b""
        for first, last, data in self.content[topic][partition].bundles:
            if last < start:
                continue
            framed = encode_varint(len(data)) + data
            if out and len(out) + len(framed) > limit_bytes:
                break
            base = base or first
            out += framed
        first_bundle = next(b for b in self.content[topic][partition].bundles if b[1] >= start)
        is_sparse = bool(first_bundle[2][0] & 0x40)  # all that a broker looks at
        return Chunk(base, is_sparse, (out,), len(out))

    def topics(self) -> Sequence[tuple[str, bool, int]]:
        return [(name, True, len(found)) for name, found in self.content.items()]

    def reload(self, topic: str, partition: int) -> ReloadError:
        del partition
        return ReloadError.DONE if self.configs[topic] else ReloadError.NO_CONFIG

    def opening(self) -> tuple[int, int, int]:
        return 2, 0, 1795206798

    def store(self, append: Append) -> PublishResult:
        """Store one bundle as a broker has to."""
        found = self.content[append.topic][append.partition]
        last = found.bundles[-1][1] if found.bundles else 0
        data = append.bundle
        first = append.head.first if append.head.sparse else append.first or last + 1
        if first <= last:
            return PublishResult.BAD_NUMBERS
        if first > last + 1:
            data = make_sparse(data, first)
        found.add(first, read_head(data).numbers(first)[1], data)
        return PublishResult.STORED


class MemoryStore(MemoryTopics):
    """The same as an endpoint wants them. Implements `TopicStore`."""

    unstored_bytes = TANK_UNSTORED_BYTES

    def __init__(self) -> None:
        super().__init__()
        self._callbacks: list[Callable[[Iterable[tuple[str, int]]], None]] = []
        self.held: list[Callable[[], None]] | None = None

    def on_published(self, callback: Callable[[Iterable[tuple[str, int]]], None]) -> None:
        self._callbacks.append(callback)

    def prepare(self, request: Request) -> None:
        """Everything is ready."""

    def append(self, appends: list[Append], done: Callable[[list[PublishResult]], None]) -> None:
        results = [self.store(append) for append in appends]

        def finish() -> None:
            done(results)
            for callback in self._callbacks:
                callback({(append.topic, append.partition) for append in appends})

        if self.held is None:
            finish()
        else:
            self.held.append(finish)

    async def create_from(self, request: Create, owner: int | None = None) -> CreateError:
        del owner
        self.create(request.topic, request.partitions, request.config)
        return CreateError.CREATED


class Broker:
    """Sessions over topics in memory, driven at once: what an endpoint does, without sockets."""

    def __init__(self, topics: MemoryTopics) -> None:
        self.topics = topics
        self.waiters: WaitIndex[Waiting] = WaitIndex()
        self.now = 0.0

    def connect(self) -> ServerSession:
        """A new connection."""
        return ServerSession(self.topics, self.waiters, self.now)

    def feed(self, session: ServerSession, data: bytes) -> bytes:
        """Bytes of a client in, bytes for it out."""
        for request in session.receive_data(data, self.now):
            self.handle(session, request)
        return session.data_to_send()

    def handle(self, session: ServerSession, request: Request) -> None:
        """Act on one request."""
        if isinstance(request, Publish):
            for append in session.publish([request]):
                session.stored([append], [self.store(append)])
        elif isinstance(request, Create):
            if session.creation(request) is not None:
                self.topics.create(request.topic, request.partitions, request.config)
                session.created(request, CreateError.CREATED)
        else:
            session.answer(request, self.now)

    def store(self, append: Append) -> PublishResult:
        """Store one bundle and tell those that wait."""
        result = self.topics.store(append)
        if result == PublishResult.STORED:
            for waiting in self.waiters.waiters((append.topic, append.partition)):
                waiting.session.published(waiting)
        return result

    def advance(self, session: ServerSession, seconds: float) -> bytes:
        """Let time pass for one connection; what it sends then."""
        self.now += seconds
        for _ in session.deadline_passed(self.now):
            raise AssertionError("a deadline brings no requests")
        return session.data_to_send()
