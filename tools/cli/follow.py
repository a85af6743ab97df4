"""`logweir follow`: copy one upstream into a folder and keep the copy up to date."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

import logweir
from logweir.errors import ConfigError
from logweir.limits import TUPLE_BYTES
from logweir.replication import loop
from logweir.tools.cli.common import TupleBytes, WaitOption
from logweir.tools.cli.configfile import ConfigOption
from logweir.tools.cli.joining import join_if_new, put_aside
from logweir.tools.cli.logoptions import LogFile, LogFormat, LogLevel, logs_to_a_file, start_log
from logweir.tools.cli.notify import notify
from logweir.tools.cli.output import Output
from logweir.tools.cli.peers import peer_url
from logweir.tools.cli.reload import reload_on_hangup

if TYPE_CHECKING:  # all protocols and the store, which `--help` and a wrong address do without
    from logweir.replication.server import Server, ServerOptions

_SHOWN_GAPS = 20


def command(
    out: Output,
    context: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="The upstream to follow.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the copy.")],
    config: ConfigOption = None,
    homeserver: Annotated[
        Path | None,
        typer.Option(
            "--homeserver",
            metavar="FILE",
            help="Of `logweir follow synapse`: the homeserver.yaml that says where its streams "
            "are, as synapse+file://FILE.",
        ),
    ] = None,
    rejoin: Annotated[
        bool,
        typer.Option(
            "--rejoin",
            allow_from_autoenv=False,
            help="Put the old copy aside and copy everything anew; refused if it has rows that "
            "the upstream has not.",
        ),
    ] = False,
    drop_rows: Annotated[
        bool,
        typer.Option(
            "--drop-rows",
            allow_from_autoenv=False,
            help="With --rejoin: go on without rows that the upstream has not.",
        ),
    ] = False,
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            allow_from_autoenv=False,
            help="Stop when the end of the upstream is reached.",
        ),
    ] = False,
    wait: WaitOption = 0,
    tuple_bytes: TupleBytes = TUPLE_BYTES,
    log_level: LogLevel = "warning",
    log_format: LogFormat = "text",
    log_file: LogFile = None,
) -> int:
    """Copy one upstream into a folder and keep the copy up to date.

    Of a Tarantool everything is copied the first time (JOIN); later the copy goes on where it
    stopped. Other upstreams are followed into any store; one is made if need be. Exit code 1 if
    following ended with an error that needs attention, a part of the upstream (a topic, say)
    could not be followed, or rows are missing of what it took meanwhile: `logweir gaps DIR` lists
    them.

    `logweir capture` calls a Python function for each transaction of a folder or server instead.
    """
    del config  # its values are those of the other options
    start_log(out, log_level, log_format, log_file)
    source = peer_url(url if homeserver is None else _of_homeserver(url, homeserver))
    from logweir.replication.server import ServerOptions

    if rejoin and source.scheme != "tarantool":
        raise ConfigError("--rejoin", f"is for Tarantool; {source.scheme} goes on by itself")
    if drop_rows and not rejoin:
        raise ConfigError("--drop-rows", "is for --rejoin")
    options = ServerOptions(follow=[source], once=once)  # read before a store is made
    instance = None
    if rejoin:
        instance = put_aside(out, source, directory, wait=wait, drops_rows=drop_rows)
    join_if_new(out, [source], directory, wait=wait, instance=instance)
    return follow_into(out, options, directory, tuple_bytes=tuple_bytes, context=context)


def _of_homeserver(url: str, file: Path) -> str:
    """The address of a homeserver by its file. `url`: `synapse`, with options behind a question
    mark. Raises `ConfigError`."""
    name, mark, options = url.partition("?")
    if name != "synapse":
        hint = "write logweir follow synapse --homeserver FILE DIR, options as synapse?start=all"
        raise ConfigError("--homeserver", "is for the upstream `synapse`", hint=hint)
    return f"synapse+file://{quote(str(file.absolute()))}{mark}{options}"


def follow_into(
    out: Output,
    options: ServerOptions,
    directory: Path,
    *,
    tuple_bytes: int = TUPLE_BYTES,
    context: typer.Context | None = None,
) -> int:
    """Follow the one upstream of `options` into a folder, which is made if need be, until it or
    somebody ends that. `context`: of a command whose options a SIGHUP reads anew. Returns the exit
    code."""
    create = options.follow[0].scheme != "tarantool"
    with logweir.open(directory, create=create, tuple_bytes=tuple_bytes) as log:
        return loop.run(_follow(out, context, log, options))


async def _follow(
    out: Output, context: typer.Context | None, log: logweir.Log, options: ServerOptions
) -> int:
    from logweir.replication.runner import SourceState
    from logweir.replication.server import Server
    from logweir.replication.stream import positions

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):
            loop.add_signal_handler(number, stop.set)
    known = set(positions.gaps(log))
    server = Server(log, options)
    await server.start()
    if context is not None:
        reload_on_hangup(out, context)
    notify("READY=1")
    try:
        asked = asyncio.ensure_future(stop.wait())
        ended = asyncio.ensure_future(_watch(server, out, options.once))
        await asyncio.wait((asked, ended), return_when=asyncio.FIRST_COMPLETED)
        notify("STOPPING=1")
        for task in (asked, ended):
            task.cancel()
    finally:
        await server.stop()
    status = server.runners[0].status
    missing = [gap for gap in positions.gaps(log) if gap not in known]
    if out.as_json:
        told = {"state": str(status.state), "rows": status.rows, "vclock": dict(log.vclock)}
        out.json({**told, "gaps": [asdict(gap) for gap in missing]})
    else:
        out.message(f"{status.state}: {status.rows} rows, now at {log.vclock}")
    for part, reason in status.stopped_parts.items():
        out.warning(f"{part} was not followed any more: {reason}")
    for gap in missing[:_SHOWN_GAPS]:
        where = f"{gap.stream}/{gap.instance}" if gap.instance else gap.stream
        out.warning(f"missing: {where} {gap.start} to {gap.end}: {gap.reason}")
    if len(missing) > _SHOWN_GAPS:
        out.warning(f"and {len(missing) - _SHOWN_GAPS} more: `logweir gaps` lists them")
    if status.state == SourceState.STOPPED and status.last_error:
        out.warning(f"{status.url}: {status.last_error}")
        return 1
    return 1 if missing or status.stopped_parts else 0


async def _watch(server: Server, out: Output, once: bool) -> None:
    """Until the source stops for good; with `once` until it has caught up."""
    from logweir.replication.runner import SourceState

    runner = server.runners[0]
    shown = ""
    told: set[str] = set()
    while True:
        status = runner.status
        for part in status.stopped_parts.keys() - told:
            told.add(part)
            out.warning(f"{part} is not followed any more: {status.stopped_parts[part]}")
        said = status.told if logs_to_a_file() else str(status.state)  # the log says why
        if said != shown:
            shown = said
            out.message(said)
        if status.state == SourceState.STOPPED:
            return
        if once and status.state == SourceState.FOLLOWING:
            return
        await runner.changed()
