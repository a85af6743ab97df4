"""Regress: what a round of a followed broker brought had to fit one transaction, or was never
taken: with more than 128 partitions that had a fetch full each, following did not begin."""

from __future__ import annotations

from pathlib import Path

import logweir
from logweir.limits import TRANSACTION_BYTES
from logweir.replication.tank.follow.cursor import ReceivedBundle
from logweir.replication.tank.follow.ingest import Batch, Intake
from logweir.replication.topic.bundle import Message, encode_bundle


def test_round_larger_than_a_transaction_is_taken(tmp_path: Path) -> None:
    """All of it, each partition with its position."""
    data = encode_bundle([Message(0, 1, None, bytes(TRANSACTION_BYTES // 3 + 1))], compress=False)
    with logweir.open(tmp_path / "store", durability="write") as log:
        intake = Intake(log, "test://")
        intake.topic("t", 3)
        round_ = [Batch("t", n, 1, 2, (ReceivedBundle(1, 1, data),)) for n in range(3)]
        assert intake.store(round_) == 3
        assert [row[:3] for row in log.select("t")] == [(n, 1, 1) for n in range(3)]
        assert [intake.next_number("t", n) for n in range(3)] == [2, 2, 2]
