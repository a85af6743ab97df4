"""Build script: everything is in pyproject.toml but the compiled kernels.

Kernels that end in `.py` are plain Python files that Cython compiles in pure Python mode; where no
compiler is present the same files run interpreted. Those that end in `.pyx` are Cython alone: a
plain Python module of other code does the same where they are missing. What a `.pyx` links stands
in its first lines (`# distutils: libraries = …`). All that can be compiled become one extension,
`logweir.kernels` (see `compiled.py`); one that cannot is left out by itself (`logweir info` says
which are there). Set LOGWEIR_PURE=1 to leave them uncompiled on purpose.
"""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

# The package is not there yet: what two of its modules say.
BUILT: dict[str, Any] = {"__name__": "built"}
for module in ("wal/built.py", "compiled.py"):
    exec(Path(module).read_text(), BUILT)  # noqa: S102
KERNELS: dict[str, str] = BUILT["KERNELS"]
SHARED: str = BUILT["SHARED"]

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


CALLS = {"portkernel", "stackkernel"}
"""Kernels that are like the road of a commit: calls, not loops over bytes."""


def flags(name: str) -> dict[str, list[str]]:
    """What the compiler and the linker are told of a kernel."""
    # Of the road of a commit -Os costs 0.7 % of its instructions and saves four tenths of its size.
    is_loops = name.endswith("kernel") and name.rpartition(".")[2] not in CALLS
    told = {"extra_compile_args": ["-O3" if is_loops else "-Os", "-g0"]}
    if sys.platform == "linux":
        # Nothing is unwound in C.
        told["extra_compile_args"] += ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]
    if library := LINKED.get(name):
        found = shutil.which("pkg-config")
        for key, kind in (("extra_compile_args", "--cflags"), ("extra_link_args", "--libs")):
            if found:
                said = subprocess.run(  # noqa: S603 of names that stand above
                    [found, kind, library], capture_output=True, text=True
                )
                told[key] = [*told.get(key, []), *shlex.split(said.stdout)]
    return told


def translated() -> list[Extension]:
    """Each kernel as C, and what the compiler and the linker are told of it."""
    from Cython.Build import cythonize

    for room in {Path(source).parent for source in KERNELS.values()}:
        (TYPES / "logweir" / room).mkdir(parents=True, exist_ok=True)
        for types in room.glob("*.pxd"):
            shutil.copy2(types, TYPES / "logweir" / types)  # with its time: else all is old
    found: list[Extension] = cythonize(
        [
            Extension(SHARED, [], **flags(SHARED)),
            *(
                Extension(name, [source], **flags(name))
                for name, source in KERNELS.items()
                if os.path.exists(source)
            ),
        ],
        # Pickling would be a tenth of what is calls, and so would functions that tell about
        # themselves as those of Python do.
        compiler_directives={"auto_pickle": False, "binding": False},
        include_path=[str(TYPES)],
        language_level=3,
        build_dir=BUILT["TRANSLATED"],
        shared_utility_qualified_name=SHARED,
        nthreads=(os.cpu_count() or 1) if sys.platform == "linux" else 0,  # they are forked
    )
    return found


class Kernels(build_ext):
    """One extension of all kernels that can be compiled, by all processors. Leaves word beside the
    sources of what it compiled, for `wal/built.py`."""

    def run(self) -> None:
        super().run()
        if self.editable_mode or self.inplace:
            for source in KERNELS.values():  # those of before would count instead
                for old in Path(source).parent.glob(f"{Path(source).stem}.*.so"):
                    old.unlink()
            record = Path(BUILT["RECORD"])
            record.parent.mkdir(exist_ok=True)
            record.write_text(json.dumps(BUILT["digests"](Path(), KERNELS)))

    def build_extension(self, ext: Extension) -> None:
        kernels = translated()
        told = repr((sysconfig.get_config_var("SOABI"), self.compiler.compiler_so))
        objects = Path(BUILT["TRANSLATED"], hashlib.sha256(told.encode()).hexdigest()[:12])
        objects.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiled = [*pool.map(lambda kernel: self.compiled(kernel, objects), kernels)]
        there = [kernel for kernel, made in zip(kernels, compiled, strict=True) if made]
        table = "".join(f'KERNEL("{one.name}", {init_of(one.name)})\n' for one in there)
        (objects / "kernels.h").write_text(table)
        ext.include_dirs = [str(objects)]
        ext.extra_objects = [made for made in compiled if made]
        ext.libraries = sorted({library for one in there for library in one.libraries})
        ext.extra_link_args += [word for one in there for word in one.extra_link_args]
        self.force = True  # the table is not among the sources
        super().build_extension(ext)

    def compiled(self, kernel: Extension, objects: Path) -> str:
        """Its object, made anew where it is older than its C and this file; or nothing."""
        (source,) = kernel.sources
        made = objects / f"{kernel.name}.o"
        if made.exists() and made.stat().st_mtime > max(map(os.path.getmtime, (source, __file__))):
            return str(made)
        last = kernel.name.rpartition(".")[2]
        try:
            (new,) = self.compiler.compile(
                [source],
                output_dir=str(objects),
                macros=[(f"PyInit_{last}", init_of(kernel.name))],
                include_dirs=kernel.include_dirs,
                extra_postargs=kernel.extra_compile_args,
            )
        except CompileError as error:
            made.unlink(missing_ok=True)
            self.warn(f"{kernel.name} is left out: {error}")
            return ""
        os.replace(new, made)
        return str(made)


def init_of(name: str) -> str:
    """The function that makes a kernel's module: in one library each needs its own name."""
    return f"PyInit_{name.replace('.', '_')}"


def extensions() -> list[Extension]:
    if os.environ.get("LOGWEIR_PURE") == "1":
        return []
    # Symbols of names would be half of what is installed; what is run may stand in a page with
    # what is read.
    told = ["-s", "-Wl,-z,noseparate-code"] if sys.platform == "linux" else []
    return [Extension("logweir.kernels", ["wal/kernels.c"], extra_link_args=told, optional=True)]


# By package, what only works in a checkout, beside the tests and the documentation.
OF_CHECKOUTS = {
    "logweir": {"setup"},
    "logweir.testing": {
        *("figures", "histories", "measuring", "meshing", "operations", "surroundings"),
    },
    "logweir.tools": {
        *("kernelmutants", "linetrace", "mutantforks", "mutantrecords", "mutanttree", "mutate"),
        *("randommutants", "apipage", "docs", "manpage", "vectors", "audit", "tour"),
    },
}


class OfLibrary(build_py):
    """Leaves out what is no part of what is installed. The package's folder is the root, so this
    file would be taken for a module of it."""

    def find_package_modules(self, package, package_dir):  # type: ignore[no-untyped-def]
        modules = super().find_package_modules(package, package_dir)
        return [one for one in modules if one[1] not in OF_CHECKOUTS.get(one[0], ())]


setup(ext_modules=extensions(), cmdclass={"build_ext": Kernels, "build_py": OfLibrary})
