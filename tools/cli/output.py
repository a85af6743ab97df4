"""Where commands write: results to stdout, messages to stderr.

Tables are aligned columns, a line for each row however narrow a terminal is. Progress bars appear
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
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from logweir.errors import without_secrets

if TYPE_CHECKING:
    from rich.progress import Progress

BOLD: Final = "1"
BOLD_RED: Final = "1;31"
"""How a terminal is told to show what is wrong."""

_CONTROLS: Final = r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
_OWN_COLOURS: Final = re.compile(rf"(\x1b\[(?:[012]|1;31|3[1-6])m)|{_CONTROLS}")
_ANY_CONTROL: Final = re.compile(_CONTROLS)
PROGRESS_AFTER_SECONDS: Final = 0.7
_ENDS: Final = (".", "!", "?", "…", ":")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


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

    def line(self, text: str) -> None:
        """Print one line to stdout, which may lead anywhere: what a terminal would obey in it, and
        what would end the line, is escaped."""
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
        """Print a table, each row on a line of its own. `right`: columns of numbers, aligned at
        their right end."""
        lines = [[self.styled(name, BOLD) for name in columns]]
        for row in rows:
            texts = ("" if value is None else str(value) for value in row)
            lines.append([_shown(text, sys.stdout) for text in texts])
        widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            cells = [
                " " * room + text if name in right else text + " " * room
                for name, text, width in zip(columns, line, widths, strict=True)
                for room in [width - _width(text)]
            ]
            self.line("  ".join(cells).rstrip())

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
            sys.stderr.write(without_secrets(traceback.format_exc()))
        text = " ".join(without_secrets(text).split())
        if hint:
            text += f"{'' if text.endswith(_ENDS) else '.'} hint: {hint}"
        sys.stderr.write(f"logweir: error: {_shown(text, sys.stderr)}\n")

    def flush(self) -> None:
        """Hand over what is buffered. Raises `BrokenPipeError` if nobody reads."""
        sys.stdout.flush()

    @contextlib.contextmanager
    def progress(self, label: str, total: int) -> Iterator[Advance]:
        """Show how far something is, and when it will be over. Yields a function that takes how
        much of `total` is done and, where they are counted, of how many rows; less than before is
        a new beginning."""
        if self.quiet or not sys.stderr.isatty() or (sys.stdout.isatty() and not total):
            yield lambda done, rows=0: None
            return
        with contextlib.ExitStack() as stack:
            yield _Bar(stack, label, total).advance


class Advance(Protocol):
    """Takes how much is done."""

    def __call__(self, done: int, rows: int = 0) -> None: ...


class _Bar:
    """A bar on stderr, once something takes long; `stack` takes it away."""

    def __init__(self, stack: contextlib.ExitStack, label: str, total: int) -> None:
        self._stack = stack
        self._label = label
        self._total = total
        self._appears = time.monotonic() + PROGRESS_AFTER_SECONDS
        self._began: float | None = None
        self._last = (0, 0)
        self._bar: Progress | None = None

    def advance(self, done: int, rows: int = 0) -> None:
        """Draw it, at times."""
        now = time.monotonic()
        if self._bar is None and now >= self._appears:
            from rich.console import Console
            from rich.progress import Progress, TextColumn

            columns = (*Progress.get_default_columns(), TextColumn("{task.fields[rows]}"))
            bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar = self._stack.enter_context(bar)
            self._bar.add_task(self._label, total=self._total, rows="")
        is_new = done < self._last[0] or rows < self._last[1]
        self._last = (done, rows)
        if is_new or self._began is None:
            self._began = now  # not before: nothing was read while it was planned
        if self._bar is not None:
            task = self._bar.task_ids[0]
            if is_new:
                self._bar.reset(task)
            seconds = now - self._began
            rate = f", {rows / seconds:,.0f}/s" if seconds else ""
            shown = f"{rows:,} rows{rate}" if rows else ""
            self._bar.update(task, completed=done, rows=shown)


def _shown(text: str, stream: TextIO) -> str:
    """Text from anywhere as one line for a stream: `visible`, but for the colours of `styled` on a
    terminal."""
    if text.isprintable():
        return text  # of what is escaped nothing is
    if not stream.isatty():
        return _ANY_CONTROL.sub(_escape, text)
    return _OWN_COLOURS.sub(lambda found: found[1] or _escape(found), text)


def visible(text: str) -> str:
    """Text from anywhere with every control character, and mark of the direction of writing, as an
    escape of JSON; what no encoding has, too."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return _ANY_CONTROL.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    letters = _COLOUR.sub("", text)
    if letters.isascii():
        return len(letters)
    return sum(
        0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "FW")
        for one in letters
    )


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


def human_seconds(seconds: float) -> str:
    """A time for people: "12 s", "3.4 min", "2.0 h", "11.5 d"."""
    for unit, length, most in (("min", 60, 3600), ("h", 3600, 86400)):
        if length <= seconds < most:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 86400:.1f} d"
