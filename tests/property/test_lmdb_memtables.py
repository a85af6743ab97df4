"""Memtables put into the state: compiled or by parts, next to a dict."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from logweir.store.state import base, tree
from logweir.store.state.longkeys import PIECE_BYTES
from logweir.store.state.memtable import COMPILED, Memtable
from logweir.store.state.references import REFERENCE
from logweir.store.state.state import State

NAMES = (512, 0), (513, 0)


def key(random: Random, first: int) -> bytes:
    """Some are near one another, some of the lengths where keys begin to be kept in pieces."""
    kind = random.randrange(12)
    if kind == 0:
        size = PIECE_BYTES + random.choice((-1, 0, 1, 600))
        return b"k" * (size - 1) + random.choice((b"a", b"b"))
    if kind == 1:
        return b"p" * random.randrange(1, 30)
    return b"\x01" + (first + random.randrange(3000)).to_bytes(8, "big")


def value(random: Random) -> bytes:
    """Nothing, a tuple, one with pages of its own, or a reference."""
    kind = random.randrange(40)
    if kind < 10:
        return b""
    if kind == 10:
        return bytes((REFERENCE,)) + random.randbytes(32)
    return b"\x91" + random.randbytes(9000 if kind == 11 else random.randrange(40))


@pytest.mark.parametrize("seed", range(8))
def test_memtables_are_taken_as_a_dict_says(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ascending over what is there, in between, removed, removed without being there."""
    random = Random(seed)
    if not COMPILED or base.BINDING != "compiled":
        assert tree._apply is None
    (tmp_path / "state").mkdir()
    state = State(tmp_path / "state")
    state.open()
    model: dict[bytes, bytes] = {}
    first = 0
    for turn in range(6):
        table = Memtable()
        for _ in range(random.choice((1, 40, 255, 256, 257, 2000))):
            table.put(key(random, first), value(random))
        first += random.choice((0, 1500, 4000))
        said = dict(table.ascending())
        found = []
        for name in NAMES:
            txn = state.begin()
            index = txn.tree(*name)
            assert index is not None
            with monkeypatch.context() as patch:
                if name == NAMES[1]:
                    patch.setattr(tree, "_apply", None)
                found.append(index.take(table))
            txn.commit()
        model = {one: held for one, held in {**model, **said}.items() if held}
        references = [item for item in sorted(said.items()) if item[1][:1] == bytes((REFERENCE,))]
        assert sorted(found[0]) == sorted(found[1]) == references, turn
        for name in NAMES:
            with state.read() as view:
                index = view.tree(*name)
                assert index is not None
                assert list(index.ascending(b"")) == sorted(model.items()), (turn, name)
                assert index.count() == len(model)
    state.close(clean=True)


def test_a_full_map_is_told_and_nothing_stays(tmp_path: Path) -> None:
    """What is taken does not fit: the transaction is aborted, and the map may grow."""
    (tmp_path / "state").mkdir()
    state = State(tmp_path / "state")
    state._map_bytes = 1 << 20
    state.open()
    table = Memtable()
    for number in range(5000):
        table.put(b"%08d" % number, b"\x91" + bytes(1000))
    for room in (1, 16):
        while state.map_bytes < room << 20:
            state.grow()
        txn = state.begin()
        index = txn.tree(512, 0)
        assert index is not None
        if room == 1:
            with pytest.raises(base.MapFullError):
                index.take(table)
            txn.abort()
        else:
            assert index.take(table) == []
            assert index.count() == 5000
            txn.commit()
    state.close(clean=True)
