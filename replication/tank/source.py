"""Following topics of a Tank broker into a store.

All partitions are asked for in one waiting fetch after the other, so each gets what is new in every
round; its bundles, losses and places are one transaction, or several for several partitions where
that would be too large, and the next fetch is under way while they become durable. Numbers stay
what they are there.

* The broker no longer has what comes next: the numbers are noted in `logweir_gap`, and reading goes
  on at the first one it has.
* It does not have yet what we have: it lost data, or is another broker. The source stops and says
  so; nothing here is rewound.
* It has numbers that it does not give (see `logweir.replication.tank.follow`), or bundles that no
  client can read: they are noted as a gap, and reading goes on behind them.
* Topics without a name in the address: all there are, looked for again every `DISCOVER_SECONDS`,
  as are new partitions.

Source: Tank 4.0, observed; defects of it that are met here are told in `follow`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from logweir.errors import ConfigError, DecodeError, PeerRefused, SourceStopped
from logweir.replication.runner import Progress, SourceState
from logweir.replication.tank.connection import Connection
from logweir.replication.tank.follow import Cursor, Reading
from logweir.replication.tank.ingest import Batch, Intake
from logweir.replication.tank.messages import (
    Fetch,
    FetchAnswer,
    FetchStatus,
    PublishResult,
    Topics,
    TopicsAnswer,
)
from logweir.replication.urls import Url
from logweir.store import Log

__all__ = ["TankSource"]

FETCH_BYTES = 1024 * 1024
"""Asked for per partition and round."""

WAIT_MS = 10_000
DISCOVER_SECONDS = 30.0
_MOST = 0xFF  # topics of a fetch, partitions of a topic in it


class TankSource:
    """One broker, followed. `url`: with a topic and a partition, a topic, or neither."""

    def __init__(
        self, url: Url, log: Log, *, fetch_bytes: int = FETCH_BYTES, wait_ms: int = WAIT_MS
    ) -> None:
        self._url = url
        self._log = log
        self._fetch_bytes = fetch_bytes
        self._wait_ms = wait_ms
        self._broker = Url(url.scheme, url.host, url.port, options=url.options)
        self._topic = url.path[0] if url.path else ""
        self._partition: int | None = None
        if len(url.path) > 1:
            if not url.path[1].isdecimal() or int(url.path[1]) > 0xFFFF:
                raise ConfigError(
                    f"address {url}", f"{url.path[1]!r} is no partition", hint="give its number"
                )
            self._partition = int(url.path[1])
        self._intake: Intake | None = None
        self._cursors: dict[tuple[str, int], Cursor] = {}
        self._marks: dict[tuple[str, int], int] = {}

    @property
    def url(self) -> str:
        """See `logweir.replication.runner.Source`."""
        return str(self._url)

    async def attempt(self, progress: Progress) -> None:
        """See `logweir.replication.runner.Source`."""
        connection = await Connection.open(self._broker)
        storing: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        try:
            progress.state(SourceState.SYNCING)
            self._cursors.clear()
            self._marks.clear()
            if self._intake is None:
                self._intake = await asyncio.to_thread(Intake, self._log, str(self._broker))
            discovered = -DISCOVER_SECONDS
            while True:
                if loop.time() - discovered >= DISCOVER_SECONDS:
                    await self._discover(connection)
                    discovered = loop.time()
                    progress.alive()
                answer = await self._fetch(connection)
                progress.alive()
                batches = self._read(answer)
                if storing is not None:
                    await storing
                    storing = None
                if batches:
                    storing = loop.create_task(self._store(batches, progress))
                if self._is_current():
                    if storing is not None:
                        await storing
                        storing = None
                    progress.state(SourceState.FOLLOWING)
        finally:
            connection.close("following ends")
            if storing is not None:
                await asyncio.gather(storing, return_exceptions=True)
            await connection.wait_closed()

    # --- what there is to follow ------------------------------------------------------------------

    async def _discover(self, connection: Connection) -> None:
        for name in await self._names(connection):
            states = (await connection.partitions(name)).partitions
            if not states:
                raise PeerRefused(
                    f"{self._broker}: there is no topic {name!r}",
                    result=PublishResult.UNKNOWN_TOPIC,
                    hint="create it there, or correct the address",
                )
            chosen = range(len(states)) if self._partition is None else [self._partition]
            if self._partition is not None and self._partition >= len(states):
                raise SourceStopped(
                    f"{self._url}: topic {name!r} has {len(states)} partitions",
                    hint="partitions are numbered from 0",
                )
            await asyncio.to_thread(self._begin, name, len(states), chosen)
            for partition in chosen:
                self._marks.setdefault((name, partition), states[partition].last)

    async def _names(self, connection: Connection) -> Sequence[str]:
        if self._topic:
            return [self._topic]
        answer = (await connection.ask(Topics(0))).answer
        assert isinstance(answer, TopicsAnswer)
        return [name for name, enabled, _ in answer.topics if enabled]

    def _begin(self, topic: str, partitions: int, chosen: Sequence[int]) -> None:
        assert self._intake is not None
        self._intake.topic(topic, partitions)
        for partition in chosen:
            if (topic, partition) not in self._cursors:
                wanted = self._intake.next_number(topic, partition)
                self._cursors[topic, partition] = Cursor(
                    topic, partition, wanted, self._fetch_bytes
                )

    def _is_current(self) -> bool:
        return all(cursor.wanted > self._marks[key] for key, cursor in self._cursors.items())

    # --- rounds -----------------------------------------------------------------------------------

    async def _fetch(self, connection: Connection) -> FetchAnswer:
        groups: dict[str, list[Cursor]] = {}
        for (topic, _), cursor in self._cursors.items():
            groups.setdefault(topic, []).append(cursor)
        pieces = [
            (topic, tuple(cursor.request() for cursor in cursors[start : start + _MOST]))
            for topic, cursors in groups.items()
            for start in range(0, len(cursors), _MOST)
        ]
        wait_ms = self._wait_ms if len(pieces) <= _MOST else 0
        answers = [
            await connection.fetch(
                Fetch(0, tuple(pieces[start : start + _MOST]), wait_ms, client="logweir")
            )
            for start in range(0, len(pieces), _MOST)
        ]
        if not pieces:  # a broker without topics
            await asyncio.sleep(self._wait_ms / 1000)
        return FetchAnswer(0, tuple(part for answer in answers for part in answer.parts))

    def _read(self, answer: FetchAnswer) -> list[Batch]:
        batches = []
        for part in answer.parts:
            if part.partition is None or part.status is None:
                raise PeerRefused(
                    f"{self._broker}: topic {part.topic!r} is gone",
                    result=PublishResult.UNKNOWN_TOPIC,
                )
            cursor = self._cursors[part.topic, part.partition]
            wanted = cursor.wanted
            try:
                reading = cursor.take(part)
            except DecodeError as error:
                raise SourceStopped(
                    f"{self._broker}: {part.topic}/{part.partition} from number {wanted} cannot be "
                    f"read: {error}",
                    hint="the broker keeps what it is sent unseen; skip it there, or follow the "
                    "other partitions",
                ) from error
            batch = self._batch(cursor, reading, wanted)
            if batch is not None:
                batches.append(batch)
        return batches

    def _batch(self, cursor: Cursor, reading: Reading, wanted: int) -> Batch | None:
        key = (reading.topic, reading.partition)
        gaps: list[tuple[int, int, str]] = []
        match reading.status:
            case FetchStatus.FINE | FetchStatus.SPARSE:
                self._marks[key] = max(self._marks[key], reading.high_water_mark)
                if reading.gap is not None:
                    gaps.append((*reading.gap, "the broker has the numbers and does not give them"))
            case FetchStatus.BOUNDARY if wanted < reading.first_available:
                end = reading.first_available - 1
                gaps.append((wanted, end, "the broker no longer has them"))
                cursor.wanted = reading.first_available
            case FetchStatus.BOUNDARY:
                raise SourceStopped(
                    f"{self._broker}: {reading.topic}/{reading.partition} ends at "
                    f"{reading.high_water_mark}, here it has been read to {wanted - 1}",
                    hint="that broker lost data or is another one; compare them before you go on",
                )
            case status:
                raise PeerRefused(
                    f"{self._broker}: {reading.topic}/{reading.partition} cannot be read there: "
                    f"{status.name.lower().replace('_', ' ')}",
                    result=status,
                )
        if not reading.bundles and not gaps:
            return None
        return Batch(reading.topic, reading.partition, wanted, cursor.wanted, reading.bundles, gaps)

    async def _store(self, batches: Sequence[Batch], progress: Progress) -> None:
        assert self._intake is not None
        count = await asyncio.to_thread(self._intake.store, batches)
        place = ", ".join(
            f"{topic}/{partition}:{cursor.wanted - 1}"
            for (topic, partition), cursor in list(self._cursors.items())[:8]
        )
        progress.applied(count, place, 0.0 if self._is_current() else None)
