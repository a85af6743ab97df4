"""Reading partitions of a topic, with a place in each.

Source: Tank 4.0 and its clients, observed; see `tank.client`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Self, TypedDict

from logweir.errors import (
    ConfigError,
    DecodeError,
    LimitExceeded,
    PositionUnavailable,
    Unreachable,
)
from logweir.replication.tank.client.connection import (
    DISCOVER_SECONDS,
    fetches_of,
    now_ms,
    pause_seconds,
    refused,
)
from logweir.replication.tank.follow.cursor import Cursor, Reading
from logweir.replication.tank.wire.messages import (
    FetchStatus,
    PartitionState,
    PublishPart,
    PublishResult,
)
from logweir.replication.topic.bundle import Message, encode_bundle

if TYPE_CHECKING:
    from logweir.replication.tank.client import Client

FETCH_BYTES: Final = 1024 * 1024
WAIT_MS: Final = 5000

Start = Literal["begin", "end"] | int
Reset = Literal["error", "begin", "end"]


class ConsumerOptions(TypedDict, total=False):
    """See `Consumer`."""

    start: Start | Mapping[int, Start]
    group: str
    reset: Reset
    fetch_bytes: int
    min_bytes: int
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Record:
    """One message with its place."""

    topic: str
    partition: int
    number: int
    time_ms: int
    key: bytes | None
    content: bytes


class Consumer:
    """Reads partitions of one topic, all unless named, and keeps its place in each.

    `start`: "begin" (the oldest there is), "end" (what comes from now on) or a number, for all or
    per partition; with a `group` its committed place comes first. Where no partitions are named
    those that the topic gets later are read, too, from their first message on. `reset`: where to go
    on when the broker no longer has, or does not yet have, the place: "error" raises
    `PositionUnavailable`. Lost connections are made anew.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        partitions: Iterable[int] | None,
        *,
        start: Start | Mapping[int, Start] = "begin",
        group: str = "",
        reset: Reset = "error",
        fetch_bytes: int = FETCH_BYTES,
        min_bytes: int = 0,
        wait_ms: int = WAIT_MS,
    ) -> None:
        for what, name in (("group", group), ("topic", topic)):
            if group and "/" in name:
                raise ConfigError(
                    what,
                    f"{name[:80]!r} has a slash, which parts the two in a group's place",
                    hint="give a name without one",
                )
        self.topic = topic
        self._client = client
        self._chosen = None if partitions is None else sorted(set(partitions))
        self._start = start
        self._group = group
        self._reset = reset
        self._fetch_bytes = fetch_bytes
        self._min_bytes = min_bytes
        self._wait_ms = wait_ms
        self._cursors: dict[int, Cursor] = {}
        self._records: deque[Record] = deque()
        self._failures = 0
        self._looked = 0.0

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._records.clear()

    async def __aiter__(self) -> AsyncIterator[Record]:
        while True:
            yield await self.get()

    # --- places -----------------------------------------------------------------------------------

    def position(self, partition: int) -> int:
        """Number of the next message that will be given out."""
        for record in self._records:
            if record.partition == partition:
                return record.number
        return self._cursor(partition).wanted

    def seek(self, partition: int, number: int) -> None:
        """Go on with message `number`, or the next one after it."""
        cursor = self._cursor(partition)
        self._records = deque(each for each in self._records if each.partition != partition)
        cursor.wanted = number

    async def seek_to_begin(self, *partitions: int) -> None:
        """Go to the oldest message there is, in the partitions named or all."""
        states = await self._client.partitions(self.topic)
        for partition in partitions or tuple(self._cursors):
            self.seek(partition, max(1, states[partition].first))

    async def seek_to_end(self, *partitions: int) -> None:
        """Go after the last message, in the partitions named or all."""
        states = await self._client.partitions(self.topic)
        for partition in partitions or tuple(self._cursors):
            self.seek(partition, states[partition].last + 1)

    async def seek_to_time(self, time_ms: int, *partitions: int) -> None:
        """Go to the first message with that time or a later one, in milliseconds since 1970.

        The times of a partition have to rise; they are the producers'.
        """
        states = await self._client.partitions(self.topic)
        for partition in partitions or tuple(self._cursors):
            connection = await self._client.connection()
            state = states[partition]
            number = await connection.number_at(self.topic, partition, state, time_ms)
            self.seek(partition, number)

    def _cursor(self, partition: int) -> Cursor:
        cursor = self._cursors.get(partition)
        if cursor is None:
            raise ConfigError("partition", f"{partition} of {self.topic} is not read here")
        return cursor

    async def _look(self) -> Sequence[PartitionState]:
        self._looked = asyncio.get_running_loop().time()
        return await self._client.partitions(self.topic)

    async def _begin(self) -> None:
        states = await self._look()
        chosen = range(len(states)) if self._chosen is None else self._chosen
        committed = await self.committed() if self._group else {}
        for partition in chosen:
            self._take_up(partition, committed.get(partition, self._first(states, partition)))

    def _first(self, states: Sequence[PartitionState], partition: int) -> int:
        """Where to begin in a partition that has no committed place. Raises `PeerRefused`."""
        if partition >= len(states):
            raise refused(f"partition {self.topic}/{partition}", PublishResult.UNKNOWN_PARTITION)
        start = self._start
        if isinstance(start, Mapping):
            start = start.get(partition, "begin")
        if start == "end":
            return states[partition].last + 1
        return max(1, states[partition].first) if start == "begin" else start

    def _take_up(self, partition: int, number: int) -> None:
        self._cursors[partition] = Cursor(self.topic, partition, number, self._fetch_bytes)

    async def _add_new(self) -> None:
        """Read the partitions that the topic has got meanwhile, too."""
        looked = asyncio.get_running_loop().time() - self._looked
        if self._chosen is not None or looked < DISCOVER_SECONDS:
            return
        states = await self._look()
        new = range(len(self._cursors), len(states))
        committed = await self.committed() if self._group and new else {}
        for partition in new:
            self._take_up(partition, committed.get(partition, max(1, states[partition].first)))

    # --- reading ----------------------------------------------------------------------------------

    async def get(self) -> Record:
        """The next message, waited for. Raises `PositionUnavailable`, see `reset`."""
        while not self._records:
            await self._fill(self._wait_ms)
        return self._records.popleft()

    async def get_many(
        self, most_messages: int = 1000, *, wait_ms: int | None = None
    ) -> Sequence[Record]:
        """Up to so many messages; waits for the first ones at most `wait_ms`, then gives none."""
        if not self._records:
            await self._fill(self._wait_ms if wait_ms is None else wait_ms)
        count = min(most_messages, len(self._records))
        return [self._records.popleft() for _ in range(count)]

    async def _fill(self, wait_ms: int) -> None:
        if not self._cursors:
            await self._begin()
        try:
            await self._add_new()
            connection = await self._client.connection()
            requests = [cursor.request() for cursor in self._cursors.values()]
            fetches = fetches_of(requests, min_bytes=self._min_bytes)
            parts = await connection.fetch_first(fetches, wait_ms)
        except Unreachable:
            await self._pause()
            return
        self._failures = 0
        for part in parts:
            if part.partition is None:
                raise refused(f"topic {self.topic!r}", PublishResult.UNKNOWN_TOPIC)
            await self._take(part.partition, self._cursors[part.partition].take(part))

    async def _pause(self) -> None:
        self._failures += 1
        await asyncio.sleep(pause_seconds(self._failures))

    async def _take(self, partition: int, reading: Reading) -> None:
        part = reading.part
        if part.status is FetchStatus.BOUNDARY:
            if self._reset == "error":
                raise PositionUnavailable(
                    self._cursors[partition].wanted,
                    part.first_available,
                    part.high_water_mark,
                    hint="seek to another place, or give the consumer a `reset`",
                )
            seek = self.seek_to_begin if self._reset == "begin" else self.seek_to_end
            await seek(partition)
            return
        if part.status not in (FetchStatus.FINE, FetchStatus.SPARSE):
            raise refused(f"partition {self.topic}/{partition}", PublishResult.UNKNOWN_PARTITION)
        taken = 0
        for bundle in reading.bundles:
            try:
                messages = reading.messages_of(bundle)
            except (DecodeError, LimitExceeded):
                self._cursors[partition].wanted = bundle.first if taken else bundle.last + 1
                if not taken:
                    raise
                return
            taken += len(messages)
            for number, time_ms, key, content in messages:
                self._records.append(Record(self.topic, partition, number, time_ms, key, content))

    # --- places kept at the broker ----------------------------------------------------------------

    async def commit(self) -> None:
        """Keep the place of every partition at the broker under the group's name.

        Raises `PeerRefused` from a broker that is not logweir's.
        """
        await self._commit(self._cursors)

    async def _commit(self, partitions: Iterable[int]) -> None:
        name = self._group_name()
        parts = []
        for partition in partitions:
            number = self.position(partition)
            key = self._commit_key(partition)
            mark = encode_bundle([Message(number, now_ms(), key, b"")], sparse=True)
            parts.append(PublishPart(name, partition, mark, number))
        for result in await self._client.publish(parts, at_numbers=True):
            if result is not PublishResult.STORED:
                raise refused(f"commit of group {self._group!r}", result)

    def _commit_key(self, partition: int) -> bytes | None:
        """What shows that a partition is this consumer's to commit."""
        return None

    async def committed(self) -> Mapping[int, int]:
        """The places that the group has committed: partition → next number."""
        connection = await self._client.connection()
        answer = await connection.partitions(self._group_name())
        return {
            partition: state.first
            for partition, state in enumerate(answer.partitions)
            if state.reason is None and state.first
        }

    def _group_name(self) -> str:
        if not self._group:
            raise ConfigError("group", "is needed to commit", hint="give it to the consumer")
        return f"consumer:{self._group}/{self.topic}"
