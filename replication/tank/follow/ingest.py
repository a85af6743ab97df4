"""Taking bundles of another broker into topics of ours, with their numbers. Synchronous.

What was read of a partition is one transaction, with that of others while it is not too large:
bundles, losses, and how far the source was read. A bundle that goes on where the last one ends is
stored as it came; one after a hole gets its numbers written into it; of one that begins before the
place wanted only the rest is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from logweir.errors import DecodeError, ErrorCode, LimitExceeded, RequestError, SourceStopped
from logweir.limits import TANK_BUNDLE_BYTES, TRANSACTION_BYTES
from logweir.replication.service.names import local_name
from logweir.replication.stream.positions import (
    POSITION_SPACE,
    Gap,
    make_spaces,
    position,
    put_gap,
    put_position,
    run_jobs,
)
from logweir.replication.tank.follow.cursor import ReceivedBundle
from logweir.replication.tank.wire.messages import PublishResult
from logweir.replication.topic.bundle import check_bundle, decode_bundle, encode_bundle
from logweir.replication.topic.spaces import (
    TopicDef,
    create_topic,
    insert_bundle,
    last_number,
    place_bundle,
    set_partitions,
    topics_of,
)
from logweir.store import Log
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import Job


@dataclass(slots=True)
class Batch:
    """What was read of one partition, from `wanted` on. `next_number`: where reading goes on."""

    topic: str
    partition: int
    wanted: int
    next_number: int
    bundles: Sequence[ReceivedBundle] = ()
    gaps: list[tuple[int, int, str]] = field(default_factory=list)


class Intake:
    """Brings what one source has into a store. `source`: its address or path, without password;
    `name`: stands before the names that its topics have here, "" for none."""

    def __init__(self, log: Log, source: str, name: str = "") -> None:
        self._log = log
        self._source = source
        self._name = name
        make_spaces(log)
        self._topics = dict(topics_of(log))

    def topic(self, name: str, partitions: int, config: str = "") -> TopicDef:
        """The topic for what is called `name` there, made or given more partitions if need be.

        Raises `SourceStopped` if something else has the name that it would have here.
        """
        name = local_name(self._name, name)
        found = self._topics.get(name)
        if found is None:
            try:
                create_topic(self._log, name, partitions, config, now_seconds=self._log.inner.now())
            except RequestError as error:
                if error.code != ErrorCode.SPACE_EXISTS:
                    raise
                raise SourceStopped(
                    f"a space {name!r} is here already, and is no topic",
                    hint="name=two in the address puts two_ before the names of its topics",
                ) from error
        elif found.partitions < partitions:
            set_partitions(self._log, name, partitions)
        else:
            return found
        self._topics = dict(topics_of(self._log))
        return self._topics[name]

    def next_number(self, topic: str, partition: int) -> int:
        """Where to go on: the place noted, else after what the partition holds, else 1."""
        noted = position(self._log, self._source, topic, str(partition))
        if noted is not None:
            return int(noted["next"])
        with self._log.read_view() as view:
            space_id = self._topics[local_name(self._name, topic)].space_id
            return last_number(view.engine, space_id, partition) + 1

    def is_new(self, topics: Sequence[str]) -> bool:
        """Whether nothing was read yet of any of these topics."""
        return not any(
            self._log.select(POSITION_SPACE, (self._source, topic), limit=1) for topic in topics
        )

    def begin(self, places: Mapping[tuple[str, int], int]) -> None:
        """Note where reading is to begin, all of it or none: topic and partition → number."""
        now_ms = self._now_ms()

        def apply(group: Group) -> None:
            for (topic, partition), number in places.items():
                tokens = {"next": number}
                put_position(group, self._source, topic, str(partition), tokens, now_ms)

        run_jobs(self._log, [Job(apply, 64 * len(places))])

    def store(self, batches: Sequence[Batch]) -> int:
        """Store `batches` and wait until they are durable. Returns the number of messages.

        Each is part of one transaction; what several that go together hold is below
        `limits.TRANSACTION_BYTES`. Raises `SourceStopped` if numbers are taken that did not
        come from there.
        """
        jobs = [Job(partial(self._apply_all, one), size) for one, size in _portions(batches)]
        run_jobs(self._log, jobs)
        return sum(job.result for job in jobs)

    def _apply_all(self, batches: Sequence[Batch], group: Group) -> int:
        """Store `batches`. Returns the number of messages."""
        now_ms = self._now_ms()
        return sum(self._apply(group, batch, now_ms) for batch in batches)

    def _now_ms(self) -> int:
        return int(self._log.inner.now() * 1000)

    def _apply(self, group: Group, batch: Batch, now_ms: int) -> int:
        topic = self._topics[local_name(self._name, batch.topic)]
        instance = str(batch.partition)
        last = last_number(group.engine, topic.space_id, batch.partition)
        if last >= batch.wanted:
            raise SourceStopped(
                f"{topic.name}/{batch.partition}: here it ends with number {last}, and number "
                f"{batch.wanted} of {self._source} was to come next",
                hint="somebody publishes here to a topic that is also followed",
            )
        read_to = batch.wanted - 1
        count = 0
        where = (self._source, batch.topic, instance)
        for first, end, reason in batch.gaps:
            put_gap(group, Gap(*where, first, end, reason, now_ms))
        for bundle in batch.bundles:
            try:
                stored, last = self._take(group, topic, bundle, batch.partition, read_to, last)
                count += stored
            except (DecodeError, LimitExceeded) as error:
                reason = f"a bundle that no client can read: {error}"
                first = max(bundle.first, read_to + 1)
                put_gap(group, Gap(*where, first, bundle.last, reason, now_ms))
            read_to = max(read_to, bundle.last)
        put_position(group, *where, {"next": batch.next_number}, now_ms)
        return count

    def _take(
        self,
        group: Group,
        topic: TopicDef,
        bundle: ReceivedBundle,
        partition: int,
        read_to: int,
        last: int,
    ) -> tuple[int, int]:
        """Store what of `bundle` is above `read_to`, after number `last` of the partition.

        Returns how many messages that are, and the last number then.
        """
        data = bundle.data
        head, time_ms = check_bundle(data)
        first = bundle.first
        if first <= read_to:
            rest = [each for each in decode_bundle(data, first) if each.number > read_to]
            if not rest:
                return 0, last
            data = encode_bundle(rest, sparse=True)
            head, time_ms = check_bundle(data)
            first = head.first
        placed = place_bundle(data, head, last, None if head.sparse else first)
        if isinstance(placed, PublishResult):
            raise DecodeError(f"number {first} cannot follow {last}")
        if topic.config.by_arrival:
            time_ms = self._now_ms()
        outcome = insert_bundle(group, topic.space_id, partition, placed, time_ms)
        if outcome is not PublishResult.STORED:
            raise LimitExceeded("TANK_BUNDLE_BYTES", TANK_BUNDLE_BYTES, len(placed.data))
        return head.count, placed.last


def _portions(batches: Sequence[Batch]) -> Iterator[tuple[list[Batch], int]]:
    """Those that make one transaction together, and about how many bytes of log it takes."""
    together: list[Batch] = []
    total = 0
    for batch in batches:
        size = sum(len(bundle.data) + 64 for bundle in batch.bundles)
        if together and total + size > TRANSACTION_BYTES // 2:
            yield together, total
            together, total = [], 0
        together.append(batch)
        total += size
    if together:
        yield together, total
