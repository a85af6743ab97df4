"""A real Tarantool opens, without force, what repair and restore write, and goes on with it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from samples import DAMAGED, damaged, sample

import logweir
from interop.realtarantool import RealTarantool
from logweir.recovery import Hole, RecoveryReport, examine, plan, repair, replay, restore
from logweir.wal.endmark import END_MARK_NAME
from logweir.wal.mp import unpack
from logweir.wal.vclock import VClock

pytestmark = pytest.mark.tarantool

REPAIRABLE = tuple(name for name in DAMAGED if name[0] not in "qs")
IDS = (
    "local ids = {} if box.space.kv then for _, t in box.space.kv:pairs() do ids[#ids + 1] = t[1] "
    "end end return ids"
)


def vclock_of(box: RealTarantool) -> VClock:
    """What the running program says."""
    (found,) = box.eval("local v = {} for i, l in pairs(box.info.vclock) do v[i] = l end return v")
    pairs = enumerate(found, 1) if isinstance(found, list) else found.items()
    return VClock({int(i): int(lsn) for i, lsn in pairs})


def ids_of(report: RecoveryReport) -> list[int]:
    """Primary keys that replaying the folder puts into space kv (512)."""
    ids: set[int] = set()
    for batch in replay(plan(report)):
        columns = batch.block.columns
        for i in range(batch.first, batch.last):
            if columns.space_id[i] == 512:
                key: Any = unpack(columns.tuple_bytes(i) or b"")
                ids.add(key[0])
    return sorted(ids)


@pytest.mark.parametrize("name", REPAIRABLE)
def test_a_repaired_folder_boots_and_goes_on(name: str, tmp_path: Path) -> None:
    """Same vclock and rows as here; after it wrote to the folder we open it again."""
    new = tmp_path / "new"
    saved = repair(damaged(name).folder, new)
    report = examine(new)
    assert report.ok
    assert report.vclock == saved.vclock
    assert report.holes == saved.holes
    ids = ids_of(report)
    with RealTarantool(new, listen=None) as box:
        assert vclock_of(box) == saved.vclock
        assert box.eval(IDS)[0] == ids
        box.eval("box.schema.create_space('later')")
        reached = vclock_of(box)
    after = examine(new)
    assert after.ok
    assert after.vclock == reached
    assert after.holes == saved.holes


def test_a_repair_keeps_as_much_as_a_forced_tarantool(tmp_path: Path) -> None:
    """Primary keys that 2.6.0 keeps with force_recovery are all kept, in every case."""
    for name in REPAIRABLE:
        outcome = damaged(name).outcomes[True]
        repair(damaged(name).folder, tmp_path / name)
        ids = ids_of(examine(tmp_path / name))
        assert set(ids) >= set(outcome.get("ids", [])), name


@pytest.mark.parametrize("lsn", [105, 120, 154, 155, 173, 174])
def test_a_restored_folder_boots_at_that_vclock(lsn: int, tmp_path: Path) -> None:
    """Each lsn behind the snapshot; inside the transaction of 20 rows, the border before it."""
    new = tmp_path / "new"
    done = restore(sample("04-crashed").folder, new, at=VClock({1: lsn}))
    assert done.is_exact == (done.vclock == {1: lsn})
    report = examine(new)
    assert report.ok
    assert report.vclock == done.vclock
    with RealTarantool(new, listen=None) as box:
        assert vclock_of(box) == done.vclock
        assert len(box.eval(IDS)[0]) == done.vclock.lsn(1) - 4


def test_the_end_of_every_whole_sample_boots_after_a_restore(tmp_path: Path) -> None:
    """A compact copy of a folder holds the same tuples, exact bytes, as the folder itself."""
    for name in ("02-spaces", "03-replicaset/instance-1", "03-replicaset/instance-2"):
        one = sample(name)
        new = tmp_path / name.replace("/", "-")
        assert restore(one.folder, new).vclock == one.vclock
        with RealTarantool(new, listen=None, cfg={"replication_connect_quorum": 0}) as box:
            assert vclock_of(box) == one.vclock
            for space, tuples in one.spaces.items():
                (count,) = box.eval("return box.space[...]:count()", [space])
                assert count == len(tuples), (name, one.space_names[space])


def test_an_older_state_of_a_folder_with_local_rows_boots(tmp_path: Path) -> None:
    """From an older snapshot, across several logs; local rows up to the same moment."""
    new = tmp_path / "new"
    done = restore(sample("02-spaces").folder, new, at=VClock({1: 1000}))
    assert done.snapshot == "00000000000000000444.snap"
    assert done.vclock.lsn(0) == 8
    with RealTarantool(new, listen=None) as box:
        assert vclock_of(box) == done.vclock


def test_a_repaired_folder_that_was_continued_still_names_its_hole(tmp_path: Path) -> None:
    """Neither a real Tarantool's writes nor a second repair hide that rows are missing."""
    repair(damaged("v-gap").folder, tmp_path / "one")
    with RealTarantool(tmp_path / "one", listen=None) as box:
        box.eval("box.space.kv:replace({1000, 'x'})")
    again = repair(tmp_path / "one", tmp_path / "two")
    assert again.holes == (Hole(VClock({1: 20}), VClock({1: 79})),)
    assert examine(tmp_path / "two").holes == again.holes
    with RealTarantool(tmp_path / "two", listen=None) as box:
        assert vclock_of(box) == {1: 116}


