"""What a log shows: its positions, its tuples, its rows."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from logweir.store.commit.committer import Committer
from logweir.store.engine.reads import GET
from logweir.store.engine.request import key_bytes
from logweir.store.engine.select import numbers
from logweir.store.expiry import EXPIRY_SPACE
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.schema import Schema
from logweir.store.view import ReadView
from logweir.wal.mp import Value
from logweir.wal.vclock import VClock
from logweir.wal.xrow import Transaction as LoggedTransaction

if TYPE_CHECKING:
    from logweir.store.inner import Inner

Key = Any
"""A key: one value, or a list or tuple of values for several parts."""


class Reads(ABC):
    """The part of `Log` that changes nothing."""

    inner: Inner
    _committer: Committer
    _expiring: tuple[tuple[int, int], frozenset[Value]] = (-1, -1), frozenset()
    """The state of the space that tells which spaces have tuples that expire, and their ids."""

    def _expires(self, space: int | str) -> bool:
        """Whether tuples may have to be left out: then they are read in a view."""
        schema = self._committer.schema
        table = schema.get(EXPIRY_SPACE)
        if table is None:
            return False
        seen = table.id, self._committer.changes.get(table.id, 0)
        if self._expiring[0] != seen:
            with self.read_view() as view:
                ids = frozenset(row[0] for row in view.select(table.id))
            self._expiring = seen, ids
        found = schema.get(space)
        return found is not None and found.id in self._expiring[1]

    @property
    def vclock(self) -> VClock:
        """The position: everything up to it was acknowledged, as durable as `durability` says, and
        is what readers see but for what waits for the CONFIRM of a synchronous replication."""
        self.inner.check_process()
        return self._committer.vclock

    @property
    def applied(self) -> VClock:
        """The position that reads see: before the first transaction that waits."""
        self.inner.check_process()
        return self._committer.applied

    @property
    def waiting(self) -> int:
        """How many transactions of synchronous replication wait for CONFIRM or ROLLBACK."""
        self.inner.check_process()
        return len(self._committer.waiting)

    @property
    def schema(self) -> Schema:
        """The definitions of spaces and indexes now."""
        self.inner.check_process()
        return self._committer.schema

    def read_view(self) -> AbstractContextManager[ReadView]:
        """A consistent view of everything as of one position, while writers go on.

        Keep it short: pages it can see are not used again, and the state cannot grow meanwhile.
        """
        return self.inner.read_view()

    def get(self, space: int | str, key: Key, *, index: int | str = 0) -> tuple[Value, ...] | None:
        """The tuple with that full key of a unique index, None if there is none."""
        if not self._expires(space):
            found = self._committer.reader.rows(space, index, GET, 1, 0, key_bytes(key))
            if found is not None:
                return found[0] if found else None
        with self.read_view() as view:
            return view.get(space, key, index=index)

    def select(
        self,
        space: int | str,
        key: Key = None,
        *,
        iterator: str | None = None,
        index: int | str = 0,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[tuple[Value, ...]]:
        """Tuples in the order of an index.

        `key`: None for all, one value, or a list with the first parts; `iterator`: EQ (default
        with a key), REQ, ALL (default without), LT, LE, GE, GT. Raises `RequestError`.
        """
        asked = None if self._expires(space) else numbers(key, iterator, limit, offset)
        found = None if asked is None else self._committer.reader.rows(space, index, *asked)
        if found is not None:
            return found
        with self.read_view() as view:
            return view.select(
                space, key, iterator=iterator, index=index, limit=limit, offset=offset
            )

    def count(self, space: int | str) -> int:
        """How many tuples a space holds."""
        found = None if self._expires(space) else self._committer.reader.count(space)
        if found is not None:
            return found
        with self.read_view() as view:
            return view.count(space)

    def spaces(self, *, system: bool = False) -> list[SpaceDef]:
        """The spaces, by id; `system`: those of Tarantool's own definitions too."""
        return [space for space in self.schema if system or not space.is_system]

    def rows(
        self,
        after: Mapping[int, int] | None = None,
        *,
        follow: bool = False,
        stop: threading.Event | None = None,
        settled: bool = False,
    ) -> Iterator[LoggedTransaction]:
        """Transactions of the log behind a position, oldest first.

        `after`: a vclock, None for the oldest row still there; `follow`: wait for more at the end
        instead of stopping, until the log is closed or `stop` is set; `settled`: none from the
        first on that waits for the CONFIRM of a synchronous replication, and a NOP in the place of
        each row that was undone, else all as they are logged. Only rows that were
        acknowledged are given: with durability "write" a power cut may still take them back, and
        with "none" there are none in the log. Raises `PositionUnavailable` if the log no longer
        holds that position, and following it what stopped a log that has failed.
        """
        found = self.inner.blocks(after, follow=follow, stop=stop, settled=settled)
        with contextlib.closing(found):
            for block in found:
                for transaction in block.transactions():
                    yield transaction
                    self.inner.check_process()

    @property
    def oldest_position(self) -> VClock:
        """The oldest position whose following rows are still in the log."""
        self.inner.check_process()
        return self.inner.checkpoints.oldest_row()
