"""Whatever is read by compiled selections is what the reference engine reads, and never of another
moment: over layers and the state, with keys in pieces and tuples that stand in the log, while the
state takes layers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("logweir.store.engine.selectkernel")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import logweir
from logweir.errors import RequestError
from logweir.store.engine import reads
from logweir.store.engine.engine import Engine, Plans
from logweir.store.engine.request import ITERATORS
from logweir.store.engine.select import Select, numbers, reference, rows, select
from logweir.store.schema.definition import IndexDef, IndexType, PartDef, SpaceDef
from logweir.store.schema.fieldtype import FieldType
from logweir.store.schema.schema import Schema
from logweir.store.state import layers, stacked
from logweir.store.state.references import REFERENCE, LogFiles
from logweir.store.state.stackkernel import Layer, LayeredTxn, whole
from logweir.store.state.state import State
from logweir.store.state.statetxn import Txn
from logweir.wal.mp import pack, unpack

EXAMPLES = int(os.environ.get("LOGWEIR_EXAMPLES", "150"))
ID = 600
LONG = "b" * 509
NAMES = ["", "a", "ab", "b", LONG[:-2], LONG, LONG + "b", LONG + "c", 2 * LONG, 2 * LONG + "x", "c"]
SHORT = [name for name in NAMES if len(name) < 100]
NUMBERS = [0, 1, 2, 2**40]


class Files(LogFiles):
    """Log files in which tuples stand that are referred to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tuples: dict[bytes, bytes] = {}

    def read(self, reference: bytes) -> bytes:
        return self.tuples[reference]

    def put(self, data: bytes) -> bytes:
        """Returns the reference to a tuple."""
        made = bytes((REFERENCE,)) + len(self.tuples).to_bytes(32, "big")
        self.tuples[made] = data
        return made


def make_space() -> SpaceDef:
    """Names, numbers and what may be nil; by name, by number, by number and name, by the last."""
    name = PartDef(0, FieldType.STRING)
    number = PartDef(1, FieldType.UNSIGNED)
    odd = PartDef(2, FieldType.STRING, True)
    indexes = (
        IndexDef(ID, 0, "name", IndexType.TREE, (name,)),
        IndexDef(ID, 1, "number", IndexType.TREE, (number,), False),
        IndexDef(ID, 2, "both", IndexType.TREE, (number, name)),
        IndexDef(ID, 3, "odd", IndexType.TREE, (odd, name), True),
    )
    return SpaceDef(ID, 1, "t").with_indexes(indexes)


SPACE = make_space()


class Spread:
    """A space whose tuples are spread over the state and some layers."""

    def __init__(self, files: Files, base: Txn) -> None:
        self.schema = Schema()
        self.schema._put(SPACE)
        self.plans = Plans()
        self.files = files
        self.base = base
        self.stack: tuple[Layer, ...] = ()
        for index in SPACE.indexes:
            tree = base.tree(ID, index.id)
            assert tree is not None
            tree.clear()

    def engine(self, *, write: bool = False) -> Engine:
        """On all of it."""
        txn = LayeredTxn(self.stack, self.base, write=write)  # type: ignore[arg-type]
        return Engine(txn, self.schema, self.plans)

    def change(self, changes: list[tuple[str, int | None, str | None]]) -> None:
        """One more layer. A number that is None: the tuple is removed."""
        engine = self.engine(write=True)
        assert isinstance(engine.txn, LayeredTxn)
        primary = engine.plans.get(SPACE, SPACE.indexes[0], check=True)
        for name, number, odd in changes:
            new = None if number is None else pack([name, number, odd])
            (image,) = primary.key(new or pack([name, 0, odd]))
            tree = engine.txn.tree(ID, 0)
            assert tree is not None
            old = tree.get(image)
            if old is not None or new is not None:
                engine._swap(SPACE, image, old, new)
        self.stack = (engine.txn.taken(), *self.stack)

    def apply(self, referred: set[str]) -> None:
        """Put the layers into the state; the tuples of these names become references."""
        for name, table in whole(self.stack).tables.items():
            tree = self.base.tree(*name)
            assert tree is not None
            for key, value in list(table.ascending()):
                if not value:
                    tree.discard(key)
                elif name[1] == 0 and unpack(value)[0] in referred:
                    made = self.files.put(value)
                    tree.put(key, made)
                    self.base.refer(ID, [(key, made)])
                else:
                    tree.put(key, value)
        self.stack = ()


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[State]:
    folder = tmp_path_factory.mktemp("state")
    made = State(folder / "state", Files(folder))
    made.open()
    yield made
    made.close(clean=False)


