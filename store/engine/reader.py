"""Reads of a store that need no view of their own.

They are of what is published when they begin, and share one transaction on the state
(`State.latest`): nothing is opened for a read, and no page of LMDB is kept from being used again.
What is long, or unknown to compiled selections, is read in a view.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from logweir.store.engine.batches import Answers
from logweir.store.engine.engine import Engine, Plans
from logweir.store.engine.executing import COMPILED, Answer, Executor
from logweir.store.engine.reads import (
    DONE,
    PIECE_BYTES,
    REFUSED,
    Row,
    compiled,
    give_back,
    taken,
)
from logweir.store.engine.refusal import refusal
from logweir.store.schema.schema import Schema
from logweir.store.state.layered import LayeredTxn
from logweir.store.state.layers import Layers
from logweir.store.state.state import State, StateError, explained
from logweir.store.state.undo import Undo

if TYPE_CHECKING or COMPILED:
    from logweir.store.schema.definition import SpaceDef
    from logweir.store.state.layerkernel import Space

__all__ = ["Reader"]

_REFERRED: Final = 2
_NOTHING: Final = Undo()
"""What SELECTs change."""


class _Reading:
    """What is published at one moment; over `State.latest`, and while that goes on `State.shown`,
    so that nobody keeps layers that the state has taken."""

    __slots__ = ("engine", "places", "spaces")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.places: dict[tuple[int | str, int | str], tuple[SpaceDef, int, Space | None]] = {}
        self.spaces: dict[int, tuple[SpaceDef | None, Space]] = {}

    def place(self, space: int | str, index: int | str) -> tuple[SpaceDef, int, Space | None]:
        """A space, the id of its index, and what compiled selections want."""
        schema = self.engine.schema
        found = schema.space(space)
        index_id = schema.index(found, index).id
        made = found, index_id, compiled(self.engine, found)
        self.places[space, index] = made
        return made

    def select_batch(
        self,
        executor: Executor,
        data: bytes,
        columns: array[int],
        ids: Sequence[int],
        limit_bytes: int,
    ) -> tuple[Answers, Schema]:
        """See `Reader.select_batch`. Raises `_Referred`."""
        schema = self.engine.schema
        definitions: list[SpaceDef | None] = []
        spaces: list[Space | None] = []
        for space_id in ids:
            known = self.spaces.get(space_id)
            if known is None:
                definition = schema.get(space_id)
                below = None if definition is None else compiled(self.engine, definition)
                if below is None:
                    raise _Referred
                known = self.spaces[space_id] = definition, below
            definitions.append(known[0])
            spaces.append(known[1])
        found = executor.execute(data, columns, spaces, _NOTHING, _refer, limit_bytes)
        return Answers(data, columns, *found, definitions), schema


class _Referred(Exception):
    """Something is left to the reference engine, which needs a view."""


def _refer(number: int) -> Answer:
    raise _Referred


class Reader:
    """For all threads of a store. `guard`: held around what publishes; `published`: the schema, or
    what a closed store raises."""

    def __init__(
        self,
        state: State,
        layers: Layers,
        guard: threading.Lock,
        plans: Plans,
        published: Callable[[], Schema],
    ) -> None:
        self._state = state
        self._layers = layers
        self._guard = guard
        self._plans = plans
        self._published = published

    def forget(self) -> None:
        """Something else is published; the caller holds the guard."""
        self._state.shown = None

    @property
    def _reading(self) -> _Reading | None:
        """What is shown now."""
        found: _Reading | None = self._state.shown
        return found

    def rows(
        self,
        space: int | str,
        index: int | str,
        iterator: int,
        limit: int,
        offset: int,
        key: bytes,
    ) -> list[Row] | None:
        """The tuples of a selection; None where it wants a view. Raises `RequestError`."""
        if not COMPILED:
            return None
        selector, how = taken(), _REFERRED
        try:
            while True:
                with self._state.reading:
                    reading = self._reading
                    if reading is not None:
                        place = reading.places.get((space, index)) or reading.place(space, index)
                        definition, index_id, below = place
                        if below is not None:
                            how = selector.select(
                                below, index_id, iterator, limit, offset, key, PIECE_BYTES
                            )
                        break
                self._renew()
        except StateError as error:
            raise explained(error, self._state.directory) from error
        if how == REFUSED:
            raise refusal(definition, *selector.refusal, b"")
        found = selector.rows() if how == DONE and selector.is_whole else None
        give_back(selector)
        return found

    def select_batch(
        self,
        executor: Executor,
        data: bytes,
        columns: array[int],
        ids: Sequence[int],
        limit_bytes: int,
    ) -> tuple[Answers, Schema] | None:
        """Many SELECTs, and the definitions then; None where they want a view. See
        `ReadView.select_batch`."""
        if not COMPILED:
            return None
        try:
            while True:
                with self._state.reading:
                    reading = self._reading
                    if reading is not None:
                        return reading.select_batch(executor, data, columns, ids, limit_bytes)
                self._renew()
        except _Referred:
            return None
        except StateError as error:
            raise explained(error, self._state.directory) from error

    def _renew(self) -> None:
        self._published()  # in a child of `fork` the guard may be held for ever
        with self._guard, self._state.reading:
            schema = self._published()
            base = self._state.begin_latest()
            txn = LayeredTxn(self._layers.stack, base, write=False)
            self._state.shown = _Reading(Engine(txn, schema, self._plans))
