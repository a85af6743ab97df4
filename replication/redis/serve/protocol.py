"""Redis's protocol, as a server has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from logweir.errors import ConfigError
from logweir.replication.listener import Service
from logweir.replication.redis.serve.endpoint import RedisService
from logweir.replication.redis.serve.missed import MISSED_SECONDS
from logweir.replication.redis.wire.address import SCHEMES
from logweir.replication.runner import Source
from logweir.replication.service.protocol import WireProtocol
from logweir.replication.service.rights import Choice
from logweir.replication.urls import Url, option_seconds


class RedisProtocol(WireProtocol):
    """A service for each address, with channels of its own."""

    schemes = SCHEMES

    @classmethod
    def check_listener(cls, url: Url) -> None:
        _read_options(url)

    @classmethod
    def check_upstream(cls, url: Url, *, once: bool) -> NoReturn:
        """See `WireProtocol`: there are no upstreams."""
        hint = "the streams of a homeserver are followed as synapse+redis://host:port/server_name"
        raise ConfigError(f"address {url}", "messages on channels cannot be followed", hint=hint)

    def services(self, url: Url) -> Sequence[tuple[Url, Service]]:
        choice, seconds = _read_options(url)
        made = RedisService(
            self.shared, space=url.option("space"), choice=choice, resend_seconds=seconds
        )
        return [(url, made)]

    def source(self, url: Url) -> Source:
        self.check_upstream(url, once=self.around.once)


def _read_options(url: Url) -> tuple[Choice, float]:
    """`channels` and `resend` of a listener's address. Raises `ConfigError`."""
    seconds = option_seconds(url, "resend", MISSED_SECONDS, may_be_zero=True)
    return Choice.of(url, "channels"), seconds


PROTOCOL = RedisProtocol
