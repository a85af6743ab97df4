"""What a store has to offer as Synapse streams, and its rows as RDATA lines.

Two kinds of streams:

* *relayed*: a stream that was ingested (`logweir.replication.synapse.follow.ingest`), under its own
  name, with the writers, tokens and rows that it had. Its position is the one of the upstream.
* *a space*: any other space of users (none of `logweir_…`), under its name, percent-encoded but for
  `A-Z a-z 0-9 _ - .`; if a relayed stream has that name, under `space:<name>`.
  The writer is `logweir`, the token of a transaction its signature (the sum of the vclock after
  it), which rises row by row. What a row is says docs/synapse.md; of JSON without binary, NaN or
  extensions see `codec.row_json`.

The rows of a transaction are one unit: `batch` but for the last. D1 has no writers: of a relayed
stream it gets the rows of the main process only. A stream whose tokens began anew is told with a
POSITION of 0 before its next row; rows of earlier epochs are no longer served.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final

from logweir.errors import RequestError
from logweir.limits import SYNAPSE_CATCH_UP_BYTES, SYNAPSE_CATCH_UP_ROWS, SYNAPSE_LINE_BYTES
from logweir.replication.logs import get_logger
from logweir.replication.outgoing.shape import (
    OPS,
    STREAM_PREFIX,
    Entry,
    Shape,
    Stamp,
    is_relayed,
)
from logweir.replication.stream import positions
from logweir.replication.synapse.follow.ingest import (
    SOURCE_PREFIX,
    source_name,
    stream_space,
)
from logweir.replication.synapse.wire.codec import (
    Dialect,
    Position,
    Rdata,
    decode_row_value,
    encode,
    instance_label,
    read_label,
    row_text,
    stream_of_space,
)
from logweir.replication.synapse.wire.rows import (
    Writer,
    change_text,
    inserted,
    is_run,
    json_text,
)
from logweir.store import Log
from logweir.store.engine.engine import key_of
from logweir.store.engine.request import ITERATORS
from logweir.store.engine.select import Select, pieces
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.schema import Schema
from logweir.store.view import ReadView, get
from logweir.wal import kernel as rows_kernel
from logweir.wal.columns import RowColumns
from logweir.wal.directory import scan_directory
from logweir.wal.mp import pack, unpack
from logweir.wal.reader import Block
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

_log = get_logger("logweir.replication.synapse")

MASTER: Final = "master"
OWN_INSTANCE: Final = "logweir"
_ASIDE: Final = "space:"
_FIRST_USER_SPACE: Final = 512
_GREATER: Final = ITERATORS.index("GT")
_STATE_ROWS: Final = 100  # are about a millisecond's work
_BY_OPERATIONS: Final = frozenset((RowType.UPDATE, RowType.UPSERT))


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream that is served. `relayed`: with an upstream's tokens."""

    name: str
    space_id: int
    relayed: bool


@dataclass(frozen=True, slots=True)
class Delivery:
    """Units of one writer on their way to followers.

    `signature`: of the log after the transaction of the last, `first_signature`: of the first;
    `token`: of the last; `epoch`: of a relayed stream's tokens; `lines`: RDATA lines with LF. With
    a line above the limit, as `longest` tells, it holds one unit.
    """

    stream: str
    instance: str
    epoch: int
    token: int
    signature: int
    lines: bytes
    longest: int
    first_signature: int


