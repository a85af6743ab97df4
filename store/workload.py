"""A program that writes a store until it is killed: what `logweir crashtest` runs.

``python -m logweir.store.workload DURABILITY DIR SEED`` opens the store and makes transactions of
three rows, one after the other: transaction N, from 1 on, has the rows 3N, 3N + 1 and 3N + 2 of
space ``crashtest``, each (id, N, bytes that follow from the id). When one is safe it prints
``ack N``.
Now and then it writes a snapshot; log files are small, so that they change often.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Final, cast

import logweir.store
from logweir.errors import ConfigError, LogweirError
from logweir.store.log import Durability, Log
from logweir.wal.filesystem import OS, make_folders

__all__ = ["FAILPOINTS", "check_store", "make_store"]

FAILPOINTS: Final = (
    "store.after_sync_before_publish",
    "store.after_publish",
)
"""Where a store can be made to die, besides where its log can (`recovery.faults`)."""

_SPACE: Final = "crashtest"
_ROWS: Final = 3
_FILE_BYTES: Final = 16 * 1024


def _rows(number: int) -> list[tuple[int, int, bytes]]:
    ids = range(_ROWS * number, _ROWS * (number + 1))
    # Repeatable, nothing secret.
    return [(id, number, random.Random(id).randbytes(id % 90)) for id in ids]  # noqa: S311


def _open(directory: Path, durability: Durability) -> Log:
    return logweir.store.open(
        directory,
        durability,
        wal_max_size=_FILE_BYTES,
        checkpoint_interval=0,
    )


def make_store(directory: Path) -> None:
    """A store with the space. Raises `ConfigError` where the folder holds something already: a
    workload would write into it."""
    make_folders(OS, directory)
    if OS.list_directory(directory):
        raise ConfigError(
            "DIR", f"{directory} is not empty", hint="a crash test writes into a folder of its own"
        )
    with _open(directory, "fsync") as log:
        log.create_space(
            _SPACE,
            [("id", "unsigned"), ("number", "unsigned"), ("data", "any")],
            indexes={"number": {"parts": ["number"], "unique": False}},
        )


def check_store(directory: Path, acknowledged: int) -> list[str]:
    """What is wrong with what a killed workload left; nothing if the store kept its promises.

    `acknowledged`: the number of the last transaction that was safe, 0 for none.
    """
    try:
        with _open(directory, "fsync") as log:
            found = log.select(_SPACE)
            second = log.select(_SPACE, index="number")
    except LogweirError as error:
        return [f"the store cannot be opened: {error}"]
    count = len(found) // _ROWS
    wanted = [row for number in range(1, count + 1) for row in _rows(number)]
    problems = []
    if found != wanted:
        problems.append(f"the {len(found)} rows are not those of {count} transactions")
    if sorted(second) != found:
        problems.append("the second index does not have the rows of the first")
    if count < acknowledged:
        problems.append(
            f"transaction {acknowledged} was acknowledged, the last one there is {count}"
        )
    return problems


def _run(directory: Path, durability: Durability, seed: int) -> None:
    """Write until somebody kills this process."""
    dice = random.Random(seed)  # noqa: S311 - repeatable, nothing secret
    log = _open(directory, durability)
    number = log.count(_SPACE) // _ROWS
    while True:
        number += 1
        if dice.random() < 0.5:
            log.append(_SPACE, _rows(number))
        else:
            with log.transaction() as tx:
                for row in _rows(number):
                    tx.insert(_SPACE, row)
        os.write(1, b"ack %d\n" % number)
        if dice.random() < 0.01:
            log.snapshot()


if __name__ == "__main__":
    _run(Path(sys.argv[2]), cast(Durability, sys.argv[1]), int(sys.argv[3]))
