"""The definitions of spaces over time, from the rows of system spaces. No I/O, no Spark.

System spaces (ids 256 … 511) are small, so their rows are gathered and applied in one place, in the
order of the log, exactly as opening a store applies them. Only `_sequence_data` (285) is not among
them: it may have as many rows as any space, and is folded like user data.

What comes out is a *history*: for each space the list of its *eras*. An era begins behind a row
that changed the space, and says how the rows from there on are to be read:

============  ==================================================================================
a row that    does
============  ==================================================================================
creates,      begins an era with that definition
alters
changes the   begins an era and a new *segment*: rows up to there have keys of the old kind, what
primary key   they leave is keyed anew
truncates,    begins an era; all before are dead: their rows need not be looked at
drops
============  ==================================================================================

A *place* is (number of the file, position in it); a position is block offset x 2^25 + row in the
block, so places sort as the rows stand. The snapshot is file 0.
"""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, cast

import msgpack  # type: ignore[import-untyped]

from logweir.errors import CorruptBlock, ErrorCode, LimitExceeded, RequestError
from logweir.limits import PIPELINE_DEFINITION_BYTES, TOPIC_TUPLE_BYTES
from logweir.store.engine import ddl
from logweir.store.engine.engine import Engine, Plans
from logweir.store.engine.request import Request
from logweir.store.schema.definition import SYSTEM_ID_MAX, SYSTEM_ID_MIN, SpaceDef, SystemSpace
from logweir.store.schema.schema import Schema
from logweir.store.state.statetxn import Txn
from logweir.wal.block import decompress
from logweir.wal.xrow import RowType
from logweir.wal.zstdlib import zstd

POSITION_ROWS: Final = 2**25
"""Rows of one block that a position can number."""

ERAS: Final = 2**21
"""Eras that a keyed row can number."""

Place = tuple[int, int]
_START: Final[Place] = (0, -1)
_APPLIED: Final = frozenset(
    (RowType.INSERT, RowType.REPLACE, RowType.UPDATE, RowType.DELETE, RowType.UPSERT)
)
_BY_KEY: Final = frozenset((RowType.UPDATE, RowType.DELETE))


def position(block_offset: int, row: int) -> int:
    """The position of a row in its file. Raises `LimitExceeded`."""
    if row >= POSITION_ROWS or block_offset >= 2**38:
        raise LimitExceeded("POSITION_ROWS", POSITION_ROWS, row)
    return block_offset * POSITION_ROWS + row


def is_definition(space_id: int) -> bool:
    """Whether rows of that space belong into a history."""
    return SYSTEM_ID_MIN <= space_id <= SYSTEM_ID_MAX and space_id != SystemSpace.SEQUENCE_DATA


class SystemRow(NamedTuple):
    """One row of a system space. `index_id`: other than 0, it found nothing."""

    file: int
    position: int
    replica_id: int
    lsn: int
    type: int
    space_id: int
    index_base: int
    index_id: int
    key: bytes | None
    tuple: bytes | None
    ops: bytes | None

    @property
    def place(self) -> Place:
        """Where it stands."""
        return self.file, self.position


def encode_rows(rows: Iterable[SystemRow]) -> str:
    """Rows as text, for the way to a worker."""
    packed: bytes = msgpack.packb([list(row) for row in rows])
    return base64.b64encode(zstd.compress(packed)).decode("ascii")


def decode_rows(text: str) -> list[SystemRow]:
    """The reverse of `encode_rows`."""
    packed = decompress(base64.b64decode(text), 4 * PIPELINE_DEFINITION_BYTES)
    return [SystemRow(*row) for row in msgpack.unpackb(packed)]


@dataclass(frozen=True, slots=True)
class Era:
    """How rows from `start` on are read. `number`: of the era among all of the history; `space`:
    the definition, None where there is none; `segment`: rises with each change of the primary key;
    `is_dead`: nothing of its rows is left; `step`: of the sequence that the space uses, 0 none."""

    start: Place
    number: int
    space: SpaceDef | None
    segment: int = 0
    is_dead: bool = False
    step: int = 0

    @property
    def keeps_rows(self) -> bool:
        """Whether its rows are in the state at the end."""
        return not self.is_dead and self._has_rows

    @property
    def teaches(self) -> bool:
        """Whether a sequence learned numbers from its rows, be they gone at the end."""
        return self.step != 0 and self._has_rows

    @property
    def _has_rows(self) -> bool:
        space = self.space
        return (
            space is not None
            and space.primary is not None
            and space.engine == "memtx"
            and not space.is_temporary
            and not space.is_view
        )


