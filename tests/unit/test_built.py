"""`wal.built`: a kernel that was compiled from another source is named before it does harm."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path

import pytest

import logweir
from logweir.compiled import FINDER, KERNELS, SHARED, Kernels
from logweir.wal import kernel
from logweir.wal.built import RECORD, _types, check_kernels, digests

if kernel.COMPILED:
    from logweir import kernels

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {"logweir.wal.kernel": "wal/kernel.py", "logweir.store.a.bkernel": "store/a/bkernel.pyx"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two kernels, with what was compiled of them, and the types of one."""
    for name in (*SOURCES.values(), "store/a/bkernel.pxd"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"source of {name}")
    (tmp_path / "kernels.cpython-311.so").touch()
    (tmp_path / "build").mkdir()
    (tmp_path / RECORD).write_text(json.dumps(digests(tmp_path, SOURCES)))
    return tmp_path


def test_kernels_of_their_sources_are_used(checkout: Path) -> None:
    """Also where nothing says what they were compiled from, as in an installed package."""
    check_kernels(checkout)
    (checkout / "wal/kernel.py").write_text("another")
    (checkout / RECORD).write_text("no JSON")
    check_kernels(checkout)
    (checkout / RECORD).unlink()
    check_kernels(checkout)


def test_a_kernel_of_another_source_is_named(checkout: Path) -> None:
    """That one alone; and none where none is there, so that their sources are what runs."""
    (checkout / "store/a/bkernel.pyx").write_text("another")
    with pytest.raises(ImportError, match=r"logweir\.store\.a\.bkernel; `pip install") as found:
        check_kernels(checkout)
    assert "logweir.wal.kernel" not in str(found.value)
    (checkout / "kernels.cpython-311.so").unlink()
    check_kernels(checkout)
    (checkout / "store/a/bkernel.cpython-311.so").touch()  # one of its own, as of an older build
    with pytest.raises(ImportError, match=r"logweir\.store\.a\.bkernel; `pip install"):
        check_kernels(checkout)


def test_other_types_make_all_kernels_old(checkout: Path) -> None:
    """They are written into each kernel that uses them."""
    (checkout / "store/a/bkernel.pxd").write_text("another")
    with pytest.raises(ImportError, match=r"logweir\.wal\.kernel, logweir\.store\.a\.bkernel"):
        check_kernels(checkout)


@pytest.mark.skipif(not kernel.COMPILED, reason="nothing was compiled")
def test_this_checkout_has_the_word_of_its_build() -> None:
    """`setup.py` left it, for every kernel that is there."""
    told = json.loads((ROOT / RECORD).read_text())
    assert digests(ROOT, {name: source for name, (source, _) in told.items()}) == told
    assert "logweir.store.engine.statementkernel" in told


def test_all_that_kernels_are_made_of_counts() -> None:
    """In folders of any depth: for the word of the build, and for whether `tools/setup.sh` has to
    compile them again."""
    rooms = [ROOT / room for room in ("wal", "store", "replication", "pipeline")]
    types = {path for room in rooms for path in room.rglob("*.px[di]")}
    sources = {path for room in rooms for path in (*room.rglob("*.pyx"), *room.rglob("*kernel.py"))}
    script = '. tools/setup.sh; cd -- "$LOGWEIR_ROOT"; printf "%s\\n" $LOGWEIR_SOURCES'
    told = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    compiled = json.loads((ROOT / RECORD).read_text()).values() if kernel.COMPILED else ()
    sources |= {ROOT / source for source, _ in compiled}
    assert len(sources) > 20
    assert types - set(_types(ROOT)) == set()
    counted = {ROOT / name for name in told.stdout.split()}
    assert types | sources <= counted
    assert not [path for path in counted if ROOT / "tests" in path.parents]  # nothing of them


@pytest.mark.skipif(not kernel.COMPILED, reason="nothing was compiled")
def test_all_kernels_are_in_one_extension(tmp_path: Path) -> None:
    """And come from there, but where one has an extension of its own beside its source."""
    assert {str(importlib.import_module(name).__file__) for name in KERNELS} == {kernels.__file__}
    assert kernels.names == {*KERNELS, SHARED}
    assert FINDER.find_spec("logweir.wal.kernel", [str(tmp_path)]) is not None
    (tmp_path / f"kernel{EXTENSION_SUFFIXES[0]}").touch()
    assert FINDER.find_spec("logweir.wal.kernel", [str(tmp_path)]) is None
    assert FINDER.find_spec("logweir.wal.writer", [str(tmp_path)]) is None
    assert kernels.create(ModuleSpec("logweir.wal.writer", FINDER)) is None


def test_an_extension_that_cannot_be_loaded_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The sources run then, as they do where there is none, which is nothing to be told."""
    monkeypatch.delitem(sys.modules, "logweir.kernels", raising=False)
    monkeypatch.setattr(logweir, "__path__", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [PathFinder])
    for there, told in ((False, ""), (True, "file too short")):
        if there:
            (tmp_path / f"kernels{EXTENSION_SUFFIXES[0]}").touch()
        importlib.invalidate_caches()
        finder = Kernels()
        assert finder.find_spec("logweir.wal.kernel", []) is None
        assert told in finder.broken
        assert bool(finder.broken) is there


def test_kernels_are_looked_for_once_whoever_else_finds_modules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program may have its own finder in the place of that of files; modules are loaded again."""
    finder, other = Kernels(), object()
    for before, then in (
        ([other, PathFinder], [other, finder, PathFinder]),
        ([other], [finder, other]),
    ):
        monkeypatch.setattr(sys, "meta_path", before)
        for _ in range(2):
            finder.install()
        assert sys.meta_path == then


@pytest.mark.parametrize("of", ["these", "other"])
def test_an_added_extra_builds_nothing_anew(of: str, tmp_path: Path) -> None:
    """Where the sources are those that are installed, what the extra needs is all that is."""
    (tmp_path / "bin").mkdir()
    for name in ("python", "logweir"):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    script = f"""
        . tools/setup.sh
        LOGWEIR_VENV={tmp_path} LOGWEIR_STAMP={tmp_path}/stamp
        compiled_kernels() {{ [ {of} = other ] || echo one; }}
        pip_install() {{ echo "$*"; [ "$1" != -r ] || cat "$2"; }}
        setup_reader() {{ :; }}
        setup_compiler() {{ :; }}
        install_programs() {{ :; }}
        link_types() {{ :; }}
        if [ {of} = these ]; then fingerprint >"$LOGWEIR_STAMP"; else echo 1-2 >"$LOGWEIR_STAMP"; fi
        stamp_add compiled types extra:test
        logweir_setup test check
        cat "$LOGWEIR_STAMP"
    """
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *others, stamp = done.stdout.splitlines()
    assert "extra:test" in stamp
    assert "extra:check" in stamp
    if of == "these":
        assert first == f"-r {tmp_path}/.logweir-extras"
        assert any(one.startswith("ruff>") for one in others)
        assert not any("logweir" in one for one in others)
    else:
        assert (first, others) == ("-e .[all,test,check]", [])
