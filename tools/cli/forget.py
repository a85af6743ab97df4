"""`logweir forget`: remove what names a user of a homeserver."""

from __future__ import annotations

from typing import Annotated

import typer

import logweir
from logweir.tools.cli.common import FolderArgument, existing
from logweir.tools.cli.output import Output


def command(
    out: Output,
    directory: FolderArgument,
    user: Annotated[str, typer.Argument(metavar="USER", help="Such as @name:server.")],
) -> int:
    """Remove every row of a homeserver's streams that names a user. The store must not be in use.

    A log is only ever appended to: what is deleted stays in the files that are there, until later
    snapshots make them superfluous. `logweir snapshot DIR` and then `logweir restore DIR --to NEW`
    write the state without it into a new folder, after which the old one can be removed. Backups,
    other copies and the homeserver itself are not touched, nor rows that tell what the user did
    without naming anybody, such as an event by its id.
    """
    # Imported here: `--help` does without the store.
    from logweir.replication.synapse.follow.forgetting import forget_user

    with logweir.open(existing(directory), create=False) as log:
        removed = forget_user(log, user)
    if out.as_json:
        out.json({"user": user, "removed": removed})
        return 0
    out.table(("space", "removed"), list(removed.items()), right=("removed",))
    if any(removed.values()):
        out.message(
            "files of the log, and older snapshots, still hold what was removed; to have a folder "
            "without it: `logweir snapshot DIR`, then `logweir restore DIR --to NEW`"
        )
    return 0
