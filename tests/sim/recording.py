"""A simulated disk that is looked at in the middle: what a power cut at any call would leave."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from logweir.recovery.faults import FaultyFileSystem, SimFileSystem
from logweir.recovery.faults.faulty import WRITING

NAMES_TIMES = 3

Noted = TypeVar("Noted")


@dataclass(frozen=True)
class Image(Generic[Noted]):
    """What a power cut leaves. `noted`: what was known then; `where`: before which call it came;
    `seed`: of the cut."""

    disk: SimFileSystem
    noted: Noted
    where: str
    seed: int


class Recorder(FaultyFileSystem, Generic[Noted]):
    """`inner`, with power cuts before calls that write. `note`: what is known now; `rate`: at how
    many of the calls, 0.0 … 1.0, and at `NAMES_TIMES` as many of those about names; `each`: cuts at
    such a call."""

    def __init__(
        self,
        inner: SimFileSystem,
        note: Callable[[], Noted],
        *,
        seed: int = 0,
        rate: float = 1.0,
        each: int = 1,
    ) -> None:
        super().__init__(inner)
        self.disk = inner
        self.note = note
        self.images: list[Image[Noted]] = []
        self._dice = random.Random(seed)
        self._rate = rate
        self._each = each

    def call(self, kind: str, path: Path) -> None:
        """As `FaultyFileSystem.call`, behind the cuts."""
        rate = self._rate * (NAMES_TIMES if kind in ("remove", "sync_directory") else 1)
        if kind in WRITING and self._dice.random() < rate:
            self.cut(f"{kind} {path.name}")
        super().call(kind, path)

    def cut(self, where: str) -> None:
        """Note what a power cut leaves now."""
        for _ in range(self._each):
            seed = self._dice.getrandbits(32)
            self.images.append(Image(self.disk.crash(seed=seed), self.note(), where, seed))
