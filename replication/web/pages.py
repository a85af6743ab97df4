"""The files of the page, which `files` holds."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def page_file(name: str) -> str:
    """The text of one of the page's files; `base.css` is also that of `logweir report`."""
    return resources.files("logweir.replication.web").joinpath("files", name).read_text("utf-8")
