"""`logweir retain`: for whom a store keeps its logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from logweir.errors import ConfigError
from logweir.tools.cli.common import store_at
from logweir.tools.cli.operating import StoreArgument, operate, server_at
from logweir.tools.cli.output import Output, human_bytes

Action = Literal["list", "release"]


def command(
    out: Output,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do.")],
    where: StoreArgument,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="release: the follower.")] = "",
) -> int:
    """List the followers for whom a store keeps its logs, or forget one of them.

    ACTION is list or release. Who is released, and comes back after its logs are gone, has to
    start from a snapshot. A folder may be in use for list, and must not be for release.
    """
    from logweir.replication.administration import followers_of
    from logweir.wal.vclock import vclock_of

    if action == "release" and not name:
        raise ConfigError("NAME", "is missing", hint="`logweir retain list WHERE` shows them")
    if server_at(where) is None:
        found = followers_of(store_at(Path(where)))
    else:
        with operate(where) as ask:
            found = ask("followers")
    if action == "release":
        known = [one["name"] for one in found]
        if name not in known:
            hint = f"they are for {', '.join(known)}" if known else "they are kept for nobody"
            raise ConfigError("NAME", f"no logs are kept for {name!r}", hint=hint)
        with operate(where) as ask:
            ask("release", name)
        out.message(f"forgotten: {name}")
        return 0
    if out.as_json:
        for one in found:
            out.json(one)
    elif found:
        rows = [
            (one["name"], vclock_of(one["vclock"]), human_bytes(one["unread_bytes"]))
            for one in found
        ]
        out.table(("name", "position", "logs to read"), rows, right=("logs to read",))
    else:
        out.message("logs are kept for nobody")
    return 0
