"""Keys of any length in the state: a sorted dict's behaviour, and work that does not add up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from logweir.store.state.state import State
from logweir.store.state.statetxn import Txn
from logweir.store.state.tree import Tree

LENGTHS = (1, 400, 509, 510, 511, 512, 1011, 1012, 1013, 1014, 1015, 1514, 1600, 5000)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """An empty one."""
    made = State(tmp_path / "state")
    made.open()
    yield made
    made.close(clean=False)


def some_key(random: Random) -> bytes:
    """Mostly one that begins as many others do, and ends near the border of a piece."""
    length = max(1, random.choice(LENGTHS) + random.randrange(-1, 2))
    key = bytearray(b"k" * length)
    for _ in range(random.choice([0, 0, 1, 1, 2])):
        key[random.randrange(length)] = random.choice(b"\x00jl\xff")
    return bytes(key)


def check(tree: Tree, model: dict[bytes, bytes], random: Random) -> None:
    """Everything that can be asked of the tree, from some places on."""
    order = sorted(model.items())
    assert list(tree.ascending(b"")) == order
    assert list(tree.descending(None)) == order[::-1]
    assert tree.count() == len(order)
    places = [some_key(random) for _ in range(5)] + random.sample(sorted(model), min(5, len(model)))
    for place in places:
        assert tree.get(place) == model.get(place)
        assert list(tree.ascending(place)) == [pair for pair in order if pair[0] >= place]
        assert list(tree.descending(place)) == [pair for pair in order[::-1] if pair[0] < place]
        values = [value for key, value in order if key >= place]
        assert tree.values(place, 10**6, 10**9) == (values, True)
        assert tree.values(place, 1, 10**9)[0] == values[:1]


@pytest.mark.parametrize("seed", range(8))
def test_long_keys_are_those_of_a_sorted_dict(seed: int, state: State) -> None:
    """Sets and removals in any order; also in what a later reader sees."""
    random = Random(seed)
    model: dict[bytes, bytes] = {}
    for _ in range(12):
        txn = state.begin()
        tree = txn.tree(512, 0)
        assert tree is not None
        for _ in range(6):
            for _ in range(random.randrange(8)):
                if model and random.random() < 0.45:
                    key = random.choice(sorted(model))
                    tree.delete(key)
                    del model[key]
                else:
                    key, value = some_key(random), random.randbytes(random.randrange(20))
                    tree.put(key, value)
                    model[key] = value
        check(tree, model, random)
        txn.commit()
        with state.read() as reader:
            seen = reader.tree(512, 0)
            assert seen is not None
            check(seen, model, random)
    txn = state.begin()
    for key in list(model):
        tree = txn.tree(512, 0)
        assert tree is not None
        tree.delete(key)
    for name in (b"512/0", b"512/0/long"):
        assert txn.raw.stat(txn.database(name))["entries"] == 0
    txn.abort()


@pytest.mark.parametrize("size", [10, 1000, 900_000])
def test_no_more_values_are_read_than_fit(size: int, state: State) -> None:
    """Of large ones one too many, of small ones as many as are as large together as the last
    step; and all when there is room."""
    count = 40 if size > 1000 else 3000
    txn = state.begin()
    tree = txn.tree(512, 0)
    assert tree is not None
    for number in range(count):
        tree.put(number.to_bytes(4, "big"), bytes(size))
    limit = size * count // 4
    found, is_whole = tree.values(b"", count, limit)
    assert not is_whole
    assert limit <= sum(map(len, found)) <= limit + size
    assert tree.values(b"", 10**6, 10**9) == ([bytes(size)] * count, True)
    txn.abort()


class Counting:
    """LMDB's transaction, with a count of calls and of the bytes that they moved."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.calls = 0
        self.bytes = 0

    def get(self, key: bytes, **given: Any) -> bytes | None:
        found: bytes | None = self._raw.get(key, **given)
        self._count(key, found or b"")
        return found

    def put(self, key: bytes, value: bytes, **given: Any) -> bool:
        self._count(key, value)
        return bool(self._raw.put(key, value, **given))

    def delete(self, key: bytes, **given: Any) -> bool:
        self._count(key, b"")
        return bool(self._raw.delete(key, **given))

    def cursor(self, *given: Any) -> Any:
        self._count(b"", b"")
        return self._raw.cursor(*given)

    def stat(self, handle: Any) -> Any:
        return self._raw.stat(handle)

    def abort(self) -> None:
        self._raw.abort()

    def _count(self, key: bytes, value: bytes) -> None:
        self.calls += 1
        self.bytes += len(key) + len(value)


def steps(txn: Txn, number: int, length: int) -> tuple[int, int]:
    """Calls and bytes that it takes to set, get and remove a key that begins as all do."""
    for name in (b"512/0", b"512/0/long", b"meta"):
        txn.database(name)
    raw = Counting(txn.raw)
    txn.raw = raw
    tree = txn.tree(512, 0)
    assert tree is not None
    key = b"k" * (length - 4) + number.to_bytes(4, "big")
    assert tree.get(key) is None
    tree.put(key, b"value")
    assert tree.get(key) == b"value"
    tree.delete(key)
    tree.put(key, b"value")
    txn.raw = raw._raw
    return raw.calls, raw.bytes


@pytest.mark.parametrize("length", [514, 1100, 4000])
def test_a_long_key_costs_the_same_whatever_others_begin_like_it(length: int, state: State) -> None:
    """Calls and bytes are those of the second key still for the thousandth."""
    txn = state.begin()
    steps(txn, 0, length)
    second = steps(txn, 1, length)
    thousandth = [steps(txn, number, length) for number in range(2, 1000)][-1]
    assert thousandth == second
    assert second[1] < 16 * length
    txn.abort()
