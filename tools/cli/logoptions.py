"""What the commands that run as servers log, and where: options that they share."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Literal

import typer

from logweir.tools.cli.output import Output
from logweir.wal import logs

LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option(help="Log what matters at least so much; with --quiet warnings and errors."),
]
"""The option `--log-level`."""

LogFormat = Annotated[
    Literal["text", "json"], typer.Option(help="Lines for people, or a JSON object each.")
]
"""The option `--log-format`."""

LogFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Append it to this file, not to stderr; SIGHUP reopens it."),
]
"""The option `--log-file`."""


def start_log(out: Output, level: str, form: str, file: Path | None) -> None:
    """Log as the options say. Raises `OSError`."""
    logs.start(level, as_json=form == "json", path=file)
    set_level(out, level)


def set_level(out: Output, level: str) -> None:
    """Log from that level on; warnings and errors at most where the program is to be quiet."""
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.getLogger().setLevel(max(number, logging.WARNING) if out.quiet else number)


def logs_to_a_file() -> bool:
    """Whether whoever sees the messages does not see the log."""
    return any(isinstance(one, logs.LogFile) for one in logging.getLogger().handlers)


def reopen_log() -> None:
    """Go on in the file that has the log's name now. Raises `OSError`; the old one is kept then."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logs.LogFile):
            handler.reopen()
