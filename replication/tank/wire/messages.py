"""Tank messages as values: requests, answers, and the tables of their result bytes.

How they look in bytes is in `logweir.replication.tank.wire.codec`.
Source: Tank 4.0 (broker and tank-cli), the Java client 0.6 and a Go client, observed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from logweir.replication.topic.requests import (
    FROM_END,
    Create,
    CreateError,
    Fetch,
    FetchPart,
    Partitions,
    PublishResult,
    ReloadError,
)

__all__ = [
    "FROM_END",
    "Answer",
    "Create",
    "CreateAnswer",
    "CreateError",
    "Fetch",
    "FetchAnswer",
    "FetchPart",
    "FetchStatus",
    "FetchedPart",
    "MessageType",
    "PartitionState",
    "Partitions",
    "PartitionsAnswer",
    "Ping",
    "Publish",
    "PublishAnswer",
    "PublishPart",
    "PublishResult",
    "Reload",
    "ReloadAnswer",
    "ReloadError",
    "Request",
    "Status",
    "StatusAnswer",
    "Topics",
    "TopicsAnswer",
    "Topology",
    "TopologyAnswer",
]


class MessageType(IntEnum):
    """The first byte of a frame."""

    PUBLISH = 0x01
    FETCH = 0x02
    PING = 0x03
    PUBLISH_AT = 0x05
    PARTITIONS = 0x06
    CREATE = 0x07
    RELOAD = 0x08
    STATUS = 0x0A
    TOPICS = 0x0B
    TOPOLOGY = 0x0C


class FetchStatus(IntEnum):
    """Outcome for one partition. Only these may be sent."""

    FINE = 0x00
    BOUNDARY = 0x01
    UNREADABLE = 0xFB
    OTHER_LEADER = 0xFC
    NO_LEADER = 0xFD
    SPARSE = 0xFE
    UNKNOWN_PARTITION = 0xFF


@dataclass(frozen=True, slots=True)
class Ping:
    """Nothing but its type."""


class PublishPart(NamedTuple):
    """One bundle. `first`: its explicit first number (message 05), or None."""

    topic: str
    partition: int
    bundle: bytes | memoryview
    first: int | None = None


@dataclass(slots=True)  # to make a frozen one takes four times as long
class Publish:
    """Bundles for partitions of topics. `topics`: (name, its parts) in the order of the frame."""

    request_id: int
    topics: tuple[tuple[str, tuple[PublishPart, ...]], ...]
    at_numbers: bool = False
    version: int = 2
    client: str = ""
    acks: int = 0
    ack_timeout_ms: int = 0


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A request, or the answer to the request of that number."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Reload(_Numbered):
    """Read the configuration of a partition anew."""

    topic: str
    partition: int


class Status(_Numbered):
    """How is the broker."""

    __slots__ = ()


class Topics(_Numbered):
    """Which topics are there."""

    __slots__ = ()


class Topology(_Numbered):
    """Which brokers make up the cluster."""

    __slots__ = ()


Request = Ping | Publish | Fetch | Partitions | Create | Reload | Status | Topics | Topology


@dataclass(frozen=True, slots=True)
class PublishAnswer(_Numbered):
    """The result bytes, one after the other (see `codec.publish_results`)."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class FetchedPart:
    """What came for one partition. `partition` and `status` None: the whole topic is unknown.

    `base`: number of the first message if that bundle is an ordinary one; `high_water_mark`:
    last readable number; `first_available`: after a boundary failure; `leader`: (IPv4, port).
    """

    topic: str
    partition: int | None
    status: FetchStatus | None
    base: int = 0
    high_water_mark: int = 0
    first_available: int = 0
    chunk: bytes = b""
    leader: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class FetchAnswer(_Numbered):
    """What came for every partition asked, in the order of the request."""

    parts: tuple[FetchedPart, ...]


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What a partition holds; both 0: never written. `reason`: why it cannot be told, or None."""

    first: int
    last: int
    reason: FetchStatus | None = None
    leader: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class PartitionsAnswer(_Numbered):
    """All or the chosen partitions; none at all: the topic is unknown."""

    topic: str
    partitions: tuple[PartitionState, ...]


@dataclass(frozen=True, slots=True)
class CreateAnswer(_Numbered):
    """Outcome of a `Create`."""

    topic: str
    error: CreateError


@dataclass(frozen=True, slots=True)
class ReloadAnswer(_Numbered):
    """Outcome of a `Reload`."""

    topic: str
    partition: int
    error: ReloadError


@dataclass(frozen=True, slots=True)
class StatusAnswer(_Numbered):
    """How the broker is. `start_time`: Unix seconds; `version`: 400 for 4.0."""

    topics: int
    partitions: int
    open_partitions: int
    opening_ms: int
    start_time: int
    version: int = 400


@dataclass(frozen=True, slots=True)
class TopicsAnswer(_Numbered):
    """(name, enabled, partitions) of each topic."""

    topics: tuple[tuple[str, bool, int], ...]


class TopologyAnswer(_Numbered):
    """There is no cluster."""

    __slots__ = ()


Answer = (
    PublishAnswer
    | FetchAnswer
    | PartitionsAnswer
    | CreateAnswer
    | ReloadAnswer
    | StatusAnswer
    | TopicsAnswer
    | TopologyAnswer
)
