"""`logweir retain`: for whom a store keeps its logs."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from logweir.errors import ConfigError
from logweir.recovery.report import vclock_json
from logweir.store import open as open_store
from logweir.store.recover.checkpoint import logs_before, read_followers
from logweir.tools.cli.common import FolderArgument, existing
from logweir.tools.cli.output import Output, human_bytes
from logweir.wal.directory import scan_directory

Action = Literal["list", "release"]


def command(
    out: Output,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do.")],
    directory: FolderArgument,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="release: the follower.")] = "",
) -> int:
    """List the followers for whom a store keeps its logs, or forget one of them.

    ACTION is list or release. Who is released, and comes back after its logs are gone, has to
    start from a snapshot. The store may be in use for list, and must not be for release.
    """
    followers = read_followers(existing(directory))
    if action == "release":
        if name not in followers:
            known = ", ".join(followers) or "none"
            raise ConfigError("NAME", f"no logs are kept for {name!r}", hint=f"known are: {known}")
        with open_store(directory, create=False) as log:
            log.release(name)
        out.message(f"forgotten: {name}")
        return 0
    index = scan_directory(directory)
    found = []
    for follower, position in sorted(followers.items()):
        ahead = index.xlogs[len(logs_before(index, [position])) :]
        found.append((follower, position, sum(log.size for log in ahead)))
    if out.as_json:
        for follower, position, unread in found:
            vclock = vclock_json(position)
            out.json({"name": follower, "vclock": vclock, "unread_bytes": unread})
    elif found:
        rows = [(follower, position, human_bytes(unread)) for follower, position, unread in found]
        out.table(("name", "position", "logs to read"), rows, right=("logs to read",))
    else:
        out.message("logs are kept for nobody")
    return 0
