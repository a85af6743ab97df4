"""`logweir status`: what a running server says of itself, or a folder of its upstreams."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from logweir.errors import ConfigError
from logweir.replication import loop
from logweir.replication.iproto.client.status import fetch_checksums
from logweir.replication.protocols import fetch_status
from logweir.tools.cli.common import existing, utc_text
from logweir.tools.cli.output import Output
from logweir.tools.cli.peers import peer_url


def command(
    out: Output,
    where: Annotated[
        str,
        typer.Argument(
            metavar="WHERE", help="The server's address, tarantool://…, or a store's folder."
        ),
    ],
    checksums: Annotated[
        bool,
        typer.Option("--checksums", help="Of a logweir: read all tuples for a checksum per space."),
    ] = False,
) -> int:
    """Show what a running server does: positions, followers, upstreams, lag; or, of a folder, how
    far its upstreams were read and what of them is missing.

    At tarantool:// any Tarantool tells its vclock, and a logweir the rest to users who may execute
    everything. Others tell what their protocol can: tank:// topics and the numbers in each
    partition, tap:// statistics, greenstack:// buckets, synapse:// where its streams stand.
    A folder may be in use. Exit code 1 if an upstream or one of its streams has stopped, or, of a
    folder, if losses are on record (`logweir gaps --forget` strikes them off).
    """
    if "://" not in where:
        return _folder(out, existing(Path(where)))
    target = peer_url(where)
    if checksums and target.scheme != "tarantool":
        hint = "ask the same server at its address tarantool://…"
        raise ConfigError("--checksums", f"{target.scheme} does not tell them", hint=hint)
    status = loop.run(fetch_status(target))
    if checksums:
        told = loop.run(fetch_checksums(target))
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
    """Names and values; what is a list of such has a table of its own behind them."""
    tables = {
        name: value
        for name, value in status.items()
        if isinstance(value, list) and value and all(isinstance(one, dict) for one in value)
    }
    out.fields(
        (name, _words(value) or None) for name, value in status.items() if name not in tables
    )
    for name, rows in tables.items():
        out.line("")
        out.line(f"{name}:")
        columns = list(dict.fromkeys(column for row in rows for column in row))
        numbers = [
            column
            for column in columns
            if all(type(row.get(column)) in (int, float, type(None)) for row in rows)
        ]
        cells = [[_words(row.get(column, "")) for column in columns] for row in rows]
        out.table(columns, cells, right=numbers)


def _words(value: object, *, inside: bool = False) -> str:
    """`value` as people read it: seconds to the millisecond, a vclock as everywhere, no notation of
    a language. `inside`: of another one."""
    if value is None or value is False or value is True:
        return {None: "", False: "no", True: "yes"}[value]
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, dict):
        if value and all(str(name).isdecimal() for name in value):
            return "{" + ", ".join(f"{name}: {_words(one)}" for name, one in value.items()) + "}"
        text = ", ".join(f"{name} {_words(one, inside=True)}" for name, one in value.items())
        return f"({text})" if inside else text or "none"
    if isinstance(value, list | tuple):
        return ", ".join(_words(one, inside=True) for one in value) or "none"
    return str(value)


def _folder(out: Output, path: Path) -> int:
    from logweir.replication.stream.recorded import read_folder
    from logweir.tools.cli.gaps import show_gaps
    from logweir.wal.vclock import vclock_json

    recorded = read_folder(path)
    stopped = [one for one in recorded.positions if one.stopped]
    if out.as_json:
        out.json(
            {
                "vclock": vclock_json(recorded.vclock),
                "positions": [asdict(one) for one in recorded.positions],
                "gaps": [asdict(one) for one in recorded.gaps],
            }
        )
    else:
        out.fields([("vclock", recorded.vclock), ("streams", len(recorded.positions))])
        rows = [
            (
                one.source,
                one.stream,
                one.instance,
                " ".join(
                    f"{name}={value}" for name, value in one.tokens.items() if name != "stopped"
                ),
                utc_text(one.time_ms / 1000),
                f"STOPPED: {one.stopped}" if one.stopped else "",
            )
            for one in recorded.positions
        ]
        if rows:
            out.line("")
            out.table(("source", "stream", "instance", "tokens", "time", "state"), rows)
        if recorded.gaps:
            out.line("")
            show_gaps(out, recorded.gaps)
    return 1 if stopped or recorded.gaps else 0
