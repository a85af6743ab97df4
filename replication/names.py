"""Which source of a server fills which space: two of them must not fill one."""

from __future__ import annotations

from logweir.errors import ConfigError

__all__ = ["Names", "local_name"]


class Names:
    """The spaces, topics and buckets that the sources of one server fill, and for whom."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def claim(self, name: str, source: str) -> None:
        """`source` (its address) fills the space `name`, until the server stops.

        Raises `ConfigError` if another source does.
        """
        owner = self._owners.setdefault(name, source)
        if owner != source:
            raise ConfigError(
                f"address {source}",
                f"it fills {name!r} here, as does {owner}",
                hint="give one of them a name of its own, ?name=two: then this is two_" + name,
                origin="upstreams",
            )


def local_name(name: str, theirs: str) -> str:
    """What a topic or bucket is called here. `name`: the option of the address, "" for none."""
    return f"{name}_{theirs}" if name else theirs
