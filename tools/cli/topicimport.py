"""`logweir topic import`: take the data folder of a Tank broker into a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import logweir
from logweir.tools.cli.common import existing
from logweir.tools.cli.output import Output

if TYPE_CHECKING:
    from logweir.replication.tank.follow.importer import ImportedPartition


def import_topics(out: Output, source: Path, directory: Path, topics: Sequence[str] = ()) -> int:
    """Take the broker's folder `source` into the store in `directory`, which is made if need be;
    `topics`: only these. Returns the exit code: 3 if something in it is damaged."""
    from logweir.replication.tank.follow.importer import import_folder

    existing(source)
    with logweir.open(directory) as log:
        found = import_folder(log, source, topics=topics)
    if out.as_json:
        out.json([_json(each) for each in found])
    else:
        out.table(
            ("topic", "partition", "bundles", "messages", "first", "last"),
            [(e.topic, e.partition, e.bundles, e.messages, e.first, e.last) for e in found],
            right=("partition", "bundles", "messages", "first", "last"),
        )
    damaged = False
    for each in found:
        for problem in each.problems:
            place = f"{problem.path} at byte {problem.offset}"
            size = f"{problem.size_bytes} bytes: " if problem.size_bytes else ""
            text = f"{place}: {problem.kind}: {size}{problem.message}"
            if problem.kind in ("torn", "config"):
                out.message(f"note: {text}")
            else:
                damaged = True
                out.warning(text)
    return 3 if damaged else 0


def _json(each: ImportedPartition) -> dict[str, object]:
    return {
        "kind": "tank",
        "topic": each.topic,
        "partition": each.partition,
        "bundles": each.bundles,
        "messages": each.messages,
        "first": str(each.first),
        "last": str(each.last),
        "problems": [
            {
                "kind": problem.kind,
                "file": str(problem.path),
                "offset": problem.offset,
                "bytes": problem.size_bytes,
                "first": None if problem.first is None else str(problem.first),
                "last": None if problem.last is None else str(problem.last),
                "message": problem.message,
            }
            for problem in each.problems
        ],
    }
