"""The memory that the C library keeps after it was freed: how much, and to give it back.

All of it is about glibc; where another C library runs nothing is done.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1  # glibc's malloc.h
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def set_limits(*, shared_bytes: int, kept_bytes: int, arenas: int) -> None:
    """For this process. `shared_bytes`: larger blocks get memory of their own, which goes back at
    once; `kept_bytes`: of freed memory, that are kept at the end of each heap; `arenas`: heaps."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, shared_bytes)
        mallopt(_M_TRIM_THRESHOLD, kept_bytes)
        mallopt(_M_ARENA_MAX, arenas)


def give_back() -> None:
    """Let the system have all whole pages that were freed."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
