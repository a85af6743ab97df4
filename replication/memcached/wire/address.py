"""Addresses of memcached and TAP servers: ``tap://host:port[/bucket]``.

`memcached` is for listeners only. Options of an upstream are in `memcached.follow`, those of a
listener in `memcached.serve.options`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from logweir.errors import ConfigError
from logweir.replication.bucket.item import DEFAULT_BUCKET, VBUCKETS
from logweir.replication.service.names import local_name
from logweir.replication.urls import Scheme, Url, schemes_of

__all__ = ["SCHEMES", "is_big_endian", "vbuckets_of"]

_STALL_SECONDS: Final = 450.0
"""A server that says nothing for so long is gone. (ep-engine says something every 200 s.)"""

_LISTEN_OPTIONS: Final = frozenset(("form", "value", "sweep", "idle", "noop", "sasl"))


def vbuckets_of(url: Url) -> frozenset[int]:
    """The vbuckets that an address names, none for all. Raises `ConfigError`."""
    found: set[int] = set()
    for part in filter(None, url.option("vbuckets").split(",")):
        first, _, last = part.partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal() and int(last) < VBUCKETS):
            raise ConfigError("vbuckets", f"{part!r} in {url}", hint="write vbuckets=5,8-10")
        found.update(range(int(first), int(last) + 1))
    return frozenset(found)


def is_big_endian(url: Url) -> bool:
    """Whether an address says that the producer is a big-endian machine. Raises `ConfigError`."""
    order = url.option("byteorder") or "little"
    if order not in ("big", "little"):
        raise ConfigError("byteorder", f"{order!r} in {url}", hint="write byteorder=big")
    return order == "big"


def _fills(url: Url) -> Iterator[tuple[str, str, str]]:
    bucket = local_name(url.option("name"), url.path[0] if url.path else DEFAULT_BUCKET)
    for part in [str(one) for one in sorted(vbuckets_of(url))] or [""]:
        yield "bucket", bucket, part


SCHEMES: Final = schemes_of(
    Scheme(
        "tap",
        11210,
        ("bucket",),
        listens_with_path=True,
        options=frozenset(("eof", "expiry", "byteorder", "takeover", "vbuckets")),
        listen_options=_LISTEN_OPTIONS,
        stall_seconds=_STALL_SECONDS,
        fills=_fills,
    ),
    Scheme(
        "memcached",
        11210,
        ("bucket",),
        listens_with_path=True,
        follows=False,
        listen_options=_LISTEN_OPTIONS,
    ),
)
