"""`logweir status`: what a running server does."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from logweir.errors import ConfigError
from logweir.replication import server as serving
from logweir.replication.iproto.status import fetch_checksums, fetch_status
from logweir.replication.urls import parse_url
from logweir.tools.cli.output import Output


def command(
    out: Output,
    url: Annotated[str, typer.Argument(metavar="URL", help="The server: tarantool://…")],
    checksums: Annotated[
        bool,
        typer.Option("--checksums", help="Also read every tuple: a checksum of each space."),
    ] = False,
) -> int:
    """Show what a running server does: positions, followers, upstreams, lag.

    Any Tarantool tells its vclock; a logweir tells the rest to users who may execute everything.
    Exit code 1 if one of its upstreams, or a part of one, has stopped.
    """
    target = parse_url(url, origin="argument")
    if target.scheme != "tarantool":
        raise ConfigError("URL", f"{target.scheme} does not tell its status", origin="argument")
    status = serving.run(fetch_status(target))
    if checksums:
        told = serving.run(fetch_checksums(target))
        status["checksums_at"], status["checksums"] = told["vclock"], told["spaces"]
    if out.as_json:
        out.json(status)
    else:
        _show(out, status)
    sources = status.get("sources", ())
    stopped = [
        one
        for one in sources
        if one.get("stopped_parts") or (one["state"] == "stopped" and one["last_error"])
    ]
    return 1 if stopped else 0


def _show(out: Output, status: dict[str, Any]) -> None:
    lists = ("sources", "gaps", "topics", "streams", "replicas", "checksums")
    out.fields((name, value) for name, value in status.items() if name not in lists)
    for name in lists:
        rows = status.get(name)
        if rows:
            out.line("")
            columns = tuple(rows[0])
            out.table(columns, [tuple(row.values()) for row in rows])
