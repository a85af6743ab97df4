"""Which upstream of a server fills which topic, bucket or stream: two of them must not fill one.

What the addresses tell by themselves is looked at before anything is done with them. Topics that
are not named in an address are claimed when they are found at the broker.

Upstreams of one kind may share a topic or bucket if each names its own partitions or vbuckets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from logweir.errors import ConfigError
from logweir.replication.urls import Schemes, Url

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

    `urls`: the upstreams; what their addresses tell (`Scheme.fills`) is claimed. Raises
    `ConfigError` if two of them meet, and for vbuckets that are none.
    """

    def __init__(self, urls: Iterable[Url] = (), schemes: Schemes | None = None) -> None:
        self._filled: dict[str, _Filled] = {}
        seen: set[str] = set()
        for url in urls:
            source = str(url)
            for kind, name, part in (schemes or {})[url.scheme].fills(url):
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


def local_name(name: str, theirs: str) -> str:
    """What a topic, bucket or stream is called here. `name`: the option of the address, "" for
    none."""
    return f"{name}_{theirs}" if name else theirs
