"""What all connections of one server share, whatever they speak: the store, who may do what, and
the line in which changes wait to be made durable together.

Access is judged by the rows of `_user` and `_priv`, read again whenever one of them has changed,
whoever changed it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from logweir.errors import ErrorCode, LogweirError, RequestError, WalError
from logweir.limits import CONNECTIONS
from logweir.replication.logins import Logins
from logweir.replication.metrics import Metrics
from logweir.replication.service.access import Directory, Grant, read_directory
from logweir.replication.service.line import Line
from logweir.replication.stream.hub import Hub
from logweir.replication.stream.retention import Retention
from logweir.store.log import Log
from logweir.store.schema.access import GUEST_ID, Access, Privilege, User, denied

LET_IN_MAX: Final = 4096
"""So much that was allowed is kept about, see `Shared.let_in`."""

_USER_ID: Final = 304
_PRIV_ID: Final = 312
_SCHEMA_ID: Final = 272
_FUNC_ID: Final = 296


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a server. Times in seconds.

    `guest`: grants that stand in no row; `read_only`: changes are refused with error 7;
    `replication_timeout_seconds`: heartbeats are that far apart, and a replica that says nothing
    for four times as long is dropped; `retain_max_bytes`: see `replication.stream.retention`;
    `connections`: the most that may be open; `clock`: seconds since the epoch; `follows`: whether
    this server has upstreams.
    """

    guest: Sequence[Grant] = ()
    read_only: bool = False
    replication_timeout_seconds: float = 1.0
    retain_max_bytes: int = 0
    connections: int = CONNECTIONS
    clock: Callable[[], float] = time.time
    follows: bool = False


class Shared(Line):
    """One server's common state. Belongs to the event loop's thread.

    `hub`: gives the log as it is; `settled`: what of it is settled, to who shows its contents.
    """

    def __init__(
        self,
        log: Log,
        hub: Hub,
        settled: Hub,
        *,
        metrics: Metrics,
        options: Options,
    ) -> None:
        super().__init__(log, metrics)
        self.hub = hub
        self.settled = settled
        self.options = options
        self.logins = Logins(metrics)
        self.retention = Retention(
            log,
            metrics=metrics,
            max_bytes=options.retain_max_bytes,
        )
        self._directory: Directory | None = None
        self._directory_at = (0, 0)
        self._changes_seen = 0
        self._let_in: set[Hashable] = set()
        self._let_in_at = -1

    # --- users ------------------------------------------------------------------------------------

    @property
    def directory(self) -> Directory:
        """Users and privileges as they are now."""
        changes = self.log.inner.system_changes
        if self._directory is not None and changes == self._changes_seen:
            return self._directory
        at = self.log.inner.changes_of(_USER_ID), self.log.inner.changes_of(_PRIV_ID)
        if self._directory is None or at != self._directory_at:
            self._directory = read_directory(self.log, self.options.guest)
            self._directory_at = at
        self._changes_seen = changes
        return self._directory

    def access(self, user_id: int) -> Access:
        """What a user may do. Raises error 45 for one that was dropped."""
        return self.directory.access(user_id)

    @property
    def let_in(self) -> set[Hashable]:
        """What was allowed, of whom, while no row of a system space has changed: then it still is,
        and every request of every protocol asks. What is looked up after this was asked for may be
        noted in it. It is forgotten if it has become long: clients ask for spaces in any order."""
        changes = self._committer.system_count
        if changes != self._let_in_at or len(self._let_in) > LET_IN_MAX:
            self._let_in, self._let_in_at = set(), changes
        return self._let_in

    def check(
        self, user_id: int, space: int | str, *wanted: Privilege, is_there: bool = False
    ) -> None:
        """Raise error 42 unless a user has all of `wanted` on a space, by id or name, or on every
        space if there is none of that (with `is_there` error 36 then); 45 for a user that was
        dropped.

        Who was let in is let in again: see `let_in`.
        """
        known = self.let_in
        if (user_id, space, wanted) in known:
            return
        schema = self.log.schema
        access, found = self.access(user_id), schema.space(space) if is_there else schema.get(space)
        for one in wanted:
            if found is None:
                access.check(one, "space", -1, -1, str(space))
            else:
                access.check(one, "space", found.id, found.owner, found.name)
        if found is not None:
            known.add((user_id, space, wanted))

    def may(
        self, user_id: int, space: int | str, *wanted: Privilege, is_there: bool = False
    ) -> bool:
        """Whether `check` lets a user in."""
        try:
            self.check(user_id, space, *wanted, is_there=is_there)
        except RequestError:
            return False
        return True

    def check_call(self, access: Access, name: str) -> None:
        """Raise error 42 unless that user may call a function: execute of everything, of all
        functions, or of that one if it has a row in `_func`."""
        if access.is_super:
            return
        with self.log.read_view() as view:
            row = view.get(_FUNC_ID, [name], index=2)
        function_id, owner = ("", -1) if row is None else row[:2]
        if owner != access.user.id and not (
            access.bits("function", function_id) & Privilege.EXECUTE
        ):
            raise denied(Privilege.EXECUTE, "function", name, access.user.name)

    def user_id(self, name: str) -> int:
        """Who a connection begins as: the user that it names, "" for guest. Raises error 45."""
        return self.user(name).id if name else GUEST_ID

    def user(self, name: str) -> User:
        """A user by name. Raises error 45."""
        return self.directory.user(name)

    def replicaset(self) -> uuid.UUID:
        """The UUID of the replica set that this store belongs to."""
        with self.log.read_view() as view:
            row = view.get(_SCHEMA_ID, ["cluster"])
        if row is None:
            raise RequestError(ErrorCode.LOADING, "Instance bootstrap hasn't finished yet")
        return uuid.UUID(row[1])

    @property
    def is_read_only(self) -> bool:
        """Whether changes are refused: it was asked for, or this is an anonymous replica."""
        return self.options.read_only or not self.log.replica_id


def as_request_error(error: BaseException) -> RequestError:
    """Any failure of a change as what a client is told."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, WalError):
        return RequestError(ErrorCode.WAL_IO, "Failed to write to disk")
    if isinstance(error, LogweirError):
        return RequestError(ErrorCode.ILLEGAL_PARAMS, error.message)
    raise error
