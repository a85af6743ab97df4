"""`logweir diff`: what changed between two states: of folders, snapshots or running servers."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logweir.tools.cli.common import existing, log_bytes
from logweir.tools.cli.joining import copy_server, copyable
from logweir.tools.cli.output import Output
from logweir.wal.render import value_json

if TYPE_CHECKING:  # the store, which `--help` and a wrong option do without
    from logweir.store.recover.compare import Difference

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_COLORS = {"added": "32", "removed": "31", "changed": "33"}


def command(
    out: Output,
    first: Annotated[
        str, typer.Argument(metavar="A", help="A folder, a snapshot or a server: tarantool://…")
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    space: Annotated[
        list[str] | None,
        typer.Option("--space", metavar="SPACE", help="Only this space: its name or id."),
    ] = None,
    summary: Annotated[
        bool, typer.Option("--summary", help="Only how many tuples differ in each space.")
    ] = False,
) -> int:
    """Show the tuples that have to change in A for it to become B. --space may be repeated.

    A server, a logweir or a Tarantool 2.6, is copied first, as of one position, which is told. Its
    user needs the right to replicate; spaces that are local to a server are left out then. JSON
    lines if the output is no terminal. Exit code 1 if anything differs.
    """
    from logweir.store.recover.compare import compare_states

    servers = {side: copyable(side) for side in (first, second) if "://" in side}
    for side in (first, second):
        if side not in servers:
            existing(Path(side))
    wanted = set(space or ())
    counts: dict[tuple[int, str], Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="logweir-diff-") as scratch:
        paths = [
            copy_server(out, servers[side], Path(scratch, f"copy-{number}"))
            if side in servers
            else Path(side)
            for number, side in enumerate((first, second))
        ]
        total = sum(log_bytes(path) if path.is_dir() else path.stat().st_size for path in paths)
        with out.progress("Loading", total) as progress:
            old, new = paths
            for one in compare_states(
                old, new, Path(scratch), replicated=bool(servers), progress=progress
            ):
                if wanted and not wanted & {one.space, str(one.space_id)}:
                    continue
                counts.setdefault((one.space_id, one.space), Counter())[one.kind] += 1
                if not summary:
                    _show(out, one)
    if summary:
        _summarize(out, counts)
    if not counts:
        out.message("nothing differs")
    return 1 if counts else 0


def _show(out: Output, one: Difference) -> None:
    before = None if one.before is None else value_json(one.before)
    after = None if one.after is None else value_json(one.after)
    if out.is_terminal:
        sign = out.styled(_SIGNS[one.kind], _COLORS[one.kind])
        both = " → ".join(text for text in (before, after) if text is not None)
        out.line(f"{sign} {one.space} {both}")
        return
    parts = [f'"space_id": {one.space_id}', f'"space": {out.json_text(one.space)}']
    parts.append(f'"change": "{one.kind}"')
    parts += [f'"before": {before}'] if before is not None else []
    parts += [f'"after": {after}'] if after is not None else []
    out.line("{" + ", ".join(parts) + "}")


def _summarize(out: Output, counts: dict[tuple[int, str], Counter[str]]) -> None:
    if out.is_terminal:
        rows = [(*key, *(count[kind] for kind in _SIGNS)) for key, count in counts.items()]
        columns = ("id", "space", *_SIGNS)
        out.table(columns, rows, right=("id", *_SIGNS))
        return
    for (space_id, name), count in counts.items():
        out.json({"space_id": space_id, "space": name, **{kind: count[kind] for kind in _SIGNS}})
