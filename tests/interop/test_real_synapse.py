"""Real Synapse processes followed by a server of ours."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import logweir
from interop.realsynapse import RealSynapse, ReferenceFollower
from interop.serving import Serving
from interop.synapsemodel import wire_rows
from logweir.replication.protocols import fetch_status, parse_url
from logweir.replication.runner import SourceState
from logweir.replication.stream import positions
from logweir.replication.synapse.wire.codec import Dialect

pytestmark = [pytest.mark.slow, pytest.mark.synapse]


def stored(log: Any) -> dict[str, list[tuple[int, Any]]]:
    """(token, row) of every stream that has rows."""
    found = {
        space.name.removeprefix("synapse_"): [
            (row[1], row[3]) for row in log.select(space.id) if row[0] == "master"
        ]
        for space in log.spaces()
        if space.name.startswith("synapse_")
    }
    return {stream: rows for stream, rows in found.items() if rows}


def follows(serving: Serving) -> bool:
    """Whether its only source is at the upstream's end."""
    return serving.server.runners[0].status.state == SourceState.FOLLOWING


def has_all(serving: Serving, expected: dict[str, list[tuple[int, Any]]]) -> bool:
    """Whether the last row of every stream is there."""
    found = stored(serving.log)
    return all(found.get(stream, [])[-1:] == rows[-1:] for stream, rows in expected.items())


@pytest.mark.parametrize(("version", "dialect"), [("1.66.0", Dialect.D3), ("1.21.2", Dialect.D2)])
def test_main_process_over_tcp_is_followed_across_restarts_of_both(
    tmp_path: Path, version: str, dialect: Dialect
) -> None:
    """Every row a reference follower gets, also those of a time without us."""
    home = tmp_path / "home"
    home.mkdir()
    with RealSynapse(home, version) as synapse:
        url = parse_url(
            f"synapse://127.0.0.1:{synapse.tcp_port}?http=127.0.0.1:{synapse.http_port}"
        )
        reference = ReferenceFollower(synapse.tcp_port)
        reference.send("REPLICATE ")
        reference.read_until("POSITION user_signature")
        lines = [line.split() for line in reference.lines if line.startswith("POSITION ")]
        told = asyncio.run(fetch_status(url))
        assert (told["server"], told["dialect"]) == ("logweir.test", dialect)
        assert {each[1] for each in lines} <= {one["stream"] for one in told["positions"]}
        with Serving(tmp_path / "data", follow=[url]) as serving:
            serving.wait(lambda: follows(serving))
            synapse.activity("first")
            reference.read_activity()
            reference.send("REPLICATE ")
            reference.read_until("POSITION user_signature")
            first = wire_rows(reference.lines, dialect)
            assert len(first) > 5
            serving.wait(lambda: has_all(serving, first))
            assert stored(serving.log) == first
        synapse.activity("second")
        reference.read_activity()
        reference.send("REPLICATE ")
        reference.read_until("POSITION user_signature")
        both = wire_rows(reference.lines, dialect)
        reference.close()
        with Serving(tmp_path / "data", follow=[url]) as serving:
            serving.wait(lambda: follows(serving))
            found = stored(serving.log)
            for stream in ("events", "receipts", "account_data", "tag_account_data"):
                assert found[stream] == both[stream]
            tokens = {token for token, _ in both["typing"]}
            assert {token for token, _ in found["typing"]} <= tokens
            assert not positions.gaps(serving.log)
            synapse.stop()
            synapse.start()
            serving.wait(lambda: serving.server.runners[0].status.attempts > 1)
            serving.wait(lambda: follows(serving), 60)
            synapse.activity("third")
            serving.wait(lambda: len(stored(serving.log)["events"]) > len(both["events"]))
    with logweir.open(tmp_path / "data") as log:
        back = {"typing", "account_data", "tag_account_data"}
        if dialect is Dialect.D2:
            back |= {"federation", "public_rooms"}
        assert {gap.stream for gap in positions.gaps(log)} <= back
