"""Which upstream of a server fills which topic, bucket or stream: two of them must not fill one.

What the addresses tell by themselves is looked at before anything is done with them. Topics that
are not named in an address are claimed when they are found at the broker.

Upstreams of one kind may share a topic or bucket if each names its own partitions or vbuckets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from logweir.errors import ConfigError
from logweir.replication.bucket.item import DEFAULT_BUCKET, VBUCKETS
from logweir.replication.urls import Url

__all__ = ["Names", "local_name", "vbuckets_of"]

_PARTS: Final = {"topic": "partition", "bucket": "vbucket"}


@dataclass(slots=True)
class _Filled:
    """What has one name here. `owners`: addresses by the part that they fill, "" for all of it."""

    kind: str
    owners: dict[str, str] = field(default_factory=dict)

    def other(self, kind: str, part: str, source: str) -> str:
        """Which address but `source` fills that part already; "" for none."""
        if kind == self.kind and part:
            owners = [self.owners.get(part, ""), self.owners.get("", "")]
        else:
            owners = list(self.owners.values())
        return next((owner for owner in owners if owner and owner != source), "")


class Names:
    """The topics, buckets and streams that the upstreams of one server fill, and which does.

    `urls`: the upstreams; what their addresses tell is claimed. Raises `ConfigError` where two of
    them meet, and for vbuckets that are none.
    """

    def __init__(self, urls: Iterable[Url] = ()) -> None:
        self._filled: dict[str, _Filled] = {}
        seen: set[str] = set()
        for url in urls:
            source = str(url)
            for kind, name, part in _told_by(url):
                if source in seen:
                    raise _meeting(source, name, "", source)
                self.claim(kind, name, part, source)
            seen.add(source)

    def claim(self, kind: str, name: str, part: str, source: str) -> None:
        """`source` (its address) fills what is called `name` here, until the server stops.

        `kind`: topic, bucket or stream; `part`: a partition or vbucket of it, "" for all of it.
        Raises `ConfigError` if another one does.
        """
        filled = self._filled.setdefault(name, _Filled(kind))
        if owner := filled.other(kind, part, source):
            shared = part if filled.owners.get(part) == owner and kind == filled.kind else ""
            raise _meeting(source, name, f"{_PARTS[kind]} {shared} of " if shared else "", owner)
        filled.owners[part] = source


def _meeting(source: str, name: str, part: str, owner: str) -> ConfigError:
    return ConfigError(
        f"address {source}",
        f"it fills {part}{name!r} here, as does {owner}",
        hint="give one of them a name of its own: with ?name=two a topic or bucket t is two_t "
        "here, a stream synapse_two_t",
        origin="upstreams",
    )


def _told_by(url: Url) -> Iterator[tuple[str, str, str]]:
    """Kind, name here and part of what an address tells that it fills."""
    name = url.option("name")
    if url.scheme == "tank":
        if url.path:  # with `skip` the broker has to tell which partitions are left
            rest = "*" if url.option("skip") else ""
            part = (url.path[1].lstrip("0") or "0") if len(url.path) > 1 else rest
            yield "topic", local_name(name, url.path[0]), part
    elif url.scheme in ("tap", "greenstack"):
        bucket = local_name(name, url.path[0] if url.path else DEFAULT_BUCKET)
        vbuckets = vbuckets_of(url) if url.scheme == "tap" else ()
        for part in map(str, sorted(vbuckets)) if vbuckets else ("",):
            yield "bucket", bucket, part
    elif url.scheme.startswith("synapse"):
        yield "stream", f"synapse_{local_name(name, '*')}", ""


def local_name(name: str, theirs: str) -> str:
    """What a topic, bucket or stream is called here. `name`: the option of the address, "" for
    none."""
    return f"{name}_{theirs}" if name else theirs


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
