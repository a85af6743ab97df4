"""The tables of docs/reliability.md, measured.

``python -P -m logweir.testing.figures [--quick] [--states N] [--rounds N] [--seed N] [--page PAGE]
[--kept FOLDER] [TABLE…]`` measures the named tables, all if none is named, and prints them. Each is
written into the page as soon as it is done, in the place of the one with its title; other tables
stay. Each has its own number of states and rounds, unless another one is asked for; ``--quick``
does three of everything. With ``--kept`` the table ``histories``, which takes long, goes on where
an earlier run with the same seed was ended, also with more states. A program that is not installed
is left out, and told.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from logweir.errors import LogweirError
from logweir.recovery.faults import Fault
from logweir.recovery.faults.faulty import KINDS as CALLS
from logweir.recovery.faults.faulty import WRITING
from logweir.recovery.faults.surviving import Model
from logweir.testing import histories, measuring, surroundings
from logweir.testing.measuring import Measured
from logweir.testing.meshing import mesh
from logweir.testing.operations import OPERATIONS
from logweir.tools.bench.report import machine
from logweir.tools.crash.damage import DAMAGES
from logweir.tools.crash.engines import ENGINES
from logweir.tools.crash.keeping import CrashTest, Tally
from logweir.tools.crash.programs import Commands
from logweir.tools.crash.suite import KINDS, Bounds, crash
from logweir.tools.page import Page, find_root

PAGE: Final = Page("python -P -m logweir.testing.figures --page")
SAMPLES: Final = "tests/data/tarantool"
_QUICK: Final = 3
_DAMAGES: Final = ((True, "a file cut short"), (False, "one wrong bit in a file"))
_INTERRUPTED: Final = {
    "insert": "an insert",
    "transaction": "a transaction",
    "snapshot": "a snapshot",
}


class Amount(NamedTuple):
    """How much is done of each: see `Bounds`; `seed`: all choices follow from it; `kept`: a folder
    for what was done of histories."""

    states: int = 40
    rounds: int = 14
    seed: int = 0
    kept: Path | None = None


class Row(NamedTuple):
    """One line of a table. `what` was done; `again`: the options that do it again."""

    what: str
    again: str
    measured: Measured


class Table(NamedTuple):
    """`title`; `again`: the command to which the options of a row belong; `needs`: a program that
    has to be there, "" for none; `rows`: measures them, one after the other; `amount`: of it."""

    title: str
    again: str
    needs: str
    rows: Callable[[Amount], Iterator[Row]]
    amount: Amount = Amount()


def _store(amount: Amount) -> Iterator[Row]:
    """The store in one process, on a simulated disk."""
    calls, states = measuring.failing_calls, surroundings.state_damages
    measures: dict[str, Callable[[int, int], Measured]] = {
        "a call to the disk fails with EIO": partial(calls, number=errno.EIO),
        "… with ENOSPC, a write by half": partial(calls, number=errno.ENOSPC, part=0.5),
        "… with EINTR": partial(calls, number=errno.EINTR),
        "power cut": measuring.power_cuts,
        "a read of the log gives one wrong bit, when the store is opened": measuring.rotten,
        **{
            f"Ctrl-C at a place of {words}": partial(measuring.interrupts, what=what)
            for what, words in _INTERRUPTED.items()
        },
        "call in a child of `fork`": measuring.forks,
        "one wrong bit in a file of a closed store, `examine`": measuring.wrong_bits,
        "a file of a closed store cut short, `examine`": measuring.cut_files,
        "one wrong bit in the state of a closed store, opened": partial(states, cuts=False),
        "the state of a closed store cut short, opened": partial(states, cuts=True),
        "the folder is renamed while it is open, another is in its place": (
            surroundings.renamed_folders
        ),
        "the clock jumps by up to 400 days, then a kill or a power cut": surroundings.clock_jumps,
    }
    for what, measure in measures.items():
        yield Row(what, f"--states {amount.states}", measure(amount.states, amount.seed))


def _histories(amount: Amount) -> Iterator[Row]:
    """Histories of whole stores: so many power cuts, half as many failing calls, a tenth kills."""
    third = -(-amount.states // 6)
    faults = {
        "a call to the disk fails with EIO": Fault(0, CALLS, errno.EIO),
        "… with ENOSPC, and so all that write from then on": Fault(
            0, WRITING, errno.ENOSPC, lasts=True
        ),
        "… with EINTR": Fault(0, CALLS, errno.EINTR),
    }
    again = f"--states {amount.states}"
    killed = histories.kills(-(-amount.states // 10), amount.seed, amount.kept)
    yield Row("the process is killed, SIGKILL, on the real disk", again, killed)
    for what, fault in faults.items():
        failed = histories.failing_calls(third, amount.seed, fault, amount.kept)
        yield Row(what, again, failed)
    yield Row("power cut", again, histories.power_cuts(amount.states, amount.seed, amount.kept))


def _operations(amount: Amount) -> Iterator[Row]:
    """What servers and tools do with a disk, each of its calls failing in turn."""
    faults: dict[str, dict[str, Any]] = {
        "EIO": {"number": errno.EIO},
        "ENOSPC, a write by half, and so from then on": {
            "number": errno.ENOSPC,
            "part": 0.5,
            "lasts": True,
        },
        "EINTR": {"number": errno.EINTR},
    }
    for name, measure in OPERATIONS.items():
        for words, fault in faults.items():
            what = f"a call of {name} fails with {words}"
            yield Row(what, f"--states {amount.states}", measure(amount.states, fault))


def _mesh(amount: Amount) -> Iterator[Row]:
    """Three servers that follow one another."""
    words = {
        "one of the three is killed, SIGKILL": True,
        "the network of one stops or breaks, and connections overtake one another": False,
    }
    for what, kills in words.items():
        found = mesh(amount.states, amount.seed, kills=kills)
        yield Row(what, f"--states {amount.states}", found)


def _samples(amount: Amount) -> Iterator[Row]:
    """The folders that a Tarantool wrote, in the source tree."""
    folders = sorted({path.parent for path in find_root().joinpath(SAMPLES).rglob("*.snap")})
    for folder in folders:
        if "05-damaged" in folder.parts:
            continue
        name = str(folder.relative_to(find_root() / SAMPLES))
        for cuts, words in reversed(_DAMAGES):
            yield _damaged(name, words, amount, cuts)


def _each_damage(amount: Amount) -> Iterator[Row]:
    """One store of ours, and the smallest folder of somebody else."""
    again = f"--states {amount.states}"
    for cuts, words in _DAMAGES:
        own = measuring.cut_files if cuts else measuring.wrong_bits
        yield Row(f"a closed store: {words}", again, own(amount.states, amount.seed))
        yield _damaged("01-fresh", words, amount, cuts)


def _larger(amount: Amount) -> Iterator[Row]:
    """A folder of several snapshots and logs, of two instances."""
    for cuts, words in _DAMAGES:
        yield _damaged("03-replicaset/instance-1", words, amount, cuts)


def _damaged(name: str, words: str, amount: Amount, cuts: bool) -> Row:
    found = surroundings.sample_damages(find_root() / SAMPLES / name, amount.states, cuts=cuts)
    return Row(f"{name}: {words}", f"--states {amount.states}", found)


def program(run: str, check: str, amount: Amount) -> Iterator[Row]:
    """A program, by its two commands, with all kinds of faults, and power cuts by both models of a
    disk."""
    models: tuple[Model, ...] = ("posix", "ext4")
    for kind, option in KINDS.items():
        for model in models if kind == "power cut" else models[:1]:
            with tempfile.TemporaryDirectory(prefix="logweir-figures-") as folder:
                work = Path(folder, "work")
                work.mkdir()
                test = CrashTest(Commands(run, check), work, Path(folder), seed=amount.seed)
                bounds = Bounds(amount.states, amount.rounds, model=model)
                (tally,) = crash(test, [kind], bounds)
            is_kill = kind == "kill"
            size = f"--rounds {amount.rounds}" if is_kill else f"--states {amount.states}"
            more = f" --model {model}" if kind == "power cut" else ""
            what = f"{kind}, {model}" if more else kind
            yield Row(what, f"{option}{more} {size}", _told(tally))


def _told(tally: Tally) -> Measured:
    failure = tally.failure
    first = f"; the first: {failure.what}" if failure else ""
    if tally.fault in DAMAGES:
        same = tally.tried - tally.told - tally.broken
        found = f"{tally.told} told, {same} made no difference{first}"
        return Measured(tally.tried, tally.broken, found)
    if failure is not None:
        return Measured(tally.tried, 1, f"{failure.what}. {failure.wrong}")
    return Measured(tally.tried, 0, f"{tally.acknowledged} acknowledged lines looked for")


def _sqlite(settings: str) -> Table:
    """SQLite with another journal mode and another `synchronous` than the ready-made pair."""
    run, check = ENGINES["sqlite"]
    run = f"{run} {settings}"
    again = f"logweir crashtest --run '{run}' --check '{check}'".replace(sys.executable, "python")
    title = f"SQLite {sqlite3.sqlite_version}, journal mode and synchronous `{settings}`"
    return Table(title, again, "", partial(program, run, check))


def _engine(name: str, title: str, needs: str = "") -> Table:
    again = f"logweir crashtest --engine {name}"
    return Table(title, again, needs, partial(program, *ENGINES[name]))


TABLES: Final = {
    "store": Table(
        "logweir, the store in one process",
        "python -P -m logweir.testing.figures store",
        "",
        _store,
        Amount(500),
    ),
    "histories": Table(
        "logweir, random histories of whole stores",
        "python -P -m logweir.testing.figures histories",
        "",
        _histories,
        Amount(20_000),
    ),
    "operations": Table(
        "logweir, copies, repair, trim, an archive, a join, topics",
        "python -P -m logweir.testing.figures operations",
        "",
        _operations,
        Amount(1000),
    ),
    "samples": Table(
        "Folders that Tarantool 2.6 wrote, `examine`",
        "python -P -m logweir.testing.figures samples",
        "",
        _samples,
        Amount(1000),
    ),
    "damages": Table(
        "Each length and each bit of a small folder, `examine`",
        "python -P -m logweir.testing.figures damages",
        "",
        _each_damage,
        Amount(1_000_000),
    ),
    "larger": Table(
        "Each length and each bit of a folder of several logs, `examine`",
        "python -P -m logweir.testing.figures larger",
        "",
        _larger,
        Amount(1_000_000),
    ),
    "mesh": Table(
        "logweir, three servers that follow one another and are all written to",
        "python -P -m logweir.testing.figures mesh",
        "",
        _mesh,
    ),
    "logweir": _engine("logweir", "logweir, a program that writes, durability `fsync`"),
    "sqlite": _engine("sqlite", f"SQLite {sqlite3.sqlite_version}, `wal full`"),
    "sqlite-delete": _sqlite("delete full"),
    "sqlite-extra": _sqlite("delete extra"),
    "tarantool": _engine("tarantool", "Tarantool 2.6, `wal_mode = 'fsync'`", "tarantool"),
}
"""Name to what is measured."""


def _version(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True)  # noqa: S603
    return done.stdout.partition("\n")[0]


def _lines(table: Table, amount: Amount) -> Iterator[str]:
    """A table as it is measured, line by line."""
    yield from ("", f"### {table.title}", "")
    if table.needs and shutil.which(table.needs) is None:
        yield f"Not measured: there was no program `{table.needs}`."
        return
    version = f" ({_version(table.needs)})" if table.needs else ""
    yield f"`{table.again}`{version}, with the options of the line:"
    yield from ("", "| what | options | tried | broken | found |", "|---|---|---|---|---|")
    begun = time.monotonic()
    for row in table.rows(amount):
        tried, broken, found = row.measured
        found = found.replace("|", "\\|").replace("\n", " ")
        yield f"| {row.what} | `{row.again}` | {tried} | {broken} | {found} |"
    load, day = os.getloadavg()[0], time.strftime("%Y-%m-%d", time.gmtime())
    yield ""
    since = " since it was last begun" if amount.kept else ""
    yield (
        f"{time.monotonic() - begun:.0f} seconds{since}, load average {load:.1f}; {day}; "
        f"seed {amount.seed}; {machine()}."
    )


def _replaced(section: str, title: str, lines: Sequence[str]) -> list[str]:
    """The tables of a page, with another one in the place of the one with that title; all in the
    order of `TABLES`."""
    tables = {part.partition("\n")[0]: part.strip() for part in section.split("\n### ")[1:]}
    tables[title] = "\n".join(lines).strip().removeprefix("### ")
    known = [table.title for table in TABLES.values()]
    kept = [tables[one] for one in known if one in tables]
    return ["", *(f"### {table}\n" for table in kept)]


def main(words: Sequence[str]) -> int:
    """Measure, print, write the page. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m logweir.testing.figures")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--quick", action="store_true", help="three of everything")
    parser.add_argument("--states", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path, help="the page to write the tables into")
    parser.add_argument("--kept", type=Path, help="a folder: long tables go on where they ended")
    asked = parser.parse_args(words)
    if unknown := [name for name in asked.tables if name not in TABLES]:
        parser.error(f"there is no table {unknown[0]!r}")
    least = _QUICK if asked.quick else None
    try:
        if asked.page is not None:
            PAGE.check(asked.page)
        for name in asked.tables or TABLES:
            usual = TABLES[name].amount
            states = asked.states or least or usual.states
            rounds = asked.rounds or least or usual.rounds
            lines = []
            for line in _lines(TABLES[name], Amount(states, rounds, asked.seed, asked.kept)):
                print(line, flush=True)
                lines.append(line)
            if asked.page is not None:
                section = PAGE.read(asked.page)
                replaced = _replaced(section, TABLES[name].title, lines)
                PAGE.write(asked.page, replaced)
    except LogweirError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    logging.disable()  # what the store says of the faults
    sys.exit(main(sys.argv[1:]))
