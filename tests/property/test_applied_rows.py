"""Rows of others, and of the log, applied by the compiled statements and by the reference engine.

Compared: which row is refused and why, the entries of every index, and of whole stores the
position, the log and what is made of it when the state is gone.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.compiled import told
from support.statements import Dice

import logweir
from logweir.errors import CorruptBlock, DecodeError, RequestError
from logweir.store.commit import applying
from logweir.store.commit.applying import apply_row, apply_rows
from logweir.store.commit.jobs import Job
from logweir.store.commit.rows import COMPILED
from logweir.store.engine.engine import Engine, Plans
from logweir.store.engine.executing import Executor
from logweir.store.engine.request import Request, encode_body
from logweir.store.log import Log
from logweir.store.schema.definition import SpaceDef
from logweir.store.schema.schema import Schema
from logweir.store.state.layers import put_into
from logweir.store.state.stackkernel import LayeredTxn
from logweir.store.state.state import State
from logweir.store.state.statetxn import Txn
from logweir.wal.block import encode_block
from logweir.wal.columns import RowColumns
from logweir.wal.mp import pack
from logweir.wal.xrow import FLAG_COMMIT, Row, RowType, encode_row

ROUNDS = 12
ODD_TYPES = (RowType.SELECT, 7, 10, RowType.CONFIRM, 77)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[State]:
    made = State(tmp_path_factory.mktemp("state") / "state")
    made.open()
    yield made
    made.close(clean=False)


class LaidAside:
    """A transaction on a state, with trees of other spaces: so that two use one state."""

    def __init__(self, txn: Txn) -> None:
        self._txn = txn
        self.state = txn.state
        self.trees = self.bases = None

    def tree(self, space_id: int, index_id: int) -> object:
        return self._txn.tree(space_id + 10_000, index_id)


def row_of(dice: Dice, spaces: list[SpaceDef]) -> Row:
    """A row, now and then one that nobody should send."""
    request = dice.statement(dice.choice(spaces))
    kind, body = int(request.type), encode_body(request)
    match dice.random():
        case chance if chance < 0.03:
            kind = RowType.NOP
            body = b""
        case chance if chance < 0.04:
            kind = dice.choice(ODD_TYPES)
        case chance if chance < 0.06:  # a key, a tuple or operations too many, or missing
            kind = int(dice.choice(list(applying.APPLIED)))
        case chance if chance < 0.07:
            body = encode_body(Request(request.type, 999, key=b"\x91\x01", tuple=b"\x91\x01"))
        case chance if chance < 0.10:
            body = dice.damaged(body)
    return Row(RowType.NOP, 2, 0, 1.5, body=body) if kind == RowType.NOP else odd(kind, body)


def odd(kind: int, body: bytes) -> Row:
    """A row of any type."""
    return Row(kind, 2, 0, 1.5, body=body)  # type: ignore[arg-type]


def block_of(dice: Dice, spaces: list[SpaceDef]) -> RowColumns:
    """The rows of some transactions."""
    found: list[Row] = []
    for _ in range(dice.choice((1, 5, 20, 60))):
        row = row_of(dice, spaces)
        try:
            RowColumns.scan(encode_row(replace(row, lsn=1, tsn=1, commit=True)))
        except (DecodeError, ValueError):
            continue  # no block holds it
        found.append(row)
    alone = dice.random() < 0.5
    rows: list[bytes] = []
    tsn = 1
    for lsn, row in enumerate(found, 1):
        commit = alone or lsn == len(found) or dice.random() < 0.4
        rows.append(encode_row(replace(row, lsn=lsn, tsn=tsn, commit=commit)))
        tsn = lsn + 1 if commit else tsn
    return RowColumns.scan(b"".join(rows))


def by_engine(engine: Engine, columns: RowColumns) -> tuple[int, object] | None:
    """What the reference engine makes of rows: the one that it refuses, and why."""
    txn = engine.txn
    assert isinstance(txn, LayeredTxn)
    mark = txn.mark()
    for row in range(len(columns)):
        try:
            if columns.type[row] != RowType.NOP:
                apply_row(engine, columns, row)
        except RequestError as error:
            txn.rollback(mark)
            return row, told(error)
        if columns.flags[row] & FLAG_COMMIT:
            mark = txn.mark()
    return None


def by_columns(engine: Engine, columns: RowColumns, executor: Executor) -> object:
    """The same, as columns."""
    txn = engine.txn
    assert isinstance(txn, LayeredTxn)
    refer = partial(apply_row, engine, columns)
    refused = apply_rows(executor, engine, columns, 0, len(columns), refer=refer)
    if refused is None:
        return None
    txn.undo.rollback(refused.mark)
    return refused.row, told(refused.error)


@pytest.mark.parametrize("compiled", [True, False])
@settings(
    max_examples=60,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32))
def test_rows_are_applied_alike(compiled: bool, seed: int, state: State) -> None:
    """Hostile ones too: the same row is refused for the same reason, with nothing of its
    transaction left, and all indexes hold the same."""
    if compiled and not COMPILED:
        pytest.skip("nothing is compiled")
    dice, schema, plans, executor = Dice(seed), Schema(), Plans(), Executor()
    spaces = [dice.space(600 + number) for number in range(dice.choice((1, 1, 2)))]
    for space in spaces:
        schema._put(space)
    below = state.begin()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(applying, "COMPILED", compiled)
        try:
            ours: LayeredTxn = LayeredTxn((), LaidAside(below), write=True)  # type: ignore[arg-type]
            theirs = LayeredTxn((), below, write=True)
            for _ in range(ROUNDS):
                columns = block_of(dice, spaces)
                found = by_columns(Engine(ours, schema, plans), columns, executor)
                assert found == by_engine(Engine(theirs, schema, plans), columns)
                for space in spaces:
                    for index in space.indexes:
                        entries = list(ours.items(space.id, index.id))
                        assert entries == list(theirs.items(space.id, index.id)), (space, index)
                if dice.random() < 0.2:
                    ours = LayeredTxn((ours.taken(), *ours.stack), ours.base, write=True)
                elif dice.random() < 0.2:
                    put_into(below, theirs.taken(), None)
                    theirs = LayeredTxn((), below, write=True)
        finally:
            below.abort()


# --- whole stores ---------------------------------------------------------------------------------
changes = st.tuples(
    st.sampled_from(["insert", "replace", "replace", "update", "delete", "upsert", "nop"]),
    st.sampled_from(["plain", "indexed"]),
    st.integers(0, 9),
    st.integers(0, 4),
)
transactions = st.lists(
    st.tuples(
        st.sampled_from([2, 2, 2, 3]),
        st.sampled_from([0, 0, 0, 0, 1, 2]),  # 1: a lsn is skipped; 2: the last comes again
        st.lists(changes, min_size=1, max_size=4),
        st.sampled_from([False] * 9 + [True]),
    ),
    min_size=1,
    max_size=30,
)
IDS = {"plain": 600, "indexed": 601}


def body_of(change: tuple[str, str, int, int]) -> tuple[RowType, bytes]:
    what, space, key, value = change
    space_id = IDS[space]
    ops = pack([["+", 1, 0], ["=", 2, f"n{value}"]])
    match what:
        case "nop":
            return RowType.NOP, b""
        case "update":
            request = Request(RowType.UPDATE, space_id, key=pack([key]), ops=ops)
        case "delete":
            request = Request(RowType.DELETE, space_id, key=pack([key]))
        case "upsert":
            new = pack([key, key + 100 * value, "u"])
            request = Request(RowType.UPSERT, space_id, tuple=new, ops=ops)
        case _:
            kind = RowType.INSERT if what == "insert" else RowType.REPLACE
            request = Request(kind, space_id, tuple=pack([key, (key + value) % 10, "t"]))
    return request.type, encode_body(request)


def rows_of(history: list[tuple[int, int, list[tuple[str, str, int, int]], bool]]) -> list[bytes]:
    """The rows of each transaction. A definition goes with some."""
    lsns = {2: 0, 3: 0}
    found: list[bytes] = []
    for number, (origin, jump, some, defines) in enumerate(history):
        if jump == 2 and found:
            found.append(found[-1])
            continue
        lsns[origin] += jump == 1
        first, rows = lsns[origin] + 1, []
        bodies = [body_of(change) for change in some]
        if defines:
            new = [700 + number, 1, f"more{number}", "memtx", 0, {}, []]
            bodies.append((RowType.REPLACE, pack({0x10: 280, 0x21: new})))
        for lsn, (kind, body) in enumerate(bodies, first):
            last = lsn == first + len(bodies) - 1
            rows.append(encode_row(Row(kind, origin, lsn, 1.5, first, commit=last, body=body)))
        lsns[origin] += len(bodies)
        found.append(b"".join(rows))
    return found


def prepared(folder: Path) -> Log:
    log = logweir.open(folder, durability="write")
    for name, number in IDS.items():
        log.insert("_space", (number, 1, name, "memtx", 0, {}, []))
        log.insert("_index", (number, 0, "p", "tree", {"unique": True}, [[0, "unsigned"]]))
    log.insert("_index", (601, 1, "s", "tree", {"unique": True}, [[1, "unsigned"]]))
    return log


def contents(log: Log) -> object:
    held = {name: log.select(name) for name in IDS}
    by_index = log.select("indexed", index=1)
    return held, by_index, dict(log.vclock), sorted(space.name for space in log.spaces())


def logged(log: Log) -> list[tuple[object, ...]]:
    return [
        (row.type, row.replica_id, row.lsn, row.timestamp, bytes(row.body))
        for one in log.rows()
        for row in one.rows
        if row.replica_id > 1
    ]


@settings(
    max_examples=60,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@given(transactions, st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_transactions_together_are_as_one_by_one(
    history: list[tuple[int, int, list[tuple[str, str, int, int]], bool]], steps: list[int]
) -> None:
    """Contents, position and log are the same, up to the first that is refused; and the same again
    when the state is made anew from the log."""
    rows = rows_of(history)
    with tempfile.TemporaryDirectory() as parent:
        together, single = prepared(Path(parent) / "a"), prepared(Path(parent) / "b")
        with together, single:
            taken = one_by_one(single, rows)
            at = 0
            while at < len(rows):
                some = rows[at : at + steps[at % len(steps)]]
                columns = RowColumns.scan(b"".join(some))
                ends = columns.transaction_ends()
                job = Job(partial(add, columns=columns, ends=ends))
                together.inner.run_job(job)
                at += job.result
                if job.result < len(some):
                    break
            assert at == taken
            assert contents(together) == contents(single)
            assert logged(together) == logged(single)
            held = contents(together)
        shutil.rmtree(Path(parent) / "a" / "state")
        with logweir.open(Path(parent) / "a") as again:
            assert contents(again) == held


def add(group: object, columns: RowColumns, ends: memoryview) -> int:
    found: int = group.add_replicated(columns, ends)  # type: ignore[attr-defined]
    return found


def one_by_one(log: Log, rows: list[bytes]) -> int:
    """How many transactions are taken, each in a commit of its own."""
    for number, data in enumerate(rows):
        columns = RowColumns.scan(data)
        try:
            log.inner.run_job(
                Job(lambda group, columns=columns: group.add_transaction(columns, 0, len(columns)))
            )
        except RequestError:
            return number
    return len(rows)


def test_a_row_of_the_log_that_is_refused_is_told_with_its_place(tmp_path: Path) -> None:
    """A key that is taken stops the opening, in the midst of many rows that are applied as columns
    as among few, with file, byte and row."""
    log = prepared(tmp_path / "d")
    with log:
        log.append("indexed", [(key, key, "t") for key in range(100)], one_transaction=False)
        path = log.path / str(log.status()["log_file"])
    data = path.read_bytes()
    shutil.rmtree(tmp_path / "d" / "state")
    lsn = log.vclock.lsn(1) + 1
    body = pack({0x10: 601, 0x21: [200, 50, "t"]})
    row = encode_row(Row(RowType.INSERT, 1, lsn, 1.5, lsn, commit=True, body=body))
    end = b"\xd5\x10\xad\xed"
    assert data.endswith(end)
    path.write_bytes(b"".join((data[: -len(end)], *encode_block(row), end)))
    with pytest.raises(CorruptBlock) as caught:
        logweir.open(tmp_path / "d")
    assert caught.value.offset == len(data) - len(end)
    assert caught.value.path == str(path)
    assert f"lsn {lsn} of replica 1 cannot be applied: Duplicate key" in str(caught.value)
