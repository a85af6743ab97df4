"""`logweir snapshot`: a new snapshot of a store."""

from __future__ import annotations

from logweir.tools.cli.operating import StoreArgument, operate
from logweir.tools.cli.output import Output


def command(out: Output, where: StoreArgument) -> int:
    """Write a snapshot of the newest state, then remove what it makes superfluous.

    A folder must not be in use; a server goes on meanwhile. Without a change since the last
    snapshot nothing is written.
    """
    with operate(where) as ask:
        told = ask("snapshot")
    if out.as_json:
        out.json(told)
    else:
        out.line(f"already_there: {told['path']}" if told["already_there"] else told["path"])
    return 0
