"""`logweir init`: a fresh store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import logweir
from logweir.tools.cli.output import Output
from logweir.wal.directory import scan_directory


def command(
    out: Output,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make.")],
) -> int:
    """Make a fresh store in a folder. If there is one already nothing is changed."""
    already = False
    if directory.is_dir():
        index = scan_directory(directory)
        already = bool(index.files or index.damage)
    with logweir.open(directory) as log:
        instance = str(log.instance)
    if out.as_json:
        found = {"path": str(directory), "instance": instance, "already_initialized": already}
        out.json(found)
    elif already:
        out.line(f"already_initialized: {directory} is the store of instance {instance}")
    else:
        out.line(f"{directory} is the store of instance {instance}")
    return 0
