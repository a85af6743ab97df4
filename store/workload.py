"""A program that writes a store until it is killed, and its check: what `logweir crashtest --engine
logweir` runs.

``python -m logweir.store.workload run DIR SEED [DURABILITY]`` opens the store and makes
transactions of three rows, one after the other: transaction N, from 1 on, has the rows 3N, 3N + 1
and 3N + 2 of space ``crashtest``, each (id, N, bytes that follow from the id). When one is safe it
prints ``ack N``. Now and then it writes a snapshot; log files are small, so that they change often.
Every second seed kills the program at a named place in the log or the store.

``python -m logweir.store.workload check DIR ACKED`` opens the store and ends with code 0 if it has
all transactions up to the last one of the file ACKED, each once and whole, with 3 if the store
refuses to open.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Final, cast

import logweir.store
from logweir.errors import LogweirError
from logweir.store.log import Durability, Log
from logweir.wal.failpoint import arm_from_environment
from logweir.wal.filesystem import OS, make_folders

FAILPOINTS: Final = (
    "wal.before_write",
    "wal.after_write_before_sync",
    "wal.after_sync",
    "wal.after_eof_before_sync",
    "wal.after_close",
    "wal.before_rename",
    "wal.after_rename_before_directory_sync",
    "snapshot.before_rename",
    "snapshot.after_rename_before_directory_sync",
    "store.after_sync_before_publish",
    "store.after_publish",
)
"""Named places at which a writing program is killed."""
_SPACE: Final = "crashtest"
_REFUSED: Final = "the store cannot be opened: "
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


def check_store(directory: Path, acknowledged: int) -> list[str]:
    """What is wrong with what a killed workload left; nothing if the store kept its promises.

    `acknowledged`: the number of the last transaction that was safe, 0 for none.
    """
    try:
        with _open(directory, "fsync") as log:
            is_made = any(space.name == _SPACE for space in log.spaces())
            found = log.select(_SPACE) if is_made else []
            second = log.select(_SPACE, index="number") if is_made else []
    except LogweirError as error:
        return [f"{_REFUSED}{error}"]
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


def write_store(directory: Path, seed: int, durability: Durability = "fsync") -> None:
    """Write until somebody kills this process. `seed`: of the choices."""
    dice = random.Random(seed)  # noqa: S311 - repeatable, nothing secret
    if dice.random() < 0.5:
        os.environ["LOGWEIR_FAILPOINTS"] = f"{dice.choice(FAILPOINTS)}=kill@{dice.randint(1, 40)}"
        arm_from_environment()
    make_folders(OS, directory)
    log = _open(directory, durability)
    if not any(space.name == _SPACE for space in log.spaces()):
        log.create_space(
            _SPACE,
            [("id", "unsigned"), ("number", "unsigned"), ("data", "any")],
            indexes={"number": {"parts": ["number"], "unique": False}},
        )
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


def _main() -> int:
    what, directory, last, *more = sys.argv[1:]
    if what == "run":
        write_store(Path(directory), int(last), cast(Durability, more[0] if more else "fsync"))
    lines = Path(last).read_text().split()
    problems = check_store(Path(directory), int(lines[-1]) if lines else 0)
    sys.stdout.writelines(f"{text}\n" for text in problems)
    if problems and problems[0].startswith(_REFUSED):
        return 3
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(_main())
