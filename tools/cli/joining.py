"""Copying a Tarantool master into a folder that is none yet, before it is opened."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from logweir.errors import ConfigError, Unreachable
from logweir.replication import loop
from logweir.replication.iproto.follow.join import join
from logweir.replication.urls import Url
from logweir.tools.cli.output import Output
from logweir.tools.cli.peers import peer_url
from logweir.wal.directory import scan_directory

__all__ = ["copy_server", "copyable", "join_if_new"]


def join_if_new(
    out: Output, sources: Sequence[Url], directory: Path, *, instance: uuid.UUID | None = None
) -> None:
    """Copy the first of the Tarantool masters among `sources` that can be reached, unless the
    folder is a store already. Nothing of a copy that fails stays; its error is raised."""
    masters = [url for url in sources if url.scheme == "tarantool"]
    if not masters or (directory.is_dir() and scan_directory(directory).snaps):
        return
    for number, url in enumerate(masters, 1):
        try:
            joined = loop.run(join(url, directory, instance=instance))
        except Unreachable as error:
            if number == len(masters):
                raise
            out.warning(str(error))
        else:
            out.message(f"copied {joined.rows} rows of {url} up to {joined.vclock}")
            for warning in joined.warnings:
                out.warning(warning)
            return


def copyable(text: str) -> Url:
    """The address of a server that can be copied. Raises `ConfigError`."""
    url = peer_url(text)
    if url.scheme != "tarantool":
        raise ConfigError(
            "URL",
            f"{url.scheme} cannot be copied as of one position",
            hint="follow it into a folder, or name its tarantool:// listener",
            origin="argument",
        )
    return replace(url, options=(*url.options, ("anonymous", "1")))


def copy_server(out: Output, url: Url, folder: Path) -> Path:
    """A copy of all that a `copyable` server holds, without a place in its replica set."""
    joined = loop.run(join(url, folder))
    out.message(f"{url}: {joined.rows} rows up to {joined.vclock.without_local()}")
    return folder
