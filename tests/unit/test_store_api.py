"""The embedded API: transactions that read, definitions, packed rows, prepared jobs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logweir
from logweir import Log
from logweir.errors import (
    ConfigError,
    CorruptBlock,
    ErrorCode,
    LimitExceeded,
    PositionUnavailable,
    RequestError,
)
from logweir.store import CheckpointOptions
from logweir.store.commit.jobs import Job
from logweir.store.engine.statements import request_for
from logweir.wal.mp import pack
from logweir.wal.xrow import RowType


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A store with a space of pairs, the values indexed."""
    with logweir.open(tmp_path / "store", "write") as opened:
        opened.create_space(
            "kv",
            [("id", "unsigned"), ("value", "string")],
            indexes={"value": {"parts": ["value"], "unique": False}},
        )
        yield opened


def refused(call: Callable[[], Any]) -> ErrorCode:
    """Which error number a call gives."""
    with pytest.raises(RequestError) as caught:
        call()
    return ErrorCode(caught.value.code)


# --- transactions ---------------------------------------------------------------------------------


def test_a_transaction_reads_its_own_changes(log: Log) -> None:
    """get and select inside see them by any index; outside nobody does before the end."""
    log.insert("kv", (1, "a"))
    with log.transaction() as tx:
        tx.insert("kv", (2, "b"))
        tx.delete("kv", 1)
        assert tx.get("kv", 2) == (2, "b")
        assert tx.get("kv", 1) is None
        assert tx.select("kv", "b", index="value") == [(2, "b")]
        assert tx.select("kv", [0], iterator="GE", limit=1) == [(2, "b")]
        assert log.select("kv") == [(1, "a")]
    assert log.select("kv") == [(2, "b")]


def test_a_transaction_defines_and_fills_at_once(log: Log) -> None:
    """Space, sequence, index and rows in one transaction; an exception takes all of it back."""
    before = log.vclock

    class Stop(Exception):
        pass

    def fill(tx: Any) -> None:
        tx.create_space("new", [("id", "unsigned"), ("n", "integer")])
        tx.create_index("new", "n", ["n"])
        tx.create_sequence("ids", start=7)
        tx.use_sequence("new", "ids")
        assert tx.insert("new", (None, -1))[0] == 7

    def fill_and_stop() -> None:
        with log.transaction() as tx:
            fill(tx)
            raise Stop

    with pytest.raises(Stop):
        fill_and_stop()
    assert log.vclock == before
    assert refused(lambda: log.select("new")) == ErrorCode.NO_SUCH_SPACE
    with log.transaction() as tx:
        fill(tx)
    assert log.select("new", -1, index="n") == [(7, -1)]


def test_a_transaction_is_of_its_block_and_thread(log: Log) -> None:
    """Afterwards, and in another thread, it is none."""
    with log.transaction() as tx:
        codes: list[ErrorCode] = []
        thread = threading.Thread(target=lambda: codes.append(refused(lambda: tx.get("kv", 1))))
        thread.start()
        thread.join()
        assert codes == [ErrorCode.NO_TRANSACTION]
    assert refused(lambda: tx.insert("kv", (1, "a"))) == ErrorCode.NO_TRANSACTION


def test_a_refused_statement_leaves_the_rest_of_the_transaction(log: Log) -> None:
    """Also where only giving up the LMDB transaction undoes it: what came before is done again."""
    log.create_space("plain", [("id", "unsigned")])
    log.append("plain", [(5,)])
    with log.transaction() as tx:
        tx.insert("kv", (1, "a"))
        assert refused(lambda: tx.insert("plain", (5,))) == ErrorCode.TUPLE_FOUND
        assert refused(lambda: tx.create_index("kv", "value", ["id"])) == ErrorCode.INDEX_EXISTS
        log_row = tx.replace("kv", (1, "b"))
    assert log.select("kv") == [log_row] == [(1, "b")]


def test_a_transaction_cannot_begin_in_a_closed_log(tmp_path: Path) -> None:
    """And leaves no lock behind."""
    log = logweir.open(tmp_path)
    log.close()
    for _ in range(2):
        with pytest.raises(RequestError, match="closed"):
            log.transaction().__enter__()


# --- many rows ------------------------------------------------------------------------------------


def test_packed_tuples_are_the_same_as_values(log: Log) -> None:
    """One behind the other, in bytes; the log and the indexes cannot tell."""
    rows = [(1, "a"), (2, "b"), (3, "b")]
    assert log.inner.append_packed("kv", b"".join(map(pack, rows))) == 3
    assert log.select("kv") == rows
    assert log.select("kv", "b", index="value") == rows[1:]
    assert refused(lambda: log.inner.append_packed("kv", pack((3, "c")))) == ErrorCode.TUPLE_FOUND
    assert (
        refused(lambda: log.inner.append_packed("kv", pack(rows[0])[:-1]))
        == ErrorCode.INVALID_MSGPACK
    )
    assert log.select("kv") == rows


