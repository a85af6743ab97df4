"""A plug-in for pytest: which test ran which line of the tree, for `logweir.tools.mutate`.

`LOGWEIR_LINES` names the file that it writes: JSON, file to line to the tests that ran it, and
`""` to the seconds of each test. Compiled kernels have no lines; of those that `LOGWEIR_SWITCHED`
names (`logweir.tools.kernelmutants`) it notes which tests reach which mutant, by the module's name.
What other processes ran is not seen. To be quick it looks at the first `CALLS` of a function in a
test, and in each of them at no more than `STEPS` lines.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import pytest

CALLS: Final = 32
STEPS: Final = 4000

_ROOT: Final = f"{Path(__file__).resolve().parents[1]}{os.sep}"
_OURS: Final[dict[CodeType, str]] = {}
"""A code to the name of its file below the tree, "" for files that are not of the package."""

_ran: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
_seconds: dict[str, float] = {}
_calls: dict[CodeType, int] = {}
_test = ""


def _name(code: CodeType) -> str:
    if code not in _OURS:
        name = code.co_filename.removeprefix(_ROOT)
        is_ours = name != code.co_filename and not name.startswith(("tests", ".venv"))
        _OURS[code] = name if is_ours else ""
    return _OURS[code]


def _trace(frame: FrameType, event: str, arg: Any) -> Any:
    code = frame.f_code
    if not (name := _name(code)) or (calls := _calls.get(code, 0)) >= CALLS:
        return None
    _calls[code] = calls + 1
    lines, test, steps = _ran[name], _test, 0
    lines[frame.f_lineno].add(test)

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps > STEPS:
            frame.f_trace_lines = False
        lines[frame.f_lineno].add(test)
        return line

    return line


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Note the lines of one test, of its threads too."""
    global _test
    _test = item.nodeid.partition("[")[0]
    _calls.clear()
    _reached()
    threading.settrace(_trace)
    sys.settrace(_trace)
    yield
    sys.settrace(None)
    threading.settrace(None)
    for name, number in _reached():
        _ran[name][number].add(_test)


def _reached() -> list[tuple[str, int]]:
    """The mutants of kernels that were, since this was asked."""
    names = os.environ.get("LOGWEIR_SWITCHED", "").split()
    loaded = [(name, sys.modules[name]) for name in names if name in sys.modules]
    return [(name, number) for name, module in loaded for number in module._take_reached()]


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
