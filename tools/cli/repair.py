"""`logweir repair`: what is whole of a damaged folder, as a new folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logweir.recovery.repair import RepairResult, repair
from logweir.tools.cli.common import FolderArgument, NewFolderOption, existing, log_bytes
from logweir.tools.cli.output import Output


def command(
    out: Output,
    directory: FolderArgument,
    to: NewFolderOption,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be saved and lost.")
    ] = False,
) -> int:
    """Save what is whole of a damaged folder into a new one, and say what is lost.

    The damaged folder is not touched. Exit code 1 if anything is lost.
    """
    existing(directory)
    with out.progress("Reading", log_bytes(directory)) as progress:
        result = repair(directory, to, dry_run=dry_run, progress=lambda done, total: progress(done))
    if out.as_json:
        out.json(result.to_json())
    else:
        _show(out, result)
    return 0 if result.rows_lost == 0 else 1


def _show(out: Output, result: RepairResult) -> None:
    for damage in result.lost:
        out.line(f"{damage.kind.value} in {Path(damage.file).name} at byte {damage.offset}")
        out.line(f"    {damage.message}")
    for hole in result.holes:
        behind = "nobody knows how many" if hole.before is None else f"up to {hole.before}"
        out.line(f"rows behind {hole.after} are missing, {behind}")
    if result.not_carried:
        out.line(f"not needed, so not carried over: {', '.join(result.not_carried)}")
    if not result.snapshot_is_whole:
        out.line(f"{result.snapshot} was damaged: only its whole blocks could be used")
    if result.silent_mark:
        out.warning(result.silent_mark)
    out.line(result.summary)
    if result.dry_run:
        out.message("nothing was written: this was a dry run")
    else:
        out.message(f"{result.to} holds the state at {result.vclock}")
