"""Synapse's replication protocol, as a server has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from logweir.replication.dialer import check_tls
from logweir.replication.listener import Service
from logweir.replication.runner import Source
from logweir.replication.service.protocol import Reading, Surroundings, WireProtocol
from logweir.replication.service.rights import Choice
from logweir.replication.service.shared import Shared
from logweir.replication.synapse.client_session import dialect_of
from logweir.replication.synapse.follow.channel import SynapseRedisSource, read_dbid
from logweir.replication.synapse.follow.contents import check_database
from logweir.replication.synapse.follow.homeserver import HomeserverSource, read_homeserver
from logweir.replication.synapse.follow.source import SynapseSource
from logweir.replication.synapse.follow.source import read_options as read_follow_options
from logweir.replication.synapse.serve.endpoint import SynapseService
from logweir.replication.synapse.serve.options import read_options
from logweir.replication.synapse.wire.address import SCHEMES
from logweir.replication.urls import Url

_SOURCES: Final[dict[str, Callable[..., Source]]] = {
    "synapse": SynapseSource,
    "synapse+redis": SynapseRedisSource,
    "synapse+file": HomeserverSource,
}


class SynapseProtocol(WireProtocol):
    """A service for each address, and one over HTTP if the address asks for it."""

    schemes = SCHEMES

    def __init__(self, shared: Shared, around: Surroundings) -> None:
        super().__init__(shared, around)
        self.made: list[SynapseService] = []

    def services(self, url: Url) -> Sequence[tuple[Url, Service]]:
        options = read_options(url)
        made = SynapseService(self.shared, options, Choice.of(url, "streams"))
        self.made.append(made)
        beside = [] if options.http is None else [(options.http, made.updates())]
        return [(url, made), *beside]

    @classmethod
    def check_listener(cls, url: Url) -> None:
        Choice.of(url, "streams")
        read_options(url)

    @classmethod
    def check_upstream(cls, url: Url, *, once: bool) -> None:
        """See `WireProtocol`: the homeserver's file, or the database that is to be asked, too."""
        secret = database = None
        if url.scheme == "synapse+file":
            found = read_homeserver(url)
            url, secret, database = found.url, found.secret, found.database
            check_tls(url)
        if url.scheme == "synapse":
            dialect_of(url)
        else:
            read_dbid(url)
        asked = read_follow_options(url, secret, database).database
        if asked is not None:
            check_database(asked, may_come=asked is database)

    def source(self, url: Url) -> Source:
        return _SOURCES[url.scheme](url, self.shared.log, once=self.around.once)

    def readings(self) -> Sequence[Reading]:
        """See `WireProtocol`: of each follower what was sent."""
        end = self.shared.log.applied.signature
        found = []
        for one in (each for service in self.made for each in tuple(service.conversations)):
            if one.follows:
                peer, lag = one.link.peer, max(end - one.position.signature, 0)
                name = one.session.name or peer
                found.append(Reading("synapse", name, peer, str(one.position), lag))
        return found


PROTOCOL = SynapseProtocol
