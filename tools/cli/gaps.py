"""`logweir gaps`: what upstreams had and a store has not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import logweir
from logweir.tools.cli.common import FolderArgument, existing, utc_text
from logweir.tools.cli.output import Output

if TYPE_CHECKING:  # the store, which `--help` and a wrong option do without
    from logweir.replication.stream.positions import Gap


def command(
    out: Output,
    directory: FolderArgument,
    forget: Annotated[
        bool, typer.Option("--forget", help="Strike those that are shown off the record.")
    ] = False,
    stream: Annotated[
        str, typer.Option("--stream", metavar="STREAM", help="Only those of this stream.")
    ] = "",
) -> int:
    """List what is known to be missing: places of upstreams that never came, with the reason.

    The folder may be served meanwhile, but not with --forget, which is for losses that were looked
    at: what is missing stays missing. Exit code 1 if anything is left on record.
    """
    from logweir.replication.stream import positions
    from logweir.replication.stream.recorded import read_folder

    found = [one for one in read_folder(existing(directory)).gaps if stream in ("", one.stream)]
    show_gaps(out, found)
    if not found:
        out.message("nothing is known to be missing")
    if not forget:
        return 1 if found else 0
    with logweir.open(directory, create=False) as log:
        positions.forget(log, found)
    out.message(f"struck off: {len(found)}")
    return 0


def show_gaps(out: Output, gaps: Iterable[Gap]) -> None:
    """One line each."""
    if out.as_json:
        for gap in gaps:
            out.json(asdict(gap))
        return
    columns = ("source", "stream", "instance", "start", "end", "time", "reason")
    rows = [
        (
            one.source,
            one.stream,
            one.instance,
            one.start,
            one.end,
            utc_text(one.time_ms / 1000),
            one.reason,
        )
        for one in gaps
    ]
    if rows:
        out.table(columns, rows, right=("start", "end"))
