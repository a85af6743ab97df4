"""A plug-in for pytest: which test ran which line of the tree, for `logweir.tools.mutate`.

`LOGWEIR_LINES` names the file that it writes: JSON, file to line to the tests that ran it, and
`""` to the seconds of each test. Compiled kernels have no lines; their sources have where tests run
them as Python. What other processes ran is not seen.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

_ROOT: Final = f"{Path(__file__).resolve().parents[1]}{os.sep}"
_OURS: Final[dict[str, str]] = {}
"""Name of a code's file to the name below the tree, "" for files that are not of the package."""

_ran: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
_seconds: dict[str, float] = {}
_test = ""


def _name(file: str) -> str:
    if file not in _OURS:
        name = file.removeprefix(_ROOT)
        is_ours = name != file and not name.startswith(("tests", ".venv"))
        _OURS[file] = name if is_ours else ""
    return _OURS[file]


def _trace(frame: FrameType, event: str, arg: Any) -> Any:
    if name := _name(frame.f_code.co_filename):
        lines, test = _ran[name], _test
        lines[frame.f_lineno].add(test)

        def line(frame: FrameType, event: str, arg: Any) -> Any:
            lines[frame.f_lineno].add(test)
            return line

        return line
    return None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Note the lines of one test, of its threads too."""
    global _test
    _test = item.nodeid.partition("[")[0]
    threading.settrace(_trace)
    sys.settrace(_trace)
    yield
    sys.settrace(None)
    threading.settrace(None)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long it took; one that failed is of no use."""
    test = report.nodeid.partition("[")[0]
    _seconds[test] = _seconds.get(test, 0.0) + (report.duration if report.passed else 1e9)


def pytest_sessionfinish() -> None:
    """Write it."""
    told: dict[str, Any] = {
        file: {line: sorted(tests) for line, tests in lines.items()} for file, lines in _ran.items()
    }
    Path(os.environ["LOGWEIR_LINES"]).write_text(json.dumps(told | {"": _seconds}))
