"""Addresses of memcached and TAP servers: ``tap://host:port[/bucket]``.

`memcached` is for listeners only. Options of an upstream are in `memcached.follow`, those of a
listener in `memcached.serve.options`.
"""

from __future__ import annotations

from typing import Final

from logweir.replication.bucket.address import filled_buckets
from logweir.replication.urls import Scheme, Url, option_choice, schemes_of

_STALL_SECONDS: Final = 450.0
"""A server that says nothing for so long is gone. (ep-engine says something every 200 s.)"""

_LISTEN_OPTIONS: Final = frozenset(("form", "value", "sweep", "idle", "noop", "sasl"))


def is_big_endian(url: Url) -> bool:
    """Whether an address says that the producer is a big-endian machine. Raises `ConfigError`."""
    return option_choice(url, "byteorder", ("little", "big")) == "big"


SCHEMES: Final = schemes_of(
    Scheme(
        "tap",
        11210,
        ("bucket",),
        listens_with_path=True,
        options=frozenset(("eof", "expiry", "byteorder", "takeover", "vbuckets")),
        listen_options=_LISTEN_OPTIONS,
        stall_seconds=_STALL_SECONDS,
        fills=filled_buckets,
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
