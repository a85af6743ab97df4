"""Functions that tests let clients call."""

from __future__ import annotations

import threading

__all__ = ["add", "back", "count", "fail", "held", "two"]

gate = threading.Event()
gate.set()


def add(left: int, right: int) -> int:
    return left + right


def back(value: object) -> object:
    return value


def two() -> tuple[int, str]:
    return 1, "two"


def count(log: object, space: str) -> int:
    return log.count(space)  # type: ignore[attr-defined,no-any-return]


def fail() -> None:
    raise ValueError("not today")


def held() -> None:
    assert gate.wait(60)
