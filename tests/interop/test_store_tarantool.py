"""Folders of ours in a real Tarantool, and of a real Tarantool in ours, both ways and on."""

from __future__ import annotations

import base64
import decimal
import os
import random
import shutil
import uuid
from pathlib import Path

import pytest
from samples import damaged

import logweir
from interop.realtarantool import RealTarantool, TarantoolDied, TarantoolError
from logweir.errors import DirectoryLocked, RequestError
from logweir.store.commit.append import append_tuples
from logweir.store.commit.jobs import Job
from logweir.store.schema.definition import TOPIC_FIELDS
from logweir.store.schema.values import LargeTuple
from logweir.wal.mp import pack

pytestmark = pytest.mark.tarantool


def copied(folder: Path, to: Path) -> Path:
    """The logs and snapshots of a folder, alone, in a new one."""
    to.mkdir()
    for path in folder.iterdir():
        if path.suffix in (".xlog", ".snap"):
            shutil.copy(path, to)
    return to


def contents(log: logweir.Log) -> dict[str, list[bytes]]:
    """The exact bytes of every tuple of every user space."""
    with log.read_view() as view:
        return {
            space.name: sorted(view.tuples(space))
            for space in view.engine.schema
            if not space.is_system and not space.is_view
        }


def their_contents(box: RealTarantool, names: list[str]) -> dict[str, list[bytes]]:
    """The same of a running Tarantool, tuple by tuple in its own MsgPack."""
    found = {}
    for name in names:
        code = """
            local out, msgpack = {}, require('msgpack')
            local base64 = require('digest').base64_encode
            for _, t in box.space[...]:pairs() do
                table.insert(out, base64(msgpack.encode(t), {nowrap = true}))
            end
            return out"""
        (texts,) = box.eval(code, [name])
        found[name] = sorted(base64.b64decode(text) for text in texts)
    return found


def fill(log: logweir.Log) -> None:
    """A little of everything that has an effect on disk."""
    log.create_space(
        "orders",
        [
            ("id", "unsigned"),
            ("what", "string"),
            {"name": "n", "type": "integer", "is_nullable": True},
        ],
        indexes={"what": {"parts": ["what"], "unique": False}, "n": {"parts": ["n"]}},
    )
    log.create_space("pairs", [("a", "unsigned"), ("b", "string")], primary=["a", "b"], type="HASH")
    log.create_space("loose", primary=[(0, "scalar")])
    log.create_space("here", [("id", "unsigned")], local=True)
    log.create_space("gone", [("id", "unsigned")], temporary=True)
    log.create_space("numbered", [("id", "unsigned"), ("text", "string")])
    log.create_sequence("counter", start=10, step=5)
    log.use_sequence("numbered", "counter")
    for text in ("a", "b", "c"):
        log.insert("numbered", (None, text))
    log.append("orders", [(i, f"thing {i % 7}", i) for i in range(200)])
    log.insert("orders", (1000, "none", None))
    log.insert("orders", (1001, "none", None))
    log.update("orders", 5, [["+", "n", 5000], [":", "what", 0, 1, "TH"]])
    log.upsert("orders", (5, "x", 1), [["=", 1, "upserted"]])
    log.upsert("orders", (5000, "new", -5), [["=", 1, "not this"]])
    log.delete("orders", 7)
    log.delete("orders", 7777)
    log.update("orders", 8888, [["=", 1, "nobody"]])
    log.replace("pairs", (1, "x"))
    log.replace("pairs", (2, "\u00e9\u4e2d"))
    for value in (True, -5, 3.5, "text", b"bytes", decimal.Decimal("12.50"), 2**64 - 1, -(2**63)):
        log.replace("loose", (value, {"k": [1, None, {"deep": value}]}, uuid.UUID(int=5)))
    log.insert("gone", (1,))
    with log.transaction() as tx:
        tx.insert("here", (1,))
        tx.replace("orders", (2000, "mixed", 2000))
        tx.insert("here", (2,))
    with log.transaction() as tx:
        tx.insert("here", (3,))
    log.create_index("orders", "late", ["n", "what"], if_not_exists=True)
    log.drop_index("orders", "n")
    log.create_space("dropped", [("id", "unsigned")])
    log.insert("dropped", (1,))
    log.drop_space("dropped")
    log.create_space("emptied", [("id", "unsigned")])
    log.append("emptied", [(i,) for i in range(50)])
    log.truncate("emptied")
    log.insert("emptied", (99,))
    log.alter_space("emptied", name="renamed")


