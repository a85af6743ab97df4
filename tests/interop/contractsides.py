"""The five protocols that can be followed, with the same face to the tests of what all keep to.

A server of ours is the upstream, in this process; the follower is a process of its own
(`support.followprocess`), and a valve stands between them (`logweir.testing.valve`).
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.followprocess import Follower, Followers, content_of, digest
from support.tankserving import ordinary

import logweir
from interop.kvclient import KvClient
from interop.serving import Serving
from logweir.replication.bucket.item import VbucketState
from logweir.replication.bucket.store import STATES_SPACE, Buckets
from logweir.replication.greenstack.wire.codec import FrameBuffer
from logweir.replication.greenstack.wire.codec import Opcode as GsOpcode
from logweir.replication.greenstack.wire.messages import decode_ack
from logweir.replication.memcached.serve import protocol
from logweir.replication.memcached.serve.options import ListenOptions, read_listen_options
from logweir.replication.memcached.wire.codec import Opcode, Packet, PacketBuffer
from logweir.replication.memcached.wire.messages import TapMessage, encode_tap
from logweir.replication.protocols import parse_listen_url
from logweir.replication.stream import positions
from logweir.replication.synapse.follow.ingest import Intake
from logweir.replication.synapse.wire.units import Cursor, Unit
from logweir.replication.tank.client import Client
from logweir.replication.tank.wire.messages import PublishPart, PublishResult
from logweir.replication.topic.spaces import TOPIC_SPACE
from logweir.replication.urls import Url
from logweir.store import Log
from logweir.testing.valve import Valve
from logweir.wal.mp import pack, unpack
from logweir.wal.xrow import Key, RowType

Rows = Sequence[Sequence[Any]]

FOLLOWERS = Followers()
"""Where all of them come from: who uses them ends it with the last test of the file."""


def value_of(number: int, size: int) -> str:
    """Text that belongs to a number."""
    return random.Random(number).randbytes(size // 2 + 1).hex()[:size]


class Side(ABC):
    """One protocol. `spaces`: what is followed; `key_fields`: of their primary keys.

    `other_stops`: in what is told where another upstream is found at the address; "": it is copied.
    `acknowledges`: the follower tells what is durable; `keeps_log`: the upstream keeps its log for
    who copies. Where what exists may be changed and removed it is a `Changing` one.
    """

    name: ClassVar[str]
    scheme: ClassVar[str]
    path: ClassVar[str] = ""
    spaces: ClassVar[tuple[str, ...]]
    key_fields: ClassVar[int] = 1
    other_stops: ClassVar[str] = ""
    acknowledges: ClassVar[bool] = True
    keeps_log: ClassVar[bool] = True
    floods: ClassVar[str] = "live"

    def serve(self, folder: Path, **open_options: Any) -> Serving:
        """An upstream, without content when it is new."""
        listen = [parse_listen_url(f"{self.scheme}://:0{self.listen_more}")]
        return Serving(folder, listen=listen, guest="all", open_options=open_options)

    listen_more: ClassVar[str] = ""
    follow_more: ClassVar[str] = ""

    def url(self, valve: Valve) -> str:
        """What a follower is given."""
        return f"{self.scheme}://127.0.0.1:{valve.port}{self.path}{self.follow_more}"

    def follower(
        self,
        folder: Path,
        valve: Valve,
        limits: Mapping[str, float] | None = None,
        hold: str = "",
    ) -> Follower:
        """A follower, begun."""
        return Follower(FOLLOWERS, folder, self.url(valve), self.spaces, limits, hold)

    def content(self, log: Log) -> dict[str, str]:
        """The tuples that are there."""
        return content_of(log, self.spaces)

    @abstractmethod
    def create(self, server: Serving) -> None:
        """Make what `put` fills."""

    @abstractmethod
    def put(self, server: Serving, numbers: Iterable[int], size: int = 20) -> None:
        """Store something under each of the numbers. They rise where it is not a `Changing`."""

    def acknowledged(self, sent: bytes) -> int:
        """How far a follower that sent this has acknowledged: rises."""
        del sent
        return 0

    def kept(self, server: Serving) -> list[str]:
        """For whom the upstream keeps its log."""
        return list(server.log.status()["followers"])

    def retire(self, server: Serving) -> None:
        """The followers that are gone do not come back."""
        del server

    def settle(self, server: Serving) -> None:
        """Wait until the server knows that its followers have what they have."""
        del server

    def put_other(self, server: Serving) -> None:
        """Fill another upstream, which could be taken for the one that put 40 numbers."""
        self.put(server, range(5, 15), 30)

    def after_other(self, old: Rows, log: Log) -> dict[str, str]:
        """What a follower has that had `old` and then met another upstream, `log`."""
        return {self.spaces[0]: digest(old)} if self.other_stops else self.content(log)

    def rows(self, log: Log) -> Rows:
        """What is followed."""
        return list(log.select(self.spaces[0]))

    def disturb(self, valve: Valve, server: Serving) -> None:
        """Have the valve add to a copy what another server of the protocol could send in it."""
        del valve, server

    def generous(self, patch: pytest.MonkeyPatch) -> None:
        """Let the upstream send without regard for its follower."""
        del patch

    def forget(self, folder: Path) -> None:
        """Have a follower that is stopped copy anew, where the protocol has that."""
        del folder

    @abstractmethod
    def spoil(self, folder: Path) -> Sequence[str]:
        """Have number 10 be what cannot be stored. Returns what the error has to name."""

    def logged(self, folder: Path) -> Counter[tuple[Any, ...]]:
        """How many times each tuple was logged."""
        found: Counter[tuple[Any, ...]] = Counter()
        with logweir.open(folder) as log:
            names = {log.schema.space(name).id for name in self.spaces if log.schema.get(name)}
            for transaction in log.rows():
                for row in transaction.rows:
                    if row.space_id in names and row.type in (RowType.INSERT, RowType.REPLACE):
                        fields = unpack(row.body)[Key.TUPLE]
                        found[tuple(fields[: self.key_fields])] += 1
        return found


class Changing(Side):
    """A protocol of things that may be changed and removed."""

    @abstractmethod
    def remove(self, server: Serving, numbers: Iterable[int]) -> None:
        """Remove what was stored under the numbers."""


class Iproto(Changing):
    """Tarantool's: an upstream and a member of its replica set."""

    name = "iproto"
    scheme = "tarantool"
    other_stops = "replica set"
    spaces = ("t",)

    def create(self, server: Serving) -> None:
        """See `Side`."""
        server.log.create_space("t", [("id", "unsigned"), ("v", "any")], primary=["id"])

    def put(self, server: Serving, numbers: Iterable[int], size: int = 20) -> None:
        """See `Side`."""
        for group in _groups(numbers):
            rows = [[number, value_of(number, size)] for number in group]
            if len(rows) == 1 and server.log.get("t", group[0]) is None:
                server.log.insert("t", rows[0])
                continue
            with server.log.transaction() as tx:
                for row in rows:
                    tx.replace("t", row)

    def remove(self, server: Serving, numbers: Iterable[int]) -> None:
        """See `Changing`."""
        for number in numbers:
            server.log.delete("t", number)

    def acknowledged(self, sent: bytes) -> int:
        """See `Side`: the signature of the newest vclock."""
        found = 0
        while len(sent) >= 5:
            size = int.from_bytes(sent[1:5], "big")
            frame, sent = sent[5 : 5 + size], sent[5 + size :]
            if frame.startswith(b"\x81\x00\x00") and len(frame) == size:
                found = max(found, sum(unpack(frame[3:])[0x26].values()))
        return found

    def retire(self, server: Serving) -> None:
        """See `Side`: they are members until they are removed."""
        ours = server.log.replica_id
        for number, *_ in server.log.select("_cluster"):
            if number != ours:
                server.log.delete("_cluster", number)

    def spoil(self, folder: Path) -> Sequence[str]:
        """See `Side`: a row of its key."""
        with logweir.open(folder) as log:
            log.insert("t", [10, "ours"])
        return "Duplicate key", "lsn", "cannot be applied"


