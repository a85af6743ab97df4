"""The guided tour: what `tools/run` shows on a fresh machine, in a few seconds.

A child process takes orders into an embedded store in a temporary folder. Each is one transaction:
a tuple in `orders`, and a counter that is raised. The child says which orders were acknowledged.
In the middle of that it is killed with SIGKILL. Then the folder is examined, opened and compared:

* every acknowledged order is there;
* no order is there twice, none is missing in between, and at most the one that was under way is
  there without having been acknowledged;
* the counter is the number of orders: no transaction is there by half.

A real Tarantool, where one is installed, boots from a copy of the folder and has to count the same.
Exit code 0 if all of that holds, 1 if not.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import logweir
from logweir.recovery import examine
from logweir.tools.bench.tarantool import find_tarantool
from logweir.tools.cli.main import app

WRITING_SECONDS: Final = 1.5
ENOUGH_ORDERS: Final = 20
PATIENCE_SECONDS: Final = 10.0
TAIL_ROWS: Final = 6

_COUNT_LUA: Final = """
box.cfg{log_level = 1, work_dir = arg[1]}
print(box.space.orders:count(), box.space.totals:get('orders')[2], box.info.version)
os.exit(0)
"""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found in the store after the crash. `problems`: sentences, empty if all is well."""

    orders: int
    counter: int
    problems: tuple[str, ...]


def write_orders(folder: Path, acknowledge: Callable[[int], None]) -> None:
    """Take orders for ever; `acknowledge` is called with the number of each when it is durable."""
    with logweir.open(folder) as log:
        log.create_space(
            "orders", format=[("id", "unsigned"), ("item", "string"), ("pieces", "unsigned")]
        )
        log.create_space("totals", format=[("name", "string"), ("value", "unsigned")])
        log.insert("totals", ("orders", 0))
        number = 0
        while True:
            number += 1
            with log.transaction() as tx:
                tx.insert("orders", (number, f"bolt M{number % 20 + 3}", number % 7 + 1))
                tx.update("totals", "orders", [["+", "value", 1]])
            acknowledge(number)


def check_store(folder: Path, acknowledged: list[int]) -> Findings:
    """Open the folder and compare it with what was acknowledged."""
    with logweir.open(folder, create=False) as log:
        numbers = [row[0] for row in log.select("orders")]
        total = log.get("totals", "orders")
    counter = total[1] if total is not None else 0
    problems = []
    lost = sorted(set(acknowledged) - set(numbers))
    if lost:
        problems.append(f"{len(lost)} acknowledged orders are lost, the first is number {lost[0]}")
    if numbers != list(range(1, len(numbers) + 1)):
        problems.append("orders are missing in between, or there twice")
    if len(numbers) > len(acknowledged) + 1:
        problems.append(f"{len(numbers)} orders are there, {len(acknowledged)} were acknowledged")
    if counter != len(numbers):
        problems.append(f"the counter says {counter}: a transaction is there by half")
    return Findings(len(numbers), counter, tuple(problems))


def _write_and_kill(folder: Path) -> list[int]:
    """Let a child process write, kill it, return what it had acknowledged."""
    command = [sys.executable, "-P", "-m", "logweir.tools.tour", "--write", str(folder)]
    acknowledged: list[int] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603
        assert child.stdout is not None
        started: float | None = None
        for line in child.stdout:
            if line.endswith("\n"):
                acknowledged.append(int(line))
            now = time.monotonic()
            started = now if started is None else started
            enough = len(acknowledged) >= ENOUGH_ORDERS or now > started + PATIENCE_SECONDS
            if enough and now > started + WRITING_SECONDS:
                child.send_signal(signal.SIGKILL)  # what is in the pipe is still read
        code = child.wait()
    if code != -signal.SIGKILL:
        raise SystemExit(f"the writing process ended by itself, with exit code {code}")
    return acknowledged


