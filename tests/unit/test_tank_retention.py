"""A topic is kept within its limits by what came since, and by what goes."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tankserving import contents, ordinary

import logweir
from logweir.errors import LogweirError
from logweir.recovery.faults import Fault, FaultyFileSystem
from logweir.replication.topic import trimming
from logweir.replication.topic.spaces import (
    TopicDef,
    bundles_from,
    create_topic,
    topics_of,
)
from logweir.replication.topic.trimming import Held, retain
from logweir.wal.filesystem import OS

PARTITIONS = 2


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logweir.Log]:
    """A fresh store."""
    with logweir.open(tmp_path / "store", durability="write") as opened:
        yield opened


def topic(log: logweir.Log, config: str) -> TopicDef:
    """A new one."""
    create_topic(log, "t", PARTITIONS, config, now_seconds=0)
    return topics_of(log)["t"]


class Model:
    """What a partition is to hold: first number, bytes, messages and seconds of each bundle."""

    def __init__(self) -> None:
        self.bundles: list[tuple[int, int, int, int]] = []

    def keep(self, most_bytes: int, most_messages: int, since: int) -> None:
        """Remove what is over the limits."""
        while len(self.bundles) > 1:
            _, sizes, messages, seconds = zip(*self.bundles, strict=True)
            if not (
                0 < most_bytes < sum(sizes)
                or 0 < most_messages < sum(messages)
                or seconds[0] < since
            ):
                break
            self.bundles.pop(0)


@pytest.mark.parametrize("limits", [(600, 0, 0), (0, 9, 0), (0, 0, 5), (700, 12, 9)])
def test_limits_are_kept_by_what_is_new(log: logweir.Log, limits: tuple[int, int, int]) -> None:
    """The same goes as if all were read anew each time, also where others have removed bundles."""
    most_bytes, most_messages, age = limits
    given = topic(
        log,
        f"log.retention.bytes={most_bytes}\nlog.retention.secs={age}"
        + (f"\nretention.messages.count={most_messages}" if most_messages else ""),
    )
    rng = random.Random(str(limits))
    held, models = Held(), [Model() for _ in range(PARTITIONS)]
    last = [0] * PARTITIONS
    for second in range(1, 60):
        for _ in range(rng.randrange(4)):
            partition = rng.randrange(PARTITIONS)
            data = ordinary(*[bytes(rng.randrange(60))] * rng.randrange(1, 4))
            count = data[0] >> 2
            first = last[partition] + 1 + rng.choice([0, 0, 5])
            last[partition] = first + count - 1
            log.insert("t", (partition, first, last[partition], second * 1000, data))
            models[partition].bundles.append((first, len(data), count, second))
        for partition, model in enumerate(models):
            if len(model.bundles) > 2 and rng.random() < 0.1:
                gone = model.bundles.pop(rng.randrange(len(model.bundles) - 1))
                log.delete("t", (partition, gone[0]))
        before = sum(len(model.bundles) for model in models)
        for model in models:
            model.keep(most_bytes, most_messages, second - age if age else 0)
        gone_now = retain(log, given, second * 1000, held)
        assert gone_now == before - sum(len(model.bundles) for model in models)
        for partition, model in enumerate(models):
            assert contents(log, "t", partition) == [one[0] for one in model.bundles]


@pytest.mark.parametrize(("most", "gone"), [(0, 0), (2, 4), (3, 2), (4, 0), (9, 0)])
def test_full_segments_that_may_be_kept(log: logweir.Log, most: int, gone: int) -> None:
    """A segment is full once a bundle came behind its limit; the one that is filled does not
    count. Two bundles are in one of 100 bytes here."""
    data = next(one for size in range(60) if len(one := ordinary(bytes(size))) == 60)
    given, held = topic(log, f"retention.segments.count={most}\nlog.segment.bytes=100"), Held()
    for number in range(1, 10):
        log.insert("t", (0, number, number, 0, data))
    assert retain(log, given, 0, held) == gone
    assert contents(log, "t", 0) == list(range(gone + 1, 10))
    for number in range(10, 12):  # one more is full
        log.insert("t", (0, number, number, 0, data))
    retain(log, given, 0, held)
    assert contents(log, "t", 0)[0] == (1 + 2 * max(5 - most, 0) if most else 1)


@pytest.mark.parametrize("number", [50, 2**63 + 9, 2**64 - 1])
def test_the_newest_bundle_stays_behind_a_tuple_that_is_none(log: logweir.Log, number: int) -> None:
    """Which consumers are not given: else the numbers would begin anew. Limits are kept behind
    the highest number that there is."""
    given, held = topic(log, "log.retention.secs=10"), Held()
    for first in range(1, 6):
        log.insert("t", (0, first, first, 1000, ordinary(b"x")))
    log.insert("t", (0, number, number, 0, b"\xff"))
    assert retain(log, given, 5000, held) == 0
    assert retain(log, given, 100_000, held) == 4
    assert retain(log, given, 100_000, held) == 0
    assert contents(log, "t", 0) == [5, number]


def test_what_is_known_is_not_read_again(log: logweir.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is held whole costs no more for it."""
    given, held = topic(log, "log.retention.bytes=1g"), Held()
    read: list[int] = []

    def counted(*asked: object) -> Iterator[object]:
        for each in bundles_from(*asked):  # type: ignore[arg-type]
            read.append(each.first)
            yield each

    monkeypatch.setattr(trimming, "bundles_from", counted)
    with log.transaction() as tx:
        for number in range(1, 101):
            tx.insert("t", (0, number, number, 0, ordinary(b"x")))
    retain(log, given, 0, held)
    assert read == [*range(1, 101), 1]
    read.clear()
    log.insert("t", (0, 101, 101, 0, ordinary(b"x")))
    retain(log, given, 0, held)
    assert read == [101, 1]


def test_what_could_not_be_removed_goes_the_next_time(tmp_path: Path) -> None:
    """A disk that takes nothing for a while leaves no bundle over the limits."""
    disk = FaultyFileSystem(OS)
    with logweir.open(tmp_path / "store", durability="write", filesystem=disk) as log:
        given, held = topic(log, "retention.messages.count=2"), Held()
        for number in range(1, 6):
            log.insert("t", (0, number, number, 0, ordinary(b"x")))
        disk.fault = Fault(1, {"write"}, errno.ENOSPC, part=0.5, lasts=True)
        with pytest.raises(LogweirError):
            retain(log, given, 0, held)
        disk.fault = None
        assert contents(log, "t") == [1, 2, 3, 4, 5]
        assert retain(log, given, 0, held) == 3
        assert contents(log, "t") == [4, 5]
