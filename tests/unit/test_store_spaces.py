"""Spaces of special kinds, views and keys, over reopening and rebuilding."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from support.compiled import columns_of

import logweir
from logweir.errors import ErrorCode, RequestError
from logweir.store.engine.request import Request
from logweir.wal.mp import pack
from logweir.wal.xrow import GROUP_LOCAL, RowType

ENDS = ["close", "kill", "power cut"]


def again(log: logweir.Log, how: str) -> logweir.Log:
    """End the store in that way and open it anew."""
    folder = log.path
    if how == "close":
        log.close()
    else:
        log.inner.abandon()
    if how == "power cut":
        shutil.rmtree(folder / "state")
    return logweir.open(folder)


@pytest.mark.parametrize("how", ENDS)
def test_local_rows_stay_and_count_apart(how: str, tmp_path: Path) -> None:
    """Rows of a local space count in component 0 and are there again."""
    log = logweir.open(tmp_path)
    log.create_space("here", [("id", "unsigned")], local=True)
    before = log.vclock
    log.append("here", [(1,), (2,), (3,)])
    assert log.vclock.lsn(0) == 3
    assert log.vclock.lsn(1) == before.lsn(1)
    with again(log, how) as log:
        assert log.select("here") == [(1,), (2,), (3,)]
        assert log.vclock.lsn(0) == 3


def test_rows_of_a_local_space_are_of_no_instance_however_they_are_made(tmp_path: Path) -> None:
    """Who replicates the log passes over them by their group."""
    with logweir.open(tmp_path) as log:
        space = log.create_space("here", [("id", "unsigned")], local=True)
        before = log.vclock
        log.insert("here", (1,))
        log.append("here", [(2,), (3,)])
        with log.transaction() as tx:
            tx.insert("here", (4,))
            tx.delete("here", 1)
        request = Request(RowType.INSERT, space, tuple=pack([5]))
        data, columns = columns_of([(request, True)], [space])
        log.inner.run(lambda group: group.execute_batch(data, columns, [space], limit_bytes=1))
        rows = [row for transaction in log.rows(before) for row in transaction.rows]
    assert [(row.replica_id, row.group_id, row.lsn) for row in rows] == [
        (0, GROUP_LOCAL, lsn) for lsn in range(1, 7)
    ]


@pytest.mark.parametrize("how", ENDS)
def test_temporary_rows_are_not_logged_and_gone_after_opening(how: str, tmp_path: Path) -> None:
    """The space is there again, empty; its rows took no lsn."""
    log = logweir.open(tmp_path)
    log.create_space("short", [("id", "unsigned")], temporary=True)
    before = log.vclock
    log.append("short", [(1,), (2,)])
    log.insert("short", (3,))
    assert log.count("short") == 3
    assert log.vclock == before
    with again(log, how) as log:
        assert log.select("short") == []
        log.insert("short", (1,))


@pytest.mark.parametrize("how", ENDS)
def test_sequence_goes_on_after_the_last_number(how: str, tmp_path: Path) -> None:
    """No number is given twice, whatever happened in between."""
    log = logweir.open(tmp_path)
    log.create_space("n", [("id", "unsigned"), ("text", "string")])
    log.create_sequence("s")
    log.use_sequence("n", "s")
    assert [log.insert("n", (None, "a"))[0] for _ in range(3)] == [1, 2, 3]
    log.delete("n", 3)
    with again(log, how) as log:
        assert log.insert("n", (None, "b"))[0] == 4


def test_a_sequence_does_not_learn_a_number_that_it_cannot_have(tmp_path: Path) -> None:
    """One beyond 63 bits, which stood in `_sequence_data`: no number came after it, and a Tarantool
    did not start from a snapshot with it."""
    with logweir.open(tmp_path) as log:
        log.create_space("n", [("id", "unsigned"), ("text", "string")])
        log.create_sequence("s")
        log.use_sequence("n", "s")
        log.insert("n", (5, "a"))
        log.insert("n", (2**64 - 1, "b"))
        log.insert("n", (2**63, "c"))
        assert log.insert("n", (None, "d")) == (6, "d")
        log.insert("n", (2**63 - 1, "e"))
        with pytest.raises(RequestError, match="overflowed"):
            log.insert("n", (None, "f"))


def test_long_keys_are_kept_apart_and_in_order(tmp_path: Path) -> None:
    """Keys over LMDB's 511 bytes, with long common beginnings, sort and count like any others."""
    texts = ["a" * size for size in (1, 400, 505, 506, 507, 508, 509, 510, 511, 600, 2000)]
    texts += ["a" * 600 + tail for tail in ("", "b", "c", "\x00", "\u4e2d")]
    texts += ["b", "a" * 505 + "z", "a" * 511 + "0"]
    texts = sorted(set(texts), key=str.encode)
    with logweir.open(tmp_path) as log:
        log.create_space(
            "t", [("key", "string"), ("n", "unsigned")], indexes={"both": ["key", "n"]}
        )
        for number, text in enumerate(reversed(texts)):
            log.insert("t", (text, number))
        assert [row[0] for row in log.select("t")] == texts
        assert [row[0] for row in log.select("t", iterator="REQ")] == texts[::-1]
        assert [row[0] for row in log.select("t", index="both")] == texts
        assert log.count("t") == len(texts)
        for at, text in enumerate(texts):
            assert log.get("t", text)[0] == text
            assert [row[0] for row in log.select("t", text, iterator="GT")] == texts[at + 1 :]
            assert [row[0] for row in log.select("t", text, iterator="LT")] == texts[:at][::-1]
        with pytest.raises(RequestError) as caught:
            log.insert("t", (texts[-2], 1))
        assert caught.value.code == ErrorCode.TUPLE_FOUND
        for text in texts[::2]:
            log.delete("t", text)
        assert [row[0] for row in log.select("t")] == texts[1::2]
        assert log.count("t") == len(texts[1::2])
        with again(log, "power cut") as reopened:
            assert [row[0] for row in reopened.select("t", index="both")] == texts[1::2]


