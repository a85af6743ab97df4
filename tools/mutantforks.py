"""A plug-in for pytest: all tests in one process, which forks for each mutant of a list.

`logweir.tools.mutate` starts it. What takes seconds, importing and collecting, is done once: in the
child of a mutant the functions that it changes get the code of the changed source, and a compiled
kernel that has it (`logweir.tools.kernelmutants`) is told its number. The file is changed on disk
too, for what is imported or started later. Tests run in the order that is asked for, until one
fails; it must pass without the mutant, else it is left out and the mutant tried again.

`LOGWEIR_MUTANTS` names a file of JSON, a list of what `Job` has, `LOGWEIR_MUTANTS_TOLD` the
descriptor to which a line of JSON is written for each: its number, what came of it, and which test
noticed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import pytest

KILLED: Final = "killed"
SURVIVED: Final = "survived"
NOT_RUN: Final = "not run"
NOT_HERE: Final = "not here"
"""It changes what is run when a module is imported: a process of its own has to have it."""

TIME: Final = "(time)"
SIGNAL: Final = "(signal)"
_ENDED: Final = (TIME, SIGNAL)
"""Instead of a test: what ended those that ran."""

MEMORY_BYTES: Final = 2 << 30
_OF_A_FUNCTION: Final = 1  # CO_OPTIMIZED


@dataclass(frozen=True, slots=True)
class Job:
    """One mutant. `file`: below the folder that pytest runs in; `broken`: what it has then, or ""
    where the mutant is number `switch` of the compiled module `module`. `seconds`: how long `tests`
    may take."""

    number: int
    file: str
    broken: str
    module: str
    switch: int
    tests: list[str]
    seconds: float


def _inner(code: CodeType) -> list[CodeType]:
    return [one for one in code.co_consts if isinstance(one, CodeType)]


def _same(sound: CodeType, broken: CodeType) -> bool:
    """Whether two do the same, but for what is in functions of theirs."""
    consts = [
        [repr(one) for one in code.co_consts if not isinstance(one, CodeType)]
        for code in (sound, broken)
    ]
    return (
        sound.co_code == broken.co_code
        and sound.co_names == broken.co_names
        and consts[0] == consts[1]
    )


def changed_code(sound: CodeType, broken: CodeType) -> dict[CodeType, CodeType] | None:
    """Of each function in a module or class the code that it has to get; None where that does not
    make the one the other."""
    ours, theirs = _inner(sound), _inner(broken)
    is_function = bool(sound.co_flags & _OF_A_FUNCTION)
    if not is_function and not _same(sound, broken):
        return None
    if [one.co_name for one in ours] != [one.co_name for one in theirs]:
        return {} if is_function else None
    found: dict[CodeType, CodeType] = {}
    for one, other in zip(ours, theirs, strict=True):
        if one.co_flags & _OF_A_FUNCTION and one != other:
            if one.co_freevars != other.co_freevars:
                return None
            found[one] = other
        inner = changed_code(one, other)
        if inner is None:
            return None
        found |= inner
    return found


def put_in(file: str, sound: str, broken: str) -> bool:
    """Give all functions of a module of this process the code of another source. False where
    that is not enough."""
    codes = [compile(text, file, "exec", dont_inherit=True) for text in (sound, broken)]
    changed = changed_code(*codes)
    if changed is None:
        return False
    gc.unfreeze()  # what is frozen, as tests do with what they imported, is not told
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename == file:
            one.__code__ = changed.get(one.__code__, one.__code__)
    return True


class Forks:
    """The tests of a session, and children that run some."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._root = session.config.rootpath
        self._known: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            name = item.nodeid
            for known in {name, name.partition("[")[0], *_beginnings(name)}:
                self._known.setdefault(known, []).append(item)
        self._passes: dict[str, bool] = {}
        self._changes = 0

    def judge(self, job: Job) -> dict[str, Any]:
        """What came of it."""
        items = list(dict.fromkeys(one for test in job.tests for one in self._known.get(test, ())))
        begun = time.monotonic()
        outcome, test = NOT_RUN, "there are no such tests"
        while items := [one for one in items if self._passes.get(one.nodeid, True)]:
            outcome, test = self._with(job, items)
            if outcome != KILLED or self._is_sound(test, items, job.seconds):
                break
            ended, outcome, test = test in _ENDED, NOT_RUN, "its tests fail without it"
            if ended:
                break
        took = time.monotonic() - begun
        return {"number": job.number, "outcome": outcome, "test": test, "seconds": took}

    def _is_sound(self, test: str, items: Sequence[pytest.Item], seconds: float) -> bool:
        """Whether a test passes without a mutant; all of them, where nobody knows which it was."""
        if test in _ENDED:
            return self._child(items, seconds, lambda: True)[0] == SURVIVED
        if test not in self._passes:
            outcome, _ = self._child(self._known[test], seconds, lambda: True)
            self._passes[test] = outcome == SURVIVED
        return self._passes[test]

    def _with(self, job: Job, items: Sequence[pytest.Item]) -> tuple[str, str]:
        if not job.broken:

            def switch() -> bool:
                importlib.import_module(job.module)._put_in(job.switch)
                return True

            return self._child(items, job.seconds, switch)
        path = self._root / job.file
        sound = path.read_text("utf-8")
        self._write(path, job.broken)
        try:
            return self._child(items, job.seconds, lambda: put_in(str(path), sound, job.broken))
        finally:
            self._write(path, sound)

    def _write(self, path: Path, text: str) -> None:
        """With a time of its own: what was compiled of the last contents is old by that."""
        self._changes += 1
        path.write_text(text, "utf-8")
        at = int(time.time()) + self._changes
        os.utime(path, (at, at))

    def _child(
        self, items: Sequence[pytest.Item], seconds: float, put: Callable[[], bool]
    ) -> tuple[str, str]:
        """What becomes of tests in a child that `put` has prepared."""
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setpgid(0, 0)
                os.close(reads)
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
                os.write(writes, json.dumps(self._prepared(items, put)).encode())
            finally:
                os._exit(0)
        os.close(writes)
        ready, _, _ = select.select([reads], [], [], seconds)
        said = os.read(reads, 65536) if ready else b""
        os.close(reads)
        try:
            os.killpg(child, signal.SIGKILL)  # with the programs that the tests started
        except ProcessLookupError:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        shutil.rmtree(str(self._session.config.option.basetemp), ignore_errors=True)
        if said:
            outcome, test = json.loads(said)
            return outcome, test
        return KILLED, SIGNAL if ready else TIME

    def _prepared(self, items: Sequence[pytest.Item], put: Callable[[], bool]) -> list[str]:
        try:
            if not put():
                return [NOT_HERE, ""]
        except Exception as error:
            return [NOT_RUN, repr(error)]
        return self._run(items)

    def _run(self, items: Sequence[pytest.Item]) -> list[str]:
        passed = 0
        for item, following in pairwise([*items, None]):
            assert item is not None
            before = self._session.testsfailed
            try:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            except BaseException:  # what would end the whole run
                return [KILLED, item.nodeid]
            if self._session.testsfailed > before:
                return [KILLED, item.nodeid]
            passed += getattr(item, "_passed", False)
        return [SURVIVED if passed else NOT_RUN, ""]


def _beginnings(name: str) -> Iterator[str]:
    """The file and the class of a test."""
    parts = name.partition("[")[0].split("::")
    for count in range(1, len(parts)):
        yield "::".join(parts[:count])


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Note which tests were not skipped."""
    if call.when == "call" and call.excinfo is None:
        vars(item)["_passed"] = True


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Instead of running tests: try each mutant."""
    told = int(os.environ["LOGWEIR_MUTANTS_TOLD"])
    os.set_inheritable(told, False)
    jobs: Iterable[Any] = json.loads(Path(os.environ["LOGWEIR_MUTANTS"]).read_bytes())
    forks = Forks(session)
    for one in jobs:
        os.write(told, json.dumps(forks.judge(Job(**one))).encode() + b"\n")
    return True
