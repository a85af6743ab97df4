"""What can be done to a store in one process, and counted: rows of docs/reliability.md.

Each measurement does one kind of thing to a store that works, at as many places as it is told, and
looks whether all that was promised is there.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import logweir
from logweir.errors import LogweirError
from logweir.recovery import examine
from logweir.recovery.faults import Fault, SimFileSystem
from logweir.recovery.faults.faulty import flipped
from logweir.testing.forking import in_child
from logweir.testing.interrupting import Interrupter
from logweir.testing.store import CrashStore
from logweir.wal.filesystem import FileSystem

_ROTS: Final = tuple(itertools.product((False, True), (7, 2403, 9000)))
_STORE: Final = Path(logweir.__file__).parent / "store"


class Measured(NamedTuple):
    """`tried`: how often something was done; `broken`: how often a promise was broken by it, or the
    program; `found`: what came of the others."""

    tried: int
    broken: int
    found: str


def work(store: CrashStore) -> None:
    """Open, make changes of each kind, a snapshot and a follower's position, close."""
    with store.open(wal_max_size=1500, checkpoint_count=1, checkpoint_interval=0.0) as log:
        log.create_space("t", [("id", "unsigned"), ("value", "string")], if_not_exists=True)
        first = log.count("t")
        for number in range(first, first + 6):
            log.insert("t", (number, "x" * 60))
            store.promise(number)
        log.retain("somebody", log.vclock)
        log.snapshot()
        with log.transaction() as tx:
            tx.insert("t", (first + 6, "y"))
            tx.insert("t", (first + 7, "y"))
        store.promise(first + 6)
        log.append("t", [(number, "z" * 30) for number in range(first + 8, first + 20)])
        store.promise(first + 8)


def _there(store: CrashStore) -> set[int]:
    """What an opened store holds."""
    with store.open() as log:
        is_made = any(space.name == "t" for space in log.schema)
        return {row[0] for row in log.select("t")} if is_made else set()


def is_broken(store: CrashStore) -> bool:
    """Whether something that was promised is missing, a transaction is there by half, or the store
    does not open."""
    try:
        there = _there(store)
    except (LogweirError, OSError):
        return True
    return not set(store.promised) <= there or (6 in there) is not (7 in there)


def failing_calls(states: int, seed: int, *, number: int, part: float = 0.0) -> Measured:
    """The 1st, 2nd, … call to the disk fails with that number, `states` calls at most."""
    tried = broken = typed = 0
    with CrashStore(seed=seed) as store:
        for run in itertools.islice(store.failing_calls(work, number=number, part=part), states):
            if run.where == "none failed":
                break
            tried += 1
            typed += isinstance(run.error, LogweirError)
            foreign = run.error is not None and not isinstance(run.error, LogweirError)
            broken += foreign or is_broken(run)
    return Measured(tried, broken, f"{typed} typed errors, {tried - typed} went on")


def power_cuts(states: int, seed: int) -> Measured:
    """Disks that power cuts leave, drawn from all calls to the disk and promises."""
    tried = broken = 0
    with CrashStore(seed=seed, states=states) as store:
        for cut in store.power_cuts(work):
            tried += 1
            broken += is_broken(cut)
    return Measured(tried, broken, "all that was promised, each transaction whole")


