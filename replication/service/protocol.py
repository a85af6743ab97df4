"""What a wire protocol is to a server: services for its listeners, sources for its upstreams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:  # who only asks a server needs the names of its calls alone
    from logweir.replication.listener import Service
    from logweir.replication.runner import Source
    from logweir.replication.service.names import Names
    from logweir.replication.service.shared import Shared
    from logweir.replication.urls import Schemes, Url

PREFIX: Final = "logweir."
"""What the names of the calls begin with."""

STATUS_FUNCTION: Final = f"{PREFIX}status"
CHECKSUMS_FUNCTION: Final = f"{PREFIX}checksums"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a server is besides `Shared`.

    `names`: what its upstreams fill; `once`: of every upstream only what it has; `caught_up`,
    `is_caught_up`: every upstream is followed to its end; `calls`: what clients may call by name;
    `operator_calls`: what only those may who may do everything; `functions`: a module with more
    calls, "" for none.
    """

    names: Names
    once: bool
    caught_up: Callable[[], Awaitable[None]]
    is_caught_up: Callable[[], bool]
    calls: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    operator_calls: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    functions: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """How far a connection was given what it follows, if the protocol has no acknowledgement.

    `name`: its own name, or the peer's; `position`: as the protocol counts; `lag`: how many `unit`
    ("rows" of the log, "messages") are there that it was not given.
    """

    scheme: str
    name: str
    peer: str
    position: str
    lag: int
    unit: str = "rows"


class WireProtocol(ABC):
    """One protocol of one server: what its listeners have in common. Made in the event loop.

    `schemes`: its addresses.
    """

    schemes: ClassVar[Schemes]

    def __init__(self, shared: Shared, around: Surroundings) -> None:
        self.shared = shared
        self.around = around

    def prepare(self, url: Url) -> None:  # noqa: B027 - most need nothing
        """Make in the store what a listener's address needs there, before `services`: in a thread,
        since it waits for the disk, and for who else changes something. Raises `ConfigError`."""

    @abstractmethod
    def services(self, url: Url) -> Sequence[tuple[Url, Service]]:
        """What serves a listener's address, and those that come with it. Raises `ConfigError`."""

    @classmethod
    @abstractmethod
    def check_listener(cls, url: Url) -> None:
        """Read the options of a listener's address, before a store is made for it. Raises
        `ConfigError`."""

    @classmethod
    @abstractmethod
    def check_upstream(cls, url: Url, *, once: bool) -> None:
        """Read the options of an upstream's address, and look at what it names on this machine,
        such as a file, before a store is made for it. `once`: see `Surroundings`. Raises
        `ConfigError`."""

    @abstractmethod
    def source(self, url: Url) -> Source:
        """What follows an upstream. Raises `ConfigError`."""

    def status(self) -> dict[str, list[Any]]:
        """What `status` of a server tells besides, in plain values."""
        return {}

    def readings(self) -> Sequence[Reading]:
        """Who follows, of those that `status` does not tell; from any thread."""
        return ()

    def stopping(self) -> None:  # noqa: B027 - most have nothing to say
        """The connections are about to be closed: what is to be told to them goes out first."""

    async def close(self) -> None:  # noqa: B027 - most have nothing to end
        """End what runs beside the connections, which are closed."""
