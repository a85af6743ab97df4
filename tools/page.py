"""Pages of the documentation of which a command writes a part, between two marks."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from logweir.errors import ConfigError


def find_root() -> Path:
    """The folder of the project's sources, which holds docs/ and README.md."""
    root = Path(__file__).resolve().parents[1]
    if not (root / "docs").is_dir():
        raise SystemExit(f"{root} has no docs: run this from the project's sources")
    return root


def row(values: Iterable[str]) -> str:
    """One row of a table."""
    return f"| {' | '.join(values)} |"


class Page:
    """A page's part that `command` writes."""

    def __init__(self, command: str) -> None:
        self._title = f"# {command}"
        self._begin = f"<!-- written by `{command}`: begin -->"
        self._end = f"<!-- written by `{command}`: end -->"

    def check(self, path: Path) -> None:
        """Raises `ConfigError` if `path` is no page with a place for it, and cannot be made as
        one."""
        try:
            text = self._text(path)
            if not os.access(path if path.exists() else path.parent, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(
                "--page",
                f"{path} cannot be written: {reason}",
                hint="name a page, or a new file in a folder that is there",
            ) from error
        if not -1 < text.find(self._begin) < text.find(self._end):
            raise ConfigError(
                "--page",
                f"{path} has no place for what was measured",
                hint=f"put the lines `{self._begin}` and `{self._end}` where it belongs",
            )

    def _text(self, path: Path) -> str:
        """The page, or one that has nothing but the place. Raises `OSError`,
        `UnicodeDecodeError`."""
        try:
            return path.read_text("utf-8")
        except FileNotFoundError:
            if not path.parent.is_dir():
                raise
            return "\n".join((self._title, "", self._begin, self._end, ""))

    def read(self, path: Path) -> str:
        """What stands in that part of a page that `check` took."""
        return path.read_text("utf-8").partition(self._begin)[2].partition(self._end)[0]

    def write(self, path: Path, section: Iterable[str]) -> None:
        """Write that part of a page that `check` took, in lines, and nothing else of it; one that
        is not there is made."""
        before, _, rest = self._text(path).partition(self._begin)
        after = rest.partition(self._end)[2]
        lines = "\n".join(section)
        path.write_text(f"{before}{self._begin}\n{lines}\n{self._end}{after}", "utf-8")
