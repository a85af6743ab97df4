"""`logweir serve`: a server on a store."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import logweir
from logweir.errors import ConfigError
from logweir.limits import (
    CONNECTIONS,
    MEMORY_BYTES,
    MEMORY_LEAST_BYTES,
    TUPLE_BYTES,
    WRITE_AHEAD_BYTES,
    WRITE_AHEAD_MAX_BYTES,
)
from logweir.replication import loop
from logweir.replication.handedover import handed_over
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.urls import Url
from logweir.tools.cli.common import TupleBytes, WaitOption
from logweir.tools.cli.configfile import ConfigOption, origin_of
from logweir.tools.cli.joining import join_if_new
from logweir.tools.cli.logoptions import LogFile, LogFormat, LogLevel, start_log
from logweir.tools.cli.notify import notify
from logweir.tools.cli.output import Output
from logweir.tools.cli.pageaddress import page_address
from logweir.tools.cli.reload import reload_on_hangup

if TYPE_CHECKING:  # all protocols and the store, which `--help` and a wrong option do without
    from logweir.archive.child import Settings
    from logweir.replication.server import Server, ServerOptions

OTHER_FILES = 256
"""Files that a server has open, beside its connections."""

_INTERRUPTED = 1

Guest = Literal["none", "read", "replicate", "write", "all"]


def command(
    out: Output,
    context: typer.Context,
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The store's folder."),
    ],
    config: ConfigOption = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Address to serve; may be repeated."),
    ] = None,
    follow: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Upstream to follow; may be repeated."),
    ] = None,
    wait: WaitOption = 0,
    allow_guest: Annotated[
        Guest,
        typer.Option(
            help="What a client that has not said who it is may do, besides what it was granted.",
        ),
    ] = "none",
    functions: Annotated[
        str,
        typer.Option(metavar="MODULE", help="Module whose functions CALL may call."),
    ] = "",
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Refuse changes by clients (error 7)."),
    ] = False,
    durability: Annotated[
        Literal["fsync", "write", "none"],
        typer.Option(help="When a change counts as durable."),
    ] = "fsync",
    write_ahead: Annotated[
        int,
        typer.Option(
            min=0,
            max=WRITE_AHEAD_MAX_BYTES,
            help="Most zeros that the log has behind its last block, in bytes; 0: none.",
        ),
    ] = WRITE_AHEAD_BYTES,
    tuple_bytes: TupleBytes = TUPLE_BYTES,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Speak TLS with this PEM certificate."),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Its key, if it is in another file."),
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take only clients with a certificate of these PEM authorities; "
            "its common name is the user.",
        ),
    ] = None,
    metrics: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where /metrics, /healthz and /readyz are; and ?from=NETWORKS, ?tls=0.",
        ),
    ] = "",
    web: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where a browser sees what the server does; and ?from=NETWORKS, ?tls=0.",
        ),
    ] = "",
    ready_lag: Annotated[
        float,
        typer.Option(min=0, help="Seconds that /readyz lets an upstream be ahead of this server."),
    ] = 10.0,
    replication_timeout: Annotated[
        float,
        typer.Option(
            min=0.01,
            help="Seconds between heartbeats to replicas.",
        ),
    ] = 1.0,
    retain_max_bytes: Annotated[
        int,
        typer.Option(
            min=0,
            help="Bytes of old logs that one follower may hold back; 0: without bound.",
        ),
    ] = 0,
    archive: Annotated[
        str,
        typer.Option(metavar="PLACE", help="Archive the store there: a folder, s3://…, …"),
    ] = "",
    archive_every: Annotated[
        float, typer.Option(min=0.05, help="Seconds from one look to the next.")
    ] = 1.0,
    archive_keep_for: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="As --keep-for of `logweir archive`; 0: not given."
        ),
    ] = 0,
    archive_keep_snapshots: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="As --keep-snapshots of `logweir archive`; 0: not given."
        ),
    ] = 0,
    memory: Annotated[
        int,
        typer.Option(
            min=MEMORY_LEAST_BYTES,
            help="Bytes that all connections together may hold: unfinished and unanswered "
            "requests, answers that nobody takes; changes on their way to the state included.",
        ),
    ] = MEMORY_BYTES,
    connections: Annotated[
        int,
        typer.Option(
            min=1,
            help="Connections open at a time, of all addresses together; one more is refused.",
        ),
    ] = CONNECTIONS,
    busy_poll: Annotated[
        int,
        typer.Option(
            min=0,
            max=round(loop.BUSY_POLL_MAX_SECONDS * 1e6),
            metavar="MICROSECONDS",
            help="How long the server looks for more, when it has answered, before it sleeps; 0: "
            "not at all.",
        ),
    ] = round(loop.BUSY_POLL_SECONDS * 1e6),
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
    log_file: LogFile = None,
) -> int:
    """Serve a store to clients and followers of each protocol, and follow upstreams.

    Without --listen it listens on tarantool://127.0.0.1:3301. A folder that is not there is made;
    with --follow tarantool://… it joins that replica set first.
    Stop it with Ctrl-C or SIGTERM; SIGHUP has it read certificates and the log's level anew.
    """
    del config  # its values are those of the other options
    from logweir.replication import server as serving

    def origin(name: str) -> str:
        return origin_of(context, name)

    options = serving.ServerOptions(
        listen=[
            parse_listen_url(url, origin=origin("listen"))
            for url in listen_addresses(listen, follow)
        ],
        follow=[parse_url(url, origin=origin("follow")) for url in follow or ()],
        guest=allow_guest,
        functions=functions,
        read_only=read_only,
        replication_timeout_seconds=replication_timeout,
        retain_max_bytes=retain_max_bytes,
        metrics=page_address("metrics", metrics, origin("metrics")),
        web=page_address("web", web, origin("web")),
        memory_bytes=memory,
        connections=connections,
        ready_lag_seconds=ready_lag,
        busy_poll_seconds=busy_poll / 1e6,
        tls=tls_settings(tls_certificate, tls_key, tls_client_ca),
        sockets=handed_over(),
    )
    archiving = None
    if archive:
        from logweir.archive.child import Settings

        archiving = Settings(
            archive, archive_every, archive_keep_for or None, archive_keep_snapshots or None
        )
        archiving.check()
    if functions:
        from logweir.replication.iproto.serve.functions import load_functions

        load_functions(functions)  # before a store is made
    start_log(out, log_level, log_format, log_file)
    files = serving.raise_file_limit(connections + OTHER_FILES)
    if files < connections + OTHER_FILES:
        out.warning(f"only {files} files may be open: fewer connections than {connections}")
    with stopped_early(out):
        join_if_new(out, options.follow, directory, wait=wait)
        with logweir.open(
            directory, durability=durability, write_ahead=write_ahead, tuple_bytes=tuple_bytes
        ) as log:
            return loop.run(_serve(out, context, log, options, archiving))


def listen_addresses(listen: list[str] | None, follow: list[str] | None) -> list[str]:
    """What is listened on, where these are the options."""
    return listen or ([] if follow else ["tarantool://127.0.0.1:3301"])


@contextmanager
def stopped_early(out: Output) -> Iterator[None]:
    """Have SIGTERM and Ctrl-C end what is done before the server has handlers of its own, and say
    so: opening a folder may take long. What was begun is undone or left as by a crash."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    with suppress(ValueError):  # not in the main thread
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        if hasattr(signal, "SIGHUP"):  # there is nothing to take up yet
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    except KeyboardInterrupt:
        out.message("stopped before it served")
        raise typer.Exit(_INTERRUPTED) from None


