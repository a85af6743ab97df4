"""`logweir restore`: the state at an earlier position or time, as a new folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logweir.errors import ConfigError
from logweir.tools.cli.common import (
    NewFolderOption,
    existing,
    given_vclock,
    log_bytes,
)
from logweir.tools.cli.output import Output
from logweir.wal.selection import parse_time
from logweir.wal.vclock import VClock, vclock_json


def command(
    out: Output,
    to: NewFolderOption,
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="A folder of logs and snapshots.", show_default=False),
    ] = None,
    archive: Annotated[
        str,
        typer.Option("--from", metavar="URL", help="An archive: a folder, s3://…, …; not DIR."),
    ] = "",
    at_vclock: Annotated[
        str | None,
        typer.Option("--at-vclock", metavar="VCLOCK", help="The state at this vclock."),
    ] = None,
    at_time: Annotated[
        str | None,
        typer.Option("--at-time", metavar="TIME", help="The state at this time (ISO 8601, UTC)."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read everything, but write nothing.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read the new folder and compare it, row by row.")
    ] = False,
) -> int:
    """Write the state at a point in time into a new folder; without a point, the newest.

    It is that of DIR, or of an archive (`logweir archive`) with --from. The cut is always between
    two transactions. What is read is not touched. One that was broken off leaves a folder that
    nothing opens: the same command begins anew in it.
    """
    if (directory is None) == (not archive):
        raise ConfigError("DIR", "give a folder, or an archive with --from, and not both")
    at = _point(at_vclock, at_time)
    if directory is None:
        from logweir.archive.fetch import restore_archive

        result = restore_archive(
            archive, to, at=at, dry_run=dry_run, verify=verify, tell=out.warning
        )
    else:
        from logweir.recovery.restore import restore

        with out.progress("Reading", log_bytes(existing(directory))) as progress:
            result = restore(
                directory,
                to,
                at=at,
                dry_run=dry_run,
                verify=verify,
                progress=lambda done, total: progress(done),
            )
    if out.as_json:
        out.json(
            {
                "to": str(result.to),
                "vclock": vclock_json(result.vclock),
                "is_exact": result.is_exact,
                "snapshot": result.snapshot,
                "rows": result.rows,
                "files": list(result.files),
                "dry_run": result.dry_run,
                "verified": result.verified,
            }
        )
        return 0
    holds = "would hold" if result.dry_run else "holds"
    out.line(f"{result.to} {holds} the state at {result.vclock}")
    out.message(f"it begins with {result.snapshot}; {result.rows} rows come after it")
    if result.verified:
        out.message("it was read again: every row is as it was read")
    if result.dry_run:
        out.message("nothing was written: this was a dry run")
    if not result.is_exact:
        out.message(f"{at_vclock} lies inside a transaction: this is the state before it")
    return 0


def _point(at_vclock: str | None, at_time: str | None) -> VClock | float | None:
    if at_vclock is not None and at_time is not None:
        raise ConfigError("--at-time", "cannot be given together with --at-vclock.")
    if at_time is not None:
        return parse_time(at_time, origin="--at-time")
    return given_vclock("--at-vclock", at_vclock)
