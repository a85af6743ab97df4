"""Buffers for kernels, with something behind them that nobody may touch."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from types import ModuleType
from typing import Any

import pytest

from logweir.store.schema.bulk import interpreted

CANARY = 0x5A5A5A5A5A5A5A5A


class Table:
    """So many numbers, with some behind them that nobody may touch."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._all = array("Q", [*numbers, *[CANARY] * 64])
        self.size = len(numbers)
        self.view = memoryview(self._all)[: self.size]

    def check(self) -> None:
        """Nothing was written behind it."""
        assert set(self._all[self.size :]) == {CANARY}


def short(call: Callable[[Any], object], numbers: Sequence[int], least: int) -> None:
    """`call` with fewer than `least` numbers is an error, and with so many it is none."""
    for size in range(least):
        table = Table(numbers[:size])
        with pytest.raises(IndexError):
            call(table.view)
        table.check()
    table = Table(numbers[:least])
    call(table.view)
    table.check()


class Room:
    """A `bytearray` of so many bytes, which stands in a larger piece of memory.

    One that is made at most half as long keeps its memory (`PyByteArray_Resize` of CPython), with a
    zero behind its bytes.
    """

    def __init__(self, size: int) -> None:
        self._more = min(size, 256)
        self.data = bytearray(size) + b"\x5a" * self._more
        del self.data[size:]

    def check(self) -> None:
        """Nothing was written behind it."""
        if self._more:
            begin = ctypes.addressof((ctypes.c_char * len(self.data)).from_buffer(self.data))
            behind = ctypes.string_at(begin + len(self.data), self._more)
            assert behind == b"\0" + b"\x5a" * (self._more - 1)


def every_room(call: Callable[[bytearray], bytes | None], most: int) -> int:
    """The least room with which `call` makes something: with more it makes the same; with less it
    says so, None; and never it writes behind its room. `most`: bytes that are enough."""
    whole = call(bytearray(most))
    assert whole is not None

    def makes(size: int) -> bool:
        room = Room(size)
        made = call(room.data)
        room.check()
        assert made is None or made == whole, size
        return made is not None

    step = max(most // 100, 1)
    far = next(size for size in range(0, most + step, step) if makes(min(size, most)))
    least = next(size for size in range(max(far - step, 0), most + 1) if makes(size))
    assert all(makes(size) for size in range(least, most + 1, step))
    assert len(whole) <= least
    return least


def both(module: ModuleType) -> pytest.MarkDecorator:
    """The kernel as it runs, and as plain Python."""
    return pytest.mark.parametrize(
        "kernel",
        [pytest.param(module, id="compiled"), pytest.param(interpreted(module), id="plain")],
    )


@contextmanager
def said(name: str) -> Iterator[None]:
    """A kernel finds by itself that something is not so, before Python does."""
    with pytest.raises(IndexError, match=name):
        yield


def none_for(error: IndexError, begin: str) -> None:
    """What `every_room` takes for no room, if a kernel said so, and not Python."""
    assert str(error).startswith(begin)


def bounds_of(parts: Sequence[bytes]) -> array[int]:
    """Where each begins, and the last ends."""
    return array("Q", accumulate(map(len, parts), initial=0))