class _OfBuckets(Changing):
    """A bucket, whatever the protocol."""

    path = "/b"
    spaces = ("b",)

    def create(self, server: Serving) -> None:
        """See `Side`."""
        Buckets(server.log).make("b")

    def put(self, server: Serving, numbers: Iterable[int], size: int = 20) -> None:
        """See `Side`."""
        for group in _groups(numbers):
            with server.log.transaction() as tx:
                for number in group:
                    cas = server.log.vclock.signature * 1000 + number + 1
                    data = value_of(number, size).encode()
                    row = (b"k%06d" % number, 0, data, 0, 0, cas, 0, 0, "", b"")
                    tx.replace("b", row)

    def remove(self, server: Serving, numbers: Iterable[int]) -> None:
        """See `Changing`."""
        with server.log.transaction() as tx:
            for number in numbers:
                tx.delete("b", b"k%06d" % number)

    def forget(self, folder: Path) -> None:
        """See `Side`."""
        with logweir.open(folder) as log:
            log.truncate(positions.POSITION_SPACE)


_DATA = (Opcode.TAP_MUTATION, Opcode.TAP_DELETE, Opcode.TAP_CHECKPOINT_END)


class Tap(_OfBuckets):
    """memcached's."""

    name = "tap"
    scheme = "tap"
    floods = "copy"
    listen_more = "/b"

    def acknowledged(self, sent: bytes) -> int:
        """See `Side`: how many answers to what has to be stored."""
        packets, problem = PacketBuffer().feed(sent)
        assert problem is None
        return sum(packet.is_response and packet.opcode in _DATA for packet in packets)

    def retire(self, server: Serving) -> None:
        """See `Side`: a name is given up by who has it, or after an hour."""
        server.wait(lambda: not server.server.listener.links)
        with KvClient(server.port) as client:
            for stream in server.server.status()["streams"]:
                client.ask(Packet(Opcode.DEREGISTER_TAP_CLIENT, stream["name"].encode()))

    def settle(self, server: Serving) -> None:
        """See `Side`: what was not acknowledged comes again from its beginning."""
        server.wait(
            lambda: not any(one["unacknowledged"] for one in server.server.status()["streams"])
        )

    def disturb(self, valve: Valve, server: Serving) -> None:
        """See `Side`: a checkpoint, after the first items of each connection."""
        number = server.log.vclock.signature
        ends = [
            TapMessage(opcode, number=number)
            for opcode in (Opcode.TAP_CHECKPOINT_START, Opcode.TAP_CHECKPOINT_END)
        ]

        def changing() -> Callable[[bytes], bytes]:
            rest, items = b"", 0

            def change(data: bytes) -> bytes:
                nonlocal rest, items
                rest, out = rest + data, b""
                while len(rest) >= 24 and len(rest) >= (end := 24 + int.from_bytes(rest[8:12])):
                    items += rest[1] == Opcode.TAP_MUTATION
                    out, rest = out + rest[:end], rest[end:]
                    if items == 20:
                        items += 1
                        out += b"".join(encode_tap(one) for one in ends)
                return out

            return change

        valve.change = changing

    def generous(self, patch: pytest.MonkeyPatch) -> None:
        """See `Side`."""

        def options(url: Url) -> ListenOptions:
            found = read_listen_options(url)
            stream = replace(found.stream, window_packets=1 << 40, window_bytes=1 << 40)
            return replace(found, stream=stream)

        patch.setattr(protocol, "read_listen_options", options)

    def spoil(self, folder: Path) -> Sequence[str]:
        """See `Side`: a vbucket that is dead here."""
        with logweir.open(folder) as log:
            log.replace(STATES_SPACE, ["b", 0, int(VbucketState.DEAD)])
        return "k000010", "cannot be applied"


