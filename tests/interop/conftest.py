"""Fixtures of tests that run real programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.realtarantool import RealTarantool


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealTarantool]:
    """A Tarantool in a fresh folder, shared by the tests of one file; its log goes nowhere."""
    folder: Path = tmp_path_factory.mktemp("tarantool")
    with RealTarantool(folder, listen=None, cfg={"wal_mode": "none"}) as running:
        yield running
