"""What several commands take or show in the same way."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from logweir.errors import ConfigError, DecodeError
from logweir.limits import TOPIC_TUPLE_BYTES, TUPLE_BYTES
from logweir.tools.cli.output import Output
from logweir.wal.damage import TAIL_KINDS, Damage
from logweir.wal.vclock import VClock

PathArgument = Annotated[
    Path, typer.Argument(metavar="PATH", help="A log file, a snapshot, or a folder of them.")
]
"""The argument of commands that take one file or folder."""

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a store.")]
"""The argument of commands that take one folder."""

DecimalsOption = Annotated[
    str,
    typer.Option(
        metavar="string|SCALE", help="Columns of decimals: their text, or DECIMAL(38, SCALE)."
    ),
]
"""The option of commands that make columns of a space's fields."""

NewFolderOption = Annotated[
    Path, typer.Option("--to", metavar="NEW", help="The new folder; it must be empty or not exist.")
]
"""The option of commands that write a new folder."""


TupleBytes = Annotated[
    int,
    typer.Option(
        min=TUPLE_BYTES,
        max=TOPIC_TUPLE_BYTES,
        help="What one tuple may take, as Tarantool's memtx_max_tuple_size.",
    ),
]
"""The option of commands that open a store for others to write."""


WaitOption = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="Before a first copy: how long to wait for a Tarantool that cannot be reached yet.",
    ),
]
"""The option of commands that copy a Tarantool before they follow it."""


def existing(path: Path) -> Path:
    """`path`, if something is there. Raises `OSError` as the system does."""
    os.stat(path)
    return path


def store_at(path: Path) -> Path:
    """`path`, a file or a folder that holds a log or a snapshot. Raises `OSError` as the system
    does, `WalError` where a folder has neither."""
    from logweir.wal.directory import no_store, scan_directory

    if existing(path).is_dir():
        index = scan_directory(path)
        if not index.files and not index.damage:
            raise no_store(path)
    return path


def given_vclock(option: str, text: str | None) -> VClock | None:
    """The vclock that an option names, with its braces or without. Raises `ConfigError`."""
    if text is None:
        return None
    try:
        return VClock.parse(text if text.lstrip().startswith("{") else f"{{{text}}}")
    except DecodeError as error:
        hint = "write '{1: 5, 2: 7}' or 1:5,2:7"
        raise ConfigError(option, f"{text!r} is no vclock: {error.message}.", hint=hint) from error


def log_bytes(directory: Path) -> int:
    """Bytes in the logs and snapshots of a folder. Raises `OSError` as the system does."""
    with os.scandir(directory) as entries:
        return sum(
            entry.stat(follow_symlinks=False).st_size
            for entry in entries
            if entry.name.endswith((".xlog", ".snap"))
        )


def utc_text(seconds: float | None) -> str | None:
    """A time as RFC 3339 text in UTC, with milliseconds; None stays None."""
    if seconds is None:
        return None
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return repr(seconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def show_damage(out: Output, damage: Iterable[Damage], *, is_bad: bool = False) -> None:
    """Say on stderr what is damaged; an unfinished last write is a message, not a warning, but
    where `is_bad` says that it is no ending."""
    for one in damage:
        place = f"{one.file} at byte {one.offset}"
        around = ""
        if one.lsn_before is not None and one.lsn_after is not None:
            around = f" between lsn {one.lsn_before} and {one.lsn_after}"
        text = f"{place}{around}: {one.kind.value}: {one.message} hint: {one.hint}"
        if one.kind in TAIL_KINDS and not is_bad:
            out.message(f"note: {text}")
        else:
            out.warning(text)
