"""`logweir verify`: every check on a file or folder; never writes."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from logweir.errors import ConfigError
from logweir.recovery.examine import examine
from logweir.recovery.report import count_of_rows, unfinished_json
from logweir.recovery.single import examine_file
from logweir.tools.cli.common import existing, log_bytes
from logweir.tools.cli.output import BOLD_RED, Output, human_bytes
from logweir.tools.cli.verifystate import compare, show_state, state_json
from logweir.wal.damage import damage_json
from logweir.wal.directory import no_store
from logweir.wal.filesystem import unopened
from logweir.wal.lease import leased
from logweir.wal.render import words
from logweir.wal.vclock import vclock_json, vclock_of


def command(
    out: Output,
    where: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A log file, a snapshot, a folder of them, or a store's server: tarantool://…",
        ),
    ],
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
    as the state does. A server reads its own folder, for who may do everything.
    """
    if "://" in where:
        if state:
            raise ConfigError("state", f"{where} has its state open; name a folder that is not")
        # Imported here: who reads a folder needs no network.
        from logweir.tools.cli.operating import operate

        with operate(where) as ask:
            return _tell(out, ask("verify"))
    path = Path(where)
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
    return _tell(
        out,
        {
            "ok": not report.damage,
            "files": [report.to_json()],
            "damage": [damage_json(one) for one in report.damage],
            "vclock": vclock_json(report.last_vclock),
            "warnings": list(report.warnings),
            "holes": [],
            "unfinished": unfinished_json(report),
            "verdict": "",
        },
    )


def _folder(out: Output, path: Path, *, with_state: bool) -> int:
    with out.progress("Checking", log_bytes(path)) as progress, leased(path):
        report = examine(path, progress=lambda done, _: progress(done))
    if report.is_empty:
        raise no_store(path)
    state = compare(out, report) if with_state else None
    told = report.to_json()
    if state is not None:
        told |= {"ok": report.ok and state.ok, "state": state_json(state)}
    code = _tell(out, told)
    if state is not None and not out.as_json:
        show_state(out, state)
    return code


def _tell(out: Output, told: Mapping[str, Any]) -> int:
    """Show a report, which is that of `RecoveryReport.to_json`. Returns the exit code."""
    if out.as_json:
        out.json(told)
    else:
        _show(out, told)
    return 0 if told["ok"] else 3


def _show(out: Output, told: Mapping[str, Any]) -> None:
    files, damage, unfinished = told["files"], told["damage"], told["unfinished"]
    if files:
        columns = ("file", "size", "blocks", "rows", "from", "up to", "end", "damage")
        counts = Counter(Path(one["file"]).name for one in damage)
        rows = [
            (
                one["file"],
                human_bytes(one["size"]),
                one["blocks"],
                one["rows"],
                vclock_of(one["vclock"]),
                vclock_of(one["end_vclock"]),
                one["end"] or "",
                out.styled(str(bad), BOLD_RED) if (bad := counts[one["file"]]) else "",
            )
            for one in files
        ]
        out.table(columns, rows, right=("size", "blocks", "rows", "damage"))
        out.line("")
    for one in damage:
        _show_damage(out, one)
    for text in told["warnings"]:
        out.message(f"note: {text}")
    if damage:
        lost = count_of_rows(one["rows_lost"] for one in damage)
        out.line(f"{words(len(damage), 'damaged place')}, {lost} lost")
    elif unfinished is not None and unfinished["acknowledged"] is None:
        text = f"whole up to byte {unfinished['offset']} of {unfinished['file']}; an unfinished"
        out.line(
            f"{text} write of {unfinished['size']} bytes after it, which may have been acknowledged"
        )
    elif files:
        out.line("everything is whole")
    if verdict := told.get("verdict"):
        out.line(verdict)


def _show_damage(out: Output, damage: Mapping[str, Any]) -> None:
    kind = out.styled(damage["kind"], BOLD_RED)
    out.line(f"{kind} in {Path(damage['file']).name} at byte {damage['offset']}")
    out.line(f"    {damage['message']}")
    before, after = damage["lsn_before"], damage["lsn_after"]
    if before is not None or after is not None:
        first = "the beginning" if before is None else f"lsn {before}"
        last = "the end" if after is None else f"lsn {after}"
        replica = "" if damage["replica_id"] is None else f" of replica {damage['replica_id']}"
        lost = damage["rows_lost"]
        count = "" if lost is None else f", {words(lost, 'row')} lost"
        out.line(f"    between {first} and {last}{replica}{count}")
    if damage["hint"]:
        out.line(f"    {damage['hint']}")
