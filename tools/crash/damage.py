"""Damage: one bit that is wrong, or one file that is cut short, in what a whole run left.

The check may then say that the data is damaged: it ends with exit code 3, `TOLD`, and keeps its
promise by that. Any other code but 0 means that the damage was not noticed, and that something that
was acknowledged is missing or wrong. Every file that is not empty is damaged as often as every
other one.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Final

from logweir.tools.crash.keeping import CrashTest, Tally
from logweir.tools.crash.programs import TOLD, live
from logweir.tools.crash.replay import contents

__all__ = ["DAMAGES", "damage"]

DAMAGES: Final = ("wrong bit", "cut file")


def damage(test: CrashTest, fault: str, *, states: int) -> Tally:
    """Run the program once, and damage so many copies of what it left. `fault`: of `DAMAGES`. The
    first damage that is not noticed is kept, all are counted. Raises `ConfigError` where the
    program fails without a fault."""
    tally = Tally(fault)
    whole = test.fresh("dir")
    whole.mkdir()
    commands = test.commands
    acks = commands.acks_file(whole)
    ended = live(
        commands.run_words(whole, test.seed),
        moment=None,
        acks=acks,
        timeout_seconds=commands.timeout_seconds,
    )
    ended.must_be_well(commands)
    names = [name for name, data in contents(whole).items() if data and whole / name != acks]
    dice = random.Random(test.seed)  # noqa: S311 - repeatable, nothing secret
    while tally.tried < states and not test.is_over:
        before = test.fresh("before")
        shutil.copytree(whole, before, symlinks=True)
        name = dice.choice(names)
        what = _spoil(before / name, name, fault, dice)
        tally.tried += 1
        tally.acknowledged += ended.acked.count(b"\n")
        test.progress(tally.tried)
        found = test.checked(before, ended.acked)
        if found.code == TOLD:
            tally.told += 1
        elif found.wrong:
            tally.broken += 1
            if tally.failure is None:
                test.kept(tally, before, ended.acked, what, found)
    return tally


def _spoil(path: Path, name: str, fault: str, dice: random.Random) -> str:
    """Damage a file; returns what was done to it."""
    data = bytearray(path.read_bytes())
    at = dice.randrange(len(data))
    if fault == "cut file":
        path.write_bytes(data[:at])
        return f"{name}, of {len(data)} bytes, was cut to {at}"
    bit = dice.randrange(8)
    data[at] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {at} of {name}, of {len(data)} bytes, was wrong"