@dataclass(slots=True)
class _Reached:
    """How far a run of the log was read: lsn per replica id, and the signature."""

    lsns: dict[int, int]
    signature: int

    @classmethod
    def at(cls, start: VClock) -> _Reached:
        """That position."""
        return cls(dict(start), start.signature)


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Of several transactions: tuples and signatures by stream and label; units by space. `table`:
    the streams that are wanted, by space."""

    table: Mapping[int, Stream]
    relayed: dict[tuple[str, bytes], tuple[list[bytes], array[int]]] = field(default_factory=dict)
    spaces: dict[str, list[Delivery]] = field(default_factory=dict)

    def insert(self, stream: str, tuples: list[bytes], signatures: array[int]) -> None:
        """Tuples of a relayed stream, all with the same label."""
        flow = (stream, tuples[0][1 : rows_kernel.skip(tuples[0], 1)])
        known, numbers = self.relayed.setdefault(flow, ([], array("Q")))
        known += tuples
        numbers += signatures


class Streams:
    """The streams of one store, in one dialect. `enveloped`: rows of spaces are envelopes."""

    def __init__(self, log: Log, dialect: Dialect, *, enveloped: bool = False) -> None:
        self._log = log
        self._enveloped = enveloped
        self.dialect = dialect
        self._schema: Schema | None = None
        self._by_space: dict[int, Stream] = {}
        self._by_name: dict[str, Stream] = {}
        self._heads: dict[str, dict[str, tuple[int, int]]] = {}
        self._heads_at = -1
        self._writer = Writer()
        self.on_taken: Callable[[Set[str]], None] = lambda names: None
        """Called with the names that mean another kind of stream than before."""

    def all(self) -> Sequence[Stream]:
        """Every stream now, those without rows too."""
        return tuple(self._table().values())

    def get(self, name: str) -> Stream | None:
        """One stream by its name."""
        self._table()
        return self._by_name.get(name)

    def server_name(self) -> str:
        """The name of the server whose streams are relayed; "" if it is none, or several."""
        if self._log.schema.get(positions.POSITION_SPACE) is None:
            return ""
        rows = self._log.select(positions.POSITION_SPACE)
        names = {
            str(row[0]).removeprefix(SOURCE_PREFIX).partition("#")[0]
            for row in rows
            if str(row[0]).startswith(SOURCE_PREFIX)
        }
        return names.pop() if len(names) == 1 else ""

    def _table(self) -> dict[int, Stream]:
        schema = self._log.schema
        if schema is not self._schema:
            self._schema = schema
            self._name(
                space
                for space in schema
                if space.id >= _FIRST_USER_SPACE
                and not space.is_temporary
                and not space.is_local
                and not space.is_view
                and space.primary is not None
                and not space.name.startswith(positions.OWN_PREFIX)
            )
        return self._by_space

    def _name(self, spaces: Iterable[SpaceDef]) -> None:
        """Give each its stream; a relayed one keeps its name, and a space makes way for it."""
        found = [_stream_of(space) for space in spaces]
        relayed = {stream.name for stream in found if stream.relayed}
        before = self._by_name
        for at, stream in enumerate(found):
            if not stream.relayed and stream.name in relayed:
                found[at] = replace(stream, name=_ASIDE + stream.name)
                if found[at].name not in before:
                    _log.warning("synapse.names_meet", stream=stream.name, space=found[at].name)
        self._by_name = {stream.name: stream for stream in found}
        self._by_space = {stream.space_id: stream for stream in found}
        taken = {
            name
            for name in before.keys() & self._by_name.keys()
            if before[name].relayed != self._by_name[name].relayed
        }
        if taken:
            self.on_taken(taken)

    # --- where they stand -------------------------------------------------------------------------

    def heads(self, view: ReadView, stream: Stream) -> list[tuple[str, int, int]]:
        """(writer, epoch, token) of a stream as of a view; of a space its only writer."""
        if not stream.relayed:
            return [(OWN_INSTANCE, 1, view.vclock.signature)]
        found = self._sources(view).get(view.engine.schema.space(stream.space_id).name, {})
        if self.dialect is Dialect.D1:
            epoch, token = found.get(MASTER, (1, 0))
            return [(MASTER, epoch, token)]
        return [(instance, *head) for instance, head in sorted(found.items())]

    def _sources(self, view: ReadView) -> Mapping[str, Mapping[str, tuple[int, int]]]:
        """Space → writer → (epoch, token) of all that is followed, as of a view."""
        signature = view.vclock.signature
        if signature != self._heads_at:
            self._heads, self._heads_at = {}, signature
            if view.engine.schema.get(positions.POSITION_SPACE) is not None:
                for packed in view.tuples(view.engine.schema.space(positions.POSITION_SPACE)):
                    source, stream, instance, tokens, _ = unpack(packed)
                    if source.startswith(SOURCE_PREFIX):
                        filled = stream_space(stream, source_name(source))
                        head = (tokens.get("epoch", 1), tokens["last"])
                        self._heads.setdefault(filled, {})[instance] = head
        return self._heads

    def stored(
        self, view: ReadView, stream: Stream, instance: str, epoch: int, after: int
    ) -> list[Delivery]:
        """Units of a relayed stream with tokens after `after`, a page of them; none at the end.

        One delivery holds many units, but for those with a line that is too long.
        """
        found, _ = self._tuples(view, stream, instance, epoch, after, SYNAPSE_CATCH_UP_ROWS)
        signatures = array("Q", bytes(8 * len(found)))
        return list(self._deliver(stream.name, instance, epoch, found, signatures))

    def stored_units(
        self, view: ReadView, stream: Stream, instance: str, epoch: int, after: int, limit: int
    ) -> tuple[list[tuple[int, list[str]]], bool]:
        """The same as tokens with their rows as JSON, about `limit` rows, and whether they are the
        last. Every unit is whole."""
        units: dict[int, list[str]] = {}
        found, is_end = self._tuples(view, stream, instance, epoch, after, limit)
        for packed in found:
            _, token, _, row = decode_row_value(packed)
            units.setdefault(token, []).append(self._text(row))
        return list(units.items()), is_end

    def _tuples(
        self, view: ReadView, stream: Stream, instance: str, epoch: int, after: int, limit: int
    ) -> tuple[list[bytes], bool]:
        """Tuples of whole units after `after`, and whether they are the last."""
        label = instance_label(instance, epoch)
        front = b"\x94" + pack(label)
        tree = view.engine.txn.tree(stream.space_id, 0)
        if tree is None:
            return [], True
        wanted = Select.of(view.engine.schema, stream.space_id, [label, after + 1], iterator="GE")
        limit_bytes = SYNAPSE_CATCH_UP_BYTES
        while True:
            found, is_end = tree.values(wanted.image, limit, limit_bytes)
            if not found or not found[-1].startswith(front):
                return found[
                    : bisect_left(found, True, key=lambda one: one[: len(front)] != front)
                ], True
            if is_end:
                return found, True
            last = found[-1]
            unit = last[: rows_kernel.skip(last, len(front))]
            whole = len(found) - 1
            while whole and found[whole - 1].startswith(unit):
                whole -= 1
            if whole:
                return found[:whole], False
            limit, limit_bytes = 4 * limit, 4 * limit_bytes  # one unit is larger than a page

    def vclock_at(self, signature: int) -> VClock:
        """A position of the log at or before `signature`."""
        files = scan_directory(self._log.path, self._log.inner.filesystem).xlogs
        older = [file.vclock for file in files if file.vclock.signature <= signature]
        return older[-1] if older else self._log.oldest_position

    def state(
        self, view: ReadView, stream: Stream, after: bytes | None
    ) -> tuple[list[str], bytes | None]:
        """Rows of a space after a key, for one turn; and the last key, None at the end."""
        schema = view.engine.schema
        shape = _shape(schema, stream)
        limit = _STATE_ROWS if shape.is_stored else 1  # a bundle may hold as many
        if after is None:
            wanted = Select.of(schema, stream.space_id, None, limit=limit)
        else:
            wanted = Select.packed(schema, stream.space_id, after, _GREATER, limit=limit)
        found = next(filter(None, (one.tuples() for one in pieces(view.engine, wanted))), ())
        entries = [entry for packed in found for entry in shape.entries(packed)]
        texts = [self._change(shape, entry, Stamp(), None) for entry in entries]
        return texts, key_of(shape.primary, found[-1]) if found else None

    # --- rows of the log --------------------------------------------------------------------------

    def deliveries(
        self, start: VClock, blocks: Iterable[Block], only: Stream | None = None
    ) -> list[Delivery]:
        """The units of the log after `start`, those of a stream together. `only`: of that one."""
        gathered, reached = _Gathered(self._wanted(only)), _Reached.at(start)
        for block in blocks:
            if not self._take_run(block.columns, reached, gathered):
                for signature, columns, first, last in _new(reached, block, gathered.table):
                    self._gather(columns, first, last, signature, gathered)
        return list(self._gathered(gathered))

    def units(
        self, start: VClock, blocks: Iterable[Block], only: Stream | None = None
    ) -> Iterator[Delivery]:
        """The same, each transaction by itself."""
        reached, table = _Reached.at(start), self._wanted(only)
        for block in blocks:
            for signature, columns, first, last in _new(reached, block, table):
                gathered = _Gathered(table)
                self._gather(columns, first, last, signature, gathered)
                yield from self._gathered(gathered)

    def _gather(
        self, columns: RowColumns, first: int, last: int, signature: int, gathered: _Gathered
    ) -> None:
        changes: dict[str, list[str]] = {}
        for i in range(first, last):
            stream = gathered.table.get(columns.space_id[i])
            if stream is None or columns.type[i] not in OPS:
                continue
            if not stream.relayed:
                changes.setdefault(stream.name, []).extend(self._texts(columns, i, stream))
            elif columns.type[i] == RowType.INSERT:
                packed = columns.tuple_bytes(i)
                assert packed is not None
                gathered.insert(stream.name, [packed], array("Q", (signature,)))
        for name, texts in changes.items():
            if texts:
                unit = self._delivery(name, OWN_INSTANCE, 1, signature, signature, texts)
                gathered.spaces.setdefault(name, []).append(unit)

    def _texts(self, columns: RowColumns, i: int, stream: Stream) -> list[str]:
        """What a row of a space is told as."""
        shape = _shape(self._log.schema, stream)
        op, key, ops = RowType(columns.type[i]), columns.key_bytes(i), columns.ops_bytes(i)
        packed = columns.tuple_bytes(i)
        if not shape.tells(op):
            return []
        stamp = Stamp(OPS[op], columns.timestamp[i], columns.replica_id[i], columns.lsn[i])
        if packed is not None and op not in _BY_OPERATIONS:
            entries = shape.entries(packed)
        else:
            if key is None and packed is not None:
                key = key_of(shape.primary, packed)
            packed = self._stands(stream.space_id, key) if op in _BY_OPERATIONS else None
            entries = [Entry(key or b"\xc0", packed)]
        return [self._change(shape, entry, stamp, ops) for entry in entries]

    def _change(self, shape: Shape, entry: Entry, stamp: Stamp, ops: bytes | None) -> str:
        if self._enveloped:
            return shape.envelope(entry, stamp, json_text)
        return change_text(entry, stamp, ops)

    def _stands(self, space_id: int, key: bytes | None) -> bytes | None:
        """The tuple that stands under a key now."""
        with contextlib.suppress(RequestError), self._log.read_view() as view:
            return None if key is None else get(view.engine, space_id, unpack(key))
        return None  # the space is another one, or gone

    def _wanted(self, only: Stream | None) -> Mapping[int, Stream]:
        table = self._table()
        return {i: one for i, one in table.items() if only is None or i == only.space_id}

    def _take_run(self, columns: RowColumns, reached: _Reached, gathered: _Gathered) -> bool:
        """A block that goes on where the one before ended, all its rows in compiled loops; False
        if it does not."""
        if not len(columns):
            return True
        replica_id, lsn = columns.replica_id[0], columns.lsn[0]
        before = reached.lsns.get(replica_id, 0)
        if lsn != before + 1 or not is_run(columns):
            return False
        ends = columns.transaction_ends()
        missing = reached.signature - before
        for space_id in set(columns.space_id.tolist()) & gathered.table.keys():
            stream = gathered.table[space_id]
            if stream.relayed:
                for tuples, signatures in inserted(columns, ends, space_id, missing):
                    gathered.insert(stream.name, tuples, signatures)
            else:
                self._gather_changes(columns, ends, stream, missing, gathered)
        reached.lsns[replica_id] = before + len(columns)
        reached.signature += len(columns)
        return True

    def _gather_changes(
        self, columns: RowColumns, ends: memoryview, stream: Stream, missing: int, to: _Gathered
    ) -> None:
        shape = _shape(self._log.schema, stream)
        parts = shape.primary.parts
        fields = array("Q", (part.field_no for part in parts))
        is_plain = shape.is_stored and not (self._enveloped or any(part.steps for part in parts))
        name = stream.name
        head = self._head(name, OWN_INSTANCE).encode()
        units = to.spaces.setdefault(name, [])
        only = replace(to, table={stream.space_id: stream})
        at = 0
        while at < len(ends):
            reached, made = at, None
            if is_plain:
                reached, made = self._writer.change_lines(
                    columns, ends, at, stream.space_id, fields, missing, head
                )
            if made is not None:
                where = (name, OWN_INSTANCE, 1, made.last, made.last)
                units.append(Delivery(*where, made.data, 0, made.first))
            if reached == at:
                signature = missing + columns.lsn[ends[at] - 1]
                first = ends[at - 1] if at else 0
                self._gather(columns, first, ends[at], signature, only)
                reached += 1
            at = reached

    def _gathered(self, gathered: _Gathered) -> Iterator[Delivery]:
        for (name, label), (tuples, signatures) in gathered.relayed.items():
            instance, epoch = read_label(unpack(label))
            if self.dialect is not Dialect.D1 or instance == MASTER:
                yield from self._deliver(name, instance, epoch, tuples, signatures)
        for units in gathered.spaces.values():
            fitting: list[Delivery] = []
            for unit in units:
                if unit.longest <= SYNAPSE_LINE_BYTES:
                    fitting.append(unit)
                    continue
                yield from _joined(fitting)
                fitting = []
                yield unit
            yield from _joined(fitting)

    def _deliver(
        self, name: str, instance: str, epoch: int, tuples: list[bytes], signatures: Sequence[int]
    ) -> Iterator[Delivery]:
        """Tuples of a relayed stream as lines. `signatures`: of each one's transaction."""
        label, head = instance_label(instance, epoch), self._head(name, instance)
        for piece in self._writer.lines(tuples, label, head, spaced=self.dialect is Dialect.D1):
            if isinstance(piece, slice):
                values = [decode_row_value(one) for one in tuples[piece]]
                signature, token = signatures[piece.start], values[0][1]
                texts = [self._text(value[3]) for value in values]
                yield self._delivery(name, instance, epoch, token, signature, texts)
                continue
            first, last = signatures[piece.first], signatures[piece.last]
            token = decode_row_value(tuples[piece.last])[1]
            yield Delivery(name, instance, epoch, token, last, piece.data, 0, first)

    def _head(self, stream: str, instance: str) -> str:
        return f"RDATA {stream} " + ("" if self.dialect is Dialect.D1 else instance + " ")

    def _text(self, value: Any) -> str:
        return row_text(value, spaced=self.dialect is Dialect.D1)

    def _delivery(
        self, stream: str, instance: str, epoch: int, token: int, signature: int, rows: list[str]
    ) -> Delivery:
        head = self._head(stream, instance)
        made = [f"{head}batch {text}\n" for text in rows[:-1]]
        made.append(f"{head}{token} {rows[-1]}\n")
        longest, data = len(max(made, key=len)) - 1, "".join(made).encode()
        return Delivery(stream, instance, epoch, token, signature, data, longest, signature)

    def first_position(self, unit: Delivery) -> bytes:
        """POSITION of a writer that has written nothing before that unit."""
        stream = self.get(unit.stream)
        before = 0 if stream is None or stream.relayed else unit.first_signature - 1
        return encode(Position(unit.stream, unit.instance, 0, before), self.dialect)

    def position_line(self, stream: Stream, instance: str, token: int) -> bytes:
        """POSITION of a stream."""
        return encode(Position(stream.name, instance, token, token), self.dialect)

    def row_line(self, stream: Stream, token: int | None, text: str) -> bytes:
        """RDATA of a space. Raises `LimitExceeded` if it is too long."""
        return encode(Rdata(stream.name, OWN_INSTANCE, token, text), self.dialect)


