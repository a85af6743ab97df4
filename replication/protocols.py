"""The wire protocols of logweir, and addresses of all of them.

`PROTOCOLS` names their folders, nothing else does. Each has its addresses in `wire.address`
(`SCHEMES`) and what a server makes of them in `serve.protocol` (`PROTOCOL`), which is imported only
where a server is made.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from logweir.replication.urls import Schemes, Url, read_listen_url, read_url

if TYPE_CHECKING:
    from logweir.replication.service.protocol import WireProtocol

__all__ = ["PROTOCOLS", "SCHEMES", "parse_listen_url", "parse_url", "wire_protocols"]

PROTOCOLS: Final = ("iproto", "tank", "memcached", "greenstack", "synapse", "redis")


def _schemes() -> Schemes:
    found: dict[str, object] = {}
    for name in PROTOCOLS:
        found |= import_module(f"logweir.replication.{name}.wire.address").SCHEMES
    return found  # type: ignore[return-value]


SCHEMES: Final = _schemes()
"""Of every protocol, by name."""


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
