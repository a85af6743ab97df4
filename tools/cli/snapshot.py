"""`logweir snapshot`: a new snapshot of a store."""

from __future__ import annotations

from logweir.store import open as open_store
from logweir.tools.cli.common import FolderArgument, existing
from logweir.tools.cli.output import Output
from logweir.wal.directory import scan_directory


def command(out: Output, directory: FolderArgument) -> int:
    """Write a snapshot of the newest state, then remove what it makes superfluous.

    The store must not be in use. Without a change since the last snapshot nothing is written.
    """
    existing(directory)
    before = scan_directory(directory).newest_snap()
    with open_store(directory, create=False) as log:
        path = log.snapshot()
    already = before is not None and before.path.name == path.name
    if out.as_json:
        out.json({"path": str(path), "already_there": already})
    else:
        out.line(f"already_there: {path}" if already else str(path))
    return 0
