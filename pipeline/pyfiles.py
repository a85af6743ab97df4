"""The package as one zip file, for clusters where it is not installed: `--py-files`.

It holds what tasks import (no command line, nothing compiled: the kernels run interpreted there,
which is slower) and the module by which Spark finds the format. What the package depends on must be
installed where the tasks run: msgpack, numpy, pyarrow, pandas, crcmod, backports.zstd.
"""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from logweir import errors
from logweir.errors import ConfigError
from logweir.pipeline.options import place_text
from logweir.wal.filesystem import explain

_ROOMS: Final = ("wal", "recovery", "store", "replication", "pipeline")
_EARLIEST: Final = (1980, 1, 1, 0, 0, 0)


def py_files(path: str | Path) -> str:
    """Write the package as a zip file, the same bytes each time. Returns its path.

    For `spark-submit --py-files logweir.zip` or `spark.sparkContext.addPyFile`. Raises
    `ConfigError` for another ending than .zip, `WalError` if it cannot be written.
    """
    target = Path(place_text("path", path))
    if target.suffix != ".zip":
        raise ConfigError("path", f"{target} does not end in .zip, by which Python knows it.")
    root = Path(str(errors.__file__)).parent
    found = {f"logweir/{file.name}": file for file in root.glob("*.py") if file.name != "setup.py"}
    for room in _ROOMS:
        for file in sorted((root / room).rglob("*")):
            if file.suffix in (".py", ".msgpack") and "discovery" not in file.parts:
                found[f"logweir/{file.relative_to(root).as_posix()}"] = file
    discovered = find_spec("pyspark_logweir")
    if discovered is not None and discovered.origin is not None:
        found["pyspark_logweir.py"] = Path(discovered.origin)
    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as out:
            for name, file in sorted(found.items()):
                out.writestr(zipfile.ZipInfo(name, _EARLIEST), file.read_bytes())
    except OSError as error:
        raise explain(error, str(target)) from error
    return str(target)
