"""What a log shows: its positions, its tuples, its rows."""

from __future__ import annotations

import contextlib
import threading
import uuid
from abc import ABC, abstractmethod
from array import array
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from logweir.errors import PositionUnavailable
from logweir.store.commit.committer import Committer
from logweir.store.commit.group import Group
from logweir.store.cursor import LogCursor
from logweir.store.engine.batches import Answers
from logweir.store.engine.computing import Computer
from logweir.store.engine.engine import Engine
from logweir.store.engine.executing import Executor
from logweir.store.engine.reads import GET
from logweir.store.engine.request import key_bytes
from logweir.store.engine.select import numbers
from logweir.store.expiry import EXPIRY_SPACE
from logweir.store.recover.checkpoint import Checkpoints
from logweir.store.recover.upkeep import position_of
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.schema import Schema
from logweir.store.state.state import StateError, explained
from logweir.store.view import ReadView
from logweir.wal.filesystem import FileSystem
from logweir.wal.follow import Follower
from logweir.wal.lease import Lease
from logweir.wal.mp import Value
from logweir.wal.reader import Block
from logweir.wal.settled import Settled
from logweir.wal.vclock import VClock
from logweir.wal.xrow import Transaction as LoggedTransaction

__all__ = ["Reads"]

Key = Any
"""A key: one value, or a list or tuple of values for several parts."""


class Reads(ABC):
    """The part of `Log` that changes nothing."""

    path: Path
    is_foreign: bool
    instance: uuid.UUID
    _committer: Committer
    _checkpoints: Checkpoints
    _filesystem: FileSystem
    _expiring: tuple[tuple[int, int], frozenset[Value]] = (-1, -1), frozenset()
    """The state of the space that tells which spaces have tuples that expire, and their ids."""

    @abstractmethod
    def check_process(self) -> None: ...

    @abstractmethod
    def now(self) -> float: ...

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
        self.check_process()
        return self._committer.vclock

    @property
    def applied(self) -> VClock:
        """The position that reads see: before the first transaction that waits."""
        self.check_process()
        return self._committer.applied

    @property
    def waiting(self) -> int:
        """How many transactions of synchronous replication wait for CONFIRM or ROLLBACK."""
        self.check_process()
        return len(self._committer.waiting)

    def settled(self, position: VClock) -> Settled:
        """What of the log above a position waits for no CONFIRM, and what was undone. Takes as long
        as to read the log from there, once, unless `knows_settled`; raises what that raises."""
        self.check_process()
        return self._committer.settlement.above(position)

    def knows_settled(self, position: VClock) -> bool:
        """Whether `settled` tells it at once."""
        self.check_process()
        return self._committer.settlement.knows(position)

    @property
    def schema(self) -> Schema:
        """The definitions of spaces and indexes now."""
        self.check_process()
        return self._committer.schema

    @property
    def durable_end(self) -> tuple[Path, int]:
        """How far followers may read: the newest log file, and how many of its bytes. They are
        synced with durability "fsync"; with "write" they are only written, and with "none" they are
        those that were logged before."""
        self.check_process()
        return self._committer.durable

    def changes_of(self, space_id: int) -> int:
        """In how many commits a space was changed since the folder was opened, at most: who keeps
        something made from its rows reads them again when this number is another one."""
        if self.is_foreign:
            self.check_process()
        return self._committer.changes.get(space_id, 0)

    @contextlib.contextmanager
    def read_view(self) -> Iterator[ReadView]:
        """A consistent view of everything as of one position, while writers go on.

        Keep it short: pages it can see are not used again, and the state cannot grow meanwhile.
        """
        committer = self._committer
        try:
            with committer.view() as (txn, schema, vclock):
                engine = Engine(txn, schema, committer.plans)
                yield ReadView(engine, vclock, self.now(), instance=self.instance)
        except StateError as error:
            raise explained(error, committer.state.directory) from error

    def trial(self, executor: Executor) -> Group:
        """A group on a view of now, whose changes nobody else sees and nobody commits: for who
        makes them again, in a job, once it is known that they are wanted. To be ended by its
        `txn.abort`; it keeps what `read_view` keeps. `executor`: of the caller's thread.

        Raises what a change raises where there can be none.
        """
        self.check_process()
        return self._committer.trial(executor)

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

    def select_batch(
        self,
        executor: Executor,
        data: bytes,
        columns: array[int],
        ids: Sequence[int],
        limit_bytes: int,
        computer: Computer | None = None,
    ) -> tuple[Answers, Schema]:
        """Many statements that change nothing, and the definitions then: see
        `ReadView.select_batch`."""
        given = executor, data, columns, ids, limit_bytes, computer
        found = self._committer.reader.select_batch(*given)
        if found is not None:
            return found
        with self.read_view() as view:
            return view.select_batch(*given)

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

    def cursor(self, after: Mapping[int, int] | None = None, *, settled: bool = False) -> LogCursor:
        """A reader behind a position that is asked for what is there, and asked again: `rows`
        for who waits in a way of their own. Raises `PositionUnavailable`."""
        start = self.oldest_position if after is None else position_of(after)
        vclock = self._committer.vclock
        if not vclock.covers(start):
            raise PositionUnavailable(
                start, self.oldest_position, vclock, hint="that position is not reached yet"
            )
        return LogCursor(
            Follower(
                self.path,
                start,
                filesystem=self._filesystem,
                durable=lambda: self._committer.durable,
                settled=self.settled if settled else None,
                lease=Lease(self.path),
            )
        )

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
        with "none" there are none in the log. Raises `PositionUnavailable` where the log no longer
        holds that position, and following it what stopped a log that has failed.
        """
        found = self.blocks(after, follow=follow, stop=stop, settled=settled)
        with contextlib.closing(found):
            for block in found:
                for transaction in block.transactions():
                    yield transaction
                    self.check_process()

    def blocks(
        self,
        after: Mapping[int, int] | None = None,
        *,
        follow: bool = False,
        stop: threading.Event | None = None,
        settled: bool = False,
    ) -> Generator[Block, None, None]:
        """`rows`, as whole blocks."""
        committer = self._committer
        with self.cursor(after, settled=settled) as cursor:
            while not (follow and committer.is_closed):
                committer.check_readable()
                seen = committer.vclock
                yield from cursor.blocks()
                if not follow or (stop is not None and stop.is_set()):
                    return
                if committer.failure is not None:
                    raise committer.failure
                committer.wait_for_more(seen, stop)
                if committer.is_closed:
                    committer.check_process()
                    return

    @contextlib.contextmanager
    def rotated_view(self) -> Iterator[ReadView]:
        """A read view at whose position a new log file begins."""
        with contextlib.ExitStack() as stack:
            with self._committer.alone():
                if not self._committer.is_closed:
                    self._committer.rotate()
                view = stack.enter_context(self.read_view())
            yield view

    @property
    def oldest_position(self) -> VClock:
        """The oldest position whose following rows are still in the log."""
        self.check_process()
        return self._checkpoints.oldest_row()