def test_appended_singly_each_row_is_a_transaction(log: Log) -> None:
    """Without `one_transaction` followers see many; for the caller it is all or nothing."""
    start = log.vclock
    log.append("kv", [(1, "a"), (2, "b")], one_transaction=False)
    assert [len(one.rows) for one in log.rows(after=start)] == [1, 1]
    with pytest.raises(RequestError):
        log.append("kv", [(3, "c"), (1, "again")], one_transaction=False)
    assert log.count("kv") == 2


def test_rows_replayed_in_bulk_leave_the_last_of_each_key(tmp_path: Path) -> None:
    """Thousands of REPLACEs of few keys: the state made anew from the log is the same."""
    folder = tmp_path / "store"
    with logweir.open(folder, "write") as log:
        log.create_space("plain", [("id", "unsigned"), ("n", "unsigned")])
        for number in range(4000):
            log.replace("plain", (number % 7, number))
        expected = log.select("plain")
    shutil.rmtree(folder / "state")
    with logweir.open(folder) as log:
        assert log.select("plain") == expected
        assert expected[0] == (0, 3997)


# --- definitions ----------------------------------------------------------------------------------


def test_definitions_that_exist_are_left_when_asked(log: Log) -> None:
    """`if_not_exists` gives the id of what is there, and logs nothing."""
    before = log.vclock
    space = log.create_space("kv", if_not_exists=True)
    index = log.create_index("kv", "value", ["value"], if_not_exists=True)
    assert (space, index) == (next(one.id for one in log.spaces() if one.name == "kv"), 1)
    assert log.vclock == before
    assert refused(lambda: log.create_space("kv")) == ErrorCode.SPACE_EXISTS


def test_fields_and_parts_in_every_spelling(log: Log) -> None:
    """Names alone, pairs, maps with collations; parts by name, number, pair and map."""
    log.create_space(
        "s",
        ["id", ("name", "string"), {"name": "town", "type": "string", "is_nullable": True}],
        primary=[{"field": "id", "type": "unsigned"}],
        indexes={"by": [(1, "string"), "town"], "any": {"parts": [0], "type": "tree"}},
    )
    log.insert("s", (1, "x", None))
    assert log.select("s", ["x"], index="by") == [(1, "x", None)]
    assert refused(lambda: log.create_index("s", "bad", ["nope"])) == ErrorCode.ILLEGAL_PARAMS
    bad = [{"name": "a", "type": "string", "collation": "klingon"}]
    assert refused(lambda: log.create_space("t", bad)) == ErrorCode.ILLEGAL_PARAMS


def test_a_collation_is_named(tmp_path: Path) -> None:
    """`unicode_ci` finds what differs in case only."""
    pytest.importorskip("icu", reason="PyICU is not installed")
    with logweir.open(tmp_path) as log:
        fields = [{"name": "name", "type": "string", "collation": "unicode_ci"}]
        log.create_space("s", fields, primary=["name"])
        log.insert("s", ("Straße",))
        assert log.get("s", "STRASSE") == ("Straße",)


def test_an_index_on_what_is_stored(log: Log) -> None:
    """It is filled; one that the rows do not allow is refused and leaves nothing."""
    log.append("kv", [(number, "same") for number in range(3000)])
    log.create_index("kv", "both", ["value", "id"])
    assert len(log.select("kv", ["same"], index="both")) == 3000
    before = log.vclock
    assert refused(lambda: log.create_index("kv", "one", ["value"])) == ErrorCode.TUPLE_FOUND
    assert log.vclock == before
    log.drop_index("kv", "both")
    code = refused(lambda: log.select("kv", ["same"], index="both"))
    assert code == ErrorCode.NO_SUCH_INDEX_NAME


def test_what_belongs_to_a_space_goes_with_it(log: Log) -> None:
    """Its sequence, its truncate counter; the id is not used again."""
    log.create_sequence("ids", step=-1)
    first = log.create_space("s", [("id", "integer")])
    log.use_sequence("s", "ids")
    assert log.insert("s", (None,)) == (-1,)
    log.truncate("s")
    assert log.count("s") == 0
    log.drop_space("s")
    assert log.create_space("s", [("id", "unsigned")]) == first + 1
    assert log.create_space("chosen", [("id", "unsigned")], id=first + 2) == first + 2
    assert log.create_space("next", [("id", "unsigned")]) == first + 3
    assert refused(lambda: log.use_sequence("s", "gone")) == ErrorCode.NO_SUCH_SEQUENCE
    assert refused(lambda: log.create_sequence("x", speed=1)) == ErrorCode.ILLEGAL_PARAMS
    assert refused(lambda: log.truncate("_space")) == ErrorCode.ILLEGAL_PARAMS


