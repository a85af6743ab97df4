"""`logweir cat`: the rows of logs and snapshots, as JSON lines, a table, YAML or bytes."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from logweir.errors import ConfigError, LogweirError
from logweir.recovery.chain import (
    border,
    foreign_tail,
    is_bad_tail,
    missing_begin,
    missing_end,
    own_mark,
)
from logweir.tools.cli.common import existing, show_damage, store_at, utc_text
from logweir.tools.cli.output import Output, visible
from logweir.tools.hexdump import annotate_file, format_entry
from logweir.wal.damage import TAIL_KINDS, Damage, DamageKind
from logweir.wal.directory import DirectoryIndex, LogFile, no_store, scan_directory
from logweir.wal.endmark import EndMark, load_end_mark
from logweir.wal.filesystem import OS
from logweir.wal.follow import Follower
from logweir.wal.lease import Lease, leased
from logweir.wal.reader import Block, WalReader, read_meta
from logweir.wal.render import row_line, value_json
from logweir.wal.selection import Selection, parse_bound, parse_time, parse_type
from logweir.wal.spacenames import SYSTEM_SPACES, SpaceNames
from logweir.wal.vclock import VClock
from logweir.wal.xrow import RowType

_POLL_SECONDS: Final = 0.2
_ONE_LINE_WIDTH: Final = 120  # of a terminal, for a row to stand in one line
_LINE_WIDTH: Final = 1000  # of a table where there is no terminal


class Format(StrEnum):
    """How rows are printed."""

    JSONL = "jsonl"
    TABLE = "table"
    YAML = "yaml"
    HEX = "hex"


def command(
    out: Output,
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            help="Log files, snapshots, or folders. Of a folder the logs are shown, in order.",
        ),
    ],
    style: Annotated[
        Format | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="jsonl, table, yaml or hex. Default: table on a terminal, else jsonl.",
        ),
    ] = None,
    as_hex: Annotated[bool, typer.Option("--hex", help="Short for --format hex.")] = False,
    space: Annotated[
        list[str] | None,
        typer.Option("--space", metavar="SPACE", help="Rows of this space: its name or id."),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Rows of this type, such as INSERT."),
    ] = None,
    replica: Annotated[
        list[int] | None,
        typer.Option("--replica", metavar="ID", help="Rows of this replica id; 0: local ones."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="Begin here: a vclock (rows after it), REPLICA:LSN, or a signature.",
        ),
    ] = None,
    stop: Annotated[
        str | None, typer.Option("--to", metavar="POSITION", help="End here, in the same forms.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Rows from this time on (ISO 8601, UTC)."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Rows up to this time.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=0, help="Stop after N rows.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as the folder's log grows.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Add the exact bytes; with --hex, show every byte.")
    ] = False,
) -> int:
    """Print the rows of logs and snapshots. --space, --type and --replica may be given repeatedly.

    Goes on behind damage, reports it on stderr and ends with exit code 3.
    """
    bounds = [
        None if text is None else parse_bound(text, origin=option)
        for option, text in (("--from", start), ("--to", stop))
    ]
    selection = Selection(
        spaces=[int(one) if one.isdecimal() else one for one in space or ()],
        types=[parse_type(one, origin="--type") for one in kind or ()],
        replicas=replica or (),
        start=bounds[0],
        stop=bounds[1],
        since=None if since is None else parse_time(since, origin="--since"),
        until=None if until is None else parse_time(until, origin="--until"),
    )
    for path in paths:
        existing(path)
    if as_hex:
        style = Format.HEX
    if style is None:
        style = Format.TABLE if out.is_terminal else Format.JSONL
    if out.as_json and style is not Format.JSONL:
        hint = "leave out one of both"
        raise ConfigError("--json", f"it cannot be printed as {style}.", origin="option", hint=hint)
    run = _Run(out, selection, style, raw=raw, limit=limit)
    if follow:
        run.follow(paths)
    else:
        for path in paths:
            with leased(path):
                if path.is_dir():
                    run.folder(path)
                else:
                    run.file(path, SpaceNames.before(path))
            if run.is_finished:
                break
        run.warn_of_unknown(space or ())
    return 3 if run.is_damaged else 0


class _Run:
    """One run of the command: what is wanted, what was printed, whether there was damage."""

    def __init__(
        self, out: Output, selection: Selection, style: Format, *, raw: bool, limit: int | None
    ) -> None:
        self.out = out
        self.selection = selection
        self.style = style
        self.raw = raw
        self.left = sys.maxsize if limit is None else limit
        self.is_damaged = False
        self.names: set[str] = set()
        emitters: dict[Format, Callable[[], _Emit]] = {
            Format.JSONL: lambda: _json_rows(out, raw),
            Format.YAML: lambda: _yaml_rows(out, raw),
            Format.TABLE: lambda: _table_rows(out),
            Format.HEX: lambda: _json_rows(out, raw),
        }
        self.emit = emitters[style]()

    @property
    def is_finished(self) -> bool:
        """Whether nothing more is to be printed."""
        return self.left <= 0 or self.selection.finished

    @property
    def wants_all(self) -> bool:
        """Whether the rows are wanted from the oldest on."""
        return self.selection.start is None and self.selection.since is None

    def folder(self, path: Path) -> None:
        """All logs of a folder, in order."""
        said = load_end_mark(path, OS)  # before the folder is listed: see there
        index = scan_directory(path)
        mark, silent = own_mark(said, index)
        if not index.files and not index.damage and mark is None:
            raise no_store(path)
        self.check_start(index)
        self.report(*index.damage)
        files = self.selection.files(index.xlogs)
        names = SpaceNames.before(files[0].path) if files else SpaceNames()
        newest = index.newest_snap()
        if self.wants_all and files and newest and not index.xlogs_after(newest.vclock):
            self.report(missing_begin(newest.vclock, files[0]))
        before: tuple[LogFile, VClock, int] | None = None
        for file in files:
            if before is not None and (found := border(*before, file)) is not None:
                self.report(found)
            before = (file, *self.file(file.path, names))
            if self.is_finished:
                return
        self.check_end(index, mark, silent, VClock() if before is None else before[1])

    def check_start(self, index: DirectoryIndex) -> None:
        """Raise `PositionUnavailable` if the rows from the start on are no longer all there."""
        if self.selection.start is not None:
            index.check_start(self.selection.start)
        if self.selection.since is not None:
            index.check_since(self.selection.since)

    def check_end(
        self, index: DirectoryIndex, mark: EndMark | None, silent: str, reached: VClock
    ) -> None:
        """Say what is missing behind the last row of the newest log."""
        if silent:
            self.out.flush()
            self.out.message(f"note: {silent}")
        for snap in index.snaps:
            reached = reached.merge(snap.vclock)
        if (found := missing_end(mark, index, reached)) is not None:
            self.report(found)

    def file(self, path: Path, names: SpaceNames) -> tuple[VClock, int]:
        """One file. Returns the vclock reached and where the last whole block ends."""
        if self.style is Format.HEX:
            return self.dump(path, names)
        with WalReader(path, skip_damage=True) as reader:
            self.selection.begin(reader.meta)
            for item in reader.blocks():
                if isinstance(item, Damage):
                    self.report(item, is_bad=is_bad_tail(item, reader.meta))
                    continue
                names.learn(item.columns)
                self.block(item, names)
                if self.is_finished:
                    break
            self.names.update(names.values())
            return reader.vclock, reader.end_offset

    def dump(self, path: Path, names: SpaceNames) -> tuple[VClock, int]:
        """One file as annotated bytes."""
        meta = read_meta(path)
        self.selection.begin(meta)
        reached, end = meta.vclock, 0

        def wanted(block: Block) -> list[int] | None:
            nonlocal reached, end
            if self.is_finished:
                return None
            end = block.end
            reached = reached.merge(block.columns.last_lsns())
            return self.take(self.selection.rows(block.columns, names))

        for entry in annotate_file(path, names=names, wanted=wanted):
            if isinstance(entry, Damage):
                self.report(entry, is_bad=is_bad_tail(entry, meta))
            else:
                for line in format_entry(entry, whole=self.raw):
                    self.out.line(line)
        self.names.update(names.values())
        return reached, end

    def warn_of_unknown(self, wanted: Sequence[str]) -> None:
        """Say which of the wanted spaces no file read so far has a name for, unless the reading
        ended early."""
        if self.is_finished:
            return
        for name in wanted:
            if not name.isdecimal() and name not in self.names:
                own = sorted(self.names - set(SYSTEM_SPACES.values()))
                known = ", ".join(own) or "only system spaces"
                self.out.flush()
                self.out.warning(
                    f"no space has the name {name!r} in what was read; it has: {known}"
                )

    def follow(self, paths: list[Path]) -> None:
        """The log of one folder, from the start of the selection, until stopped."""
        if len(paths) != 1 or self.style is Format.HEX:
            raise typer.BadParameter("takes one folder, and rows as rows", param_hint="--follow")
        path = store_at(paths[0])
        folder = path if path.is_dir() else path.parent
        index = scan_directory(folder)
        if path.is_dir():
            self.check_start(index)
            first = index.xlogs[0].vclock if index.xlogs else VClock()
        else:
            first = read_meta(path).vclock
        names = SpaceNames.before(index.xlogs[0].path) if index.xlogs else SpaceNames()
        after = self.selection.start if isinstance(self.selection.start, VClock) else first
        with Follower(folder, after, lease=Lease(folder)) as follower:
            current = None
            while True:
                for block in follower.poll():
                    if current != block.path:
                        current = block.path
                        self.selection.begin(read_meta(Path(current)))
                    names.learn(block.columns)
                    self.block(block, names)
                    if self.is_finished:
                        return
                self.out.flush()
                time.sleep(_POLL_SECONDS)

    def block(self, block: Block, names: SpaceNames) -> None:
        """The wanted rows of one block."""
        for number in self.take(self.selection.rows(block.columns, names)):
            try:
                self.emit(block, number, names)
            except LogweirError as error:
                # The reader takes whole rows; a value inside may still be none.
                text = f"row {number} cannot be shown: {error.message}"
                self.report(Damage(DamageKind.ROWS, block.path, block.offset, 0, text))

    def take(self, rows: list[int]) -> list[int]:
        """As many of `rows` as the limit leaves."""
        taken = rows[: self.left]
        self.left -= len(taken)
        return taken

    def report(self, *damage: Damage, is_bad: bool = False) -> None:
        """Say what is damaged, behind the rows printed so far. `is_bad`: also as an end."""
        self.out.flush()
        damage = tuple(map(foreign_tail, damage)) if is_bad else damage
        show_damage(self.out, damage, is_bad=is_bad)
        if is_bad or any(one.kind not in TAIL_KINDS for one in damage):
            self.is_damaged = True


_Emit = Callable[[Block, int, SpaceNames], None]
"""Prints one row of a block."""


def _json_rows(out: Output, raw: bool) -> _Emit:
    def emit(block: Block, number: int, names: SpaceNames) -> None:
        out.line(row_line(block, number, names, raw=raw))

    return emit


def _yaml_rows(out: Output, raw: bool) -> _Emit:
    def emit(block: Block, number: int, names: SpaceNames) -> None:
        fields = json.loads(row_line(block, number, names, raw=raw))
        out.line("---")
        for name, value in fields.items():
            out.line(f"{name}: {_yaml(value)}")

    return emit


def _yaml(value: Any) -> str:
    """A value in YAML's flow form: JSON, but for floats, which need a point to be floats."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {_yaml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    if isinstance(value, float):
        digits, e, exponent = repr(value).partition("e")
        return f"{digits}{'' if '.' in digits else '.0'}{e}{exponent}"
    return json.dumps(value)


