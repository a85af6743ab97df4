"""What a partition keeps: by bytes, age and count, and the newest message of each key. Synchronous.

Bundles go as a whole, oldest first, while a limit is passed; the newest one always stays. The age
of a bundle is that of its first message, by the producer's clock.

Compaction keeps, of each key, the message with the highest number, and every message without a key;
one with a key and no content is kept like any other. A partition is compacted when the share of its
bytes that came since the last time reaches `log.cleaner.min.cleanable.ratio`. Numbers never change:
a bundle that loses messages becomes a sparse one, and so does one whose predecessor loses its last
message, since it no longer goes on where that ends. Bundles are rewritten from the newest to the
oldest, so that every state in between is one that clients read rightly.

Source: the keys and meanings are those of Tank 4.0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import GROUP_BYTES
from logweir.replication.topic.bundle import (
    NUMBER_MAX,
    Message,
    decode_bundle,
    encode_bundle,
    make_sparse,
    read_head,
)
from logweir.replication.topic.config import TopicConfig
from logweir.replication.topic.publishing import framed_bytes
from logweir.replication.topic.spaces import StoredBundle, TopicDef, bundles_from
from logweir.store import Log
from logweir.store.engine.request import Request
from logweir.store.view import ReadView
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

_STEP_BUNDLES = 1000


@dataclass(slots=True)
class _Partition:
    """What a partition holds, up to the tuple that begins with `reached`. `newest`: where the last
    bundle that consumers are given begins, which stays; `segments`: where those begin that a broker
    would have made, the oldest first; `segment_bytes`: of the last one."""

    reached: int = 0
    newest: int = 0
    bundles: int = 0
    size_bytes: int = 0
    messages: int = 0
    segments: deque[int] = field(default_factory=deque)
    segment_bytes: int = 0

    def add(self, each: StoredBundle, config: TopicConfig) -> None:
        """The next bundle. A broker begins a new file when one comes and the file has more than
        the limit already."""
        size = len(each.data)
        if config.segments and (not self.segments or self.segment_bytes > config.segment_bytes):
            self.segments.append(each.first)
            self.segment_bytes = 0
        self.segment_bytes += framed_bytes(size)
        self.reached = each.first
        if each.is_readable:
            self.newest = each.first
        self.bundles += 1
        self.size_bytes += size
        self.messages += _count(each)

    def remove(self, each: StoredBundle) -> None:
        """The oldest bundle."""
        while len(self.segments) > 1 and self.segments[1] <= each.first:
            self.segments.popleft()
        self.bundles -= 1
        self.size_bytes -= len(each.data)
        self.messages -= _count(each)

    def is_over(self, each: StoredBundle, config: TopicConfig, now_ms: int) -> bool:
        """Whether the oldest bundle is to go: the partition is over a limit, and has others."""
        most = config.segments
        full = len(self.segments) - 1
        return each.first < self.newest and bool(
            0 < config.retention_bytes < self.size_bytes
            or 0 < config.retention_messages < self.messages
            or (
                config.retention_seconds and each.time_ms < now_ms - config.retention_seconds * 1000
            )
            or (0 < most < full and each.first < self.segments[full - most])
        )


class Held:
    """What the partitions of a topic hold. It is read on, not anew, as long as there are as many
    tuples as it knows of."""

    def __init__(self) -> None:
        self.partitions: dict[int, _Partition] = {}

    def read(self, view: ReadView, topic: TopicDef) -> None:
        """Read what is new."""
        self._read_on(view, topic)
        if sum(one.bundles for one in self.partitions.values()) != view.count(topic.space_id):
            self.partitions.clear()
            self._read_on(view, topic)

    def _read_on(self, view: ReadView, topic: TopicDef) -> None:
        for partition in range(topic.partitions):
            held = self.partitions.setdefault(partition, _Partition())
            following = held.reached + 1
            if following > NUMBER_MAX:
                continue  # nothing stands behind that
            for each in bundles_from(view.engine, topic.space_id, partition, following):
                held.add(each, topic.config)


def _count(stored: StoredBundle) -> int:
    """How many messages a bundle says it has; none of one that no client can read."""
    return read_head(stored.data).count if stored.is_readable else 0


def retain(log: Log, topic: TopicDef, now_ms: int, held: Held | None = None) -> int:
    """Remove what is over the limits of a topic. Returns how many bundles went. `held`: what was
    read of it before, with the same configuration."""
    if topic.config.compact:
        return 0
    held = Held() if held is None else held
    gone: list[StoredBundle] = []
    with log.read_view() as view:
        held.read(view, topic)
        for partition, one in held.partitions.items():
            for each in bundles_from(view.engine, topic.space_id, partition, 0):
                if not one.is_over(each, topic.config, now_ms):
                    break
                one.remove(each)
                gone.append(replace(each, data=b""))
    try:
        for start in range(0, len(gone), _STEP_BUNDLES):
            with log.transaction() as tx:
                for each in gone[start : start + _STEP_BUNDLES]:
                    tx.delete(topic.name, (each.partition, each.first))
    except BaseException:
        held.partitions.clear()  # what is still there was counted as gone
        raise
    return len(gone)


def partition_bytes(log: Log, topic: TopicDef, partition: int) -> int:
    """Bytes of all bundles of a partition."""
    with log.read_view() as view:
        found = bundles_from(view.engine, topic.space_id, partition, 0)
        return sum(len(each.data) for each in found)


def compact(log: Log, topic: TopicDef, partition: int) -> int:
    """Keep the newest message of each key. Returns how many messages went."""
    newest: dict[bytes, int] = {}
    firsts: list[int] = []
    with log.read_view() as view:
        for stored in bundles_from(view.engine, topic.space_id, partition, 0):
            firsts.append(stored.first)
            for message in _messages(stored):
                if message.key:
                    newest[message.key] = message.number
    dropped = 0
    size = 0
    step: list[_Change] = []
    current = _load(log, topic, partition, firsts.pop(), newest) if firsts else None
    while current is not None:
        older = _load(log, topic, partition, firsts.pop(), newest) if firsts else None
        change = _change(current, must_tell=older is not None and older.loses_last)
        if change is not None:
            dropped += len(current.messages) - len(current.kept)
            step.append(change)
            size += 64 if change[1] is None else len(change[1].data)
            if size >= GROUP_BYTES:
                _apply(log, topic, partition, step)
                step, size = [], 0
        current = older
    _apply(log, topic, partition, step)
    return dropped


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A bundle with its messages and those of them that stay."""

    stored: StoredBundle
    messages: Sequence[Message]
    kept: Sequence[Message]

    @property
    def loses_last(self) -> bool:
        """Whether what it becomes ends before its last number."""
        return bool(self.messages) and (not self.kept or self.kept[-1] != self.messages[-1])