def test_a_folder_that_a_forced_tarantool_cut_short_is_not_joined_to_its_old_rows(
    tmp_path: Path,
) -> None:
    """Tarantool opened a wrong length field, lost 75 rows in silence and used their lsns again.

    The older log then holds other rows with the same lsns: refused, and with force the newer win.
    """
    folder = tmp_path / "i"
    shutil.copytree(damaged("i-huge-length").folder, folder)
    with RealTarantool(folder, listen=None) as box:
        assert vclock_of(box) == {1: 40}
        box.eval("for i = 1, 3 do box.space.kv:replace({5000 + i, 'new'}) end")
    report = examine(folder)
    assert not report.ok
    assert {damage.kind.value for damage in report.blocking} == {"length", "order"}
    tuples: list[Any] = []
    for batch in replay(plan(report, force=True)):
        columns = batch.block.columns
        tuples += [columns.tuple_bytes(i) for i in range(batch.first, batch.last)]
    assert [unpack(one)[0] for one in tuples[-3:]] == [5001, 5002, 5003]
    assert len(tuples) == 43


def test_a_tarantool_goes_on_beside_an_end_mark(tmp_path: Path) -> None:
    """It boots, writes, takes snapshots and removes what it no longer needs; then we go on."""
    with logweir.open(tmp_path) as log:
        log.create_space("kv", format=[("id", "unsigned")])
        log.insert("kv", (1,))
    mark = (tmp_path / END_MARK_NAME).read_bytes()
    first = min(tmp_path.glob("*.xlog"))
    with RealTarantool(tmp_path, listen=None) as box:
        box.eval("box.cfg{checkpoint_count = 1}")
        for key in (2, 3, 4):
            box.eval(f"box.space.kv:insert{{{key}}} box.snapshot()")
        box.eval("local f = require('fiber') for _ = 1, 100 do f.sleep(0.01) end")
    assert not first.exists()
    assert (tmp_path / END_MARK_NAME).read_bytes() == mark
    assert examine(tmp_path).ok
    shutil.rmtree(tmp_path / "state")  # it ends in a log that is gone now
    with logweir.open(tmp_path) as log:
        assert log.select("kv") == [(1,), (2,), (3,), (4,)]
        log.insert("kv", (5,))
    assert (tmp_path / END_MARK_NAME).read_bytes() != mark
    with RealTarantool(tmp_path, listen=None) as box:
        assert box.eval(IDS)[0] == [1, 2, 3, 4, 5]