NAMES = ["orders", "pairs", "loose", "here", "numbered", "renamed"]


@pytest.mark.parametrize("snapshot", [False, True], ids=["logs", "snapshot"])
def test_tarantool_boots_on_our_folder(snapshot: bool, tmp_path: Path) -> None:
    """Everything we can write is there for a real Tarantool, byte for byte, with our vclock."""
    with logweir.open(tmp_path / "ours", wal_max_size=3000) as log:
        fill(log)
        if snapshot:
            log.snapshot()
            log.insert("orders", (3000, "after", 3000))
        ours = contents(log)
        vclock = dict(log.vclock)
    with RealTarantool(copied(tmp_path / "ours", tmp_path / "theirs")) as box:
        theirs = their_contents(box, NAMES)
        (seen,) = box.eval("return box.info.vclock")
        assert theirs == {name: ours[name] for name in NAMES}
        as_map = dict(enumerate(seen, 1)) if isinstance(seen, list) else seen
        assert as_map == vclock
        (ids,) = box.eval("local r = box.space.numbered:insert{box.NULL, 'theirs'} return r[1]")
        assert ids == 25
        (late,) = box.eval("return box.space.orders.index.late:count()")
        assert late == len(ours["orders"])


def test_a_folder_goes_back_and_forth(tmp_path: Path) -> None:
    """Ours, theirs, ours, theirs: each continues the other's vclock and sees all of its rows."""
    folder = tmp_path / "store"
    with logweir.open(folder) as log:
        log.create_space("kv", [("id", "unsigned"), ("who", "string")])
        log.insert("kv", (1, "ours"))
    for turn in range(2):
        for leftover in ("state", "logweir.lock"):
            path = folder / leftover
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        with RealTarantool(folder) as box:
            count = box.eval("return box.space.kv:count()")[0]
            assert count == 1 + 4 * turn
            box.eval("box.space.kv:insert{...}", [100 + turn, "theirs"])
            box.eval("box.begin() box.space.kv:insert{...} box.commit()", [200 + turn, "theirs"])
            if turn:
                box.eval("box.snapshot()")
                box.eval("box.space.kv:update(1, {{'=', 2, 'changed'}})")
            (lsn,) = box.eval("return box.info.lsn")
            if turn:
                box.kill()
        with logweir.open(folder) as log:
            assert log.vclock.lsn(1) == lsn
            assert log.get("kv", 200 + turn) == (200 + turn, "theirs")
            log.append("kv", [(300 + turn, "ours"), (400 + turn, "ours")])
            assert log.vclock.lsn(1) == lsn + 2
    with logweir.open(folder) as log:
        assert log.get("kv", 1) == (1, "changed")
        assert log.count("kv") == 9


def test_a_running_tarantool_locks_us_out_and_we_lock_it_out(tmp_path: Path) -> None:
    """Two programs never write to one folder."""
    with RealTarantool(tmp_path / "theirs"), pytest.raises(DirectoryLocked):
        logweir.open(tmp_path / "theirs")
    with logweir.open(tmp_path / "ours"):
        box = RealTarantool(tmp_path / "ours")
        with pytest.raises((TarantoolError, TarantoolDied), match=r"(?i)lock|already"):
            box.__enter__()
        assert not box.is_running


def test_tarantool_boots_where_rows_were_given_up(tmp_path: Path) -> None:
    """Behind a forced opening our lsns jump; a real one takes that, and what was written then."""
    shutil.copytree(damaged("g-zeroed-tail").folder, tmp_path / "data")
    with logweir.open(tmp_path / "data", force_recovery=True) as log:
        log.create_space("after", [("id", "unsigned")])
        log.append("after", [(number,) for number in range(10)])
        kept, vclock = contents(log), log.vclock
    with RealTarantool(copied(tmp_path / "data", tmp_path / "theirs")) as box:
        assert their_contents(box, sorted(kept)) == kept
        assert box.eval("return box.info.vclock") == [dict(vclock)]


