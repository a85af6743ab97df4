"""The tables of docs/reliability.md, measured.

``python -P -m logweir.testing.figures [--quick] [--states N] [--rounds N] [--seed N] [--page PAGE]
[TABLE…]`` measures the named tables, all if none is named, prints them, and writes them into the
page. Each table has its own number of states and rounds, unless another one is asked for;
``--quick`` does three of everything. A program that is not installed is left out, and told.
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
from typing import Final, NamedTuple

from logweir.errors import LogweirError
from logweir.recovery.faults.surviving import Model
from logweir.testing import measuring
from logweir.testing.measuring import Measured
from logweir.tools import page
from logweir.tools.bench.report import machine
from logweir.tools.crash.damage import DAMAGES
from logweir.tools.crash.engines import ENGINES
from logweir.tools.crash.keeping import CrashTest, Tally
from logweir.tools.crash.programs import Commands
from logweir.tools.crash.suite import KINDS, Bounds, crash

__all__ = ["COMMAND", "TABLES", "Amount", "Row", "Table", "main", "program"]

COMMAND: Final = "python -P -m logweir.testing.figures --page"
_QUICK: Final = 3


class Amount(NamedTuple):
    """How much is done of each: see `Bounds`; `seed`: all choices follow from it."""

    states: int = 20
    rounds: int = 6
    seed: int = 0


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
    calls = measuring.failing_calls
    measures: dict[str, Callable[[int, int], Measured]] = {
        "a call to the disk fails with EIO": partial(calls, number=errno.EIO),
        "… with ENOSPC, a write by half": partial(calls, number=errno.ENOSPC, part=0.5),
        "… with EINTR": partial(calls, number=errno.EINTR),
        "power cut": measuring.power_cuts,
        "a read of the log gives one wrong bit, when the store is opened": measuring.rotten,
        "Ctrl-C at a place of an insert": measuring.interrupts,
        "call in a child of `fork`": measuring.forks,
        "one wrong bit in a file of a closed store, `examine`": measuring.wrong_bits,
        "a file of a closed store cut short, `examine`": measuring.cut_files,
    }
    for what, measure in measures.items():
        yield Row(what, f"--states {amount.states}", measure(amount.states, amount.seed))


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
        Amount(200),
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
    load = os.getloadavg()[0]
    yield from ("", f"{time.monotonic() - begun:.0f} seconds, load average {load:.1f}.")


def main(words: Sequence[str]) -> int:
    """Measure, print, write the page. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m logweir.testing.figures")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--quick", action="store_true", help="three of everything")
    parser.add_argument("--states", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path, help="the page to write the tables into")
    asked = parser.parse_args(words)
    if unknown := [name for name in asked.tables if name not in TABLES]:
        parser.error(f"there is no table {unknown[0]!r}")
    least = _QUICK if asked.quick else None
    try:
        if asked.page is not None:
            page.check_page(asked.page, COMMAND)
        lines = [
            "",
            f"{machine()}; {time.strftime('%Y-%m-%d', time.gmtime())}; seed {asked.seed}.",
        ]
        print("\n".join(lines), flush=True)
        for name in asked.tables or TABLES:
            usual = TABLES[name].amount
            states = asked.states or least or usual.states
            rounds = asked.rounds or least or usual.rounds
            for line in _lines(TABLES[name], Amount(states, rounds, asked.seed)):
                print(line, flush=True)
                lines.append(line)
        if asked.page is not None:
            page.write_page(asked.page, COMMAND, [*lines, ""])
    except LogweirError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    logging.disable()  # what the store says of the faults
    sys.exit(main(sys.argv[1:]))
