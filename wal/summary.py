"""What one log file or snapshot holds, counted in one pass over it, in constant memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from logweir.wal.columns import ABSENT
from logweir.wal.damage import TAIL_KINDS, Damage, DamageKind, FileEnd
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.meta import Meta
from logweir.wal.reader import Block, WalReader
from logweir.wal.spacenames import SpaceNames
from logweir.wal.vclock import VClock


@dataclass(slots=True)
class FileSummary:
    """The counts of one file.

    `size_bytes`: of the file; `raw_bytes`: of its rows, unpacked; `vclock`: after its last row (of
    a snapshot: the one in its header); `first_time`, `last_time`: seconds since the epoch of the
    earliest and the latest row, None without rows; `types`: rows by type number; `spaces`: rows by
    space id; `damage`: what the reader reported, in the order of the file.
    """

    path: Path
    meta: Meta
    size_bytes: int
    end: FileEnd = FileEnd.UNCLOSED
    vclock: VClock = field(default_factory=VClock)
    plain_blocks: int = 0
    zstd_blocks: int = 0
    rows: int = 0
    transactions: int = 0
    raw_bytes: int = 0
    first_time: float | None = None
    last_time: float | None = None
    types: Counter[int] = field(default_factory=Counter)
    spaces: Counter[int] = field(default_factory=Counter)
    damage: list[Damage] = field(default_factory=list)

    @property
    def blocks(self) -> int:
        """All blocks."""
        return self.plain_blocks + self.zstd_blocks

    @property
    def is_damaged(self) -> bool:
        """Whether there is damage other than an unfinished last write."""
        return any(damage.kind not in TAIL_KINDS for damage in self.damage)

    def _add(self, block: Block) -> None:
        columns = block.columns
        if block.header.kind == "zstd":
            self.zstd_blocks += 1
        else:
            self.plain_blocks += 1
        self.raw_bytes += len(block.data)
        self.rows += len(columns)
        self.transactions += len(columns.transaction_ends())
        self.types.update(columns.type.tolist())
        self.spaces.update(columns.space_id.tolist())
        times = columns.timestamp.tolist()
        if times:
            first, last = min(times), max(times)
            self.first_time = first if self.first_time is None else min(first, self.first_time)
            self.last_time = last if self.last_time is None else max(last, self.last_time)

    def _check_snap(self, end_offset: int) -> None:
        """A snapshot is written whole or not at all: one without its EOF marker is damaged."""
        if self.end is not FileEnd.CLEAN:
            text = f"a snapshot that is not complete ({self.end.value}): its EOF marker is missing."
            hint = "start from an older snapshot: `logweir verify` on the folder shows which"
            left = self.size_bytes - end_offset
            path = str(self.path)
            self.damage = [Damage(DamageKind.NO_EOF, path, end_offset, left, text, hint=hint)]


def summarize_file(
    path: Path,
    *,
    filesystem: FileSystem = OS,
    names: SpaceNames | None = None,
    progress: Callable[[int], None] | None = None,
    each: Callable[[FileSummary, Block], None] | None = None,
) -> FileSummary:
    """Read a whole file and count. Goes on behind damage.

    `names`: learns the names of spaces that the file defines; `progress`: called with the bytes
    read so far; `each`: with what is counted so far, and the block that was counted last. Raises
    `CorruptFile` where the text header cannot be used, `WalError` if the file cannot be read.
    """
    with WalReader(path, filesystem=filesystem, skip_damage=True) as reader:
        summary = FileSummary(path, reader.meta, reader.size)
        for item in reader.blocks():
            if isinstance(item, Damage):
                summary.damage.append(item)
                continue
            summary._add(item)
            if names is not None:
                names.learn(item.columns)
            if each is not None:
                each(summary, item)
            if progress is not None:
                progress(item.end)
        summary.spaces.pop(ABSENT, None)
        summary.end = reader.end or FileEnd.CORRUPT
        if reader.meta.kind == "SNAP" and not summary.is_damaged:
            summary._check_snap(reader.end_offset)
        summary.vclock = reader.vclock if reader.meta.kind == "XLOG" else reader.meta.vclock
    return summary
