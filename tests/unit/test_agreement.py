"""`verify`, `info`, `cat`, `logweir.read` and opening say the same about the same damage.

One table: a damage, what `logweir.open` does, and the exit codes of the three commands. `cat` reads
logs alone, so a damaged or missing snapshot is not its matter, and `read` what is there; opening
passes over what is older than the newest snapshot.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.logs import forget_end
from typer.testing import CliRunner

import logweir
from logweir.errors import LogweirError
from logweir.tools.cli.main import app
from logweir.wal.endmark import END_MARK_NAME
from logweir.wal.writer import PROGRAM

FORMAT = [("id", "unsigned"), ("text", "string")]
BLOCK = bytes.fromhex("d5ba0bab")


def logs(folder: Path) -> list[Path]:
    """The logs of a folder, the oldest first."""
    return sorted(folder.glob("*.xlog"))


def make(folder: Path) -> None:
    """A store of 60 rows: in three logs, the only snapshot in front of all."""
    with logweir.open(folder, wal_max_size=2500, checkpoint_interval=0) as log:
        log.create_space("t", format=FORMAT)
        for number in range(60):
            log.insert("t", (number, "text" * 10))
    assert len(logs(folder)) > 2


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def torn_tail(folder: Path) -> None:
    """What a kill leaves: the last block is cut short, and no log was closed."""
    forget_end(folder)
    cut(logs(folder)[-1], 9)


def torn_tail_of_a_marked_log(folder: Path) -> None:
    cut(logs(folder)[-1], 9)


def cut_between_blocks(folder: Path) -> None:
    path = logs(folder)[-1]
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(BLOCK)])


def zero_tail(folder: Path) -> None:
    forget_end(folder)
    path = logs(folder)[-1]
    path.write_bytes(path.read_bytes()[:-4] + bytes(900))


def foreign_zero_tail(folder: Path) -> None:
    zero_tail(folder)
    path = logs(folder)[-1]
    data = path.read_bytes()
    path.write_bytes(data.replace(f"{PROGRAM} (fsync)".encode(), b"2.6.0-0-g47aa4e01e"))


def missing_middle(folder: Path) -> None:
    logs(folder)[1].unlink()


def missing_newest(folder: Path) -> None:
    logs(folder)[-1].unlink()


def missing_oldest(folder: Path) -> None:
    logs(folder)[0].unlink()


def missing_all_but_the_mark(folder: Path) -> None:
    for path in [*logs(folder), *folder.glob("*.snap")]:
        path.unlink()


def damaged_mark(folder: Path) -> None:
    cut(folder / END_MARK_NAME, 3)


def no_mark(folder: Path) -> None:
    forget_end(folder)


def flipped_byte(folder: Path) -> None:
    path = logs(folder)[1]
    flip(path, path.read_bytes().index(b"texttext") + 3)


def flipped_header(folder: Path) -> None:
    flip(logs(folder)[1], 0)


def flipped_byte_before_the_snapshot(folder: Path) -> None:
    with logweir.open(folder, checkpoint_count=9) as log:
        log.snapshot()
    flipped_byte(folder)


def missing_snapshot(folder: Path) -> None:
    for path in folder.glob("*.snap"):
        path.unlink()


def damaged_snapshot(folder: Path) -> None:
    (path,) = folder.glob("*.snap")
    flip(path, 900)


def bytes_behind_the_end(folder: Path) -> None:
    path = logs(folder)[0]
    path.write_bytes(path.read_bytes() + b"more")


def log_of_another_store(folder: Path) -> None:
    other = folder.with_name("other")
    make(other)
    shutil.copy(logs(other)[1], folder / f"{10**6:020d}.xlog")


def state_of_another_store(folder: Path) -> None:
    other = folder.with_name("other")
    make(other)
    shutil.rmtree(folder / "state")
    shutil.copytree(other / "state", folder / "state")


def empty_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def foreign_folder(folder: Path) -> None:
    empty_folder(folder)
    (folder / "notes.txt").write_text("x")


def nothing(folder: Path) -> None:
    del folder


@dataclass(frozen=True)
class Verdict:
    """`opens`: with `create=False` and without its state; the others: exit codes."""

    opens: bool
    verify: int
    info: int
    cat: int


WHOLE = Verdict(opens=True, verify=0, info=0, cat=0)
REFUSED = Verdict(opens=False, verify=3, info=3, cat=3)
NO_STORE = Verdict(opens=False, verify=1, info=1, cat=1)
NOT_OF_LOGS = Verdict(opens=False, verify=3, info=3, cat=0)
OLD = Verdict(opens=True, verify=3, info=3, cat=3)

TABLE: list[tuple[Callable[[Path], None], Verdict]] = [
    (nothing, WHOLE),
    (torn_tail, WHOLE),
    (torn_tail_of_a_marked_log, REFUSED),
    (cut_between_blocks, REFUSED),
    (zero_tail, WHOLE),
    (foreign_zero_tail, REFUSED),
    (missing_middle, REFUSED),
    (missing_newest, REFUSED),
    (missing_oldest, REFUSED),
    (missing_all_but_the_mark, REFUSED),
    (damaged_mark, WHOLE),
    (no_mark, WHOLE),
    (flipped_byte, REFUSED),
    (flipped_header, REFUSED),
    (flipped_byte_before_the_snapshot, OLD),
    (missing_snapshot, NOT_OF_LOGS),
    (damaged_snapshot, NOT_OF_LOGS),
    (bytes_behind_the_end, REFUSED),
    (log_of_another_store, REFUSED),
    (state_of_another_store, WHOLE),
    (empty_folder, NO_STORE),
    (foreign_folder, NO_STORE),
]


@pytest.mark.parametrize(("damage", "verdict"), TABLE, ids=[one.__name__ for one, _ in TABLE])
def test_commands_and_opening_agree(
    damage: Callable[[Path], None], verdict: Verdict, tmp_path: Path
) -> None:
    """The verdict of each, side by side."""
    folder = tmp_path / "store"
    make(folder)
    damage(folder)
    codes = {}
    for command in ("verify", "info", "cat"):
        result = CliRunner().invoke(app, [command, str(folder)])
        codes[command] = result.exit_code
    assert is_read(folder) == (verdict.cat == 0 and damage is not damaged_snapshot)
    shutil.rmtree(folder / "state", ignore_errors=True)
    assert Verdict(opens=opens(folder), **codes) == verdict


def is_read(folder: Path) -> bool:
    """Whether all that is there is read without a word."""
    try:
        return len(list(logweir.read(folder))) > 60
    except LogweirError:
        return False


def opens(folder: Path) -> bool:
    """Whether opening, without force, serves what is there."""
    try:
        log = logweir.open(folder, create=False)
    except LogweirError:
        return False
    with log:
        return 58 <= log.count("t") <= 60
