"""What the reader in Java has to know of a task, as JSON (`jvm/Told.java` reads it).

=================  ===============================================================================
key                holds
=================  ===============================================================================
size               bytes of the task's files
verify             whether checksums are compared
rows, bytes        about so many make a batch
chosen             which rows are wanted, empty for all: `after` and `upto`, lsns of each replica
                   between which those of a log lie; `from` and `to`, their times; `spaces`, `types`
columns            of a space: each column and how it is made; else columns are made by their names
fields, key        of a space: the kind of each field, the field of each part of its key (-1: none)
ranges             path, name, number, whether it is a log, first byte, where it ends, size of the
                   file, whether that may end without its EOF marker, size of its header, and the
                   checksum of that
=================  ===============================================================================

Without `ranges` Python reads the task, as it does what is behind something that the reader in Java
stops at: a place where a block or a row is out of order, or too seldom.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

from logweir.limits import VCLOCK_COMPONENTS
from logweir.pipeline.options import ScanOptions, is_url
from logweir.pipeline.typedrows import typed_rows

if TYPE_CHECKING:
    from logweir.pipeline.plan import Range, Split

_LSN_MAX: Final = 2**63 - 1


def told(split: Split, options: ScanOptions, spaces: frozenset[int]) -> str:
    """The text for one split. `spaces`: ids of the wanted spaces."""
    said: dict[str, Any] = {
        "size": split.size,
        "verify": options.verify,
        "rows": options.batch_rows,
        "bytes": options.batch_bytes,
        "chosen": _chosen(options, spaces),
    }
    if options.space:
        said |= typed_rows(options).told()
    times = (options.time_from or 0.0, options.time_to or 0.0)
    if not split.damage and all(map(_is_plain, split.ranges)) and all(map(math.isfinite, times)):
        said["ranges"] = [_range(one, options) for one in split.ranges]
    return json.dumps(said, separators=(",", ":"))


def _is_plain(one: Range) -> bool:
    source = one.source
    ends = one.end == source.size
    return (
        not is_url(source.location)
        and one.exact
        and not (source.gap and one.start == source.first_block)
        and not (source.lost is not None and ends)
        and source.settled.is_all
        and source.looked
    )


def _range(one: Range, options: ScanOptions) -> list[Any]:
    source = one.source
    is_log = source.kind == "XLOG"
    is_open = is_log and source.following is None and options.live
    name = source.path.rpartition("/")[2]
    place = [source.path, name, source.number, is_log, one.start, one.end, source.size, is_open]
    return [*place, source.first_block, source.head]


def _chosen(options: ScanOptions, spaces: frozenset[int]) -> dict[str, Any]:
    after = [-1 if options.vclock_from is None else options.vclock_from.lsn(i) for i in _REPLICAS]
    upto = [_LSN_MAX if options.vclock_to is None else options.vclock_to.lsn(i) for i in _REPLICAS]
    if options.replica_id is not None:
        for i in _REPLICAS:
            if i != options.replica_id:
                after[i] = _LSN_MAX
        first, last = options.lsn_from or 0, options.lsn_to
        after[options.replica_id] = min(max(after[options.replica_id], first - 1), _LSN_MAX)
        upto[options.replica_id] = min(upto[options.replica_id], _LSN_MAX if last is None else last)
    found: dict[str, Any] = {
        "after": after if set(after) != {-1} else None,
        "upto": upto if set(upto) != {_LSN_MAX} else None,
        "from": options.time_from,
        "to": options.time_to,
        "spaces": sorted(spaces) or None,
        "types": options.types or None,
    }
    return {key: value for key, value in found.items() if value is not None}


_REPLICAS: Final = range(VCLOCK_COMPONENTS)
