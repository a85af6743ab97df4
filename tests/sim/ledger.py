"""What clients of a store did, what they were told, and whether the log and the store say the same.

The log gives the order. Each transaction in it must be one that a client made, whole; each change
that was acknowledged must be in it, none that was refused; no change may come before one that had
ended when it began. Behind each transaction the ledger knows what the space holds: statements must
have answered what they answer there, and whoever looked must have seen one of these contents, none
older than what had been acknowledged, or seen by others, before.

Without a log (durability "none") the order is that in which the store published its transactions,
and behind a crash it holds a beginning of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import logweir
from logweir.store.schema.definition import SystemSpace
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType, Transaction

__all__ = ["Content", "Ledger", "Look", "Operation", "Statement", "Tuple"]

Tuple = tuple[int, int, int, str]
"""Key, number of the statement that wrote it last, how often it was updated, a text."""
Content = dict[int, Tuple]

SPACE: Final = "t"
FORMAT: Final = [
    ("id", "unsigned"),
    ("token", "unsigned"),
    ("count", "unsigned"),
    ("text", "string"),
]
USER_SPACES: Final = 512
TOLD_NOTHING: Final = object()
REFUSED: Final = object()
_KINDS: Final = {
    "insert": RowType.INSERT,
    "replace": RowType.REPLACE,
    "update": RowType.UPDATE,
    "upsert": RowType.UPSERT,
    "delete": RowType.DELETE,
}


@dataclass(eq=False)
class Statement:
    """One statement. `token`: its number; `told`: what it answered."""

    kind: str
    key: int
    token: int
    text: str = ""
    told: Any = TOLD_NOTHING

    def apply(self, content: Content) -> tuple[Any, bool]:
        """Make it. What it answers, and whether it is logged."""
        old = content.get(self.key)
        if self.kind == "get":
            return old, False
        if self.kind == "insert" and old is not None:
            return REFUSED, False
        if self.kind in ("update", "delete") and old is None:
            return None, True  # as Tarantool logs it
        if self.kind == "delete":
            del content[self.key]
            return old, True
        if old is not None and self.kind in ("update", "upsert"):
            new = (self.key, self.token, old[2] + 1, old[3])
        else:
            new = (self.key, self.token, 0, self.text)
        content[self.key] = new
        return (None if self.kind == "upsert" else new), True

    @property
    def tuple(self) -> Tuple:
        """What it inserts."""
        return self.key, self.token, 0, self.text

    @property
    def ops(self) -> list[Any]:
        """What it updates."""
        return [("=", 1, self.token), ("+", 2, 1)]

    @property
    def body(self) -> dict[str, Any]:
        """What the log says of it, decoded."""
        if self.kind == "delete":
            return {"key": [self.key]}
        if self.kind == "update":
            return {"key": [self.key], "ops": [list(one) for one in self.ops]}
        body: dict[str, Any] = {"tuple": list(self.tuple)}
        if self.kind == "upsert":
            body["ops"] = [list(one) for one in self.ops]
        return body


@dataclass(eq=False)
class Operation:
    """Statements of one call of a client. `begin`, `end`: steps of the schedule, `end` None while
    it lasts; `outcome`: "made", "refused", "failed" (nothing of it was done) or "unknown"; `units`:
    whether each statement is a transaction of its own; `places`: where its transactions stood."""

    client: str
    statements: list[Statement]
    begin: int
    units: bool = False
    end: int | None = None
    outcome: str = "unknown"
    places: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        made = ", ".join(f"{one.kind} {one.key} #{one.token}" for one in self.statements)
        return f"{self.client} [{self.begin}…{self.end}] {made}: {self.outcome}"


@dataclass(eq=False)
class Look:
    """What somebody saw between two steps. `holds`: whether a content may have looked so;
    `signature`: of the position that it was of, None: not known."""

    client: str
    what: str
    begin: int
    end: int
    holds: Callable[[Content], bool]
    signature: int | None = None


@dataclass(eq=False)
class _Place:
    """Behind a transaction. `begin`: of the operation that made it."""

    signature: int
    begin: int
    content: Content


class Ledger:
    """See the module. `content`: behind all that was settled, up to `position`."""

    def __init__(self) -> None:
        self.content: Content = {}
        self.position = VClock()
        self.operations: list[Operation] = []
        self.looks: list[Look] = []
        self.followed: dict[int, bytes] = {}
        """What followers were told: bodies of rows, by their lsn."""
        self.spaces: dict[str, set[bool]] = {}
        """Whether a space of that name is there: what may be."""
        self.names: dict[int, str] = {}
        """The spaces that were there, by id."""
        self.tokens = 0

    def token(self) -> int:
        """The next number of a statement."""
        self.tokens += 1
        return self.tokens

    def settle(
        self, log: logweir.Log, unlogged: Sequence[Transaction] | None = None, safe: int = 0
    ) -> None:
        """Compare all that was done since the last time with a store in which nothing goes on.
        `unlogged`: that, where there is no log of it; the store then holds a beginning of it, up to
        the lsn `safe` at least. Raises `AssertionError`."""
        places = [_Place(self.position.signature, 0, dict(self.content))]
        open_ones = [one for one in self.operations if one.outcome in ("made", "unknown")]
        by_token = {one.token: op for op in open_ones for one in op.statements}
        rows: dict[int, bytes] = {}
        content = dict(self.content)
        lsn, end = self.position.signature, log.vclock.signature
        borders = {lsn}
        # Where that fails, nothing was noted.
        made = list(log.rows(self.position)) if unlogged is None else unlogged
        for transaction in made:
            for row in transaction.rows:
                lsn += 1
                assert row.lsn == lsn, f"row {row.lsn} comes where {lsn} has to"
                rows[lsn] = row.body
            borders.add(lsn)
            if lsn <= end:
                self._learn(transaction)
            if all((row.space_id or 0) <= USER_SPACES - 1 for row in transaction.rows):
                continue
            found = self._made(transaction, by_token, open_ones, content)
            if found is not None:
                found.places.append(lsn)
                places.append(_Place(lsn, found.begin, dict(content)))
        if unlogged is None:
            assert lsn == end, f"the log ends at {lsn}, the store at {log.vclock}"
        else:
            assert safe <= end, f"up to {safe} all was safe, the store ends at {end}"
            assert end in borders, f"the store ends at {end}, within a transaction"
            content = [one.content for one in places if one.signature <= end][-1]
            there = set(self.names.values())
            self.spaces = {name: {name in there} for name in self.spaces}
        self._check_all_there()
        self._check_order()
        self._check_looks(places)
        for number, body in self.followed.items():
            if number > self.position.signature:
                assert rows.get(number) == body, f"row {number} that was followed is another one"
        self.content, self.position = content, log.vclock
        self.operations, self.looks, self.followed = [], [], {}

    def forget_newest(self) -> None:
        """The power went, and what was done since the last time was only written: it need not be
        there."""
        for one in self.operations:
            one.outcome = "unknown" if one.outcome == "made" else one.outcome
        self.looks, self.followed = [], {}
        self.spaces = {name: {True, False} for name in self.spaces}

    def _learn(self, transaction: Transaction) -> None:
        """See which spaces come and go."""
        for row in transaction.rows:
            if row.space_id == SystemSpace.SPACE:
                body = row.decoded()
                if row.type == RowType.DELETE:
                    self.names.pop(body["key"][0], None)
                elif "tuple" in body:
                    self.names[body["tuple"][0]] = body["tuple"][2]

    def check_content(self, log: logweir.Log) -> None:
        """What the store holds is what the ledger says, by every index."""
        self.names = {space.id: space.name for space in log.schema if space.id >= USER_SPACES}
        names = set(self.names.values())
        for name, may_be in self.spaces.items():
            assert (name in names) in may_be, f"space {name!r}: {name in names}"
            self.spaces[name] = {name in names}
        if SPACE not in names:
            assert not self.content
            return
        wanted = [self.content[key] for key in sorted(self.content)]
        assert log.select(SPACE) == wanted
        assert log.count(SPACE) == len(wanted)
        if len(log.schema.space(SPACE).indexes) > 1:
            by_text = sorted(wanted, key=lambda one: (one[3].encode(), one[0]))
            assert log.select(SPACE, index="text") == by_text

    def _made(
        self,
        transaction: Transaction,
        by_token: dict[int, Operation],
        open_ones: list[Operation],
        content: Content,
    ) -> Operation | None:
        """Find who made a transaction of the log, and make it. None: it is about other spaces."""
        wanted = []
        for row in transaction.rows:
            body = row.decoded()
            if body.pop("space_id") == USER_SPACES:
                body.pop("index_base", None)
                wanted.append((row.type, body))
        if not wanted:
            return None
        operation = next(_owners(wanted, by_token, open_ones, content), None)
        assert operation is not None, f"nobody made {wanted}, or only a part of it"
        begin = len(operation.places) if operation.units else 0
        statements = operation.statements[begin : begin + 1 if operation.units else None]
        logged = []
        for one in statements:
            answer, is_logged = one.apply(content)
            if one.told is not TOLD_NOTHING:
                said = f"{operation}: #{one.token} answered {one.told}, not {answer}"
                assert one.told == answer, said
            if is_logged:
                logged.append((_KINDS[one.kind], one.body))
        assert logged == wanted, f"{operation}: {wanted} in the log, not {logged}"
        return operation

    def _check_all_there(self) -> None:
        for one in self.operations:
            if one.outcome != "made" or _changes_nothing(one):
                continue
            count = len(one.statements) if one.units else 1
            assert len(one.places) == count, f"acknowledged and not there: {one}"

    def _check_order(self) -> None:
        newest: Operation | None = None
        there = [one for one in self.operations if one.places]
        for one in sorted(there, key=lambda one: one.places[0]):
            if newest is not None and one.end is not None:
                assert one.end >= newest.begin, f"{newest} comes before {one}"
            if newest is None or one.begin > newest.begin:
                newest = one

    def _check_looks(self, places: list[_Place]) -> None:
        """In the order in which they ended: what one saw the next one that begins sees, too."""
        acknowledged = [
            (one.end, one.places[-1])
            for one in self.operations
            if one.places and one.end is not None and one.outcome == "made"
        ]
        for look in sorted(self.looks, key=lambda look: look.end):
            least = max([at for end, at in acknowledged if end < look.begin], default=0)
            found = next((one for one in places if _fits(one, look, least, places)), None)
            assert found is not None, f"{look.client} [{look.begin}…{look.end}] saw {look.what}"
            acknowledged.append((look.end, found.signature))


def _fits(place: _Place, look: Look, least: int, places: list[_Place]) -> bool:
    if look.signature is not None:
        newest = max(one.signature for one in places if one.signature <= look.signature)
        if place.signature != newest:
            return False
    return place.signature >= least and place.begin <= look.end and look.holds(place.content)


def _owners(
    rows: Iterable[tuple[int, dict[str, Any]]],
    by_token: dict[int, Operation],
    open_ones: list[Operation],
    content: Content,
) -> Iterator[Operation]:
    """Who may have made these rows."""
    keys = []
    for _, body in rows:
        token = body["tuple"][1] if "tuple" in body else body["ops"][0][2] if "ops" in body else 0
        if token:
            if token in by_token:
                yield by_token[token]
            return
        keys.append(body["key"][0])
    waiting = [one for one in open_ones if not one.places]
    alike = [one for one in waiting if _deletes(one, dict(content)) == keys]
    must_be = (one for one in waiting if one.outcome == "made" and not _changes_nothing(one))
    first_end = min((_end(one) for one in must_be), default=math.inf)
    # Of those that nothing tells apart: one that began before the first of the others had ended,
    # and of these the one that has to come first.
    yield from sorted(
        alike, key=lambda one: (one.begin > first_end, one.outcome != "made", _end(one))
    )


def _end(operation: Operation) -> float:
    return math.inf if operation.end is None else operation.end


def _deletes(operation: Operation, content: Content) -> list[int] | None:
    """The keys that it deletes; None where it does something else, or not there."""
    keys = []
    for one in operation.statements:
        answer, is_logged = one.apply(content)
        if one.told is not TOLD_NOTHING and one.told != answer:
            return None
        if is_logged and one.kind != "delete":
            return None
        keys += [one.key] * is_logged
    return keys


def _changes_nothing(operation: Operation) -> bool:
    """Whether an acknowledged operation has nothing to log."""
    return all(one.kind == "get" or one.told is REFUSED for one in operation.statements)
