"""Configuration of topics."""

from __future__ import annotations

import pytest

from logweir.errors import ConfigError
from logweir.replication.tank.push import WaitIndex
from logweir.replication.topic.config import TopicConfig, parse_config, widest_config


def test_nothing_set_keeps_everything() -> None:
    """Empty lines, comments and keys that are not known change nothing."""
    config = parse_config("\n# all\n  unknown.key = 7 \nLOG.SEGMENT.BYTES=4096\n")
    assert config == TopicConfig(segment_bytes=4096)
    assert config.keeps_everything


def test_every_key_is_read() -> None:
    """With units, sums, comments behind values and any case."""
    config = parse_config(
        "log.retention.bytes = 1g+512m\n"
        "Log.Retention.Secs = 1w, 2d + 3h  # and a bit\n"
        "retention.messages.count=1000\n"
        "retention.segments.count=4\n"
        "log.segment.bytes=1m\n"
        "log.cleanup.policy=cleanup\n"
        "log.cleaner.min.cleanable.ratio=0.25\n"
        "log.index.interval.bytes=128\nlog.index.size.max.bytes=10m\nlog.roll.secs=7days\n"
        "log.roll.jitter.secs=1hour\nflush.messages=0\nflush.secs=2min\n"
    )
    assert config == TopicConfig(
        retention_bytes=1536 * 1024**2,
        retention_seconds=9 * 86400 + 3 * 3600,
        retention_messages=1000,
        segments=4,
        segment_bytes=1024**2,
        compact=True,
        cleanable_ratio=0.25,
    )
    assert not config.keeps_everything
    assert not parse_config("retention.segments.count=2").keeps_everything
    assert parse_config("logweir.content=msgpack").content == "msgpack"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1min", 60), ("1mon", 30 * 86400), ("1y+1s", 365 * 86400 + 1), ("2 sec", 2)],
)
def test_durations_have_units(text: str, seconds: int) -> None:
    """A number alone is seconds."""
    assert parse_config(f"log.retention.secs={text}").retention_seconds == seconds


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "= 5",
        "log.retention.bytes =",
        "log.retention.bytes = 127",
        "log.retention.bytes = 5x",
        "log.retention.bytes = -5",
        "log.retention.secs = 5 parsecs",
        "log.retention.secs = 1h+",
        "retention.segments.count = 1",
        "retention.segments.count = -2",
        "retention.messages.count = -1",
        "log.segment.bytes = 63",
        "log.cleanup.policy = shred",
        "log.cleaner.min.cleanable.ratio = 2",
        "logweir.content = xml",
        "unknown = " + "x" * 129,
    ],
)
def test_what_cannot_be_is_refused(line: str) -> None:
    """With the key or the line in the message."""
    with pytest.raises(ConfigError):
        parse_config(line, origin="test")


@pytest.mark.parametrize(
    ("topic", "partitions", "expected"),
    [
        ("log.retention.secs=1h", [], "log.retention.secs=1h"),
        ("log.retention.secs=1h", ["log.retention.secs=1d", "log.retention.secs=2h"], "1d"),
        ("log.retention.secs=1h", ["Log.Retention.Secs=0 # all"], "0"),
        ("log.retention.secs=1h", ["log.retention.bytes=1k", "unknown=1"], "1h"),
        ("", ["log.retention.secs=1h"], ""),
        ("log.cleanup.policy=cleanup", ["log.cleanup.policy=delete"], "delete"),
        ("log.cleanup.policy=delete", ["log.cleanup.policy=cleanup"], "delete"),
    ],
)
def test_the_widest_of_several_configurations(
    topic: str, partitions: list[str], expected: str
) -> None:
    """Each limit for itself; what no partition has wider stays the topic's, letter by letter."""
    found = widest_config(topic, partitions)
    assert found.startswith(topic)
    assert found.endswith(expected)
    assert found.count("\n") <= 1


def test_who_does_not_wait_is_passed_over() -> None:
    """For a partition, or for none."""
    index: WaitIndex[str] = WaitIndex()
    assert index.add([("a", 0), ("a", 1)], "one")
    index.discard([("a", 0), ("b", 0)], "other")
    assert index.waiters(("a", 0)) == ("one",)
    assert len(index) == 2
    index.discard([("a", 0), ("a", 1), ("b", 0)], "one")
    assert index.waiters(("a", 0)) == ()
    assert len(index) == 0
