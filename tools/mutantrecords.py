"""What is remembered of mutants: which change nothing that can be seen, what came of others.

`tests/equivalents.toml` has changes that leave a program that does the same, each with `file`, the
`line` that it is in, the `text` that is `into` another, and `why`: they are not drawn again.
Results are lines of JSON, one for each mutant that was run; a run that is given them goes on behind
them: what was killed is not run again while its file is what it was.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

EQUIVALENTS: Final = Path("tests/equivalents.toml")


class Equivalent(NamedTuple):
    """A change after which a program does the same."""

    file: str
    line: str
    text: str
    into: str


def read_equivalents(root: Path) -> dict[Equivalent, str]:
    """Those of a tree, each with the reason. Raises `ValueError` with the file's name."""
    path = root / EQUIVALENTS
    if not path.is_file():
        return {}
    try:
        found = tomllib.loads(path.read_text("utf-8"))["equivalent"]
        return {Equivalent(**one): why for one in found if (why := one.pop("why"))}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error


def stale_equivalent(one: Equivalent, root: Path) -> str:
    """Why it is none of the tree's; "" if it is."""
    path = root / one.file
    if not path.is_file():
        return f"there is no {one.file}"
    lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    return "" if one.line in lines else f"{one.line!r} is no line of {one.file}"


@dataclass(frozen=True, slots=True)
class Results:
    """A file of results; without a path nothing is kept."""

    path: Path | None
    known: dict[str, dict[str, Any]]

    @classmethod
    def at(cls, path: Path | None) -> Results:
        """Those of a file, which need not be there; of two of one mutant the later one counts."""
        known = {}
        if path is not None and path.is_file():
            for line in path.read_text("utf-8").splitlines():
                one = json.loads(line)
                known[one["key"]] = one
        return cls(path, known)

    @staticmethod
    def key(source: str, name: str, breaks: str) -> str:
        """What a mutant is known by: its name, what it does, and the sound file."""
        return hashlib.sha256(f"{name}\0{breaks}\0{source}".encode()).hexdigest()[:16]

    def add(self, key: str, told: Mapping[str, Any]) -> None:
        """Keep what came of one."""
        self.known[key] = {"key": key, **told}
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(self.known[key], ensure_ascii=False) + "\n")
