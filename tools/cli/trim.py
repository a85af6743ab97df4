"""`logweir trim`: the logs of a folder without what was written ahead."""

from __future__ import annotations

from typing import Annotated

import typer

from logweir.recovery.trim import trim
from logweir.tools.cli.common import FolderArgument, existing
from logweir.tools.cli.output import Output


def command(
    out: Output,
    directory: FolderArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> int:
    """Cut off the zeros that a killed writer leaves behind the last block of its log.

    The store must not be in use. Unfinished writes at the end of a log go too; no whole row does.
    """
    existing(directory)
    cut = trim(directory, dry_run=dry_run)
    if out.as_json:
        found = [
            {"path": str(one.path), "size": one.size, "cut_bytes": one.cut_bytes} for one in cut
        ]
        out.json({"logs": found, "dry_run": dry_run})
        return 0
    for one in cut:
        what = "would be cut off, {} left" if dry_run else "cut off, {} are left"
        out.line(f"{one.path}: {one.cut_bytes} bytes {what.format(one.size)}")
    if not cut:
        out.line("nothing was written ahead")
    return 0
