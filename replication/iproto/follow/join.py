"""Copying a whole master into a new folder: JOIN or FETCH_SNAPSHOT.

The rows of the first stage become a snapshot of the start vclock, those of the last stage a log
after it, both as they come; nothing is applied here. They are written into `<folder>.joining`; the
snapshot, which makes that a store, gets its name last, and the folder its own when everything is
durable: a join that is killed leaves nothing but that folder, which the next one removes. The copy
belongs to the master's replica set; with JOIN it has a place of its own in `_cluster`, with
FETCH_SNAPSHOT it has none: then it can be followed and served, but not changed.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from logweir.errors import ConfigError, DecodeError, RemoteProtocolError, SourceStopped, WalError
from logweir.replication.iproto.client_session import Refused, Rows, StreamBegun, StreamEnded
from logweir.replication.iproto.follow.upstream import Upstream, connect
from logweir.replication.urls import Url
from logweir.store.schema.definition import SystemSpace
from logweir.wal.columns import RowColumns
from logweir.wal.filesystem import OS, FileSystem, explain, make_folders
from logweir.wal.mp import unpack
from logweir.wal.snapshot import SnapshotWriter
from logweir.wal.spacenames import unkept_kind
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter
from logweir.wal.xrow import RowType


@dataclass(frozen=True, slots=True)
class Joined:
    """A finished copy. `replica_id`: our id in `_cluster`, 0 without a place there; `warnings`:
    what of it logweir does not keep."""

    vclock: VClock
    instance: uuid.UUID
    replicaset: uuid.UUID
    replica_id: int
    rows: int
    warnings: tuple[str, ...] = ()


class _Copy:
    """What has arrived so far, on its way to disk."""

    def __init__(self, folder: Path, instance: uuid.UUID, filesystem: FileSystem) -> None:
        self.folder = folder
        self.instance = instance
        self.filesystem = filesystem
        self.snapshot: SnapshotWriter | None = None
        self.log: WalWriter | None = None  # from the first row of the last stage on
        self.start = VClock()
        self.replicaset: uuid.UUID | None = None
        self.replica_id = 0
        self.rows = 0
        self.unkept: dict[tuple[int, int], str] = {}

    def begin(self, vclock: VClock, timestamp: float) -> None:
        self.start = vclock
        self.snapshot = SnapshotWriter(
            self.folder,
            vclock,
            self.instance,
            timestamp=timestamp,
            filesystem=self.filesystem,
        )

    def add_initial(self, data: bytes) -> None:
        assert self.snapshot is not None
        columns = RowColumns.scan(data)
        spaces = columns.space_id
        if any(kind not in (RowType.INSERT, RowType.REPLACE) for kind in columns.type):
            raise RemoteProtocolError("a row of the first stage of a join is not an INSERT")
        for space_id, places in groupby(range(len(columns)), key=spaces.__getitem__):
            tuples = [columns.tuple_bytes(i) or b"" for i in places]
            if not all(tuples):
                raise RemoteProtocolError("a row of the first stage of a join has no tuple")
            self.snapshot.write(space_id, tuples)
            self._look(space_id, tuples)
        self.rows += len(columns)

    def add_final(self, columns: RowColumns) -> None:
        """Whole transactions."""
        for i in range(len(columns)):
            stored = columns.tuple_bytes(i)
            if stored is not None:
                self._look(columns.space_id[i], [stored])
        self.rows += len(columns)
        if self.log is None:
            self.log = WalWriter(
                self.folder, self.instance, AppendPoint(self.start), filesystem=self.filesystem
            )
        self.log.write([columns.data], self.log.vclock.merge(columns.last_lsns()))

    def let_go(self) -> None:
        """Close what is open, where it did not come to its end."""
        if self.log is not None:
            self.log.abandon()
        if self.snapshot is not None:
            self.snapshot.abort()

    def _look(self, space_id: int, tuples: list[bytes]) -> None:
        try:
            self._note(space_id, tuples)
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise RemoteProtocolError(f"a tuple of space {space_id} is malformed") from error

    def _note(self, space_id: int, tuples: list[bytes]) -> None:
        if space_id not in (SystemSpace.SCHEMA, SystemSpace.INDEX, SystemSpace.CLUSTER):
            return
        for row in map(unpack, tuples):
            if space_id == SystemSpace.SCHEMA:
                if row[0] == "cluster":
                    self.replicaset = uuid.UUID(row[1])
            elif space_id == SystemSpace.CLUSTER:
                if uuid.UUID(row[1]) == self.instance:
                    self.replica_id = row[0]
            elif kind := unkept_kind(row):
                self.unkept[row[0], row[1]] = (
                    f"index {row[2]!r} of space {row[0]} is {kind}: it is not kept here, so "
                    "reading by it is refused, and whether a tuple fits it is not checked"
                )

    def finish(self, end: VClock) -> None:
        """Make both files complete: the log first, since the snapshot makes the folder a store."""
        assert self.snapshot is not None
        if self.log is not None:
            self.log.sync()
            self.log.close()
        elif self.start != end:
            raise RemoteProtocolError(f"the join ends at {end} but no row leads there")
        self.snapshot.finish()
        self.snapshot = None


async def join(
    url: Url,
    folder: Path,
    *,
    instance: uuid.UUID | None = None,
    anonymous: bool = False,
    filesystem: FileSystem = OS,
) -> Joined:
    """Copy the master at `url` into `folder`, which must not be there, or be empty.

    `instance`: our UUID, a new one unless given; `anonymous`, or the option of that name of the
    address: no place in `_cluster` is asked for. Raises `SourceStopped` if the master refuses for
    good, `Unreachable` or `RemoteProtocolError` if another try may help.
    """
    anonymous = anonymous or url.flag("anonymous")
    working = _prepare(folder, filesystem)
    copy = _Copy(working, instance or uuid.uuid4(), filesystem)
    try:
        async with connect(url) as (upstream, greeting, ballot):
            if greeting.instance == copy.instance:
                raise SourceStopped(f"{url} is this instance itself", hint="follow another one")
            if ballot.is_ro and not anonymous:
                raise SourceStopped(
                    f"{url} is read-only and cannot give us a place in its _cluster",
                    hint="join a writable master, or add ?anonymous=1 to the address",
                )
            if anonymous:
                upstream.session.fetch_snapshot()
            else:
                upstream.session.join(copy.instance)
            upstream.link.flush()
            async with upstream.asked_after(greeting.instance):
                end = await _receive(upstream, copy)
        if not anonymous and copy.replica_id == 0:
            raise SourceStopped(f"{url} gave us no place in its _cluster", hint="see its log")
        if copy.replicaset is None:
            raise SourceStopped(f"{url} sent no replica set UUID", hint="see its log")
        copy.finish(end)
        _publish(working, folder, filesystem)
    except DecodeError as error:
        raise RemoteProtocolError(f"{url} sent a malformed row: {error}") from error
    finally:
        copy.let_go()
        with contextlib.suppress(OSError):
            filesystem.remove_tree(working)
    warnings = tuple(copy.unkept.values())
    return Joined(end, copy.instance, copy.replicaset, copy.replica_id, copy.rows, warnings)


def _prepare(folder: Path, filesystem: FileSystem) -> Path:
    """The working folder beside `folder`, empty. Raises `ConfigError` if `folder` is not."""
    if not _is_free(folder, filesystem):
        raise ConfigError(
            "folder",
            f"{folder} is not empty",
            hint="follow into a new folder; `--rejoin` puts the old one aside",
        )
    working = folder.with_name(folder.name + ".joining")
    try:
        filesystem.remove_tree(working)
        make_folders(filesystem, working)
    except OSError as error:
        raise explain(error, str(working)) from error
    return working


def _is_free(folder: Path, filesystem: FileSystem) -> bool:
    """Whether the name is not taken, or is that of an empty folder."""
    try:
        return not filesystem.list_directory(folder)
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False
    except OSError as error:
        raise explain(error, str(folder)) from error


async def _receive(upstream: Upstream, copy: _Copy) -> VClock:
    begun = await upstream.expect(StreamBegun)
    copy.begin(begun.vclock, time.time())
    while True:
        event = await upstream.next()
        if isinstance(event, Rows):
            if event.is_initial:
                copy.add_initial(event.data)
            elif (columns := await upstream.whole(event)) is not None:
                copy.add_final(columns)
        elif isinstance(event, StreamEnded):
            if event.is_last:
                upstream.check_whole()
                return event.vclock
        elif isinstance(event, Refused):
            raise upstream.refusal(event)
        else:
            raise RemoteProtocolError(f"{type(event).__name__} came during a join")


def _publish(working: Path, folder: Path, filesystem: FileSystem) -> None:
    try:
        with contextlib.suppress(FileNotFoundError):
            filesystem.remove_directory(folder)
        filesystem.rename(working, folder)
        filesystem.sync_directory(folder.parent)
    except OSError as error:
        raise WalError(
            f"the finished copy cannot get its name: {error.strerror or error}.", path=str(folder)
        ) from error
