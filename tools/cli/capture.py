"""`logweir capture`: call a Python function once for each transaction of a folder or server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import logweir
from logweir.errors import ConfigError, DecodeError, Unreachable
from logweir.tools.cli.common import store_at
from logweir.tools.cli.configfile import ConfigOption
from logweir.tools.cli.logoptions import LogFile, LogFormat, LogLevel, start_log
from logweir.tools.cli.output import Output
from logweir.tools.cli.peers import peer_url
from logweir.tools.cli.reload import Signalled, serving, until_stopped
from logweir.wal.directory import scan_directory
from logweir.wal.logs import get_logger
from logweir.wal.mp import Value
from logweir.wal.render import from_json, load_json

if TYPE_CHECKING:
    from logweir.replication.capture.running import Kept

_log = get_logger("logweir.capture")


def command(
    out: Output,
    context: typer.Context,
    where: Annotated[
        str, typer.Argument(metavar="WHERE", help="A folder, or tarantool://… of a server.")
    ],
    config: ConfigOption = None,
    *,
    exec: Annotated[str, typer.Option("--exec", metavar="MODULE:FUNCTION", help="What is called.")],
    store: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the place in this store: exactly once."),
    ] = None,
    token: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep the place in this file: at least once."),
    ] = None,
    name: Annotated[
        str, typer.Option(help="Of the capture, of which a store may keep several.")
    ] = "default",
    space: Annotated[
        list[str] | None, typer.Option(help="Only this space; may be repeated.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help='Only keys that begin so: a value, an array, {"begins": TEXT}.'
        ),
    ] = None,
    images: Annotated[
        bool,
        typer.Option(
            "--images", help="Keep copies of the tuples in the store, and give them with changes."
        ),
    ] = False,
    once: Annotated[
        bool,
        typer.Option("--once", allow_from_autoenv=False, help="Stop at the end of the log."),
    ] = False,
    log_level: LogLevel = "warning",
    log_format: LogFormat = "text",
    log_file: LogFile = None,
) -> int:
    """Call a Python function once for each transaction of a folder or server, in order.

    With --store DIR it is given the transaction and one of that store, which has the position, too:
    what it does there is done exactly once, whatever crashes. With --token FILE it is given the
    transaction alone, and again if a crash comes before the file is written. If it raises, the
    program ends with exit code 1, and the next start gives it the same transaction. SIGHUP has it
    read the log's level anew.
    """
    del config  # its values are those of the other options
    from logweir.replication.capture.running import StoreKept, TokenFile, load_function, run

    if (store is None) == (token is None):
        raise ConfigError("--store", "one of --store and --token says where the place is kept")
    if images and store is None:
        raise ConfigError("--images", "are kept in a store: give --store")
    start_log(out, log_level, log_format, log_file)
    called = load_function(exec)
    spaces = [int(one) if one.isdecimal() else one for one in space or ()]
    wanted = None if key is None else _key(key)

    def waiting(error: Unreachable) -> None:
        _log.warning("capture.waiting", reason=error.message)

    source = peer_url(where) if "://" in where else Path(where)

    def work(kept: Kept, signalled: Signalled) -> int:
        with serving(out, context, signalled):
            return run(
                *(source, kept, called),
                spaces=spaces,
                key=wanted,
                once=once,
                stop=signalled.stop,
                waiting=waiting,
            )

    with until_stopped() as signalled:
        if token is not None:
            given = work(TokenFile(token), signalled)
        else:
            assert store is not None
            if isinstance(source, Path):
                _check_folder(source, store)
            with logweir.open(store) as log:
                given = work(StoreKept(log, name, images=images), signalled)
    if out.as_json:
        out.json({"transactions": given})
    else:
        out.message(f"{given} transactions")
    return 0


def _check_folder(where: Path, store: Path) -> None:
    """Before a store is made to keep the place in it."""
    if where.resolve() == store.resolve():
        raise ConfigError("--store", "is the folder that is read: its own changes would come")
    index = scan_directory(store_at(where))
    if index.newest_snap() is None:
        raise index.unusable()


def _key(text: str) -> Value:
    try:
        return from_json(load_json(text))
    except DecodeError as error:
        raise ConfigError("--key", f"{error.message}", hint="write strings in quotes") from error
