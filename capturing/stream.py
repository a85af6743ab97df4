"""`logweir.capture`: the transactions of a folder or a server, chosen and taken apart.

Definitions are those of now, asked again behind a row that changes them; a space that is gone by
then has its id for a name, and no key where its row has only a tuple. Rows of replica-local spaces
are not given: a server does not give them either.
"""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from array import array
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logweir.capturing.token import Token, chosen
from logweir.changes import following
from logweir.errors import ConfigError, PositionUnavailable, RequestError, WrongHistory
from logweir.replication.iproto.client.spaces import part_value, server_definitions
from logweir.replication.protocols import parse_url
from logweir.store.commit.applying import APPLIED
from logweir.store.engine.request import key_bytes
from logweir.store.engine.statements import Row
from logweir.store.recover.defined import Definitions, folder_definitions
from logweir.store.schema.definition import GROUP_LOCAL, SYSTEM_ID_MAX, SpaceDef, SystemSpace
from logweir.store.schema.keys import exact_key, search_key, tuple_key
from logweir.wal.columns import RowColumns
from logweir.wal.mp import Value, unpack
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

__all__ = ["Captured", "Change", "capture"]

_DEFINING: Final = frozenset((SystemSpace.COLLATION, SystemSpace.SPACE, SystemSpace.INDEX))
_EMPTYING: Final = frozenset((SystemSpace.SPACE, SystemSpace.TRUNCATE))
_TOLD: Final = _DEFINING | _EMPTYING
_BY_KEY: Final = frozenset((RowType.UPDATE, RowType.DELETE))


Ops = tuple[list[Any], ...]
"""Operations, each a list."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a tuple, or of a whole space.

    `type_name`: INSERT, REPLACE, UPDATE, UPSERT or DELETE, as it is logged; TRUNCATE and DROP where
    the space was emptied or removed, which have no key. `key`: the values of the primary key;
    `tuple`: what is there after it, None for none, and where `is_known` is False. `given`: the
    tuple of an UPSERT; `ops`: the operations of an UPDATE or UPSERT, fields numbered from 0.
    `replica_id`, `lsn`: of the row.
    """

    space: str
    space_id: int
    type_name: str
    key: Row | None
    tuple: Row | None
    is_known: bool
    replica_id: int
    lsn: int
    given: Row | None = None
    ops: Ops = ()
    before: Row | None = None


@dataclass(frozen=True, slots=True)
class Captured:
    """One transaction: its `changes` that were chosen, in order. Without any it only tells how far
    the log was read. `vclock`: the position behind it, `token`: the same as text, to go on from;
    `timestamp`: of its last row, seconds since the epoch."""

    changes: tuple[Change, ...]
    vclock: VClock
    token: str
    timestamp: float


def capture(
    where: str | os.PathLike[str],
    after: str | Mapping[int, int] | None = None,
    *,
    spaces: Sequence[int | str] = (),
    key: Value = None,
    once: bool = False,
    stop: threading.Event | None = None,
) -> Generator[Captured, None, None]:
    """The transactions behind a place, oldest first, with the changes of some spaces; more as they
    come. Transactions without such a change are passed over; behind a run of them one comes without
    changes, for its token.

    `where`, `once`, `stop`: as `logweir.follow` takes them; `after`: a token, or a vclock, which is
    not checked, None for the oldest row still there; `spaces`: names or ids, none for all that are
    not the system's; `key`: of one space, the first parts of its primary key. What waits for the
    CONFIRM of a synchronous replication is not given of a folder; a server gives it as it comes.

    Not for event loops. Raises what `logweir.follow` raises; `ConfigError` for what is no token, or
    one of other spaces, `WrongHistory` for one of another log, `PositionUnavailable` where the log
    ends before it, `RequestError` for a space that is not there or a key that does not fit.
    """
    return _Capture(where, after, spaces, key).run(once, stop)


