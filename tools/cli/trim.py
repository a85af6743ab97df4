"""`logweir trim`: the logs of a folder without what was written ahead."""

from __future__ import annotations

from logweir.recovery.trim import trim
from logweir.tools.cli.common import FolderArgument, existing
from logweir.tools.cli.output import Output


def command(out: Output, directory: FolderArgument) -> int:
    """Cut off the zeros that a killed writer leaves behind the last block of its log.

    The store must not be in use. Unfinished writes at the end of a log go too; no whole row does.
    """
    existing(directory)
    cut = trim(directory)
    if out.as_json:
        found = [
            {"path": str(one.path), "size": one.size, "cut_bytes": one.cut_bytes} for one in cut
        ]
        out.json({"logs": found})
        return 0
    for one in cut:
        out.line(f"{one.path}: {one.cut_bytes} bytes cut off, {one.size} are left")
    if not cut:
        out.line("nothing was written ahead")
    return 0
