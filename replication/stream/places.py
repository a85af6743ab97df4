"""Places in the log files, by position, so that a follower need not read a file from its start.

After each commit it is known at which byte of which file the log ends. The newest of these places
is kept, and one for about every `limits.PLACE_STEP_BYTES` of the log before it. Reading after a
place gives all rows after its position.
"""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path
from typing import NamedTuple

from logweir.limits import PLACE_STEP_BYTES, PLACES
from logweir.wal.vclock import VClock


class Place(NamedTuple):
    """All rows after `vclock` stand in `path` from byte `offset` on, or in later files."""

    vclock: VClock
    path: Path
    offset: int


class Places:
    """The places of one log. Thread-safe."""

    def __init__(self) -> None:
        self._kept: deque[Place] = deque(maxlen=PLACES)
        self._newest: Place | None = None
        self._step_end = 0  # in its file, from where on it is kept
        self._guard = threading.Lock()

    def note(self, vclock: VClock, path: Path, offset: int) -> None:
        """The log ends there, at that position; never called with an older one."""
        with self._guard:
            newest, self._newest = self._newest, Place(vclock, path, offset)
            if newest is None:
                return
            # Comparing paths takes long, and mostly it is one object.
            is_other = newest.path is not path and newest.path != path
            if is_other or offset > self._step_end:
                self._kept.append(newest)
                self._step_end = (0 if is_other else newest.offset) + PLACE_STEP_BYTES

    def before(self, position: VClock) -> Place | None:
        """The last place that is not behind `position`."""
        with self._guard:
            for place in (self._newest, *reversed(self._kept)):
                if place is not None and position.covers(place.vclock):
                    return place
        return None
