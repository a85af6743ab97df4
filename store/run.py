"""Many alike changes as columns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from logweir.store.engine import Engine

__all__ = ["Run", "RunMaker"]


class RunMaker(Protocol):
    """What makes a run as late as when its rows are given their lsns. `space_id`, `size_bytes`: of
    the run, the latter about; `reads`: the spaces that it looks at in `make`."""

    @property
    def space_id(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def reads(self) -> Sequence[int]: ...

    def make(self, engine: Engine, first_lsn: int) -> Run | None:
        """The run; its first row gets `first_lsn`, if it is logged at all. `engine`: what the state
        holds of `reads`. None: the change has to go the ordinary way."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """REPLACEs into one space, each a transaction: tuple i is packed[bounds[i]:bounds[i + 1]].

    `prefix`: b"" for a space that has only its primary index. Else it has a second one, also
    unique, nothing else is to be kept or checked there, and each tuple's entry in it is that prefix
    and then its entry in the first. Who makes such a run knows that; that the tuples which are
    there have that prefix, too, so that none changes its place, is looked at here.
    """

    space_id: int
    packed: bytes
    bounds: array[int]
    prefix: bytes = b""

    @property
    def size_bytes(self) -> int:
        """See `RunMaker`."""
        return len(self.packed)

    @property
    def reads(self) -> Sequence[int]:
        """See `RunMaker`."""
        return ()

    def make(self, engine: Engine, first_lsn: int) -> Run | None:
        """See `RunMaker`: it is made."""
        del engine, first_lsn
        return self