_COLORS: Final = {
    RowType.INSERT: "32",
    RowType.REPLACE: "36",
    RowType.UPDATE: "33",
    RowType.UPSERT: "33",
    RowType.DELETE: "31",
    RowType.NOP: "2",
}


def _table_rows(out: Output) -> _Emit:
    is_terminal = sys.stdout.isatty()
    shown: Block | None = None
    marks: list[str] = []

    def emit(block: Block, number: int, names: SpaceNames) -> None:
        nonlocal shown, marks
        if shown is None or block.path != shown.path:
            out.line(Path(block.path).name)
            out.line(f"{'replica:lsn':>14}    {'time (UTC)':<23}  {'type':<8} {'space':<16} data")
        if block is not shown:
            shown, marks = block, _marks(block)
        row = block.columns.row(number)
        lsn = f"{row.replica_id}:{row.lsn}"
        when = (utc_text(row.timestamp) or "").replace("T", " ").removesuffix("Z")
        name = "" if row.space_id is None else names.show(row.space_id)
        head = f"{lsn:>14} {marks[number]}  {when:<23}  "
        data = _data(block, number)
        width = shutil.get_terminal_size().columns if is_terminal else _LINE_WIDTH
        color = _COLORS.get(row.type, "")  # type: ignore[call-overload]
        place = f" {visible(name):<16}"
        room = width - len(head) - 8 - len(place) - 1
        head += out.styled(f"{row.type_name:<8}", color) + place
        if width < _ONE_LINE_WIDTH:
            out.line(head.rstrip())
            out.line(f"    {_cut(data, width - 4)}")
        else:
            out.line(f"{head} {_cut(data, room)}")

    return emit


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else text[: max(room - 1, 0)] + "…"


def _marks(block: Block) -> list[str]:
    """For each row: a bracket where it is part of a transaction of several rows."""
    marks: list[str] = []
    for first, end in block.columns.transactions():
        count = end - first
        marks += [" "] if count == 1 else ["┌", *"│" * (count - 2), "└"]
    return marks


def _data(block: Block, number: int) -> str:
    columns = block.columns
    parts = (
        columns.key_bytes(number),
        columns.tuple_bytes(number),
        columns.ops_bytes(number),
    )
    text = "  ".join(value_json(part) for part in parts if part is not None)
    return visible(text[:_LINE_WIDTH])
