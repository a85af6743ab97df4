"""Reading in one transaction: by compiled selections where they know the space.

What they do not know, and if nothing is compiled everything, `store.engine` does, that selection
alone. Tuples come in pieces, so that a long selection takes little memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from logweir.errors import LogweirError
from logweir.store.engine.batches import Answers, Asked
from logweir.store.engine.engine import Engine
from logweir.store.engine.executing import COMPILED, Answer, Executor
from logweir.store.engine.refusal import refusal
from logweir.store.schema.definition import IndexDef, SpaceDef
from logweir.store.schema.schema import Schema
from logweir.store.state.stackkernel import LayeredTxn
from logweir.wal.mp import Value

if TYPE_CHECKING or COMPILED:
    from logweir.store.engine.selectkernel import Selector
    from logweir.store.state.layerkernel import Space

Row = tuple[Value, ...]
T = TypeVar("T")

GET: Final = 7
"""The iterator by which `Engine.get` is asked for: see `statementkernel.pyx`."""

ALL: Final = 2**64 - 1
"""The limit of a selection that has none."""

PIECE_BYTES: Final = 256 * 1024
"""So many bytes of tuples are found at a time."""

PIECE_STEPS: Final = 256
"""The reference engine passes so many entries at a time; the compiled one more, see
`selectkernel.pxd`."""

DONE: Final = 0
REFUSED: Final = 1
REFERRED: Final = 3
_FIRST_BYTES: Final = 4096  # of a piece: many who ask want the first tuple alone
_POOLED: Final = 8

_pool: Final[list[Selector]] = []  # selectors that nobody uses


def taken() -> Selector:
    """A selector that nobody else uses, until it is given back."""
    return _pool.pop() if _pool else Selector()


def give_back(selector: Selector) -> None:
    """What it found was taken."""
    if len(_pool) < _POOLED and selector.held_bytes <= 2 * PIECE_BYTES:
        _pool.append(selector)


def compiled(engine: Engine, space: SpaceDef) -> Space | None:
    """A space as compiled statements and selections want it; None if the reference engine has to
    look at each of them."""
    txn = engine.txn
    if not isinstance(txn, LayeredTxn):
        return None
    found = txn.spaces.get(space.id)
    if found is None or found.plan.source is not space:  # each statement asks
        plan = engine.plans.statements(space)
        if plan is None:
            return None
        found = txn.space(plan)
    if txn.base.state.is_foreign:
        txn.check_process()
    return found


Placed = tuple[list[SpaceDef | None], "list[Space | None]"]


def placed(engine: Engine, ids: Sequence[int]) -> Placed:
    """Spaces by their ids, as they are defined and as compiled statements want them."""
    definitions = list(map(engine.schema.get, ids))
    return definitions, [None if one is None else compiled(engine, one) for one in definitions]


def select_batch(
    engine: Engine, spaces: Placed, executor: Executor, asked: Asked, refer: Callable[[int], Answer]
) -> tuple[Answers, Schema]:
    """Many statements that change nothing: SELECTs, and those whose tuple the computer keeps. With
    what came of them the definitions then.

    `spaces`: `placed` for them; `executor`: not used by another thread meanwhile; `refer`: has the
    reference engine do one, or halts."""
    txn = engine.txn
    assert isinstance(txn, LayeredTxn)
    definitions, below = spaces
    data, columns, _, limit_bytes, computer = asked
    done = executor.execute(data, columns, below, txn.undo, refer, limit_bytes, computer)
    return Answers(data, columns, *done, definitions), engine.schema


class Piece(Protocol):
    """Tuples, as MsgPack, that were found at a time; to be taken before the next piece."""

    def tuples(self) -> Sequence[bytes]:
        """Each by itself."""
        ...

    def block(self) -> tuple[int, bytes]:
        """How many these are, and they one behind the other."""
        ...


@dataclass(frozen=True, slots=True)
class _Listed:
    """A piece that the reference engine has found."""

    found: Sequence[bytes]

    def tuples(self) -> Sequence[bytes]:
        return self.found

    def block(self) -> tuple[int, bytes]:
        return len(self.found), b"".join(self.found)


def pieces(
    engine: Engine,
    space: SpaceDef,
    index: IndexDef,
    start: bytes,
    stop: bytes | None,
    *,
    reverse: bool,
    limit: int = ALL,
    offset: int = 0,
) -> Iterator[Piece]:
    """Tuples, as MsgPack, whose entries are in start ≤ entry < stop (None: no end), in order or
    reversed: the first `limit` behind `offset`. They come in pieces, each of about a millisecond's
    work; what is left out is work too, so a piece may have none."""
    below = compiled(engine, space)
    done = 0
    if below is not None:
        txn = engine.txn
        assert isinstance(txn, LayeredTxn)
        found = Selector()  # who takes tuples may take his time
        room = _FIRST_BYTES
        how = found.entries(below, index.id, start, stop, reverse, limit, offset, room)
        while how in (DONE, REFERRED):
            yield found
            if how == REFERRED:
                yield _Listed((txn.resolve(found.referred),))
            elif found.is_whole:
                return
            if txn.base.state.is_foreign:
                txn.check_process()
            room = min(4 * room, PIECE_BYTES)
            how = found.more(room)
        yield found
        done = found.given
    rest = engine.entries(space, index, start, stop, reverse=reverse)
    start_at, stop_at = min(offset + done, sys.maxsize), min(offset + limit, sys.maxsize)
    yield from map(_Listed, parted(rest, start_at, stop_at, len))


def parted(
    found: Iterator[T], start: int, stop: int, size_of: Callable[[T], int]
) -> Iterator[Sequence[T]]:
    """`islice` in pieces of `PIECE_STEPS`, or of `PIECE_BYTES`; what is left out is work too, so a
    piece may have none. What stands before one that cannot be read is yielded before."""
    piece: list[T] = []
    steps = size = 0
    try:
        for at, one in enumerate(islice(found, stop)):
            steps += 1
            if at >= start:
                piece.append(one)
                size += size_of(one)
            if steps >= PIECE_STEPS or size >= PIECE_BYTES:
                yield piece
                piece, steps, size = [], 0, 0
    except LogweirError:
        yield piece
        raise
    yield piece


def one(engine: Engine, space: SpaceDef, index: IndexDef, key: bytes) -> bytes | None:
    """The tuple, as MsgPack, with that full key of a unique index. Raises `RequestError`."""
    below = compiled(engine, space)
    if below is not None:
        found = taken()
        how = found.select(below, index.id, GET, 1, 0, key, PIECE_BYTES)
        if how == DONE:
            tuples = found.tuples()
            give_back(found)
            return tuples[0] if tuples else None
        if how == REFUSED:
            raise refusal(space, *found.refusal, b"")
    return engine.get(space, index, key)


def rows(
    engine: Engine,
    space: SpaceDef,
    index_id: int,
    iterator: int,
    limit: int,
    offset: int,
    key: bytes,
) -> list[Row] | None:
    """The tuples of a selection in the numbers of a request (see `statementkernel.pyx`), None if
    the reference engine has to find them. Raises `RequestError`."""
    below = compiled(engine, space)
    if below is None:
        return None
    found = Selector()
    made: list[Row] = []
    how = found.select(below, index_id, iterator, limit, offset, key, PIECE_BYTES)
    while how == DONE:
        made += found.rows()
        if found.is_whole:
            return made
        how = found.more(PIECE_BYTES)
    if how == REFUSED:
        raise refusal(space, *found.refusal, b"")
    return None


def counted(engine: Engine, space: SpaceDef) -> int | None:
    """How many tuples a space holds; None if compiled selections cannot tell."""
    if space.primary is None:
        return 0
    below = compiled(engine, space)
    found = -1 if below is None else Selector().count(below, 0)
    return None if found < 0 else found


def count(engine: Engine, space: SpaceDef) -> int:
    """How many tuples a space holds."""
    found = counted(engine, space)
    return engine.txn.count(space.id, 0) if found is None else found
