"""`pipeline.batches` of a log that makes a space synchronous on the way: what waits is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.logs import insert, write_log

from logweir import pipeline

SAYS = [insert(280, [700, 1, "s", "memtx", 0, {"is_sync": True}])]
PLAIN, WAITS = [insert(600, [1])], [insert(700, [1])]


@pytest.mark.parametrize("batch_bytes", [1, 1 << 20])
def test_what_waits_is_left_out_also_behind_a_log_that_is_not_read(
    batch_bytes: int, tmp_path: Path
) -> None:
    """Rows before the one that says it come once; folders before and behind it come whole."""
    log, other = tmp_path / "log", tmp_path / "other"
    for folder, first in ((log, [PLAIN, PLAIN, SAYS, PLAIN]), (other, [PLAIN])):
        folder.mkdir()
        write_log(folder, [PLAIN, WAITS, PLAIN], start=write_log(folder, first))
    (other / "00000000000000000001.xlog").unlink()

    def lsns(**options: object) -> list[int]:
        given = {"columns": "lsn", "batch_bytes": batch_bytes, **options}
        read = pipeline.batches(other, log, other, **given).read_all()
        return [row["lsn"] for row in read.to_pylist()]

    assert lsns() == [1, 1, 2, 3, 4, 5, 1]
    assert lsns(vclock_from={1: 4}) == [5]
    assert lsns(settled=False) == [1, 1, 2, 3, 4, 5, 6, 7, 1]


def test_a_log_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no row says it, nobody looks into the log before it is read."""
    write_log(tmp_path, [[insert(600, [n, "text " * 1000])] for n in range(20)])
    seen: list[int] = []

    def note(payload: memoryview, limit: int) -> None:
        seen.append(len(payload))  # something else unpacks it then

    monkeypatch.setattr("logweir.wal.block.unpack", note)
    assert pipeline.batches(tmp_path, columns="lsn").read_all().num_rows == 20
    assert len(seen) == 20