class Greenstack(_OfBuckets):
    """Couchbase's, with our extension."""

    name = "greenstack"
    scheme = "greenstack"

    def put_other(self, server: Serving) -> None:
        """See `Side`: its log reaches further than the other one's."""
        for _ in range(20):
            self.put(server, range(5, 15), 30)

    def acknowledged(self, sent: bytes) -> int:
        """See `Side`: bytes of all acknowledgements."""
        frames, problem = FrameBuffer().feed(sent)
        assert problem is None
        return sum(
            decode_ack(one.payload)[1] for one in frames if one.opcode == GsOpcode.STREAM_ACK
        )

    def spoil(self, folder: Path) -> Sequence[str]:
        """See `Side`: its place is taken."""
        return _take_place(folder, self.spaces[0])


class Tank(Side):
    """Tank's: a topic of one partition."""

    name = "tank"
    scheme = "tank"
    other_stops = "it ends at"
    spaces = ("t",)
    key_fields = 2
    acknowledges = keeps_log = False

    def create(self, server: Serving) -> None:
        """See `Side`."""

        async def work() -> None:
            async with Client(f"tank://127.0.0.1:{server.port}") as client:
                await client.create_topic("t", 1)

        asyncio.run(work())

    def put(self, server: Serving, numbers: Iterable[int], size: int = 20) -> None:
        """See `Side`."""

        async def work() -> None:
            async with Client(f"tank://127.0.0.1:{server.port}") as client:
                for group in _groups(numbers):
                    parts = [
                        PublishPart("t", 0, ordinary(value_of(number, size).encode()), None)
                        for number in group
                    ]
                    results = await asyncio.gather(*(client.publish([part]) for part in parts))
                    assert all(list(one) == [PublishResult.STORED] for one in results)

        asyncio.run(work())

    def spoil(self, folder: Path) -> Sequence[str]:
        """See `Side`: its place is taken."""
        with logweir.open(folder) as log:
            log.delete(TOPIC_SPACE, "t")
        return _take_place(folder, self.spaces[0])


