"""Calls to the disk that fail: the 1st, 2nd, … one of a run, each in a run of its own.

The library that records a program makes one of its calls fail, or sends SIGINT before it; what the
program does then is up to it, it may well end with an error. But the check has to accept what is
left, it must not crash by a signal, and it must not hang. A sync that failed has saved nothing, and
no later one makes that good: so behind such a run the power is cut, too, and all is lost that was
not synced.
"""

from __future__ import annotations

import errno
import random
from typing import Final

from logweir.recovery.faults.surviving import settled
from logweir.tools.crash.keeping import Again, CrashTest, Tally
from logweir.tools.crash.powercut import everything_lost
from logweir.tools.crash.recording import Fault, Operation
from logweir.tools.crash.replay import Replay, put

FAULTS: Final[dict[str, tuple[Fault, str]]] = {
    "disk error": (Fault(1, errno=errno.EIO), "call {at} of {count}, {name}, failed with EIO"),
    "full disk": (
        Fault(2, errno=errno.ENOSPC, lasts=True),
        "call {at} of the {count} that take room, {name}, and all later ones failed with ENOSPC",
    ),
    "short write": (Fault(3), "write {at} of {count} was made by half"),
    "interrupt": (Fault(4), "SIGINT came before call {at} of {count}, {name}"),
}
"""Name of a fault to what is done and how it is told."""


def fail_calls(test: CrashTest, fault: str, *, runs: int) -> Tally:
    """Let one call fail in each of at most so many runs; stops at the first failure. `fault`: one
    of `FAULTS`. Raises `ConfigError` if it fails without a fault or cannot be recorded."""
    tally = Tally(fault)
    kind, told = FAULTS[fault]
    ended, recorded = test.failing(kind, is_endless=True)
    ended.must_be_well(test.commands)
    is_endless = ended.was_stopped
    count = recorded.counted
    numbers = list(range(1, count + 1))
    if count > runs:
        dice = random.Random(test.seed)  # noqa: S311 - repeatable, nothing secret
        numbers = sorted(dice.sample(numbers, runs))
    for number in numbers:
        if test.is_over or tally.failure is not None:
            break
        call = kind._replace(at=number)
        ended, recorded = test.failing(call, is_endless=is_endless)
        if not recorded.failed:
            continue  # the run was shorter than the first one
        tally.tried += 1
        tally.acknowledged += ended.acked.count(b"\n")
        test.progress(tally.tried)
        what = told.format(at=number, count=count, name=recorded.failed)
        if (found := ended.fatal(is_endless=is_endless)).wrong:
            test.fresh("after")  # it was not checked
            again = Again("call", call=call, is_endless=is_endless)
            test.kept(tally, test.work / "dir", ended.acked, what, found, again=again)
        else:
            _look(test, tally, ended.acked, what, recorded.operations)
    return tally


def _look(
    test: CrashTest, tally: Tally, acked: bytes, what: str, operations: list[Operation]
) -> None:
    directory = test.work / "dir"
    found = test.checked(directory, acked)
    if not found.wrong and operations:
        replay = Replay(operations)
        replay.go(len(operations))
        directory = test.fresh("before")
        put(settled(everything_lost(replay.disk)), directory)
        found = test.checked(directory, acked)
        what += "; behind it the power was cut, and all was lost that no sync had saved"
    if found.wrong:
        test.kept(tally, directory, acked, what, found)
