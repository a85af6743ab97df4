"""A client that connects when it is first needed, and again when its connection was lost."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from logweir.replication.urls import Schemes, Url, read_url

__all__ = ["Closing", "Reconnecting"]


class Closing(ABC):
    """What is closed at the end of `async with`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """End it. Twice: nothing."""


class _Connected(Protocol):
    @property
    def is_open(self) -> bool: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


C = TypeVar("C", bound=_Connected)


class Reconnecting(Closing, Generic[C]):
    """`url`: of the server."""

    schemes: ClassVar[Schemes]

    def __init__(self, url: str | Url) -> None:
        self.url = read_url(url, self.schemes) if isinstance(url, str) else url
        self._connection: C | None = None
        self._connecting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.connection()
        return self

    @abstractmethod
    async def _connect(self) -> C:
        """Make a connection. Raises `Unreachable`, and `PeerRefused` where the server may refuse
        us."""

    async def connection(self) -> C:
        """The connection, made if need be. Raises what making it raises."""
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                self._connection = await self._connect()
            return self._connection

    async def close(self) -> None:
        """Close the connection; requests that wait fail with `Unreachable`."""
        if self._connection is not None:
            self._connection.close()
            await self._connection.wait_closed()
            self._connection = None