def tls_settings(
    certificate: Path | None, key: Path | None, client_ca: Path | None
) -> SSLContext | None:
    """What listeners speak; None for plain TCP. Raises `ConfigError`."""
    if certificate is not None:
        from logweir.replication.listener import server_tls

        return server_tls(certificate, key, client_ca)
    for name, value in (("tls-key", key), ("tls-client-ca", client_ca)):
        if value is not None:
            hint = "give --tls-certificate, too: without it there is no TLS"
            raise ConfigError(name, "needs a certificate", origin=f"--{name}", hint=hint)
    return None


async def _serve(
    out: Output,
    context: typer.Context,
    log: logweir.Log,
    options: ServerOptions,
    archiving: Settings | None,
) -> int:
    from logweir.replication.server import Server

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):
            loop.add_signal_handler(number, stop.set)
    server = Server(log, options)
    urls = await server.start()

    def certificates() -> Callable[[], None]:
        files = (context.params[f"tls_{name}"] for name in ("certificate", "key", "client_ca"))
        tls = tls_settings(*files)
        return (lambda: None) if tls is None else (lambda: server.listener.renew_tls(tls))

    reload_on_hangup(out, context, certificates)
    archiver = None if archiving is None else _archive(server, archiving)
    try:
        _announce(out, log, urls, server.page_url)
        notify("READY=1")
        await stop.wait()
        notify("STOPPING=1")
        out.message("stopping")
    finally:
        if archiver is not None:
            archiver.cancel()
            await asyncio.gather(archiver, return_exceptions=True)
        await server.stop()
    return 0


def _archive(server: Server, settings: Settings) -> asyncio.Task[None]:
    """Archive a server's store until that is cancelled."""
    from logweir.archive.child import ARCHIVE_FOLLOWER, ArchiveProcess

    retention = server.shared.retention
    process = ArchiveProcess(
        server.log, settings, lambda vclock: retention.keep(ARCHIVE_FOLLOWER, vclock)
    )
    server.metrics.archive(process.figures)
    server.more_status["archive"] = process.status
    return asyncio.create_task(process.run())


def _announce(out: Output, log: logweir.Log, urls: Sequence[Url], page: str) -> None:
    if out.as_json:
        told = {"ready": True, "listen": [str(url) for url in urls], "path": str(log.path)}
        out.json({**told, "web": page})
        out.flush()
        return
    if not log.vclock:  # perhaps the disk is not mounted that has the store
        out.message(f"{log.path} is a new store: nothing was ever written to it")
    if page:
        out.message(f"its page is {page}")
    if urls:
        out.message(f"serving {log.path} on {', '.join(map(str, urls))}; stop with Ctrl-C")
    else:
        out.message(f"following into {log.path}; stop with Ctrl-C")
