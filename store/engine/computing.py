"""Statements whose new tuple is made from the old one by who asks for them.

A REPLACE with EXPECT 4 (see `statementkernel.pyx`) holds a tuple of the right key. The batch's
computer is given it with the tuple that is there, and says

======  ============================================================================================
made    the new tuple, with the same key
kept    nothing changes; the old tuple is the answer
unmet   what the statement expects is not so: as with any other expectation
halted  something has to be done before: the batch ends before the transaction of this statement.
        What that is, the computer keeps: `obstacle`, the tuple in the way
======  ============================================================================================

and three numbers, which come back in CODE, A and B. FIELD and VALUE are its own. A subclass does so
in C (`compute`, see `conditionkernel.pyx`), and in Python for what that does not know, or for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from logweir.store.engine.executing import COMPILED, DONE, HALTED, UNMET

__all__ = ["HALTED", "KEPT", "MADE", "UNMET", "Computed", "Computer", "PlainComputer"]

MADE: Final = DONE
KEPT: Final = 6

Computed = tuple[int, bytes | None, tuple[int, int, int]]
"""One of the above, the new tuple, and the three numbers."""


class PlainComputer:
    """One that is not compiled. `obstacle`: see the module's text."""

    obstacle: bytes | None = None

    def refer(self, how: int, number: int, given: bytes, old: bytes | None) -> Computed:
        """What becomes of a statement. `how`, `number`: its FIELD and VALUE; `given`: its tuple."""
        raise NotImplementedError


if TYPE_CHECKING or COMPILED:
    from logweir.store.engine.conditionkernel import Computer
else:
    Computer = PlainComputer
