"""Functions that tests let clients call."""

from __future__ import annotations

import threading

from logweir.errors import ErrorCode, RequestError

__all__ = ["add", "back", "count", "fail", "held", "refusals", "two"]

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


def refusals() -> object:
    refusal = RequestError(ErrorCode.ACCESS_DENIED, "no way")
    return [1, refusal], {"why": ValueError("not today")}, 2


def held() -> None:
    assert gate.wait(60)
