# cython: boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: annotation_typing=False
"""Layers, and one transaction over them: what it sees of them and of the base, and what it changes.

`store.state.layers` says what layers are. This file is plain Python and runs as it is; Cython
compiles the same file with the types that stand in `stackkernel.pxd`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from operator import eq
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from logweir.store.schema.values import LargeTuple
from logweir.store.state.memtable import Memtable, merged_ascending, merged_descending
from logweir.store.state.references import REFERENCE, unwritten, unwritten_number
from logweir.store.state.statetxn import Txn
from logweir.store.state.tree import Tree
from logweir.store.state.undo import COMPILED, Undo
from logweir.store.state.viewers import Look

if TYPE_CHECKING or COMPILED:
    from logweir.store.schema.plankernel import Plan
    from logweir.store.state.layerkernel import Base, Space
    from logweir.store.state.statebase import state_base

_JOINED_FROM = 4  # so many layers of about one size are joined
_JOINED_RANK = 6  # of this size, some 10,000 entries, they no longer are

Name: TypeAlias = tuple[int, int]
"""An index: the id of its space and its own."""

Stack: TypeAlias = "tuple[Layer, ...]"
"""Layers, the newest first."""


class Layer:
    """Changes of some transactions. `tables`: of each index that they touch; `cleared`: the indexes
    of which nothing counts any more that stands below this layer; since it is sealed, `size_bytes`:
    memory that it holds, and `rank`: how large it is, roughly: one more is four times as many
    entries."""

    def __init__(self) -> None:
        self.tables: dict[Name, Memtable] = {}
        self.cleared: set[Name] = set()
        self.since = 0.0
        self.size_bytes = self.rank = 0

    def seal(self) -> None:
        """It is not changed any more."""
        size = entries = 0
        for table in self.tables.values():
            size += table.size_bytes
            entries += len(table)
        self.size_bytes = size
        self.rank = 0
        while entries > 1:
            entries >>= 2
            self.rank += 1

    def takes(self, layer: Layer) -> bool:
        """Whether a newer layer may become a part of this one, instead of standing over it."""
        return layer.rank <= _JOINED_RANK and not layer.cleared

    def take(self, layer: Layer) -> int:
        """Take in a newer layer, which stays as it is, or is used up. Both are sealed. Returns how
        many bytes of memory more it holds."""
        before = self.size_bytes
        for name, table in layer.tables.items():
            mine = self.tables.get(name)
            if mine is None:
                self.tables[name] = table
            else:
                mine.merge(table)
        self.seal()
        return self.size_bytes - before

    @property
    def spaces(self) -> set[int]:
        """The ids of the spaces that it says something of."""
        found = {name[0] for name in self.tables}
        return found.union([name[0] for name in self.cleared]) if self.cleared else found

    def table(self, name: Name, stack: Sequence[Layer]) -> Memtable:
        """What some layers, the newest first, say of an index; whether they clear it is noted."""
        tables: list[Memtable] = []
        for layer in stack:
            found = layer.tables.get(name)
            if found is not None:
                tables.append(found)
            if layer.cleared and name in layer.cleared:
                self.cleared.add(name)
                break
        return tables[0] if len(tables) == 1 else joined(tables)


def whole(stack: Sequence[Layer]) -> Layer:
    """One layer that says what these do, the newest first, sealed: a single one itself; of others
    the entries are not changed."""
    if len(stack) == 1:
        first = stack[0]
        first.seal()
        return first
    made = Layer()
    if stack:
        made.since = min([layer.since for layer in stack])
    for layer in stack:
        for name in layer.tables:
            if name not in made.tables:
                made.tables[name] = made.table(name, stack)
    made.seal()
    return made


def grown(stack: Stack, layer: Layer, size: int, kept: int) -> tuple[Stack, int]:
    """A stack of `size` bytes with a sealed layer over it, and its size. Layers of about one size
    are joined where they are many; the last `kept` of the stack are not."""
    size += layer.size_bytes
    stack = (layer, *stack)
    while True:
        top = stack[0]
        rank, count, most = top.rank, 1, len(stack) - kept
        while count < most:
            other = stack[count]
            if other.rank > rank:
                break
            count += 1
        if count < _JOINED_FROM or rank > _JOINED_RANK:
            return stack, size
        stack = (whole(stack[:count]), *stack[count:])
        size = 0
        for one in stack:
            size += one.size_bytes


def joined(tables: Sequence[Memtable]) -> Memtable:
    """One map that says what these do, the newest first."""
    made = Memtable()
    for table in reversed(tables):
        made.merge(table)
    return made


Mark: TypeAlias = tuple[int, int]
"""A place to roll back to: what was changed, and what was dropped before it."""


class _Referred:
    """The tuples of entries that are references: of the base, and `held` until the log has them."""

    def __init__(self, base: Txn) -> None:
        self.base = base
        self.held: list[LargeTuple] = []

    def resolve(self, value: bytes) -> bytes:
        """The tuple of an entry that is a reference to it."""
        number = unwritten_number(value)
        return self.base.resolve(value) if number is None else self.held[number].joined()


class LayeredTree:
    """One index in one transaction: ordered bytes → bytes. See `store.state.tree.Tree`. It knows
    nothing of its transaction, which knows it: layers are freed by whoever needs them last, and not
    when the collector of cycles comes by. `early`: how many tables behind the first are not durable
    yet."""

    def __init__(
        self,
        referred: _Referred,
        undo: Undo,
        tables: Sequence[Memtable],
        base: Tree | None,
        early: int,
    ) -> None:
        self._referred = referred
        self._undo = undo
        self.tables = tables
        self.base = base
        self.early = early

    # --- reading ----------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`."""
        found = self._in_tables(key)
        if found is not None:
            return self._resolved(found) if found else None
        return None if self.base is None else self.base.get(key)

    def _has(self, key: bytes) -> bool:
        found = self._in_tables(key)
        if found is not None:
            return bool(found)
        return self.base is not None and self.base.has(key)

    def _in_tables(self, key: bytes) -> bytes | None:
        for number, table in enumerate(self.tables):
            found = table.get(key)
            if found is not None:
                if 0 < number <= self.early:
                    self._undo.is_early = True
                return found
        return None

    def _note_all(self) -> None:
        """Any of the entries is looked at."""
        if self.early:
            self._undo.is_early = True

    def _resolved(self, value: bytes) -> bytes:
        return self._referred.resolve(value) if value[0] == REFERENCE else value

    def ascending(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries from `start` on, in order of keys."""
        self._note_all()
        below = iter(()) if self.base is None else self.base.ascending(start)
        if not self.tables:
            return below
        return self._whole(merged_ascending(self.tables, start, below))

    def descending(self, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Entries below `stop` (None: from the greatest), in reverse order of keys."""
        self._note_all()
        below = iter(()) if self.base is None else self.base.descending(stop)
        if not self.tables:
            return below
        return self._whole(merged_descending(self.tables, stop, below))

    def _whole(self, pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        state = self._referred.base.state
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
        self._note_all()
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
        self._note_all()
        below = iter(()) if self.base is None else self.base.descending(None, whole=False)
        found = next(merged_descending(self.tables, None, below), None)
        return None if found is None else found[0]

    # --- changing, in a transaction that writes ---------------------------------------------------

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value under `key`."""
        self._undo.set(self.tables[0], key, value)

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
    its own. `mark` and `rollback` undo part of it, `abort` ends it. `early`: how many layers, from
    the newest on, are not durable yet; `undo.is_early` says whether anything of them was seen."""

    def __init__(
        self, stack: Stack, base: Txn, *, write: bool, look: Look | None = None, early: int = 0
    ) -> None:
        self.stack = stack
        self._early = stack[:early]
        self.base = base
        self.layer: Layer | None = Layer() if write else None
        self.undo = Undo()
        self._drops: list[_Drop] = []
        self.spaces: dict[int, Space] = {}
        """What `space` gave, by the id of the space."""
        self._referred = _Referred(base)
        self.look = look
        self._trees: dict[Name, LayeredTree | None] = {}

    def tree(self, space_id: int, index_id: int) -> LayeredTree | None:
        """The entries of one index; None if a reader finds none (it was never written)."""
        self.check_process()
        name = space_id, index_id
        if name in self._trees:
            return self._trees[name]
        found = None
        tables, base, early = self._below(name)
        if tables or base is not None:
            found = LayeredTree(self._referred, self.undo, tables, base, early)
        self._trees[name] = found
        return found

    def _below(self, name: Name) -> tuple[list[Memtable], Tree | None, int]:
        """The tables of an index, the newest first, what lies below them, and how many behind the
        first are not durable yet. In a transaction that writes the first is its own."""
        tables: list[Memtable] = []
        base: Tree | None = None
        early = 0
        for layer in self._early:
            if name in layer.tables:
                early += 1
            if layer.cleared and name in layer.cleared:
                self.undo.is_early = True  # of what is gone no table says anything
                break
        own = self.layer
        is_based = True
        if own is not None:
            found = own.tables.get(name)
            if found is not None:
                tables.append(found)
            if own.cleared and name in own.cleared:
                is_based = False
        is_new = own is not None and not tables
        for layer in self.stack if is_based else ():
            found = layer.tables.get(name)
            if found is not None:
                tables.append(found)
            if layer.cleared and name in layer.cleared:
                is_based = False
                break
        if is_based:
            base = self._base(name)
        if is_new:
            if not tables and base is None:
                self._check_new(name)
            assert own is not None
            own.tables[name] = made = Memtable()
            tables.insert(0, made)
        return tables, base, early

    def _base(self, name: Name) -> Tree | None:
        """The entries of an index in the base."""
        known = self.base.trees
        if known is None:
            return self.base.tree(name[0], name[1])
        found = known.get(name)
        if found is None and name not in known:
            found = known[name] = self.base.tree(name[0], name[1])
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

    def resolve(self, reference: bytes) -> bytes:
        """The tuple that an entry refers to."""
        return self._referred.resolve(reference)

    def hold(self, tuples: Sequence[LargeTuple]) -> list[bytes]:
        """Values in the place of tuples that will be written, until the log has them."""
        held = self._referred.held
        held += tuples
        return unwritten(len(held) - len(tuples), len(tuples))

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
        self.spaces.pop(name[0], None)

    def load(self, space_id: int, index_id: int, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Set many entries."""
        tree = self.tree(space_id, index_id)
        assert tree is not None
        tree.load(pairs)

    def space(self, plan: Plan) -> Space:
        """What compiled statements and selections of a space need of this transaction."""
        found = self.spaces.get(plan.space_id)
        if found is None or found.plan is not plan:
            tables: list[Sequence[Memtable]] = []
            bases: list[Base] = []
            early: list[int] = []
            known = self.base.bases
            for index_id in plan.index_ids:
                name = plan.space_id, index_id
                stack, tree, count = self._below(name)
                base = None if known is None else known.get(name)
                if tree is None:
                    base = Base()
                elif base is None:
                    base = state_base(tree)
                    if known is not None:
                        known[name] = base
                tables.append(stack)
                bases.append(base)
                early.append(count)
            undo = None if self.layer is None else self.undo
            found = Space(plan, tables, bases, undo, early)
            self.spaces[plan.space_id] = found
        return found

    def has_changed(self, space_id: int) -> bool:
        """Whether it says something of a space that is not published, or what is not durable yet
        and below it does."""
        name = (space_id, 0)
        for layer in self._early if self.layer is None else (self.layer, *self._early):
            if layer.tables.get(name) or name in layer.cleared:
                return True
        return False

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
        made._referred.held += self._referred.held
        return made

    def taken(self) -> Layer:
        """The layer, for the stack. It is not changed any more."""
        layer = self.layer
        assert layer is not None
        empty = [name for name, table in layer.tables.items() if not len(table)]
        for name in empty:
            if name not in layer.cleared:
                del layer.tables[name]
        return layer

    def abort(self) -> None:
        """Forget it, or end it after its layer was taken. Twice does no harm: by then the base's
        transaction may be another one's."""
        look, self.look = self.look, None
        if look is None:
            return
        base = self.base
        is_lent, base.is_lent = base.is_lent, False
        try:
            if is_lent:
                base.state.take_back(base)
            else:
                base.abort()
        except BaseException:  # an interrupt; if it was given back it may be another one's
            if not base.is_lent:
                base.end()
            raise
        finally:
            look.end()
