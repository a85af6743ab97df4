"""Whether what lies in the folder `state/` can be trusted, before LMDB sees any of it.

The file `epoch` holds one JSON object: `format`; `boot`, the boot id of the machine; `clean`,
whether `data.mdb` is as it was when a store was closed in order, then with `seal`; `damage`, what
was found wrong with it. It is written and synced after LMDB is closed and before LMDB is written
to again: opening and reading leave it alone.

* After an orderly close everything counts: the seal holds the size and the checksum of `data.mdb`,
  and what the system says of the file (number, times). Whatever is different is damage. Where the
  system says that nobody has written to the file since, a large one may be compared while it is
  already read, after a look at its structure: only a disk that returns other bytes than were
  written, inside of keys or values, can then be found late.
* After a process was killed the state is that of its last commit, for LMDB runs without sync but
  the system has all of it; unless the machine was started again since. What can be checked is the
  structure: see `store.state.lmdbfile`.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from logweir.limits import STATE_CHECK_BYTES
from logweir.store.schema import collation
from logweir.store.schema.keys import KEY_VERSION
from logweir.store.state import lmdbfile
from logweir.wal.crc32c import checksum
from logweir.wal.filesystem import NOT_NOW, FileSystem
from logweir.wal.newfile import replace_file

DATA_NAME: Final = "data.mdb"
LMDB_FILES: Final = (DATA_NAME, "lock.mdb")
_EPOCH_NAME: Final = "epoch"
_EPOCH_BYTES: Final = 64 * 1024
_STEP_BYTES: Final = 1024 * 1024


def state_format() -> str:
    """What must be the same for a state to be used again: its layout, and how keys are made."""
    return f"3/{KEY_VERSION}/{collation.version()}"


@dataclass(frozen=True, slots=True)
class Seal:
    """What was noted of `data.mdb` at an orderly close. `checksum`: of all its bytes; `file`: its
    number and the times of its last writing and change, in nanoseconds."""

    size: int
    checksum: int
    file: list[int]

    @classmethod
    def of(cls, directory: Path) -> Seal:
        """The seal for what is there now. Raises `OSError`."""
        path = directory / DATA_NAME
        return cls(path.stat().st_size, _checksum(path), _identity(path))

    def waits(self, directory: Path) -> bool:
        """Whether `damage` may be asked later: it takes long, and nobody wrote to the file."""
        return self.size > STATE_CHECK_BYTES and _identity(directory / DATA_NAME) == self.file

    def damage(self, directory: Path, stop: threading.Event | None = None) -> str:
        """What is wrong with `data.mdb`; "" for nothing, and where `stop` was set."""
        path = directory / DATA_NAME
        size = path.stat().st_size
        if size != self.size:
            return f"{DATA_NAME} has {size} bytes, at its orderly close it had {self.size}"
        found = _checksum(path, stop)
        if found != self.checksum and not (stop is not None and stop.is_set()):
            return f"{DATA_NAME} is not what it was at its orderly close: its checksum differs"
        return ""


def _checksum(path: Path, stop: threading.Event | None = None) -> int:
    """Of all bytes of a file; of some where `stop` is set."""
    found = 0
    buffer = bytearray(_STEP_BYTES)
    with path.open("rb", buffering=0) as file:
        while (count := file.readinto(buffer)) and not (stop is not None and stop.is_set()):
            found = checksum(memoryview(buffer)[:count], found)
    return found


def _identity(path: Path) -> list[int]:
    known = path.stat()
    return [known.st_ino, known.st_mtime_ns, known.st_ctime_ns]


def read_epoch(directory: Path, place: Path, filesystem: FileSystem) -> tuple[Seal | None, str]:
    """What there is, and why it cannot be used: "" if it can. A seal, with orderly closed ones.

    `place`: the same folder as LMDB is told it. The seal is not compared. Raises `OSError` if
    there is no folder, and one of `NOT_NOW`.
    """
    filesystem.list_directory(directory)
    try:
        with closing(filesystem.open_read(directory / _EPOCH_NAME)) as file:
            epoch = json.loads(file.read(_EPOCH_BYTES, 0))
        if epoch["format"] != state_format():
            return None, f"its format is {epoch['format']}, this version uses {state_format()}"
        if epoch.get("damage"):
            return None, str(epoch["damage"])
        if not (place / DATA_NAME).is_file():
            return None, f"{DATA_NAME} is not there"
        if linked := [name for name in LMDB_FILES if (place / name).is_symlink()]:
            return None, f"{linked[0]} is a symbolic link"
        if epoch["clean"] is True:
            return Seal(**epoch["seal"]), ""
        if epoch["boot"] != (filesystem.boot_id() or None):
            return None, "it was not closed before the machine was started again"
        return None, lmdbfile.damage(place / DATA_NAME)
    except FileNotFoundError as error:
        return None, f"{Path(error.filename).name} is not there"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno in NOT_NOW:
            raise
        return None, f"its file {_EPOCH_NAME!r} cannot be read: {type(error).__name__}: {error}"


def sync_data(directory: Path) -> None:
    """Have LMDB's file, which is closed, on stable storage. Raises `OSError`."""
    fd = os.open(directory / DATA_NAME, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_epoch(
    directory: Path, filesystem: FileSystem, seal: Seal | None, *, damage: str = ""
) -> None:
    """Note how things stand, synced. `seal`: of what was closed in order. Raises `OSError`."""
    epoch: dict[str, Any] = {"format": state_format(), "boot": filesystem.boot_id()}
    epoch["clean"] = seal is not None
    if seal is not None:
        epoch["seal"] = asdict(seal)
    if damage:
        epoch["damage"] = damage
    replace_file(filesystem, directory / _EPOCH_NAME, json.dumps(epoch).encode())
