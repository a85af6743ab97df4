# cython: annotation_typing=False
"""Asking what is published: the way of every read of a store that needs no view of its own.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `asking.pxd`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from logweir.store.state.state import State, StateError, explained

if TYPE_CHECKING:
    from logweir.store.engine.reader import Published

T = TypeVar("T")


class Asks:
    """For all threads of a store, whose state that is."""

    def __init__(self, state: State) -> None:
        self.state = state

    def ask(self, ask: Callable[..., T], *given: Any) -> T:
        """What `ask`, told a `Published` and `given`, finds in what is published now, which stays
        so meanwhile: it is quick, and asks for nothing else."""
        state = self.state
        try:
            while True:
                with state.reading:
                    reading: Published | None = state.shown
                    if reading is not None:
                        return ask(reading, *given)
                self.renew()
        except StateError as error:
            raise explained(error, state.directory) from error

    def renew(self) -> None:
        """Have `State.shown` be of what is published."""
        raise NotImplementedError
