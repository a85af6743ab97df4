"""The part of `logweir verify --state` that compares the state of a folder with its log."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logweir.recovery.report import RecoveryReport
from logweir.tools.cli.common import log_bytes
from logweir.tools.cli.output import BOLD_RED, Output
from logweir.wal.render import value_json
from logweir.wal.vclock import vclock_json

if TYPE_CHECKING:  # the store, which `verify` without `--state` does without
    from logweir.store.recover.statecheck import StateDifference, StateReport


def compare(out: Output, report: RecoveryReport) -> StateReport:
    """Compare, with a progress bar."""
    from logweir.store.recover.statecheck import check_state

    with (
        tempfile.TemporaryDirectory(prefix="logweir-verify-") as scratch,
        out.progress("Comparing the state", log_bytes(report.directory)) as progress,
    ):
        return check_state(report, Path(scratch), progress=progress)


def state_json(state: StateReport) -> dict[str, Any]:
    """What `--json` says of it."""
    return {
        "ok": state.ok,
        "vclock": None if state.position is None else vclock_json(state.position),
        "entries": state.entries,
        "differences": state.count,
        "first": [_difference_json(one) for one in state.first],
        "unusable": state.unusable,
        "unknown": state.unknown,
    }


def _difference_json(one: StateDifference) -> dict[str, Any]:
    return {
        "space_id": one.space_id,
        "space": one.space,
        "index_id": one.index_id,
        "index": one.index,
        "kind": one.kind,
        "log": None if one.wanted is None else json.loads(value_json(one.wanted)),
        "state": None if one.found is None else json.loads(value_json(one.found)),
    }


def show_state(out: Output, state: StateReport) -> None:
    """Say it to a reader."""
    if state.unusable:
        kind = out.styled("state", BOLD_RED)
        rebuilt = "not that of the log, and is rebuilt at the next opening"
        ahead = "ahead of the log, whose newest rows are gone: opening is refused"
        out.line(f"{kind} is {ahead if state.is_ahead else rebuilt}:")
        out.line(f"    {state.unusable}")
        return
    if state.unknown:
        out.line(f"the state was not compared: {state.unknown}")
        return
    for one in state.first:
        kind = out.styled(f"{one.kind} entry", BOLD_RED)
        out.line(f"{kind} in the state, space {one.space}, index {one.index}")
        if one.wanted is not None:
            out.line(f"    by the log: {value_json(one.wanted)}")
        if one.found is not None:
            out.line(f"    it has:     {value_json(one.found)}")
    if state.count > len(state.first):
        out.line(f"... and {state.count - len(state.first)} more")
    if state.count:
        out.line(
            f"{state.count} of {state.entries} entries of the state are not as the log says: "
            "remove the folder `state`, it is rebuilt from the log"
        )
    else:
        out.line(f"the state is that of the log at {state.position}: {state.entries} entries")
