"""How many of the calls to the disk fail in loops that let one after the other fail."""

from __future__ import annotations

import os

ALL = os.environ.get("LOGWEIR_CALLS") == "all"
"""Whether every call does, and with every error, for as long as that takes."""


def each(step: int) -> int:
    """Every so-manyth of them, or every one."""
    return 1 if ALL else step
