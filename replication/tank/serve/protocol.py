"""Tank's protocol, as a server has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from logweir.replication.listener import Service
from logweir.replication.runner import Source
from logweir.replication.service.protocol import Reading, Surroundings, WireProtocol
from logweir.replication.service.rights import Choice, Rights
from logweir.replication.service.shared import Shared
from logweir.replication.tank.follow.source import TankSource, read_options
from logweir.replication.tank.serve.endpoint import TankService
from logweir.replication.tank.serve.shown import ShownTopics
from logweir.replication.tank.wire.address import SCHEMES
from logweir.replication.topic.store import StoredTopics
from logweir.replication.urls import Url


class TankProtocol(WireProtocol):
    """The topics of the store, opened for the first listener."""

    schemes = SCHEMES

    def __init__(self, shared: Shared, around: Surroundings) -> None:
        super().__init__(shared, around)
        self.topics: StoredTopics | None = None
        self.made: list[TankService] = []

    @classmethod
    def check_listener(cls, url: Url) -> None:
        Choice.of(url, "topics")

    @classmethod
    def check_upstream(cls, url: Url, *, once: bool) -> None:
        read_options(url)

    def services(self, url: Url) -> Sequence[tuple[Url, Service]]:
        choice = Choice.of(url, "topics")
        shared = self.shared
        if self.topics is None:
            self.topics = StoredTopics(shared.log, read_only=shared.options.read_only, line=shared)
            shared.metrics.topics(self.topics.figures)
        topics = self.topics
        made = TankService(
            topics,
            metrics=shared.metrics,
            shown=lambda link: ShownTopics(topics, Rights(shared, link.user), choice),
        )
        self.made.append(made)
        return [(url, made)]

    def source(self, url: Url) -> Source:
        return TankSource(url, self.shared.log, names=self.around.names)

    def status(self) -> dict[str, list[Any]]:
        """The topics."""
        return {"topics": [] if self.topics is None else list(self.topics.status())}

    def readings(self) -> Sequence[Reading]:
        """See `WireProtocol`: of each consumer the last number of each partition that it has."""
        return [one for service in self.made for one in service.readings()]

    async def close(self) -> None:
        if self.topics is not None:
            await self.topics.close()


PROTOCOL = TankProtocol
