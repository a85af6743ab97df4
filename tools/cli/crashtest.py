"""`logweir crashtest`: kill a writing process again and again and look at what it left."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

from logweir.recovery.faults import crashtest
from logweir.recovery.faults.crashtest import FAILPOINTS as LOG_FAILPOINTS
from logweir.store.workload import FAILPOINTS, check_store, make_store
from logweir.tools.cli.output import Output


def command(
    out: Output,
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="A new or empty folder; without it a temporary one."),
    ] = None,
    *,
    rounds: Annotated[int, typer.Option(help="How many kills.", min=1)] = 50,
    seed: Annotated[int, typer.Option(help="The moments and the rows follow from it.")] = 0,
    durability: Annotated[
        Literal["fsync", "write"], typer.Option(help="How durable the changes are.")
    ] = "fsync",
) -> int:
    """Kill a process that writes a store with SIGKILL, at random moments and at each durable step.

    After every kill the store is opened: all that was acknowledged must be there, nothing twice,
    no transaction in part. Exit code 1 if a promise was broken; the folder then shows it.
    """
    with tempfile.TemporaryDirectory(prefix="logweir-crashtest-") as temporary:
        folder = directory or Path(temporary) / "store"
        with out.progress("Killing", rounds) as progress:
            result = crashtest(
                folder,
                rounds=rounds,
                seed=seed,
                workload=(sys.executable, "-P", "-m", "logweir.store.workload", durability),
                prepare=make_store,
                check=check_store,
                failpoints=LOG_FAILPOINTS + FAILPOINTS,
                progress=lambda done, _: progress(done),
            )
    if out.as_json:
        out.json(
            {
                "ok": result.ok,
                "kills": result.kills,
                "acknowledged": result.acknowledged,
                "seed": seed,
                "durability": durability,
                "problems": list(result.problems),
            }
        )
    else:
        for text in result.problems:
            out.line(text)
        verdict = "nothing lost, doubled or torn" if result.ok else "promises were broken"
        out.line(
            f"{result.kills} kills, {result.acknowledged} transactions acknowledged: {verdict}"
        )
    return 0 if result.ok else 1
