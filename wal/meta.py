"""The text header of log files and snapshots. Bytes ↔ values; no I/O.

Lines end with one LF. First the kind (`XLOG`, `SNAP`, `VYLOG`), then the format version, then
`Key: value` lines, then an empty line.

=============  =================================================================================
key            meaning
=============  =================================================================================
`Version`      the program that wrote it; ignored by readers. Of a log of logweir's it ends with
               ` (fsync)` where each write was synced before it was acknowledged
`Instance`     UUID of the instance, 36 letters, lower case; `Server` is a synonym (0.12 files)
`VClock`       of an xlog: the state before its first row; of a snap: the state it contains
`PrevVClock`   xlog only: `VClock` of the xlog before it, where the writer knew one
=============  =================================================================================

Written in that order. Versions 0.12 and 0.13 are read, anything else is an error; blanks and tabs
after the colon are skipped; a line without a colon is an error; unknown keys are kept.
The header is at most `limits.META_BYTES` long. Source: Tarantool 2.6.0, observed and `xlog.c`.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, cast

from logweir.errors import DecodeError
from logweir.limits import META_BYTES
from logweir.wal.vclock import VClock

FileKind = Literal["XLOG", "SNAP", "VYLOG"]
FILE_KINDS: Final = ("XLOG", "SNAP", "VYLOG")
SYNCED: Final = " (fsync)"
"""At the end of `Version`: see `Meta.is_synced`."""
VERSIONS: Final = ("0.12", "0.13")

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True, slots=True)
class Meta:
    """One header. `instance` is None, and `vclock` empty, where the file does not give them."""

    kind: FileKind
    vclock: VClock
    instance: uuid.UUID | None = None
    prev_vclock: VClock | None = None
    program: str = ""
    version: str = "0.13"
    unknown: tuple[tuple[str, str], ...] = field(default=())

    @property
    def is_ours(self) -> bool:
        """Whether logweir wrote the file."""
        return self.program.startswith("logweir")

    @property
    def is_synced(self) -> bool:
        """Whether its writer surely synced each write before it answered, so that nobody was told
        that an unfinished write is there."""
        return self.is_ours and self.program.endswith(SYNCED)

    def encode(self) -> bytes:
        """The header's bytes, the empty line included."""
        lines = [self.kind, self.version, f"Version: {self.program}"]
        if self.instance is not None:
            lines.append(f"Instance: {self.instance}")
        lines.append(f"VClock: {self.vclock}")
        if self.prev_vclock is not None:
            lines.append(f"PrevVClock: {self.prev_vclock}")
        lines += [f"{key}: {value}" for key, value in self.unknown]
        return ("\n".join(lines) + "\n\n").encode("utf-8", "surrogateescape")


@lru_cache(16)  # the files of a folder name the same one
def parse_uuid(text: str) -> uuid.UUID | None:
    """An UUID in its usual form; None for another."""
    return None if _UUID.fullmatch(text) is None else uuid.UUID(text)


_vclock = lru_cache(64)(VClock.parse)  # each stands in the next log, too


def decode_meta(data: bytes) -> tuple[Meta, int]:
    """Read a header from the first bytes of a file.

    `data`: the file's first `limits.META_BYTES` bytes, or all of a shorter file. Returns the
    header and its length in bytes. Raises `DecodeError` with the byte where it goes wrong.
    """
    end = data.find(b"\n\n", 0, META_BYTES)
    if end < 0:
        if not data:
            raise DecodeError("the file is empty", offset=0)
        raise DecodeError(
            "no empty line ends the text header: cut short, or not a log or snapshot",
            offset=min(len(data), META_BYTES),
        )
    lines = data[:end].decode("utf-8", "surrogateescape").split("\n")
    if lines[0] not in FILE_KINDS:
        raise DecodeError(f"first line is {lines[0][:20]!r}, not XLOG, SNAP or VYLOG", offset=0)
    if len(lines) < 2 or lines[1] not in VERSIONS:
        got = lines[1][:20] if len(lines) > 1 else ""
        raise DecodeError(f"format version is {got!r}, not 0.12 or 0.13", offset=len(lines[0]) + 1)
    program, instance = "", None
    vclock: VClock | None = None
    prev_vclock: VClock | None = None
    unknown: list[tuple[str, str]] = []
    for number in range(2, len(lines)):
        line = lines[number]
        key, colon, value = line.partition(":")
        value = value.lstrip(" \t")
        if not colon:
            text = f"header line {line[:40]!r} has no colon"
            raise DecodeError(text, offset=_offset(lines, number))
        if key == "Version":
            program = value
        elif key in ("Instance", "Server"):
            instance = parse_uuid(value)
            if instance is None:
                text = f"{key} {value[:40]!r} is not a UUID"
                raise DecodeError(text, offset=_offset(lines, number))
        elif key in ("VClock", "PrevVClock"):
            try:
                clock = _vclock(value)
            except DecodeError as error:
                at = _offset(lines, number) + (error.offset or 0)
                raise DecodeError(f"{key}: {error.reason}", offset=at) from error
            if key == "VClock":
                vclock = clock
            else:
                prev_vclock = clock
        else:
            unknown.append((key, value))
    meta = Meta(
        kind=cast(FileKind, lines[0]),
        version=lines[1],
        program=program,
        instance=instance,
        vclock=VClock() if vclock is None else vclock,
        prev_vclock=prev_vclock,
        unknown=tuple(unknown),
    )
    return meta, end + 2


def _offset(lines: list[str], number: int) -> int:
    """Where a line of a header begins, in bytes."""
    return sum(len(line.encode("utf-8", "surrogateescape")) + 1 for line in lines[:number])
