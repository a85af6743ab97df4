"""`logweir play`: replay rows into a running server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logweir.errors import ConfigError
from logweir.replication import loop
from logweir.replication.iproto.client.play import play
from logweir.tools.cli.common import PathArgument, store_at
from logweir.tools.cli.output import Output
from logweir.tools.cli.peers import peer_url
from logweir.wal.directory import scan_directory


def command(
    out: Output,
    path: PathArgument,
    url: Annotated[str, typer.Argument(metavar="URL", help="The server: tarantool://…")],
    system: Annotated[
        bool, typer.Option("--system", help="Replay rows of system spaces too.")
    ] = False,
    local: Annotated[bool, typer.Option("--local", help="Replay replica-local rows too.")] = False,
) -> int:
    """Replay the rows of a log file, a snapshot, or all logs of a folder, into a running server.

    They become changes of the server's own, each a transaction by itself. It stops at the first row
    that the server refuses, with exit code 1.
    """
    target = peer_url(url)
    if target.scheme != "tarantool":
        raise ConfigError("URL", f"rows cannot be played into {target.scheme}", origin="argument")
    paths = [path]
    if store_at(path).is_dir():
        paths = [file.path for file in scan_directory(path).xlogs]
    total = sum(_size(one) for one in paths)
    with out.progress("Playing", total) as progress:
        played = loop.run(play(paths, target, system=system, local=local, progress=progress))
    if out.as_json:
        out.json({"sent": played.sent, "left_out": played.left_out})
    else:
        out.line(f"{played.sent} rows sent, {played.left_out} left out")
    return 0


def _size(path: Path) -> int:
    return path.stat().st_size
