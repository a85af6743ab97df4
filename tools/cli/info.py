"""`logweir info`: what a log file, a snapshot or a folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from logweir.errors import CorruptFile
from logweir.recovery.examine import examine
from logweir.recovery.report import damage_json, vclock_json
from logweir.store.state import memtable
from logweir.tools.cli.common import (
    PathArgument,
    existing,
    show_damage,
    utc_text,
)
from logweir.tools.cli.output import BOLD_RED, Output, human_bytes
from logweir.wal import kernel
from logweir.wal.damage import Damage, FileEnd
from logweir.wal.directory import DirectoryIndex, no_store, scan_directory
from logweir.wal.lease import holders, leased
from logweir.wal.spacenames import SpaceNames
from logweir.wal.summary import FileSummary, summarize_file
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

_ENDS = {
    FileEnd.CLEAN: "closed in order",
    FileEnd.UNCLOSED: "not closed (being written, or the writer was killed), nothing missing",
    FileEnd.TORN_TAIL: "an unfinished write",
    FileEnd.ZERO_TAIL: "zeros: room was reserved, data never arrived",
    FileEnd.UNSYNCED_TAIL: "pieces of the last, never synced write",
    FileEnd.TRAILING_BYTES: "bytes after the EOF marker",
    FileEnd.CORRUPT: "damaged",
}


def command(out: Output, path: PathArgument) -> int:
    """Show what a file or folder holds: kind, instance, vclock, rows, blocks, sizes, spaces.

    Exit code 3 if something in it is damaged, 1 if a folder holds neither a log nor a snapshot.
    """
    if existing(path).is_dir():
        who = holders(path)
        with leased(path):
            return _folder(out, path, who)
    names = SpaceNames.before(path)
    with out.progress("Reading", path.stat().st_size) as progress:
        summary = summarize_file(path, names=names, progress=progress)
    if out.as_json:
        out.json(_file_fields(summary, names))
    else:
        _show_file(out, summary, names)
    show_damage(out, summary.damage)
    return 3 if summary.is_damaged else 0


def _type_name(number: int) -> str:
    try:
        return RowType(number).name
    except ValueError:
        return str(number)


def _file_fields(summary: FileSummary, names: SpaceNames) -> dict[str, Any]:
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
        "types": {_type_name(number): rows for number, rows in sorted(summary.types.items())},
        "spaces": _space_fields([summary], names),
        "first_time": utc_text(summary.first_time),
        "last_time": utc_text(summary.last_time),
        "damage": [damage_json(damage) for damage in summary.damage],
    }


def _space_fields(summaries: list[FileSummary], names: SpaceNames) -> list[dict[str, Any]]:
    total: dict[int, int] = {}
    for summary in summaries:
        for space_id, rows in summary.spaces.items():
            total[space_id] = total.get(space_id, 0) + rows
    return [
        {"id": space_id, "name": names.get(space_id), "rows": rows}
        for space_id, rows in sorted(total.items())
    ]


def _clock_text(vclock: VClock) -> str:
    return f"{vclock}  signature {vclock.signature}"


def _show_file(out: Output, summary: FileSummary, names: SpaceNames) -> None:
    meta = summary.meta
    is_log = meta.kind == "XLOG"
    types = ", ".join(f"{rows} {_type_name(one)}" for one, rows in summary.types.most_common())
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
        ("end", (bad if summary.is_damaged else "") + _ENDS[summary.end]),
    ]
    out.fields(pairs)
    _show_spaces(out, [summary], names)


def _show_spaces(out: Output, summaries: list[FileSummary], names: SpaceNames) -> None:
    spaces = _space_fields(summaries, names)
    if spaces:
        out.line("")
        rows = [(space["id"], space["name"] or "", space["rows"]) for space in spaces]
        out.table(("space", "name", "rows"), rows, right=("space", "rows"))


def _folder(out: Output, path: Path, who: dict[int, int]) -> int:
    report = examine(path)
    if report.is_empty:
        raise no_store(path)
    index = scan_directory(path)
    names = SpaceNames()
    summaries: list[FileSummary] = []
    known = {(one.file, one.offset) for one in report.damage}
    tails: list[Damage] = []
    done = 0
    total = sum(file.size for file in index.files)
    with out.progress("Reading", total) as progress:
        for file in index.files:
            if file.suffix == "vylog":
                continue
            try:
                summary = summarize_file(file.path, names=names)
            except CorruptFile:
                continue  # it went away, or was damaged, since the folder was listed
            summaries.append(summary)
            tails += [one for one in summary.damage if (one.file, one.offset) not in known]
            done += summary.size_bytes
            progress(done)
    if out.as_json:
        out.json(_folder_fields(index, summaries, names, [*report.damage, *tails], who))
    else:
        _show_folder(out, index, summaries, names, who)
    show_damage(out, report.damage, is_bad=True)
    show_damage(out, tails)
    return 0 if report.ok else 3


def _reached(summaries: list[FileSummary]) -> VClock:
    reached = VClock()
    for summary in summaries:
        reached = reached.merge(summary.vclock)
    return reached


def _kernels() -> str:
    return "compiled" if kernel.COMPILED else "interpreted"


def _lmdb() -> str:
    """How the store calls LMDB, and which one."""
    from logweir.store.state import base

    return f"{base.BINDING} {'.'.join(map(str, base.VERSION))}"


def _memtables() -> str:
    return "compiled" if memtable.COMPILED else "interpreted"


def _folder_fields(
    index: DirectoryIndex,
    summaries: list[FileSummary],
    names: SpaceNames,
    damage: list[Damage],
    who: dict[int, int],
) -> dict[str, Any]:
    return {
        "path": str(index.path),
        "instance": None if index.instance is None else str(index.instance),
        "vclock": vclock_json(_reached(summaries)),
        "files": [_file_fields(summary, names) for summary in summaries],
        "others": index.others,
        "spaces": _space_fields(_logs(summaries), names),
        "unkept_indexes": [
            {"space": names.show(space_id), "index": name, "type": kind}
            for (space_id, _), (name, kind) in sorted(names.unkept.items())
        ],
        "damage": [damage_json(one) for one in damage],
        "leases": [{"pid": pid, "from": first} for pid, first in sorted(who.items())],
        "kernels": _kernels(),
        "lmdb": _lmdb(),
        "memtables": _memtables(),
    }


def _logs(summaries: list[FileSummary]) -> list[FileSummary]:
    return [summary for summary in summaries if summary.meta.kind == "XLOG"]


def _unkept(names: SpaceNames) -> str:
    """The indexes by which logweir refuses to read, for people."""
    return ", ".join(
        f"index {name} of {names.show(space_id)} ({kind})"
        for (space_id, _), (name, kind) in sorted(names.unkept.items())
    )


def _show_folder(
    out: Output,
    index: DirectoryIndex,
    summaries: list[FileSummary],
    names: SpaceNames,
    who: dict[int, int],
) -> None:
    logs = _logs(summaries)
    newest = index.newest_snap()
    snaps = f"{len(index.snaps)}, newest {newest.path.name}" if newest else "none"
    log_bytes = sum(log.size_bytes for log in logs)
    vylogs = len(index.vylogs)
    pairs: list[tuple[str, object]] = [
        ("folder", index.path),
        ("instance", index.instance),
        ("vclock", _clock_text(_reached(summaries))),
        ("snapshots", snaps),
        ("logs", f"{len(logs)}, {sum(log.rows for log in logs)} rows, {human_bytes(log_bytes)}"),
        ("vinyl", f"{vylogs} vylog files, which logweir does not read" if vylogs else None),
        ("others", ", ".join(index.others) or None),
        ("not kept", _unkept(names) or None),
        (
            "read by",
            ", ".join(f"process {pid} from {at}" for pid, at in sorted(who.items())) or None,
        ),
        ("kernels", _kernels()),
        ("lmdb", _lmdb()),
        ("memtables", _memtables()),
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
