"""What is asked of topics, and what comes of it: the values that topics and their protocols share.

Source: Tank 4.0 and its clients, observed; the numbers of the outcomes are Tank's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

FROM_END: Final = 2**64 - 1
"""In a fetch: only what is published from now on."""


class PublishResult(IntEnum):
    """Outcome of one bundle. Only these may be sent: the C++ client ends its process at others."""

    STORED = 0
    UNKNOWN_PARTITION = 1
    FAILED = 2
    NOT_ACKNOWLEDGED = 3
    FEW_REPLICAS = 4
    BAD_NUMBERS = 10
    OTHER_LEADER = 0xFC
    NO_LEADER = 0xFD
    READ_ONLY = 0xFE
    UNKNOWN_TOPIC = 0xFF


class CreateError(IntEnum):
    """Outcome of creating a topic."""

    CREATED = 0
    EXISTS = 1
    FAILED = 2
    BAD_CONFIG = 4
    READ_ONLY = 5
    BAD_NAME = 10
    NOT_SUPPORTED = 11


class ReloadError(IntEnum):
    """Outcome of reloading a partition's configuration."""

    DONE = 0
    NO_CONFIG = 2
    BAD_CONFIG = 3
    UNKNOWN_PARTITION = 10
    UNKNOWN_TOPIC = 11
    IN_CLUSTER = 12


@dataclass(frozen=True, slots=True)
class FetchPart:
    """One partition to read. `start`: first number wanted, 0 the oldest, `FROM_END`."""

    topic: str
    partition: int
    start: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """A read of many partitions. `topics`: (name, its parts) in the order of the frame."""

    request_id: int
    topics: tuple[tuple[str, tuple[FetchPart, ...]], ...]
    max_wait_ms: int = 0
    min_bytes: int = 0
    flags: int = 0
    version: int = 2
    client: str = ""


@dataclass(frozen=True, slots=True)
class Partitions:
    """Which partitions has a topic, and what do they hold. `chosen`: only these, in this order."""

    request_id: int
    topic: str
    chosen: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Create:
    """Make a topic. `config`: `key=value` lines."""

    request_id: int
    topic: str
    partitions: int
    config: bytes = b""
