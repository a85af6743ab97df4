"""What sessions and topics tell each other of a partition: its extent, chunks of it, bundles to be
appended."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from logweir.replication.topic.bundle import BundleHead, encode_varint, read_head
from logweir.replication.topic.requests import Create, CreateError, ReloadError


@dataclass(frozen=True, slots=True)
class Extent:
    """What a partition holds: first and last number, both 0 if it was never written.

    `written_bytes`: bytes of bundles, each with its length varint, that were ever added, counted
    from any fixed start; only differences mean something.
    """

    first: int
    last: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole bundles that follow one another, each after its length varint.

    `base`: number of the first message, 0 for an empty chunk; `sparse`: whether the first bundle
    is sparse; `pieces`: the bytes, one after the other, `size_bytes` in all.
    """

    base: int
    sparse: bool
    pieces: Sequence[bytes | memoryview] = ()
    size_bytes: int = 0


class ChunkMaker:
    """A chunk in the making: a first bundle of any size, and others as long as all stay within
    `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self.size_bytes = 0
        self._limit_bytes = limit_bytes
        self._base = 0
        self._pieces: list[bytes | memoryview] = []

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, first: int, data: bytes | memoryview) -> bool:
        """Add a bundle that begins with number `first`; False, and nothing done, if it does not
        fit."""
        length = encode_varint(len(data))
        size = self.size_bytes + len(length) + len(data)
        if self._pieces and size > self._limit_bytes:
            return False
        self._base = self._base or first
        self._pieces += (length, data)
        self.size_bytes = size
        return True

    def chunk(self) -> Chunk:
        """What was added."""
        is_sparse = bool(self._pieces) and read_head(self._pieces[1]).sparse
        return Chunk(self._base, is_sparse, self._pieces, self.size_bytes)


class TopicReader(Protocol):
    """What a session asks of the topics. All calls return at once."""

    @property
    def read_only(self) -> bool:
        """Whether nothing may be published."""
        ...

    def partitions(self, topic: str) -> int | None:
        """How many partitions a topic has; None: there is no such topic."""
        ...

    def writable(self, topic: str) -> bool:
        """Whether a topic takes bundles (a view of another space does not)."""
        ...

    def creatable(self, topic: str) -> bool:
        """Whether a topic of that name may be made; not whether there is one."""
        ...

    def extent(self, topic: str, partition: int) -> Extent | None:
        """What a partition holds; None: it cannot be read."""
        ...

    def read(self, topic: str, partition: int, start: int, limit_bytes: int) -> Chunk | None:
        """The bundle that holds `start`, or the next one, and those after it; None: damaged.

        The first bundle is given whatever its size, others while all stay within `limit_bytes`.
        """
        ...

    def topics(self) -> Sequence[tuple[str, bool, int]]:
        """(name, enabled, partitions) of every topic."""
        ...

    def reload(self, topic: str, partition: int) -> ReloadError:
        """Apply the configuration of a partition, which exists."""
        ...

    def opening(self) -> tuple[int, int, int]:
        """Partitions in use, ms that opening the topics took, Unix time of the start."""
        ...


class ClientTopics(TopicReader, Protocol):
    """What one client gets of the topics besides: each client may have its own."""

    def is_topic(self, name: str) -> bool:
        """Whether that is a topic, and no view or other name."""
        ...

    def prepare(self, request: object) -> Awaitable[object] | None:
        """What has to be awaited before `request` can be answered at once; None: nothing."""
        ...

    def create_from(self, request: Create, owner: int | None = None) -> Awaitable[CreateError]:
        """Make a topic; the outcome is there once it is durable. `owner`: the user whose it is,
        admin if it is None."""
        ...


class Append(NamedTuple):
    """One sound bundle to be stored. `first`: the number asked for (message 05), or None.

    `time_ms`: of its first message; `ticket` and `slot` name the place of its result.
    """

    ticket: int
    slot: int
    topic: str
    partition: int
    bundle: bytes | memoryview
    head: BundleHead
    time_ms: int
    first: int | None
