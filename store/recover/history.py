"""What became of one key: its changes as the logs tell them, each with the tuple behind it.

The story begins at a snapshot, with the definitions and the key's tuple there, and goes along with
the log. Of each block the kernels make the keys of the rows of the space; only rows with the wanted
key are applied, by the engine that applies rows of any log (`store.commit.applying`), on a layer in
memory that holds the definitions and this one tuple. So an UPDATE or UPSERT, of which the log holds
the operations alone, has the tuple that it made. Rows of other keys are not applied, so nothing
that a secondary index would refuse matters.

Rows that define something are applied as they come. One that empties the space takes the tuple
away: a TRUNCATE; one that removes the space or its primary index, too: a DROP. What a key is must
stay the same: where the primary index was given other fields the tuples before and after it have
nothing to do with one another, and the story can only begin at a snapshot behind it. Memory: a
block, the definitions and one tuple.

In Tarantool 2.6.0 an UPSERT can move a tuple to another key, by operations that do not look so
(`store.engine.engine`): that is the end of the first key's tuple, and the story of the other one
does not tell where it came from.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Final

from logweir.errors import ErrorCode, PositionUnavailable, RequestError
from logweir.store.commit.applying import APPLIED, apply_row
from logweir.store.engine import ddl
from logweir.store.engine.engine import Engine
from logweir.store.engine.settling import judged, may_wait
from logweir.store.recover.defined import Defined, system_blocks
from logweir.store.recover.loading import applying
from logweir.store.schema.bulk import KeyPlan
from logweir.store.schema.definition import (
    IndexDef,
    SpaceDef,
    SystemSpace,
)
from logweir.store.schema.keys import exact_key
from logweir.store.schema.refused import refused, unsupported
from logweir.wal.columns import RowColumns
from logweir.wal.directory import DirectoryIndex, LogFile, scan_directory
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.follow import Follower
from logweir.wal.lease import leased
from logweir.wal.mp import Value, unpack
from logweir.wal.reader import Block
from logweir.wal.settled import ALL_SETTLED, Settled
from logweir.wal.snapshot import read_snapshot
from logweir.wal.spacenames import SpaceNames
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

BEGIN: Final = "SNAPSHOT"
"""The kind of the first entry of a story: what the snapshot holds, at which it begins."""

_DEFINING: Final = frozenset(ddl.DEFINING)
_BY_KEY: Final = frozenset((RowType.UPDATE, RowType.DELETE))


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a key. `type_name`: INSERT, REPLACE, UPDATE, UPSERT or DELETE, as it is logged;
    TRUNCATE and DROP where its space was emptied or removed; SNAPSHOT for the begin, which is no
    change. `tuple`: what is there after it, None for none; `vclock`: the position after its
    transaction; `replica_id`, `lsn`, `timestamp`: of the row, the last in seconds since the epoch;
    a SNAPSHOT has none of them."""

    type_name: str
    tuple: tuple[Value, ...] | None
    vclock: VClock
    replica_id: int | None = None
    lsn: int | None = None
    timestamp: float | None = None


def history(
    path: Path,
    space_id: int,
    key: bytes,
    blocks: Callable[[VClock], AbstractContextManager[Iterable[Block]]],
    *,
    after: VClock | None,
    limit: int | None,
    end: VClock | None,
    filesystem: FileSystem,
) -> Iterator[Change]:
    """The changes of one key behind a position, oldest first: see the module.

    `key`: the MsgPack array of its parts; `blocks`: gives those of the log behind a position;
    `after`: None for all, which begin with what the oldest snapshot holds; `limit`: it ends with
    the transaction in which so many changes were given, that begin not counted; `end`: the
    position of the log, where it is known: nothing behind it is told.

    Raises `PositionUnavailable` if no snapshot at or before `after` is left, `after` is behind the
    end, or the key was made of other fields there; `RequestError` if there was no such space, or
    the key fits no tuple of it; and what reading raises. Until it ends no log that stands now is
    removed.
    """
    with leased(path):
        snap = _begin(scan_directory(path, filesystem), after, end)
        story = _Story(space_id, key)
        story.begin(snap.path, filesystem)
        if after is None:
            yield Change(BEGIN, story.row, snap.vclock)
        given, last = 0, None
        with blocks(snap.vclock) as found:
            for change in _changes(story, snap.vclock, found, after, end):
                if limit is not None and given >= limit and change.vclock != last:
                    return
                yield change
                given, last = given + 1, change.vclock
        story.check()