ROWS = st.tuples(
    st.sampled_from(NAMES),
    st.none() | st.sampled_from(NUMBERS),
    st.none() | st.sampled_from(["", "x", LONG]),
)
KEYS = st.none() | st.lists(st.sampled_from([*NAMES, *NUMBERS, None, "x"]), max_size=2)
LIMITS = st.none() | st.integers(0, 4) | st.just(2**64 - 1)


def told(work: Any) -> Any:
    """What it returns, or which error it raises."""
    try:
        return work()
    except RequestError as error:
        return int(error.code), str(error)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_reads_are_those_of_the_reference_engine(data: st.DataObject, state: State) -> None:
    """By all indexes and iterators, whole and partial keys, offsets and limits, in pieces of any
    size; one tuple by its key; how many there are."""
    files = state.files
    assert isinstance(files, Files)
    base = state.begin()
    try:
        spread = Spread(files, base)
        for number in range(data.draw(st.integers(1, 4))):
            spread.change(data.draw(st.lists(ROWS, max_size=12)))
            if number == 0 or data.draw(st.booleans()):
                spread.apply(data.draw(st.sets(st.sampled_from(SHORT), max_size=2)))
        engine = spread.engine(write=data.draw(st.booleans()))
        whole = list(engine.entries(SPACE, SPACE.indexes[0], b"", None, reverse=False))
        assert reads.count(engine, SPACE) == engine.txn.count(ID, 0) == len(whole)
        with pytest.MonkeyPatch.context() as patch:
            piece = data.draw(st.sampled_from([1, 600, 256 * 1024]))
            patch.setattr(reads, "PIECE_BYTES", piece)
            patch.setattr(reads, "_FIRST_BYTES", min(piece, 4096))
            for _ in range(12):
                compare(data, engine)
    finally:
        base.abort()


def compare(data: st.DataObject, engine: Engine) -> None:
    """One selection and one tuple, by both engines."""
    index = data.draw(st.sampled_from(SPACE.indexes))
    key = data.draw(KEYS)
    options = {
        "iterator": data.draw(st.none() | st.sampled_from(ITERATORS)),
        "index": index.id,
        "limit": data.draw(LIMITS),
        "offset": data.draw(st.integers(0, 3)),
    }

    def wanted() -> Select:
        return Select.of(engine.schema, ID, key, **options)

    theirs = told(lambda: list(reference(engine, wanted())))
    assert told(lambda: list(select(engine, wanted()))) == theirs, (key, options)
    ours = told(lambda: rows(engine, ID, key, **options))
    assert ours == ([tuple(unpack(one)) for one in theirs] if isinstance(theirs, list) else theirs)
    packed = pack(key or [])
    if index.is_unique:
        theirs = told(lambda: engine.get(SPACE, index, packed))
        assert told(lambda: reads.one(engine, SPACE, index, packed)) == theirs


def test_few_selections_need_the_reference_engine(state: State) -> None:
    """Of short keys and tuples that are at hand none does."""
    files = state.files
    assert isinstance(files, Files)
    base = state.begin()
    try:
        spread = Spread(files, base)
        spread.change([("a", 1, None), ("ab", 2, "x"), ("c", 0, "")])
        spread.apply(set())
        spread.change([("b", 1, "x"), ("ab", None, "x")])
        engine = spread.engine()
        for iterator in ITERATORS:
            asked = numbers("b", iterator, None, 0)
            assert asked is not None
            found = reads.rows(engine, SPACE, 0, *asked)
            assert found is not None, iterator
    finally:
        base.abort()