_Change = tuple[int, StoredBundle | None]
"""What the bundle that begins with that number becomes; None: nothing."""


def _messages(stored: StoredBundle) -> Sequence[Message]:
    """The messages of a bundle; none of one that no client can read."""
    try:
        return decode_bundle(stored.data, stored.first) if stored.is_readable else ()
    except (DecodeError, LimitExceeded):
        return ()


def _load(
    log: Log, topic: TopicDef, partition: int, first: int, newest: Mapping[bytes, int]
) -> _Loaded | None:
    with log.read_view() as view:
        stored = next(bundles_from(view.engine, topic.space_id, partition, first), None)
    if stored is None or stored.first != first:
        return None
    messages = _messages(stored)
    kept = [each for each in messages if not each.key or newest[each.key] <= each.number]
    return _Loaded(stored, messages, kept)


def _change(loaded: _Loaded, *, must_tell: bool) -> _Change | None:
    """What becomes of a bundle. `must_tell`: it has to tell its numbers itself."""
    stored = loaded.stored
    if len(loaded.kept) < len(loaded.messages):
        if not loaded.kept:
            return stored.first, None
        first, last = loaded.kept[0], loaded.kept[-1]
        data = encode_bundle(loaded.kept, sparse=True)
        made = StoredBundle(stored.partition, first.number, last.number, first.time_ms, data)
        return stored.first, made
    if must_tell and loaded.messages and not read_head(stored.data).sparse:
        return stored.first, replace(stored, data=bytes(make_sparse(stored.data, stored.first)))
    return None


def _apply(log: Log, topic: TopicDef, partition: int, step: Sequence[_Change]) -> None:
    if not step:
        return
    with log.transaction() as tx:
        for first, new in step:
            if new is None or new.first != first:
                tx.delete(topic.name, (partition, first))
            if new is not None:
                row = [partition, new.first, new.last, new.time_ms, new.data]
                tx.execute(Request(RowType.REPLACE, topic.space_id, tuple=pack(row)))
