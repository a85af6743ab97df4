"""Synapse's replication protocol, as a server has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from logweir.replication.listener import Service
from logweir.replication.runner import Source
from logweir.replication.service.protocol import WireProtocol
from logweir.replication.service.rights import Choice, Rights
from logweir.replication.synapse.follow.channel import SynapseRedisSource
from logweir.replication.synapse.follow.homeserver import HomeserverSource
from logweir.replication.synapse.follow.source import SynapseSource
from logweir.replication.synapse.serve.endpoint import SynapseService
from logweir.replication.synapse.serve.options import read_options
from logweir.replication.synapse.serve.shown import Shown
from logweir.replication.synapse.wire.address import SCHEMES
from logweir.replication.urls import Url

__all__ = ["PROTOCOL", "SynapseProtocol"]

_SOURCES: Final[dict[str, Callable[..., Source]]] = {
    "synapse": SynapseSource,
    "synapse+redis": SynapseRedisSource,
    "synapse+file": HomeserverSource,
}


class SynapseProtocol(WireProtocol):
    """A service for each address, and one over HTTP where the address asks for it."""

    schemes = SCHEMES

    def services(self, url: Url) -> Sequence[tuple[Url, Service]]:
        """See `WireProtocol`."""
        choice, shared = Choice.of(url, "streams"), self.shared
        made = SynapseService(
            shared.log,
            shared.settled,
            read_options(url),
            shown=lambda streams, link: Shown(streams, Rights(shared, link.user), choice),
        )
        more = made.companion(shared.logins.failed)
        return [(url, made)] if more is None else [(url, made), more]

    def source(self, url: Url) -> Source:
        """See `WireProtocol`."""
        return _SOURCES[url.scheme](url, self.shared.log, once=self.around.once)


PROTOCOL = SynapseProtocol
