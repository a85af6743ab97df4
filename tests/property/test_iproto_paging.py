"""Pages by positions, compared with the plain way: one SELECT of everything, and offsets."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logweir
from logweir.errors import ErrorCode, RequestError
from logweir.store.engine import paging
from logweir.store.engine.batches import Asked
from logweir.store.engine.engine import Engine
from logweir.store.engine.executing import Executor
from logweir.store.engine.paging import Walk, entry_at, entry_of
from logweir.store.engine.request import ITERATORS
from logweir.store.engine.select import Select, reference
from logweir.store.log import Log
from logweir.wal.mp import pack, unpack

INDEXES: dict[str, dict[str, Any]] = {
    "unique": {"parts": ["u"], "unique": True},
    "common": {"parts": ["n"], "unique": False},
    "nil": {"parts": [{"field": "w", "is_nullable": True}], "unique": True},
    "two": {"parts": ["n", "s"], "unique": False},
    "hash": {"parts": ["u"], "type": "hash"},
    "decimal": {"parts": [["d", "number"]], "unique": False},
    "many": {"parts": [{"field": "tags", "type": "unsigned", "path": "[*]"}], "unique": False},
}
FORMAT: list[Any] = [
    ("id", "unsigned"),
    ("u", "unsigned"),
    ("n", "unsigned"),
    {"name": "w", "type": "unsigned", "is_nullable": True},
    ("s", "string"),
    ("d", "number"),
    ("tags", "array"),
]
UNKNOWN = ("decimal", "many")
"""Of a space with these the compiled selections know nothing."""
NUMBERS = st.integers(0, 6)
ROWS = st.lists(
    st.tuples(
        NUMBERS,
        st.none() | st.integers(0, 40),
        st.sampled_from(["", "a", "\x00", "ab", "b"]),
        st.integers(-3, 3) | st.sampled_from([0.5, -0.25, 2.75]),
        st.lists(st.integers(0, 4), max_size=4),
    ),
    max_size=25,
)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    folder: Path = tmp_path_factory.mktemp("paging")
    with logweir.open(folder / "s", durability="none") as made:
        made.create_space("t", FORMAT, primary=["id"])
        made.create_space("plain", FORMAT, primary=["id"])
        for name, spec in INDEXES.items():
            made.create_index("t", name, spec)
            if name not in UNKNOWN:
                made.create_index("plain", name, spec)
        yield made


def fill(log: Log, rows: list[Any]) -> None:
    """Other contents: some of it stands in the state, some in layers over it."""
    nils: set[object] = set()
    with log.transaction() as tx:
        for space in ("t", "plain"):
            for row in tx.select(space):
                tx.delete(space, row[0])
        for key, (number, nullable, *rest) in enumerate(rows):
            free = None if nullable in nils else nullable
            nils.add(free)
            for space in ("t", "plain"):
                tx.insert(space, (key, 100 - key, number, free, *rest))


def selection(engine: Engine, index: str, iterator: str, key: list[Any], **how: Any) -> Select:
    number = ITERATORS.index(iterator)
    return Select.packed(engine.schema, "t", pack(key), number, index=index, **how)


def behind(position: str) -> Any:
    return lambda space, index: entry_at(position, index)


def keys_of(index: str) -> st.SearchStrategy[list[Any]]:
    if index == "two":
        return st.lists(NUMBERS, max_size=1) | st.tuples(NUMBERS, st.just("a")).map(list)
    size = 1 if index in ("pk", "hash") else 0
    return st.lists(st.integers(0, 110 if index in ("unique", "hash") else 6), max_size=1).filter(
        lambda key: len(key) >= size
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data(), ROWS, st.sampled_from([*INDEXES, "primary"]), st.integers(1, 7))
def test_pages_are_what_one_selection_gives(
    log: Log, data: st.DataObject, rows: list[Any], index: str, size: int
) -> None:
    """Whatever index, iterator and key; behind a position as behind the tuple before."""
    fill(log, rows)
    iterators = ("EQ", "ALL", "GT") if index == "hash" else ITERATORS
    iterator, key = data.draw(st.sampled_from(iterators)), data.draw(keys_of(index))
    name: Any = 0 if index == "primary" else index
    if index == "hash" and iterator != "EQ":
        key = []
    with log.read_view() as view:
        engine = view.engine
        whole = list(reference(engine, selection(engine, name, iterator, key)))
        found: list[bytes] = []
        position = ""
        while True:
            wanted = selection(engine, name, iterator, key, limit=size, after=behind(position))
            walk = Walk(engine, wanted)
            page = [row for piece in walk for row in piece]
            by_offset = selection(engine, name, iterator, key, limit=size, offset=len(found))
            assert page == list(reference(engine, by_offset))
            if page and not wanted.index.is_multikey:
                entry = entry_of(page[-1], wanted.space, wanted.index)
                assert entry == entry_at(walk.position, wanted.index)
            found += page
            if len(page) < size:
                break
            position = walk.position
        assert found == whole


def asked(log: Log, space: str, index: str, how: list[int], given: list[bytes]) -> Any:
    """What a SELECT in numbers is answered: its tuples as an array, and its position. `how`:
    iterator, limit and offset; `given`: the key, and behind what it goes on."""
    found = log.schema.space(space)
    index_id = log.schema.index(found, 0 if index == "primary" else index).id
    ends = len(given[0]), len(b"".join(given))
    columns = array("Q", (1, 0, index_id, how[0], 0, ends[0], *ends, 1, 0, *how[1:], 1))
    with log.read_view() as view:
        batch = Asked(b"".join(given), columns, (found.id,), 1 << 20)
        done, _ = view.select_batch(Executor(), batch)
    return done.changed(0) if not done.refused else int(done.error(0).code)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data(), ROWS, st.sampled_from([*INDEXES, "primary"]), st.integers(1, 7))
def test_statements_have_the_same_pages(
    log: Log, data: st.DataObject, rows: list[Any], index: str, size: int
) -> None:
    """Behind a position and behind the tuple before, also of another key, compiled and not."""
    fill(log, rows)
    iterator = data.draw(st.sampled_from(("EQ", "ALL", "GT") if index == "hash" else ITERATORS))
    keys = st.just([]) if index == "hash" and iterator != "EQ" else keys_of(index)
    key, other = data.draw(keys), data.draw(keys)
    name: Any = 0 if index == "primary" else index
    how = [ITERATORS.index(iterator), size, data.draw(st.integers(0, 2))]
    given: list[bytes] = [pack(key)]
    while True:
        with log.read_view() as view:
            after = partial(behind_any, given[1] if given[1:] else b"")
            walk = Walk(
                view.engine,
                selection(view.engine, name, iterator, key, limit=size, offset=how[2], after=after),
            )
            page = [row for piece in walk for row in piece]
            position = pack(walk.position) if page else None
        told = position, b"\xdd" + len(page).to_bytes(4, "big") + b"".join(page)
        spaces = ("t",) if index in UNKNOWN else ("t", "plain")
        assert [asked(log, space, index, how, given) for space in spaces] == [told] * len(spaces)
        for odd in (pack(other), pack(other)[:-1]):
            others = [asked(log, space, index, how, [odd, *given[1:]]) for space in spaces]
            assert others == others[:1] * len(spaces)
        if position is None:
            break
        forms = [position] if index == "many" else [position, page[-1]]
        given = [pack(key), data.draw(st.sampled_from(forms))]


def behind_any(given: bytes, space: Any, index: Any) -> Any:
    return paging.behind(given)(space, index)


@given(st.text(max_size=40) | st.binary(max_size=30).map(lambda raw: raw.hex()))
def test_any_position_is_taken_or_refused(log: Log, position: str) -> None:
    index = log.schema.space("t").indexes[0]
    with contextlib.suppress(RequestError):
        assert isinstance(entry_at(position, index), bytes | None)


def test_a_position_must_be_on_the_way(log: Log) -> None:
    """Of another index, of another key, behind the end of the selection; a tuple that is none."""
    fill(log, [(n, n, "a", n, [n]) for n in range(5)])
    with log.read_view() as view:
        engine = view.engine
        walk = Walk(engine, selection(engine, "common", "EQ", [3]))
        assert [unpack(row)[0] for piece in walk for row in piece] == [3]
        for index, iterator, key in (
            ("two", "ALL", []),
            ("common", "EQ", [2]),
            ("common", "GE", [4]),
            ("common", "LT", [2]),
        ):
            with pytest.raises(RequestError) as caught:
                selection(engine, index, iterator, key, after=behind(walk.position))
            assert caught.value.code == ErrorCode.ITERATOR_POSITION
        for row, name, code in (
            ([1], "common", ErrorCode.ITERATOR_POSITION),
            (["x"] * 7, "common", ErrorCode.ITERATOR_POSITION),
            ([1, 1, 1, 1, "a", 1, [1]], "many", ErrorCode.UNSUPPORTED),
        ):
            with pytest.raises(RequestError) as caught:
                selection(engine, name, "ALL", [], after=partial(entry_of, pack(row)))
            assert caught.value.code == code
