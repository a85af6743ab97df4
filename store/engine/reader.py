"""Reads of a store that need no view of their own.

They are of what is published when they begin, and share one transaction on the state
(`State.latest`): nothing is opened for a read, and no page of LMDB is kept from being used again.
What is long, or unknown to compiled selections, is read in a view.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from logweir.store.engine.asking import Asks
from logweir.store.engine.batches import Answers, Asked
from logweir.store.engine.engine import Engine, Plans
from logweir.store.engine.executing import COMPILED, Answer, Executor
from logweir.store.engine.reads import (
    DONE,
    PIECE_BYTES,
    REFUSED,
    Placed,
    Row,
    compiled,
    counted,
    give_back,
    placed,
    select_batch,
    taken,
)
from logweir.store.engine.refusal import refusal
from logweir.store.schema.schema import Schema
from logweir.store.state.layers import Layers
from logweir.store.state.stackkernel import LayeredTxn
from logweir.store.state.state import State

if TYPE_CHECKING or COMPILED:
    from logweir.store.schema.definition import SpaceDef
    from logweir.store.state.layerkernel import Space

_REFERRED: Final = 2


class Published(Engine):
    """What is published at one moment; over `State.latest`, and while that goes on `State.shown`,
    so that nobody keeps layers that the state has taken."""

    def __init__(self, txn: LayeredTxn, schema: Schema, plans: Plans) -> None:
        super().__init__(txn, schema, plans)
        self.places: dict[tuple[int | str, int | str], tuple[SpaceDef, int, Space | None]] = {}
        self.batches: dict[Sequence[int], Placed] = {}
        self.spaces: dict[
            int, Space | None
        ] = {}  # that there are, as compiled selections want them

    def place(self, space: int | str, index: int | str) -> tuple[SpaceDef, int, Space | None]:
        """A space, the id of its index, and what compiled selections want."""
        found = self.schema.space(space)
        index_id = self.schema.index(found, index).id
        made = found, index_id, compiled(self, found)
        self.places[space, index] = made
        return made

    def find(self, space_id: int) -> bool:
        """Put a space among `spaces`. Returns whether there is such a one."""
        found = self.schema.get(space_id)
        if found is not None:
            self.spaces[space_id] = compiled(self, found)
        return found is not None

    def select_batch(self, executor: Executor, asked: Asked) -> tuple[Answers, Schema]:
        """`reads.select_batch` of spaces by their ids."""
        known = self.batches.get(asked.ids)
        if known is None:
            known = self.batches[asked.ids] = placed(self, asked.ids)
        return select_batch(self, known, executor, asked, _refer)


class _Referred(Exception):
    """Something is left to the reference engine, which needs a view."""


def _refer(number: int) -> Answer:
    raise _Referred


class PlainRequests:
    """In the place of what answers requests of a protocol from their bytes, where that is not
    compiled: leaves all to who knows every request. `lookkernel.pyx` and `readselectkernel.pyx`
    say what each is."""

    count = failed = 0
    is_over = False
    wanted = -1
    has_many = False
    expired: list[tuple[bytes, int]] | None = None

    def read(self, data: bytes, at: int, *given: object) -> int:
        """Answer nothing."""
        del data, given
        return at

    def take(self) -> bytes:
        """The answers."""
        return b""


class Reader(Asks):
    """For all threads of a store. `guard`: held around what publishes; `published`: the schema,
    or what a closed store raises."""

    def __init__(
        self,
        state: State,
        layers: Layers,
        guard: threading.Lock,
        plans: Plans,
        published: Callable[[], Schema],
    ) -> None:
        super().__init__(state)
        self._layers = layers
        self._guard = guard
        self._plans = plans
        self._published = published

    def rows(
        self,
        space: int | str,
        index: int | str,
        iterator: int,
        limit: int,
        offset: int,
        key: bytes,
    ) -> list[Row] | None:
        """The tuples of a selection; None if it wants a view. Raises `RequestError`."""
        if not COMPILED:
            return None
        selector = taken()

        def select(reading: Published) -> tuple[int, SpaceDef]:
            place = reading.places.get((space, index)) or reading.place(space, index)
            definition, index_id, below = place
            how = _REFERRED
            if below is not None:
                how = selector.select(below, index_id, iterator, limit, offset, key, PIECE_BYTES)
            return how, definition

        how, definition = self.ask(select)
        if how == REFUSED:
            raise refusal(definition, *selector.refusal, b"")
        found = selector.rows() if how == DONE and selector.is_whole else None
        give_back(selector)
        return found

    def count(self, space: int | str) -> int | None:
        """How many tuples a space holds; None if that wants a view. Raises `RequestError`."""
        if not COMPILED:
            return None
        return self.ask(lambda reading: counted(reading, reading.schema.space(space)))

    def select_batch(self, executor: Executor, asked: Asked) -> tuple[Answers, Schema] | None:
        """Many statements that change nothing, and the definitions then; None if they want a
        view. See `ReadView.select_batch`."""
        if not COMPILED:
            return None
        try:
            return self.ask(Published.select_batch, executor, asked)
        except _Referred:
            return None

    def renew(self) -> None:
        state = self.state
        self._published()  # in a child of `fork` the guard may be held for ever
        with self._guard, state.reading:
            schema = self._published()
            base = state.begin_latest()
            txn = LayeredTxn(self._layers.stack, base, write=False)
            state.shown = Published(txn, schema, self._plans)
