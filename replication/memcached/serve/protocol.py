"""memcached's protocols, packets and lines, and TAP, as a server has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from logweir.replication.bucket.item import DEFAULT_BUCKET
from logweir.replication.bucket.store import Buckets
from logweir.replication.listener import Service
from logweir.replication.memcached.follow import TapSource, read_follow_options
from logweir.replication.memcached.push.names import NamedStreams
from logweir.replication.memcached.serve.endpoint import TapService
from logweir.replication.memcached.serve.options import read_listen_options
from logweir.replication.memcached.wire.address import SCHEMES
from logweir.replication.runner import Source
from logweir.replication.service.protocol import Surroundings, WireProtocol
from logweir.replication.service.shared import Shared
from logweir.replication.service.verifiers import make_space
from logweir.replication.topic.views import SPACE_PREFIX
from logweir.replication.urls import Url


class MemcachedProtocol(WireProtocol):
    """A service for each address; names of streams are those of the store."""

    schemes = SCHEMES

    def __init__(self, shared: Shared, around: Surroundings) -> None:
        super().__init__(shared, around)
        self.made: list[TapService] = []
        self._names: NamedStreams | None = None

    @classmethod
    def check_listener(cls, url: Url) -> None:
        read_listen_options(url)

    @classmethod
    def check_upstream(cls, url: Url, *, once: bool) -> None:
        read_follow_options(url, once=once)

    def prepare(self, url: Url) -> None:
        """See `WireProtocol`: the bucket, and spaces for names of streams and for logins."""
        log, clock, bucket = self.shared.log, self.shared.options.clock, _bucket_of(url)
        if not bucket.startswith(SPACE_PREFIX):
            Buckets(log, clock).make(bucket)
        make_space(log)
        if self._names is None:
            self._names = NamedStreams(log, self.shared.retention, clock)

    def services(self, url: Url) -> Sequence[tuple[Url, Service]]:
        assert self._names is not None
        made = TapService(self.shared, _bucket_of(url), read_listen_options(url), self._names)
        self.made.append(made)
        return [(url, made)]

    def source(self, url: Url) -> Source:
        return TapSource(self.shared, url, once=self.around.once)

    def status(self) -> dict[str, list[Any]]:
        """The streams that are given."""
        told = (one.status(with_away=one is self.made[0]) for one in self.made)
        return {"streams": [stream for of_one in told for stream in of_one]}

    async def close(self) -> None:
        for service in self.made:
            service.close()


def _bucket_of(url: Url) -> str:
    """The bucket, or ``space:NAME``, that clients of a listener's address begin with."""
    return url.path[0] if url.path else DEFAULT_BUCKET


PROTOCOL = MemcachedProtocol