def test_view_stays_as_it_was_while_writers_go_on(tmp_path: Path) -> None:
    """Everything in a view is of one position."""
    with logweir.open(tmp_path) as log:
        log.create_space("kv", [("id", "unsigned"), ("n", "unsigned")])
        log.append("kv", [(i, 0) for i in range(100)])

        def write() -> None:
            for turn in range(1, 20):
                with log.transaction() as tx:
                    for i in range(100):
                        tx.replace("kv", (i, turn))

        writer = threading.Thread(target=write)
        with log.read_view() as view:
            writer.start()
            position = view.vclock
            space = view.engine.schema.space("kv")
            writer.join()
            assert {data[-1] for data in view.tuples(space)} == {0}
            assert view.vclock == position
        assert {row[1] for row in log.select("kv")} == {19}
        assert log.vclock.signature == position.signature + 1900


@pytest.mark.parametrize("kind", ["TREE", "HASH"])
@pytest.mark.parametrize("before", [False, True])
def test_a_space_with_tuples_stays_temporary_or_not(
    before: bool, kind: str, tmp_path: Path
) -> None:
    """What is not in the log would be lost later; an empty space may change."""
    with logweir.open(tmp_path) as log:
        log.create_space("t", [("id", "unsigned")], temporary=before, type=kind)
        space_id = log.schema.space("t").id
        log.insert("t", (1,))
        change = [["=", 5, {} if before else {"temporary": True}]]
        with pytest.raises(RequestError, match="non-empty space") as caught:
            log.update(280, space_id, change)
        assert caught.value.code is ErrorCode.ALTER_SPACE
        assert log.schema.space("t").is_temporary is before
        log.delete("t", 1)
        log.update(280, space_id, change)
        assert log.schema.space("t").is_temporary is not before
