"""Going over blocks that are in order: reports are what reading block by block says of any file."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from mutation import mutate, wild_row
from samples import GOOD, sample
from support.logs import INSTANCE, insert, transaction

from logweir.recovery.logscan import LogScan, scan_log, scan_snapshot
from logweir.store.schema.bulk import interpreted as plain_twin
from logweir.wal import orderkernel
from logweir.wal.block import EOF_MARKER, encode_block
from logweir.wal.directory import LogFile, scan_directory
from logweir.wal.filesystem import OS
from logweir.wal.filler import encode_filler
from logweir.wal.meta import Meta
from logweir.wal.ordered import Ordered, Stretch, stretches
from logweir.wal.reader import WalReader
from logweir.wal.vclock import VClock

FILES = 200
interpreted = plain_twin(orderkernel)
RUNS = pytest.mark.parametrize("run", [orderkernel, interpreted], ids=["installed", "interpreted"])
START = VClock({1: 5, 2: 7})


def by_block(log: LogFile, monkeypatch: pytest.MonkeyPatch) -> LogScan:
    """The scan with every block read by itself."""
    with monkeypatch.context() as patched:
        patched.setattr("logweir.wal.ordered.Ordered.behind", lambda self, at: at)
        return scanned(log)


def scanned(log: LogFile, known: Sequence[Stretch] = ()) -> LogScan:
    scan = scan_log if log.suffix == "xlog" else scan_snapshot
    return scan(log, OS, lambda _: None, known)


def of_parts(log: LogFile, edges: Sequence[int]) -> list[Stretch]:
    """The stretches of parts of a file, each looked for by itself."""
    found: list[Stretch] = []
    for start, stop in pairwise((0, *edges, log.size)):
        with WalReader(log.path) as reader:
            found += stretches(reader, start, stop)
    return found


def log_file(path: Path, kind: str, blocks: list[bytes], tail: bytes) -> LogFile:
    """A file of these stored blocks."""
    meta = Meta(kind, START, INSTANCE, None, "2.6.0-0-g47aa4e01e")  # type: ignore[arg-type]
    data = meta.encode() + b"".join(blocks) + tail
    path.write_bytes(data)
    return LogFile(path, "xlog" if kind == "XLOG" else "snap", 12, meta, len(data))


def stored(random: Random, rows: bytes) -> bytes:
    """The rows as a block, plain or packed, behind more or less that was not synced."""
    threshold = 0 if random.random() < 0.3 else None
    unsynced = random.choice((0, 0, 50, 10_000))
    parts = encode_block(rows, threshold_bytes=threshold, unsynced_bytes=unsynced)
    return b"".join(map(bytes, parts))


def made_blocks(random: Random, count: int) -> list[bytes]:
    """Blocks in order, but for what is done to some: rows of nobody, lsns that jump or come twice,
    flipped bits, a filler."""
    lsns = dict(START.items())
    found = []
    for _ in range(count):
        replica_id = random.choice((1, 1, 1, 2))
        size = random.choice((1, 1, 2, 5))
        first = lsns.get(replica_id, 0) + 1 + random.choice((0,) * 40 + (1, 3, -1, 2**62))
        rows = transaction(first, [insert(512, [first, "x" * 9])] * size, replica_id)
        lsns[replica_id] = max(lsns.get(replica_id, 0), first + size - 1) % 2**60
        wrong = random.randrange(60)
        if wrong == 0:
            rows = mutate(random, rows)
        elif wrong == 1:
            rows += wild_row(random)
        block = stored(random, rows)
        if wrong == 2:
            block = mutate(random, block)
        elif wrong == 3:
            block = encode_filler(random.choice((0, 1, 9))) + bytes(random.choice((0, 1, 9)))
        found.append(block)
    return found


def test_reports_are_those_of_reading_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of files with all kinds of damage, with small windows, too; most blocks are gone over."""
    random = Random(7)
    over = 0
    for number in range(FILES):
        if number == FILES // 2:
            monkeypatch.setattr("logweir.wal.walk.PIPELINE_WINDOW_BYTES", 700)
            monkeypatch.setattr("logweir.wal.ordered.PIPELINE_WINDOW_BYTES", 700)
        kind = random.choice(("XLOG", "XLOG", "SNAP"))
        blocks = made_blocks(random, random.choice((1, 3, 40)))
        tail = random.choice((EOF_MARKER, EOF_MARKER, b"", b"\xd5\xba", bytes(30), b"more"))
        log = log_file(tmp_path / f"{number}", kind, blocks, tail)
        found, wanted = scanned(log), by_block(log, monkeypatch)
        assert found == wanted, f"file {number}"
        over += wanted.report.blocks
    assert over > FILES * 5


