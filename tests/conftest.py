"""What all tests share: tests of the real Tarantool are skipped, by name, where there is none."""

from __future__ import annotations

import shutil
import signal

import pytest

# What runs in the background of a shell ignores Ctrl-C, and so would every program it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `tarantool` where the program is not installed."""
    if shutil.which("tarantool") is not None:
        return
    absent = pytest.mark.skip(reason="no `tarantool` program on this machine")
    for item in items:
        if item.get_closest_marker("tarantool") is not None:
            item.add_marker(absent)
