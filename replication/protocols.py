"""The wire protocols of logweir, and addresses of all of them.

`PROTOCOLS` names their folders, nothing else does. Each has its addresses in `wire.address`
(`SCHEMES`), what a server makes of them in `serve.protocol` (`PROTOCOL`), which is imported only
where a server is made, and how a server is asked for its status in `client.status`.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from logweir.replication.addresses import AddressList
from logweir.replication.unixsocket import mode_of
from logweir.replication.urls import Schemes, Url, option_seconds, read_listen_url, read_url

if TYPE_CHECKING:
    from logweir.replication.service.protocol import WireProtocol

PROTOCOLS: Final = ("iproto", "tank", "memcached", "greenstack", "synapse", "redis")


_OF_EACH: Final[dict[str, Schemes]] = {
    name: import_module(f"logweir.replication.{name}.wire.address").SCHEMES for name in PROTOCOLS
}

SCHEMES: Final[Schemes] = {name: one for each in _OF_EACH.values() for name, one in each.items()}
"""Of every protocol, by name."""


async def fetch_status(url: Url) -> dict[str, Any]:
    """What the server at `url` says of itself, as far as its protocol can tell.

    Plain values by name; those that are lists of objects are tables. Raises `Unreachable`,
    `RemoteProtocolError` if it speaks something else, what the server refuses with, `ConfigError`
    for an address of which nobody can be asked.
    """
    module = import_module(f"logweir.replication.{_protocol_of(url)}.client.status")
    found: dict[str, Any] = await module.fetch_status(url)
    return found


def _protocol_of(url: Url) -> str:
    return next(name for name, schemes in _OF_EACH.items() if url.scheme in schemes)


def check_addresses(
    listen: Iterable[Url] = (), follow: Iterable[Url] = (), *, once: bool = False
) -> None:
    """Read all options of the addresses of listeners and upstreams, and look at what they name on
    this machine. `once`: of every upstream only what it has is wanted. Raises `ConfigError`."""
    from logweir.replication.dialer import check_tls

    for url in listen:
        check_place(url)
        _wire_protocol(_protocol_of(url)).check_listener(url)
    for url in follow:
        stall_seconds(url)
        check_tls(url)
        _wire_protocol(_protocol_of(url)).check_upstream(url, once=once)


def check_place(url: Url) -> None:
    """Read the options that the address of every listener has. Raises `ConfigError`."""
    AddressList.of(url)
    mode_of(url)


def stall_seconds(url: Url) -> float:
    """How long the upstream at `url` may say nothing. Raises `ConfigError`."""
    return option_seconds(url, "stall", SCHEMES[url.scheme].stall_seconds)


def wire_protocols() -> tuple[type[WireProtocol], ...]:
    """What serves and follows in each protocol. Imports all of it."""
    return tuple(map(_wire_protocol, PROTOCOLS))


def _wire_protocol(name: str) -> type[WireProtocol]:
    found: type[WireProtocol] = import_module(f"logweir.replication.{name}.serve.protocol").PROTOCOL
    return found


def parse_url(text: str, *, origin: str = "argument") -> Url:
    """Read the address of an upstream. `origin`: where it was written, for the error.

    Raises `ConfigError`, in which a password is not shown.
    """
    return read_url(text, SCHEMES, origin=origin)


def parse_listen_url(text: str, *, origin: str = "argument") -> Url:
    """Read the address of a listener; see `urls.read_listen_url`. Raises `ConfigError`."""
    return read_listen_url(text, SCHEMES, origin=origin)
