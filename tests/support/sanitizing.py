"""Kernels as extensions under AddressSanitizer and UndefinedBehaviorSanitizer.

What was compiled is kept in `build/sanitized`, under a name that goes with all that it depends on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from logweir.wal.built import RECORD, TRANSLATED, digests

ROOT = Path(__file__).resolve().parents[2]
FLAGS = (
    "-O0",
    "-g1",
    "-shared",
    "-fPIC",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
KEPT = ROOT / "build" / "sanitized"
SMALL = {"FIRST_BYTES = 2048": "FIRST_BYTES = 8", "MOST_BYTES = 1 << 18": "MOST_BYTES = 8"}
SCARCE = """
#include <stdlib.h>
#include <string.h>
long memtable_allocations_left = -1;  // below 0: any number
static void *scarce_malloc(size_t size)
{
    if (memtable_allocations_left == 0)
        return NULL;
    if (memtable_allocations_left > 0)
        memtable_allocations_left--;
    return malloc(size);
}
#define malloc scarce_malloc
"""
FIND = """
import sys
from importlib.util import spec_from_file_location
from pathlib import Path
class Sanitized:
    files = {file.name.partition(".")[0]: file for file in Path(sys.argv[1]).glob("*.so")}
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        file = cls.files.get(name.rpartition(".")[2])
        return spec_from_file_location(name, file) if file else None
sys.meta_path.insert(0, Sanitized)
"""
PYTEST = """
import pytest
sys.exit(pytest.main(["-x", "--timeout", "450", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def environment() -> dict[str, str]:
    """What a process needs that loads such an extension. Skips where none can be compiled."""
    pytest.importorskip("Cython", reason="Cython is not installed: the kernel cannot be built here")
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: the kernel cannot be built here")
    return {
        **os.environ,
        "LD_PRELOAD": ":".join(_library(name) for name in ("libasan.so", "libubsan.so")),
        "PYTHONMALLOC": "malloc",  # so that every bytes object is a block that is watched
        "ASAN_OPTIONS": "detect_leaks=0:malloc_context_size=2",
    }


def _library(name: str) -> str:
    """A file of the compiler."""
    found = _told("gcc", f"-print-file-name={name}")
    if not Path(found).is_file():
        pytest.skip(f"the compiler has no {name}")
    return found


def _told(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def built(folder: Path, kernels: Mapping[str, Path]) -> dict[str, str]:
    """Make the extensions in a folder, memtables with arenas of one block an entry, and as much
    memory as `memtable_allocations_left` says. Returns the environment that they run in."""
    made = environment()
    for room in ("wal", "store", "replication", "pipeline"):
        for own in (ROOT / room).rglob("*.pxd"):
            types = folder / "types" / "logweir" / own.relative_to(ROOT)
            types.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(own, types)
    (folder / "scarce.h").write_text(SCARCE)
    for name, source in kernels.items():
        text = source.read_text()
        more: list[str] = []
        if name.endswith(".memtablekernel"):
            for large, small in SMALL.items():
                assert large in text
                text = text.replace(large, small)
            more = ["-include", str(folder / "scarce.h")]
        last = name.rpartition(".")[2]
        (folder / f"{last}{source.suffix}").write_text(text)  # beside what it becomes
        translated = folder / f"{last}.c"
        ready = ROOT / TRANSLATED / source.relative_to(ROOT).with_suffix(".c")
        if not more and ready.exists() and _is_of_setup(name, source):
            shutil.copyfile(ready, translated)
        else:
            translate(folder, f"{last}{source.suffix}", "-I", "types", "--module-name", name)
        compile_extension(translated, more)
    return made


def _is_of_setup(name: str, source: Path) -> bool:
    """Whether the installation has translated just what is here."""
    try:
        told = json.loads((ROOT / RECORD).read_bytes())
    except FileNotFoundError:
        return False
    return told.get(name) == digests(ROOT, {name: str(source.relative_to(ROOT))})[name]


def translate(folder: Path, *words: str) -> None:
    """Make C of a file in `folder`."""
    subprocess.run([sys.executable, "-m", "cython", "-3", *words], cwd=folder, check=True)


def compile_extension(source: Path, more: Sequence[str] = ()) -> None:
    """Make an extension of C, beside it. `more`: for the compiler."""
    digest = hashlib.sha256(source.read_bytes())
    for one in (_told("gcc", "--version"), *FLAGS, *more[:1], SCARCE, SUFFIX, sys.version):
        digest.update(one.encode())
    kept = KEPT / f"{source.stem}-{digest.hexdigest()}.so"
    if not kept.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        for old in KEPT.glob(f"{source.stem}-*"):
            old.unlink(missing_ok=True)
        made = KEPT / f"{kept.stem}.{os.getpid()}"
        include = f"-I{sysconfig.get_paths()['include']}"
        command = ["gcc", *FLAGS, include, *more, str(source), "-o", str(made)]
        subprocess.run(command, check=True)
        made.rename(kept)
    shutil.copyfile(kept, source.with_name(source.stem + SUFFIX))
