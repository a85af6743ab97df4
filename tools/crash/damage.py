"""Damage: one bit that is wrong, or one file that is cut short, in what a whole run left.

The check may then say that the data is damaged: it ends with exit code 3, `TOLD`, and keeps its
promise by that. Any other code but 0 means that the damage was not noticed, and that something that
was acknowledged is missing or wrong. Every file that is not empty is damaged as often as every
other one; but every second wrong bit is among the first bytes of a write, where headers and lengths
stand, of the later ones more often, if the run can be recorded.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from logweir.errors import ConfigError
from logweir.tools.crash.keeping import CrashTest, Tally
from logweir.tools.crash.programs import TOLD, Ended, Moment, live
from logweir.tools.crash.recording import Recording
from logweir.tools.crash.replay import Replay, contents

DAMAGES: Final = ("wrong bit", "cut file")
_HEAD_BYTES: Final = 16
"""Of a write: that is where its header is, if it has one."""


class _Run(NamedTuple):
    """What a run left. `folder`; `acked`: what it acknowledged; `names`: files that are not empty;
    `writes`: path and offset of each write in them, in order, none if it could not be recorded."""

    folder: Path
    acked: bytes
    names: list[str]
    writes: list[tuple[str, int]]


def damage(test: CrashTest, fault: str, *, states: int, lives: int) -> Tally:
    """Run the program once, and damage so many copies of what it left. `fault`: of `DAMAGES`. A
    program that never ends is run `lives` times, and killed right behind an acknowledgement in
    every run but the first. The first damage that is not noticed is kept, all are counted. Raises
    `ConfigError` where the program fails without a fault."""
    tally = Tally(fault)
    dice = random.Random(test.seed)  # noqa: S311 - repeatable, nothing secret
    ended, run = _ran(test, tally, None)
    ended.must_be_well(test.commands)
    acknowledged = ended.acked.count(b"\n")
    lives = lives if ended.was_stopped else 1
    for number in range(1, lives + 1):
        _damage(test, tally, run, states * number // lives, dice)
        if number < lives and not test.is_over:
            _, run = _ran(test, tally, Moment(dice.randint(1, acknowledged), 0.0))
    return tally


def _damage(test: CrashTest, tally: Tally, run: _Run, until: int, dice: random.Random) -> None:
    """Damage copies of what a run left until so many were tried in all."""
    while tally.tried < until and not test.is_over:
        before = test.fresh("before")
        shutil.copytree(run.folder, before, symlinks=True)
        what = _spoil(before, run, tally, dice)
        tally.tried += 1
        tally.acknowledged += run.acked.count(b"\n")
        test.progress(tally.tried)
        found = test.checked(before, run.acked)
        if found.code == TOLD:
            tally.told += 1
        elif found.wrong:
            tally.broken += 1
            if tally.failure is None:
                test.kept(tally, before, run.acked, what, found)


def _ran(test: CrashTest, tally: Tally, moment: Moment | None) -> tuple[Ended, _Run]:
    """Run the program to its end, or to that moment."""
    whole = test.fresh("dir")
    whole.mkdir()
    commands = test.commands
    acks = commands.acks_file(whole)
    recording = None
    if tally.fault == "wrong bit":
        try:
            recording = Recording(test.fresh("trace"), whole, acks=acks)
        except ConfigError as error:
            _note(tally, error)
    try:
        ended = live(
            commands.run_words(whole, test.seed),
            moment=moment,
            acks=acks,
            recording=recording,
            timeout_seconds=commands.timeout_seconds,
        )
        writes = _writes(tally, recording, commands.run) if recording else []
    finally:
        if recording:
            recording.close()
    sizes = {
        name: len(data) for name, data in contents(whole).items() if data and whole / name != acks
    }
    writes = [(name, at) for name, at in writes if at < sizes.get(name, 0)]
    return ended, _Run(whole, ended.acked, list(sizes), writes)


def _writes(tally: Tally, recording: Recording, command: str) -> list[tuple[str, int]]:
    """Where writes begin in the files that are there."""
    try:
        recording.must_be_loaded(command)
        operations = list(recording.operations())
    except ConfigError as error:
        _note(tally, error)
        return []
    replay = Replay(operations)
    replay.go(len(operations))
    return replay.writes()


def _note(tally: Tally, error: ConfigError) -> None:
    note = f"bits were drawn from all bytes alike: {error}"
    if note not in tally.notes:
        tally.notes.append(note)


def _spoil(folder: Path, run: _Run, tally: Tally, dice: random.Random) -> str:
    """Damage a file; returns what was done to it."""
    name, start = dice.choice(run.names), 0
    is_aimed = bool(run.writes) and tally.tried % 2 == 1
    if is_aimed:
        back = int(len(run.writes) * dice.random() ** 2)
        name, start = run.writes[len(run.writes) - 1 - back]
    data = bytearray((folder / name).read_bytes())
    at = start + dice.randrange(min(len(data) - start, _HEAD_BYTES) if is_aimed else len(data))
    if tally.fault == "cut file":
        (folder / name).write_bytes(data[:at])
        return f"{name}, of {len(data)} bytes, was cut to {at}"
    bit = dice.randrange(8)
    data[at] ^= 1 << bit
    (folder / name).write_bytes(data)
    return f"bit {bit} of byte {at} of {name}, of {len(data)} bytes, was wrong"
