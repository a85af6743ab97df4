"""Publishing so that what is in doubt can be sent again.

Each bundle goes out with the number that its first message is to have: docs/tank.md ("The Python
client") says what comes of that. A bundle sent again under the same number is never stored twice,
also where the first attempt is still on its way.

Source: Tank 4.0, observed: a first number has to be above the last one, else result 10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from logweir.errors import LogweirError, PeerRefused, Unreachable
from logweir.replication.tank.client.connection import pause_seconds
from logweir.replication.tank.wire.messages import PublishPart, PublishResult
from logweir.replication.topic.bundle import Message, encode_bundle

if TYPE_CHECKING:
    from logweir.replication.tank.client import Client

Outcome = PublishResult | LogweirError


@dataclass(slots=True)
class Wanted:
    """Messages for one partition. `compress`: see `encode_bundle`."""

    topic: str
    partition: int
    messages: list[Message]
    compress: bool | None = None
    first: int = 0
    is_in_doubt: bool = False
    outcome: Outcome | None = None

    def part(self) -> PublishPart:
        """The bundle under the numbers that it is to have."""
        bundle = encode_bundle(self.messages, compress=self.compress)
        return PublishPart(self.topic, self.partition, bundle, self.first)


class Numbered:
    """Gives bundles their numbers. `seconds`: how long one that is in doubt is tried again."""

    def __init__(self, client: Client, seconds: float) -> None:
        self._client = client
        self._seconds = seconds
        self._next: dict[tuple[str, int], int] = {}

    async def publish(self, all_wanted: Sequence[Wanted]) -> list[Outcome]:
        """Publish bundles of different partitions; what became of each."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._seconds
        failures = 0
        while left := [one for one in all_wanted if one.outcome is None]:
            is_over = loop.time() >= end
            try:
                await self._attempt(left, is_over)
                failures = 0
            except Unreachable as error:
                if is_over:
                    self._give_up(left, error)
                    continue
                failures += 1
                await asyncio.sleep(pause_seconds(failures))
            except LogweirError as error:
                self._give_up(left, error)
        return [one.outcome for one in all_wanted if one.outcome is not None]

    def _give_up(self, left: Sequence[Wanted], error: LogweirError) -> None:
        for one in left:
            if one.outcome is None:
                one.outcome = error
                self._next.pop((one.topic, one.partition), None)

    async def _attempt(self, left: Sequence[Wanted], is_over: bool) -> None:
        sent = []
        for one in left:
            if one.is_in_doubt or await self._number(one):
                sent.append(one)
        if not sent:
            return
        before = [one.is_in_doubt for one in sent]
        for one in sent:
            one.is_in_doubt = True
        results = await self._client.publish([one.part() for one in sent], at_numbers=True)
        refused, is_left = [], False
        for one, was_in_doubt, result in zip(sent, before, results, strict=True):
            if result is PublishResult.BAD_NUMBERS:
                refused.append(one)
            elif result is PublishResult.STORED:
                self._stored(one)
            elif result is PublishResult.FAILED and was_in_doubt:
                is_left = True  # that says nothing of an attempt before
            else:
                one.outcome = result
                self._next.pop((one.topic, one.partition), None)
        for one in refused:
            await self._ask(one, is_over)
        if is_left:
            text = "it can store nothing; what came of what it was sent before is not known"
            raise Unreachable(str(self._client.url), text)

    async def _ask(self, one: Wanted, is_over: bool) -> None:
        """Its numbers are taken: by itself or not."""
        is_there = await self._is_there(one)
        if is_there:
            self._stored(one)
            return
        self._next.pop((one.topic, one.partition), None)
        one.is_in_doubt = False
        if is_there is None:
            what = f"{one.topic}/{one.partition} has number {one.first} no more"
            text = f"{what}: whether what was published under it was stored is not known"
            one.outcome = Unreachable(str(self._client.url), text)
        elif is_over:
            one.outcome = PublishResult.BAD_NUMBERS

    async def _number(self, one: Wanted) -> bool:
        """Give it the next numbers of its partition; False where there is none."""
        place = (one.topic, one.partition)
        if place not in self._next:
            try:
                states = await self._client.partitions(one.topic)
            except PeerRefused as error:
                one.outcome = error
                return False
            if one.partition >= len(states):
                one.outcome = PublishResult.UNKNOWN_PARTITION
                return False
            self._next[place] = states[one.partition].last + 1
        one.first = self._next[place]
        return True

    def _stored(self, one: Wanted) -> None:
        one.outcome = PublishResult.STORED
        self._next[one.topic, one.partition] = one.first + len(one.messages)

    async def _is_there(self, one: Wanted) -> bool | None:
        """Whether the broker has these messages under these numbers; None: that cannot be told."""
        found = await self._client.bundle_at(one.topic, one.partition, one.first)
        there = {each.number: (each.time_ms, each.key, each.content) for each in found}
        mine = {
            number: (each.time_ms, each.key, each.content)
            for number, each in enumerate(one.messages, one.first)
        }
        both = there.keys() & mine.keys()
        return all(there[number] == mine[number] for number in both) if both else None
