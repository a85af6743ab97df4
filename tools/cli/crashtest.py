"""`logweir crashtest`: do to a program what a machine may do to it, and look at what it left."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from logweir.errors import ConfigError
from logweir.recovery.faults.surviving import Model
from logweir.tools.cli.output import Output
from logweir.tools.crash.engines import ENGINES
from logweir.tools.crash.keeping import CrashTest, Tally, show_again
from logweir.tools.crash.programs import Commands
from logweir.tools.crash.suite import KINDS, Bounds, crash, told, told_failure


def command(
    out: Output,
    *,
    run: Annotated[
        str, typer.Option(help="The program: 'CMD {dir}'; it prints a line for what is safe.")
    ] = "",
    check: Annotated[
        str, typer.Option(help="The check: 'CMD {dir} {acked}'; exit code 0: all is there.")
    ] = "",
    engine: Annotated[
        str, typer.Option(help=f"Run and check ready made, one of {', '.join(ENGINES)}.")
    ] = "",
    acks: Annotated[
        str, typer.Option(help="File with the acknowledgements, instead of standard output.")
    ] = "",
    with_kill: Annotated[
        bool, typer.Option("--kill", help="SIGKILL; this is done where no fault is named.")
    ] = False,
    with_power_cut: Annotated[
        bool, typer.Option("--power-cut", help="Disks as a power cut may leave them.")
    ] = False,
    with_disk_errors: Annotated[
        bool, typer.Option("--disk-errors", help="One call to the disk fails with EIO.")
    ] = False,
    with_full_disk: Annotated[
        bool, typer.Option("--full-disk", help="From one call on the disk is full, ENOSPC.")
    ] = False,
    with_short_writes: Annotated[
        bool, typer.Option("--short-writes", help="One write is made by half.")
    ] = False,
    with_interrupt: Annotated[
        bool, typer.Option("--interrupt", help="SIGINT before one call to the disk.")
    ] = False,
    with_wrong_bits: Annotated[
        bool, typer.Option("--wrong-bits", help="One bit wrong in what it left.")
    ] = False,
    with_cut_files: Annotated[
        bool, typer.Option("--cut-files", help="One file cut short in what it left.")
    ] = False,
    states: Annotated[
        int,
        typer.Option(
            help="Disks that power cuts leave, runs with a failing call, or damages, at most.",
            min=1,
        ),
    ] = 200,
    model: Annotated[
        Model, typer.Option(help="What a disk may do: all that POSIX allows, or ext4.")
    ] = "posix",
    rounds: Annotated[
        int, typer.Option(help="Folders to kill the program in.", min=1, max=10**9)
    ] = 10,
    lives: Annotated[
        int,
        typer.Option(help="Starts in one folder, each on what the fault before it left.", min=1),
    ] = 3,
    minutes: Annotated[
        float, typer.Option(help="Stop after so many minutes; 0: never.", min=0.0)
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="All random choices follow from it.")] = 0,
    timeout: Annotated[
        float, typer.Option(help="Seconds to the first line, and for a check.", min=0.1)
    ] = 60.0,
    keep: Annotated[Path, typer.Option(help="The folder in which a failure is kept.")] = Path(),
    again: Annotated[
        Path | None, typer.Option(help="Check a kept failure once more, and nothing else.")
    ] = None,
) -> int:
    """Crash any program and check that all it had acknowledged is there.

    The program is started in a folder of its own; a fault comes; then the check looks at the folder
    and at what was acknowledged before. Exit code 1 if it does not pass: the folder is kept then,
    and a command printed that shows it again. Faults other than kills are made by a library that is
    loaded into the program, for which a C compiler is needed. See crash-testing.md.
    """
    if again is not None:
        return _again(out, again)
    if engine and engine not in ENGINES:
        raise ConfigError("--engine", f"there is no {engine!r}", hint=", ".join(ENGINES))
    if engine and (run or check):
        raise ConfigError("--engine", "has a program and a check of its own", hint="give it alone")
    if not engine and not (run and check):
        missing = "--check" if run else "--run"
        raise ConfigError(missing, "is missing", hint="give --run and --check, or --engine")
    run, check = ENGINES.get(engine, (run, check))
    commands = Commands(run, check, acks, timeout)
    with (
        tempfile.TemporaryDirectory(prefix="logweir-crashtest-") as temporary,
        out.progress("Crashing", max(states, rounds)) as progress,
    ):
        test = CrashTest(
            commands,
            Path(temporary),
            keep,
            seed=seed,
            deadline=time.monotonic() + minutes * 60 if minutes else None,
            progress=progress,
        )
        calls = with_disk_errors, with_full_disk, with_short_writes, with_interrupt
        damages = with_wrong_bits, with_cut_files
        wanted = zip(KINDS, (with_power_cut, *calls, *damages, with_kill), strict=True)
        kinds = [kind for kind, is_wanted in wanted if is_wanted] or ["kill"]
        tallies = crash(test, kinds, Bounds(states, rounds, lives, model))
    _show(out, tallies, seed)
    return 1 if any(tally.failure for tally in tallies) else 0


def _again(out: Output, folder: Path) -> int:
    failure = show_again(folder)
    if failure is None:
        out.line("the check passes now")
        return 0
    for text in told_failure(failure):
        out.line(text)
    return 1


def _show(out: Output, tallies: list[Tally], seed: int) -> None:
    if out.as_json:
        out.json(
            {
                "ok": not any(tally.failure for tally in tallies),
                "seed": seed,
                "faults": [
                    {
                        "fault": tally.fault,
                        "tried": tally.tried,
                        "acknowledged": tally.acknowledged,
                        "told": tally.told,
                        "broken": tally.broken,
                        "notes": tally.notes,
                        "failure": tally.failure
                        and {
                            "number": tally.failure.number,
                            "what": tally.failure.what,
                            "wrong": tally.failure.wrong,
                            "output": tally.failure.output,
                            "folder": str(tally.failure.folder),
                        },
                    }
                    for tally in tallies
                ],
            }
        )
        return
    for tally in tallies:
        for note in tally.notes:
            out.message(f"note: {note}")
        for text in told(tally):
            out.line(text)
