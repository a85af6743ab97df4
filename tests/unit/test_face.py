"""`import logweir`: its names, and that nothing heavy is loaded before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import logweir
from logweir import errors


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
