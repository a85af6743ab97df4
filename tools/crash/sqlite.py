"""A program that writes an SQLite database, and its check: `logweir crashtest --engine sqlite`.

``python -m logweir.tools.crash.sqlite run DIR SEED [JOURNAL [SYNCHRONOUS]]`` commits transactions
of two rows, one after the other, and prints the number of each. The journal mode is ``wal`` and
``synchronous`` is ``full`` if nothing else is said. ``… check DIR ACKED`` ends with code 0 if the
database is whole and has all transactions that were acknowledged, with 3 where SQLite says that it
is damaged.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import sys
from pathlib import Path
from typing import Final

from logweir.tools.crash.programs import TOLD

_TRANSACTIONS: Final = 200


def _rows(number: int) -> list[tuple[int, bytes]]:
    ids = (2 * number, 2 * number + 1)
    return [(id, random.Random(id).randbytes(id % 900)) for id in ids]  # noqa: S311 - repeatable


def write_database(directory: Path, journal: str = "wal", synchronous: str = "full") -> None:
    """Commit transactions behind those that are there."""
    with contextlib.closing(sqlite3.connect(directory / "db", isolation_level=None)) as database:
        database.execute(f"PRAGMA journal_mode={journal}")
        database.execute(f"PRAGMA synchronous={synchronous}")
        database.execute("PRAGMA wal_autocheckpoint=20")
        database.execute("CREATE TABLE IF NOT EXISTS crashtest (id INTEGER PRIMARY KEY, data)")
        (count,) = database.execute("SELECT count(*) / 2 FROM crashtest").fetchone()
        for number in range(count, count + _TRANSACTIONS):
            database.execute("BEGIN")
            database.executemany("INSERT INTO crashtest VALUES (?, ?)", _rows(number))
            database.execute("COMMIT")
            print(number, flush=True)


def check_database(directory: Path, acked: Path) -> str:
    """What is wrong with it, "" for nothing. `acked`: the transactions that must be there. Raises
    `sqlite3.DatabaseError` where SQLite itself says that something is."""
    lines = acked.read_text().split()
    count = int(lines[-1]) + 1 if lines else 0
    with contextlib.closing(sqlite3.connect(directory / "db")) as database:
        try:
            (found,) = database.execute("PRAGMA integrity_check").fetchone()
            rows = database.execute("SELECT id, data FROM crashtest ORDER BY id").fetchall()
        except sqlite3.DatabaseError as error:
            if not lines and "no such table" in str(error):
                return ""
            if "no such table" in str(error):
                return str(error)
            raise
    if found != "ok":
        raise sqlite3.DatabaseError(found)
    if len(rows) < 2 * count:
        return f"{count} transactions were acknowledged, there are {len(rows) // 2}"
    wanted = [row for number in range(len(rows) // 2) for row in _rows(number)]
    return "" if rows == wanted else "the rows are not those that were written"


def _main() -> int:
    what, directory, last, *more = sys.argv[1:]
    if what == "run":
        write_database(Path(directory), *more)  # the seed: the rows follow from their numbers
        return 0
    try:
        wrong = check_database(Path(directory), Path(last))
    except sqlite3.DatabaseError as error:
        print(error)
        return TOLD
    print(wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(_main())
