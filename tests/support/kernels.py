"""Kernels as plain Python, to compare the compiled ones with."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from logweir.replication.iproto.wire import codec


def interpreted(name: str, source: Path) -> ModuleType:
    """A kernel's file, run as it is."""
    spec = importlib.util.spec_from_file_location(name, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_HERE = Path(codec.__file__).parent
PLAIN_WAL = interpreted("interpreted_wal_kernel", _HERE.parents[1] / "wal" / "kernel.py")
PLAIN_IPROTO = interpreted("interpreted_iproto_kernel", _HERE / "kernel.py")
PLAIN_IPROTO.__dict__["rows"] = PLAIN_WAL
PLAIN_TANK = interpreted("interpreted_tank_kernel", _HERE.parent / "tank" / "kernel.py")
