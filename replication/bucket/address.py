"""What the address of an upstream says of a bucket: ``…/bucket?name=here&vbuckets=5,8-10``."""

from __future__ import annotations

from collections.abc import Iterator

from logweir.errors import ConfigError
from logweir.replication.bucket.item import DEFAULT_BUCKET, VBUCKETS
from logweir.replication.service.names import local_name
from logweir.replication.urls import Url


def bucket_of(url: Url) -> str:
    """The bucket there."""
    return url.path[0] if url.path else DEFAULT_BUCKET


def vbuckets_of(url: Url) -> frozenset[int]:
    """The vbuckets that an address names, none for all. Raises `ConfigError`."""
    found: set[int] = set()
    text = url.option("vbuckets")
    for part in text.split(",") if text else ():
        first, dash, last = part.partition("-")
        last = last if dash else first
        is_range = first.isdecimal() and last.isdecimal()
        if not is_range or not int(first) <= int(last) < VBUCKETS:
            raise ConfigError("vbuckets", f"{part!r} in {url}", hint="write vbuckets=5,8-10")
        found.update(range(int(first), int(last) + 1))
    return frozenset(found)


def filled_buckets(url: Url) -> Iterator[tuple[str, str, str]]:
    """See `Scheme.fills`."""
    bucket = local_name(url.option("name"), bucket_of(url))
    for part in [str(one) for one in sorted(vbuckets_of(url))] or [""]:
        yield "bucket", bucket, part
