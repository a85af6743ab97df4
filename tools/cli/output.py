"""Where commands write: results to stdout, messages to stderr.

Tables are drawn for a terminal and printed as plain aligned columns otherwise. Progress bars appear
on stderr, on a terminal, once something has taken longer than `PROGRESS_AFTER_SECONDS`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["BOLD_RED", "Output", "human_bytes"]

BOLD_RED: Final = "1;31"
"""How a terminal is told to show what is wrong."""

_ODD: Final = re.compile(
    r"(\x1b\[[0-9;]*m|[\t\n])|[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
PROGRESS_AFTER_SECONDS: Final = 0.7
_PLAIN_WIDTH: Final = 4096  # columns where there is no terminal whose width counts


@dataclass(frozen=True, slots=True)
class Output:
    """What the global options say. `as_json`: results for programs; `quiet`: no messages;
    `debug`: tracebacks."""

    as_json: bool = False
    quiet: bool = False
    debug: bool = False

    @property
    def is_terminal(self) -> bool:
        """Whether a person looks at stdout, and wants text."""
        return sys.stdout.isatty() and not self.as_json

    def console(self) -> Console:
        """A rich console on stdout; as wide as needed where that is no terminal."""
        from rich.console import Console

        width = None if sys.stdout.isatty() else _PLAIN_WIDTH
        return Console(width=width, highlight=False, soft_wrap=False)

    def show(self, *parts: RenderableType) -> None:
        """Print rich text, tables and the like to stdout."""
        console = self.console()
        if sys.stdout.isatty():
            console.print(*parts, sep="\n")
            return
        with console.capture() as captured:
            console.print(*parts, sep="\n")
        for line in captured.get().splitlines():
            self.line(line.rstrip())

    def line(self, text: str) -> None:
        """Print one line to stdout; on a terminal without what that would obey, but colours."""
        sys.stdout.write(_shown(text, sys.stdout) + "\n")

    def styled(self, text: str, codes: str) -> str:
        """`text` in the colours that `codes` (of SGR) name, on a terminal that wants colours."""
        if not codes or not sys.stdout.isatty():
            return text
        if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
            return text
        return f"\x1b[{codes}m{text}\x1b[0m"

    def json(self, value: object) -> None:
        """Print one JSON value on a line of its own."""
        self.line(self.json_text(value))

    def json_text(self, value: object) -> str:
        """One JSON value as text without line breaks."""
        return json.dumps(value, ensure_ascii=False, default=_plain)

    def fields(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Print names and values, one pair per line, the values under one another."""
        known = [(name, value) for name, value in pairs if value is not None]
        width = max((len(name) for name, _ in known), default=0)
        for name, value in known:
            self.line(f"{name:<{width}}  {value}")

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()
    ) -> None:
        """Print a table. `right`: columns of numbers, aligned at their right end."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for number, name in enumerate(columns):
            justify: Literal["left", "right"] = "right" if name in right else "left"
            # The first column names what the row is about: it stays in one piece.
            table.add_column(name, justify=justify, overflow="fold", no_wrap=number == 0)
        for row in rows:
            texts = ("" if value is None else str(value) for value in row)
            table.add_row(*(Text(_shown(text, sys.stdout)) for text in texts))
        self.show(table)

    def message(self, text: str) -> None:
        """Say something on stderr, unless told to be quiet."""
        if not self.quiet:
            sys.stderr.write(f"logweir: {_shown(text, sys.stderr)}\n")

    def warning(self, text: str) -> None:
        """Say something that somebody must see, on stderr."""
        sys.stderr.write(f"logweir: warning: {_shown(text, sys.stderr)}\n")

    def error(self, text: str, hint: str = "") -> None:
        """Report an error on stderr, in one line."""
        if self.debug:
            traceback.print_exc()
        text = " ".join(text.split()) + (f" hint: {hint}" if hint else "")
        sys.stderr.write(f"logweir: error: {_shown(text, sys.stderr)}\n")

    def flush(self) -> None:
        """Hand over what is buffered. Raises `BrokenPipeError` where nobody reads."""
        sys.stdout.flush()

    @contextlib.contextmanager
    def progress(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show how far something is. Yields a function that takes how much of `total` is done."""
        if self.quiet or not sys.stderr.isatty() or (sys.stdout.isatty() and not total):
            yield lambda done: None
            return
        from rich.console import Console
        from rich.progress import Progress

        started = time.monotonic()
        with contextlib.ExitStack() as stack:
            bar: list[Progress] = []

            def advance(done: int) -> None:
                if not bar and time.monotonic() - started > PROGRESS_AFTER_SECONDS:
                    console = Console(stderr=True)
                    bar.append(stack.enter_context(Progress(console=console, transient=True)))
                    bar[0].add_task(label, total=total)
                if bar:
                    bar[0].update(bar[0].task_ids[0], completed=done)

            yield advance


def _shown(text: str, stream: TextIO) -> str:
    """Text from anywhere for a stream: a terminal is told nothing that it would obey, as control
    characters and marks of the direction of writing, but colours. As JSON escapes them."""
    if not stream.isatty():
        return text
    return _ODD.sub(lambda found: found[1] or f"\\u{ord(found[0]):04x}", text)


def _plain(value: object) -> object:
    """What `json` cannot write by itself: mappings that are no dict, and things with a text."""
    return dict(value) if isinstance(value, Mapping) else str(value)


def human_bytes(count: int) -> str:
    """A size for people: "812 B", "12.3 KiB", "1.1 GiB"."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"
