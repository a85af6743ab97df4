"""Real Synapse processes followed by a server of ours."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

import logweir
from interop.realsynapse import RealSynapse, RedisServer, ReferenceFollower, python_of
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


def test_newest_synapse_over_redis_is_followed_across_a_restart_of_redis(tmp_path: Path) -> None:
    """1.163.2 (D4): what Redis did not deliver is fetched."""
    home = tmp_path / "home"
    home.mkdir()
    with (
        RedisServer(home, python_of("1.163.2")) as broker,
        RealSynapse(home, "1.163.2", broker.port) as synapse,
    ):
        url = parse_url(f"synapse+file://{home}/hs.yaml")  # which says where Redis and main are
        with Serving(tmp_path / "data", follow=[url]) as serving:
            serving.wait(lambda: follows(serving))
            synapse.activity("first")
            serving.wait(lambda: len(stored(serving.log).get("receipts", [])) == 1)
            first = stored(serving.log)
            assert len(first["events"]) > 10
        synapse.activity("second")
        with Serving(tmp_path / "data", follow=[url]) as serving:
            serving.wait(lambda: follows(serving))
            serving.wait(lambda: len(stored(serving.log)["receipts"]) == 2)
            both = stored(serving.log)
            assert len(both["events"]) == 2 * len(first["events"])
            assert both["events"][: len(first["events"])] == first["events"]
            broker.stop()
            broker.start()
            serving.wait(lambda: serving.server.runners[0].status.attempts > 1)
            serving.wait(lambda: follows(serving), 60)
            synapse.activity("third")
            serving.wait(lambda: len(stored(serving.log)["receipts"]) == 3, 60)
            assert len(stored(serving.log)["events"]) == 3 * len(first["events"])
            assert not positions.gaps(serving.log)


def test_redis_that_drops_us_costs_nothing(tmp_path: Path) -> None:
    """1.163.2 (D4): our subscription is killed, and cut for being slow; all rows are there once."""
    home = tmp_path / "home"
    home.mkdir()
    with (
        RedisServer(home, python_of("1.163.2")) as server,
        RealSynapse(home, "1.163.2", server.port) as synapse,
        closing(redis.Redis(port=server.port)) as admin,
    ):
        url = parse_url(
            f"synapse+redis://127.0.0.1:{server.port}/logweir.test"
            f"?http=127.0.0.1:{synapse.http_port}"
        )
        with Serving(tmp_path / "data", follow=[url]) as serving:
            serving.wait(lambda: follows(serving))
            attempts = lambda: serving.server.runners[0].status.attempts  # noqa: E731
            synapse.activity("first")
            serving.wait(lambda: len(stored(serving.log).get("receipts", [])) == 1)
            each = len(stored(serving.log)["events"])
            for turn, name in enumerate(("second", "third"), 2):
                before = attempts()
                if name == "second":
                    assert admin.execute_command("CLIENT", "KILL", "TYPE", "pubsub") > 0
                else:  # a message larger than what may wait for a subscriber: Redis cuts all off
                    admin.config_set("client-output-buffer-limit", "pubsub 1024 1024 0")
                    admin.publish("logweir.test", "PING " + "x" * 4_000_000)
                    admin.config_set("client-output-buffer-limit", "pubsub 33554432 8388608 60")
                synapse.activity(name)
                serving.wait(lambda n=before: attempts() > n)
                serving.wait(lambda: follows(serving), 60)
                serving.wait(lambda n=turn: len(stored(serving.log)["receipts"]) == n, 60)
                serving.wait(lambda n=turn: len(stored(serving.log)["events"]) >= n * each, 60)
                assert len(stored(serving.log)["events"]) == turn * each
            tokens = [token for token, _ in stored(serving.log)["events"]]
            assert tokens == sorted(tokens)
            assert not positions.gaps(serving.log)
