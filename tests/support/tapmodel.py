"""What tests of memcached and TAP share: the recordings, and a bucket that lives in memory."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from support.tapcommands import Model

from logweir.replication.bucket.change import BURY, TAKEN, PlainItemComputer
from logweir.replication.bucket.item import (
    Changed,
    Held,
    Item,
    VbucketState,
    pack_item,
    unpack_item,
)
from logweir.replication.bucket.joint import change_all
from logweir.replication.bucket.store import Buckets, GroupItems, ViewItems
from logweir.replication.memcached.push.stream import Producer
from logweir.replication.memcached.serve.commands import Executor
from logweir.replication.memcached.serve.runs import (
    Commands,
    RequestRun,
    execute_one,
    packets_of,
)
from logweir.replication.memcached.server_session import (
    Connected,
    ServerSession,
    Settings,
)
from logweir.replication.memcached.wire.codec import Packet, PacketBuffer
from logweir.replication.service.sasl import Credentials
from logweir.replication.service.verifiers import ScramVerifier, cram_verifier, scram_verifier
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job
from logweir.store.log import Log
from logweir.wal.xrow import RowType

DATA = Path(__file__).parent.parent / "data" / "tap"
NOW = 1_795_000_000.0


def captures() -> dict[str, dict[str, Any]]:
    """The recordings by name."""
    with (DATA / "captures.jsonl").open() as file:
        return {item["name"]: item for item in map(json.loads, file)}


def vectors(kind: str) -> dict[str, bytes]:
    """The computed packets of one kind: connect, stream, answers."""
    found = json.loads((DATA / "vectors.json").read_text())[kind]
    return {name: bytes.fromhex(text) for name, text in found.items()}


def packets(data: bytes) -> list[Packet]:
    """The whole packets of some bytes."""
    found, problem = PacketBuffer().feed(data)
    assert problem is None
    return found


def oldest_opaque(producer: Producer[Any]) -> int | None:
    """The opaque of the first packet that is not acknowledged; None: all are."""
    return producer._unacked[0].opaque if producer._unacked else None


def sent(name: str, direction: str) -> bytes:
    """All bytes of one direction of a recording."""
    chunks = captures()[name]["chunks"]
    return b"".join(bytes.fromhex(data) for where, data in chunks if where == direction)


@dataclass
class MemoryBucket:
    """A bucket in memory. As `GroupItems`; CAS values count from 1."""

    items: dict[bytes, Item] = field(default_factory=dict)
    states: dict[int, VbucketState] = field(default_factory=lambda: {0: VbucketState.ACTIVE})
    now: float = NOW
    log: list[str] = field(default_factory=list)
    cas: Any = field(default_factory=lambda: itertools.count(1))

    def get(self, key: bytes, vbucket: int) -> Item | None:
        found = self.items.get(key)
        if found is None or found.vbucket != vbucket:
            return None
        if found.is_expired(self.now):
            del self.items[key]
            self.log.append("expired")
            return None
        return found

    def put(self, item: Item) -> Item:
        if not item.cas:
            item = replace(item, cas=next(self.cas))
        self.items[item.key] = item
        self.log.append("put")
        return item

    def remove(self, key: bytes, vbucket: int, *, cas: int = 0, ttl: int = 255) -> bool:
        del cas, ttl
        found = self.items.get(key)
        if found is None or found.vbucket != vbucket:
            return False
        del self.items[key]
        self.log.append("remove")
        return True

    def change(self, kind: int, given: Item, number: int = 0) -> Changed:
        old = self.items.get(given.key)
        while True:
            computer = PlainItemComputer(int(self.now), next(self.cas))
            data = None if old is None else pack_item(old)
            _, made, told = computer.refer(kind, number, pack_item(given), data)
            if computer.obstacle is None:
                break
            del self.items[given.key]
            self.log.append("expired")
            old = None
        if made is not None and kind & ~TAKEN == BURY:
            del self.items[given.key]
            self.log.append("remove")
        elif made is not None:
            self.items[given.key] = unpack_item(made)
            self.log.append("put")
        return Changed(told[0], told[1], made or data)

    def new_cas(self) -> int:
        return next(self.cas)

    def flush(self) -> None:
        self.items.clear()
        self.log.append("flush")

    def state(self, vbucket: int) -> VbucketState | None:
        return self.states.get(vbucket)

    def set_state(self, vbucket: int, state: VbucketState | None) -> None:
        if state is None:
            self.items = {k: v for k, v in self.items.items() if v.vbucket != vbucket}
            del self.states[vbucket]
        else:
            self.states[vbucket] = state


class Users(Credentials):
    """One user, ada, whose password is lovelace."""

    def __init__(self, *mechanisms: str) -> None:
        self._mechanisms = mechanisms or ("PLAIN",)

    def mechanisms(self) -> tuple[str, ...]:
        return self._mechanisms

    def check_password(self, user: str, password: str) -> bool:
        return (user, password) == ("ada", "lovelace")

    def cram(self, user: str) -> bytes | None:
        return cram_verifier("lovelace") if user == "ada" else None

    def scram(self, user: str, mechanism: str) -> ScramVerifier | None:
        return scram_verifier(mechanism, "lovelace", b"salt", 64) if user == "ada" else None


class Server:
    """A server session on a bucket in memory: bytes in, bytes out. Streams are refused unless the
    test takes the `Connected` events."""

    def __init__(
        self,
        bucket: MemoryBucket | None = None,
        *,
        credentials: Credentials | None = None,
        must_login: bool = False,
    ) -> None:
        self.bucket = bucket or MemoryBucket()
        settings = Settings(bytes, credentials)
        self.session = ServerSession(settings, 0.0, must_login=must_login)
        self.connected: list[Connected] = []
        self.executor: Executor = Model(self.bucket, self.bucket.now)

    def run(self, event: Commands) -> bytes:
        """The answers to commands."""
        return b"".join(self.executor.execute(request) for request in packets_of(event.requests))

    def feed(self, data: bytes, now: float = 0.0) -> bytes:
        """What is answered to some bytes."""
        for event in self.session.receive_data(data, now):
            if isinstance(event, Commands):
                self.session.answer(event.slot, self.run(event))
            elif isinstance(event, Connected):
                self.connected.append(event)
        return self.session.data_to_send()


class Waiter:
    """Whose requests they are, as `Commands` asks it."""

    waits = False


def asked(requests: Sequence[Packet | RequestRun]) -> Commands:
    """What a client asks for in a job."""
    commands = Commands(0, requests)
    commands.asker = Waiter()
    return commands


class StoreServer(Server):
    """A server session on a bucket of a store, as an endpoint runs it. `log`: open."""

    def __init__(self, log: Log, name: str = "b") -> None:
        super().__init__()
        self.log = log
        self.now = NOW
        self.stored = Buckets(log, lambda: self.now).make(name)
        self.start = log.vclock

    def run(self, event: Commands) -> bytes:
        part = asked(event.requests)

        def apply(group: Group) -> bytes:
            items = GroupItems(self.stored, group, self.now)
            executor = Executor(items, self.now)
            answers: list[bytes] = []
            while part.rest:
                change_all(
                    [part], items, self.now, lambda _, one: execute_one(group, executor, one), group
                )
                if part.is_held:
                    raise Held
                answers += part.fresh
                part.rest = part.left
                part.asker.waits = False
            return b"".join(answers)

        job = Job(apply)
        self.log.inner.run_job(job)
        assert isinstance(job.result, bytes)
        return job.result

    @property
    def items(self) -> dict[bytes, Item]:
        """What the bucket holds."""
        with self.log.read_view() as view:
            space = view.engine.schema.space(self.stored.space_id)
            found = map(unpack_item, view.tuples(space))
            return {item.key: item for item in found}

    @property
    def states(self) -> dict[int, VbucketState]:
        """The vbuckets that are here."""
        with self.log.read_view() as view:
            return ViewItems(self.stored, view).states()

    def rows(self) -> list[list[str]]:
        """What came into the log since it was made: the types of each transaction's rows."""
        return [
            [RowType(row.type).name for row in transaction.rows]
            for transaction in self.log.rows(self.start)
        ]
