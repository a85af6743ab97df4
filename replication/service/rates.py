"""What happened in a second, from two looks at the status of a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_COUNTERS: Final = ("commits", "syncs")
_TRAFFIC: Final = ("requests", "received_bytes", "sent_bytes")


def rates_of(before: Mapping[str, Any], now: Mapping[str, Any], seconds: float) -> dict[str, float]:
    """What happened in a second, by what: `rows` of the log, `commits`, `syncs`, the rows of each
    upstream by its address, and of each scheme that is served `requests`, `received_bytes` and
    `sent_bytes` after its name and a blank. Without what began anew meanwhile, with the server.

    `before`, `now`: of `Server.status`, so many seconds apart.
    """
    then, last = _counters(before), _counters(now)
    return {
        name: (value - then[name]) / seconds
        for name, value in last.items()
        if name in then and value >= then[name] and seconds > 0
    }


def _counters(status: Mapping[str, Any]) -> dict[str, int]:
    found = {name: status[name] for name in _COUNTERS if name in status}
    found["rows"] = sum(status["vclock"].values())
    for one in status.get("sources", ()):
        found[one["url"]] = one["rows"]
    for one in status.get("traffic", ()):
        found |= {f"{one['scheme']} {name}": one[name] for name in _TRAFFIC}
    return found
