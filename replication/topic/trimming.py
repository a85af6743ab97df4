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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import GROUP_BYTES
from logweir.replication.topic.bundle import (
    Message,
    decode_bundle,
    encode_bundle,
    encode_varint,
    make_sparse,
    read_head,
)
from logweir.replication.topic.config import TopicConfig
from logweir.replication.topic.spaces import StoredBundle, TopicDef, bundles_from
from logweir.store import Log
from logweir.store.engine.request import Request
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType

_STEP_BUNDLES = 1000


@dataclass(frozen=True, slots=True)
class _Known:
    """A bundle without its bytes."""

    first: int
    size_bytes: int
    messages: int
    time_ms: int


def _known(log: Log, topic: TopicDef, partition: int) -> list[_Known]:
    with log.read_view() as view:
        return [
            _Known(each.first, len(each.data), _count(each), each.time_ms)
            for each in bundles_from(view.engine, topic.space_id, partition, 0)
        ]


def _count(stored: StoredBundle) -> int:
    """How many messages a bundle says it has; none of one that no client can read."""
    try:
        return read_head(stored.data).count if stored.is_readable else 0
    except (DecodeError, LimitExceeded):
        return 0


def _to_go(config: TopicConfig, found: list[_Known], now_ms: int) -> list[int]:
    """First numbers of the oldest bundles that are over a limit."""
    size = sum(each.size_bytes for each in found)
    count = sum(each.messages for each in found)
    oldest_ms = now_ms - config.retention_seconds * 1000
    segments = _before_segments_kept(config, found)
    out = []
    for index, each in enumerate(found[:-1]):
        over = (
            0 < config.retention_bytes < size
            or 0 < config.retention_messages < count
            or (config.retention_seconds and each.time_ms < oldest_ms)
            or index < segments
        )
        if not over:
            break
        out.append(each.first)
        size -= each.size_bytes
        count -= each.messages
    return out


def _before_segments_kept(config: TopicConfig, found: list[_Known]) -> int:
    """How many bundles stand before the full segments that may be kept.

    A broker begins a new file when a bundle comes and the file has more than the limit already.
    """
    begins = []
    size = config.segment_bytes + 1
    for index, each in enumerate(found):
        if size > config.segment_bytes:
            begins.append(index)
            size = 0
        size += each.size_bytes + len(encode_varint(each.size_bytes))
    full = len(begins) - 1
    return begins[full - config.segments] if 0 < config.segments < full else 0


def retain(log: Log, topic: TopicDef, partition: int, now_ms: int) -> int:
    """Remove what is over the limits of a topic. Returns how many bundles went."""
    if topic.config.compact:
        return 0
    gone = _to_go(topic.config, _known(log, topic, partition), now_ms)
    for start in range(0, len(gone), _STEP_BUNDLES):
        with log.transaction() as tx:
            for first in gone[start : start + _STEP_BUNDLES]:
                tx.delete(topic.name, (partition, first))
    return len(gone)


def partition_bytes(log: Log, topic: TopicDef, partition: int) -> int:
    """Bytes of all bundles of a partition."""
    return sum(each.size_bytes for each in _known(log, topic, partition))


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
            size += 64 if change.new is None else len(change.new.data)
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


@dataclass(frozen=True, slots=True)
class _Change:
    """What the bundle that begins with `first` becomes; None: nothing."""

    first: int
    new: StoredBundle | None


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
            return _Change(stored.first, None)
        first, last = loaded.kept[0], loaded.kept[-1]
        data = encode_bundle(loaded.kept, sparse=True)
        made = StoredBundle(stored.partition, first.number, last.number, first.time_ms, data)
        return _Change(stored.first, made)
    if must_tell and loaded.messages and not read_head(stored.data).sparse:
        data = bytes(make_sparse(stored.data, stored.first))
        made = StoredBundle(stored.partition, stored.first, stored.last, stored.time_ms, data)
        return _Change(stored.first, made)
    return None


def _apply(log: Log, topic: TopicDef, partition: int, step: Sequence[_Change]) -> None:
    if not step:
        return
    with log.transaction() as tx:
        for change in step:
            new = change.new
            if new is None or new.first != change.first:
                tx.delete(topic.name, (partition, change.first))
            if new is not None:
                row = [partition, new.first, new.last, new.time_ms, new.data]
                tx.execute(Request(RowType.REPLACE, topic.space_id, tuple=pack(row)))
