"""What an examination of a folder found, as values: reports never decide and never touch the disk.

`RecoveryReport.to_json` is the contract of ``verify --json``::

    {"ok": true, "files": [{"file", "kind", "size", "vclock", "end_vclock", "rows", "blocks",
     "transactions", "end", "end_offset"}, …],
     "damage": [{"kind", "file", "offset", "lsn_before", "lsn_after", "replica_id", "rows_lost",
     "message", "hint"}, …], "vclock": {"1": 115}, "warnings": ["…"],
     "holes": [{"after", "before", "rows"}, …],
     "unfinished": {"file", "offset", "size", "acknowledged"},
     "verdict": "…"}

Keys are only ever added. A hole is a record, in the header of a log that a repair wrote, of rows
that were lost before: the header item ``Hole: {1: 39} {1: 41}`` says that after the first vclock
nothing is known until the second, ``Hole: {1: 110} ?`` that what came after it is not known,
``Hole: {1: 110} {1: 361} ?`` that it is not known but surely ended before the second.
Readers other than logweir ignore header items that they do not know (Tarantool 2.6.0, observed).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from logweir.errors import DecodeError
from logweir.wal.damage import Damage, FileEnd, damage_json
from logweir.wal.directory import LogFile, Suffix
from logweir.wal.endmark import EndMark
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.meta import Meta
from logweir.wal.render import words
from logweir.wal.vclock import VClock, vclock_json
from logweir.wal.writer import AppendPoint

HOLE_ITEM: Final = "Hole"


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A place in the log between two blocks. `path`: name of the file in its folder; `offset`: of
    the next block, in bytes; `vclock`: the state after everything before it."""

    path: str
    offset: int
    vclock: VClock