class _Capture:
    """What is known of the log while it is read."""

    def __init__(
        self,
        where: str | os.PathLike[str],
        after: str | Mapping[int, int] | None,
        spaces: Sequence[int | str],
        key: Value,
    ) -> None:
        if key is not None and len(spaces) != 1:
            raise ConfigError("key", "is for one space", hint="name the space it is a key of")
        self._where = where
        self._key = None if key is None else key_bytes(key)
        self._wanted = frozenset(spaces)
        self._chosen = chosen(spaces, key)
        self._token = Token.parse(after) if isinstance(after, str) else None
        if self._token is not None and self._token.chosen != self._chosen:
            raise ConfigError(
                "token",
                "was taken of other spaces, or another key: changes would be left out",
                origin="after",
                hint="ask for the same; or give the vclock instead of the token, knowingly",
            )
        if isinstance(after, str) or after is None:
            self._after = None if self._token is None else self._token.vclock
        else:
            self._after = VClock(after)
        self._spaces: dict[int, SpaceDef] = {}
        self._ids: set[int] = set()
        self._prefix = b""
        self._known = VClock()  # the definitions are of there, or of later
        self._replicaset: uuid.UUID | None = None
        self._lsns = array("Q")

    def run(self, once: bool, stop: threading.Event | None) -> Generator[Captured, None, None]:
        """See `capture`."""
        self._learn(is_first=True)
        pieces = following(self._where, self._after, once=once, stop=stop, begun=self._begun)
        with closing(pieces):
            for columns in pieces:
                if not self._concerns(columns.space_id.tolist()):
                    columns.raise_lsns(self._lsns)
                    yield self._captured((), columns, len(columns))
                    continue
                changes: tuple[Change, ...] = ()
                for first, last in columns.transactions():
                    for row in range(first, last):
                        at = columns.replica_id[row]
                        self._lsns[at] = max(self._lsns[at], columns.lsn[row])
                    changes = self._changes(columns, first, last)
                    if changes:
                        yield self._captured(changes, columns, last)
                    if stop is not None and stop.is_set():
                        return
                if not changes:
                    yield self._captured((), columns, len(columns))

    def _concerns(self, spaces: list[int]) -> bool:
        """Whether rows of some spaces may have to be given, or tell something of them."""
        if not self._ids:
            return max(spaces, default=0) > SYSTEM_ID_MAX or not _TOLD.isdisjoint(spaces)
        return not (self._ids.isdisjoint(spaces) and _TOLD.isdisjoint(spaces))

    def _captured(self, changes: tuple[Change, ...], columns: RowColumns, last: int) -> Captured:
        vclock = VClock.of_lsns(self._lsns)
        assert self._replicaset is not None
        token = Token(self._replicaset, vclock, self._chosen)
        return Captured(changes, vclock, str(token), columns.timestamp[last - 1])

    def _begun(self, replicaset: uuid.UUID | None, start: VClock, end: VClock) -> None:
        """Check that the place is one of this log."""
        token = self._token
        if replicaset is None or (token is not None and token.replicaset != replicaset):
            expected = "unknown" if token is None else token.replicaset
            raise WrongHistory(str(self._where), expected, replicaset)
        self._replicaset = replicaset
        self._lsns = array("Q", start.lsns())
        if not end.covers(start.without_local()):
            raise PositionUnavailable(
                start,
                VClock(),
                end,
                hint="the log was restored, or lost its newest rows: changes that were taken are "
                "not in it any more. Compare, then begin anew",
            )

    def _learn(self, *, is_first: bool = False) -> None:
        """See what the spaces are now."""
        found = self._definitions()
        self._known = found.vclock
        self._spaces |= {space.id: space for space in found.schema}
        if is_first:
            for one in self._wanted:
                found.schema.space(one)
        names = {space.name: space.id for space in self._spaces.values()}
        for one in self._wanted:
            self._ids.add(one if isinstance(one, int) else names[one])
        if self._key is not None:
            for space_id in self._ids:
                if primary := self._spaces[space_id].primary:
                    self._prefix = search_key(self._key, primary)[0]

    def _definitions(self) -> Definitions:
        if isinstance(self._where, str) and "://" in self._where:
            return asyncio.run(server_definitions(parse_url(self._where, origin="where")))
        return folder_definitions(Path(self._where))

    def _changes(self, columns: RowColumns, first: int, last: int) -> tuple[Change, ...]:
        spaces = columns.space_id[first:last].tolist()
        if not _DEFINING.isdisjoint(spaces):
            reached = VClock.of_lsns(self._lsns).without_local()
            if not self._known.covers(reached):
                self._learn()
        found = (self._change(columns, row) for row in range(first, last))
        return tuple(change for change in found if change is not None)

    def _change(self, columns: RowColumns, row: int) -> Change | None:
        """What a row is; None where it was not chosen."""
        kind, space_id = columns.type[row], columns.space_id[row]
        if kind not in APPLIED or columns.group_id[row] == GROUP_LOCAL or columns.index_id(row):
            return None
        if space_id in _EMPTYING:
            return self._emptied(columns, row)
        if not (space_id in self._ids or (not self._ids and space_id > SYSTEM_ID_MAX)):
            return None
        space = self._spaces.get(space_id)
        data, packed = columns.tuple_bytes(row), columns.key_bytes(row)
        given = None if data is None or kind in _BY_KEY else tuple(unpack(data))
        if not self._is_of_key(space, data if given is not None else None, packed):
            return None
        key: Row | None = None
        if packed is not None and given is None:
            key = tuple(unpack(packed))
        elif given is not None and space is not None and space.primary is not None:
            key = tuple(part_value(given, part) for part in space.primary.parts)
        ops = columns.ops_bytes(row)
        is_upsert = kind == RowType.UPSERT
        return Change(
            self._name(space_id),
            space_id,
            RowType(kind).name,
            key,
            None if is_upsert else given,
            kind not in (RowType.UPDATE, RowType.UPSERT),
            columns.replica_id[row],
            columns.lsn[row],
            given if is_upsert else None,
            () if ops is None else _from_zero(unpack(ops), columns.index_base[row]),
        )

    def _is_of_key(self, space: SpaceDef | None, data: bytes | None, packed: bytes | None) -> bool:
        """Whether a row has the wanted beginning of a key."""
        if self._key is None:
            return True
        if space is None or space.primary is None:
            return False
        try:
            if data is not None:
                return tuple_key(data, space.primary).startswith(self._prefix)
            return exact_key(packed or b"\x90", space.primary).startswith(self._prefix)
        except RequestError:
            return False  # the key was made of something else there

    def _emptied(self, columns: RowColumns, row: int) -> Change | None:
        """The change of a whole space that a row of the system's tells, if it does."""
        is_drop = columns.type[row] == RowType.DELETE
        if is_drop != (columns.space_id[row] == SystemSpace.SPACE):
            return None
        told = columns.key_bytes(row) if is_drop else None
        space_id = unpack(told or columns.tuple_bytes(row) or columns.key_bytes(row) or b"\x91\0")[
            0
        ]
        if self._ids and space_id not in self._ids:
            return None
        kind = "DROP" if is_drop else "TRUNCATE"
        at = columns.replica_id[row], columns.lsn[row]
        return Change(self._name(space_id), space_id, kind, None, None, True, *at)

    def _name(self, space_id: int) -> str:
        space = self._spaces.get(space_id)
        return str(space_id) if space is None else space.name


def _from_zero(ops: list[list[Any]], base: int) -> Ops:
    """Operations with fields, and places in a string, numbered from 0."""
    found = []
    for op in ops:
        places = (1, 2) if op[0] == ":" else (1,)
        for at in places:
            if isinstance(op[at], int) and op[at] >= base:
                op[at] -= base
        found.append(op)
    return tuple(found)
