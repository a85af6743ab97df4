"""The end mark: a small file beside the logs that says how far they went.

A log names the one before it, never the one after it, so the logs themselves cannot tell that the
newest of them are gone. `logweir.end` can. It is replaced as a whole (written aside, synced,
renamed, folder synced) when a log is closed and when a snapshot is complete, never by a commit::

    LOGWEIR-END 1
    Instance: 11111111-1111-4111-8111-111111111111
    File: 00000000000000000423.xlog
    Offset: 5012
    VClock: {1: 436}
    Checksum: 04934c16

Lines end with one LF. `Checksum`: `wal.crc32c` of what is before that line, 8 hexadecimal digits.
`VClock` is what counts: the rows up to it were on stable storage when the mark was written, so a
folder whose snapshot and logs do not reach it has lost rows. `File` and `Offset` say where the last
of them stood. More rows than that are no matter: a crash leaves them, and so does a Tarantool,
which passes over the file, as it does over every name that is none of its own.
"""

from __future__ import annotations

import logging
import threading
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logweir.errors import DecodeError, LogweirError
from logweir.limits import END_MARK_BYTES
from logweir.wal.crc32c import checksum
from logweir.wal.filesystem import FileSystem
from logweir.wal.newfile import replace_file
from logweir.wal.vclock import VClock

END_MARK_NAME: Final = "logweir.end"
_LOGGER: Final = logging.getLogger("logweir")
_FIRST_LINE: Final = "LOGWEIR-END 1"
_KEYS: Final = ("Instance", "File", "Offset", "VClock", "Checksum")


@dataclass(frozen=True, slots=True)
class EndMark:
    """How far the log of `instance` went: `vclock`, the last row of which stood in `file` before
    byte `offset`."""

    instance: uuid.UUID
    file: str
    offset: int
    vclock: VClock

    def encode(self) -> bytes:
        """The bytes of the file."""
        text = (
            f"{_FIRST_LINE}\nInstance: {self.instance}\nFile: {self.file}\n"
            f"Offset: {self.offset}\nVClock: {self.vclock}\n"
        ).encode()
        return text + f"Checksum: {checksum(text):08x}\n".encode()

    @classmethod
    def decode(cls, data: bytes) -> EndMark:
        """Read the bytes of the file. Raises `DecodeError`."""
        text, mark, sum_line = data.rpartition(b"Checksum: ")
        if not mark or sum_line != f"{checksum(text):08x}\n".encode():
            raise DecodeError("the checksum does not match", offset=len(text))
        lines = text.decode("utf-8", "replace").split("\n")
        pairs = [line.partition(": ") for line in lines[1:-1]]
        if lines[0] != _FIRST_LINE or tuple(key for key, _, _ in pairs) != _KEYS[:-1]:
            raise DecodeError(f"no end mark of a form that is known: {lines[0][:40]!r}")
        instance, file, offset, vclock = (value for _, _, value in pairs)
        try:
            return cls(uuid.UUID(instance), file, int(offset), VClock.parse(vclock))
        except ValueError as error:
            raise DecodeError(str(error)) from error


def load_end_mark(directory: Path, filesystem: FileSystem) -> EndMark | str | None:
    """The end mark of a folder, None if there is none; why it says nothing, if it is damaged."""
    try:
        with closing(filesystem.open_read(directory / END_MARK_NAME)) as file:
            data = file.read(END_MARK_BYTES, 0)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    try:
        return EndMark.decode(data)
    except LogweirError as error:
        return f"is damaged: {error.message}"


class EndMarks:
    """Writes the end mark of one folder. Thread-safe: who closes a log and who ends a snapshot are
    two. The mark never goes back, but where the first of this process says so."""

    def __init__(self, directory: Path, instance: uuid.UUID, filesystem: FileSystem) -> None:
        self._directory = directory
        self._instance = instance
        self._filesystem = filesystem
        self._lock = threading.Lock()
        self._newest: VClock | None = None

    def put(self, path: Path, offset: int, vclock: VClock) -> None:
        """Say that everything up to `vclock` is on stable storage, the last of it in `path` before
        byte `offset`.

        The log is whole without it, so a disk that does not take it is only a warning: the mark
        that was there before still says less, but nothing wrong.
        """
        with self._lock:
            if self._newest is not None and self._newest.covers(vclock):
                return
            mark = EndMark(self._instance, path.name, offset, vclock)
            try:
                replace_file(
                    self._filesystem,
                    self._directory / END_MARK_NAME,
                    mark.encode(),
                    "endmark.before_rename",
                )
            except OSError as error:
                _LOGGER.warning("the end mark of %s was not written: %s", self._directory, error)
                return
            self._newest = vclock