def _new(
    reached: _Reached, block: Block, table: Mapping[int, Stream]
) -> Iterator[tuple[int, RowColumns, int, int]]:
    """Transactions that may be for us: signature, and where their rows are."""
    lsns, columns = reached.lsns, block.columns
    spaces, lsn, who = columns.space_id, columns.lsn, columns.replica_id
    for first, last in columns.transactions():
        for i in range(first, last):
            reached.signature += lsn[i] - lsns.get(who[i], 0)
            lsns[who[i]] = lsn[i]
        if last - first == 1 and spaces[first] not in table:
            continue
        yield reached.signature, columns, first, last


def _shape(schema: Schema, stream: Stream) -> Shape:
    space = schema.space(stream.space_id)
    assert space.primary is not None
    return Shape(space, space.primary)


def _stream_of(space: SpaceDef) -> Stream:
    if is_relayed(space):
        return Stream(space.name.removeprefix(STREAM_PREFIX), space.id, True)
    return Stream(stream_of_space(space.name), space.id, False)


def _joined(units: Sequence[Delivery]) -> Iterator[Delivery]:
    """Units of one stream that follow one another, as one delivery; none of none."""
    if len(units) < 2:
        yield from units
        return
    yield replace(
        units[-1],
        lines=b"".join([unit.lines for unit in units]),
        longest=max(unit.longest for unit in units),
        first_signature=units[0].first_signature,
    )
