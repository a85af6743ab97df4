"""The compiled binding of LMDB and py-lmdb do the same, whatever is asked of them in which order.

Each has an environment of its own. Both get every call; what they return, which kind of error they
raise, and what they hold in the end must agree. Each opens what the other has written.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from logweir.store.state import lmdbfile
from logweir.store.state.memtable import Memtable

compiled = pytest.importorskip("logweir.store.state.lmdbkernel", reason="LMDB is called by py-lmdb")
lmdb = pytest.importorskip("lmdb", reason="py-lmdb is not installed")
applykernel = pytest.importorskip(
    "logweir.store.state.applykernel", reason="LMDB is called by py-lmdb"
)

NAMES = (b"one", b"two", b"three", b"four")
OPTIONS = {"max_dbs": 3, "max_spare_txns": 2, "sync": False, "metasync": False}
MAP_BYTES = 40 * 4096

keys = st.one_of(
    st.sampled_from([b"a", b"b", b"ab", b"b\0", b"", b"k" * 511, b"k" * 512]),
    st.integers(0, 40).map(lambda number: b"%03d" % number),
)
values = st.one_of(
    st.binary(max_size=4), st.integers(1, 5000).map(lambda size: b"v" * size), st.just(b"")
)
pairs = st.lists(st.tuples(keys, values), max_size=20)


class Both:
    """The same thing of both bindings."""

    def __init__(self, ours: Any, theirs: Any) -> None:
        self.ours, self.theirs = ours, theirs


def outcome(call: Callable[[], Any]) -> tuple[Any, Any]:
    """What a call returned, and the name of the error that it raised."""
    try:
        return call(), None
    except (compiled.Error, lmdb.Error, TypeError) as error:
        return None, type(error).__name__


def side(value: Any, is_ours: bool) -> Any:
    """What one binding is to be given."""
    if isinstance(value, Both):
        return value.ours if is_ours else value.theirs
    return value


def same(both: Both, call: Callable[[Any, bool], Any]) -> bool:
    """Call it with both: the outcome is the same. Whether LMDB takes nothing more after it."""
    ours = outcome(lambda: call(both.ours, True))
    assert ours == outcome(lambda: call(both.theirs, False))
    return ours[1] in ("MapFullError", "BadTxnError")


def ask(both: Both, name: str, *given: Any, **named: Any) -> Any:
    """Call a method of both; the answers are equal, or two things to go on with."""

    def call(thing: Any, is_ours: bool) -> Any:
        args = [side(one, is_ours) for one in given]
        kwargs = {key: side(one, is_ours) for key, one in named.items()}
        return getattr(thing, name)(*args, **kwargs)

    ours, error = outcome(lambda: call(both.ours, True))
    theirs, their_error = outcome(lambda: call(both.theirs, False))
    assert error == their_error, (name, given, named, error, their_error)
    if isinstance(theirs, bytes | bool | int | tuple | dict | None):
        assert ours == theirs, (name, given, named)
        return ours
    return Both(ours, theirs)


class Bindings(RuleBasedStateMachine):
    """One transaction that writes and those inside of it, some that read, and their cursors."""

    cursors = Bundle("cursors")
    readers = Bundle("readers")

    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.map_bytes = MAP_BYTES
        self.env = self._opened(compiled.Environment, lmdb.Environment)
        self.writers: list[Both] = []
        self.is_broken = False
        self.databases: dict[bytes, Both] = {}
        self.fresh: list[list[bytes]] = []
        self.databases[b"one"] = ask(self.env, "open_db", b"one")
        self.begin()

    def _opened(self, ours: Any, theirs: Any) -> Both:
        one, other = str(self.folder / "one"), str(self.folder / "other")
        size = self.map_bytes
        return Both(ours(one, size, **OPTIONS), theirs(other, size, **OPTIONS))

    @rule()
    def begin(self) -> None:
        """A transaction that writes, or one inside of the last."""
        if not self.writers:
            self.writers.append(ask(self.env, "begin", write=True))
        elif len(self.writers) < 3 and not self.is_broken:
            made = ask(self.env, "begin", parent=self.writers[-1], write=True)
            if made is None:
                return
            self.writers.append(made)
        else:
            return
        self.fresh.append([])

    @precondition(lambda self: self.writers)
    @rule(keep=st.booleans())
    def end(self, keep: bool) -> None:
        """Commit or abort the last one."""
        txn = self.writers.pop()
        fresh = self.fresh.pop()
        if self.is_broken:  # after an error LMDB only allows this
            keep = False
        ask(txn, "commit" if keep else "abort")
        if keep and self.fresh:
            self.fresh[-1] += fresh
        elif not keep:
            for name in fresh:
                self.databases.pop(name, None)
        if not self.writers:
            self.is_broken = False

    @precondition(lambda self: self.writers and not self.is_broken)
    @rule(name=st.sampled_from(NAMES), create=st.booleans())
    def open_database(self, name: bytes, create: bool) -> None:
        made = ask(self.env, "open_db", name, self.writers[-1], create=create)
        if made is not None and name not in self.databases:
            self.databases[name] = made
            self.fresh[-1].append(name)

    def _database(self, number: int) -> Both | None:
        found = sorted(self.databases)
        return self.databases[found[number % len(found)]] if found else None

    def _change(self, name: str, *given: Any, db: Both | None, **named: Any) -> None:
        if self.is_broken:
            return
        self.is_broken = same(
            self.writers[-1],
            lambda txn, is_ours: getattr(txn, name)(*given, **named, db=side(db, is_ours)),
        )

    @precondition(lambda self: self.writers and self.databases)
    @rule(key=keys, value=values, number=st.integers(0, 3), overwrite=st.booleans())
    def put(self, key: bytes, value: bytes, number: int, overwrite: bool) -> None:
        self._change("put", key, value, overwrite=overwrite, db=self._database(number))

    @precondition(lambda self: self.writers and self.databases)
    @rule(key=keys, number=st.integers(0, 3))
    def delete(self, key: bytes, number: int) -> None:
        self._change("delete", key, db=self._database(number))

    @precondition(lambda self: self.writers and self.databases and not self.is_broken)
    @rule(number=st.integers(0, 3))
    def clear(self, number: int) -> None:
        ask(self.writers[-1], "drop", self._database(number), delete=False)

    @precondition(lambda self: self.writers and self.databases and not self.is_broken)
    @rule(
        given=pairs,
        number=st.integers(0, 3),
        overwrite=st.booleans(),
        append=st.booleans(),
        ordered=st.booleans(),
        kind=st.sampled_from([list, tuple, iter, memoryview]),
    )
    def putmulti(
        self,
        given: list[tuple[bytes, bytes]],
        number: int,
        overwrite: bool,
        append: bool,
        ordered: bool,
        kind: Any,
    ) -> None:
        given = sorted(given) if ordered else given
        cursor = ask(self.writers[-1], "cursor", self._database(number))

        def call(one: Any, is_ours: bool) -> Any:
            buffers = [(bytearray(key), memoryview(value)) for key, value in given]
            items = buffers if kind is memoryview else kind(given)
            return one.putmulti(items, overwrite=overwrite, append=append)

        self.is_broken = same(cursor, call)

    @rule(target=readers)
    def read(self) -> Any:
        return ask(self.env, "begin")

    @rule(txn=consumes(readers), keep=st.booleans())
    def end_read(self, txn: Both, keep: bool) -> None:
        ask(txn, "commit" if keep and outcome(txn.ours.stat)[1] is None else "abort")
        assert ask(txn, "get", b"a") is None

    @precondition(lambda self: self.databases and not self.is_broken)
    @rule(key=keys, number=st.integers(0, 3))
    def get(self, key: bytes, number: int) -> None:
        if self.writers:
            database = self._database(number)
            ask(self.writers[-1], "get", key, db=database)
            ask(self.writers[-1], "stat", database)

    @precondition(lambda self: self.databases and not any(self.fresh))
    @rule(txn=readers, key=keys, number=st.integers(0, 3))
    def get_read(self, txn: Both, key: bytes, number: int) -> None:
        ask(txn, "get", key, b"none", self._database(number))

    @precondition(lambda self: self.databases and self.writers and not self.is_broken)
    @rule(target=cursors, number=st.integers(0, 3))
    def cursor(self, number: int) -> Any:
        return ask(self.writers[-1], "cursor", self._database(number)), self.writers[-1]

    @precondition(lambda self: self.writers and not self.is_broken)
    @rule(target=cursors)
    def first_cursor(self) -> Any:
        txn = self.writers[-1]
        return ask(txn, "cursor", self.databases[b"one"]), txn

    @precondition(lambda self: not self.is_broken)
    @rule(
        cursor=cursors,
        key=keys,
        name=st.sampled_from(["first", "last", "prev", "next", "set_range"]),
        look=st.sampled_from(["", "key", "value", "item"]),
        count=st.integers(0, 5),
    )
    def move(self, cursor: Any, key: bytes, name: str, look: str, count: int) -> None:
        """Where its transaction has another one inside, the compiled one refuses, always."""
        both, txn = cursor
        if txn in self.writers[:-1]:
            assert outcome(both.ours.first)[1] == "BadTxnError"
            return
        if name in ("prev", "next") and not outcome(both.ours.key)[0]:
            return  # where nothing is under it py-lmdb's own LMDB differs
        ask(both, name, *([key] if name.startswith("set") else []))
        if look:
            ask(both, look)
        for step in ("iternext", "iterprev"):
            ours, theirs = (outcome(getattr(one, step)) for one in (both.ours, both.theirs))
            assert ours[1] == theirs[1]
            if ours[1] is None:
                for _ in range(count):
                    got = [outcome(lambda one=one: next(one[0], None)) for one in (ours, theirs)]
                    assert got[0] == got[1]

    @precondition(lambda self: not self.is_broken)
    @rule(
        cursor=cursors,
        places=st.tuples(keys, keys),
        value=values,
        name=st.sampled_from(["put", "delete", "putmulti"]),
        look=st.sampled_from(["key", "value", "item"]),
    )
    def change_below(
        self, cursor: Any, places: tuple[bytes, bytes], value: bytes, name: str, look: str
    ) -> None:
        """What it is at may move, change or go."""
        both, txn = cursor
        if not self.writers or txn is not self.writers[-1]:
            return
        ask(both, "set_range", places[0])
        at = outcome(both.ours.key)[0]
        database = self.databases[b"one"]
        if name == "put":
            self._change("put", places[1], value, db=database)
        elif name == "delete" and at:
            self._change("delete", at, db=database)
        else:
            given = [(b"%03d" % number, value) for number in range(30)]
            self.is_broken = same(
                txn, lambda one, is_ours: one.cursor(side(database, is_ours)).putmulti(given)
            )
        if not self.is_broken:
            ask(both, look)

    @precondition(lambda self: not self.writers and self.map_bytes < 64 * MAP_BYTES)
    @rule()
    def grow(self) -> None:
        """It ends those that read, in both."""
        self.map_bytes *= 2
        ask(self.env, "set_mapsize", self.map_bytes)

    @precondition(lambda self: not self.writers)
    @rule()
    def swap(self) -> None:
        """Each opens what the other one wrote."""
        before = self.env
        ask(before, "close")
        ask(before, "close")
        assert outcome(before.ours.begin)[1] == outcome(before.theirs.begin)[1] == "Error"
        one, other = self.folder / "one", self.folder / "other"
        one.rename(self.folder / "third")
        other.rename(one)
        (self.folder / "third").rename(other)
        self.env = self._opened(compiled.Environment, lmdb.Environment)
        with self.env.ours.begin() as txn, txn.cursor() as cursor:
            names = list(cursor.iternext(values=False))
        self.databases = {name: ask(self.env, "open_db", name) for name in names}

    @invariant()
    def same_contents(self) -> None:
        """What was committed is the same, entry by entry."""
        if not hasattr(self, "env") or self.writers:
            return
        held = []
        for env, index in ((self.env.ours, "ours"), (self.env.theirs, "theirs")):
            with env.begin() as txn:
                held.append(
                    {
                        name: list(txn.cursor(getattr(db, index)))
                        for name, db in self.databases.items()
                    }
                )
        assert held[0] == held[1]
        assert self.env.ours.stat() == self.env.theirs.stat()

    def teardown(self) -> None:
        if hasattr(self, "env"):
            while self.writers:
                ask(self.writers.pop(), "abort")
            ask(self.env, "close")
            shutil.rmtree(self.folder)


TestBindings = Bindings.TestCase
TestBindings.settings = settings(
    max_examples=40,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.parametrize("seed", range(4))
def test_memtable_of_many_parts_is_what_the_database_holds(seed: int, tmp_path: Path) -> None:
    """Whatever is changed, removed, long or a reference, at each border of the parts that LMDB has
    them in; where the pages run out in one of them, nothing of the others is there."""
    random, model = Random(seed), dict[bytes, bytes]()
    with compiled.Environment(tmp_path / "e", map_size=2**26, max_dbs=3) as env:
        handle = env.open_db(b"a")
        for count in (1, 255, 256, 1023, 1024, 1025, 2048, 2049, 5000):
            table, wanted = Memtable(), set[tuple[bytes, bytes]]()
            for key in random.sample(range(20_000), count):
                name = b"%06d" % key + (b"l" * 600 if key % 97 == 0 else b"")
                value = random.choice([b"", b"\xc1" + bytes(32), bytes(random.randrange(1, 300))])
                table.put(name, value)
                if len(name) > 511:
                    wanted.add((name, value))
                elif value:
                    model[name] = value
                else:
                    model.pop(name, None)
            with env.begin(write=True) as txn:
                long, marked = applykernel.apply(txn, handle, table, 511, 0xC1)
            assert sorted(long) == sorted(wanted)
            assert marked == [item for item in table.ascending() if item[1][:1] == b"\xc1"]
            with env.begin() as txn, txn.cursor(handle) as cursor:
                held = list(cursor.iternext()) if cursor.first() else []
            assert held == sorted(model.items())
    assert lmdbfile.damage(tmp_path / "e" / "data.mdb") == ""


def test_what_does_not_fit_leaves_nothing_of_its_earlier_parts(tmp_path: Path) -> None:
    """The transaction is still there to be aborted, and the next one takes less."""
    table, small = Memtable(), Memtable()
    for key in range(5000):
        table.put(b"%06d" % key, bytes(300))
    small.put(b"k", b"v")
    with compiled.Environment(tmp_path / "e", map_size=200 * 4096, max_dbs=3) as env:
        handle = env.open_db(b"a")
        txn = env.begin(write=True)
        with pytest.raises(compiled.MapFullError):
            applykernel.apply(txn, handle, table, 511, 0xC1)
        txn.abort()
        with env.begin(write=True) as txn:
            assert txn.stat(handle)["entries"] == 0
            applykernel.apply(txn, handle, small, 511, 0xC1)
        with env.begin() as txn:
            assert txn.get(b"k", db=handle) == b"v"


@pytest.mark.parametrize("is_first_put", [False, True], ids=["two tables", "entries before"])
def test_more_pages_may_change_than_fit_into_lmdbs_list(is_first_put: bool, tmp_path: Path) -> None:
    """Its list has 131,071; here each value has a page of its own, and two databases share it."""
    count, value = 110_000, bytes(2100)
    with compiled.Environment(tmp_path / "e", map_size=2**31, max_dbs=3, sync=False) as env:
        handles = [env.open_db(name) for name in (b"a", b"b")]
        with env.begin(write=True) as txn:
            for handle in handles:
                table = Memtable()
                for key in Random(1).sample(range(10 * count), count):
                    table.put(b"%06d" % key, value)
                if is_first_put and handle is handles[0]:
                    txn.cursor(handle).putmulti(list(table.ascending()))
                    continue
                applykernel.apply(txn, handle, table, 511, 0xC1)
                del table
        with env.begin() as txn:
            assert [txn.stat(handle)["entries"] for handle in handles] == [count, count]
            assert sum(txn.stat(handle)["overflow_pages"] for handle in handles) > 131_071
    assert lmdbfile.damage(tmp_path / "e" / "data.mdb") == ""
