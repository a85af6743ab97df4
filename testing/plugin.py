"""The pytest plug-in: `crash_store`, `crash_program`, `failpoint`, `@pytest.mark.power_cut`.

pytest loads it by the entry point `logweir` wherever the package is installed; what the fixtures
need is imported when a test asks for one. See docs/testing.md.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from logweir.testing.store import CrashStore
    from logweir.tools.crash.keeping import Tally


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """`--crash-seed` and `--crash-only`, which repeat a failure."""
    # Of an installed package that brings a plug-in pytest rewrites all modules, for the messages of
    # their assertions: importing the store takes a second more. There is no public way out of it.
    rewritten = getattr(pluginmanager.rewrite_hook, "_must_rewrite", None)
    if isinstance(rewritten, set):
        rewritten.discard("logweir")
    group = parser.getgroup("logweir crash tests")
    text = "what `crash_store` and `crash_program` choose by, instead of 0 or of the mark's"
    group.addoption("--crash-seed", type=int, default=None, metavar="N", help=text)
    text = "the one power cut that `crash_store` tries, by the number that a failure names"
    group.addoption("--crash-only", type=int, default=None, metavar="N", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    text = "how many disks power cuts leave, for `crash_store` and `crash_program`"
    config.addinivalue_line("markers", f"power_cut(states=100, seed=0): {text}")


def _asked(request: pytest.FixtureRequest) -> dict[str, int]:
    """`states` and `seed`, by the mark and the option."""
    mark = request.node.get_closest_marker("power_cut")
    asked: dict[str, int] = {"states": 100, "seed": 0}
    if mark is not None:
        if mark.args or set(mark.kwargs) - set(asked):
            pytest.fail("it is @pytest.mark.power_cut(states=…, seed=…)", pytrace=False)
        asked |= mark.kwargs
    if (seed := request.config.getoption("--crash-seed")) is not None:
        asked["seed"] = seed
    return asked


@pytest.fixture
def crash_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CrashStore]:
    """A store to crash: see `logweir.testing.store`. Behind a failure what was on its disk is kept
    in the test's temporary folder, and the report says where, and what repeats it."""
    from logweir.testing.store import CrashStore

    only = request.config.getoption("--crash-only")
    with CrashStore(tmp_path, only=only, **_asked(request)) as store:
        yield store


@pytest.fixture
def crash_program(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., list[Tally]]:
    """`logweir.testing.crash_program`, which keeps failures in the test's temporary folder."""
    from logweir.testing.programs import crash_program

    asked = _asked(request)
    return functools.partial(
        crash_program, keep=tmp_path / "kept", states=asked["states"], seed=asked["seed"]
    )


@pytest.fixture
def failpoint() -> Iterator[Callable[[str, Callable[[], None]], None]]:
    """Arms a named place: `failpoint("wal.after_sync", action)` calls `action` whenever the program
    passes it. Nothing is armed any longer behind the test."""
    from logweir.wal.failpoint import arm, disarm

    yield arm
    disarm()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say of a failed test what was done to its store."""
    report = yield
    store: CrashStore | None = getattr(item, "funcargs", {}).get("crash_store")
    if report.when == "call" and report.failed and store is not None:
        report.sections.append(("crash_store", _told(item, store)))
    return report


def _told(item: pytest.Item, store: CrashStore) -> str:
    current = store.current
    kept = store.path.with_name("disk")
    current.lay(kept)
    words = ["pytest", item.nodeid, "--crash-seed", str(store.seed)]
    if current is not store and current.only is not None:
        words += ["--crash-only", str(current.only)]
    return "\n".join(
        (
            f"seed {store.seed}; {current.where or 'nothing was done to it yet'}",
            f"promised: {current.promised[-5:]!r} (the last ones of {len(current.promised)})",
            f"its disk: {kept}",
            f"again: {shlex.join(words)}",
        )
    )
