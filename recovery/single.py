"""Examining one file by itself, away from its folder. Reads only.

What is checked is what `recovery.logscan` checks. How the file stands to others is not: a log is
taken for the newest of its folder, so that an unfinished end is an ending, except for zeros in a
log that another program wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from logweir.errors import CorruptFile
from logweir.recovery.logscan import scan_log, scan_snapshot
from logweir.recovery.report import FileReport
from logweir.wal.directory import LogFile, Suffix
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.reader import WalReader


def examine_file(
    path: Path, *, filesystem: FileSystem = OS, progress: Callable[[int], None] | None = None
) -> FileReport:
    """Read one log or snapshot and say what it holds.

    `progress`: called with the number of bytes read since its last call. An unfinished write at the
    end is among the report's warnings. Raises `CorruptFile` if the text header cannot be used,
    `WalError` if the file cannot be opened.
    """
    with WalReader(path, filesystem=filesystem) as reader:
        meta, size = reader.meta, reader.size
    if meta.kind == "VYLOG":
        raise CorruptFile(
            "is vinyl metadata, which logweir does not read.",
            path=str(path),
            hint="name a log (.xlog) or a snapshot (.snap)",
        )
    suffix: Suffix = "snap" if meta.kind == "SNAP" else "xlog"
    file = LogFile(path, suffix, meta.vclock.signature, meta, size)
    scan = (scan_snapshot if suffix == "snap" else scan_log)(
        file, filesystem, progress or (lambda count: None)
    )
    report, tail = scan.report, scan.tail
    if tail is None:
        return report
    if scan.is_torn_in_order:
        return replace(report, warnings=(*report.warnings, str(tail)))
    return replace(report, damage=(*report.damage, tail))