def folder_history(
    path: Path,
    space: int | str,
    key: bytes,
    *,
    after: VClock | None,
    limit: int | None,
    filesystem: FileSystem = OS,
) -> Iterator[Change]:
    """`history` of a folder, which may be in use: what its writer has not synced yet is told, too,
    but of what is written meanwhile only what stands in the newest file that there was.

    `space`: an id, or the name that it had last. Raises `WalError` if there is no store, and why
    what there is cannot be used."""
    with leased(path):
        index = scan_directory(path, filesystem)
        newest = index.newest_snap()
        if newest is None:
            raise index.unusable()
        space_id = space if isinstance(space, int) else _named(space, newest, path, filesystem)

        waits = may_wait(path, filesystem)

        def settled(position: VClock) -> Settled:
            return judged(path, position, filesystem) if waits else ALL_SETTLED

        @contextmanager
        def blocks(start: VClock) -> Iterator[Iterable[Block]]:
            with Follower(path, start, filesystem=filesystem, settled=settled) as follower:
                yield follower.poll()

        yield from history(
            path, space_id, key, blocks, after=after, limit=limit, end=None, filesystem=filesystem
        )


def _named(name: str, newest: LogFile, path: Path, filesystem: FileSystem) -> int:
    """The id of the space that had a name last, by the newest snapshot and the log behind it.
    Raises `RequestError`."""
    names = SpaceNames()
    for block in system_blocks(newest.path, filesystem):
        names.learn(block.columns)
    with Follower(path, newest.vclock, filesystem=filesystem) as follower:
        for block in follower.poll():
            names.learn(block.columns)
    found = [space_id for space_id, known in names.items() if known == name]
    if not found:
        raise refused(ErrorCode.NO_SUCH_SPACE, space=name)
    return found[-1]


def _begin(index: DirectoryIndex, after: VClock | None, end: VClock | None) -> LogFile:
    """The snapshot to begin at: the newest that `after` covers, the oldest without it. The log
    goes on behind it."""
    usable = [snap for snap in index.snaps if index.xlogs_after(snap.vclock)]
    if not index.xlogs:
        usable = index.snaps[-1:]  # what came between two of them is not there
    wanted = usable[:1]
    hint = "no older snapshot tells what was there before: begin at this one"
    if after is not None:
        wanted = [snap for snap in usable if after.covers(snap.vclock)][-1:]
        if end is not None and not end.covers(after):
            wanted, hint = [], "that position is not reached yet"
    if wanted:
        return wanted[0]
    raise _unavailable(after, usable[0].vclock if usable else "nothing", end, hint)


def _unavailable(
    wanted: VClock | None, oldest: object, end: VClock | None, hint: str
) -> PositionUnavailable:
    newest = "the newest row" if end is None else end
    return PositionUnavailable(VClock() if wanted is None else wanted, oldest, newest, hint=hint)


