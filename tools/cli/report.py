"""`logweir report`: what a log file, a snapshot or a folder holds, as one page to look at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from logweir.errors import ConfigError, LogweirError
from logweir.tools.cli.common import PathArgument, existing, show_damage, utc_text
from logweir.tools.cli.holdings import (
    file_fields,
    folder_fields,
    read_file,
    read_folder,
)
from logweir.tools.cli.output import Output, human_bytes
from logweir.tools.cli.reportpage import page
from logweir.wal.columns import ABSENT
from logweir.wal.directory import scan_directory
from logweir.wal.filesystem import OS
from logweir.wal.lease import holders, leased
from logweir.wal.mp import unpack
from logweir.wal.newfile import check_output, new_output
from logweir.wal.reader import Block
from logweir.wal.render import to_json
from logweir.wal.spacenames import SpaceNames
from logweir.wal.summary import FileSummary
from logweir.wal.vclock import VClock, vclock_json
from logweir.wal.xrow import type_name

if TYPE_CHECKING:  # the store's engine, which `--help` and a wrong path do without
    from logweir.tools.cli.figures import Figures, Keys

_SHOWN_KEYS: Final = 50


def command(
    out: Output,
    path: PathArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The new file, a page of HTML."),
    ] = None,
) -> int:
    """Write a page that shows what a file or folder holds: files, damage, charts of its rows.

    The page is one file that loads nothing. --json prints the same numbers, without -o too. Memory
    is bounded: the keys that change most often are estimated, and the page says how well. Exit code
    3 if something is damaged, 1 if a folder holds neither a log nor a snapshot.
    """
    if output is None and not out.as_json:
        raise ConfigError("--output", "is missing.", hint="name the page: -o report.html")
    if output is not None:
        check_output(output)
    if existing(path).is_dir():
        who = holders(path)
        with leased(path):
            told = _folder(out, path, who)
    else:
        told = _file(out, path)
    if output is not None:
        with new_output(output) as temporary:
            temporary.write_text(page(told), "utf-8")
    if out.as_json:
        out.json(told)
    elif output is not None:
        out.line(f"{output}: {human_bytes(output.stat().st_size)}")
    return 0 if told["ok"] else 3


def _file(out: Output, path: Path) -> dict[str, Any]:
    from logweir.tools.cli.figures import Figures, Keys

    figures = Figures()
    summary, names = read_file(out, path, lambda _, block: figures.add(block.columns))
    show_damage(out, summary.damage)
    return {
        **file_fields(summary, names),
        "replicaset": None,
        "ok": not summary.is_damaged,
        "verdict": "",
        "warnings": [],
        **_figures_json(figures, names),
        "keys": _keys_json(Keys(None, "the report is of one file, not of a folder"), names),
    }


def _folder(out: Output, path: Path, who: dict[int, int]) -> dict[str, Any]:
    from logweir.tools.cli.figures import Figures

    figures = Figures()
    keys, begin = _keys(path)
    defined = keys.defined

    def each(summary: FileSummary, block: Block) -> None:
        if summary.meta.kind == "XLOG":
            figures.add(block.columns)
            if summary.meta.vclock.covers(begin):
                keys.add(block)

    found = read_folder(out, path, who, each)
    show_damage(out, found.report.damage, is_bad=True)
    show_damage(out, found.tails)
    replicaset = None if defined is None else defined.replicaset
    return {
        **folder_fields(found),
        "replicaset": None if replicaset is None else str(replicaset),
        "ok": found.report.ok,
        "verdict": found.report.verdict,
        "warnings": list(found.report.warnings),
        **_figures_json(figures, found.names),
        "keys": _keys_json(keys, found.names, None if defined is None else begin),
    }


def _keys(path: Path) -> tuple[Keys, VClock]:
    """What counts the keys of a folder's logs, and from which position on: that of its oldest
    snapshot, which defines what is a key."""
    from logweir.store.recover.defined import Defined
    from logweir.tools.cli.figures import Keys

    snaps = scan_directory(path).snaps
    if not snaps:
        return Keys(None, "there is no snapshot that defines the spaces"), VClock()
    defined = Defined()
    try:
        defined.begin(snaps[0].path, OS)
    except LogweirError as error:
        return Keys(None, f"the oldest snapshot cannot be read: {error.message}"), VClock()
    return Keys(defined), snaps[0].vclock


def _figures_json(figures: Figures, names: SpaceNames) -> dict[str, Any]:
    times = figures.intervals
    groups = sorted(figures.changes.items(), key=lambda item: (-item[1][1], item[0]))
    return {
        "intervals": {
            "seconds": times.width_ms / 1000,
            "untimed_rows": times.untimed_rows,
            "of": [
                {"from": utc_text(number * times.width_ms / 1000), "rows": rows, "bytes": size}
                for number, (rows, size) in _whole(times.sums)
            ],
        },
        "changes": [
            {
                "space": None if space_id == ABSENT else space_id,
                "name": names.get(space_id),
                "type": type_name(kind),
                "rows": rows,
                "bytes": size,
            }
            for (kind, space_id), (rows, size) in groups
        ],
        "other_changes": dict(zip(("rows", "bytes"), figures.others, strict=True)),
        "row_sizes": _powers(figures.sizes, "rows"),
        "transaction_sizes": _powers(figures.transactions, "transactions"),
        "largest_transaction": figures.largest,
    }


def _whole(sums: Mapping[int, list[int]]) -> list[tuple[int, list[int]]]:
    """All intervals from the first to the last, also those without a row."""
    if not sums:
        return []
    return [(one, sums.get(one, [0, 0])) for one in range(min(sums), max(sums) + 1)]


def _powers(counts: Mapping[int, int], what: str) -> list[dict[str, int]]:
    """Counts by bits as ranges: `from` … `to`, both included."""
    if not counts:
        return []
    return [
        {"from": 1 << bits >> 1, "to": (1 << bits) - 1, what: counts.get(bits, 0)}
        for bits in range(min(counts), max(counts) + 1)
    ]


def _keys_json(keys: Keys, names: SpaceNames, behind: VClock | None = None) -> dict[str, Any]:
    return {
        "behind": None if behind is None else vclock_json(behind),
        "rows": keys.rows,
        "left_out": keys.left_out,
        "too_low": keys.frequent.too_low,
        "why_not": keys.why_not,
        "most": [
            {
                "space": space_id,
                "name": names.get(space_id),
                "key": to_json(unpack(key)),
                "changes": count,
            }
            for (space_id, key), count in keys.frequent.most(_SHOWN_KEYS)
        ],
    }
