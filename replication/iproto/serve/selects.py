# cython: annotation_typing=False
"""SELECTs of one connection that are answered from their bytes (`wire.readselectkernel`), on what
is published: those that need no view, of spaces that the user may read.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `selects.pxd`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logweir.limits import TURN_ANSWER_BYTES
from logweir.replication.iproto.serve.instance import Instance
from logweir.replication.iproto.wire.runs import no_ids
from logweir.store.schema.access import Privilege

if TYPE_CHECKING:
    from logweir.replication.iproto.wire import kernel
    from logweir.store.engine.reader import Published
    from logweir.store.schema.schema import Schema


class Selects:
    """Belongs to the event loop's thread; `instance.reader` has the answers of the last `read`."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._reader = instance.reader
        self._ask = instance.shared.log.inner.committer.reader.ask
        self._let_in: object = None  # what this user was allowed when `_readable` was begun
        self._readable: set[int] = set()  # ids of spaces
        self._schema: Schema | None = None  # of which are
        self._version = 0
        self._ids: kernel.Ids = no_ids

    def forget(self) -> None:
        """It is another user."""
        self._let_in = None

    def read(self, user_id: int, data: bytes, at: int, *, has_streams: bool) -> int:
        """Answer those that begin at `at`, as many as a turn lets; `has_streams`: but those of
        streams. Returns where it stopped."""
        shared, reader = self._instance.shared, self._reader
        if (let_in := shared.let_in) is not self._let_in:
            self._let_in, self._readable = let_in, set()
        stop = self._ask(self._read, data, at, has_streams)
        while reader.wanted >= 0 and self._may_read(user_id, reader.wanted):
            stop = self._ask(self._read, data, at, has_streams)
        return stop

    def _read(self, reading: Published, data: bytes, at: int, has_streams: bool) -> int:
        reader, schema = self._reader, reading.schema
        if schema is not self._schema:
            instance, self._schema = self._instance, schema
            self._version, self._ids = instance.version_of(schema), instance.ids_in(schema)
        while True:
            stop: int = reader.read(
                data,
                at,
                self._version,
                self._readable,
                reading.spaces,
                TURN_ANSWER_BYTES,
                self._ids,
                has_streams,
            )
            wanted = reader.wanted
            if wanted < 0 or wanted not in self._readable or not reading.find(wanted):
                return stop

    def _may_read(self, user_id: int, space_id: int) -> bool:
        """Whether a user may read a space, which is noted."""
        if space_id in self._readable:
            return False
        if self._instance.shared.may(user_id, space_id, Privilege.READ, is_there=True):
            self._readable.add(space_id)
        return space_id in self._readable
