"""What a server takes up on SIGHUP, without a restart.

Files are read anew: the configuration, of which the level of the log counts, certificates of TLS,
and the log's own file is opened again. Whatever of it cannot be read is told in one line of the
log (`config.refused`), and then everything stays as it was.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

import typer

from logweir.errors import LogweirError
from logweir.tools.cli.configfile import declared, evaluate, key_of
from logweir.tools.cli.logoptions import reopen_log, set_level
from logweir.tools.cli.notify import notify, reloading
from logweir.tools.cli.output import Output
from logweir.wal.filesystem import explain
from logweir.wal.logs import get_logger

_log = get_logger("logweir.tools")


def reload_on_hangup(
    out: Output,
    context: typer.Context,
    prepare: Callable[[], Callable[[], None]] = lambda: lambda: None,
) -> None:
    """Have SIGHUP reload what the command of `context` was given, in the running event loop.
    `prepare`: reads what else there is, and returns what takes it up; raises `LogweirError`."""
    level = context.params["log_level"]

    def reload() -> None:
        reloading()
        take_up_all()
        notify("READY=1")

    def take_up_all() -> None:
        nonlocal level
        try:
            values = evaluate(context.command, context.params["config"]).params
            take_up = prepare()
            reopen_log()
        except LogweirError as error:
            _log.error("config.refused", reason=str(error))
            return
        except OSError as error:
            _log.error("config.refused", reason=str(explain(error, str(error.filename or ""))))
            return
        take_up()
        given = {
            name
            for name in declared(context.command)
            if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"
        }
        if "log_level" not in given:
            level = values["log_level"]
            set_level(out, level)
        later = [
            key_of(name)
            for name in declared(context.command)
            if name not in given and name != "log_level" and values[name] != context.params[name]
        ]
        _log.info("config.reloaded", log_level=level, needs_restart=later)

    with suppress(NotImplementedError, AttributeError):  # Windows has neither
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
