"""Build script: everything is in pyproject.toml but the compiled kernels.

Kernels that end in `.py` are plain Python files that Cython compiles in pure Python mode; where no
compiler is present the same files run interpreted. Those that end in `.pyx` are Cython alone: a
plain Python module of other code does the same where they are missing. What a `.pyx` links stands
in its first lines (`# distutils: libraries = …`). All are optional, each by itself (`logweir info`
says which are there). Set LOGWEIR_PURE=1 to leave them uncompiled on purpose.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

# The package is not there yet: what `wal/built.py` says.
BUILT: dict[str, Any] = {}
exec(Path("wal/built.py").read_text(), BUILT)  # noqa: S102
KERNELS: dict[str, str] = BUILT["KERNELS"]

# What Cython adds to a kernel that takes buffers is as large as most kernels: one module has it for
# all, written by Cython. They import it, and cannot be imported where it is missing.
SHARED = "logweir.wal.sharedkernel"

# Cython looks for a kernel's types by its module's name; the folder here need not be `logweir`.
TYPES = Path(BUILT["TRANSLATED"], "types")


# What a kernel links, by pkg-config's name for it: where headers and library are, if not where the
# compiler looks anyway.
LINKED = {
    "logweir.wal.zstdkernel": "libzstd",
    "logweir.store.state.lmdbkernel": "lmdb",
    "logweir.store.state.applykernel": "lmdb",
    "logweir.store.state.basekernel": "lmdb",
}


def flags(name: str) -> dict[str, list[str]]:
    """What the compiler and the linker are told of a kernel."""
    # The road of a commit is calls, not loops over bytes: -Os costs it 0.7 % of its instructions
    # and saves four tenths of its size.
    told = {"extra_compile_args": ["-O3" if name.endswith("kernel") else "-Os", "-g0"]}
    if sys.platform == "linux":
        # Symbols of names would be half of what is installed; nothing is unwound in C, and what is
        # run may stand in a page with what is read.
        told["extra_compile_args"] += ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]
        told["extra_link_args"] = ["-s", "-Wl,-z,noseparate-code"]
    if library := LINKED.get(name):
        found = shutil.which("pkg-config")
        for key, kind in (("extra_compile_args", "--cflags"), ("extra_link_args", "--libs")):
            if found:
                said = subprocess.run(  # noqa: S603 of names that stand above
                    [found, kind, library], capture_output=True, text=True
                )
                told[key] = [*told.get(key, []), *shlex.split(said.stdout)]
    return told


def extensions() -> list[Extension]:
    if os.environ.get("LOGWEIR_PURE") == "1":
        return []
    from Cython.Build import cythonize

    for room in {Path(source).parent for source in KERNELS.values()}:
        (TYPES / "logweir" / room).mkdir(parents=True, exist_ok=True)
        for types in room.glob("*.pxd"):
            shutil.copy2(types, TYPES / "logweir" / types)  # with its time: else all is old
    found = cythonize(
        [
            Extension(SHARED, [], **flags(SHARED)),
            *(
                Extension(name, [source], **flags(name))
                for name, source in KERNELS.items()
                if os.path.exists(source)
            ),
        ],
        compiler_directives={"auto_pickle": False},  # it would be a tenth of what is calls
        include_path=[str(TYPES)],
        language_level=3,
        build_dir=BUILT["TRANSLATED"],
        shared_utility_qualified_name=SHARED,
        nthreads=(os.cpu_count() or 1) if sys.platform == "linux" else 0,  # they are forked
    )
    for extension in found:
        extension.optional = True  # `cythonize` makes new ones, which do not keep it
    return found


class Recording(build_ext):
    """Uses all processors; leaves word beside sources of what it compiled, for `wal/built.py`."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self) -> None:
        super().run()
        if self.editable_mode or self.inplace:
            record = Path(BUILT["RECORD"])
            record.parent.mkdir(exist_ok=True)
            record.write_text(json.dumps(BUILT["digests"](Path(), KERNELS)))


# What only works in a checkout, beside the tests and the documentation.
OF_CHECKOUTS = {"kernelmutants", "linetrace", "mutantforks", "mutantrecords", "mutanttree"}
OF_CHECKOUTS |= {"mutate", "randommutants", "apipage", "docs", "manpage", "vectors"}
OF_CHECKOUTS |= {"audit", "tour"}


class OfLibrary(build_py):
    """Leaves out what is no part of what is installed. The package's folder is the root, so this
    file would be taken for a module of it."""

    def find_package_modules(self, package, package_dir):  # type: ignore[no-untyped-def]
        modules = super().find_package_modules(package, package_dir)
        return [
            one
            for one in modules
            if one[:2] != ("logweir", "setup")
            and not (one[0] == "logweir.tools" and one[1] in OF_CHECKOUTS)
        ]


setup(ext_modules=extensions(), cmdclass={"build_ext": Recording, "build_py": OfLibrary})