@pytest.mark.parametrize("seed", range(3))
def test_reads_are_of_one_moment_while_the_state_takes_layers(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tuples are of one transaction, which is one that was committed before the read ended,
    and none that is older than what was committed when it began."""
    random = Random(seed)
    monkeypatch.setattr(stacked, "LAYER_BYTES", random.choice([1_000, 20_000]))
    monkeypatch.setattr(layers, "LAYER_SECONDS", random.choice([0.0, 0.001]))
    count, versions = 40, 150
    with logweir.open(tmp_path / "s", durability="write") as log:
        log.create_space("t", [("id", "unsigned"), ("n", "unsigned")], primary=["id"])
        log.create_index("t", "n", {"parts": ["n"], "unique": False})
        log.append("t", [(key, 0) for key in range(count)])
        begun, committed = [0], [0]
        wrong: list[object] = []
        ended = threading.Event()

        def look(own: Random) -> None:
            try:
                while not ended.is_set():
                    least = committed[0]
                    match own.randrange(4):
                        case 0:
                            found = [log.get("t", own.randrange(count))]
                        case 1:
                            found = list(log.select("t"))
                            assert len(found) == count
                        case 2:
                            found = list(log.select("t", iterator="REQ", limit=3, index="n"))
                        case _:
                            assert log.count("t") == count
                            continue
                    (version,) = {row[1] for row in found if row is not None}
                    assert least <= version <= begun[0]
            except BaseException as error:
                wrong.append(error)

        readers = [threading.Thread(target=look, args=(Random(one),)) for one in range(3)]
        for reader in readers:
            reader.start()
        for version in range(1, versions):
            begun[0] = version
            with log.transaction() as tx:
                for key in range(count):
                    tx.delete("t", key)
                    tx.insert("t", (key, version))
            committed[0] = version
        ended.set()
        for reader in readers:
            reader.join(60)
        assert not wrong, wrong[0]


def test_short_reads_keep_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the state no longer says is used again, although each of its states was read."""
    monkeypatch.setattr(layers, "LAYER_SECONDS", 10**9)
    with logweir.open(tmp_path / "s", durability="write") as log:
        log.create_space("t", [("id", "unsigned"), ("text", "string")], primary=["id"])
        used = []
        for turn in range(60):
            log.append("t", [(turn * 50 + key, "x" * 3000) for key in range(50)])
            log.inner.change_base(lambda txn: None)
            assert log.count("t") == 50
            assert log.get("t", turn * 50) is not None
            for key in range(50):
                log.delete("t", turn * 50 + key)
            used.append(log._committer.state.used_bytes)
        assert used[-1] <= used[10] * 1.2


def test_a_view_reads_on_while_others_change(tmp_path: Path) -> None:
    """Tuples of a view come in pieces, and all are as of its beginning."""
    with logweir.open(tmp_path / "s", durability="write") as log:
        log.create_space("t", [("id", "unsigned"), ("text", "string")], primary=["id"])
        log.append("t", [(key, "x" * 100) for key in range(2000)])
        log.inner.change_base(lambda txn: None)
        log.append("t", [(key, "x" * 100) for key in range(2000, 4000)])
        with log.read_view() as view:
            found = view.tuples(view.engine.schema.space("t"))
            first = next(found)
            log.truncate("t")
            log.inner.change_base(lambda txn: None)
            assert log.select("t") == []
            assert [unpack(one)[0] for one in (first, *found)] == list(range(4000))
        assert log.count("t") == 0


def test_a_scan_of_a_changed_transaction_is_refused(state: State) -> None:
    """Places in a layer that changes are worth nothing."""
    files = state.files
    assert isinstance(files, Files)
    base = state.begin()
    try:
        spread = Spread(files, base)
        engine = spread.engine(write=True)
        assert isinstance(engine.txn, LayeredTxn)
        tree = engine.txn.tree(ID, 0)
        assert tree is not None
        primary = engine.plans.get(SPACE, SPACE.indexes[0], check=True)
        for number in range(3000):
            data = pack([str(number), number, None])
            tree.put(*primary.key(data), data)
        found = reads.pieces(engine, SPACE, SPACE.indexes[0], b"", None, reverse=False)
        next(found)
        tree.put(b"\x20x", data)
        with pytest.raises(RuntimeError, match="changed"):
            list(found)
    finally:
        base.abort()