def test_a_format_can_change(log: Log) -> None:
    """To what the rows fit; nothing asked is nothing done."""
    log.insert("kv", (1, "a"))
    log.alter_space("kv", name="pairs", format=[("key", "unsigned"), ("text", "string")])
    assert log.update("pairs", 1, [["=", "text", "b"]]) == (1, "b")
    before = log.vclock
    log.alter_space("pairs")
    assert log.vclock == before
    code = refused(lambda: log.alter_space("pairs", format=[("key", "string")]))
    assert code == ErrorCode.FORMAT_MISMATCH_INDEX_PART
    code = refused(lambda: log.alter_space("pairs", format=["key", "text", "more"]))
    assert code == ErrorCode.FIELD_MISSING
    assert [one.name for one in log.spaces()] == ["pairs"]
    assert len(log.spaces(system=True)) > 10


# --- reading the log ------------------------------------------------------------------------------


def test_a_position_that_is_not_there_is_refused(log: Log) -> None:
    """Ahead of the log, and behind its oldest row."""
    with pytest.raises(PositionUnavailable, match="not reached yet"):
        next(log.rows(after=log.vclock.with_lsn(1, 10**6)))


def test_following_stops_when_it_is_told(log: Log) -> None:
    """`stop` ends a wait for rows that do not come."""
    stop = threading.Event()
    seen = []

    def follow() -> None:
        seen.extend(one.rows[0].lsn for one in log.rows(log.vclock, follow=True, stop=stop))

    thread = threading.Thread(target=follow)
    thread.start()
    stop.set()
    thread.join(20)
    assert not thread.is_alive()
    assert seen == []


def test_reading_without_a_store(log: Log) -> None:
    """`logweir.read` takes a folder or a file; damage is an error, or given to a callback."""
    log.append("kv", [(number, "v" * 50) for number in range(100)], one_transaction=False)
    last = log.vclock.lsn(log.replica_id)
    log.close()
    found = [row.lsn for row in logweir.read(log.path) if row.replica_id]
    assert found == list(range(1, last + 1))
    (path,) = log.path.glob("*.xlog")
    assert [row.lsn for row in logweir.read(path)] == found
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptBlock):
        list(logweir.read(path))
    damage: list[Any] = []
    left = [row.lsn for row in logweir.read(path, on_damage=damage.append)]
    assert len(damage) == 1
    assert 0 < len(left) < len(found)


# --- jobs and options -----------------------------------------------------------------------------


def test_a_submitted_change_is_told_how_it_went(log: Log) -> None:
    """Futures and jobs of programs that must not wait."""
    insert = request_for(RowType.INSERT, log.schema, "kv", (1, "a"))
    assert log.inner.submit(insert).result(20) == pack((1, "a"))
    with pytest.raises(RequestError):
        log.inner.submit(insert).result(20)
    done: list[Job] = []
    both = threading.Event()

    def finished(job: Job) -> None:
        done.append(job)
        if len(done) == 2:
            both.set()

    log.inner.submit_jobs(
        [
            Job(lambda group: group.execute(insert), finished=finished),
            Job(lambda group: 6, finished=finished),
        ]
    )
    assert both.wait(20)
    assert isinstance(done[0].error, RequestError)
    assert (done[1].error, done[1].result) == (None, 6)
    ran = Job(lambda group: 7)
    log.inner.run_job(ran)
    assert ran.result == 7


def test_a_threshold_below_nothing_is_refused(tmp_path: Path) -> None:
    """Of a library caller, who makes the options."""
    with pytest.raises(ConfigError):
        CheckpointOptions(log_bytes=-1)


def test_a_statement_without_room_leaves_the_transaction_as_it_was(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is seen, in any way to give it; what was there before is made."""
    monkeypatch.setattr("logweir.store.commit.group.TRANSACTION_BYTES", 200)
    large = "x" * 200
    with log.transaction() as tx:
        tx.insert("kv", (1, "a"))
        for make in (
            lambda: tx.insert("kv", (2, large)),
            lambda: tx.replace("kv", (1, large)),
            lambda: tx.update("kv", 1, [["=", 1, large]]),
            lambda: tx.upsert("kv", (2, large), [["=", 1, "b"]]),
            lambda: tx.execute(request_for(RowType.INSERT, tx.schema, "kv", (2, large))),
        ):
            with pytest.raises(LimitExceeded, match="TRANSACTION_BYTES"):
                make()
        assert tx.select("kv") == [(1, "a")]
        assert tx.get("kv", 2) is None
    assert log.select("kv") == [(1, "a")]
    assert list(log.rows())[-1].rows[-1].body.endswith(pack([1, "a"]))
