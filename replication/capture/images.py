"""The tuples before and after changes, which the log does not hold of an UPDATE or UPSERT.

``logweir_image``: name string, space unsigned, key varbinary, tuple array

holds what the upstream holds of the chosen spaces at the place of the capture `name`: all of it is
copied at first, of the newest snapshot of a folder, or as a server gives it to a replica
(FETCH_SNAPSHOT); then it goes along, in the transactions that keep the place. `key` is that of the
primary index, as `store.schema.keys` makes it. A copy that was stopped is begun anew.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from logweir.errors import ErrorCode, RemoteProtocolError, RequestError, WrongHistory
from logweir.replication.capture.stream import Capture, Captured, Change
from logweir.replication.capture.token import Token
from logweir.replication.iproto.client_session import Refused, Rows, StreamBegun, StreamEnded
from logweir.replication.iproto.follow.upstream import connect
from logweir.replication.urls import Url
from logweir.store import Log, Transaction
from logweir.store.engine.update import apply_update, apply_upsert
from logweir.store.recover.defined import folder_definitions
from logweir.store.schema.definition import IndexDef, SpaceDef, SystemSpace
from logweir.store.schema.keys import exact_key, tuple_key
from logweir.wal.columns import RowColumns
from logweir.wal.directory import scan_directory
from logweir.wal.lease import leased
from logweir.wal.mp import Value, pack, unpack
from logweir.wal.snapshot import read_snapshot
from logweir.wal.vclock import VClock

IMAGE_SPACE: Final = "logweir_image"
_FORMAT: Final = (
    ("name", "string"),
    ("space", "unsigned"),
    ("key", "varbinary"),
    ("tuple", "array"),
)
_BATCH: Final = 1000
_BY_TUPLE: Final = frozenset(("INSERT", "REPLACE"))
_WHOLE: Final = frozenset(("TRUNCATE", "DROP"))


SpaceOf = Callable[[int], SpaceDef | None]


class Images:
    """Those of one capture. `name`: its name in the store."""

    def __init__(self, log: Log, name: str) -> None:
        self._log = log
        self._name = name
        if log.schema.get(IMAGE_SPACE) is None:
            log.create_space(IMAGE_SPACE, _FORMAT, primary=["name", "space", "key"])

    # --- the copy ---------------------------------------------------------------------------------
    def fill(self, capture: Capture) -> Token:
        """Copy what the chosen spaces hold. Returns the place of it, to be kept. Raises what
        reading raises."""
        with self._log.transaction() as tx:
            self._clear(tx)
        folder = capture.source
        if isinstance(folder, Url):
            return asyncio.run(self._fill_from(folder, capture))
        with leased(folder):
            index = scan_directory(folder)
            newest = index.newest_snap()
            if newest is None:
                raise index.unusable()
            for block in read_snapshot(newest.path):
                self._take(block.columns, capture)
            replicaset = folder_definitions(folder).replicaset
        return self._token(replicaset, newest.vclock, capture)

    async def _fill_from(self, url: Url, capture: Capture) -> Token:
        start, replicaset = VClock(), None
        async with connect(url) as (upstream, _, _):
            upstream.session.fetch_snapshot()
            upstream.link.flush()
            start = (await upstream.expect(StreamBegun)).vclock
            while not isinstance(event := await upstream.next(), StreamEnded):
                if isinstance(event, Refused):
                    raise upstream.refusal(event)
                if not isinstance(event, Rows):
                    raise RemoteProtocolError(f"{url}: {type(event).__name__} came among rows")
                columns = RowColumns.scan(event.data)
                replicaset = replicaset or _replicaset(columns)
                self._take(columns, capture)
        return self._token(replicaset, start, capture)

    def _token(self, replicaset: uuid.UUID | None, vclock: VClock, capture: Capture) -> Token:
        if replicaset is None:
            raise WrongHistory(str(capture.source), "unknown", None)
        return Token(replicaset, vclock, capture.chosen)

    def _take(self, columns: RowColumns, capture: Capture) -> None:
        """The rows of a snapshot that are chosen."""
        found: list[tuple[Value, ...]] = []
        for row, space_id in enumerate(columns.space_id):
            data = columns.tuple_bytes(row)
            primary = _primary(capture.chooser.space(space_id))
            if data is None or primary is None or not capture.chooser.wants(space_id, data):
                continue
            found.append((self._name, space_id, tuple_key(data, primary), unpack(data)))
        for at in range(0, len(found), _BATCH):
            self._log.append(IMAGE_SPACE, found[at : at + _BATCH])

    def _clear(self, tx: Transaction, *space: int) -> None:
        key = (self._name, *space)
        for row in tx.select(IMAGE_SPACE, key):
            tx.delete(IMAGE_SPACE, row[:3])

    # --- changes ----------------------------------------------------------------------------------
    def take(self, tx: Transaction, captured: Captured, capture: Capture) -> Captured:
        """The transaction with its images; those of the store go along. Raises `RequestError` if
        what is logged does not fit what is there."""
        changes = [self._imaged(tx, one, capture.chooser.space) for one in captured.changes]
        return replace(captured, changes=tuple(changes))

    def _imaged(self, tx: Transaction, change: Change, space_of: SpaceOf) -> Change:
        space = space_of(change.space_id)
        primary = _primary(space)
        if change.type_name in _WHOLE:
            self._clear(tx, change.space_id)
            return change
        if space is None or primary is None:
            return change  # it is gone, and so will its images be
        key = self._key(change, primary)
        if key is None:
            return change
        place = (self._name, change.space_id, key)
        row = tx.get(IMAGE_SPACE, place)
        before: Any = None if row is None else row[3]
        after = _after(change, before, space)
        if after is None:
            tx.delete(IMAGE_SPACE, place)
        else:
            tx.replace(IMAGE_SPACE, (*place, after))
        return replace(
            change,
            before=None if before is None else tuple(before),
            tuple=None if after is None else tuple(after),
            is_known=True,
        )

    @staticmethod
    def _key(change: Change, primary: IndexDef) -> bytes | None:
        given = change.tuple if change.type_name in _BY_TUPLE else change.given
        if given is not None:
            return tuple_key(pack(given), primary)
        return None if change.key is None else exact_key(pack(change.key), primary)


def _primary(space: SpaceDef | None) -> IndexDef | None:
    return None if space is None else space.primary


def _after(change: Change, before: list[Any] | None, space: SpaceDef) -> list[Any] | None:
    """The tuple that a change leaves."""
    if change.type_name == "DELETE":
        return None
    if change.type_name in _BY_TUPLE:
        return list(change.tuple or ())
    ops = pack(list(change.ops))
    if change.type_name == "UPSERT":
        if before is None:
            return list(change.given or ())
        made = apply_upsert(pack(before), ops, index_base=0, space=space)
    elif before is None:
        text = f"there is no tuple with the key {change.key} in the images of {space.name!r}"
        hint = "the upstream has other rows than its log tells: begin anew, under another name"
        raise RequestError(ErrorCode.TUPLE_NOT_FOUND, text, hint=hint)
    else:
        made = apply_update(pack(before), ops, index_base=0, space=space)
    found: list[Any] = unpack(made)
    return found


def _replicaset(columns: RowColumns) -> uuid.UUID | None:
    """The UUID that rows of `_schema` tell, if they do."""
    for row, space_id in enumerate(columns.space_id):
        if space_id == SystemSpace.SCHEMA:
            fields = unpack(columns.tuple_bytes(row) or b"\x90")
            if fields[:1] == ["cluster"]:
                return uuid.UUID(fields[1])
    return None
