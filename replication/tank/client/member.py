"""A consumer that shares the partitions of a topic with the other members of its group.

A task of its own says every `BEAT_SECONDS` that it is alive and asks who has what
(`logweir.replication.topic.groups`); a partition is taken up, or given up, when the caller asks for
the next message. Here a lease ends earlier than at the broker, which counts from when the beat
arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self, Unpack

from logweir.errors import ConfigError, LogweirError, PeerRefused, RemoteProtocolError, Unreachable
from logweir.replication.tank.client.connection import now_ms, refused
from logweir.replication.tank.client.consumer import Consumer, ConsumerOptions, Record
from logweir.replication.tank.wire.messages import PublishPart, PublishResult
from logweir.replication.topic.bundle import Message, encode_bundle

if TYPE_CHECKING:
    from logweir.replication.tank.client import Client

BEAT_SECONDS: Final = 0.5
"""How often a member says that it is alive, if its lease is not shorter than three of these."""

_WAIT_MS: Final = 500


@dataclass(frozen=True, slots=True)
class _Share:
    """What the broker said last. `has`: generation by partition; `gives_up`: of these."""

    has: dict[int, int] = field(default_factory=dict)
    gives_up: frozenset[int] = frozenset()

    @property
    def kept(self) -> dict[int, int]:
        """Those that are to be read."""
        return {number: at for number, at in self.has.items() if number not in self.gives_up}


class Member(Consumer):
    """See the module's text. Made by `Client.member`; ``async with`` joins the group and leaves it.

    `lease_seconds`: how long after the last sign of life the others wait before they take over.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        lease_seconds: float = 10.0,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        super().__init__(client, topic, (), **options)
        self._group_name()
        if not 1.0 <= lease_seconds <= 3600.0:
            raise ConfigError("lease_seconds", f"{lease_seconds:g}", hint="1 second to 1 hour")
        self.name = uuid.uuid4().hex
        self._lease_seconds = lease_seconds
        self._until = 0.0
        self._share = _Share()
        self._generations: dict[int, int] = {}
        self._news = asyncio.Event()
        self._beating = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._failure: LogweirError | None = None

    async def __aenter__(self) -> Self:
        await self._beat()
        self._task = asyncio.get_running_loop().create_task(self._live())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._drop(tuple(self._cursors))
        with contextlib.suppress(LogweirError):  # then its lease ends
            await self._say({"leave": True})

    def partitions(self) -> Sequence[int]:
        """Those that are read here now."""
        return sorted(self._cursors)

    # --- signs of life ----------------------------------------------------------------------------

    async def _live(self) -> None:
        pause = min(BEAT_SECONDS, self._lease_seconds / 3)
        while True:
            await asyncio.sleep(pause)
            try:
                await self._beat()
            except LogweirError as error:
                if not _may_pass(error):
                    self._failure = error
                    self._news.set()
                    return

    async def _say(self, what: dict[str, object]) -> None:
        text = json.dumps(what).encode()
        beat = encode_bundle([Message(1, now_ms(), self.name.encode(), text)])
        name = f"group:{self._group}/{self.topic}"
        for result in await self._client.publish([PublishPart(name, 0, beat)]):
            if result is not PublishResult.STORED:
                raise refused(f"member of group {self._group!r}", result)

    async def _beat(self) -> None:
        """Say that it is alive and what it holds, and hear who has what."""
        async with self._beating:
            said_at = asyncio.get_running_loop().time()
            share = self._share
            holds = [one for one in share.has if one in self._cursors or one not in share.gives_up]
            lease_ms = int(self._lease_seconds * 1000)
            await self._say({"lease_ms": lease_ms, "holds": holds})
            told = await self._client.bundle_at(f"group:{self._group}/{self.topic}", 0, 0)
            try:
                mine = json.loads(told[0].content)["members"].get(self.name, {})
                has = {int(number): int(at) for number, at in mine.get("has", {}).items()}
                gives_up = frozenset(map(int, mine.get("gives_up", ())))
            except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
                raise RemoteProtocolError(
                    f"{self._client.url}: what it says of group {self._group!r} is not known"
                ) from error
            self._share = _Share(has, gives_up)
            self._until = said_at + self._lease_seconds
            self._news.set()

    # --- partitions come and go -------------------------------------------------------------------

    def _drop(self, partitions: Collection[int]) -> None:
        if partitions:
            self._records = deque(one for one in self._records if one.partition not in partitions)
            for partition in partitions:
                del self._cursors[partition]

    def _is_alive(self) -> bool:
        return asyncio.get_running_loop().time() < self._until

    async def _settle(self) -> None:
        """Read what is to be read here now, and nothing else."""
        if self._failure is not None:
            raise self._failure
        kept = self._share.kept if self._is_alive() else {}
        generations = self._generations
        self._drop([one for one in self._cursors if kept.get(one) != generations.get(one)])
        gone = [one for one in self._share.gives_up if one in generations]
        self._generations = {one: generations[one] for one in self._cursors}
        try:
            if any(one not in self._cursors for one in kept):
                await self._take_more()
            if gone:
                await self._beat()  # so that the next owner need not wait
        except LogweirError as error:
            if not _may_pass(error):
                raise
            await self._pause()

    async def _take_more(self) -> None:
        """Read the partitions that this member has got, from the group's places on. Where it has
        none, where it begins is the place: who gets the partition next begins there, too."""
        before = self._share.kept  # of another one the last owner may set the place after this
        states, committed = await self._look(), await self.committed()
        kept = self._share.kept if self._is_alive() else {}
        first: list[int] = []
        for partition, generation in before.items():
            is_mine = kept.get(partition) == generation and partition < len(states)
            if is_mine and partition not in self._cursors:
                number = committed.get(partition)
                if number is None:
                    number = self._first(states, partition)
                    first.append(partition)
                self._take_up(partition, number)
                self._generations[partition] = generation
        if first:
            with contextlib.suppress(PeerRefused):  # it is somebody else's again
                await self._commit(first)

    async def get(self) -> Record:
        """See `Consumer.get`: of the partitions that are this member's."""
        while True:
            await self._settle()
            if self._records:
                return self._records.popleft()
            await self._wait(self._wait_ms)

    async def get_many(
        self, most_messages: int = 1000, *, wait_ms: int | None = None
    ) -> Sequence[Record]:
        await self._settle()
        if not self._records:
            await self._wait(self._wait_ms if wait_ms is None else wait_ms)
            await self._settle()
        count = min(most_messages, len(self._records))
        return [self._records.popleft() for _ in range(count)]

    async def _wait(self, wait_ms: int) -> None:
        """For messages, or for partitions where it has none."""
        wait_ms = min(wait_ms, _WAIT_MS)
        if self._cursors:
            await self._fill(wait_ms)
            return
        self._news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):
                await self._news.wait()

    def _commit_key(self, partition: int) -> bytes | None:
        return f"{self._generations[partition]} {self.name}".encode()


def _may_pass(error: LogweirError) -> bool:
    """Whether it may be otherwise soon: meanwhile the lease may end."""
    is_failed = isinstance(error, PeerRefused) and error.result is PublishResult.FAILED
    return is_failed or isinstance(error, Unreachable)
