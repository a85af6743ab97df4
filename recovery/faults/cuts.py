"""A simulated disk that is looked at in the middle: what a power cut at any call would leave.

A `Recorder` is a disk for a program that runs to its end; before calls that write it keeps
*images*, disks as a power cut would leave them then, with what the program knew at that moment.
Each image has a number in the order of the run; it and the recorder's seed repeat the image.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from logweir.recovery.faults.faulty import WRITING, FaultyFileSystem
from logweir.recovery.faults.sim import SimFileSystem

_NAMES_TIMES: Final = 3
_SEEDS: Final = 1_000_003

Noted = TypeVar("Noted")


@dataclass(frozen=True)
class Image(Generic[Noted]):
    """What a power cut leaves. `noted`: what was known then; `where`: before which call it came;
    `seed`: of the cut; `number`: among all of the run, from 1."""

    disk: SimFileSystem
    noted: Noted
    where: str
    seed: int
    number: int


class Recorder(FaultyFileSystem, Generic[Noted]):
    """`inner`, with power cuts before calls that write. `note`: what is known now; `rate`: at how
    many of the calls, 0.0 … 1.0, and at three times as many of those about names; `each`: cuts at
    such a call; `most`: images that are kept, drawn from all, None: all; `only`: the number of the
    one that is wanted, None: any."""

    def __init__(
        self,
        inner: SimFileSystem,
        note: Callable[[], Noted],
        *,
        seed: int = 0,
        rate: float = 1.0,
        each: int = 1,
        most: int | None = None,
        only: int | None = None,
    ) -> None:
        super().__init__(inner)
        self.disk = inner
        self.note = note
        self.images: list[Image[Noted]] = []
        self._seed = seed
        self._dice = random.Random(seed)  # noqa: S311 - repeatable, nothing secret
        self._rate = rate
        self._each = each
        self._most = most
        self._only = only
        self._numbers = itertools.count(1)  # one for all views of this disk

    def call(self, kind: str, path: Path) -> int | None:
        """As `FaultyFileSystem.call`, behind the cuts."""
        rate = self._rate * (_NAMES_TIMES if kind in ("remove", "sync_directory") else 1)
        if kind in WRITING and self._dice.random() < rate:
            self.cut(f"before {kind} {path.name}")
        return super().call(kind, path)

    def cut(self, where: str) -> None:
        """Keep what a power cut leaves now."""
        for _ in range(self._each):
            number = next(self._numbers)
            if self._only not in (None, number):
                continue
            place = len(self.images)
            if self._most is not None and place >= self._most:
                place = self._dice.randrange(number)  # so each one is kept with the same chance
                if place >= self._most:
                    continue
            seed = self._seed * _SEEDS + number
            image = Image(self.disk.crash(seed=seed), self.note(), where, seed, number)
            self.images[place : place + 1] = [image]
