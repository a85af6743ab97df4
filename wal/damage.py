"""What a reader reports instead of raising: the end of a file, and damage in it.

A reader never decides what damage means. It says what it saw; `recovery` and the callers of
`logweir.read` decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from logweir.errors import CorruptBlock


class FileEnd(StrEnum):
    """How a file ends, as a reader saw it."""

    CLEAN = "clean"
    """The EOF marker is its last 4 bytes: it was closed in order."""

    UNCLOSED = "unclosed"
    """It ends right after a whole block: the writer was stopped; nothing is missing."""

    TORN_TAIL = "torn_tail"
    """The last block is cut short and nothing valid follows: an unfinished write."""

    ZERO_TAIL = "zero_tail"
    """Nothing but zeros from some block to the end: space was given, data never arrived."""

    UNSYNCED_TAIL = "unsynced_tail"
    """Pieces of the last, never synced write are missing (512-byte sectors of zeros)."""

    TRAILING_BYTES = "trailing_bytes"
    """Something stands after the EOF marker."""

    CORRUPT = "corrupt"
    """Damage inside: see the damage that the reader reported."""


class DamageKind(StrEnum):
    """What is wrong at one place of a file."""

    HEADER = "header"
    """The text header cannot be used, so nothing of the file can."""

    CHECKSUM = "checksum"
    """A block's payload does not match its checksum."""

    MAGIC = "magic"
    """Where a block should begin there is something else."""

    BLOCK_HEADER = "block_header"
    """A block begins, but its fixed header makes no sense."""

    LENGTH = "length"
    """A block's length field is wrong (other bytes prove it); its rows may be whole."""

    COMPRESSION = "compression"
    """The checksum matches but the zstd frame cannot be unpacked."""

    ROWS = "rows"
    """The checksum matches but the rows cannot be read."""

    TOO_LARGE = "too_large"
    """A block is larger than `limits.BLOCK_RAW_BYTES`."""

    TORN_TAIL = "torn_tail"
    ZERO_TAIL = "zero_tail"
    UNSYNCED_TAIL = "unsynced_tail"
    """The three kinds of an unfinished end: see `FileEnd`."""

    TRAILING_BYTES = "trailing_bytes"
    """Bytes after the EOF marker."""

    NO_EOF = "no_eof"
    """A snapshot without its EOF marker is not complete."""

    UNREADABLE = "unreadable"
    """The system could not read the file here."""

    GAP = "gap"
    """A file is missing between two others, or the older one lost rows at its end."""

    FOREIGN = "foreign"
    """The file belongs to another instance."""

    NAME = "name"
    """The file's name does not say what its header says."""

    ORDER = "order"
    """Two files' vclocks do not follow one another, or an lsn comes twice."""

    MISSING_END = "missing_end"
    """The log ends before the place that the end mark names."""

    MISSING_SNAPSHOT = "missing_snapshot"
    """There is no snapshot to start from."""

    UNFINISHED = "unfinished"
    """A restore or repair that was to write the folder was broken off."""


TAIL_KINDS = frozenset({DamageKind.TORN_TAIL, DamageKind.ZERO_TAIL, DamageKind.UNSYNCED_TAIL})


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged place.

    `file`: path; `offset`: where it begins, in bytes; `size`: bytes until reading can go on, or to
    the file's end; `replica_id`, `lsn_before`, `lsn_after`: the rows next to it, None if unknown;
    `rows_lost`: how many, None if that cannot be known; `salvage`: bytes of the payload whose
    checksum matches although the length field does not, (0, 0) if none; `message` says what was
    seen, `hint` what to do.
    """

    kind: DamageKind
    file: str
    offset: int
    size: int
    message: str
    hint: str = ""
    replica_id: int | None = None
    lsn_before: int | None = None
    lsn_after: int | None = None
    rows_lost: int | None = None
    salvage: tuple[int, int] = (0, 0)

    def to_error(self) -> CorruptBlock:
        """The same as an error to raise."""
        return CorruptBlock(self.message, path=self.file, offset=self.offset, hint=self.hint)

    def __str__(self) -> str:
        return f"{self.file} at byte {self.offset}: {self.message}"


def damage_json(damage: Damage) -> dict[str, Any]:
    """One damaged place as a JSON object."""
    return {
        "kind": damage.kind.value,
        "file": damage.file,
        "offset": damage.offset,
        "lsn_before": damage.lsn_before,
        "lsn_after": damage.lsn_after,
        "replica_id": damage.replica_id,
        "rows_lost": damage.rows_lost,
        "message": damage.message,
        "hint": damage.hint,
    }
