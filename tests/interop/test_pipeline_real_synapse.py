"""Batches of the pipeline from real Synapse processes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from interop.realsynapse import RealSynapse, RedisServer, ReferenceFollower, python_of
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


def test_a_batch_over_redis(tmp_path: Path) -> None:
    """1.163.2 (D4): the second batch into a spool has what was fetched, and no gap."""
    with (
        RedisServer(tmp_path, python_of("1.163.2")) as broker,
        RealSynapse(tmp_path, "1.163.2", broker.port) as synapse,
    ):
        url = (
            f"synapse+redis://127.0.0.1:{broker.port}/logweir.test"
            f"?http=127.0.0.1:{synapse.http_port}"
        )
        spool = tmp_path / "spool"
        batch(url, spool=spool)
        synapse.activity("first")
        events = rows_of(url, "events", spool=spool)
        assert len(events) > 5
        assert rows_of(url, "events")[-len(events) :] == events
        assert len(rows_of(url, "receipts", spool=spool)) == 1
        assert batch(url, spool=spool, spaces="logweir_gap") == []
