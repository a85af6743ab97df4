"""What a folder's files say about its upstreams: positions and losses, without opening the store.

So they can be asked for while a server has the folder. The files are read from the newest snapshot
on, of which only the rows of the two spaces of `logweir.replication.stream.positions` are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from logweir.recovery.examine import examine
from logweir.recovery.policy import plan
from logweir.recovery.replay import replay, snapshot_blocks
from logweir.replication.stream.positions import GAP_SPACE, POSITION_SPACE, Gap
from logweir.wal.columns import RowColumns
from logweir.wal.directory import no_store
from logweir.wal.spacenames import SpaceNames
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

_TRUNCATE: Final = 330
_KEY_FIELDS: Final = {POSITION_SPACE: 3, GAP_SPACE: 4}


@dataclass(frozen=True, slots=True)
class Position:
    """How far a stream was read. `stopped`: why nothing more of it is taken, "" if it is."""

    source: str
    stream: str
    instance: str
    tokens: Mapping[str, Any]
    stopped: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """All of it, as of `vclock`; in the order of their keys."""

    vclock: VClock
    positions: list[Position]
    gaps: list[Gap]


def read_folder(directory: Path) -> Recorded:
    """Read a store's folder. Raises `WalError`, `RecoveryRefused` if its log is damaged."""
    report = examine(directory)
    if report.is_empty:
        raise no_store(directory)
    decided = plan(report)
    reading = _Reading()
    vclock = decided.start
    for block in snapshot_blocks(decided):
        reading.take(block.columns, 0, len(block.columns))
    for batch in replay(decided):
        reading.take(batch.block.columns, batch.first, batch.last)
        vclock = batch.vclock
    found = [
        Position(source, stream, instance, tokens, str(tokens.get("stopped", "")), time_ms)
        for _, (source, stream, instance, tokens, time_ms) in sorted(
            reading.kept[POSITION_SPACE].items()
        )
    ]
    gaps = [Gap(*row) for _, row in sorted(reading.kept[GAP_SPACE].items())]
    return Recorded(vclock, found, gaps)


class _Reading:
    """The tuples of the two spaces, by key, as far as the log was read."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[tuple[Any, ...], list[Any]]] = {
            POSITION_SPACE: {},
            GAP_SPACE: {},
        }
        self._names = SpaceNames()

    def take(self, columns: RowColumns, first: int, last: int) -> None:
        """Apply the rows that are for us."""
        self._names.learn(columns)
        wanted = {number for number, name in self._names.items() if name in self.kept}
        spaces = columns.space_id.tolist()
        if wanted.isdisjoint(spaces) and _TRUNCATE not in spaces:
            return
        for at in range(first, last):
            if spaces[at] in wanted:
                self._apply(self._names[spaces[at]], columns, at)
            elif spaces[at] == _TRUNCATE:
                cut = columns.row(at).decoded().get("tuple", (0,))[0]
                self.kept.get(self._names.get(cut, ""), {}).clear()

    def _apply(self, name: str, columns: RowColumns, at: int) -> None:
        body = columns.row(at).decoded()
        kept = self.kept[name]
        if columns.type[at] in (RowType.INSERT, RowType.REPLACE):
            row = body["tuple"]
            kept[tuple(row[: _KEY_FIELDS[name]])] = row
        elif columns.type[at] == RowType.DELETE:
            kept.pop(tuple(body["key"]), None)