@dataclass(frozen=True, slots=True)
class Hole:
    """Rows that a repair could not save: behind `after`, up to and including `before` (None: their
    number was not known). `is_bound`: so many at most, and no lsn in between is used again."""

    after: VClock
    before: VClock | None
    is_bound: bool = False

    @property
    def rows(self) -> int | None:
        """How many rows are missing, None if that is not known."""
        if self.before is None or self.is_bound:
            return None
        return self.before.signature - self.after.signature

    @property
    def sentence(self) -> str:
        """For people."""
        if self.rows is not None:
            count = words(self.rows, "row")
            return f"{count} between {self.after} and {self.before} lost before a repair."
        text = f"rows behind {self.after} were lost before a repair; how many is not known"
        return f"{text}." if self.before is None else f"{text}, none is behind {self.before}."

    def __str__(self) -> str:
        end = "" if self.before is None else f" {self.before}"
        return f"{self.after}{end}{' ?' if self.rows is None else ''}"

    def to_json(self) -> dict[str, Any]:
        """One element of `holes`."""
        before = None if self.before is None else vclock_json(self.before)
        return {"after": vclock_json(self.after), "before": before, "rows": self.rows}

    @classmethod
    def parse(cls, text: str) -> Hole:
        """Read the value of a header item. Raises `DecodeError`."""
        after, brace, before = text.partition("}")
        if not brace:
            raise DecodeError(f"hole {text[:80]!r} is not two vclocks")
        end, brace_of_end, mark = before.strip().rpartition("}")
        if mark.strip() not in ("", "?") or not (mark or end):
            raise DecodeError(f"hole {text[:80]!r} does not end with a vclock or a question mark")
        known = VClock.parse(end + brace_of_end) if end else None
        return cls(VClock.parse(after + brace), known, known is not None and bool(mark))

    @classmethod
    def in_header(cls, meta: Meta) -> list[Hole]:
        """The holes that a header records. Raises `DecodeError`."""
        return [cls.parse(value) for key, value in meta.unknown if key == HOLE_ITEM]

    @classmethod
    def before_log(cls, meta: Meta, reached: VClock) -> Hole | None:
        """What the header `meta` says of rows lost between `reached` and its begin, if it does."""
        holes = cls(reached, meta.vclock), cls(reached, meta.vclock, is_bound=True)
        return next((hole for hole in holes if (HOLE_ITEM, str(hole)) in meta.unknown), None)


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file. `meta`: None if the header cannot be used; `first_vclock`, `last_vclock`: before
    the first and after the last row (of a snapshot: what it contains); `end`: None if nothing
    was read; `end_offset`: where the last whole block ends; `unsynced_offset`: from where on what
    was read may not be on stable storage, if logweir wrote it; `damage`: what is wrong inside;
    `tail`: its unfinished end, if it has one; `header_is_lost`: `meta` is not the file's own
    (`recovery.headerless`)."""

    path: Path
    kind: Suffix
    meta: Meta | None
    size: int
    first_vclock: VClock = field(default_factory=VClock)
    last_vclock: VClock = field(default_factory=VClock)
    rows: int = 0
    blocks: int = 0
    transactions: int = 0
    first_timestamp: float | None = None
    last_timestamp: float | None = None
    end: FileEnd | None = None
    end_offset: int = 0
    unsynced_offset: int = 0
    damage: tuple[Damage, ...] = ()
    warnings: tuple[str, ...] = ()
    tail: Damage | None = None
    header_is_lost: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether logweir wrote it."""
        return self.meta is not None and self.meta.is_ours

    @property
    def is_tail_known(self) -> bool:
        """Whether nothing of the unfinished end, if there is one, was ever acknowledged."""
        return self.tail is None or (self.meta is not None and self.meta.is_synced)

    @property
    def log_file(self) -> LogFile | None:
        """The file as the index of a folder names it, None if its header cannot be used."""
        if self.meta is None:
            return None
        signature = self.meta.vclock.signature
        return LogFile(self.path, self.kind, signature, self.meta, self.size)

    def to_json(self) -> dict[str, Any]:
        """One element of `files`."""
        return {
            "file": self.path.name,
            "kind": self.kind,
            "size": self.size,
            "vclock": vclock_json(self.first_vclock),
            "end_vclock": vclock_json(self.last_vclock),
            "rows": self.rows,
            "blocks": self.blocks,
            "transactions": self.transactions,
            "end": None if self.end is None else self.end.value,
            "end_offset": self.end_offset,
        }


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a folder holds and what is wrong with it.

    `files`: those that were read, by name; `damage`: everything that is wrong; `blocking`: the part
    of it that opening from `snapshot` would lose or doubt; `unforceable`: the part of that which
    `force` does not pass either; `snapshot`: the newest whole one, None if there is none; `xlogs`:
    usable logs, oldest first; `vclock`: the end of the log, all rows counted; `append_point`: where
    a writer goes on; `since`: where reading began, None for the whole folder (then what is older
    was not looked at); `holes`: rows that an earlier repair lost; `end_mark`: how far the log went,
    by the mark beside it, where that is this log's; `silent_mark`: why the mark that is there says
    nothing, which is one of the `warnings`, else "".
    """

    directory: Path
    instance: uuid.UUID | None
    files: tuple[FileReport, ...]
    damage: tuple[Damage, ...]
    blocking: tuple[Damage, ...]
    unforceable: tuple[Damage, ...]
    warnings: tuple[str, ...]
    snapshot: LogFile | None
    xlogs: tuple[LogFile, ...]
    vclock: VClock
    append_point: AppendPoint
    since: LogPosition | None = None
    holes: tuple[Hole, ...] = ()
    end_mark: EndMark | None = None
    silent_mark: str = ""
    others: tuple[str, ...] = ()
    filesystem: FileSystem = field(default=OS, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether nothing at all is damaged. See `blocking` for whether it can be opened."""
        return not self.damage

    @property
    def is_empty(self) -> bool:
        """Whether there is no snapshot and no log, good or damaged: a fresh folder."""
        return self.snapshot is None and not self.xlogs and not self.damage

    @property
    def unfinished(self) -> FileReport | None:
        """The newest log, if its end is an unfinished write; older ones lost nothing by theirs."""
        newest = self.file(self.xlogs[-1].path) if self.xlogs else None
        return newest if newest is not None and newest.tail is not None else None

    @property
    def lost(self) -> str:
        """What opening would lose, in one sentence; "" for nothing."""
        if not self.blocking:
            return ""
        first = self.blocking[0]
        where = f"{first.file} at byte {first.offset}"
        if first.lsn_before is not None:
            where += f", after lsn {first.lsn_before}"
            if first.replica_id is not None:
                where += f" of replica {first.replica_id}"
        more = len(self.blocking) - 1
        others = f" (and {words(more, 'more damaged place')})" if more else ""
        lost = count_of_rows(one.rows_lost for one in self.blocking)
        return f"{lost} would be lost or doubted: {where}{others}"

    @property
    def verdict(self) -> str:
        """Whether damage keeps the folder from being opened, in one sentence; "" for none."""
        lost = [one.rows_lost for one in self.blocking]
        if lost and not any(count != 0 for count in lost):
            return "the folder is not opened like that, though no row is lost: `repair` keeps them"
        if lost:
            rows = count_of_rows(lost)
            return f"the folder is not opened like that, since {rows} would be lost or doubted"
        if self.damage:
            return "the folder can be opened: nothing that is damaged is needed for it"
        return ""

    @property
    def lost_at_end(self) -> tuple[Damage, ...]:
        """The part of `blocking` that may have cost rows behind the last one that was found."""
        return tuple(one for one in self.blocking if self._is_at_end(one))

    @property
    def lsn_reserve(self) -> int:
        """The bytes lost behind the last row, so more than the rows there: a writer that skips as
        many lsns never uses one twice."""
        return sum(self.damaged_bytes(one) for one in self.lost_at_end)

    def _is_at_end(self, damage: Damage) -> bool:
        if damage.rows_lost is not None or not damage.file.endswith(".xlog"):
            return False
        path = Path(damage.file)
        if path not in [log.path for log in self.xlogs]:
            return int(path.name.split(".")[0]) >= self.vclock.signature
        report = self.file(path)
        is_newest = path == self.xlogs[-1].path
        return is_newest and report is not None and damage.offset >= report.end_offset

    def damaged_bytes(self, damage: Damage) -> int:
        """Bytes of a damaged place; of the whole file where its header cannot be used."""
        file = self.file(Path(damage.file))
        return max(damage.size, 0 if file is None or file.meta is not None else file.size)

    def file(self, path: Path) -> FileReport | None:
        """The report of one file, None if it was not read."""
        return next((one for one in self.files if one.path == path), None)

    def to_json(self) -> dict[str, Any]:
        """What ``verify --json`` prints."""
        return {
            "ok": self.ok,
            "files": [one.to_json() for one in self.files],
            "damage": [damage_json(one) for one in self.damage],
            "vclock": vclock_json(self.vclock),
            "warnings": list(self.warnings),
            "holes": [hole.to_json() for hole in self.holes],
            "unfinished": unfinished_json(self.unfinished),
            "verdict": self.verdict,
        }


def unfinished_json(file: FileReport | None) -> dict[str, Any] | None:
    """The unfinished write at a file's end as a JSON object."""
    if file is None or file.tail is None:
        return None
    return {
        "file": file.path.name,
        "offset": file.tail.offset,
        "size": file.tail.size,
        "acknowledged": False if file.is_tail_known else None,
    }


def count_of_rows(lost: Iterable[int | None]) -> str:
    """How many rows some damaged places have lost, in words. None: nobody knows of one of them."""
    counts = list(lost)
    known = sum(count or 0 for count in counts)
    if None not in counts:
        return words(known, "row")
    return f"at least {words(known, 'row')}" if known else "an unknown number of rows"
