"""Following topics of a Tank broker into a store.

All partitions are asked for in one waiting fetch after the other, so each gets what is new in every
round; its bundles, losses and places are one transaction, or several for several partitions if
that would be too large, and the next fetch is under way while they become durable. Numbers stay
what they are there.

* The broker no longer has what comes next: the numbers are noted in `logweir_gap`, and reading goes
  on at the first one it has.
* It does not have yet what we have: it lost data, or is another broker. The source stops and says
  so; nothing here is rewound.
* It has numbers that it does not give (see `logweir.replication.tank.follow.cursor`), or bundles
  that no client can read: they are noted as a gap, and reading goes on after them.
* Topics without a name in the address: all there are that it chooses (docs/tank.md), looked for
  again every `DISCOVER_SECONDS`, as are new partitions.
* A partition that cannot be followed any more (it ends before our place, what it sends is no chunk,
  its name is taken here by something else) is left at its place, and told; the others go on.

Source: Tank 4.0, observed; defects of it that are met here are told in `follow`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from logweir.errors import (
    ConfigError,
    DecodeError,
    PeerRefused,
    SourceStopped,
)
from logweir.replication.runner import Progress, SourceState, UrlSource
from logweir.replication.service.names import Names, local_name
from logweir.replication.tank.client.connection import DISCOVER_SECONDS, Connection, fetches_of
from logweir.replication.tank.follow.cursor import Cursor, Reading
from logweir.replication.tank.follow.ingest import Batch, Intake
from logweir.replication.tank.wire.address import part_of
from logweir.replication.tank.wire.messages import (
    FetchedPart,
    FetchStatus,
    PartitionState,
    PublishResult,
    Topics,
    TopicsAnswer,
)
from logweir.replication.urls import Url, option_names
from logweir.store import Log
from logweir.wal.render import words
from logweir.wal.selection import parse_time

FETCH_BYTES = 1024 * 1024
"""Asked for per partition and round."""

WAIT_MS = 10_000

_OWN = ("topics", "skip", "start")
"""Options that choose: they are no part of the name under which positions are kept."""

_Key = tuple[str, int]  # topic, partition


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """What an address says. `start`: `begin`, `end`, or a time, which is `start_ms`; `only`,
    `skip`: patterns of topics."""

    topic: str
    partition: int | None
    start: str
    start_ms: int
    only: tuple[str, ...]
    skip: tuple[str, ...]


def read_options(url: Url) -> FollowOptions:
    """The options of an upstream's address. Raises `ConfigError`."""
    topic, partition = part_of(url)
    start, start_ms = url.option("start") or "begin", 0
    if start not in ("begin", "end"):
        start_ms = int(parse_time(start, origin=f"address {url}") * 1000)
    only, skip = option_names(url, "topics"), option_names(url, "skip")
    if topic and (url.option("topics") or (partition is not None and skip)):
        raise ConfigError(
            f"address {url}", "it names a topic and chooses topics", hint="do one of both"
        )
    return FollowOptions(topic, partition, start, start_ms, tuple(only or ("*",)), tuple(skip))


