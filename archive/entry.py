"""What says that an object is whole at its place. Bytes ↔ values; no I/O.

An object is a range of bytes of one file of a store, as it stands there. It counts only once its
entry is written, which is after it was read back::

    LOGWEIR-ARCHIVE 1
    Kind: tail
    Instance: 11111111-1111-4111-8111-111111111111
    File: 00000000000000000423.xlog
    Offset: 0
    Size: 5012
    SHA-256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    Start: {1: 423}
    VClock: {1: 436}
    Rows: 13
    First-Time: 1795206128.25
    Last-Time: 1795206131.5
    Archived: 1795206132.0
    Checksum: 04934c16

Lines end with one LF. `Kind`: `log`, a log that is closed, up to its end; `tail`, the next blocks
of a log that is still written to; `snapshot`. `Offset`, `Size`: bytes in the file. `Start`,
`VClock`: the state before the first and after the last row; of a snapshot the second is what it
contains. `First-Time`, `Last-Time`: the earliest and the latest row, in seconds since the epoch,
`-` without rows, and of snapshots, whose times prove nothing. `Checksum`: `wal.crc32c` of what is
before that line, 8 hexadecimal digits. There is one form for each value, and no other is read.
"""

from __future__ import annotations

import math
import re
import uuid
from dataclasses import dataclass
from typing import Final, Literal

from logweir.errors import DecodeError, LogweirError
from logweir.wal.crc32c import checksum
from logweir.wal.vclock import VClock

Kind = Literal["log", "tail", "snapshot"]

ENTRY_BYTES: Final = 8192
"""Longer ones are not read."""
_FIRST_LINE: Final = "LOGWEIR-ARCHIVE 1"
_KEYS: Final = (
    *("Kind", "Instance", "File", "Offset", "Size", "SHA-256", "Start", "VClock", "Rows"),
    *("First-Time", "Last-Time", "Archived"),
)
_SUFFIX: Final = {"log": "xlog", "tail": "xlog", "snapshot": "snap"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry; the fields are those of the text, times None for `-`."""

    kind: Kind
    instance: uuid.UUID
    file: str
    offset: int
    size: int
    sha256: str
    start: VClock
    vclock: VClock
    rows: int
    first_time: float | None
    last_time: float | None
    archived: float

    @property
    def end(self) -> int:
        """The byte behind the last one, in the file."""
        return self.offset + self.size

    @property
    def name(self) -> str:
        """What the object and its entry are called."""
        return (
            self.file if self.kind != "tail" else f"{self.file}.{self.offset:020d}-{self.end:020d}"
        )

    @property
    def signature(self) -> int:
        """The number in the name of the file."""
        return int(self.file.partition(".")[0])

    def encode(self) -> bytes:
        """The bytes of the entry."""
        values = (
            *(self.kind, self.instance, self.file, self.offset, self.size, self.sha256),
            *(self.start, self.vclock, self.rows),
            *("-" if one is None else repr(one) for one in (self.first_time, self.last_time)),
            repr(self.archived),
        )
        lines = [f"{key}: {value}\n" for key, value in zip(_KEYS, values, strict=True)]
        text = f"{_FIRST_LINE}\n{''.join(lines)}".encode()
        return text + f"Checksum: {checksum(text):08x}\n".encode()

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """Read the bytes of an entry. Raises `DecodeError`."""
        text, mark, sum_line = data.rpartition(b"Checksum: ")
        if not mark or sum_line != f"{checksum(text):08x}\n".encode():
            raise DecodeError("the checksum of the entry does not match", offset=len(text))
        try:
            found = cls._parsed(text.decode("ascii").split("\n"))
            is_same = found.encode() == data
        except (ValueError, OverflowError, LogweirError) as error:
            raise DecodeError(f"the entry cannot be read: {error}") from error
        if not is_same:
            raise DecodeError("the entry is not in the one form that there is")
        return found

    @classmethod
    def _parsed(cls, lines: list[str]) -> Entry:
        """Raises `ValueError` and its kinds, `LogweirError`."""
        pairs = [line.partition(": ") for line in lines[1:-1]]
        if lines[0] != _FIRST_LINE or tuple(key for key, _, _ in pairs) != _KEYS:
            raise ValueError(f"its form is not known: {lines[0][:40]!r}")
        values = {key: value for key, _, value in pairs}
        kind, file, size, digest = (values[key] for key in ("Kind", "File", "Size", "SHA-256"))
        if kind not in _SUFFIX or not re.fullmatch(rf"\d{{20}}\.{_SUFFIX[kind]}", file):
            raise ValueError(f"{file[:80]!r} is no file of kind {kind[:20]!r}")
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise ValueError(f"{digest[:80]!r} is no SHA-256")
        found = cls(
            kind=kind,  # type: ignore[arg-type]
            instance=uuid.UUID(values["Instance"]),
            file=file,
            offset=int(values["Offset"]),
            size=int(size),
            sha256=digest,
            start=VClock.parse(values["Start"]),
            vclock=VClock.parse(values["VClock"]),
            rows=int(values["Rows"]),
            first_time=_time(values["First-Time"]),
            last_time=_time(values["Last-Time"]),
            archived=float(values["Archived"]),
        )
        if found.offset and kind != "tail":
            raise ValueError("it does not begin at byte 0")
        if found.offset < 0 or found.size <= 0 or found.rows < 0:
            raise ValueError("a number is too small")
        if not found.vclock.covers(found.start) or not math.isfinite(found.archived):
            raise ValueError("it ends before it begins, or nobody knows when it was made")
        return found


def _time(text: str) -> float | None:
    value = None if text == "-" else float(text)
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{text!r} is no time")
    return value