def _changes(
    story: _Story, start: VClock, blocks: Iterable[Block], after: VClock | None, end: VClock | None
) -> Iterator[Change]:
    lsns = array("Q", start.lsns())
    known = VClock() if after is None else after
    for block in blocks:
        columns = block.columns
        reached = 0
        for row, kind in story.take(block):
            if kind is None:
                hint = "the primary key of the space was altered there: a snapshot behind it begins"
                at = VClock.of_lsns(lsns).with_lsn(columns.replica_id[row], columns.lsn[row])
                raise _unavailable(start, at, end, hint)
            ends = columns.transaction_ends()
            ended = ends[bisect_right(ends, row)]
            for each in range(reached, ended):
                lsns[columns.replica_id[each]] = columns.lsn[each]
            reached = max(reached, ended)
            replica_id, lsn = columns.replica_id[row], columns.lsn[row]
            if lsn > known.lsn(replica_id) and (end is None or lsn <= end.lsn(replica_id)):
                time = columns.timestamp[row]
                yield Change(kind, story.row, VClock.of_lsns(lsns), replica_id, lsn, time)
        columns.raise_lsns(lsns)
        if end is not None and VClock.of_lsns(lsns).covers(end):
            return


class _Story:
    """One key of one space, and the definitions, at a place of the log."""

    def __init__(self, space_id: int, key: bytes) -> None:
        self._space_id = space_id
        self._key = key
        self._defined = Defined()
        self._engine = self._defined.engine
        self._txn = self._defined.txn
        self._space: SpaceDef | None = None
        self._plans: tuple[KeyPlan, KeyPlan] | None = None  # of tuples, of keys
        self._image: bytes | None = None  # of the key; None if it fits no tuple
        self._refused: RequestError | None = refused(ErrorCode.NO_SUCH_SPACE, space=space_id)
        self._data: bytes | None = None

    @property
    def row(self) -> tuple[Value, ...] | None:
        """The tuple."""
        return None if self._data is None else tuple(unpack(self._data))

    def check(self) -> None:
        """Raise `RequestError` if there was no space, or the key fits no tuple of it."""
        if self._refused is not None:
            raise self._refused

    def begin(self, path: Path, filesystem: FileSystem) -> None:
        """Take the definitions and the tuple of a snapshot."""
        self._defined.begin(path, filesystem)
        self._learn()
        is_there = False
        for block in read_snapshot(path, filesystem) if self._image is not None else ():
            spaces = block.columns.space_id.tolist()
            for row in self._matching(block.columns, spaces, 0, len(spaces)):
                self._data = block.columns.tuple_bytes(row)
                return
            if is_there and self._space_id not in spaces:
                return
            is_there = is_there or self._space_id in spaces

    def take(self, block: Block) -> Iterator[tuple[int, str | None]]:
        """Go along with the rows of a block. Yields each that changes the key, and how, but none
        that found nothing and left it so; the tuple is what it is after it. None in the place of
        how: from that row on the key is made of something else. Raises `CorruptBlock`."""
        columns = block.columns
        spaces = columns.space_id.tolist()
        if self._space_id not in spaces and _DEFINING.isdisjoint(spaces):
            return
        first = 0
        for at in (*(row for row, one in enumerate(spaces) if one in _DEFINING), len(spaces)):
            for row in self._matching(columns, spaces, first, at):
                before = self._data
                self._change(block, row)
                if before is not None or self._data is not None:
                    yield row, RowType(columns.type[row]).name
            if at < len(spaces) and columns.type[at] in APPLIED:
                is_ours = bool(self._matching(columns, spaces, at, at + 1))
                space, before = self._space, self._data
                self._define(block, at)
                if not _is_same_key(space, self._space):
                    yield at, None
                if is_ours:
                    yield at, RowType(columns.type[at]).name
                elif self._data != before:
                    yield at, "TRUNCATE" if spaces[at] == SystemSpace.TRUNCATE else "DROP"
            first = at + 1

    def _matching(
        self, columns: RowColumns, spaces: Sequence[int], first: int, last: int
    ) -> list[int]:
        """Which of the rows first … last - 1 change the key."""
        if self._plans is None or self._image is None:
            return []
        by_tuple: list[int] = []
        by_key: list[int] = []
        kinds = columns.type.tolist()
        for row in range(first, last):
            if spaces[row] == self._space_id and kinds[row] in APPLIED:
                (by_key if kinds[row] in _BY_KEY else by_tuple).append(row)
        by_key = [row for row in by_key if not columns.index_id(row)]  # else it found nothing
        given = (by_tuple, columns.tuple_span), (by_key, columns.key_span)
        return sorted(
            row
            for plan, (rows, spans) in zip(self._plans, given, strict=True)
            for row in _with_image(plan, columns.data, rows, spans, self._image)
        )

    def _change(self, block: Block, row: int) -> None:
        """Apply a row to the tuple, in a layer that holds no other."""
        assert self._image is not None
        layer = self._txn.child()
        tree = layer.tree(self._space_id, 0)
        assert tree is not None
        if self._data is not None:
            tree.put(self._image, self._data)
        self._apply(Engine(layer, self._engine.schema, self._engine.plans), block, row)
        self._data = tree.get(self._image)

    def _define(self, block: Block, row: int) -> None:
        """Apply a row that defines something; the tuple is there meanwhile."""
        is_system = self._space_id in _DEFINING
        image = self._image
        if self._data is not None and image is not None and not is_system:
            self._txn.load(self._space_id, 0, [(image, self._data)])
        self._apply(self._engine, block, row)
        tree = self._txn.tree(self._space_id, 0)
        assert tree is not None
        self._data = None if image is None else tree.get(image)
        self._learn()
        if not is_system:
            indexes = () if self._space is None else self._space.indexes[1:]
            for index_id in (0, *(index.id for index in indexes)):
                self._txn.drop(self._space_id, index_id)
        self._txn.forget()

    def _apply(self, engine: Engine, block: Block, row: int) -> None:
        with applying(block, block.columns, row):
            apply_row(engine, block.columns, row)

    def _learn(self) -> None:
        """See what the space is now, and what the key is there."""
        space = self._engine.schema.get(self._space_id)
        if space is self._space:
            return
        self._space, self._plans, self._image = space, None, None
        if space is None or space.primary is None:
            return
        if space.engine != "memtx":
            text = f"tuples of engine {space.engine} are not in snapshots: they have no history"
            raise unsupported(text)
        try:
            self._image = exact_key(self._key, space.primary)
        except RequestError as error:
            self._refused = error
            return
        self._refused = None
        plan = self._engine.plans.get(space, space.primary, check=False)
        self._plans = plan, _plan_of_keys(space, space.primary)


