"""`logweir import`: take another system's data folder into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import logweir
from logweir.replication.tank.follow.importer import ImportedPartition, import_folder
from logweir.tools.cli.common import existing
from logweir.tools.cli.output import Output


def command(
    out: Output,
    kind: Annotated[
        Literal["tank"], typer.Argument(metavar="KIND", help="What the folder is of: tank.")
    ],
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The data folder; nothing in it is changed.")
    ],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The store's folder.")],
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", help="Only this topic; may be repeated."),
    ] = None,
) -> int:
    """Take another system's data folder into a store, which is made if need be.

    tank: the data folder of a Tank broker that does not run: every topic, configuration and message
    number. Done again, it takes what is new. Exit code 3 if something in it is damaged: that is
    listed and left out, all else is taken.
    """
    existing(source)
    with logweir.open(directory) as log:
        found = import_folder(log, source, topics=topics or ())
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
