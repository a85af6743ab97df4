"""Many alike changes as columns."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from logweir.store.bulk import Keys
from logweir.store.engine import Engine, Plans
from logweir.store.schema import Schema
from logweir.store.state import State

__all__ = ["Known", "Run", "RunMaker", "Sight"]

Known = dict[Hashable, bytes]


class Sight:
    """What a maker of runs sees of the state; a context. `known`: what makers have found in it,
    each under keys of its own; it is forgotten once anything else has changed the state."""

    def __init__(self, state: State, schema: Schema, plans: Plans, known: Known) -> None:
        self.schema = schema
        self.known = known
        self._state = state
        self._plans = plans
        self._engine: Engine | None = None
        self._stack = contextlib.ExitStack()

    @property
    def engine(self) -> Engine:
        """A view of the state, opened when first asked for: that is not cheap."""
        if self._engine is None:
            txn = self._stack.enter_context(self._state.read())
            self._engine = Engine(txn, self.schema, self._plans)
        return self._engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


class RunMaker(Protocol):
    """What makes a run as late as when its rows are given their lsns. `space_id`, `size_bytes`: of
    the run, the latter about; `reads`: the spaces that it looks at in `make`."""

    @property
    def space_id(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def reads(self) -> Sequence[int]: ...

    def make(self, sight: Sight, first_lsn: int) -> Run | None:
        """The run; its first row gets `first_lsn`, if it is logged at all. `sight`: shows what the
        state holds of `reads`. None: the change has to go the ordinary way."""
        ...


@dataclass(slots=True)
class Run:
    """REPLACEs into one space, each a transaction: tuple i is packed[bounds[i]:bounds[i + 1]].

    `prefix`: b"" for a space that has only its primary index. Else it has a second one, also
    unique, nothing else is to be kept or checked there, and each tuple's entry in it is that prefix
    and then its entry in the first. Who makes such a run knows that; that the tuples which are
    there have that prefix, too, so that none changes its place, is looked at here. `keys`: entries
    in the first index, from who knows them and that the tuples fit the space; None: both is found
    out.
    """

    space_id: int
    packed: bytes
    bounds: array[int]
    prefix: bytes = b""
    keys: Keys | None = None

    @property
    def size_bytes(self) -> int:
        """See `RunMaker`."""
        return len(self.packed)

    @property
    def reads(self) -> Sequence[int]:
        """See `RunMaker`."""
        return ()

    def make(self, sight: Sight, first_lsn: int) -> Run | None:
        """See `RunMaker`: it is made."""
        del sight, first_lsn
        return self
