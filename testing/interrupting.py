"""Ctrl-C at every place where it can come: for tests of what it leaves behind.

CPython raises what a signal's handler raises when a function is entered, when a call has returned
and where a loop goes back; here it is raised at each line besides. It does not come between the
body of a `with` and the call that leaves it, though that place counts as a line of its own.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

_LIBRARY: Final = ("contextlib.py", "threading.py")
"""Of Python itself: where locks are taken and given back."""


@functools.cache
def _exits(code: CodeType) -> frozenset[int]:
    """Where `with` blocks are left: `__exit__(None, None, None)`, or with an exception."""
    found = [one for one in dis.get_instructions(code) if one.opname not in ("CACHE", "NOP")]
    after_errors = {
        one.offset
        for one, call in itertools.pairwise(found)
        if (one.opname, call.opname) == ("PUSH_EXC_INFO", "WITH_EXCEPT_START")
    }
    return frozenset(after_errors) | frozenset(
        first.offset
        for first, second, third, call in zip(found, found[1:], found[2:], found[3:], strict=False)
        if all(one.opname == "LOAD_CONST" and one.argval is None for one in (first, second, third))
        and call.opname in ("PRECALL", "CALL")
    )


class Interrupter:
    """Raises KeyboardInterrupt at the `at`-th place that is passed, in the modules of the folder
    `within` and below, and in the locks and contexts that they use. `where`: which that was."""

    def __init__(self, at: int, within: Path) -> None:
        self.at = at
        self._within = str(within.resolve())
        self.passed = 0
        self.where = ""

    def run(self, call: Callable[[], object]) -> bool:
        """Whether `call`, in this thread, was interrupted. Raises what it raises besides."""
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        try:
            call()
        except KeyboardInterrupt:
            pass  # one that comes in the end of a generator is swallowed there
        except RuntimeError as error:
            # `Condition.wait` without its lock, which it was about to take again: as when a thread
            # is started.
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
        finally:
            self._stop()
        return bool(self.where)

    def _stop(self) -> None:
        sys.settrace(None)
        sys.setprofile(None)

    def _pass(self, frame: FrameType, event: str) -> None:
        self.passed += 1
        if self.passed == self.at:
            self._stop()
            frame.f_trace = None
            name = Path(frame.f_code.co_filename).name
            self.where = f"{name}:{frame.f_lineno} {frame.f_code.co_name}, {event}"
            raise KeyboardInterrupt

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.endswith(_LIBRARY) and not file.startswith(self._within):
            return None
        if frame.f_lasti <= 0 or not frame.f_code.co_flags & inspect.CO_GENERATOR:
            self._pass(frame, "entered")  # and where a generator goes on: its next line
        return self._lines

    def _lines(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and frame.f_lasti not in _exits(frame.f_code):
            self._pass(frame, "line")
        return self._lines

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_return" and frame.f_code.co_filename.startswith(self._within):
            self._pass(frame, "call returned")
