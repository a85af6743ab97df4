"""What is done to that which surrounds a store, and counted: its folder, its clock, its state, and
the sample files of other programs. Rows of docs/reliability.md, as those of `measuring`."""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

import logweir
from logweir.errors import LogweirError
from logweir.recovery.faults.faulty import flipped
from logweir.testing.clock import SimClock
from logweir.testing.forking import in_child
from logweir.testing.measuring import Measured, damages, is_broken, work
from logweir.testing.store import CrashStore

_STEPS: Final = 12
_JUMPS: Final = (-86400.0 * 400, -3600.0, -1.0, 0.0, 0.001, 3600.0, 86400.0 * 400)
_ROWS: Final = 200
_OTHERS: Final = ("nothing", "an empty folder", "another store")


# --- the folder -----------------------------------------------------------------------------------


def renamed_folders(states: int, seed: int) -> Measured:
    """The folder of an open store is renamed between two of its operations, and there is nothing,
    an empty folder or another store in its place: nothing is written there, all is where it was."""
    tried = broken = refused = 0
    for step, other in itertools.islice(itertools.product(range(_STEPS), _OTHERS), states):
        with tempfile.TemporaryDirectory(prefix="logweir-rename-") as scratch:
            tried += 1
            was_refused, is_right = _renamed(Path(scratch), step, other)
            refused += was_refused
            broken += not is_right
    found = f"{refused} refused the next file, {tried - refused} went on; nothing was written there"
    return Measured(tried, broken, found)


def _renamed(scratch: Path, step: int, other: str) -> tuple[bool, bool]:
    """Whether an operation behind the renaming was refused, and whether all is as it should be."""
    folder, moved = scratch / "store", scratch / "moved"
    promised: set[int] = set()
    refused = False
    with logweir.open(scratch / "another") as log:
        log.create_space("t", [("id", "unsigned")])
    log = logweir.open(folder, wal_max_size=700, checkpoint_count=1, checkpoint_interval=0.0)
    log.create_space("t", [("id", "unsigned"), ("value", "string")])
    before: dict[str, bytes] = {}
    for number in range(2 * _STEPS):
        if number == step:
            folder.rename(moved)
            if other == "an empty folder":
                folder.mkdir()
            elif other == "another store":
                (scratch / "another").rename(folder)
            before = _bytes(folder)
        try:
            if number % 5 == 3:
                log.snapshot()
            else:
                log.insert("t", (number, "x" * 60))
                promised.add(number)
        except LogweirError:
            refused = True
    try:
        log.close()
    except LogweirError:
        refused = True
    if _bytes(folder) != before:
        return refused, False
    try:
        with logweir.open(moved) as log:
            return refused, promised <= {row[0] for row in log.select("t")}
    except LogweirError:
        return refused, False


def _bytes(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# --- the clock ------------------------------------------------------------------------------------


class _JumpingClock(SimClock):
    """Jumps each time it is asked, forwards and back, by up to 400 days."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._dice = random.Random(seed)  # noqa: S311

    def __call__(self) -> float:
        self.advance(self._dice.choice(_JUMPS))
        return super().__call__()


def clock_jumps(states: int, seed: int) -> Measured:
    """The clock jumps by up to 400 days, back too, each time the store asks for it; behind the work
    the process is killed, or the power is cut."""
    broken = 0
    for number in range(states):
        with CrashStore(seed=seed + number) as store:
            store.clock = _JumpingClock(seed + number)
            try:
                work(store)
                store.power_cut() if number % 2 else store.kill()
                broken += is_broken(store)
            except LogweirError:
                broken += 1
    return Measured(states, broken, "all rows as they were")


# --- the state ------------------------------------------------------------------------------------


def state_damages(states: int, seed: int, *, cuts: bool) -> Measured:
    """A bit of `state/data.mdb` of a closed store is wrong, or it is cut short: what is read from
    the store when it is opened next, in a process of its own."""
    broken = told = 0
    with tempfile.TemporaryDirectory(prefix="logweir-state-") as scratch:
        folder, tried = Path(scratch, "store"), Path(scratch, "tried")
        with logweir.open(folder) as log:
            log.create_space("t", [("id", "unsigned"), ("value", "string")])
            log.create_index("t", "value", ["value"])
            log.append("t", [(number, f"value {number}") for number in range(_ROWS)])
        data = (folder / "state/data.mdb").read_bytes()
        whole = in_child(partial(_content, folder))
        dice = random.Random(seed)  # noqa: S311
        for _ in range(states):
            shutil.rmtree(tried, ignore_errors=True)
            shutil.copytree(folder, tried)
            at = dice.randrange(8 * len(data))
            spoilt = data[: at // 8] if cuts else flipped(data, at)
            (tried / "state/data.mdb").write_bytes(spoilt)
            try:
                content = in_child(partial(_content, tried))
            except AssertionError:  # it ended by a signal, or hangs
                content = ""
            told += "Error" in content or "Refused" in content
            broken += content != whole and not ("Error" in content or "Refused" in content)
    return Measured(states, broken, f"{told} typed errors, else all rows as they were")


def _content(folder: Path) -> str:
    """All that a store answers, as one word."""
    with logweir.open(folder) as log:
        rows = log.select("t")
        by_value = log.select("t", index="value")
        one = log.get("t", _ROWS // 2)
    return f"{len(rows)} rows, {hash(tuple(rows))} {hash(tuple(by_value))} {one}"


# --- sample files ---------------------------------------------------------------------------------


def sample_damages(folder: Path, states: int, *, cuts: bool) -> Measured:
    """One bit is wrong in a file of a folder of somebody else, or a file of it is cut short."""
    files = [path for path in sorted(folder.iterdir()) if path.suffix in (".snap", ".xlog")]
    return damages([(path.name, path.read_bytes()) for path in files], states, cuts=cuts)
