"""`logweir info`: what a log file, a snapshot or a folder holds."""

from __future__ import annotations

from pathlib import Path

from logweir.tools.cli.common import (
    PathArgument,
    existing,
    show_damage,
    utc_text,
)
from logweir.tools.cli.holdings import (
    ENDS,
    FolderHoldings,
    compiled_text,
    file_fields,
    folder_fields,
    lmdb_text,
    memtables_text,
    read_file,
    read_folder,
    space_fields,
    spark_reader_text,
)
from logweir.tools.cli.output import BOLD_RED, Output, human_bytes
from logweir.wal.lease import holders, leased
from logweir.wal.spacenames import SpaceNames
from logweir.wal.summary import FileSummary
from logweir.wal.vclock import VClock
from logweir.wal.xrow import type_name


def command(out: Output, path: PathArgument) -> int:
    """Show what a file or folder holds: kind, instance, vclock, rows, blocks, sizes, spaces.

    Exit code 3 if something in it is damaged, 1 if a folder holds neither a log nor a snapshot.
    """
    if existing(path).is_dir():
        who = holders(path)
        with leased(path):
            return _folder(out, path, who)
    summary, names = read_file(out, path)
    if out.as_json:
        out.json(file_fields(summary, names))
    else:
        _show_file(out, summary, names)
    show_damage(out, summary.damage)
    return 3 if summary.is_damaged else 0


def _clock_text(vclock: VClock) -> str:
    return f"{vclock}  signature {vclock.signature}"


def _show_file(out: Output, summary: FileSummary, names: SpaceNames) -> None:
    meta = summary.meta
    is_log = meta.kind == "XLOG"
    types = ", ".join(f"{rows} {type_name(one)}" for one, rows in summary.types.most_common())
    bad = out.styled("damaged inside", BOLD_RED) + ", "
    pairs: list[tuple[str, object]] = [
        ("file", summary.path),
        ("kind", f"{meta.kind} {meta.version}, written by {meta.program or 'unknown'}"),
        ("instance", meta.instance),
        ("vclock", _clock_text(meta.vclock)),
        ("up to", _clock_text(summary.vclock) if is_log else None),
        ("follows", meta.prev_vclock),
        ("size", f"{human_bytes(summary.size_bytes)}, unpacked {human_bytes(summary.raw_bytes)}"),
        ("blocks", f"{summary.plain_blocks} plain, {summary.zstd_blocks} zstd"),
        ("rows", f"{summary.rows} in {summary.transactions} transactions" if is_log else None),
        ("rows", None if is_log else summary.rows),
        ("types", types or None),
        ("from", utc_text(summary.first_time)),
        ("until", utc_text(summary.last_time)),
        ("end", (bad if summary.is_damaged else "") + ENDS[summary.end]),
    ]
    out.fields(pairs)
    _show_spaces(out, [summary], names)


def _show_spaces(out: Output, summaries: list[FileSummary], names: SpaceNames) -> None:
    spaces = space_fields(summaries, names)
    if spaces:
        out.line("")
        rows = [(space["id"], space["name"] or "", space["rows"]) for space in spaces]
        out.table(("space", "name", "rows"), rows, right=("space", "rows"))


def _unkept(names: SpaceNames) -> str:
    """The indexes by which logweir refuses to read, for people."""
    return ", ".join(
        f"index {name} of {names.show(space_id)} ({kind})"
        for (space_id, _), (name, kind) in sorted(names.unkept.items())
    )


def _folder(out: Output, path: Path, who: dict[int, int]) -> int:
    found = read_folder(out, path, who)
    if out.as_json:
        out.json(folder_fields(found))
    else:
        _show_folder(out, found)
    show_damage(out, found.report.damage, is_bad=True)
    show_damage(out, found.tails)
    return 0 if found.report.ok else 3


def _show_folder(out: Output, found: FolderHoldings) -> None:
    index, names, summaries, logs = found.index, found.names, found.summaries, found.logs
    newest = index.newest_snap()
    snaps = f"{len(index.snaps)}, newest {newest.path.name}" if newest else "none"
    log_bytes = sum(log.size_bytes for log in logs)
    vylogs = len(index.vylogs)
    pairs: list[tuple[str, object]] = [
        ("folder", index.path),
        ("instance", index.instance),
        ("vclock", _clock_text(found.vclock)),
        ("snapshots", snaps),
        ("logs", f"{len(logs)}, {sum(log.rows for log in logs)} rows, {human_bytes(log_bytes)}"),
        ("vinyl", f"{vylogs} vylog files, which logweir does not read" if vylogs else None),
        ("others", ", ".join(index.others) or None),
        ("not kept", _unkept(names) or None),
        (
            "read by",
            ", ".join(f"process {pid} from {at}" for pid, at in sorted(found.holders.items()))
            or None,
        ),
        ("kernels", compiled_text()),
        ("lmdb", lmdb_text()),
        ("memtables", memtables_text()),
        ("spark", spark_reader_text()),
    ]
    out.fields(pairs)
    lost = index.damage
    if summaries or lost:
        out.line("")
        columns = ("file", "size", "rows", "blocks", "vclock", "end")
        rows: list[tuple[object, ...]] = [
            (
                summary.path.name,
                human_bytes(summary.size_bytes),
                summary.rows,
                summary.blocks,
                summary.meta.vclock,
                out.styled("damaged", BOLD_RED) if summary.is_damaged else summary.end.value,
            )
            for summary in summaries
        ]
        rows += [
            (Path(one.file).name, "", "", "", "", out.styled(f"unusable: {one.kind}", BOLD_RED))
            for one in lost
        ]
        out.table(columns, rows, right=("size", "rows", "blocks"))
    _show_spaces(out, logs, names)
