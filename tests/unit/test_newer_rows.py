"""Rows that newer Tarantools write: what says nothing about tuples is passed over, and told by its
name; what might is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.folding import prepared_here, state_here
from support.logs import body, insert, transaction
from typer.testing import CliRunner

import logweir
from logweir.errors import CorruptBlock
from logweir.tools.cli.main import app
from logweir.wal.writer import AppendPoint, WalWriter, WriterOptions
from logweir.wal.xrow import Key

PROMOTES = body((Key.REPLICA_ID, 1), (Key.LSN, 1), (0x53, 2))  # type: ignore[arg-type]
SYNCHRONOUS = [
    insert(280, [700, 1, "waits", "memtx", 0, {"is_sync": True}, []]),
    insert(288, [700, 0, "pk", "tree", {"unique": True}, [[0, "unsigned"]]]),
]


def store(folder: Path, *groups: list[tuple[int, bytes]]) -> int:
    """A folder with transactions that nobody wrote here; the last lsn."""
    with logweir.open(folder) as log:
        log.create_space("s")
        vclock, instance = log.vclock, log.instance
    options = WriterOptions(is_synced=True)
    writer = WalWriter(folder, instance, AppendPoint(vclock), options=options)
    lsn = vclock.lsn(1)
    for rows in groups:
        begin, lsn = lsn + 1, lsn + len(rows)
        writer.write([transaction(begin, rows)], vclock.with_lsn(1, lsn))
    writer.sync()
    writer.close()
    return lsn


@pytest.mark.parametrize(
    ("kind", "name"), [(30, "RAFT"), (31, "RAFT_PROMOTE"), (32, "RAFT_DEMOTE")]
)
def test_they_are_named(kind: int, name: str, tmp_path: Path) -> None:
    """By `cat` and `info`; the store opens behind them."""
    folder = tmp_path / "store"
    lsn = store(folder, [(kind, PROMOTES)])
    shown = CliRunner().invoke(app, ["cat", str(folder), "--format", "jsonl"]).stdout
    assert json.loads(shown.splitlines()[-1])["type"] == name
    told = CliRunner().invoke(app, ["--json", "info", str(folder)])
    assert f'"{name}": 1' in told.stdout
    with logweir.open(folder) as log:
        assert log.vclock.lsn(1) == lsn


def test_a_row_of_an_unknown_type_stops_the_opening(tmp_path: Path) -> None:
    """Whether it changes a tuple nobody here can say: it is not left out in silence."""
    lsn = store(tmp_path / "store", [(77, PROMOTES)])
    with pytest.raises(CorruptBlock, match=rf"lsn {lsn} .* Unknown request type 77") as caught:
        logweir.open(tmp_path / "store")
    assert caught.value.path.endswith(".xlog")
    assert caught.value.offset


@pytest.mark.parametrize("kind", [31, 32])
def test_an_election_that_may_decide_stops_the_opening(kind: int, tmp_path: Path) -> None:
    """Rows wait for their CONFIRM there; those behind it would wait for ever."""
    folder = tmp_path / "store"
    store(folder, SYNCHRONOUS, [insert(700, [1])], [(kind, PROMOTES)])
    with pytest.raises(CorruptBlock, match="may decide about rows that wait") as caught:
        logweir.open(folder)
    assert "snapshot" in caught.value.hint


def test_a_row_of_an_unknown_type_stops_the_folding(tmp_path: Path) -> None:
    """A state that is made of the folder's files would lack what it changes."""
    for kind in (30, 31):
        store(tmp_path / str(kind), [(kind, PROMOTES)])
        assert state_here(prepared_here(tmp_path / str(kind)))
    store(tmp_path / "unknown", [(77, PROMOTES)])
    with pytest.raises(CorruptBlock, match="of the unknown type 77") as caught:
        state_here(prepared_here(tmp_path / "unknown"))
    assert caught.value.path.endswith(".xlog")
    assert caught.value.offset
