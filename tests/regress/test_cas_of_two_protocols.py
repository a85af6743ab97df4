"""Two protocols that served one store counted CAS values each for itself, by one clock: an item
could be changed and have the CAS that a client had read before."""

from __future__ import annotations

from pathlib import Path

from logweir.replication.bucket.store import Buckets
from logweir.store import open as open_store


def test_no_cas_is_given_twice_within_one_microsecond(tmp_path: Path) -> None:
    """Whoever asks, and whichever bucket it is for."""
    with open_store(tmp_path / "s") as log:
        found = [Buckets(log, lambda: 5.0).make(name) for name in ("a", "a", "b")]
        given = [bucket.cas.after() for bucket in found * 3]
        assert len(set(given)) == 9
