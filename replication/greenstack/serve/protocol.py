"""Greenstack, as a server has it."""

from __future__ import annotations

from collections.abc import Sequence

from logweir.limits import TAP_SWEEP_SECONDS
from logweir.replication.bucket.item import DEFAULT_BUCKET
from logweir.replication.bucket.store import Buckets
from logweir.replication.greenstack.follow.source import GreenstackSource, read_options
from logweir.replication.greenstack.push.streaming import LABEL, OURS
from logweir.replication.greenstack.serve.endpoint import GreenstackService
from logweir.replication.greenstack.wire.address import SCHEMES
from logweir.replication.listener import Service
from logweir.replication.outgoing.spacefeed import ENCODINGS
from logweir.replication.runner import Source
from logweir.replication.service.protocol import Reading, Surroundings, WireProtocol
from logweir.replication.service.shared import Shared
from logweir.replication.urls import Url, option_choice, option_seconds


class GreenstackProtocol(WireProtocol):
    """A service for each address."""

    schemes = SCHEMES

    def __init__(self, shared: Shared, around: Surroundings) -> None:
        super().__init__(shared, around)
        self.made: list[GreenstackService] = []
        for label in shared.log.inner.pinned_bytes():
            if label.startswith(LABEL) and not label.startswith(OURS):
                shared.retention.forget(label)  # of a process that was killed

    @classmethod
    def check_listener(cls, url: Url) -> None:
        _read_options(url)

    @classmethod
    def check_upstream(cls, url: Url, *, once: bool) -> None:
        del once
        read_options(url)

    def prepare(self, url: Url) -> None:
        """See `WireProtocol`: the bucket that clients begin with."""
        Buckets(self.shared.log, self.shared.options.clock).make(DEFAULT_BUCKET)

    def services(self, url: Url) -> Sequence[tuple[Url, Service]]:
        made = GreenstackService(self.shared, self.around, *_read_options(url))
        self.made.append(made)
        return [(url, made)]

    def source(self, url: Url) -> Source:
        return GreenstackSource(self.shared, url)

    def readings(self) -> Sequence[Reading]:
        end = self.shared.log.applied.without_local().signature
        found = []
        for conversation in (each for one in self.made for each in tuple(one.conversations)):
            peer = conversation.link.peer
            for stream in tuple(conversation.streams.values()):
                name = stream.outgoing.name.decode(errors="replace") or peer
                at = stream.outgoing.position
                lag = max(end - at.signature, 0)
                found.append(Reading("greenstack", name, peer, str(at), lag))
        return found

    def stopping(self) -> None:
        for service in self.made:
            service.close()


def _read_options(url: Url) -> tuple[float, str, bool]:
    """`sweep`, `value` and `plain` of a listener's address. Raises `ConfigError`."""
    sweep = option_seconds(url, "sweep", TAP_SWEEP_SECONDS, may_be_zero=True)
    return sweep, option_choice(url, "value", ENCODINGS), url.flag("plain")


PROTOCOL = GreenstackProtocol
