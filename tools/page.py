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


def _marks(command: str) -> tuple[str, str]:
    return f"<!-- written by `{command}`: begin -->", f"<!-- written by `{command}`: end -->"


def check_page(path: Path, command: str) -> None:
    """Raises `ConfigError` if `path` is no page with a place for what `command` writes, and cannot
    be made as one."""
    begin, end = _marks(command)
    try:
        text = _text(path, command)
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            "--page",
            f"{path} cannot be written: {reason}",
            hint="name a page, or a new file in a folder that is there",
        ) from error
    if not -1 < text.find(begin) < text.find(end):
        raise ConfigError(
            "--page",
            f"{path} has no place for what was measured",
            hint=f"put the lines `{begin}` and `{end}` where it belongs",
        )


def _text(path: Path, command: str) -> str:
    """The page, or one that has nothing but the place. Raises `OSError`, `UnicodeDecodeError`."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise
        return "\n".join((f"# {command}", "", *_marks(command), ""))


def read_section(path: Path, command: str) -> str:
    """What stands in that part of a page that `check_page` took."""
    begin, end = _marks(command)
    return path.read_text("utf-8").partition(begin)[2].partition(end)[0]


def write_page(path: Path, command: str, section: Iterable[str]) -> None:
    """Write that part of a page that `check_page` took, in lines, and nothing else of it; one that
    is not there is made."""
    begin, end = _marks(command)
    text = _text(path, command)
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    lines = "\n".join(section)
    path.write_text(f"{before}{begin}\n{lines}\n{end}{after}", "utf-8")
