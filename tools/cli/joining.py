"""Copying a Tarantool master into a folder that is none yet, before it is opened."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from logweir.errors import ConfigError, Unreachable
from logweir.replication import loop
from logweir.replication.urls import Url
from logweir.tools.cli.output import Output
from logweir.tools.cli.peers import peer_url

_AGAIN_SECONDS: Final = 0.5
"""From one round of tries to the next."""


def join_if_new(
    out: Output,
    sources: Sequence[Url],
    directory: Path,
    *,
    wait: float,
    instance: uuid.UUID | None = None,
) -> None:
    """Copy the first of the Tarantool masters among `sources` that can be reached, unless the
    folder is a store already.
    Nothing of a copy that fails stays; its error is raised. `wait`: seconds in which each is tried
    again as long as none can be reached."""
    from logweir.wal.directory import scan_directory

    masters = [url for url in sources if url.scheme == "tarantool"]
    if not masters or (directory.is_dir() and scan_directory(directory).snaps):
        return
    # Imported here: most commands that could copy need no protocol for it.
    from logweir.replication.iproto.follow.join import join

    given_up = time.monotonic() + wait
    told: set[str] = set()
    for number, url in enumerate(itertools.cycle(masters), 1):
        try:
            joined = loop.run(join(url, directory, instance=instance))
        except Unreachable as error:
            is_round = number % len(masters) == 0
            left = given_up - time.monotonic()
            if is_round and left <= 0:
                raise
            if error.message not in told:
                told.add(error.message)
                out.warning(f"{error.message}{f'; waiting {left:.0f} s for it' if wait else ''}")
            if is_round:
                time.sleep(min(_AGAIN_SECONDS, left))
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
    from logweir.replication.iproto.follow.join import join

    joined = loop.run(join(url, folder))
    out.message(f"{url}: {joined.rows} rows up to {joined.vclock.without_local()}")
    return folder
