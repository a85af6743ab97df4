"""The definitions of a log, in memory: of a snapshot, and along with the rows behind it.

Nothing else of the state is there. Rows are applied by the engine that applies rows of any log
(`store.commit.applying`), since they change definitions by operations, too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

from logweir.limits import TOPIC_TUPLE_BYTES
from logweir.store.commit.applying import APPLIED, apply_row
from logweir.store.engine import ddl, reads
from logweir.store.engine.engine import Engine, Plans
from logweir.store.engine.request import key_bytes
from logweir.store.recover.loading import applying
from logweir.store.schema.definition import SYSTEM_ID_MAX, SystemSpace
from logweir.store.schema.schema import Definitions, Schema
from logweir.store.state.stackkernel import LayeredTxn
from logweir.store.state.state import State
from logweir.store.state.statetxn import Txn
from logweir.wal.columns import RowColumns
from logweir.wal.directory import scan_directory
from logweir.wal.filesystem import OS, FileSystem
from logweir.wal.follow import Follower
from logweir.wal.lease import leased
from logweir.wal.mp import unpack
from logweir.wal.reader import Block
from logweir.wal.snapshot import read_snapshot


class Defined:
    """An engine that holds the tuples of the spaces that define something, and no others."""

    def __init__(self) -> None:
        nothing = Txn(State(Path()), None, write=False)  # never opened: it is all in memory
        self.txn = LayeredTxn((), nothing, write=True)
        self.engine = Engine(self.txn, Schema(TOPIC_TUPLE_BYTES), Plans())

    def begin(self, path: Path, filesystem: FileSystem) -> None:
        """Take the definitions of a snapshot."""
        for block in system_blocks(path, filesystem):
            self._take(block.columns)
        schema = self.engine.schema
        for space in map(schema.space, ddl.DEFINING):
            for index in space.indexes[1:]:
                ddl.build_index(self.engine, space, index)
        self.txn.forget()

    @property
    def replicaset(self) -> uuid.UUID | None:
        """The UUID of the replica set, None if nothing tells it."""
        engine = self.engine
        space = engine.schema.space(SystemSpace.SCHEMA)
        row = reads.one(engine, space, engine.schema.index(space, 0), key_bytes("cluster"))
        return None if row is None else uuid.UUID(unpack(row)[1])

    def _take(self, columns: RowColumns) -> None:
        engine = self.engine
        for row, space_id in enumerate(columns.space_id):
            if not ddl.defines(space_id):
                continue
            data = columns.tuple_bytes(row) or b""
            engine.schema.apply(space_id, None, data, is_insert=True, trusted=True)
            space = engine.schema.space(space_id)
            primary = engine.schema.index(space, 0)
            (image,) = engine.plans.get(space, primary, check=False).key(data)
            self.txn.load(space_id, 0, [(image, data)])

    def go_on(self, block: Block) -> None:
        """Apply the rows of a block of the log that define something. Raises `CorruptBlock`."""
        columns = block.columns
        for row, space_id in enumerate(columns.space_id):
            if ddl.defines(space_id) and columns.type[row] in APPLIED:
                with applying(block, columns, row):
                    apply_row(self.engine, columns, row)
                self.txn.forget()


def system_blocks(snap: Path, filesystem: FileSystem) -> Iterator[Block]:
    """The blocks of a snapshot that hold the system's spaces, which come first."""
    for block in read_snapshot(snap, filesystem):
        yield block
        if block.columns.space_id[-1] > SYSTEM_ID_MAX:
            return


def folder_definitions(path: Path, filesystem: FileSystem = OS) -> Definitions:
    """Those of a folder as of now, which may be in use; what its writer has not synced yet is told,
    too. Raises `WalError` if there is no store, and what reading raises."""
    with leased(path):
        index = scan_directory(path, filesystem)
        newest = index.newest_snap()
        if newest is None:
            raise index.unusable()
        defined = Defined()
        defined.begin(newest.path, filesystem)
        with Follower(path, newest.vclock, filesystem=filesystem) as follower:
            for block in follower.poll():
                defined.go_on(block)
            vclock = follower.vclock
    return Definitions(defined.engine.schema, defined.replicaset, vclock)
