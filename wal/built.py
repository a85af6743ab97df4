"""Whether the compiled kernels of a checkout are those of its sources.

`setup.py` leaves word of what it compiled where the sources stand beside it; an installed package
has no such record, and nothing to compare.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

RECORD = "build/kernels.json"
TRANSLATED = "build/c"
"""Where `setup.py` has Cython put the C of kernels, and what is compiled of it."""


def digests(root: Path, sources: dict[str, str]) -> dict[str, list[str]]:
    """Of each kernel its source and the digest of that and of all types that kernels share."""
    types = b"".join(path.read_bytes() for path in _types(root))
    return {
        name: [source, hashlib.sha256((root / source).read_bytes() + types).hexdigest()]
        for name, source in sources.items()
    }


def _types(root: Path) -> Iterable[Path]:
    rooms = ("wal", "store/*", "replication", "replication/*", "replication/*/*", "pipeline")
    return sorted(path for room in rooms for path in root.glob(f"{room}/*.px[di]"))


def check_kernels(root: Path) -> None:
    """Raises ImportError where a kernel was compiled from another source than the one that is
    there: it would do what the source did then, or fail anywhere."""
    try:
        told = json.loads((root / RECORD).read_bytes())
        now = digests(root, {name: source for name, (source, _) in told.items()})
    except (OSError, ValueError):
        return
    stale = [
        name
        for name, (source, _) in told.items()
        if now[name] != told[name]
        and [*root.glob("kernels.*.so"), *root.glob(f"{source.partition('.')[0]}.*.so")]
    ]
    if stale:
        raise ImportError(
            f"compiled from other sources than those that are here: {', '.join(stale)}; "
            "`pip install -e .` compiles them again, and so do tools/run and tools/test"
        )
