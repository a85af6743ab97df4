"""Addresses of Tank brokers: ``tank://host:port[/topic[/partition]]``.

What the options mean is in docs/tank.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from logweir.errors import ConfigError
from logweir.replication.service.names import local_name
from logweir.replication.urls import Scheme, Url, schemes_of


def part_of(url: Url) -> tuple[str, int | None]:
    """Topic and partition that an address names, "" and None for all. Raises `ConfigError`."""
    topic, number = (*url.path, "", "")[:2]
    if number and (not number.isdecimal() or int(number) > 0xFFFF):
        raise ConfigError(f"address {url}", f"{number!r} is no partition", hint="give its number")
    return topic, int(number) if number else None


def _fills(url: Url) -> Iterator[tuple[str, str, str]]:
    if url.path:  # with `skip` the broker has to tell which partitions are left
        rest = "*" if url.option("skip") else ""
        part = (url.path[1].lstrip("0") or "0") if len(url.path) > 1 else rest
        yield "topic", local_name(url.option("name"), url.path[0]), part


SCHEMES: Final = schemes_of(
    Scheme(
        "tank",
        11011,
        ("topic", "partition"),
        options=frozenset(("topics", "skip", "start")),
        listen_options=frozenset(("topics",)),
        fills=_fills,
    )
)
