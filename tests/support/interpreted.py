"""A plug-in of pytest (`-p support.interpreted`): the road of a commit as plain Python.

Compiled code is not interrupted between its lines, nor seen by a trace. Where what each line leaves
behind is to be looked at, the same files run as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
FILES = {
    f"logweir.{room.replace('/', '.')}.{path.stem}": path.with_suffix(".py")
    for room in ("store/commit", "store/state", "wal")
    for path in (ROOT / room).glob("*.pxd")
    if not path.stem.endswith("kernel") and path.with_suffix(".py").exists()
}


class Interpreted(MetaPathFinder):
    """Finds the source of a module that was compiled under its own name."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        return spec_from_file_location(name, FILES[name]) if name in FILES else None


sys.meta_path.insert(0, Interpreted())


def pytest_sessionfinish() -> None:
    ran = {name: str(sys.modules[name].__file__) for name in FILES if name in sys.modules}
    assert ran
    assert [file for file in ran.values() if not file.endswith(".py")] == []
