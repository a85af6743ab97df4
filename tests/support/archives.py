"""Stores with small logs, and their archives in folders, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

import logweir
from logweir.archive.archiver import Archiver
from logweir.archive.catalog import Catalog
from logweir.archive.objects import open_objects
from logweir.tools.cli.main import app

DEFINITION = 3
"""Rows that make the space."""


def run(*arguments: object) -> Result:
    """Run the program in this process."""
    return CliRunner().invoke(app, [*map(str, arguments)])


def opened(folder: Path, **options: Any) -> logweir.Log:
    """A store with small logs and the space `t`."""
    log = logweir.open(folder, wal_max_size=2000, **options)
    if not any(space.name == "t" for space in log.spaces()):
        log.create_space("t")
    return log


def fill(log: logweir.Log, count: int) -> None:
    """Add tuples, each in a transaction of its own, with the values 0, 1, 2, …"""
    first = log.count("t")
    for number in range(first, first + count):
        log.insert("t", (number, f"value {number}"))


def contents(folder: Path) -> list[Any]:
    """The tuples of a store's space."""
    with logweir.open(folder, create=False) as log:
        return log.select("t")


def rows(count: int) -> list[Any]:
    """The tuples that `fill` made first."""
    return [(number, f"value {number}") for number in range(count)]


def archived(folder: Path, place: Path, **options: Any) -> Archiver:
    """An archiver that looked once, and is closed."""
    with Archiver(folder, open_objects(str(place)), **options) as archiver:
        archiver.look()
    return archiver


def catalog_of(place: Path) -> Catalog:
    """What a place holds."""
    return Catalog.load(open_objects(str(place)))


def kinds(place: Path) -> list[str]:
    """Of the entries, sorted."""
    return sorted(entry.kind for entry in catalog_of(place).entries.values())


def damage(path: Path, offset: int = -300) -> None:
    """Flip a bit."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def with_snapshots(folder: Path, place: Path, count: int, **options: Any) -> list[int]:
    """A store with snapshots, archived at each. Returns how many tuples there were at each."""
    counts = []
    with opened(folder) as log:
        for _ in range(count):
            fill(log, 50)
            log.snapshot()
            counts.append(log.count("t"))
            archived(folder, place, **options)
        fill(log, 5)
        archived(folder, place, **options)
    return counts
