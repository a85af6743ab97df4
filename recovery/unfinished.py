"""The mark of a folder that is being written: `logweir.unfinished`.

`restore` and `repair` write it first, make it durable, and remove it last. A folder that has it was
not finished: nothing opens it, `verify` says so, and what made it begins anew there when it is
started again. The file says in one line what was being made; a Tarantool passes over it.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Final

from logweir.wal.damage import Damage, DamageKind
from logweir.wal.filesystem import FileSystem
from logweir.wal.newfile import replace_file

UNFINISHED_NAME: Final = "logweir.unfinished"
_TEXT_BYTES: Final = 4096


def mark_unfinished(folder: Path, what: str, filesystem: FileSystem) -> None:
    """Say durably that `what` is being made in `folder`. Raises `OSError`."""
    replace_file(filesystem, folder / UNFINISHED_NAME, os.fsencode(f"{what}\n"))


def unmark(folder: Path, filesystem: FileSystem) -> None:
    """Say durably that the folder is whole. Raises `OSError`."""
    filesystem.remove(folder / UNFINISHED_NAME)
    filesystem.sync_directory(folder)


def unfinished_copy(folder: Path, filesystem: FileSystem) -> Damage:
    """What is wrong with a folder that has the mark. What was to be copied is where it was: no row
    is lost by it."""
    path = folder / UNFINISHED_NAME
    try:
        with closing(filesystem.open_read(path)) as file:
            what = file.read(_TEXT_BYTES, 0).decode(errors="backslashreplace").strip()
    except OSError:
        what = ""
    text = f"the folder is unfinished: {what or 'what was made here'} was broken off."
    hint = "do the same again, which begins anew here, or remove the folder"
    return Damage(DamageKind.UNFINISHED, str(path), 0, 0, text, rows_lost=0, hint=hint)
