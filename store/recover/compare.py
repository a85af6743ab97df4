"""What differs between two states: of folders, or of single snapshots. Reads only.

Each side is loaded into a state of its own in a scratch folder, as opening would do it, so a folder
must be one that could be opened. Then the primary indexes of each space are walked side by side in
key order: constant memory, whatever the size. Where a space has another primary key on the two
sides its tuples cannot be paired: all of the first are removed, all of the second added.

Tuples are the same if their bytes are. The definitions themselves are tuples of the system spaces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Literal

from logweir.recovery import examine, plan
from logweir.recovery.rewrite import while_files_go
from logweir.store.engine.engine import Plans
from logweir.store.recover.loading import Source, counted, load
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.schema import Schema
from logweir.store.state.state import State
from logweir.store.state.statetxn import Txn
from logweir.wal.directory import no_store
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.lease import leased
from logweir.wal.reader import read_meta
from logweir.wal.snapshot import read_snapshot

Kind = Literal["added", "removed", "changed"]
Pairs = Iterator[tuple[bytes, bytes]]
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Difference:
    """One tuple that differs. `space`: name on the side that has it (the second, if both do);
    `before`, `after`: MsgPack of the tuple, None if it is not there."""

    space_id: int
    space: str
    kind: Kind
    before: bytes | None
    after: bytes | None


def compare_states(
    first: Path,
    second: Path,
    scratch: Path,
    *,
    replicated: bool = False,
    filesystem: FileSystem = OS,
    progress: Progress | None = None,
) -> Iterator[Difference]:
    """What has to change in `first` to become `second`, by space and key.

    `first`, `second`: folders or snapshots; `scratch`: an empty folder that the caller removes;
    `replicated`: leave out spaces whose rows stay on their server;
    `progress`: called with the bytes of logs and snapshots loaded so far. Raises
    `WalError` and its kinds if one of them cannot be loaded.
    """
    loaded = 0

    def told(count: int) -> None:
        nonlocal loaded
        loaded += count
        if progress is not None:
            progress(loaded)

    with contextlib.ExitStack() as stack:
        old, old_schema = _loaded(first, scratch / "first", filesystem, stack, told)
        new, new_schema = _loaded(second, scratch / "second", filesystem, stack, told)
        old_spaces = {space.id: space for space in old_schema}
        new_spaces = {space.id: space for space in new_schema}
        for space_id in sorted({*old_spaces, *new_spaces}):
            before, after = old_spaces.get(space_id), new_spaces.get(space_id)
            if replicated and any(one is not None and one.is_local for one in (before, after)):
                continue
            pairs = _aligned(old, before, new, after)
            named = after or before
            assert named is not None
            for one, other in pairs:
                if one != other:
                    kind: Kind = "added" if one is None else "removed"
                    if one is not None and other is not None:
                        kind = "changed"
                    name = named.name if other is not None or before is None else before.name
                    yield Difference(space_id, name, kind, one, other)


def _loaded(
    path: Path,
    scratch: Path,
    filesystem: FileSystem,
    stack: contextlib.ExitStack,
    told: Callable[[int], None],
) -> tuple[Txn, Schema]:
    """The state of `path`, in a transaction that ends with `stack`. The files of a live folder are
    leased, and read again where one goes nevertheless."""
    numbers = count()

    def load_once() -> tuple[Txn, Schema]:
        state = State(scratch.with_name(f"{scratch.name}-{next(numbers)}"))
        stack.callback(state.close, clean=False)
        schema, _ = load(state, Plans(), _source(path, filesystem, told), None)
        return stack.enter_context(state.read()), schema

    with leased(path):
        return while_files_go(load_once)


def _source(path: Path, filesystem: FileSystem, told: Callable[[int], None]) -> Source:
    if path.is_dir():
        report = examine(path, filesystem=filesystem)
        if report.is_empty:
            raise no_store(path)
        decided = plan(report)
        return Source.of(decided, decided.vclock, told=told)
    vclock = read_meta(path, filesystem).vclock
    return Source(
        blocks=lambda: counted(read_snapshot(path, filesystem), told),
        start=vclock,
        batches=lambda _: (),
        end=vclock,
    )


def _aligned(
    old: Txn, before: SpaceDef | None, new: Txn, after: SpaceDef | None
) -> Iterable[tuple[bytes | None, bytes | None]]:
    """The tuples of a space, those with the same primary key together."""
    ours, theirs = _tuples(old, before), _tuples(new, after)
    if before is not None and after is not None and before.primary == after.primary:
        return side_by_side(ours, theirs)
    return chain(((data, None) for _, data in ours), ((None, data) for _, data in theirs))


def _tuples(txn: Txn, space: SpaceDef | None) -> Pairs:
    if space is None or space.primary is None or space.is_view:
        return iter(())
    return txn.items(space.id, 0)


def side_by_side(ours: Pairs, theirs: Pairs) -> Iterator[tuple[bytes | None, bytes | None]]:
    """The values under each key of both, None where one has none. Both are ascending."""
    one, other = next(ours, None), next(theirs, None)
    while one is not None or other is not None:
        takes_one = one is not None and (other is None or one[0] <= other[0])
        takes_other = other is not None and (one is None or other[0] <= one[0])
        yield (one[1] if one and takes_one else None), (other[1] if other and takes_other else None)
        one = next(ours, None) if takes_one else one
        other = next(theirs, None) if takes_other else other
