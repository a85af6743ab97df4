"""Crash tests of any program, from a test suite: what `logweir crashtest` does, as a function."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path

from logweir.errors import ConfigError
from logweir.recovery.faults.surviving import Model
from logweir.tools.crash.keeping import CrashTest, Tally
from logweir.tools.crash.programs import Commands
from logweir.tools.crash.suite import KINDS, Bounds, crash, told


def crash_program(
    run: str,
    check: str,
    *,
    faults: Collection[str] = ("power cut",),
    keep: Path,
    acks: str = "",
    states: int = 200,
    rounds: int = 10,
    lives: int = 3,
    model: Model = "posix",
    seed: int = 0,
    timeout_seconds: float = 60.0,
) -> list[Tally]:
    """Crash a program and check that all it had acknowledged is there.

    `run`, `check`: the commands, as for `logweir crashtest`; `faults`: some of "power cut",
    "disk error", "full disk", "short write", "interrupt", "wrong bit", "cut file" and "kill";
    `keep`: the folder in which a failure is kept; the others are the command's options. Returns
    what was done, one for each kind of fault.

    Raises `AssertionError` if a promise was broken, with the command that shows it again, and
    `ConfigError` for what cannot be tested: without a fault the program and its check have to pass.
    """
    if unknown := sorted(set(faults) - set(KINDS)):
        raise ConfigError("faults", f"there is no {unknown[0]!r}", hint=f"some of {list(KINDS)}")
    commands = Commands(run, check, acks, timeout_seconds)
    with tempfile.TemporaryDirectory(prefix="logweir-crashtest-") as temporary:
        test = CrashTest(commands, Path(temporary), keep, seed=seed)
        tallies = crash(test, faults, Bounds(states, rounds, lives, model))
    broken = [text for tally in tallies if tally.failure is not None for text in told(tally)]
    if broken:
        raise AssertionError("\n".join(broken))
    return tallies
