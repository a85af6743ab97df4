"""What a file or a folder of logs and snapshots holds, read once: for `info` and `report`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from logweir.errors import CorruptFile
from logweir.pipeline.sparkjar import spark_jar
from logweir.recovery.examine import examine
from logweir.recovery.report import RecoveryReport
from logweir.store.state import memtable
from logweir.tools.cli.common import utc_text
from logweir.tools.cli.output import Output
from logweir.wal import kernel
from logweir.wal.damage import Damage, FileEnd, damage_json
from logweir.wal.directory import DirectoryIndex, no_store, scan_directory
from logweir.wal.reader import Block
from logweir.wal.spacenames import SpaceNames
from logweir.wal.summary import FileSummary, summarize_file
from logweir.wal.vclock import VClock, vclock_json
from logweir.wal.xrow import type_name

Each = Callable[[FileSummary, Block], None]
"""Called with each block, and the summary so far of the file that it is of."""


ENDS: Final = {
    FileEnd.CLEAN: "closed in order",
    FileEnd.UNCLOSED: "not closed (being written, or the writer was killed), nothing missing",
    FileEnd.TORN_TAIL: "an unfinished write",
    FileEnd.ZERO_TAIL: "zeros: room was reserved, data never arrived",
    FileEnd.UNSYNCED_TAIL: "pieces of the last, never synced write",
    FileEnd.TRAILING_BYTES: "bytes after the EOF marker",
    FileEnd.CORRUPT: "damaged",
}
"""How a file ends, for people."""


@dataclass(slots=True)
class FolderHoldings:
    """A folder. `report`: what `verify` says of it; `names`: of its spaces; `summaries`: of the
    files that can be read, in their order; `tails`: what reading them told that `report` does not
    count as damage; `holders`: processes that keep files for themselves, and from which signature
    on."""

    index: DirectoryIndex
    report: RecoveryReport
    holders: dict[int, int]
    names: SpaceNames = field(default_factory=SpaceNames)
    summaries: list[FileSummary] = field(default_factory=list)
    tails: list[Damage] = field(default_factory=list)

    @property
    def logs(self) -> list[FileSummary]:
        """The summaries of the logs."""
        return [summary for summary in self.summaries if summary.meta.kind == "XLOG"]

    @property
    def vclock(self) -> VClock:
        """What the files reach."""
        reached = VClock()
        for summary in self.summaries:
            reached = reached.merge(summary.vclock)
        return reached

    @property
    def damage(self) -> list[Damage]:
        """All that was found."""
        return [*self.report.damage, *self.tails]


def read_file(out: Output, path: Path, each: Each | None = None) -> tuple[FileSummary, SpaceNames]:
    """One log or snapshot, and the names that hold in it. Errors: `summarize_file`."""
    names = SpaceNames.before(path)
    with out.progress("Reading", path.stat().st_size) as progress:
        return summarize_file(path, names=names, progress=progress, each=each), names


def read_folder(
    out: Output, path: Path, holders: dict[int, int], each: Each | None = None
) -> FolderHoldings:
    """A folder, which is leased. Raises `WalError` where there is neither log nor snapshot."""
    report = examine(path)
    if report.is_empty:
        raise no_store(path)
    index = scan_directory(path)
    found = FolderHoldings(index, report, holders)
    known = {(one.file, one.offset) for one in report.damage}
    done = 0
    total = sum(file.size for file in index.files)
    with out.progress("Reading", total) as progress:
        for file in index.files:
            if file.suffix == "vylog":
                continue
            try:
                summary = summarize_file(file.path, names=found.names, each=each)
            except CorruptFile:
                continue  # it went away, or was damaged, since the folder was listed
            found.summaries.append(summary)
            found.tails += [one for one in summary.damage if (one.file, one.offset) not in known]
            done += summary.size_bytes
            progress(done)
    return found


def file_fields(summary: FileSummary, names: SpaceNames) -> dict[str, Any]:
    """One file as `info --json` prints it."""
    meta = summary.meta
    return {
        "path": str(summary.path),
        "kind": meta.kind,
        "version": meta.version,
        "program": meta.program,
        "instance": None if meta.instance is None else str(meta.instance),
        "vclock": vclock_json(meta.vclock),
        "prev_vclock": None if meta.prev_vclock is None else vclock_json(meta.prev_vclock),
        "end_vclock": vclock_json(summary.vclock),
        "end": summary.end.value,
        "size_bytes": summary.size_bytes,
        "raw_bytes": summary.raw_bytes,
        "blocks": {"plain": summary.plain_blocks, "zstd": summary.zstd_blocks},
        "rows": summary.rows,
        "transactions": summary.transactions,
        "types": {type_name(number): rows for number, rows in sorted(summary.types.items())},
        "spaces": space_fields([summary], names),
        "first_time": utc_text(summary.first_time),
        "last_time": utc_text(summary.last_time),
        "damage": [damage_json(damage) for damage in summary.damage],
    }


def space_fields(summaries: list[FileSummary], names: SpaceNames) -> list[dict[str, Any]]:
    """Rows by space: `id`, `name` (None: not known), `rows`."""
    total: dict[int, int] = {}
    for summary in summaries:
        for space_id, rows in summary.spaces.items():
            total[space_id] = total.get(space_id, 0) + rows
    return [
        {"id": space_id, "name": names.get(space_id), "rows": rows}
        for space_id, rows in sorted(total.items())
    ]


def compiled_text() -> str:
    """How the kernels run."""
    return "compiled" if kernel.COMPILED else "interpreted"


def lmdb_text() -> str:
    """How the store calls LMDB, and which one."""
    from logweir.store.state import base

    return f"{base.BINDING} {'.'.join(map(str, base.VERSION))}"


def spark_reader_text() -> str:
    """What reads logs in Spark."""
    return "Python" if spark_jar() is None else "Java"


def memtables_text() -> str:
    """How the memtables run."""
    return "compiled" if memtable.COMPILED else "interpreted"


def folder_fields(found: FolderHoldings) -> dict[str, Any]:
    """A folder as `info --json` prints it."""
    return {
        "path": str(found.index.path),
        "instance": None if found.index.instance is None else str(found.index.instance),
        "vclock": vclock_json(found.vclock),
        "files": [file_fields(summary, found.names) for summary in found.summaries],
        "others": found.index.others,
        "spaces": space_fields(found.logs, found.names),
        "unkept_indexes": [
            {"space": found.names.show(space_id), "index": name, "type": kind}
            for (space_id, _), (name, kind) in sorted(found.names.unkept.items())
        ],
        "damage": [damage_json(one) for one in found.damage],
        "leases": [{"pid": pid, "from": first} for pid, first in sorted(found.holders.items())],
        "kernels": compiled_text(),
        "lmdb": lmdb_text(),
        "memtables": memtables_text(),
        "spark_reader": spark_reader_text(),
    }
