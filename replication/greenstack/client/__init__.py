"""A client for Greenstack servers: documents, transactions, buckets, and change streams.

::

    async with Client("greenstack://ada:secret@127.0.0.1:11210/orders") as client:
        answer = await client.set(b"order:1", b'{"qty": 3}', datatype=1)
        document = await client.get(b"order:1")
        documents = await client.get_many([b"order:1", b"order:2"])
        await client.transaction([Put(b"a", b"1"), Put(b"b", b"2"), Remove(b"c")])
        async with client.follow(b"my-feed", snapshot=True) as changes:
            async for step in changes:
                ...

Calls may be made at a time; those of one `lane` are done in order, others as they come. A change
whose connection broke may or may not have happened: the caller gets `Unreachable` and decides (a
CAS makes that safe). REMOVE, transactions' removals and `follow` need logweir at the other end, and
say so: `PeerRefused`. What a server answers otherwise is `PeerRefused`, too, with its status in
`result`; a document that is not there is None.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Self

from logweir.errors import ConfigError, PeerRefused
from logweir.limits import CONNECT_SECONDS, GREENSTACK_GETS
from logweir.replication.dialer import Reconnecting
from logweir.replication.greenstack.client.connection import Connection, Notice, Stream, status_of
from logweir.replication.greenstack.follow.incoming import Ended, Step
from logweir.replication.greenstack.wire.address import SCHEMES
from logweir.replication.greenstack.wire.codec import Flag, FlexKey, Frame, Opcode, Status
from logweir.replication.greenstack.wire.many import decode_found, encode_get_many
from logweir.replication.greenstack.wire.messages import (
    Document,
    Feature,
    MutationAnswer,
    Operation,
    StreamOpen,
    decode_buckets,
    decode_get_answer,
    encode_bucket,
    encode_create,
    encode_delete,
    encode_get,
    encode_remove,
)
from logweir.replication.urls import Url
from logweir.wal.vclock import VClock

__all__ = ["Client", "Put", "Remove", "Steps"]


@dataclass(frozen=True, slots=True)
class Put:
    """One change by MUTATION. `operation`: see `messages.Operation`; the rest as `Document`."""

    id: bytes
    value: bytes = b""
    operation: Operation = Operation.SET
    cas: int = 0
    flags: int = 0
    expiration: str = ""
    datatype: int = 0
    compression: int = 0
    vbucket: int = 0


@dataclass(frozen=True, slots=True)
class Remove:
    """One removal."""

    id: bytes
    cas: int = 0
    vbucket: int = 0


class Steps:
    """A change stream, step by step (`incoming`); each is acknowledged when the next is asked for.

    Ends when the server has ended the stream with Success (`follow=False`); another end is raised
    as `PeerRefused`.
    """

    def __init__(self, stream: Stream, url: str) -> None:
        self.instance = stream.instance
        self._stream = stream
        self._url = url
        self._last: Step | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Step:
        if self._last is not None:
            self._stream.acknowledge(self._last)
        step = await self._stream.step()
        self._last = step
        if isinstance(step, Ended):
            self._last = None
            if step.status == Status.SUCCESS:
                raise StopAsyncIteration
            text = f"{self._url}: the server ended the stream: {step.reason}"
            raise PeerRefused(text, result=status_of(step.status))
        return step


class Client(Reconnecting[Connection]):
    """One server. Connects when it is first needed, and again when the connection was lost.

    `on_notice`: called with code and text of what the server tells.
    """

    schemes = SCHEMES

    def __init__(
        self,
        url: str | Url,
        *,
        on_notice: Notice | None = None,
        features: tuple[int, ...] = tuple(Feature),
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        super().__init__(url)
        if self.url.scheme != "greenstack":
            raise ConfigError("url", f"{self.url} is no address of a Greenstack server")
        self._on_notice = on_notice
        self._features = features
        self._connect_seconds = connect_seconds

    async def _connect(self) -> Connection:
        return await Connection.open(
            self.url,
            features=self._features,
            on_notice=self._on_notice,
            timeout_seconds=self._connect_seconds,
        )

    # --- documents --------------------------------------------------------------------------------

    async def get(
        self, key: bytes, *, vbucket: int = 0, lane: bytes | None = None
    ) -> Document | None:
        """The document; None: there is none."""
        request = Frame(Opcode.GET, payload=encode_get(key), flex=_flex(lane, vbucket))
        answer = await (await self.connection()).ask(request)
        if answer.status == Status.NOT_FOUND:
            return None
        self._check(answer, f"document {key!r}")
        return decode_get_answer(answer.payload)

    async def get_many(
        self, keys: Sequence[bytes], *, vbucket: int = 0, lane: bytes | None = None
    ) -> dict[bytes, Document]:
        """Those of the documents that are there, in one request, or in a few if they are large.
        Raises `PeerRefused`, also if a server has no such request."""
        connection = await self.connection()
        connection.need(Feature.GET_MANY, "GET_MANY")
        flex = _flex(lane, vbucket)
        found: dict[bytes, Document] = {}
        left = deque(keys)
        while left:
            asked = [left.popleft() for _ in range(min(len(left), GREENSTACK_GETS))]
            request = Frame(Opcode.GET_MANY, payload=encode_get_many(asked), flex=flex)
            answer = await connection.ask(request)
            self._check(answer, f"{len(asked)} documents")
            again = []
            for key, (status, document) in zip(asked, decode_found(answer.payload), strict=True):
                if document is not None:
                    found[key] = document
                elif status == Status.TOO_BUSY:
                    again.append(key)
                elif status != Status.NOT_FOUND:
                    self._check(replace(answer, status=status), f"document {key!r}")
            if len(again) == len(asked):
                raise PeerRefused(
                    f"{self.url}: none of {len(asked)} documents was looked up",
                    result=Status.TOO_BUSY,
                )
            left.extendleft(reversed(again))
        return found

    async def put(
        self, change: Put | Remove, *, lane: bytes | None = None, priority: int | None = None
    ) -> MutationAnswer:
        """Make one change; returns when it is durable."""
        connection = await self.connection()
        frame = self._frame(connection, change, lane)
        if priority is not None:
            frame = replace(frame, flex={**frame.flex, FlexKey.PRIORITY: bytes((priority,))})
        answer = await connection.ask(frame)
        self._check(answer, f"document {change.id!r}")
        return MutationAnswer.decode(answer.payload)

    async def set(
        self,
        key: bytes,
        value: bytes,
        *,
        cas: int = 0,
        flags: int = 0,
        expiration: str = "",
        datatype: int = 0,
        vbucket: int = 0,
    ) -> MutationAnswer:
        """Store a document; with a CAS only if it still has that."""
        return await self.put(
            Put(
                key,
                value,
                cas=cas,
                flags=flags,
                expiration=expiration,
                datatype=datatype,
                vbucket=vbucket,
            )
        )

    async def remove(self, key: bytes, *, cas: int = 0, vbucket: int = 0) -> MutationAnswer:
        """Remove a document."""
        return await self.put(Remove(key, cas, vbucket))

    async def set_all(
        self, changes: Sequence[Put | Remove], *, lane: bytes | None = None
    ) -> Sequence[PeerRefused | None]:
        """Make many changes, each for itself, in order, with one answer at the end.

        They are sent as quiet requests; returns, of each, the refusal, or None if it succeeded.
        """
        connection = await self.connection()
        frames = [self._frame(connection, change, lane, Flag.QUIET) for change in changes]
        futures = await connection.send(*frames, Frame(Opcode.NOOP, flex=_flex(lane)))
        await futures[-1]
        return [
            None if answer is None else self._refusal(answer, f"document {change.id!r}")
            for change, answer in zip(changes, await asyncio.gather(*futures[:-1]), strict=True)
        ]

    async def transaction(
        self, changes: Sequence[Put | Remove], *, lane: bytes | None = None
    ) -> Sequence[MutationAnswer]:
        """Make all changes together, or none. Raises `PeerRefused` for the one that failed."""
        connection = await self.connection()
        frames = [self._frame(connection, change, lane, Flag.MORE) for change in changes]
        if not frames:
            return ()
        frames[-1] = replace(frames[-1], flags=0)
        answers = await asyncio.gather(*await connection.send(*frames))
        told = [(one, answer) for one, answer in zip(changes, answers, strict=True) if answer]
        told.sort(key=lambda one: one[1].status == Status.INVALID_STATE)
        for change, answer in told:
            self._check(answer, f"document {change.id!r}")
        return [MutationAnswer.decode(answer.payload) for answer in answers if answer]

    # --- buckets ----------------------------------------------------------------------------------

    async def buckets(self) -> Sequence[str]:
        """The buckets that may be used."""
        answer = await self._ask(Frame(Opcode.LIST_BUCKETS), "the list of buckets")
        return decode_buckets(answer.payload)

    async def select(self, bucket: str, *, lane: bytes | None = None) -> None:
        """Use another bucket, on this connection and in that lane."""
        request = Frame(Opcode.SELECT_BUCKET, payload=encode_bucket(bucket), flex=_flex(lane))
        await self._ask(request, f"bucket {bucket!r}")

    async def create_bucket(self, name: str) -> None:
        """Make a bucket."""
        request = Frame(Opcode.CREATE_BUCKET, payload=encode_create(name, "", 1))
        await self._ask(request, f"bucket {name!r}")

    async def delete_bucket(self, name: str) -> None:
        """Remove a bucket with its documents."""
        request = Frame(Opcode.DELETE_BUCKET, payload=encode_delete(name, False))
        await self._ask(request, f"bucket {name!r}")

    # --- changes ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def follow(
        self,
        name: bytes,
        *,
        start: VClock | None = None,
        snapshot: bool = False,
        buckets: Sequence[str] = (),
        window_bytes: int = 1024 * 1024,
        follow: bool = True,
        heartbeat_seconds: int = 10,
        instance: str = "",
        now: bool = False,
        prefix: bytes = b"",
        vbuckets: Sequence[int] = (),
        keys_only: bool = False,
    ) -> AsyncIterator[Steps]:
        """A change stream under a name that this connection does not use.

        `start`: a position of an earlier step of the same server; `instance`: the UUID of that
        one, "": it is not looked at; `now`: begin after what there is; `buckets`: all unless
        named; `prefix`: how keys begin; `vbuckets`: all unless named; `keys_only`: without values.
        Raises `PeerRefused`, with Rollback or PositionGone if only a snapshot helps.
        """
        asked = StreamOpen(
            VClock() if start is None else start,
            snapshot,
            tuple(buckets),
            window_bytes,
            follow,
            heartbeat_seconds,
            instance,
            now,
            prefix,
            tuple(vbuckets),
            keys_only,
        )
        stream = await (await self.connection()).stream(name, asked)
        try:
            yield Steps(stream, str(self.url))
        finally:
            stream.close()

    # --- inside -----------------------------------------------------------------------------------

    async def _ask(self, request: Frame, what: str) -> Frame:
        answer = await (await self.connection()).ask(request)
        self._check(answer, what)
        return answer

    def _check(self, answer: Frame, what: str) -> None:
        refusal = self._refusal(answer, what)
        if refusal is not None:
            raise refusal

    def _refusal(self, answer: Frame, what: str) -> PeerRefused | None:
        if answer.status == Status.SUCCESS:
            return None
        status = status_of(answer.status)
        name = status.name.lower().replace("_", " ")
        return PeerRefused(f"{self.url}: {what}: {name} ({answer.status:#06x})", result=status)

    def _frame(
        self, connection: Connection, change: Put | Remove, lane: bytes | None, flags: int = 0
    ) -> Frame:
        flex = _flex(lane, change.vbucket)
        if isinstance(change, Remove):
            hint = "set the document with an expiration in the past"
            connection.need(Feature.REMOVE, "REMOVE", hint)
            payload = encode_remove(change.id, change.cas)
            return Frame(Opcode.REMOVE, payload=payload, flags=flags, flex=flex)
        put = change
        document = Document(
            put.id, put.value, put.flags, put.expiration, put.compression, put.datatype, put.cas
        )
        payload = document.encode(change.operation)
        return Frame(Opcode.MUTATION, payload=payload, flags=flags, flex=flex)


def _flex(lane: bytes | None, vbucket: int | None = None) -> dict[int, bytes]:
    flex: dict[int, bytes] = {} if lane is None else {FlexKey.LANE: lane}
    if vbucket is not None:
        flex[FlexKey.VBUCKET] = vbucket.to_bytes(2, "big")
    return flex
