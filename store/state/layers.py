"""What was changed and is not in LMDB yet: layers of sorted maps over the base.

A transaction, and each group of jobs, makes its changes in a `Layer` of its own: for each index a
`Memtable` from key to value, or to nothing where the key is gone. To undo it is to forget it. Once
its rows are durable it is put on the *stack*, which is what readers see: the newest layer that
knows a key has its value, what no layer knows stands in the base (`store.state.state`). Layers on
the stack never change. Small ones are joined, so that there are few; when they hold
`limits.LAYER_BYTES`, or the oldest is `limits.LAYER_SECONDS` old, a thread puts what they say into
the base, in one LMDB transaction with the position in the log behind them.

A process that dies in between has them in the log, behind the base's position, so opening the
folder applies them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, takewhile
from operator import eq
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from logweir.errors import LogweirError, RequestError, WriteFailed
from logweir.limits import LAYER_BYTES, LAYER_SECONDS
from logweir.store.schema.values import LargeTuple
from logweir.store.state.layer import Layer, Name, Stack, joined
from logweir.store.state.memtable import Memtable, merged_ascending, merged_descending
from logweir.store.state.references import REFERENCE, unwritten, unwritten_number
from logweir.store.state.state import MapFull, Position, State, StateError, Txn
from logweir.store.state.tree import Tree
from logweir.store.state.undo import COMPILED, Undo
from logweir.store.state.viewers import Viewers
from logweir.wal.failpoint import failpoint
from logweir.wal.process import start_thread

if TYPE_CHECKING or COMPILED:
    from logweir.store.schema.plankernel import Plan
    from logweir.store.state.layerkernel import Base, Space
    from logweir.store.state.statebase import state_base

__all__ = ["LayeredTree", "LayeredTxn", "Layers", "put_into"]

_T = TypeVar("_T")

_RETRY_SECONDS: Final = 0.5
_PAGE_BYTES: Final = 4096
_PASSING: Final = (RequestError, WriteFailed)
"""Why the state cannot take something now: a view is in the way of its growth, the disk is full."""
_JOINED_FROM: Final = 4
"""So many layers of about one size are joined."""
_JOINED_RANK: Final = 6
"""Of this size, some 10,000 entries, they no longer are."""


Mark: TypeAlias = tuple[int, int]
"""A place to roll back to: what was changed, and what was dropped before it."""


class LayeredTree:
    """One index in one transaction: ordered bytes → bytes. See `store.state.tree.Tree`."""

    __slots__ = ("_txn", "base", "tables")

    def __init__(self, txn: LayeredTxn, tables: Sequence[Memtable], base: Tree | None) -> None:
        self._txn = txn
        self.tables = tables
        self.base = base

    # --- reading ----------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`."""
        for table in self.tables:
            found = table.get(key)
            if found is not None:
                return self._resolved(found) if found else None
        return None if self.base is None else self.base.get(key)

    def _has(self, key: bytes) -> bool:
        for table in self.tables:
            found = table.get(key)
            if found is not None:
                return bool(found)
        return self.base is not None and self.base.has(key)

    def _resolved(self, value: bytes) -> bytes:
        return self._txn.resolve(value) if value[0] == REFERENCE else value

    def ascending(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries from `start` on, in order of keys."""
        below = iter(()) if self.base is None else self.base.ascending(start)
        if not self.tables:
            return below
        return self._whole(merged_ascending(self.tables, start, below))

    def descending(self, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Entries below `stop` (None: from the greatest), in reverse order of keys."""
        below = iter(()) if self.base is None else self.base.descending(stop)
        if not self.tables:
            return below
        return self._whole(merged_descending(self.tables, stop, below))

    def _whole(self, pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        state = self._txn.base.state
        for key, value in pairs:
            yield key, self._resolved(value)
            if state.is_foreign:
                state.check_process()

    def values(self, start: bytes, limit_items: int, limit_bytes: int) -> tuple[list[bytes], bool]:
        """Values of entries from `start` on, in order of keys, and whether these were the last.

        It stops at `limit_items`, or soon after `limit_bytes`.
        """
        if not self.tables:
            if self.base is None:
                return [], True
            return self.base.values(start, limit_items, limit_bytes)
        found: list[bytes] = []
        size = 0
        for _, value in self.ascending(start):
            if len(found) >= limit_items or size >= limit_bytes:
                return found, False
            found.append(value)
            size += len(value)
        return found, True

    def count(self) -> int:
        """How many entries there are. Each key of the layers is looked up."""
        base = self.base
        count = 0 if base is None else base.count()
        for key, value in joined(self.tables).ascending():
            count += bool(value) - (base is not None and base.has(key))
        return count

    def has_any(self, keys: Iterable[bytes]) -> bool:
        """Whether one of these keys, ascending, is there."""
        last = self.last_key()
        return last is not None and any(key <= last and self._has(key) for key in keys)

    def last_key(self) -> bytes | None:
        """The greatest key; None in an empty tree."""
        below = iter(()) if self.base is None else self.base.descending(None, whole=False)
        found = next(merged_descending(self.tables, None, below), None)
        return None if found is None else found[0]

    # --- changing, in a transaction that writes ---------------------------------------------------

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value under `key`."""
        self._txn.undo.set(self.tables[0], key, value)

    def delete(self, key: bytes) -> None:
        """Remove `key`."""
        self.put(key, b"")

    def load(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Set many entries, fastest in ascending order of keys."""
        for key, value in pairs:
            self.put(key, value)


class _Drop(NamedTuple):
    """How to undo that an index was emptied. `at`: what was changed before it."""

    at: int
    name: Name
    table: Memtable | None
    was_cleared: bool


class LayeredTxn:
    """One transaction: a stack of layers over a view of the base, and to change anything a layer of
    its own. `mark` and `rollback` undo part of it, `abort` ends it."""

    def __init__(self, stack: Stack, base: Txn, *, write: bool) -> None:
        self.stack = stack
        self.base = base
        self.layer: Layer | None = Layer() if write else None
        self.undo = Undo()
        self._drops: list[_Drop] = []
        self._spaces: dict[int, Space] = {}
        self._unwritten: list[LargeTuple] = []
        self._closing = contextlib.ExitStack()
        self._trees: dict[Name, LayeredTree | None] = {}

    def tree(self, space_id: int, index_id: int) -> LayeredTree | None:
        """The entries of one index; None where a reader finds none (it was never written)."""
        self.check_process()
        name = space_id, index_id
        if name in self._trees:
            return self._trees[name]
        tables: list[Memtable] = []
        base: Tree | None = None
        layers = self.stack
        if self.layer is not None:
            if name not in self.layer.tables and self.base.tree(space_id, index_id) is None:
                self._check_new(name)
            self.layer.table(name)
            layers = (self.layer, *layers)
        for layer in layers:
            if name in layer.tables:
                tables.append(layer.tables[name])
            if name in layer.cleared:
                break
        else:
            base = self.base.tree(space_id, index_id)
        found = LayeredTree(self, tables, base) if tables or base is not None else None
        self._trees[name] = found
        return found

    def _check_new(self, name: Name) -> None:
        """Whether the base can take one more index. Raises `WalError`."""
        assert self.layer is not None
        names = {name}.union(self.layer.tables, *[layer.tables for layer in self.stack])
        self.base.state.check_databases(f"{one[0]}/{one[1]}".encode() for one in names)

    def check_process(self) -> None:
        """Raise `UsedAfterFork` in a child of the process that began it."""
        if self.base.state.is_foreign:
            self.base.state.check_process()

    def resolve(self, value: bytes) -> bytes:
        """The tuple of an entry that is a reference to it."""
        number = unwritten_number(value)
        return self.base.resolve(value) if number is None else self._unwritten[number].joined()

    def hold(self, tuples: Sequence[LargeTuple]) -> list[bytes]:
        """Values in the place of tuples that will be written, until the log has them."""
        first = len(self._unwritten)
        self._unwritten += tuples
        return unwritten(first, len(tuples))

    def set_all(
        self,
        space_id: int,
        keys: Sequence[bytes],
        values: Sequence[bytes],
        *,
        over: list[bytes] | None = None,
    ) -> None:
        """Set entries of a primary index for good: no mark takes them back. `over`: only those that
        are still so, and were set here."""
        tree = self.tree(space_id, 0)
        assert tree is not None
        table = tree.tables[0]
        pairs: Iterable[tuple[bytes, bytes]] = zip(keys, values, strict=True)
        if over is not None and (found := list(map(table.get, keys))) != over:
            pairs = compress(pairs, map(eq, found, over))
        for key, value in pairs:
            table.put(key, value)

    def items(self, space_id: int, index_id: int) -> Iterator[tuple[bytes, bytes]]:
        """All entries of an index, in order; none where it was never written."""
        tree = self.tree(space_id, index_id)
        return iter(()) if tree is None else tree.ascending(b"")

    def count(self, space_id: int, index_id: int) -> int:
        """How many entries an index has."""
        tree = self.tree(space_id, index_id)
        return 0 if tree is None else tree.count()

    def drop(self, space_id: int, index_id: int) -> None:
        """Remove all entries of an index."""
        assert self.layer is not None
        name = space_id, index_id
        table = self.layer.tables.get(name)
        self._drops.append(_Drop(self.undo.mark(), name, table, name in self.layer.cleared))
        self.layer.tables[name] = Memtable()
        self.layer.cleared.add(name)
        self._forget_tree(name)

    def _forget_tree(self, name: Name) -> None:
        self._trees.pop(name, None)
        self._spaces.pop(name[0], None)

    def load(self, space_id: int, index_id: int, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Set many entries."""
        tree = self.tree(space_id, index_id)
        assert tree is not None
        tree.load(pairs)

    def remove(self, space_id: int, index_id: int, key: bytes) -> None:
        """Remove one entry, which is there."""
        tree = self.tree(space_id, index_id)
        assert tree is not None
        tree.delete(key)

    def space(self, plan: Plan) -> Space:
        """What compiled statements and selections of a space need of this transaction."""
        found = self._spaces.get(plan.space_id)
        if found is None or found.plan is not plan:
            trees = [self.tree(plan.space_id, index_id) for index_id in plan.index_ids]
            undo = None if self.layer is None else self.undo
            found = Space(plan, *_below(trees), undo)
            self._spaces[plan.space_id] = found
        return found

    def mark(self) -> Mark:
        """A place to roll back to."""
        return self.undo.mark(), len(self._drops)

    def rollback(self, mark: Mark) -> None:
        """Undo what was done since `mark`."""
        layer = self.layer
        assert layer is not None
        at, drops = mark
        while len(self._drops) > drops:
            done = self._drops.pop()
            self.undo.rollback(done.at)
            layer.tables.pop(done.name, None)
            if done.table is not None:
                layer.tables[done.name] = done.table
            if not done.was_cleared:
                layer.cleared.discard(done.name)
            self._forget_tree(done.name)
        self.undo.rollback(at)

    def forget(self) -> None:
        """What was done until now will not be undone alone: marks before it are worth nothing."""
        self.undo.forget()
        self._drops.clear()

    def child(self) -> LayeredTxn:
        """A transaction over what this one sees, which waits until that is aborted."""
        assert self.layer is not None
        made = LayeredTxn((self.layer, *self.stack), self.base, write=True)
        made._unwritten += self._unwritten
        return made

    def taken(self) -> Layer:
        """The layer, for the stack. It is not changed any more."""
        layer = self.layer
        assert layer is not None
        for name in [name for name, table in layer.tables.items() if not len(table)]:
            if name not in layer.cleared:
                del layer.tables[name]
        return layer

    def abort(self) -> None:
        """Forget it, or end it after its layer was taken."""
        self._closing.close()

    def keep(self, closing: contextlib.ExitStack) -> None:
        """What `abort` is to end."""
        self._closing = closing


def _below(trees: Sequence[LayeredTree | None]) -> tuple[list[Sequence[Memtable]], list[Base]]:
    """The memtables of each index, and what lies below them."""
    return (
        [() if tree is None else tree.tables for tree in trees],
        [Base() if tree is None or tree.base is None else state_base(tree.base) for tree in trees],
    )


class Layers:
    """The stack of one store, over its base.

    `guard`: held around what opens a view and what changes the stack or the base; `applying`:
    `apply` with what failures of it mean, for the thread.
    """

    def __init__(
        self,
        state: State,
        viewers: Viewers,
        guard: threading.Lock,
        position: Position | None,
        applying: Callable[[], None],
    ) -> None:
        self.stack: Stack = ()
        self.position = position
        self._base_position = position
        self._state = state
        self._viewers = viewers
        self._guard = guard
        self._applying = applying
        self._one = threading.Lock()  # one apply at a time
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._size = 0
        self._under_way: Stack = ()  # the lowest layers, while the base takes them
        self._serving = False
        self._closing = False
        self._failure: Exception | None = None

    # --- views and transactions -------------------------------------------------------------------

    def begin(self, closing: contextlib.ExitStack, *, write: bool) -> LayeredTxn:
        """A transaction on what is there now; the caller holds the guard. `closing`: takes what is
        to be ended with it."""
        if write:
            self._state.check_fully()
        base = self._state.begin(write=False)
        closing.callback(base.abort)
        return LayeredTxn(self.stack, base, write=write)

    def admit(self) -> None:
        """Before a change: wait until the layers have room for it. Raises why they have none."""
        with self._lock:
            if not self._serving and self._failure is None:
                start_thread("logweir-apply", self._serve)  # an interrupt harms nothing here
            if isinstance(self._failure, _PASSING):  # which may have passed
                self._failure = None
                self._changed.notify_all()
            while self._size > 2 * LAYER_BYTES and not self._closing:
                if self._failure is not None:
                    raise self._failure
                self._changed.wait()

    @property
    def size_bytes(self) -> int:
        """Of the layers on the stack, for which the base still needs about as much of the disk."""
        return self._size

    def push(self, layer: Layer, position: Position | None) -> None:
        """Show a layer to everybody; the caller holds the guard. `position`: behind it."""
        with self._lock:
            self.position = position
            if not layer.tables:
                return
            layer.since = time.monotonic()
            stack = (layer, *self.stack)
            while (count := _alike(stack[: len(stack) - len(self._under_way)])) >= _JOINED_FROM:
                stack = (Layer.joined(stack[:count]), *stack[count:])
            self.stack = stack
            self._size = sum([one.size_bytes for one in stack])
            if len(stack) == 1 or self._size >= LAYER_BYTES:
                self._changed.notify_all()

    # --- the base ---------------------------------------------------------------------------------

    def apply(self) -> None:
        """Put into the base what the layers say. What it raises, they still say."""
        with self._one:
            self._apply()

    def change_base(self, change: Callable[[Txn], _T]) -> _T:
        """Let `change` have a transaction on the base that holds all that is published. The caller
        sees to it that nobody publishes more. Its result."""
        with self._one:
            self._apply()
            result, position = self._changed_base(lambda txn: (change(txn), txn.position()), ())
            self.position = self._base_position = position
            return result

    def reserve(self, room_bytes: int) -> None:
        """See `Viewers.reserve`."""
        with self._one:
            self._viewers.reserve(room_bytes)

    def _apply(self) -> None:
        with self._lock:
            stack, position = self.stack, self.position
            self._under_way = stack
        try:
            if stack or position != self._base_position:  # what was logged may change nothing
                whole = Layer.joined(stack)
                try:
                    self._changed_base(lambda txn: put_into(txn, whole, position), stack)
                except StateError:
                    # It writes pages, so how many is not known before. As to a write that failed
                    # nothing was changed; as to a sync that did it is another error.
                    self._state.check_disk(_disk_bytes(whole))
                    raise
                self._base_position = position
        finally:
            with self._lock:
                self._under_way = ()

    def _changed_base(self, change: Callable[[Txn], _T], done: Stack) -> _T:
        """`done`: the layers that the base then holds."""
        while True:
            txn: Txn | None = None
            try:
                txn = self._state.begin()
                result = change(txn)
                failpoint("store.before_apply_commit")
                with self._guard:
                    txn.commit()
                    with self._lock:
                        left = self.stack[: len(self.stack) - len(done)]
                        # First: nobody waits for what an interrupt leaves on the stack alone.
                        self._size = sum([one.size_bytes for one in left])
                        self.stack, self._under_way = left, ()
                        self._changed.notify_all()
                return result
            except MapFull:
                if txn is not None:
                    txn.abort()
                self._viewers.grow()
            except BaseException:
                if txn is not None:
                    txn.abort()
                raise

    def close(self, *, apply: bool = True) -> None:
        """End the thread; `apply`: when the base holds everything."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
            while self._serving:
                self._changed.wait()
        if apply:
            with contextlib.suppress(LogweirError):  # the log has failed: it is known already
                self._applying()

    def _serve(self) -> None:
        """The thread; where an interrupted start has left one already, nothing."""
        with self._lock:
            if self._serving:
                return
            self._serving = True
        try:
            while self._is_due():
                self._serve_once()
        finally:
            with self._lock:
                self._serving = False
                self._changed.notify_all()

    def _is_due(self) -> bool:
        """Wait until the base is to take the layers; False: never more."""
        with self._lock:
            if self._failure is not None and not isinstance(self._failure, _PASSING):
                return False  # who changes something next is told
            while not self._closing and (left := self._seconds_left()) != 0:
                self._changed.wait(left)
            return not self._closing

    def _serve_once(self) -> None:
        failure: Exception | None = None
        try:
            self._applying()
        except Exception as error:
            failure = error
        with self._lock:
            self._failure = failure
            self._changed.notify_all()
            if isinstance(failure, _PASSING):
                self._changed.wait(_RETRY_SECONDS)

    def _seconds_left(self) -> float | None:
        """Until the base is to take the layers; None where there are none."""
        if not self.stack:
            return None
        if self._size >= LAYER_BYTES:
            return 0
        return max(self.stack[-1].since + LAYER_SECONDS - time.monotonic(), 0)


def _alike(stack: Stack) -> int:
    """How many layers, from the newest on, are no larger than that one, roughly; 0 where they are
    so large that it is dear to copy them."""
    rank = stack[0].rank
    if rank > _JOINED_RANK:
        return 0
    return len(list(takewhile(lambda layer: layer.rank <= rank, stack)))


def _disk_bytes(layer: Layer) -> int:
    """At most what LMDB writes for it: each entry, and each page that it changes, two for one."""
    entries = sum(map(len, layer.tables.values()))
    return 2 * _PAGE_BYTES * entries + 2 * layer.size_bytes


def put_into(txn: Txn, layer: Layer, position: Position | None) -> None:
    """Let a transaction on the base say what a layer does. `position`: behind it, or None."""
    for name, table in layer.tables.items():
        if name in layer.cleared:
            txn.drop(*name)
        tree = txn.tree(*name)
        assert tree is not None
        references = tree.take(table)
        if references and not name[1]:
            txn.refer(name[0], references)
    if position is not None:
        txn.set_position(position)
