"""Memtables, compiled and plain, next to a dict that is sorted."""

from __future__ import annotations

import subprocess
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from logweir.store.state import memtable
from logweir.store.state.memtable import COMPILED, Memtable, PlainMemtable
from logweir.testing.interrupting import Interrupter

BOTH: dict[str, tuple[Any, Any, Any]] = {
    "plain": (
        PlainMemtable,
        memtable.plain_merged_ascending,
        memtable.plain_merged_descending,
    )
}
if COMPILED:
    BOTH["compiled"] = (Memtable, memtable.merged_ascending, memtable.merged_descending)

each = pytest.mark.parametrize("table", [one[0] for one in BOTH.values()], ids=BOTH)
compiled = pytest.mark.skipif(not COMPILED, reason="the memtable is not compiled")

# Prefixes of one another, embedded and trailing zeros, equal first eight bytes, high bytes.
KEYS = st.one_of(
    st.binary(max_size=4),
    st.integers(0, 70_000).map(lambda number: b"\x01" + number.to_bytes(8, "big")),
    st.lists(st.sampled_from([b"\0", b"a", b"\xff"]), max_size=20).map(b"".join),
    st.tuples(st.just(b"12345678"), st.binary(max_size=10)).map(b"".join),
    st.integers(0, 300).map(lambda size: b"p" * size),
)
VALUES = st.one_of(
    st.just(b""),
    st.binary(min_size=1, max_size=20),
    st.sampled_from([b"v" * 4095, b"v" * 4096, b"w" * 9000]),
)
ITEMS = st.lists(st.tuples(KEYS, VALUES), max_size=60)


def put_all(table: Any, items: Iterable[tuple[bytes, bytes]]) -> None:
    """Put items one behind the other."""
    for key, value in items:
        table.put(key, value)


class Machine(RuleBasedStateMachine):
    """Any changes, and after each what both directions show from anywhere."""

    make: Any = PlainMemtable

    @initialize(items=ITEMS, rising=st.integers(0, 255), most=st.sampled_from([1, 8]))
    def begin(self, items: list[tuple[bytes, bytes]], rising: int, most: int) -> None:
        self.table = self.make()
        self.model: dict[bytes, bytes] = {}
        self.undo: list[tuple[bytes, bytes | None]] = []
        self.run(items + [(number.to_bytes(most, "big"), b"n") for number in range(rising)])

    @rule(items=ITEMS)
    def run(self, items: list[tuple[bytes, bytes]]) -> None:
        put_all(self.table, items)
        self.model |= dict(items)

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes) -> None:
        before = self.table.put(key, value)
        assert before == self.model.get(key)
        self.model[key] = value
        self.undo.append((key, before))

    @rule(times=st.integers(1, 30))
    def take_back(self, times: int) -> None:
        for _ in range(min(times, len(self.undo))):
            key, before = self.undo.pop()
            self.restore(key, before)

    @rule(key=KEYS, before=st.one_of(st.none(), VALUES))
    def restore(self, key: bytes, before: bytes | None) -> None:
        self.table.restore(key, before)
        if before is None:
            self.model.pop(key, None)
        else:
            self.model[key] = before

    @rule()
    def take_all_out(self) -> None:
        for key in list(self.model):
            self.restore(key, None)

    @rule(items=ITEMS)
    def merge(self, items: list[tuple[bytes, bytes]]) -> None:
        newer = self.make()
        put_all(newer, items)
        self.table.merge(newer)
        assert list(newer.ascending()) == sorted(dict(items).items())
        self.model |= dict(items)

    @rule(key=KEYS)
    def look(self, key: bytes) -> None:
        assert self.table.get(key) == self.model.get(key)
        items = sorted(self.model.items())
        at = bisect_left(items, (key,))
        assert list(self.table.ascending(key)) == items[at:]
        assert list(self.table.descending(key)) == items[:at][::-1]

    @invariant()
    def shows_all(self) -> None:
        if not hasattr(self, "table"):
            return
        items = sorted(self.model.items())
        assert len(self.table) == len(items)
        assert list(self.table.ascending()) == items
        assert list(self.table.descending()) == items[::-1]
        assert self.table.gone() == [key for key, value in items if not value]
        parts = list(self.table.parts(7))
        assert [len(keys) for keys, _ in parts[:-1]] == [7] * (len(parts) - 1)
        live = [pair for keys, values in parts for pair in zip(keys, values, strict=True)]
        assert live == [item for item in items if item[1]]
        assert all(self.table.get(key) == value for key, value in items)


@pytest.mark.parametrize("name", BOTH)
def test_a_memtable_is_a_sorted_dict(name: str) -> None:
    """Whatever is put, taken back and merged: lookups, both directions, parts and lengths."""
    machine = type("Machine", (Machine,), {"make": BOTH[name][0]})
    run_state_machine_as_test(machine, settings=settings(max_examples=40, deadline=None))


