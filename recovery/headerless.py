"""Logs whose text header is damaged: what they hold, told from their rows and their name.

A header is a few hundred bytes in front of what may be 256 MiB of whole blocks. An opening, also a
forced one, ignores such a file as Tarantool does; a repair takes its rows where everything that is
left says that they belong here:

* the number in the name is the signature of the vclock at which the log before it ends, or of a
  whole snapshot: so that is the `VClock` that its header had;
* its first row is the very next one, and no lsn in it comes twice;
* if an instance can still be read in its first bytes, it is the folder's.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from logweir.limits import META_BYTES
from logweir.recovery.logscan import LogScan, Progress, scan_log
from logweir.wal.damage import DamageKind
from logweir.wal.directory import LogFile
from logweir.wal.filesystem import FileSystem
from logweir.wal.meta import Meta
from logweir.wal.vclock import VClock

_INSTANCE: Final = re.compile(rb"Instance: ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\n")


def scan_headerless(
    path: Path,
    starts: Iterable[VClock],
    instance: uuid.UUID | None,
    filesystem: FileSystem,
    progress: Progress,
) -> LogScan | None:
    """Read a log whose header cannot be used; None if its rows are not to be trusted.

    `starts`: vclocks at which it may begin; `instance`: the folder's.
    """
    signature = int(path.name.split(".")[0])
    start = next((one for one in starts if one.signature == signature), None)
    head, size = _head(path, filesystem)
    named = _INSTANCE.search(head)
    if start is None or (named and uuid.UUID(named[1].decode()) != instance):
        return None
    log = LogFile(path, "xlog", signature, Meta("XLOG", start, instance), size)
    scan = scan_log(log, filesystem, progress, header_is_lost=True)
    if scan.first_row is None or scan.first_row[1] != start.lsn(scan.first_row[0]) + 1:
        return None
    if any(one.damage.kind is DamageKind.ORDER for one in scan.located):
        return None
    return replace(scan, report=replace(scan.report, header_is_lost=True))


def _head(path: Path, filesystem: FileSystem) -> tuple[bytes, int]:
    """The first bytes of a file and its size; nothing if it cannot be read."""
    try:
        with closing(filesystem.open_read(path)) as file:
            return file.read(META_BYTES, 0), file.size()
    except OSError:
        return b"", 0
