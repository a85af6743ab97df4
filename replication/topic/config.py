"""Configuration of topics: `key = value` lines, `#` comments, keys in any case.

The keys and what they mean are in docs/tank.md, what each takes in `_KEYS`; those without a setting
are a Tank broker's, and change nothing here. A bundle is a tuple of a space here, there are no
segment files: segments are counted where a broker would have begun new ones. Keys that are not
known are kept and ignored, as a broker does.

Durations are a number and a unit (`s sec min h d w mon y` and long forms), sizes a number and one
of `b k m g t` (of 1024), both as sums with `+` or `,`; a number alone is seconds or bytes. A month
has 30 days, a year 365. Values have 1 to 128 bytes.
Source: Tank 4.0, read in its configuration reader and observed; there a month counts as 365 days.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from logweir.errors import ConfigError
from logweir.limits import TANK_PARTITIONS, TANK_TOPIC_NAME_BYTES

_NAME: Final = re.compile(r"[A-Za-z0-9_-]*[A-Za-z0-9][A-Za-z0-9_-]*")

_VALUE_BYTES: Final = 128
_DAY: Final = 86400
_SECONDS: Final = {
    **dict.fromkeys(("", "s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), _DAY),
    **dict.fromkeys(("w", "week", "weeks"), 7 * _DAY),
    **dict.fromkeys(("mon", "month", "months"), 30 * _DAY),
    **dict.fromkeys(("y", "year", "years"), 365 * _DAY),
}
_BYTES: Final = {
    **dict.fromkeys(("", "b", "byte", "bytes"), 1),
    **dict.fromkeys(("k", "kb"), 1024),
    **dict.fromkeys(("m", "mb"), 1024**2),
    **dict.fromkeys(("g", "gb"), 1024**3),
    **dict.fromkeys(("t", "tb"), 1024**4),
}
_ITEM: Final = re.compile(r"\s*(\d+)\s*([a-z]*)\s*")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What each partition of a topic keeps; 0: no limit."""

    retention_bytes: int = 0
    retention_seconds: int = 0
    retention_messages: int = 0
    segments: int = 0
    segment_bytes: int = 1024**3
    compact: bool = False
    cleanable_ratio: float = 0.5
    content: Literal["json", "msgpack"] = "json"
    by_arrival: bool = False

    @property
    def keeps_everything(self) -> bool:
        """Whether nothing is ever removed."""
        limits = (self.retention_bytes, self.retention_seconds, self.retention_messages)
        return not (any(limits) or self.segments or self.compact)


def _sum(units: dict[str, int], text: str) -> int:
    total = 0
    for item in re.split(r"[+,]", text.lower()):
        match = _ITEM.fullmatch(item)
        if match is None or match[2] not in units:
            raise ValueError(f"{item.strip()!r} is no number with one of the units known")
        total += int(match[1]) * units[match[2]]
    return total


def _at_least(least: int, read: Callable[[str], int]) -> Callable[[str], int]:
    """0, which is no limit, or at least so much."""

    def checked(text: str) -> int:
        value = read(text)
        if value and value < least:
            raise ValueError(f"must be 0 or at least {least}")
        return value

    return checked


def _size(least: int) -> Callable[[str], int]:
    return _at_least(least, lambda text: _sum(_BYTES, text))


def _seconds(text: str) -> int:
    return _sum(_SECONDS, text)


def _one_of(**meanings: int | str) -> Callable[[str], int | str]:
    def read(text: str) -> int | str:
        if text not in meanings:
            raise ValueError(f"must be {' or '.join(meanings)}")
        return meanings[text]

    return read


