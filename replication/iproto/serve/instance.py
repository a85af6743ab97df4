"""A server as Tarantool clients see it: one instance, with its schema version, functions, replicas.

The schema version that every answer carries begins at 80, as after a bootstrap of 2.6.0, and rises
with each change of a space or an index.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from logweir.errors import DecodeError, RequestError
from logweir.replication.iproto.serve.calls import Calls
from logweir.replication.iproto.serve.functions import Functions
from logweir.replication.iproto.serve.trial import Trials
from logweir.replication.iproto.serve.watchers import Events
from logweir.replication.iproto.wire import kernel
from logweir.replication.iproto.wire.codec import VERSION, Ballot
from logweir.replication.iproto.wire.runs import SelectReader
from logweir.replication.service.shared import Shared
from logweir.store.schema.definition import SystemSpace
from logweir.store.schema.row import uuid_of
from logweir.store.schema.schema import Schema
from logweir.wal.mp import unpack
from logweir.wal.vclock import VClock

_FIRST_VERSION: Final = 80
_NAME: Final = "tarantool:"


@dataclass(slots=True)
class FollowerStatus:
    """One replica that follows. `sent`, `acknowledged`: positions; `name`: under which its logs
    are kept, "" for one that nothing is kept for; `evict`: tells it that they are gone."""

    peer: str
    instance: uuid.UUID
    replica_id: int
    name: str
    sent: VClock = field(default_factory=VClock)
    acknowledged: VClock = field(default_factory=VClock)
    evict: Callable[[str], None] = lambda reason: None


class Instance:
    """What all iproto connections of one server share. Belongs to the event loop's thread.

    `functions`: what CALL may call; `calls`: those under way; `reader`: of SELECTs; `trials`: the
    transactions of streams; `events`: what can be watched.
    """

    def __init__(self, shared: Shared, functions: Functions) -> None:
        self.shared = shared
        self.functions = functions
        self.calls = Calls()
        self.followers: dict[uuid.UUID, FollowerStatus] = {}
        self.joining: set[str] = set()
        self.joins_ended = 0
        self.reader = SelectReader()
        self.trials = Trials(shared)
        self.events = Events(self)
        self._committer = shared.log.inner.committer
        self._version_offset = _FIRST_VERSION - shared.log.schema.version
        self._cluster_at = (-1, 0)
        self._ids: tuple[Schema, kernel.Ids] | None = None
        shared.retention.attend(
            evicted=self._evict, departed=self._departed, forgotten=self._forget
        )

    def schema_version(self) -> int:
        """What stands in every answer."""
        return self._committer.schema.version + self._version_offset

    def version_of(self, schema: Schema) -> int:
        """What stands in an answer, if the definitions are these."""
        return schema.version + self._version_offset

    def ids(self, of: int, name: bytes) -> int:
        """By names: see `wire.kernel`."""
        return self.ids_in(self._committer.schema)(of, name)

    def ids_in(self, schema: Schema) -> kernel.Ids:
        """The same in definitions that nobody changes any more."""
        if self._ids is None or self._ids[0] is not schema:
            self._ids = schema, _ids(schema)
        return self._ids[1]

    def ballot(self) -> Ballot:
        """What VOTE is answered."""
        log, read_only = self.shared.log, self.shared.is_read_only
        return Ballot(read_only, log.vclock, log.oldest_position, read_only)

    def info(self) -> dict[str, Any]:
        """What CALL of `box.info` is answered, by which connectors choose among instances. From any
        thread."""
        log = self.shared.log
        vclock = log.vclock
        return {
            "version": ".".join(map(str, VERSION)),
            "package": "logweir",
            "id": log.replica_id,
            "uuid": str(log.instance),
            "cluster": {"uuid": str(self.shared.replicaset())},
            "ro": self.shared.is_read_only,
            "status": "running",
            "lsn": vclock.lsn(log.replica_id),
            "signature": vclock.signature,
            "vclock": dict(vclock),
        }

    def acknowledged(self, status: FollowerStatus, vclock: VClock) -> None:
        """A replica has written everything up to `vclock`: older logs need not be kept for it."""
        status.acknowledged = vclock
        behind = self.shared.log.vclock.without_local().signature - vclock.signature
        self.shared.metrics.follower_lag("tarantool", str(status.instance), max(behind, 0))
        self.keep(status)

    def keep(self, status: FollowerStatus) -> None:
        """Remember a replica's position, so that the logs after it stay."""
        if status.name:
            position = status.acknowledged.with_lsn(0, self.shared.log.vclock.lsn(0))
            self.shared.retention.keep(status.name, position)

    async def keep_here(self, instance: uuid.UUID) -> None:
        """From now on the logs stay for a replica that begins to join."""
        await self.shared.retention.keep_now(follower_name(instance), self.shared.log.applied)

    def status(self) -> list[dict[str, Any]]:
        """The replicas that follow, in plain values."""
        ours = self.shared.log.vclock.without_local().signature
        return [
            {
                "instance": str(one.instance),
                "replica_id": one.replica_id,
                "peer": one.peer,
                "acknowledged": dict(one.acknowledged),
                "lag_rows": max(ours - one.acknowledged.without_local().signature, 0),
            }
            for one in tuple(self.followers.values())
        ]

    def _evict(self, name: str, reason: str) -> None:
        for status in self.followers.values():
            if status.name == name:
                status.name = ""
                status.evict(reason)

    def _forget(self, name: str) -> None:
        for status in self.followers.values():
            if status.name == name:
                status.name = ""

    def _departed(self, names: Sequence[str]) -> Sequence[str]:
        """Replicas that are no longer in `_cluster`. Runs in a thread beside the loop."""
        log = self.shared.log
        at = log.inner.changes_of(SystemSpace.CLUSTER), self.joins_ended
        if at == self._cluster_at:
            return ()
        with log.read_view() as view:
            rows = list(view.tuples(view.engine.schema.space(SystemSpace.CLUSTER)))
        known = {_NAME + str(uuid_of(row)) for row in rows} | self.joining
        self._cluster_at = at
        return [name for name in names if name.startswith(_NAME) and name not in known]


def _ids(schema: Schema) -> kernel.Ids:
    known: dict[tuple[int, bytes], int] = {}

    def find(of: int, name: bytes) -> int:
        number = known.get((of, name))
        if number is None:
            try:
                text = str(unpack(name))
                space = schema.space(text if of < 0 else of)
                number = space.id if of < 0 else schema.index(space, text).id
            except (DecodeError, RequestError):
                return -1  # who handles single requests says why
            known[of, name] = number
        return number

    return find


def follower_name(instance: uuid.UUID) -> str:
    """The name under which a replica's logs are kept."""
    return f"{_NAME}{instance}"
