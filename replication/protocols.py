"""The wire protocols of logweir, and addresses of all of them.

`PROTOCOLS` names their folders, nothing else does. Each has its addresses in `wire.address`
(`SCHEMES`), what a server makes of them in `serve.protocol` (`PROTOCOL`), which is imported only
where a server is made, and how a server is asked for its status in `client.status`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from logweir.replication.urls import Schemes, Url, read_listen_url, read_url

if TYPE_CHECKING:
    from logweir.replication.service.protocol import WireProtocol

__all__ = [
    "PROTOCOLS",
    "SCHEMES",
    "check_upstream",
    "fetch_status",
    "parse_listen_url",
    "parse_url",
    "wire_protocols",
]

PROTOCOLS: Final = ("iproto", "tank", "memcached", "greenstack", "synapse", "redis")


def _schemes() -> Schemes:
    found: dict[str, object] = {}
    for name in PROTOCOLS:
        found |= import_module(f"logweir.replication.{name}.wire.address").SCHEMES
    return found  # type: ignore[return-value]


SCHEMES: Final = _schemes()
"""Of every protocol, by name."""


async def fetch_status(url: Url) -> dict[str, Any]:
    """What the server at `url` says of itself, as far as its protocol can tell.

    Plain values by name; those that are lists of objects are tables. Raises `Unreachable`,
    `RemoteProtocolError` if it speaks something else, what the server refuses with, `ConfigError`
    for an address of which nobody can be asked.
    """
    for name in PROTOCOLS:
        if url.scheme in import_module(f"logweir.replication.{name}.wire.address").SCHEMES:
            break
    found: dict[str, Any] = await import_module(
        f"logweir.replication.{name}.client.status"
    ).fetch_status(url)
    return found


def check_upstream(url: Url) -> None:
    """Look at what the address of an upstream names on this machine, and what it is to fill.
    Raises `ConfigError`."""
    tuple(SCHEMES[url.scheme].fills(url))
    for protocol in wire_protocols():
        if url.scheme in protocol.schemes:
            protocol.check_upstream(url)


def wire_protocols() -> tuple[type[WireProtocol], ...]:
    """What serves and follows in each protocol. Imports all of it."""
    return tuple(
        import_module(f"logweir.replication.{name}.serve.protocol").PROTOCOL for name in PROTOCOLS
    )


def parse_url(text: str, *, origin: str = "argument") -> Url:
    """Read the address of an upstream. `origin`: where it was written, for the error.

    Raises `ConfigError`, in which a password is not shown.
    """
    return read_url(text, SCHEMES, origin=origin)


def parse_listen_url(text: str, *, origin: str = "argument") -> Url:
    """Read the address of a listener; see `urls.read_listen_url`. Raises `ConfigError`."""
    return read_listen_url(text, SCHEMES, origin=origin)
