"""`logweir verify`: every check on a file or folder; never writes."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from logweir.errors import ConfigError
from logweir.recovery.examine import examine
from logweir.recovery.report import (
    FileReport,
    RecoveryReport,
    count_of_rows,
    damage_json,
    unfinished_json,
    vclock_json,
)
from logweir.recovery.single import examine_file
from logweir.tools.cli.common import PathArgument, existing, log_bytes
from logweir.tools.cli.output import BOLD_RED, Output, human_bytes
from logweir.tools.cli.verifystate import compare, show_state, state_json
from logweir.wal.damage import Damage
from logweir.wal.directory import no_store
from logweir.wal.filesystem import unopened
from logweir.wal.lease import leased


def command(
    out: Output,
    path: PathArgument,
    state: Annotated[
        bool,
        typer.Option(
            "--state",
            help="Also compare the state of the folder, which nobody may have open, with its log.",
        ),
    ] = False,
) -> int:
    """Check everything: headers, checksums, rows, transactions, order, and what follows what.

    Lists damage with file, byte and lsn. Never writes. Exit code 3 if anything is damaged, 1 if
    there is neither a log nor a snapshot. With --state every entry of every index is compared with
    what snapshot and log say; this takes as much room in the folder for temporary files (TMPDIR)
    as the state does.
    """
    if existing(path).is_dir():
        with unopened(path) if state else contextlib.nullcontext():
            return _folder(out, path, with_state=state)
    if state:
        raise ConfigError("state", f"{path} is a file; name the folder that it lies in")
    done = 0
    with out.progress("Checking", path.stat().st_size) as progress:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress(done)

        report = examine_file(path, progress=advance)
    if out.as_json:
        out.json(
            {
                "ok": not report.damage,
                "files": [report.to_json()],
                "damage": [damage_json(one) for one in report.damage],
                "vclock": vclock_json(report.last_vclock),
                "warnings": list(report.warnings),
                "holes": [],
                "unfinished": unfinished_json(report),
            }
        )
    else:
        _show(out, [report], report.damage, report.warnings, report)
    return 3 if report.damage else 0


def _folder(out: Output, path: Path, *, with_state: bool) -> int:
    with out.progress("Checking", log_bytes(path)) as progress, leased(path):
        report = examine(path, progress=lambda done, _: progress(done))
    if report.is_empty:
        raise no_store(path)
    state = compare(out, report) if with_state else None
    ok = report.ok and (state is None or state.ok)
    if out.as_json:
        also = {} if state is None else {"state": state_json(state)}
        out.json({**report.to_json(), "ok": ok, **also})
    else:
        _show(out, report.files, report.damage, report.warnings, report.unfinished)
        _show_verdict(out, report)
        if state is not None:
            show_state(out, state)
    return 0 if ok else 3


def _show(
    out: Output,
    files: Sequence[FileReport],
    damage: Sequence[Damage],
    warnings: Sequence[str],
    last: FileReport | None,
) -> None:
    if files:
        columns = ("file", "size", "blocks", "rows", "from", "up to", "end", "damage")
        counts = Counter(item.file for item in damage)
        rows = [
            (
                one.path.name,
                human_bytes(one.size),
                one.blocks,
                one.rows,
                one.first_vclock,
                one.last_vclock,
                "" if one.end is None else one.end.value,
                out.styled(str(bad), BOLD_RED) if (bad := counts[str(one.path)]) else "",
            )
            for one in files
        ]
        out.table(columns, rows, right=("size", "blocks", "rows", "damage"))
        out.line("")
    for one in damage:
        _show_damage(out, one)
    for text in warnings:
        out.message(f"note: {text}")
    if damage:
        out.line(f"{_count(len(damage), 'damaged place')}, {count_of_rows(tuple(damage))} lost")
    elif last is not None and last.tail is not None and not last.is_tail_known:
        tail = last.tail
        text = f"whole up to byte {tail.offset} of {last.path.name}; an unfinished write of "
        out.line(text + f"{tail.size} bytes after it, which may have been acknowledged")
    elif files:
        out.line("everything is whole")


def _show_verdict(out: Output, report: RecoveryReport) -> None:
    if report.blocking and all(one.rows_lost == 0 for one in report.blocking):
        out.line("the folder is not opened like that, though no row is lost: `repair` keeps them")
    elif report.blocking:
        lost = count_of_rows(report.blocking)
        out.line(f"the folder is not opened like that, since {lost} would be lost or doubted")
    elif report.damage:
        out.line("the folder can be opened: nothing that is damaged is needed for it")


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _show_damage(out: Output, damage: Damage) -> None:
    kind = out.styled(damage.kind.value, BOLD_RED)
    out.line(f"{kind} in {Path(damage.file).name} at byte {damage.offset}")
    out.line(f"    {damage.message}")
    if damage.lsn_before is not None or damage.lsn_after is not None:
        before = "the beginning" if damage.lsn_before is None else f"lsn {damage.lsn_before}"
        after = "the end" if damage.lsn_after is None else f"lsn {damage.lsn_after}"
        replica = "" if damage.replica_id is None else f" of replica {damage.replica_id}"
        lost = "" if damage.rows_lost is None else f", {_count(damage.rows_lost, 'row')} lost"
        out.line(f"    between {before} and {after}{replica}{lost}")
    if damage.hint:
        out.line(f"    {damage.hint}")
