"""Several kinds of faults in turn, and what came of them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from logweir.recovery.faults.surviving import Model
from logweir.tools.crash.damage import DAMAGES, damage
from logweir.tools.crash.faults import fail_calls
from logweir.tools.crash.keeping import CrashTest, Failure, Tally
from logweir.tools.crash.kills import kill
from logweir.tools.crash.powercut import cut

KINDS: Final[dict[str, str]] = {
    "power cut": "--power-cut",
    "disk error": "--disk-errors",
    "full disk": "--full-disk",
    "short write": "--short-writes",
    "interrupt": "--interrupt",
    "wrong bit": "--wrong-bits",
    "cut file": "--cut-files",
    "kill": "--kill",
}
"""Names of what can be done to a program, in the order in which it is done, and the options of
`logweir crashtest` for it."""


class Bounds(NamedTuple):
    """How much is done. `states`: disks that power cuts leave, runs with a failing call, or
    damages, at most; `rounds`: folders to kill the program in; `lives`: starts in one folder;
    `model`: of the disk."""

    states: int = 200
    rounds: int = 10
    lives: int = 3
    model: Model = "posix"


def crash(test: CrashTest, kinds: Collection[str], bounds: Bounds) -> list[Tally]:
    """Do to the program what is named in `kinds`, of `KINDS`; each stops at its first failure, but
    for damages, which are all counted.
    Raises `ConfigError` where the program cannot be tested."""
    tallies = []
    for kind in KINDS:
        if kind not in kinds:
            continue
        if kind == "power cut":
            tally = cut(test, states=bounds.states, lives=bounds.lives, model=bounds.model)
        elif kind in DAMAGES:
            tally = damage(test, kind, states=bounds.states, lives=bounds.lives)
        elif kind == "kill":
            tally = kill(test, rounds=bounds.rounds, lives=bounds.lives)
        else:
            tally = fail_calls(test, kind, runs=bounds.states)
        tallies.append(tally)
    return tallies


def told(tally: Tally) -> Iterator[str]:
    """What came of one kind of fault, in lines."""
    if tally.failure is not None:
        yield from told_failure(tally.failure)
        yield f"again: logweir crashtest --again {shlex.quote(str(tally.failure.folder))}"
    verdict = "a promise was broken" if tally.failure else "nothing acknowledged was lost"
    counts = f"{tally.tried} tried, {tally.acknowledged} lines acknowledged"
    if tally.fault in DAMAGES:
        counts += f", {tally.told} noticed and told, {tally.broken} neither"
    yield f"{tally.fault}: {counts}: {verdict}"


def told_failure(failure: Failure) -> Iterator[str]:
    """A broken promise, in lines."""
    yield f"{failure.fault} {failure.number}: {failure.what}"
    yield f"{failure.wrong}: {failure.output.strip()[-2000:]}"
