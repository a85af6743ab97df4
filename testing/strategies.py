"""Strategies for Hypothesis, which has to be installed: crash points, faults, damaged bytes."""

from __future__ import annotations

import errno
import random

from hypothesis import strategies as st

from logweir.recovery.faults import Fault
from logweir.recovery.faults.faulty import flipped
from logweir.testing.damage import damaged


def crash_points(most: int = 500) -> st.SearchStrategy[int]:
    """Numbers of a cut for `CrashStore.cut_at`, from 1 on; they get smaller in a failure."""
    return st.integers(1, most)


def faults(most: int = 200) -> st.SearchStrategy[Fault]:
    """Calls that fail, for `CrashStore.fault`: the `most`-th at last; with EIO or ENOSPC, once or
    from then on, a write whole, in part or not at all; or a bit that is read wrongly."""
    numbers = st.integers(1, most)
    failing = st.builds(
        Fault,
        at=numbers,
        errno=st.sampled_from((errno.EIO, errno.ENOSPC)),
        part=st.sampled_from((0.0, 0.5, 1.0)),
        lasts=st.booleans(),
    )
    rot = st.builds(Fault, at=numbers, kinds=st.just({"read"}), bit=st.integers(0, 1 << 20))
    return failing | rot


def damaged_bytes(data: bytes) -> st.SearchStrategy[bytes]:
    """`data` cut short, with one bit flipped, or with several faults."""
    cut = st.integers(0, len(data)).map(lambda size: data[:size])
    several = st.integers(0, 1 << 32).map(
        lambda seed: damaged(data, random.Random(seed))  # noqa: S311 - repeatable, nothing secret
    )
    if not data:
        return several
    return cut | st.integers(0, 8 * len(data) - 1).map(lambda bit: flipped(data, bit)) | several
