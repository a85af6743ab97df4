"""The numbers of the last looks at a server, for charts: a column each, bounded."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from logweir.limits import WEB_ITEMS, WEB_SAMPLES


def sample_of(status: Mapping[str, Any], rates: Mapping[str, float]) -> dict[str, float]:
    """What charts show of one look, by name: `position` of the log, `memory` held in bytes, rates
    (see `rates_of`) as `rate NAME`, seconds that an upstream is ahead as `lag URL`, rows that a
    follower lacks as `behind NAME`. Of many the first `limits.WEB_ITEMS`."""
    memory = status.get("memory", {})
    held = ("unfinished_frames_bytes", "requests_bytes", "answers_bytes")
    found: dict[str, float] = {
        "position": sum(status["vclock"].values()),
        "memory": sum(memory.get(name, 0) for name in held),
    }
    found |= {f"rate {name}": rate for name, rate in rates.items()}
    for one in status.get("sources", ()):
        if one["lag_seconds"] is not None:
            found[f"lag {one['url']}"] = one["lag_seconds"]
    for one in status.get("replicas", ()):
        found[f"behind {one['instance']}"] = one["lag_rows"]
    for one in status.get("readers", ()):
        if one["unit"] == "rows":
            found[f"behind {one['scheme']} {one['name']}"] = one["lag"]
    kept = list(found.items())[:WEB_ITEMS]
    return {name: value for name, value in kept if math.isfinite(value)}


class History:
    """Samples, the last `limits.WEB_SAMPLES`. A name that none of them has any more is dropped."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=WEB_SAMPLES)
        self._columns: dict[str, deque[float | None]] = {}

    def add(self, time_seconds: float, sample: Mapping[str, float]) -> None:
        """One more. `time_seconds`: since the epoch."""
        for name in sample:
            if name not in self._columns:
                empty = [None] * len(self._times)
                self._columns[name] = deque(empty, maxlen=WEB_SAMPLES)
        self._times.append(round(time_seconds, 3))
        for name, column in tuple(self._columns.items()):
            value = sample.get(name)
            column.append(None if value is None else round(value, 3))
            if value is None and all(one is None for one in column):
                del self._columns[name]

    def told(self) -> dict[str, Any]:
        """`times`, and `series`: values by name, as many as times, None if there was none."""
        series = {name: list(column) for name, column in self._columns.items()}
        return {"times": list(self._times), "series": series}