def test_tarantool_reads_tuples_that_the_state_refers_to(tmp_path: Path) -> None:
    """Large tuples are in the log like all others: a Tarantool has them byte for byte, without our
    state, and what it writes behind them is taken over by a store whose state refers to them."""
    rows = [[0, n, n, 7, os.urandom(30_000)] for n in range(1, 20)]
    with logweir.open(tmp_path / "ours") as log:
        log.create_space("t", TOPIC_FIELDS, primary=["partition", "first"])
        tuples = [LargeTuple(pack(row)[:-30_000], row[4]) for row in rows]  # type: ignore[arg-type]
        space_id = log.schema.space("t").id
        log.inner.run_job(Job(lambda group: append_tuples(group, space_id, tuples)))
        before = contents(log)
        assert len(before["t"]) == 19
    theirs = copied(tmp_path / "ours", tmp_path / "theirs")
    with RealTarantool(theirs) as box:
        assert their_contents(box, ["t"])["t"] == before["t"]
        box.eval("box.space.t:delete({0, 3}) box.space.t:update({0, 5}, {{'=', 4, 8}})")
        after = their_contents(box, ["t"])["t"]
    for path in (tmp_path / "ours").glob("*.xlog"):
        path.unlink()
    for path in theirs.iterdir():
        if path.suffix in (".xlog", ".snap"):
            shutil.copy(path, tmp_path / "ours")
    with logweir.open(tmp_path / "ours") as log:
        assert contents(log)["t"] == after


MAKE_INDEXES = """
local codes = {}
for at, case in ipairs(...) do
    local space = box.schema.space.create('t')
    space:create_index('pk')
    for _, tuple in ipairs(case[1]) do space:insert(tuple) end
    local done, why
    if case[2] == 'pk' then
        done, why = pcall(space.index.pk.alter, space.index.pk, case[3])
    else
        done, why = pcall(space.create_index, space, 'sk', case[3])
    end
    codes[at] = done and 0 or why.code
    space:drop()
end
return codes
"""


def made_index(log: logweir.Log, tuples: list[list[object]], name: str, parts: object) -> int:
    """The number of the error with which an index over these tuples is refused here; 0: none."""
    log.create_space("t", primary=[(0, "unsigned")])
    try:
        log.append("t", tuples)
        if name == "pk":
            space = log.schema.space("t").id
            (row,) = log.select("_index", (space, 0))
            log.replace("_index", (*row[:5], [list(part) for part in parts]))
        else:
            log.create_index("t", name, {"parts": parts})
        return 0
    except RequestError as error:
        return int(error.code)
    finally:
        log.drop_space("t")


def test_an_index_is_refused_for_the_first_tuple_that_hinders_it(tmp_path: Path) -> None:
    """Over tuples of which some have no such field, or one of another type, or a key that another
    has: the same error as of a Tarantool; another primary key too."""
    dice = random.Random(20261130)
    cases = []
    for _ in range(150):
        fields = [dice.choice(([], [1], [1], [2], [3], ["x"])) for _ in range(dice.randint(2, 6))]
        tuples = [[number, *rest] for number, rest in enumerate(fields)]
        parts = dice.choice((["unsigned"], ["scalar"], ["unsigned", "unsigned"]))
        numbered = list(zip((1, 0), parts, strict=False))
        cases.append((tuples, dice.choice(("sk", "pk")), numbered))
    with RealTarantool(tmp_path / "real", listen=None, cfg={"wal_mode": "none"}) as box:
        given = [
            (tuples, name, {"parts": [[number + 1, kind] for number, kind in parts]})
            for tuples, name, parts in cases
        ]
        (theirs,) = box.eval(MAKE_INDEXES, [given])
    with logweir.open(tmp_path / "ours", durability="none") as log:
        ours = [made_index(log, *case) for case in cases]
    assert ours == theirs
    assert {0, 3, 23, 39} == set(ours)
