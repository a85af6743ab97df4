"""Who may come in at a listener, by network address: the option `from` of its address.

``from=10.0.0.0/8,192.0.2.7,ann@2001:db8::/32`` takes connections from these IPv4 and IPv6 networks
and no others. A name in front of a network says who comes from there: such a client acts as that
user of the store without a login, as if its connection had a certificate of that name. Of several
networks that fit the one with the longest prefix takes precedence. A client that comes over IPv6
with an IPv4 address in it (`::ffff:192.0.2.7`) has that IPv4 address.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from logweir.errors import ConfigError
from logweir.replication.urls import Url, option_names

FROM: Final = "from"
"""The option's name."""


@dataclass(frozen=True, slots=True)
class AddressList:
    """The networks that a listener takes, longest prefix first, each with the user that comes from
    there, "" for nobody in particular."""

    networks: tuple[tuple[IPv4Network | IPv6Network, str], ...]

    @classmethod
    def of(cls, url: Url) -> AddressList | None:
        """The one of a listener's address; None: everybody. Raises `ConfigError`."""
        names = option_names(url, FROM)
        if not names:
            if FROM in dict(url.options):
                raise _refused(url, "it names no network")
            return None
        return cls(
            tuple(
                sorted(
                    (_network(url, name) for name in names),
                    key=lambda one: one[0].prefixlen / one[0].max_prefixlen,
                    reverse=True,
                )
            )
        )

    @property
    def is_open(self) -> bool:
        """Whether everybody is in it."""
        return any(network.prefixlen == 0 for network, _ in self.networks)

    def find(self, address: str) -> str | None:
        """The user who comes from an address, "" for nobody in particular; None: it is in none of
        the networks, or no address of the internet."""
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return None
        if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        for network, user in self.networks:
            if found.version == network.version and found in network:
                return user
        return None


def is_loopback(address: str) -> bool:
    """Whether only this machine can connect to an address on which is listened."""
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _network(url: Url, text: str) -> tuple[IPv4Network | IPv6Network, str]:
    user, _, network = text.rpartition("@")
    if "@" in text and not user:
        raise _refused(url, f"there is no user before the @ in {text!r}")
    try:
        return ip_network(network), user
    except ValueError as error:
        raise _refused(url, str(error)) from error


def _refused(url: Url, message: str) -> ConfigError:
    return ConfigError(
        f"{FROM} of {url}",
        message,
        origin="--listen",
        hint="write networks such as from=10.0.0.0/8,192.0.2.7, and ann@10.1.0.0/16 for a user",
    )
