"""What a log was: the changes of one key, the whole store at an earlier position."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from logweir.store.cursor import LogCursor
from logweir.store.engine.statements import key_bytes
from logweir.store.recover.history import Change, history
from logweir.store.recover.upkeep import position_of
from logweir.store.schema.keys import exact_key
from logweir.store.schema.schema import Schema
from logweir.wal.filesystem import FileSystem
from logweir.wal.mp import Value
from logweir.wal.reader import Block
from logweir.wal.vclock import VClock

__all__ = ["Past"]


class Past(ABC):
    """The part of `Log` that looks back."""

    path: Path
    _filesystem: FileSystem

    @property
    @abstractmethod
    def vclock(self) -> VClock: ...

    @property
    @abstractmethod
    def schema(self) -> Schema: ...

    @abstractmethod
    def cursor(
        self, after: Mapping[int, int] | None = None, *, settled: bool = False
    ) -> LogCursor: ...

    def history(
        self,
        space: int | str,
        key: Value,
        *,
        after: Mapping[int, int] | None = None,
        limit: int | None = None,
    ) -> Iterator[Change]:
        """All changes of one key of the primary index that the logs still hold, oldest first, each
        with its position, its time and the tuple after it, None where that was removed.

        `after`: a vclock, only changes behind it; None for all: the first entry is then of kind
        SNAPSHOT, and tells the tuple that the oldest snapshot has. `limit`: end with the
        transaction in which so many were given. The log is read from the newest snapshot at or
        before `after`, and only rows of this key are looked into; what waits for the CONFIRM of a
        synchronous replication is not told yet. Close the iterator to let the log's files go.

        Raises `RequestError` for a space that is not there and a key that does not fit it,
        `PositionUnavailable` where no snapshot at or before `after` is left, `after` is not reached
        yet, or the primary key was made of other fields there; and what `rows` raises.
        """
        schema = self.schema
        found = schema.space(space)
        packed = key_bytes(key)
        exact_key(packed, schema.index(found, 0))
        return history(
            self.path,
            found.id,
            packed,
            self._blocks,
            after=None if after is None else position_of(after),
            limit=limit,
            end=self.vclock,
            filesystem=self._filesystem,
        )

    @contextlib.contextmanager
    def _blocks(self, after: VClock) -> Iterator[Iterable[Block]]:
        with self.cursor(after, settled=True) as cursor:
            yield cursor.blocks()