def _ask_tarantool(program: str, folder: Path, scratch: Path) -> tuple[int, int, str]:
    """Orders, counter and version of a real Tarantool that boots from a copy of the folder."""
    copy = scratch / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        if path.suffix in (".snap", ".xlog"):
            shutil.copy(path, copy)
    script = scratch / "count.lua"
    script.write_text(_COUNT_LUA)
    done = subprocess.run(  # noqa: S603
        [program, str(script), str(copy)], capture_output=True, text=True, timeout=60
    )
    if done.returncode != 0:
        raise SystemExit(f"Tarantool does not boot from the folder:\n{done.stderr}")
    orders, counter, version = done.stdout.split()
    return int(orders), int(counter), version


def _show(say: Say, *command: str) -> None:
    """Run a command of the program and show what it prints."""
    say(f"\n  $ logweir {' '.join(command)}")
    sys.stdout.flush()
    try:
        app([*command], prog_name="logweir")
    except SystemExit as ended:
        if ended.code:
            raise


def run_tour(say: Say) -> int:
    """The whole tour. `say`: shows a line. Returns the exit code."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="logweir-tour-") as scratch:
        folder = Path(scratch) / "shop"
        say("logweir: a durable change log. This tour takes a few seconds.\n")
        say("1. Another process writes orders, one transaction each, and is killed with SIGKILL")
        say("   in the middle of it.")
        acknowledged = _write_and_kill(folder)
        say(f"   {len(acknowledged)} orders were acknowledged before it died.\n")

        say("2. What is on disk now? Looking changes nothing.")
        report = examine(folder)
        last = report.files[-1]
        say(f"   {last.path.name} ends at {last.last_vclock} without its EOF")
        say(f"   marker ({last.end}), since nobody closed it.")
        say(f"   Damaged places: {len(report.damage)}.\n")

        say("3. Open it again and count.")
        found = check_store(folder, acknowledged)
        for problem in found.problems:
            say(f"   WRONG: {problem}.")
        if not found.problems:
            say(f"   All {len(acknowledged)} acknowledged orders are there, in order, none twice.")
            if found.orders > len(acknowledged):
                say(
                    "   One more had reached the disk, but the process died before it could say so."
                )
            say(f"   The counter says {found.counter}: no transaction is there by half.\n")

        say("4. The files, and the end of the log:")
        _show(say, "info", str(folder))
        start = report.vclock.signature - TAIL_ROWS + 1
        _show(say, "cat", str(folder), "--format", "table", "--from", str(start))
        agrees = _compare_with_tarantool(say, folder, Path(scratch), found)
    say(f"\nThat took {time.monotonic() - started:.1f} seconds. What to try next:\n")
    say("   ./tools/run --help                     every command")
    say("   ./tools/run init data                  a store of your own")
    say("   ./tools/run cat --hex FILE.xlog        what every byte means")
    say("   ./tools/run verify DIR                 any folder, also a real Tarantool's")
    say("   docs/quickstart.md                     the same from Python")
    return 0 if not found.problems and agrees else 1


def _compare_with_tarantool(say: Say, folder: Path, scratch: Path, found: Findings) -> bool:
    program = find_tarantool()
    if program is None:
        say("\n5. No Tarantool is installed here; where one is, it boots from this folder too.")
        return True
    orders, counter, version = _ask_tarantool(program, folder, scratch)
    say(f"\n5. A real Tarantool {version} boots from a copy of this folder")
    say(f"   and counts {orders} orders, counter {counter}.")
    if (orders, counter) != (found.orders, found.counter):
        say("   WRONG: that is not what logweir counts.")
        return False
    return True


def _acknowledge(number: int) -> None:
    os.write(1, b"%d\n" % number)


def _main(arguments: list[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "--write":
        write_orders(Path(arguments[1]), _acknowledge)
    if arguments:
        sys.stderr.write("usage: python -m logweir.tools.tour\n")
        return 2
    return run_tour(lambda text: print(text, flush=True))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
