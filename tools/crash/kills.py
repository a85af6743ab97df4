"""Kills: SIGKILL at random moments, again and again in the same folder.

A round begins in a folder that is not there. Each of its lives starts the program in the folder as
the last one left it and kills the program's process group; then a copy of the folder is checked. In
half of the lives the moment is a time, in the other half it comes right behind an acknowledgement.
A program that cannot be started again after a kill breaks its promise, too. What dies is a process,
not the machine: what it had written stays; for that see `powercut`.
"""

from __future__ import annotations

import random
import shutil
from typing import Final

from logweir.tools.crash.keeping import Again, CrashTest, Tally
from logweir.tools.crash.programs import Ended, Moment, live, trial

_LIFE_SECONDS: Final = 0.3
"""How long an endless program lives behind its first acknowledgement, at most."""


def kill(test: CrashTest, *, rounds: int, lives: int) -> Tally:
    """Kill the program `lives` times in each of so many rounds; stops at the first failure.

    Raises `ConfigError` if the program fails without a fault: see `programs.trial`.
    """
    tally = Tally("kill")
    dice = random.Random(test.seed)  # noqa: S311 - repeatable, nothing secret
    usual = trial(test.commands, test.fresh("trial"), test.fresh("acked"))
    for number in range(rounds):
        if test.is_over:
            break
        _round(test, tally, dice, usual, lives)
        test.progress(number + 1)
        if tally.failure is not None:
            break
    return tally


def _round(test: CrashTest, tally: Tally, dice: random.Random, usual: Ended, lives: int) -> None:
    directory = test.fresh("dir")
    directory.mkdir()
    acked = b""
    for life in range(1, lives + 1):
        moment = _moment(dice, usual, has_pipe=not test.commands.acks)
        seed = dice.getrandbits(32)
        before = test.fresh("before")
        shutil.copytree(directory, before, symlinks=True)
        ended = live(
            test.commands.run_words(directory, seed),
            moment=moment,
            acks=test.commands.acks_file(directory),
            timeout_seconds=test.commands.timeout_seconds,
        )
        tally.tried += 1
        acked += ended.acked
        tally.acknowledged += ended.acked.count(b"\n")
        lines = acked.count(b"\n")
        what = f"life {life} was killed with {lines} lines acknowledged"
        if (found := ended.failure()).wrong:
            what = f"the program was started again on what life {life - 1} had left"
            test.kept(tally, before, acked, what, found, again=Again("start", start_seed=seed))
            return
        if (found := test.checked(directory, acked)).wrong:
            test.kept(tally, directory, acked, what, found)
            return


def _moment(dice: random.Random, usual: Ended, *, has_pipe: bool) -> Moment:
    count = usual.acked.count(b"\n")
    first = usual.first_seconds or 0.0
    if usual.was_stopped:
        after = 1, dice.uniform(0.0, _LIFE_SECONDS)
    else:
        after = 0, dice.uniform(min(first, usual.seconds) * 0.8, usual.seconds)
    if dice.random() < 0.5 or not has_pipe:
        return Moment(*after)
    return Moment(dice.randint(1, max(count, 1)), 0.0)
