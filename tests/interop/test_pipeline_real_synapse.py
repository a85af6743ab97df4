"""Batches of the pipeline from real Synapse processes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from interop.realsynapse import RealSynapse, ReferenceFollower
from interop.synapsemodel import wire_rows
from interop.test_pipeline_spools import batch
from logweir.replication.synapse.wire.codec import Dialect

pytestmark = [pytest.mark.slow, pytest.mark.synapse]

KEPT = ("events", "receipts", "account_data", "tag_account_data")


def rows_of(url: str, stream: str, **options: Any) -> list[tuple[int, Any]]:
    """(token, row) of one stream of a batch."""
    found = batch(url, spaces=f"synapse_{stream}", **options)
    return [(row[1], row[3]) for _, row in found]


@pytest.mark.parametrize(
    ("version", "dialect"),
    [("1.12.4", Dialect.D1), ("1.21.2", Dialect.D2), ("1.66.0", Dialect.D3)],
)
def test_a_batch_has_what_a_reference_follower_got(
    tmp_path: Path, version: str, dialect: Dialect
) -> None:
    """Into a spool: what came since the batch before it, each row once. Without one: all that the
    server still has, so those rows at the end."""
    with RealSynapse(tmp_path, version) as synapse:
        url = f"synapse://127.0.0.1:{synapse.tcp_port}?http=127.0.0.1:{synapse.http_port}"
        spool = tmp_path / "spool"
        reference = ReferenceFollower(synapse.tcp_port)
        with contextlib.closing(reference):
            reference.send("REPLICATE ALL NOW" if dialect is Dialect.D1 else "REPLICATE ")
            reference.read_until("POSITION events")
            batch(url, spool=spool)
            synapse.activity("first")
            reference.read_activity()
        wanted = wire_rows(reference.lines, dialect)
        assert len(wanted["events"]) > 5
        for stream in KEPT:
            assert rows_of(url, stream, spool=spool) == wanted[stream]
        assert batch(url, spool=spool, spaces="logweir_gap") == []
        for stream in ("events", "receipts"):
            found = rows_of(f"{url}&start=all", stream)
            assert found[-len(wanted[stream]) :] == wanted[stream]
