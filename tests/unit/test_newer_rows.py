"""Rows that newer Tarantools write about elections: shown by their names, and passed over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.logs import body, transaction
from typer.testing import CliRunner

import logweir
from logweir.tools.cli.main import app
from logweir.wal.writer import AppendPoint, WalWriter, WriterOptions
from logweir.wal.xrow import Key


@pytest.mark.parametrize(
    ("kind", "name"), [(30, "RAFT"), (31, "RAFT_PROMOTE"), (32, "RAFT_DEMOTE")]
)
def test_they_are_named(tmp_path: Path, kind: int, name: str) -> None:
    """By `cat` and `info`; the store opens behind them."""
    folder = tmp_path / "store"
    with logweir.open(folder) as log:
        log.create_space("s")
        vclock, instance = log.vclock, log.instance
    lsn = vclock.lsn(1) + 1
    fields = body((Key.REPLICA_ID, 1), (Key.LSN, 1), (0x53, 2))  # type: ignore[arg-type]
    options = WriterOptions(is_synced=True)
    writer = WalWriter(folder, instance, AppendPoint(vclock), options=options)
    writer.write([transaction(lsn, [(kind, fields)])], vclock.with_lsn(1, lsn))
    writer.sync()
    writer.close()
    shown = CliRunner().invoke(app, ["cat", str(folder), "--format", "jsonl"]).stdout
    assert json.loads(shown.splitlines()[-1])["type"] == name
    told = CliRunner().invoke(app, ["--json", "info", str(folder)])
    assert f'"{name}": 1' in told.stdout
    with logweir.open(folder) as log:
        assert log.vclock.lsn(1) == lsn