class Synapse(Side):
    """Synapse's, by lines: a stream."""

    name = "synapse"
    scheme = "synapse"
    spaces = ("synapse_events",)
    key_fields = 3
    follow_more = "?start=all&dialect=D1"
    acknowledges = keeps_log = False

    def create(self, server: Serving) -> None:
        """See `Side`."""
        Intake(server.log, "logweir.test").store(
            [Unit("events", "master", 1, 1, [pack(["first"])], cursor=Cursor(1, 1))]
        )

    def put(self, server: Serving, numbers: Iterable[int], size: int = 20) -> None:
        """See `Side`."""
        intake = Intake(server.log, "logweir.test")
        for group in _groups(numbers):
            units = []
            for number in group:
                token = number + 10
                rows = [pack([value_of(number, size)])]
                units.append(Unit("events", "master", 1, token, rows, cursor=Cursor(token, token)))
            intake.store(units)

    def after_other(self, old: Rows, log: Log) -> dict[str, str]:
        """See `Side`: tokens that begin anew are those of another writer."""
        new = [(f"{row[0]}#2", *row[1:]) for row in self.rows(log)]
        return {self.spaces[0]: digest([*old, *new])}

    def spoil(self, folder: Path) -> Sequence[str]:
        """See `Side`: its place is taken."""
        return _take_place(folder, self.spaces[0])


def _take_place(folder: Path, name: str) -> Sequence[str]:
    """Have a space of something else where a follower's should be."""
    with logweir.open(folder) as log:
        log.drop_space(name)
        log.create_space(name, [("ours", "unsigned")], primary=["ours"])
        log.insert(name, [7])
    return (name,)


def _groups(numbers: Iterable[int]) -> Iterable[list[int]]:
    """A hundred at a time."""
    whole = list(numbers)
    return [whole[at : at + 100] for at in range(0, len(whole), 100)]


SIDES: tuple[Side, ...] = (Iproto(), Tap(), Greenstack(), Tank(), Synapse())
