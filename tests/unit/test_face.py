"""`import logweir`: its names, and that nothing heavy is loaded before it is used."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import logweir
from logweir import aio, errors
from logweir.tools.apipage import CLASSES, FUNCTIONS

_MADE = (property, classmethod, staticmethod)


def test_every_public_name_is_there() -> None:
    """Each name of `__all__` can be had, and `dir` shows it."""
    for name in logweir.__all__:
        assert getattr(logweir, name) is not None
    assert set(logweir.__all__) <= set(dir(logweir))


def test_errors_are_the_same_classes() -> None:
    """Errors of the face are those of `logweir.errors`."""
    assert logweir.RecoveryRefused is errors.RecoveryRefused


def test_unknown_name_is_an_attribute_error() -> None:
    """A name that is not there is told as for any module."""
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        logweir.nothing  # noqa: B018


def test_import_loads_neither_store_nor_log() -> None:
    """`import logweir` is cheap: readers do not pay for the store, nor `--help` for either."""
    code = (
        "import sys, logweir\n"
        "heavy = {'lmdb', 'backports.zstd', 'msgpack', 'logweir.store', 'logweir.wal.reader'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_version_is_that_of_the_package() -> None:
    """The version in the code is the one that is installed."""
    from importlib.metadata import version

    assert logweir.__version__ == version("logweir")


@pytest.mark.parametrize("path", CLASSES)
def test_public_methods_stand_in_the_reference(path: str) -> None:
    """A class shows programs what docs/api.md tells of, and nothing else."""
    kind = pkgutil.resolve_name(path)
    shown = {
        name
        for base in kind.__mro__
        if base.__module__.startswith("logweir")
        for name, found in vars(base).items()
        if not name.startswith("_") and (callable(found) or isinstance(found, _MADE))
    }
    assert shown == set(CLASSES[path])


def test_a_name_is_not_told_twice() -> None:
    """The reference's lists hold each name once, and those of `logweir.aio` are its `__all__`."""
    for names in (*CLASSES.values(), *FUNCTIONS.values()):
        assert len(names) == len(set(names))
    assert set(FUNCTIONS["logweir.aio"]) | {"AsyncLog", "AsyncTransaction"} == set(aio.__all__)
