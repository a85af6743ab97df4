"""`Log`: the embedded store, and what a user of it touches first.

What it consists of: `store.commit.committer` is the one way to durability, `store.reading` what a
log shows, `store.past` what it was, `store.engine.statements` and `store.commit.append` the changes
in Python values, `store.recover.upkeep` snapshots and old files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeVar

from logweir.errors import LogweirError
from logweir.recovery import RecoveryReport
from logweir.store.commit.append import Appends
from logweir.store.commit.committer import Durability
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import about_bytes
from logweir.store.engine.engine import Engine
from logweir.store.engine.request import Request, listed
from logweir.store.engine.statements import Row
from logweir.store.expiring import Expires
from logweir.store.expiry import EXPIRY_SPACE
from logweir.store.inner import Inner
from logweir.store.listening import Listens
from logweir.store.past import Past
from logweir.store.recover.upkeep import Upkeep
from logweir.store.transaction import Transaction
from logweir.store.typed import TypedSpace
from logweir.wal.closing import Closable
from logweir.wal.mp import Value
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

__all__ = ["Durability", "Log"]

T = TypeVar("T")


class Log(Past, Listens, Expires, Appends, Upkeep, Closable):
    """A durable, append-only change log with the state it makes. Made by `logweir.open`.

    Safe to use from several threads: changes that meet share one sync. One process per folder.
    Every method that changes something returns only when the change is durable as `durability`
    says, and raises `RequestError` (refused), `WriteFailed` (the disk refused: nothing happened),
    or `WriterPoisoned`, `StateFailed`, `LogStopped` (open the folder again; reads go on). In a
    child of `fork` everything raises `UsedAfterFork`, and `close` does nothing.
    """

    def __init__(self, inner: Inner, report: RecoveryReport) -> None:
        self.path: Path = inner.path
        self.report = report
        """What recovery found when the folder was opened."""
        self.instance: uuid.UUID = inner.instance
        self.inner = inner
        """What logweir's own server and jobs use; it may change with every release."""
        self._committer = inner.committer
        self.durability: Durability = self._committer.durability
        self.replica_id: int = self._committer.replica_id
        if self.schema.get(EXPIRY_SPACE) is not None:
            self.inner.sweeper.start(self.delete_expired)

    def close(self) -> None:
        """Finish what is under way, close the log in order and give the folder free. Twice:
        nothing.

        Raises `WalError` and its kinds for the first step that failed; all are tried, and the
        folder is free after it. `WriterPoisoned`: also where a sync in the background had failed.
        An interrupt comes out when it is done; a second one at once, and it goes on meanwhile.
        """
        self.inner.close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, or this is the copy that a child of `fork` has."""
        return self._committer.is_closed

    @property
    def failure(self) -> LogweirError | None:
        """What stopped writing, until it is opened again; None while changes are taken."""
        return self._committer.failure

    def transaction(self) -> Transaction:
        """Several changes, applied together or not at all: a context manager.

        Others wait while it is open, so keep it short. An exception inside rolls it back.
        """
        self._committer.check_open()
        self._committer.check_not_inside()
        return Transaction(self.inner)

    def space(self, space: int | str) -> TypedSpace:
        """A space whose tuples are read as objects of a dataclass. Raises `RequestError`."""
        return TypedSpace(self, space)

    def execute(self, request: Request) -> bytes | None:
        """Make one change given in MsgPack bytes.

        Returns the new tuple; of a DELETE the old one; None if there is none, and for UPSERT.
        """
        return self.inner.run(lambda group: group.answer(request), request.size_bytes)

    def _make(
        self,
        kind: RowType,
        space: int | str,
        first: Value,
        ops: Iterable[Sequence[Value]] | None = None,
        index: int | str = 0,
    ) -> Row | None:
        given = None if ops is None else listed(ops)  # it may be wanted twice
        size = about_bytes(first) + (0 if given is None else about_bytes(given))
        made: Row | None = self.inner.run(
            methodcaller("make", kind, space, first, given, index), size
        )
        return made

    def _define(self, plan: Callable[[Engine], tuple[list[Request], int]]) -> int:
        def apply(group: Group) -> int:
            requests, result = plan(group.engine)
            for request in requests:
                group.execute(request)
            return result

        return self.inner.run(apply)

    def end_waiting(self, *, confirm: bool) -> int:
        """Decide about all transactions that wait, as `box.ctl.clear_synchro_queue` does: where
        the master that should is gone for ever. `confirm`: they hold; else they never were.

        Returns how many waited. A row of ours tells the others. Do not use it while their master
        may still decide: it could decide otherwise.
        """
        kind = RowType.CONFIRM if confirm else RowType.ROLLBACK
        return self.inner.run(lambda group: group.end_waiting(kind))

    def on_commit(self, callback: Callable[[VClock], None]) -> Callable[[], None]:
        """Call `callback` with the position after each commit, in the committing thread: it must
        be quick and not use the log; what it raises is logged. Returns what takes it back."""
        self.inner.check_process()
        self._committer.on_commit.append(callback)
        return lambda: self._committer.on_commit.remove(callback)

    def status(self) -> dict[str, Any]:
        """What a user could wonder about: positions, sizes, durability, who keeps old logs; also
        of a log that has failed."""
        held = self.inner.holdings()
        counts = {space["name"]: space["tuples"] for space in held}
        return {**self.inner.progress(), "spaces": counts, "space_details": held}
