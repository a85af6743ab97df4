"""Addresses of Greenstack servers: ``greenstack://host:port[/bucket]``.

Of a listener: `plain=1` (passwords unencrypted from afar, too), `sweep=SECONDS` (longest pause
between walks that remove what has expired; 0: only what somebody asks for is removed), `value`
(`json`, `msgpack` or `envelope`: how tuples of other spaces than buckets are given).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from logweir.replication.bucket.item import DEFAULT_BUCKET
from logweir.replication.service.names import local_name
from logweir.replication.urls import Scheme, Url, schemes_of

__all__ = ["SCHEMES"]


def _fills(url: Url) -> Iterator[tuple[str, str, str]]:
    theirs = url.path[0] if url.path else DEFAULT_BUCKET
    yield "bucket", local_name(url.option("name"), theirs), ""


SCHEMES: Final = schemes_of(
    Scheme(
        "greenstack",
        11210,
        ("bucket",),
        listen_options=frozenset(("plain", "sweep", "value")),
        fills=_fills,
    )
)