def rotten(states: int, seed: int) -> Measured:
    """One bit is wrong in what a read of the log gives when a store is opened, once, and in every
    read from then on."""
    tried = broken = told = 0
    with CrashStore(seed=seed) as store:
        work(store)
        for number in itertools.count(len(_ROTS)):
            lasts, bit = _ROTS[number % len(_ROTS)]
            store.power_cut(seed=1)  # without a state everything is read
            store.fault = Fault(number // len(_ROTS), {"read"}, lasts=lasts, bit=bit)
            try:
                broken += not set(store.promised) <= _there(store)
            except LogweirError:
                told += 1
            if not store.failed or tried == states:
                break
            tried += 1
            store.fault = None
            store.kill()
    return Measured(tried, broken, f"{told} typed errors, else all rows as they were")


def interrupts(states: int, seed: int, *, what: str) -> Measured:
    """Ctrl-C at the places of an insert, a transaction or a snapshot, at all if they are no more
    than `states`, else drawn evenly; behind it the program is killed."""
    with CrashStore(seed=seed) as store:
        work(store)
        log = store.open()
        log.insert("t", (1999, "the first passes more places than those behind it"))
        counter = Interrupter(0, _STORE)
        counter.run(partial(_INTERRUPTED[what], log, 1000))
        store.kill()
        step = -(-counter.passed // states)
        tried = broken = made = 0
        for at in range(1, counter.passed + 1, step):
            log = store.open()
            number = 2000 + 3 * at
            log.insert("t", (number + 2, "so that there is something new"))
            store.promise(number + 2)
            is_interrupted = Interrupter(at, _STORE).run(partial(_INTERRUPTED[what], log, number))
            store.kill()
            there = _there(store)
            store.kill()
            tried += is_interrupted
            made += is_interrupted and number in there
            if not is_interrupted and what != "snapshot":
                store.promise(number)
            is_half = what == "transaction" and (number in there) is not (number + 1 in there)
            broken += is_half or not set(store.promised) <= there
    found = "" if what == "snapshot" else f"{made} were made, {tried - made} were not; "
    return Measured(tried, broken, f"{found}{counter.passed} places")


def _transact(log: logweir.Log, number: int) -> None:
    with log.transaction() as tx:
        tx.insert("t", (number, "x"))
        tx.insert("t", (number + 1, "x"))


_INTERRUPTED: Final[dict[str, Callable[[logweir.Log, int], object]]] = {
    "insert": lambda log, number: log.insert("t", (number, "x")),
    "transaction": _transact,
    "snapshot": lambda log, number: log.snapshot(),
}


def forks(states: int, seed: int) -> Measured:
    """Calls of a child of `fork` on its copy of an open store."""
    calls: dict[str, Callable[[logweir.Log], object]] = {
        "insert": lambda log: log.insert("t", (5000, "child")),
        "get": lambda log: log.get("t", 1),
        "select": lambda log: log.select("t"),
        "snapshot": lambda log: log.snapshot(),
        "close": lambda log: log.close(),
    }
    refused = broken = 0
    names = list(calls)[:states]
    with CrashStore(seed=seed) as store:
        work(store)
        log = store.open()
        before = log.count("t")
        for number, name in enumerate(names):
            answer = in_child(partial(calls[name], log))
            refused += answer.startswith("UsedAfterFork")
            log.insert("t", (6000 + number, "parent"))
            store.promise(6000 + number)
            broken += log.count("t") != before + number + 1
        store.kill()
        broken += is_broken(store)
    return Measured(len(names), broken, f"{refused} were refused, the others did nothing")


def _damaged(states: int, seed: int, *, cuts: bool) -> Measured:
    with CrashStore(seed=seed) as store:
        work(store)
        files = [(n, d) for n, d in store.disk.files(store.path) if d and "state" not in n]
    return damages(files, states, cuts=cuts)


def damages(files: list[tuple[str, bytes]], states: int, *, cuts: bool) -> Measured:
    """A bit is wrong in one of the files of a folder, by name, or one is cut short, at about
    `states` places that lie evenly; with more than there are, at each bit and each length."""
    folder = Path("/store")
    tried = broken = told = same = 0
    unit = 1 if cuts else 8
    every = max(unit * sum(len(data) for _, data in files) // states, 1)
    every |= 1  # not the same bit of each byte
    whole = readable_rows(_disk(files, folder), folder)
    assert whole is not None
    for name, data in files:
        for at in range(0, unit * len(data), every):
            spoilt = data[:at] if cuts else flipped(data, at)
            disk = _disk([*files, (name, spoilt)], folder)
            rows = readable_rows(disk, folder)
            tried += 1
            told += rows is None
            same += rows == whole
            broken += rows not in (None, whole)
    return Measured(tried, broken, f"{told} told, {same} made no difference")


def _disk(files: list[tuple[str, bytes]], folder: Path) -> SimFileSystem:
    disk = SimFileSystem()
    for name, data in files:
        disk.put(folder / name, data)
    return disk


def readable_rows(disk: FileSystem, folder: Path) -> list[bytes] | None:
    """The rows of a folder, None where damage is told."""
    with contextlib.suppress(LogweirError):
        if not examine(folder, filesystem=disk).damage:
            return [row.body for row in logweir.read(folder, filesystem=disk)]
    return None


def wrong_bits(states: int, seed: int) -> Measured:
    """One bit is wrong in a file of a store that was closed: what `verify` tells."""
    return _damaged(states, seed, cuts=False)


def cut_files(states: int, seed: int) -> Measured:
    """A file of a store that was closed is cut short: what `verify` tells."""
    return _damaged(states, seed, cuts=True)