class _Tree:
    """The entries of one index, in memory: what `Engine` asks of `store.state.tree.Tree`."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.entries.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.entries[key] = value

    def delete(self, key: bytes) -> None:
        del self.entries[key]

    def count(self) -> int:
        return len(self.entries)

    def ascending(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(pair for pair in self.entries.items() if pair[0] >= start))


class _Memory:
    """Trees by space and index: what `Engine` and `ddl` ask of `store.state.statetxn.Txn`."""

    def __init__(self) -> None:
        self.trees: dict[tuple[int, int], _Tree] = {}

    def tree(self, space_id: int, index_id: int) -> _Tree:
        return self.trees.setdefault((space_id, index_id), _Tree())

    def drop(self, space_id: int, index_id: int) -> None:
        self.trees.pop((space_id, index_id), None)

    def load(self, space_id: int, index_id: int, pairs: list[tuple[bytes, bytes]]) -> None:
        self.tree(space_id, index_id).entries.update(pairs)

    def items(self, space_id: int, index_id: int) -> Iterator[tuple[bytes, bytes]]:
        return self.tree(space_id, index_id).ascending(b"")


def _key_parts(space: SpaceDef) -> list[Any]:
    assert space.primary is not None
    return [
        (part.place, part.type, part.order, part.nullable_action) for part in space.primary.parts
    ]


@dataclass(slots=True)
class History:
    """Definitions over time. `of` makes it; `schema` is what holds at the end. What a log has fits,
    whatever the limit of tuples was where it was written."""

    schema: Schema = field(default_factory=lambda: Schema(TOPIC_TUPLE_BYTES))
    eras: list[Era] = field(default_factory=list)
    by_space: dict[int, list[Era]] = field(default_factory=dict)
    _memory: _Memory = field(default_factory=_Memory)
    _plans: Plans = field(default_factory=Plans)

    @classmethod
    def of(cls, rows: Iterable[SystemRow], names: dict[int, str] | None = None) -> History:
        """Apply rows in the order of their places. `names`: of files, for errors.

        Raises `CorruptBlock` for a row that cannot be applied, `LimitExceeded` for too many.
        """
        history = cls()
        engine = Engine(cast(Txn, history._memory), history.schema, history._plans)
        in_snapshot = True
        size = 0
        for row in rows:
            size += len(row.key or b"") + len(row.tuple or b"") + len(row.ops or b"")
            if size > PIPELINE_DEFINITION_BYTES:
                raise LimitExceeded("PIPELINE_DEFINITION_BYTES", PIPELINE_DEFINITION_BYTES, size)
            if in_snapshot and row.file:
                history._finish_snapshot(engine)
                in_snapshot = False
            try:
                if in_snapshot:
                    history._load(row)
                else:
                    history._apply(engine, row)
            except RequestError as error:
                raise CorruptBlock(
                    f"a row of space {row.space_id} cannot be applied: {error.message}.",
                    path=(names or {}).get(row.file, f"file {row.file}"),
                    offset=row.position // POSITION_ROWS,
                    hint="the log and the snapshot before it do not belong together; "
                    "`logweir verify` tells more",
                ) from error
        if in_snapshot:
            history._finish_snapshot(engine)
        history._bury()
        return history

    # --- asking -----------------------------------------------------------------------------------

    def at(self, space_id: int, place: Place) -> Era | None:
        """The era in which a row of that space at that place stands; None where there is none."""
        eras = self.by_space.get(space_id)
        if not eras:
            return None
        number = bisect_right(eras, place, key=lambda era: era.start) - 1
        return eras[number] if number >= 0 else None

    def last(self, space_id: int) -> Era | None:
        """The era that holds at the end."""
        eras = self.by_space.get(space_id)
        return eras[-1] if eras else None

    def tuples(self, space_id: int) -> list[bytes]:
        """The tuples of a system space at the end, in the order of its primary key."""
        return [data for _, data in self.pairs(space_id)]

    def pairs(self, space_id: int) -> list[tuple[bytes, bytes]]:
        """The same, each with its memcomparable key."""
        return list(self._memory.items(space_id, 0))

    @property
    def system_spaces(self) -> list[SpaceDef]:
        """The system spaces that a snapshot holds, ascending by id."""
        found = [space for space in self.schema if is_definition(space.id)]
        kept = [space for space in found if space.engine == "memtx" and not space.is_view]
        return sorted(kept, key=lambda space: space.id)

    @property
    def user_spaces(self) -> list[SpaceDef]:
        """The spaces at the end whose rows a snapshot holds, ascending by id."""
        found = []
        for space in self.schema:
            era = self.last(space.id)
            if not is_definition(space.id) and era is not None and era.keeps_rows:
                found.append(space)
        return sorted(found, key=lambda space: space.id)

    @property
    def segments(self) -> int:
        """The largest number of segments that a space has."""
        return max((eras[-1].segment + 1 for eras in self.by_space.values() if eras), default=1)

    def level(self, era: Era) -> int:
        """The round in which rows of that era are folded: 0 … `segments` - 1; the last segment of
        every space is folded in the last round."""
        assert era.space is not None
        mine = self.by_space[era.space.id][-1].segment
        return self.segments - 1 - mine + era.segment

    def refuse_other_engines(self, wants: Callable[[int], bool] = lambda _: True) -> None:
        """Raises `RequestError` 5, naming the space, where one keeps its rows elsewhere. `wants`:
        whether a space, by its id, counts."""
        for space in self.schema:
            if space.engine == "vinyl" and wants(space.id):
                raise RequestError(
                    ErrorCode.UNSUPPORTED,
                    f"Space '{space.name}' is of engine vinyl, whose rows are not in these files",
                    hint="copy it into a memtx space, or use its own server's tools",
                    details={"space": space.name},
                )

    # --- making -----------------------------------------------------------------------------------

    def _load(self, row: SystemRow) -> None:
        data = row.tuple or b""
        if ddl.defines(row.space_id):
            self.schema.apply(row.space_id, None, data, is_insert=True, trusted=True)
        space = self.schema.space(row.space_id)
        (image,) = self._plans.get(space, self.schema.index(space, 0), check=False).key(data)
        self._memory.tree(space.id, 0).put(image, data)

    def _finish_snapshot(self, engine: Engine) -> None:
        engine.schema = self.schema
        for space in self.schema:
            if is_definition(space.id):
                for index in space.indexes[1:]:
                    ddl.build_index(engine, space, index)
            self._begin(space.id, _START)

    def _apply(self, engine: Engine, row: SystemRow) -> None:
        if row.type not in _APPLIED or (row.type in _BY_KEY and row.index_id):
            return
        space = self.schema.space(row.space_id)
        if space.engine != "memtx":
            return
        request = Request(
            RowType(row.type),
            row.space_id,
            key=row.key,
            tuple=row.tuple,
            ops=row.ops,
            index_base=row.index_base,
        )
        engine.schema = self.schema
        old, new, _ = engine.execute(space, request)
        if not ddl.defines(space.id):
            return
        before = self.schema
        is_insert = row.type == RowType.INSERT
        ddl.apply(engine, space.id, old, new, is_insert=is_insert, trusted=True)
        self.schema = engine.schema
        changed = self.schema.changed_since(before)
        if space.id == SystemSpace.SEQUENCE:
            changed |= {one.id for one in self.schema if one.sequence is not None}
        for space_id in changed:
            self._begin(space_id, row.place)
        if space.id == SystemSpace.TRUNCATE and new is not None and not is_insert:
            emptied = int(msgpack.unpackb(new, raw=False)[0])
            self._kill(emptied)
            self._begin(emptied, row.place)

    def _begin(self, space_id: int, start: Place) -> None:
        """The space has another definition from `start` on."""
        space = self.schema.get(space_id)
        eras = self.by_space.setdefault(space_id, [])
        segment = 0
        if eras and eras[-1].space is not None and eras[-1].space.primary is not None:
            segment = eras[-1].segment
            if space is None or space.primary is None:
                self._kill(space_id)
                segment = 0
            elif not eras[-1].is_dead and _key_parts(space) != _key_parts(eras[-1].space):
                segment += 1
        if eras and eras[-1].is_dead:
            segment = 0
        step = 0
        if space is not None and space.sequence is not None and not space.sequence.path:
            step = self.schema.sequence(space.sequence.sequence_id).step
        if len(self.eras) >= ERAS:
            raise LimitExceeded("ERAS", ERAS, len(self.eras) + 1)
        era = Era(start, len(self.eras), space, segment, step=step)
        self.eras.append(era)
        eras.append(era)

    def _kill(self, space_id: int) -> None:
        eras = self.by_space.setdefault(space_id, [])
        for number, era in enumerate(eras):
            eras[number] = self.eras[era.number] = replace(era, is_dead=True)

    def _bury(self) -> None:
        """Spaces that are gone at the end have no rows, whatever they had."""
        for space_id, eras in self.by_space.items():
            if eras and eras[-1].space is None:
                self._kill(space_id)