def test_parts_give_the_report_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of files with all kinds of damage, cut anywhere, also in a block; many are used."""
    random = Random(19)
    blocks = used = 0
    own = Ordered._jump

    def jump(self: Ordered, known: Stretch) -> bool:
        nonlocal used
        is_known = own(self, known)
        used += known.blocks if is_known else 0
        return is_known

    monkeypatch.setattr(Ordered, "_jump", jump)
    for number in range(FILES):
        kind = random.choice(("XLOG", "XLOG", "SNAP"))
        made = made_blocks(random, random.choice((1, 3, 40)))
        tail = random.choice((EOF_MARKER, EOF_MARKER, b"", b"\xd5\xba", bytes(30), b"more"))
        log = log_file(tmp_path / f"{number}", kind, made, tail)
        edges = sorted(random.sample(range(1, log.size), random.choice((1, 2, 9))))
        found, wanted = scanned(log, of_parts(log, edges)), by_block(log, monkeypatch)
        assert found == wanted, f"file {number}"
        blocks += wanted.report.blocks
    assert used > blocks / 3


def test_what_is_wrong_between_two_parts_is_seen(tmp_path: Path) -> None:
    """An lsn that comes twice, and one that is not there, where each part by itself is in order; a
    replica that the first part does not have goes on in the second."""
    random = Random(23)
    for first, is_damage, is_told in ((16, False, False), (15, True, False), (18, False, True)):
        lsns = [*range(6, 16), *range(first, first + 10)]
        rows = [transaction(lsn, [insert(512, [lsn])]) for lsn in lsns]
        rows.insert(12, transaction(8, [insert(512, [8])], 2))
        made = [stored(random, one) for one in rows]
        log = log_file(tmp_path / f"{first}", "XLOG", made, EOF_MARKER)
        border = len(log.meta.encode()) + sum(map(len, made[:10]))
        known = of_parts(log, [border])
        assert [(one.blocks, one.first) for one in known] == [(9, {1: 7}), (11, {1: first, 2: 8})]
        scan = scanned(log, known)
        assert scan == scanned(log)
        assert (bool(scan.located), bool(scan.report.warnings)) == (is_damage, is_told)


def test_a_part_that_begins_at_a_block_in_a_value_is_passed_over(tmp_path: Path) -> None:
    """A search may find a block that stands in a tuple: what begins there is never arrived at."""
    inner = stored(Random(0), transaction(6, [insert(512, [1])]))
    rows = [transaction(6, [insert(512, [1])]), transaction(7, [insert(512, [2, inner * 3])])]
    rows += [transaction(lsn, [insert(512, [lsn])]) for lsn in range(8, 20)]
    made = [b"".join(map(bytes, encode_block(one, threshold_bytes=None))) for one in rows]
    log = log_file(tmp_path / "log", "XLOG", made, EOF_MARKER)
    begin = log.path.read_bytes().index(inner)
    known = of_parts(log, [begin - 5])
    assert any(one.start == begin for one in known)
    scan = scanned(log, known)
    assert scan == scanned(log)
    assert (scan.report.rows, scan.located) == (14, ())


@pytest.mark.parametrize("name", GOOD)
def test_samples_are_read_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of Tarantool."""
    for log in scan_directory(sample(name).folder).files:
        assert scanned(log) == by_block(log, monkeypatch)


def test_blocks_in_order_are_not_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But the first, and what is there behind one that is not."""
    random = Random(3)
    rows = [transaction(lsn, [insert(512, [lsn])]) for lsn in range(6, 206)]
    rows[100] = rows[100][:-1]
    log = log_file(tmp_path / "log", "XLOG", [stored(random, one) for one in rows], EOF_MARKER)
    read: list[int] = []
    own = WalReader.block_at

    def block_at(self: WalReader, offset: int) -> Any:
        read.append(offset)
        return own(self, offset)

    monkeypatch.setattr(WalReader, "block_at", block_at)
    report = scanned(log).report
    assert (report.blocks, report.rows, report.last_vclock) == (199, 199, VClock({1: 205, 2: 7}))
    assert len(set(read)) == 3


def kept(run: ModuleType, data: bytes, is_log: bool) -> tuple[Any, ...]:
    """What a kernel says of a block, and what it counted."""
    lsns, told = array("Q", START.lsns()), array("Q", [0] * len(run.TOLD))
    return bool(run.in_order(data, lsns, told, is_log)), lsns.tolist(), told.tolist()


def test_kernels_are_alike() -> None:
    """Of any bytes."""
    random = Random(11)
    taken = 0
    for _ in range(3000):
        rows = transaction(6, [insert(512, [1])] * random.choice((1, 2)))
        data = random.choice((rows, mutate(random, rows), rows + wild_row(random)))
        is_log = random.random() < 0.5
        found = kept(orderkernel, data, is_log)
        assert found == kept(interpreted, data, is_log)
        assert found[0] or found[1:] == (START.lsns(), [0] * len(orderkernel.TOLD))
        taken += found[0]
    assert 1000 < taken < 2900


@RUNS
def test_tables_are_whole(run: ModuleType) -> None:
    """A table that is too short, or a place behind the data, is seen."""
    data = bytes(19) + transaction(6, [insert(512, [1])])
    lsns, told = array("Q", START.lsns()), array("Q", [0] * len(run.TOLD))
    with pytest.raises(IndexError, match="table"):
        run.in_order(data, lsns[:31], told, True)
    with pytest.raises(IndexError, match="table"):
        run.in_order(data, lsns, told[:2], True)
    table = array("Q", [0, len(data) - 19, 0, 0])
    for first, last, short in ((-1, 1, table), (0, 2, table), (0, 1, table[:3])):
        with pytest.raises(IndexError, match="table"):
            run.run(data, short, 1, first, last, lsns, told, True)
    for place, wrong in ((0, 1), (0, 2**63), (0, 2**64 - 19), (1, 2**64 - 1), (1, len(data) - 18)):
        bad = table[:]
        bad[place] = wrong
        assert run.run(data, bad, 1, 0, 1, lsns, told, True) == 0
    assert told.tolist() == [0, 0, 0]
    assert run.run(data, table, 1, 0, 1, lsns, told, True) == 1
    assert told[:2].tolist() == [1, 1]
