"""What several commands show in the same way: damage, times, clocks, the list of files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from logweir.tools.cli.output import Output
from logweir.wal.damage import TAIL_KINDS, Damage
from logweir.wal.vclock import VClock

__all__ = [
    "PathArgument",
    "clock_fields",
    "damage_fields",
    "existing",
    "show_damage",
    "utc_text",
]

PathArgument = Annotated[
    Path, typer.Argument(metavar="PATH", help="A log file, a snapshot, or a folder of them.")
]
"""The argument of commands that take one file or folder."""


def existing(path: Path) -> Path:
    """`path`, if something is there. Raises `OSError` as the system does."""
    os.stat(path)
    return path


def utc_text(seconds: float | None) -> str | None:
    """A time as RFC 3339 text in UTC, with milliseconds; None stays None."""
    if seconds is None:
        return None
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return repr(seconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock_fields(vclock: VClock) -> dict[str, int]:
    """A vclock as JSON wants it."""
    return {str(replica_id): lsn for replica_id, lsn in vclock.items()}


def damage_fields(damage: Damage) -> dict[str, Any]:
    """One damaged place as JSON. The names are a contract, documented in docs/cli.md."""
    return {
        "kind": damage.kind.value,
        "file": damage.file,
        "offset": damage.offset,
        "size": damage.size,
        "lsn_before": damage.lsn_before,
        "lsn_after": damage.lsn_after,
        "rows_lost": damage.rows_lost,
        "message": damage.message,
        "hint": damage.hint,
    }


def show_damage(out: Output, damage: Iterable[Damage]) -> None:
    """Say on stderr what is damaged; an unfinished last write is a message, not a warning."""
    for one in damage:
        place = f"{one.file} at byte {one.offset}"
        around = ""
        if one.lsn_before is not None and one.lsn_after is not None:
            around = f" between lsn {one.lsn_before} and {one.lsn_after}"
        text = f"{place}{around}: {one.kind.value}: {one.message} hint: {one.hint}"
        if one.kind in TAIL_KINDS:
            out.message(f"note: {text}")
        else:
            out.warning(text)
