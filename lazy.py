"""Packages whose names are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `homes`: the module of each name, or `module:name` where it
    has another one there."""

    def found(name: str) -> Any:
        """A name of the package that is not loaded yet. Raises `AttributeError`."""
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, there = homes[name].partition(":")
        value = getattr(import_module(module), there or name)
        setattr(sys.modules[package], name, value)
        return value

    return found