@pytest.mark.parametrize("name", BOTH)
@settings(max_examples=150, deadline=None)
@given(layers=st.lists(ITEMS, max_size=4), base=ITEMS, bound=st.one_of(st.none(), KEYS))
def test_the_newest_layer_wins(
    name: str,
    layers: list[list[tuple[bytes, bytes]]],
    base: list[tuple[bytes, bytes]],
    bound: bytes | None,
) -> None:
    """Merged in both directions over a base: of each key the newest, without what is gone."""
    make, ascending, descending = BOTH[name]
    below = {key: value or b"base" for key, value in base}
    model = dict(below)
    tables = []
    for items in layers:
        table = make()
        put_all(table, items)
        tables.insert(0, table)
        model |= dict(items)
    seen = sorted(item for item in model.items() if item[1])
    up = sorted(item for item in below.items() if item[0] >= (bound or b""))
    assert list(ascending(tables, bound or b"", up)) == [
        item for item in seen if item[0] >= (bound or b"")
    ]
    down = sorted(item for item in below.items() if bound is None or item[0] < bound)[::-1]
    assert list(descending(tables, bound, iter(down))) == [
        item for item in seen[::-1] if bound is None or item[0] < bound
    ]


def patterns(random: Random, count: int) -> Iterator[tuple[str, list[bytes]]]:
    """Keys in the orders that fill a tree in different ways."""
    numbers = [b"\x03" + number.to_bytes(8, "big") for number in range(count)]
    yield "rising", numbers
    yield "falling", numbers[::-1]
    yield "random", random.sample(numbers, count)
    yield "bytes", [random.randbytes(random.randrange(24)) for _ in range(count)]
    yield "runs", [bytes([random.randrange(9)]) + number for number in numbers]
    inside = [b"\x03" + bytes(8), b"\x03\xff", *(one + b"x" for one in numbers[::-1])]
    yield "falling inside", inside
    zigzag = [numbers[at // 2 if at % 2 else count - 1 - at // 2] for at in range(count)]
    yield "from both ends", zigzag
    yield "less and less shared", [b"s" * (200 - at // 200) + numbers[at] for at in range(count)]


@each
def test_two_hundred_thousand_keys(table: Any) -> None:
    """Random keys with repetitions: all are found, in order, and gone where they were taken."""
    random = Random(5)
    count = 50_000 if table is PlainMemtable else 200_000  # that takes keys out one by one
    keys = [random.randbytes(random.choice((2, 8, 9, 18))) for _ in range(count)]
    own = table()
    model = {key: b"%d" % at for at, key in enumerate(keys)}
    put_all(own, [(key, b"%d" % at) for at, key in enumerate(keys)])
    assert list(own.ascending()) == sorted(model.items())
    for key in keys[::2]:
        own.restore(key, None)
        model.pop(key, None)
    assert list(own.descending()) == sorted(model.items())[::-1]
    assert [own.get(key) for key in keys] == [model.get(key) for key in keys]


@each
def test_any_order_of_filling(table: Any) -> None:
    """However a tree is filled it holds everything once, in order; and again over what it holds."""
    for name, keys in patterns(Random(1), 6000):
        own = table()
        for round in (b"1", b"2"):
            for key in keys:
                own.put(key, round)
            assert list(own.ascending()) == [(key, round) for key in sorted(set(keys))], name
        assert all(own.get(key) == b"2" for key in keys), name
        there = set(keys)
        others = (key + b"\0" for key in keys if key + b"\0" not in there)
        assert all(own.get(key) is None for key in others), name


@each
def test_long_keys_and_large_values(table: Any) -> None:
    """Keys of more than 64 KiB and values of many MiB come back as they were, also overwritten."""
    own = table()
    keys = [b"k" * size + tail for size in (65_535, 65_536, 300_000) for tail in (b"", b"\0", b"z")]
    for key in keys:
        own.put(key, b"small")
    large = bytes(20_000_000)
    assert own.put(keys[3], large) == b"small"
    assert own.put(keys[3], b"") == large
    assert own.put(keys[3], large) == b""
    assert dict(own.ascending()) == {key: large if key == keys[3] else b"small" for key in keys}
    assert own.size_bytes >= sum(map(len, keys)) + len(large)


@each
def test_a_change_ends_an_iteration(table: Any) -> None:
    """Reading on after a change is refused by name, also where the entry itself went away."""
    for change in (
        lambda own: own.put(b"b", b"2"),
        lambda own: own.restore(b"a", None),
        lambda own: own.put(b"new", b"1"),
    ):
        for walk in (
            lambda own: own.ascending(),
            lambda own: own.descending(),
            lambda own: own.parts(1),
        ):
            own = table()
            for key in (b"a", b"b", b"c"):
                own.put(key, b"1")
            walking = walk(own)
            next(walking)
            change(own)
            with pytest.raises(RuntimeError, match="changed"):
                next(walking)


@pytest.mark.parametrize("name", BOTH)
def test_a_change_ends_a_merge(name: str) -> None:
    """A merge refuses to go on in a memtable that has changed."""
    make, ascending, descending = BOTH[name]
    for merged in (ascending, descending):
        own = make()
        for key in (b"a", b"b", b"c"):
            own.put(key, b"1")
        walking = merged([make(), own], b"" if merged is ascending else None, [])
        next(walking)
        own.restore(b"b", None)
        with pytest.raises(RuntimeError, match="changed"):
            list(walking)


@compiled
def test_what_is_no_bytes_is_refused() -> None:
    """Other types are refused with TypeError, and nothing is put."""
    own: Any = Memtable()
    for wrong in ("text", None, 1, bytearray(b"x")):
        with pytest.raises(TypeError):
            own.put(wrong, b"1")
        with pytest.raises(TypeError):
            own.put(b"1", wrong)
        with pytest.raises(TypeError):
            own.get(wrong)
        with pytest.raises(TypeError):
            own.merge(wrong)
    assert len(own) == 0


@each
def test_merging_keeps_both(table: Any) -> None:
    """What was merged stays when the newer memtable changes or goes away, large values too."""
    own, newer = table(), table()
    large = b"L" * 50_000
    newer.put(b"large", large)
    put_all(newer, [(b"copied", large), (b"gone", b"")])
    own.put(b"gone", b"was here")
    own.merge(newer)
    own.merge(own)
    newer.put(b"large", b"other")
    assert list(newer.ascending()) == [(b"copied", large), (b"gone", b""), (b"large", b"other")]
    del newer
    assert list(own.ascending()) == [(b"copied", large), (b"gone", b""), (b"large", large)]


def test_a_plain_one_can_be_read_whatever_stops_a_merge() -> None:
    """It may stand below what it was to take in, which is read on."""
    at = 0
    while True:
        at += 1
        own, newer = PlainMemtable(), PlainMemtable()
        put_all(own, [(b"b", b"1"), (b"d", b"1")])
        put_all(newer, [(b"c", b"2"), (b"b", b"2"), (b"a", b"2")])
        stopping = Interrupter(at, Path(memtable.__file__).parent)
        if not stopping.run(lambda own=own, newer=newer: own.merge(newer)):
            break
        seen = memtable.plain_merged_ascending([newer, own], b"", ())
        assert list(seen) == [(b"a", b"2"), (b"b", b"2"), (b"c", b"2"), (b"d", b"1")]
        keys = [key for key, _ in own.ascending()]
        assert keys == sorted(keys)
        assert len(keys) == len(own)
    assert at > 10


@each
def test_a_large_value_is_not_copied(table: Any) -> None:
    """Objects of 4 KiB or more are held, and let go with the last memtable that holds them."""
    large = bytes(5000)
    count = sys.getrefcount(large)
    own, second = table(), table()
    own.put(b"k", large)
    second.merge(own)
    assert second.get(b"k") is large
    del own
    assert second.get(b"k") is large
    assert sys.getrefcount(large) > count
    del second
    assert sys.getrefcount(large) == count


FREED = """
import resource, sys
from pathlib import Path
from random import Random
resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
from logweir.store.state import memtable
Memtable = getattr(memtable, sys.argv[1])
count = 40_000
keys = [Random(at).randbytes(8) for at in range(count)]
value = bytes(160)
for _ in range(30):
    table = Memtable()
    for key in keys:
        table.put(key, value)
    for name in (b"large", b"x", b"x", b"x"):
        table.put(name, bytes(1 << 20))
    newer, table = table, Memtable()
    table.merge(newer)
    held = table.size_bytes
    assert held > 7_000_000
print("room", held)
kept = []
try:
    while True:
        kept.append(Memtable())
        kept[-1].merge(table)
except MemoryError:
    print("full", len(kept) > 10)
last = kept.pop()
del kept
rest = [(key, value) for key, value in table.ascending() if last.get(key) is not None]
assert list(last.ascending()) == rest
last.merge(table)
assert list(last.ascending()) == list(table.ascending())
print("whole")
"""


@each
def test_memory_is_given_back_and_may_run_out(table: Any) -> None:
    """Twice what fits into the process goes through memtables; when memory is out
    there is MemoryError, the memtable holds a part, and takes the rest when there is room again."""
    command = [sys.executable, "-P", "-c", FREED, table.__name__]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[2:] == ["full", "True", "whole"]


def test_rising_keys_fill_their_leaves() -> None:
    """An entry of a rising run costs less than one of a random order, which leaves room."""
    numbers = [number.to_bytes(9, "big") for number in range(50_000)]
    sizes = []
    for keys in (numbers, Random(2).sample(numbers, len(numbers))):
        own = Memtable()
        put_all(own, [(key, b"12345678") for key in keys])
        sizes.append(own.size_bytes / len(own))
    assert sizes[0] <= sizes[1]
    assert not COMPILED or sizes[0] < 90
