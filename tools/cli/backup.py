"""`logweir backup`: a checked copy of a store in use, or of all that a server holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logweir.recovery.examine import examine
from logweir.recovery.restore import restore
from logweir.tools.cli.common import NewFolderOption, existing, log_bytes, show_damage
from logweir.tools.cli.output import Output
from logweir.wal.damage import damage_json
from logweir.wal.vclock import vclock_json


def command(
    out: Output,
    where: Annotated[
        str, typer.Argument(metavar="WHERE", help="A folder, or a server: tarantool://…")
    ],
    to: NewFolderOption,
) -> int:
    """Copy a store into a new folder and read the copy from end to end.

    A folder may be written to meanwhile; its copy is the same instance, at the position that is
    told. A server, a logweir or a Tarantool, sends all it has but what is local to it; the copy is
    an instance of its own. Exit code 3 if the copy is damaged, and it is left to be looked at.
    """
    if "://" in where:
        # Imported here: who copies a folder needs no network.
        from logweir.tools.cli.joining import copy_server, copyable

        copy_server(out, copyable(where), to)
    else:
        source = existing(Path(where))
        with out.progress("Copying", log_bytes(source)) as progress:
            restore(source, to, progress=lambda done, total: progress(done))
    with out.progress("Checking", log_bytes(to)) as progress:
        report = examine(to, progress=lambda done, total: progress(done))
    if out.as_json:
        out.json(
            {
                "to": str(to),
                "vclock": vclock_json(report.vclock),
                "bytes": log_bytes(to),
                "damage": [damage_json(one) for one in report.damage],
            }
        )
    else:
        show_damage(out, report.damage, is_bad=True)
        out.line(f"{to} holds the state at {report.vclock}, {log_bytes(to)} bytes, read once")
    return 3 if report.damage else 0
