"""The part of `Log` that deletes what has expired: see `store.expiry`."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final

from logweir.errors import LogweirError
from logweir.limits import EXPIRY_BATCH_TUPLES, EXPIRY_LOOK_SECONDS
from logweir.store.commit.group import Group
from logweir.store.engine.engine import Engine
from logweir.store.engine.request import Request, key_bytes
from logweir.store.engine.statements import Statements
from logweir.store.expiry import EXPIRY_SPACE, FORMAT, Expiry, due, due_index, settings
from logweir.store.reading import Reads
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.refused import illegal
from logweir.wal.process import start_thread
from logweir.wal.xrow import RowType

_LOGGER: Final = logging.getLogger("logweir")


class Expires(Reads, Statements):
    """What a log offers about tuples that expire."""

    instance: uuid.UUID

    def set_expiry(self, space: int | str, field: int | str | None, *, seconds: int = 0) -> None:
        """Let the tuples of a space expire `seconds` after the time in a field, a number of seconds
        since 1970; None: no longer.

        `field`: name or number, from 0, the first of a TREE index. A tuple without a number there
        never expires. What has expired is not read any more, and deleted about a second later by
        this instance, in transactions of `limits.EXPIRY_BATCH_TUPLES` tuples at most. Raises
        `RequestError`.
        """
        found = self.schema.space(space)
        if field is None:
            if self.schema.get(EXPIRY_SPACE) is not None:
                self.delete(EXPIRY_SPACE, found.id)
            return
        names = [one.name for one in found.fields]
        if field not in names if isinstance(field, str) else type(field) is not int:
            hint = f"its fields are {', '.join(names) or 'without names'}"
            raise illegal(f"space {found.name!r} has no field {field!r}", hint)
        number = names.index(field) if isinstance(field, str) else field
        due_index(found, number)
        if type(seconds) is not int or seconds < 0:
            raise illegal(f"{seconds!r} is no number of seconds")
        if self.schema.get(EXPIRY_SPACE) is None:
            self.create_space(EXPIRY_SPACE, FORMAT, if_not_exists=True)
        row = (found.id, found.name, number, seconds, str(self.instance))
        self.replace(EXPIRY_SPACE, row)
        self.inner.sweeper.start(self.delete_expired)

    def delete_expired(self) -> int:
        """Delete what has expired and is this instance's to delete, now. Returns how many tuples.
        It happens by itself each second. Raises what a change raises."""
        deleted = 0
        with self.read_view() as view:
            found = settings(view.engine)
        for space, expiry in found:
            is_more = expiry.instance == str(self.instance)
            while is_more:
                count = self._delete_due(space, expiry)
                deleted += count
                is_more = count == EXPIRY_BATCH_TUPLES
        return deleted

    def _delete_due(self, space: SpaceDef, expiry: Expiry) -> int:
        """Delete a batch, as one transaction."""
        now = self.inner.now()

        def apply(group: Group) -> int:
            engine: Engine = group.engine
            known = engine.schema.get(space.id)
            if known is None or known.primary is None or known.name != expiry.name:
                return 0
            rows = list(islice(due(engine, known, expiry, now), EXPIRY_BATCH_TUPLES))
            for row in rows:
                key = [part.value_in(row) for part in known.primary.parts]
                group.execute(Request(RowType.DELETE, space.id, key=key_bytes(key)))
            return len(rows)

        return self.inner.run(apply)


class Sweeper:
    """The thread that deletes, once there is something that expires."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._told = ""

    def start(self, delete: Callable[[], int]) -> None:
        """Begin, if it has not; a closed one does not. `delete`: see `Expires.delete_expired`."""
        with self._guard:
            if self._thread is None and not self._stop.is_set():
                start_thread("logweir-expiry", partial(self._run, delete), self._keep_thread)

    def _keep_thread(self, thread: threading.Thread | None) -> None:
        self._thread = thread

    def close(self) -> None:
        """End it, behind the batch that it is at."""
        self._stop.set()
        with self._guard:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self, delete: Callable[[], int]) -> None:
        while not self._stop.wait(EXPIRY_LOOK_SECONDS):
            try:
                delete()
                self._told = ""
            except LogweirError as error:  # it tries again
                if str(error) != self._told:
                    self._told = str(error)
                    _LOGGER.error("what has expired cannot be deleted: %s", error)