def _ratio(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError("must be 0 to 1")
    return value


_KEYS: Final[dict[str, tuple[str, Callable[[str], int | float | str]]]] = {
    "log.retention.bytes": ("retention_bytes", _size(128)),
    "log.retention.secs": ("retention_seconds", _seconds),
    "retention.messages.count": ("retention_messages", _at_least(1, int)),
    "retention.segments.count": ("segments", _at_least(2, int)),
    "log.cleanup.policy": ("compact", _one_of(delete=False, cleanup=True)),
    "log.cleaner.min.cleanable.ratio": ("cleanable_ratio", _ratio),
    "logweir.content": ("content", _one_of(json="json", msgpack="msgpack")),
    "logweir.retention.time": ("by_arrival", _one_of(message=False, arrival=True)),
    "log.segment.bytes": ("segment_bytes", _size(64)),
    "log.index.interval.bytes": ("", _size(128)),
    "log.index.size.max.bytes": ("", _size(128)),
    "log.roll.secs": ("", _seconds),
    "log.roll.jitter.secs": ("", _seconds),
    "flush.messages": ("", _at_least(1, int)),
    "flush.secs": ("", _seconds),
}


_KEEPS_MORE: Final[dict[str, Callable[[float], float]]] = {
    **dict.fromkeys(
        ("retention_bytes", "retention_seconds", "retention_messages", "segments"),
        lambda value: value or math.inf,
    ),
    "segment_bytes": float,
    "compact": lambda value: -value,
}
"""Of the settings that decide what is removed: the more, the more is kept."""


def _settings(text: str, origin: str) -> dict[str, tuple[str, int | float | str]]:
    """The value of each key, as it stands and as it is meant. Raises `ConfigError`."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not key or not 1 <= len(value.encode()) <= _VALUE_BYTES:
            raise ConfigError(f"line {number}", "is not of the form key = value", origin=origin)
        _, read = _KEYS.get(key.lower(), ("", str.strip))
        try:
            found[key.lower()] = value, read(value)
        except ValueError as error:
            raise ConfigError(key, f"{value!r}: {error}", origin=origin) from error
    return found


def check_topic(name: str, partitions: int) -> None:
    """Raises `ConfigError` if no broker would make such a topic. Source: Tank 4.0, observed."""
    if not _NAME.fullmatch(name) or len(name) > TANK_TOPIC_NAME_BYTES:
        letters = f"1 to {TANK_TOPIC_NAME_BYTES} letters, digits, - and _, not only - and _"
        raise ConfigError("topic", f"{name[:80]!r} cannot name one", hint=f"give {letters}")
    if not 0 < partitions <= TANK_PARTITIONS:
        hint = f"give 1 to {TANK_PARTITIONS}"
        raise ConfigError("partitions", f"a topic cannot have {partitions}", hint=hint)


def check_setting(key: str) -> None:
    """Raises `ConfigError` for a key that means nothing here; brokers pass over such a one."""
    if key.lower() not in _KEYS:
        raise ConfigError(key, "there is no such setting", hint=f"known are {', '.join(_KEYS)}")


def parse_config(text: str, *, origin: str = "topic configuration") -> TopicConfig:
    """Read configuration lines; a key that stands twice takes the last value.

    Raises `ConfigError` for a line without `=`, an empty or long value, or one that cannot be.
    """
    found = {
        _KEYS[key][0]: value
        for key, (_, value) in _settings(text, origin).items()
        if key in _KEYS and _KEYS[key][0]
    }
    return TopicConfig(**found)  # type: ignore[arg-type]


def widest_config(topic: str, partitions: Iterable[str]) -> str:
    """A topic's configuration under which each of its partitions keeps at least what it would with
    its own one, which takes precedence key by key. Raises `ConfigError`."""
    text = topic
    for own in partitions:
        settings = _settings(own, "configuration of a partition")
        now = parse_config(text)
        for key, (value, meant) in settings.items():
            keeps = _KEEPS_MORE.get(_KEYS.get(key, ("",))[0])
            if keeps is not None and keeps(float(meant)) > keeps(getattr(now, _KEYS[key][0])):
                text += f"\n{key}={value}"
    return text