class TankSource(UrlSource):
    """One broker, followed. `url`: with a topic and a partition, a topic, or neither."""

    def __init__(
        self,
        url: Url,
        log: Log,
        *,
        names: Names | None = None,
        fetch_bytes: int = FETCH_BYTES,
        wait_ms: int = WAIT_MS,
    ) -> None:
        super().__init__(url)
        self._log = log
        self._fetch_bytes = fetch_bytes
        self._wait_ms = wait_ms
        options = tuple(one for one in url.options if one[0] not in _OWN)
        self._broker = Url(url.scheme, url.host, url.port, options=options, socket=url.socket)
        self._claims = names or Names()
        self._name = url.option("name")
        self._options = read_options(url)
        self._intake: Intake | None = None
        self._cursors: dict[_Key, Cursor] = {}
        self._marks: dict[_Key, int] = {}
        self._stopped: dict[_Key, str] = {}

    async def attempt(self, progress: Progress) -> None:
        connection = await Connection.open(self._broker)
        storing: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        try:
            progress.state(SourceState.SYNCING)
            self._cursors.clear()
            self._marks.clear()
            if self._intake is None:
                source = str(self._broker)
                self._intake = await asyncio.to_thread(Intake, self._log, source, self._name)
            discovered = -DISCOVER_SECONDS
            while True:
                if loop.time() - discovered >= DISCOVER_SECONDS:
                    await self._discover(connection, progress)
                    discovered = loop.time()
                    progress.alive()
                parts = await self._fetch(connection)
                progress.alive()
                batches = self._read(parts, progress)
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

    async def _discover(self, connection: Connection, progress: Progress) -> None:
        names = await self._names(connection)
        if self._options.start != "begin":
            await self._note_start(connection, names)
        for name in names:
            states, chosen = await self._partitions(connection, name)
            try:
                for partition in chosen:
                    local = local_name(self._name, name)
                    self._claims.claim("topic", local, str(partition), self.url)
                await asyncio.to_thread(self._begin, name, len(states), chosen)
            except (ConfigError, SourceStopped) as error:
                for partition in chosen:
                    self._stop((name, partition), str(error), progress)
                continue
            for partition in chosen:
                self._marks.setdefault((name, partition), states[partition].last)

    async def _partitions(
        self, connection: Connection, name: str
    ) -> tuple[Sequence[PartitionState], Sequence[int]]:
        """Those of a topic, and which of them are followed."""
        states = await connection.states(name)
        partition = self._options.partition
        chosen = range(len(states)) if partition is None else [partition]
        if partition is not None and partition >= len(states):
            raise SourceStopped(
                f"{self._url}: topic {name!r} has {words(len(states), 'partition')}",
                hint="partitions are numbered from 0",
            )
        return states, [one for one in chosen if not self._skips(f"{name}/{one}")]

    async def _note_start(self, connection: Connection, names: Sequence[str]) -> None:
        """Note where what there is begins, as the address says, where nothing was read of it."""
        assert self._intake is not None
        if not names or not await asyncio.to_thread(self._intake.is_new, names):
            return
        places: dict[_Key, int] = {}
        for name in names:
            states, chosen = await self._partitions(connection, name)
            for partition in chosen:
                state = states[partition]
                if self._options.start == "end":
                    places[name, partition] = state.last + 1
                else:
                    wanted = connection.number_at(name, partition, state, self._options.start_ms)
                    places[name, partition] = await wanted
        await asyncio.to_thread(self._intake.begin, places)

    async def _names(self, connection: Connection) -> Sequence[str]:
        if self._options.topic:
            return [self._options.topic]
        topics = (await connection.answer(Topics(0), TopicsAnswer)).topics
        enabled = [name for name, is_enabled, _ in topics if is_enabled]
        only = self._options.only
        found = [name for name in enabled if any(fnmatchcase(name, one) for one in only)]
        if enabled and not found:
            raise await connection.unknown(",".join(only), PublishResult.UNKNOWN_TOPIC)
        return [name for name in found if not self._skips(name)]

    def _skips(self, name: str) -> bool:
        return any(fnmatchcase(name, one) for one in self._options.skip)

    def _stop(self, key: _Key, reason: str, progress: Progress) -> None:
        """Leave one partition where it is."""
        self._stopped[key] = reason
        self._cursors.pop(key, None)
        progress.part_stopped(f"{key[0]}/{key[1]}", reason)

    def _begin(self, topic: str, partitions: int, chosen: Sequence[int]) -> None:
        assert self._intake is not None
        self._intake.topic(topic, partitions)
        for partition in chosen:
            if (topic, partition) not in self._cursors.keys() | self._stopped.keys():
                wanted = self._intake.next_number(topic, partition)
                self._cursors[topic, partition] = Cursor(
                    topic, partition, wanted, self._fetch_bytes
                )

    def _is_current(self) -> bool:
        return all(cursor.wanted > self._marks[key] for key, cursor in self._cursors.items())

    # --- rounds -----------------------------------------------------------------------------------

    async def _fetch(self, connection: Connection) -> Sequence[FetchedPart]:
        fetches = fetches_of([cursor.request() for cursor in self._cursors.values()])
        if not fetches:  # a broker without topics
            if self._stopped:
                raise SourceStopped(
                    f"{self._url}: no partition can be followed: "
                    + "; ".join(sorted(set(self._stopped.values()))),
                )
            await asyncio.sleep(self._wait_ms / 1000)
            return ()
        return await connection.fetch_first(fetches, self._wait_ms)

    def _read(self, parts: Sequence[FetchedPart], progress: Progress) -> list[Batch]:
        batches = []
        for part in parts:
            if part.partition is None or part.status is None:
                raise PeerRefused(
                    f"{self._broker}: topic {part.topic!r} is gone",
                    result=PublishResult.UNKNOWN_TOPIC,
                )
            key = part.topic, part.partition
            cursor = self._cursors[key]
            wanted = cursor.wanted
            try:
                batch = self._batch(cursor, cursor.take(part), wanted)
            except (DecodeError, SourceStopped) as error:
                what = f"{self._broker}: {part.topic}/{part.partition} from number {wanted}"
                self._stop(key, f"{what}: {error}", progress)
                continue
            if batch is not None:
                batches.append(batch)
        return batches

    def _batch(self, cursor: Cursor, reading: Reading, wanted: int) -> Batch | None:
        part = reading.part
        key = (cursor.topic, cursor.partition)
        gaps: list[tuple[int, int, str]] = []
        match part.status:
            case FetchStatus.FINE | FetchStatus.SPARSE:
                self._marks[key] = max(self._marks[key], part.high_water_mark)
                if reading.gap is not None:
                    gaps.append((*reading.gap, "the broker has the numbers and does not give them"))
            case FetchStatus.BOUNDARY if wanted < part.first_available:
                end = part.first_available - 1
                gaps.append((wanted, end, "the broker no longer has them"))
                cursor.wanted = part.first_available
            case FetchStatus.BOUNDARY:
                raise SourceStopped(
                    f"it ends at {part.high_water_mark}, here it has been read to {wanted - 1}",
                    hint="that broker lost data or is another one; compare them before you go on",
                )
            case status:
                assert status is not None
                raise PeerRefused(
                    f"{self._broker}: {part.topic}/{part.partition} cannot be read there: "
                    f"{status.name.lower().replace('_', ' ')}",
                    result=status,
                )
        if not reading.bundles and not gaps:
            return None
        return Batch(*key, wanted, cursor.wanted, reading.bundles, gaps)

    async def _store(self, batches: Sequence[Batch], progress: Progress) -> None:
        assert self._intake is not None
        count = await asyncio.to_thread(self._intake.store, batches)
        place = ", ".join(
            f"{topic}/{partition}:{cursor.wanted - 1}"
            for (topic, partition), cursor in list(self._cursors.items())[:8]
        )
        progress.applied(count, place, 0.0 if self._is_current() else None)
