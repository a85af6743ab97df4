"""Copying a Tarantool master into a folder that is none yet, before it is opened, or anew."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from logweir.errors import ConfigError, LogweirError, SourceStopped, Unreachable
from logweir.replication import loop
from logweir.replication.urls import Url
from logweir.tools.cli.output import Output
from logweir.tools.cli.peers import peer_url
from logweir.wal.filesystem import OS, explaining, make_folders, unopened
from logweir.wal.vclock import VClock

_T = TypeVar("_T")

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
    if not masters:
        return
    with _claimed(directory):
        if scan_directory(directory).snaps:
            return
        # Imported here: most commands that could copy need no protocol for it.
        from logweir.replication.iproto.follow.join import join

        url, joined = _of_first(
            out, masters, wait, lambda url: join(url, directory, instance=instance)
        )
    out.message(f"copied {joined.rows} rows of {url} up to {joined.vclock}")
    for warning in joined.warnings:
        out.warning(warning)


@contextmanager
def _claimed(directory: Path) -> Iterator[None]:
    """Around filling a folder, which is made if need be: nobody else opens or fills it meanwhile.
    Raises `DirectoryLocked`, other `WalError`."""
    is_new = not directory.exists()
    with explaining(directory):
        make_folders(OS, directory)
    with unopened(directory, alone=True):
        try:
            yield
        finally:
            if is_new:
                with suppress(OSError):  # it was filled
                    directory.rmdir()


def put_aside(
    out: Output, source: Url, directory: Path, *, wait: float, drops_rows: bool
) -> uuid.UUID | None:
    """Rename the old copy of a master, which is asked first whether it has all rows of that.
    Returns the UUID of the copy, so that it keeps its place in `_cluster`.

    Raises `SourceStopped` if the copy has rows that the master has not, unless it `drops_rows`: of
    another replica set the master has none; `DirectoryLocked` if it is in use; what connecting
    raises. Nothing is renamed then.
    """
    from logweir.recovery import examine
    from logweir.store.recover.defined import folder_definitions
    from logweir.wal.directory import scan_directory

    if not directory.exists():
        return None
    with unopened(directory, alone=True):
        _, (theirs, there) = _of_first(out, [source], wait, _position)
        ours = None
        with suppress(LogweirError):  # of a folder that cannot be read nothing tells it
            ours = folder_definitions(directory).replicaset
        if None not in (ours, theirs) and ours != theirs:
            out.warning(f"{directory} belongs to replica set {ours}, {source} to {theirs}")
            there = VClock()
        if lost := _lacking(examine(directory).vclock, there):
            if not drops_rows:
                raise SourceStopped(
                    f"{source} has not all rows of {directory}: a new copy would be without {lost}",
                    hint="serve the folder and let the upstream follow it, until it has them; with "
                    "--drop-rows the copy is made without them, and the old folder put aside",
                )
            out.warning(f"the new copy is without {lost}")
        instance = scan_directory(directory).instance
        number = 1
        while (aside := directory.with_name(f"{directory.name}.before-rejoin-{number}")).exists():
            number += 1
        OS.rename(directory, aside)
    OS.sync_directory(directory.absolute().parent)
    out.message(f"the old copy is now {aside}")
    return instance


async def _position(url: Url) -> tuple[uuid.UUID | None, VClock]:
    """A master's replica set, and where it is: asked for as by one who follows it from there."""
    from logweir.replication.iproto.client_session import Subscribed
    from logweir.replication.iproto.follow.upstream import connect

    async with connect(url) as (upstream, _, ballot):
        upstream.session.subscribe(uuid.uuid4(), uuid.uuid4(), ballot.vclock, anonymous=True)
        upstream.link.flush()
        subscribed = await upstream.expect(Subscribed)
        return subscribed.replicaset, subscribed.vclock


def _lacking(ours: VClock, theirs: VClock) -> str:
    """Which rows they have not, "" for none. Local ones (replica id 0) are nobody else's."""
    return ", ".join(
        f"lsn {theirs.lsn(number) + 1} to {lsn} of replica {number}"
        for number, lsn in sorted(ours.without_local().items())
        if lsn > theirs.lsn(number)
    )


def _of_first(
    out: Output, masters: Sequence[Url], wait: float, ask: Callable[[Url], Coroutine[Any, Any, _T]]
) -> tuple[Url, _T]:
    """What `ask` gives of the first of the masters that can be reached; see `join_if_new`."""
    given_up = time.monotonic() + wait
    told: set[str] = set()
    for number, url in enumerate(itertools.cycle(masters), 1):
        try:
            return url, loop.run(ask(url))
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
    raise AssertionError("no master was given")


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
    return url


def copy_server(out: Output, url: Url, folder: Path) -> Path:
    """A copy of all that a `copyable` server holds, without a place in its replica set."""
    from logweir.replication.iproto.follow.join import join

    joined = loop.run(join(url, folder, anonymous=True))
    out.message(f"{url}: {joined.rows} rows up to {joined.vclock.without_local()}")
    return folder
