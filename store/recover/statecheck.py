"""Whether the state of a folder is that of its log: every entry of every index. Reads only.

Snapshot and logs are loaded into a state of its own in a scratch folder, up to the position of the
one that is checked, as opening would do it; then the entries of each index of both are walked side
by side in order of keys: constant memory, whatever the size. Nobody may have the folder open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from logweir.recovery import RecoveryPlan, RecoveryReport, plan
from logweir.store.engine.engine import Plans
from logweir.store.recover.belonging import BROKEN, opened_to_read
from logweir.store.recover.compare import side_by_side
from logweir.store.recover.loading import Source, load
from logweir.store.schema.definition import SystemSpace
from logweir.store.schema.schema import Schema
from logweir.store.state.references import LogFiles
from logweir.store.state.state import State
from logweir.store.state.statetxn import Txn
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.mp import unpack
from logweir.wal.vclock import VClock

NAMED_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class StateDifference:
    """One entry that differs. `kind`: what is wrong with the state's; `wanted`, `found`: MsgPack of
    the tuples that it leads to, by the log and in the state, None for none."""

    space_id: int
    space: str
    index_id: int
    index: str
    kind: Literal["missing", "surplus", "changed"]
    wanted: bytes | None
    found: bytes | None


@dataclass(slots=True)
class StateReport:
    """`position`: up to where the state is applied; `entries`: how many were compared; `count`: how
    many differ, `first` the first of them; `unusable`: why the next opening throws the state away,
    or, where it `is_ahead` of the log, refuses; `unknown`: why there was nothing to compare it
    with."""

    position: VClock | None = None
    entries: int = 0
    count: int = 0
    first: list[StateDifference] = field(default_factory=list)
    unusable: str = ""
    unknown: str = ""
    is_ahead: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with it, as far as that can be told."""
        return not (self.count or self.unusable)

    def add(self, difference: StateDifference) -> None:
        """Count one."""
        self.count += 1
        if len(self.first) < NAMED_MAX:
            self.first.append(difference)


def check_state(
    report: RecoveryReport,
    scratch: Path,
    *,
    filesystem: FileSystem = OS,
    progress: Callable[[int], None] = lambda done: None,
) -> StateReport:
    """Compare the state beside the log that `report` is about, all of it, with that log.

    `scratch`: an empty folder that the caller removes; it needs as much room as the state;
    `progress`: called with the bytes of logs and snapshots loaded so far. The caller keeps others
    from opening the folder meanwhile. Raises `WalError` if the disk refuses.
    """
    found = StateReport()
    directory = report.directory / "state"
    if not directory.exists():
        found.unknown = "there is none: the next opening makes it"
    elif report.blocking:
        found.unknown = "the log is damaged"
    if found.unknown:
        return found
    decided = plan(report)
    with contextlib.ExitStack() as stack:
        state = State(directory, LogFiles(report.directory, filesystem))
        stack.callback(state.close, clean=False)
        try:
            position = _position(state, decided, found)
        except BROKEN as error:
            found.unusable = f"it cannot be read: {error}"
        if found.unusable or found.unknown:
            return found
        made = State(scratch / "state")
        stack.callback(made.close, clean=False)
        loaded = 0

        def told(count: int) -> None:
            nonlocal loaded
            loaded += count
            progress(loaded)

        source = Source.of(decided, position, until=position, told=told)
        schema, _ = load(made, Plans(), source, None)
        wanted = stack.enter_context(made.read())
        try:
            with state.read() as txn:
                _compare(found, schema, wanted, txn)
        except BROKEN as error:
            found.unusable = f"it cannot be read: {error}"
    return found


def _position(state: State, decided: RecoveryPlan, found: StateReport) -> VClock:
    """Open the state. Up to where it is applied; what stands in the way is noted in `found`."""
    report = decided.report
    kept, found.unusable = opened_to_read(state, report.directory, report.filesystem)
    if kept is None:
        return VClock()
    at = found.position = kept.position.vclock
    found.is_ahead = kept.is_ahead(decided)
    if found.is_ahead:
        found.unusable = f"the log ends at {decided.vclock}, it at {at}"
    else:
        found.unusable = kept.misfit(decided, force=False)
    if not decided.vclock.covers(at):
        found.unknown = "it holds rows that were never logged (durability none)"
    elif not at.covers(decided.start):
        found.unknown = f"it is at {at}, before the snapshot at {decided.start}"
    elif 0 in decided.vclock and 0 not in at:
        found.unknown = f"it is at {at}, and local rows come after that"
    return at


def _compare(found: StateReport, schema: Schema, wanted: Txn, state: Txn) -> None:
    """Note what is different in all indexes that either has. Rows of temporary spaces, which are in
    no log, are passed over, and so are the numbers that they took of a sequence."""
    names = sorted({*wanted.indexes(), *state.indexes()})
    for space_id, index_id in names:
        space = schema.get(space_id)
        if space is not None and space.is_temporary:
            continue
        index = None if space is None else space.index(index_id)
        name = (str(space_id) if space is None else space.name), (index.name if index else "?")
        ours, theirs = wanted.items(space_id, index_id), state.items(space_id, index_id)
        for one, other in side_by_side(ours, theirs):
            found.entries += 1
            if one == other or (space_id == SystemSpace.SEQUENCE_DATA and _is_taken(schema, other)):
                continue
            found.add(
                StateDifference(
                    space_id,
                    name[0],
                    index_id,
                    name[1],
                    "missing" if other is None else "surplus" if one is None else "changed",
                    _tuple(wanted, space_id, index_id, one),
                    _tuple(state, space_id, index_id, other),
                )
            )


def _is_taken(schema: Schema, found: bytes | None) -> bool:
    """Whether rows of a temporary space, which may be dropped by now or use the sequence no more,
    have taken numbers of a sequence, which are in no log: it may be anywhere then."""
    return found is not None and unpack(found)[0] in schema.unlogged


def _tuple(txn: Txn, space_id: int, index_id: int, value: bytes | None) -> bytes | None:
    """The tuple that an entry leads to."""
    if value is None or not index_id:
        return value
    tree = txn.tree(space_id, 0)
    return None if tree is None else tree.get(value)
