# cython: annotation_typing=False
"""`Ahead`: groups whose changes are made and that are not durable yet, in order.

A transaction ends when its block does: its layer and its blocks are there, and the next one is made
on top of it at once, while it is written and synced. Whoever waits for a group, and finds nobody
writing, writes all that have ended, with one sync. What cannot be written is dropped, and with it
all that was made on top.

This file is plain Python and runs as it is; Cython compiles the same file with the types that stand
in `ahead.pxd`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from logweir.errors import LogweirError, WriteFailed
from logweir.limits import GROUP_BYTES
from logweir.store.commit.failing import Fails
from logweir.store.commit.group import Group
from logweir.store.commit.jobs import interrupted, lighten
from logweir.store.commit.syncer import BackgroundSync
from logweir.store.state.stackkernel import Layer, Stack
from logweir.store.state.state import StateError


class Ahead:
    """The groups of one store. `guard`: held around what changes what readers see; `committer`:
    writes, syncs and publishes groups, in one."""

    def __init__(self, guard: threading.Lock, committer: Fails) -> None:
        self.groups: tuple[Group, ...] = ()
        """The oldest first. Who adds one holds the lock of who commits."""
        self._guard = guard
        self._committer = committer
        self._writing = threading.Lock()  # held by who writes them
        self._aside = BackgroundSync(self._drain_aside)

    def left_behind(self, guard: threading.Lock) -> None:
        """In a child of `fork`."""
        self._guard, self._writing = guard, threading.Lock()
        self.groups = ()

    def close(self) -> None:
        """End the thread. Nothing ends any more."""
        self._aside.close()

    @property
    def layers(self) -> Stack:
        """Theirs, the newest first; the caller holds the guard."""
        return tuple([changes(group) for group in reversed(self.groups)])

    @property
    def is_at_rest(self) -> bool:
        """Whether nobody writes any, nor could before there is another one."""
        return not self.groups and not self._writing.locked()

    @property
    def is_in_the_way(self) -> bool:
        """Whether the next transaction has to wait for them: they are many bytes, or they change
        definitions, which it would show."""
        groups = self.groups
        return bool(groups) and (
            sum([group.made_bytes for group in groups]) > GROUP_BYTES
            or any([group.changed_schema for group in groups])
        )

    def commit(self, group: Group, end: Callable[[], object] | None = None) -> None:
        """`end` the group, or call what may do so, and see to it, whatever is raised, that none is
        in line then for which nobody waits. Raises what that raises, and why the group was
        dropped."""
        try:
            try:
                if end is None:
                    self.end(group)
                else:
                    end()
            finally:
                self._wait(group)
        finally:
            if not group.done:
                self._wait(group)  # an interrupt may have stopped the first
        if group.error is not None:
            raise group.error

    def end(self, group: Group, finished: Callable[[Group], None] | None = None) -> bool:
        """Let the next group be made on top of this one; False if it changed nothing. The caller
        holds the lock of who commits. Raises why a group below was dropped.

        It is called in `commit`, unless there is `finished`, of who does not wait: then a thread
        writes it.
        """
        made = group.blocks()
        if not group.touched:
            return False
        group.made, group.made_bytes, group.finished = made, sum(map(len, made)), finished
        group.layer = group.txn.taken()
        try:
            with self._guard:
                below, group.below = group.below, None
                if below is not None and below.error is not None:
                    raise below.error
                self.groups = (*self.groups, group)
        finally:
            if finished is not None:
                self._aside.ask()
        return True

    def wait(self, group: Group) -> None:
        """Wait until one that has ended is durable and published. Raises why it was dropped."""
        try:
            self._wait(group)
        finally:
            self._wait(group)  # an interrupt may have stopped the first
        if group.error is not None:
            raise group.error

    def hold(self, group: Group) -> None:
        """Wait until what a group has seen is durable. Raises why it was dropped."""
        if group.undo.is_early:
            group.undo.is_early = False
            if group.below is not None:
                self.wait(group.below)

    def _wait(self, group: Group) -> None:
        """The same, but for what is raised. Of one that has not ended there is nothing to await."""
        if not group.done and group in self.groups:
            with self._writing:
                if not group.done:
                    self._write()

    def drain(self) -> None:
        """Wait until none is left and nobody writes; the caller sees to it that no more come."""
        with self._writing:
            self._write()

    def _drain_aside(self) -> None:
        with contextlib.suppress(Exception):  # those who wait are told
            self.drain()

    def _write(self) -> None:
        """Write all that are there; the caller holds `_writing`."""
        groups = told = self.groups
        if not groups:
            return
        try:
            self._committer.publish(groups)
        except BaseException as error:
            told = self._drop(groups, error)
            if not isinstance(error, LogweirError | StateError):
                raise
        finally:
            for group in told:
                if group.finished is not None:
                    group.finish()

    def published(self, groups: Sequence[Group]) -> None:
        """They are; the caller holds the guard."""
        for group in groups:  # first: none is out of line that is not done
            group.done = True
        self.groups = self.groups[len(groups) :]

    def _drop(self, groups: tuple[Group, ...], cause: BaseException) -> tuple[Group, ...]:
        """They could not be published, so neither can be what was made on top. Returns all."""
        if groups[-1].done:  # what stopped the thread came behind it
            return groups
        error = (
            self._committer.explained(cause) if isinstance(cause, Exception) else interrupted(cause)
        )
        if isinstance(error, LogweirError):
            lighten(error)
        if isinstance(error, WriteFailed):
            self._committer.refused = error
        with self._guard:
            above = self.groups[len(groups) :] if self.groups[:1] == groups[:1] else self.groups
            dropped = groups + above
            for group in dropped:
                group.error, group.done = error, True
                group.made, group.layer = (), None
            self.groups = ()
        return dropped


def changes(group: Group) -> Layer:
    """The layer of one that has ended."""
    assert group.layer is not None
    return group.layer
