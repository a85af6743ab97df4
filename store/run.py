"""Many alike changes as columns."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

__all__ = ["Run"]


@dataclass(frozen=True, slots=True)
class Run:
    """REPLACEs into one space, each a transaction: tuple i is packed[bounds[i]:bounds[i + 1]]."""

    space_id: int
    packed: bytes
    bounds: array[int]
