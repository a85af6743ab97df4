"""Addresses of Greenstack servers: ``greenstack://host:port[/bucket]``.

Of an upstream: `prefix` (how keys begin), `vbuckets=5,8-10`, `from=now` (no snapshot at first).

Of a listener: `plain=1` (passwords unencrypted from afar, too), `sweep=SECONDS` (longest pause
between walks that remove what has expired; 0: only what somebody asks for is removed), `value`
(`json`, `msgpack` or `envelope`: how tuples of other spaces than buckets are given).
"""

from __future__ import annotations

from typing import Final

from logweir.replication.bucket.address import filled_buckets
from logweir.replication.urls import Scheme, schemes_of

SCHEMES: Final = schemes_of(
    Scheme(
        "greenstack",
        11210,
        ("bucket",),
        options=frozenset(("prefix", "vbuckets", "from", "keys")),
        listen_options=frozenset(("plain", "sweep", "value")),
        fills=filled_buckets,
    )
)