def _plan_of_keys(space: SpaceDef, primary: IndexDef) -> KeyPlan:
    """The plan that makes of a key, as UPDATE and DELETE have it, what the other makes of tuples:
    that of a space whose tuples are the keys."""
    parts = tuple(replace(part, field_no=at, path=None) for at, part in enumerate(primary.parts))
    index = replace(primary, parts=parts, sort_parts=parts)
    keys = SpaceDef(space.id, space.owner, space.name, indexes=(index,))
    return KeyPlan(keys, index, check=False)


def _with_image(
    plan: KeyPlan, data: bytes, rows: Sequence[int], spans: Sequence[int], image: bytes
) -> Iterator[int]:
    """Those of some rows whose part at its span has that key."""
    if not rows:
        return
    pieces = [data[spans[row] & 0xFFFFFFFF : spans[row] >> 32] for row in rows]
    found = plan.keys(b"".join(pieces), array("Q", accumulate(map(len, pieces), initial=0)))
    at = found.data.find(image)
    while at >= 0:
        number = bisect_left(found.bounds, at)
        if found.bounds[number] == at and found.bounds[number + 1] == at + len(image):
            yield rows[number]
        at = found.data.find(image, at + 1)


def _is_same_key(before: SpaceDef | None, after: SpaceDef | None) -> bool:
    """Whether two definitions of a space, one behind the other, make the key of the same fields."""
    if before is None or after is None or before.primary is None or after.primary is None:
        return True
    parts = before.primary.parts, after.primary.parts
    one, other = ([(part.place, part.order) for part in index] for index in parts)
    return one == other
