"""Real Synapse workers behind our listener, which relays a real main process; and chains on."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from interop.realsynapse import RealSynapse, RealWorker, ReferenceFollower
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from interop.synapsemodel import wire_rows
from interop.test_real_synapse import follows, has_all, stored
from logweir.replication.protocols import fetch_status, parse_listen_url, parse_url
from logweir.replication.stream import positions
from logweir.replication.synapse.wire.codec import Dialect
from logweir.replication.tank.client import Client

pytestmark = [pytest.mark.slow, pytest.mark.synapse]


def until(serving: Serving, condition: Any, worker: RealWorker) -> None:
    """Until it holds; else what the worker said."""
    try:
        serving.wait(condition, 30)
    except AssertionError as error:
        raise AssertionError(f"{error}: {worker.text()[-3000:]}") from error


@pytest.mark.parametrize(("version", "dialect"), [("1.66.0", "D3"), ("1.12.4", "D1")])
def test_real_worker_follows_a_real_main_process_through_us(
    tmp_path: Path, version: str, dialect: str
) -> None:
    """The worker takes every POSITION and row; its clients see who types, caught up and live."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    http = "&http=127.0.0.1:0" if dialect == "D3" else ""
    listen = [parse_listen_url(f"synapse://:0?dialect={dialect}&server_name=logweir.test{http}")]
    with RealSynapse(home, version) as synapse:
        url = parse_url(
            f"synapse://127.0.0.1:{synapse.tcp_port}?http=127.0.0.1:{synapse.http_port}"
        )
        with Serving(tmp_path / "data", follow=[url], listen=listen) as serving:
            serving.wait(lambda: follows(serving))
            token, room = synapse.activity("first")
            serving.wait(lambda: len(stored(serving.log).get("receipts", [])) == 1)
            serving.wait(lambda: len(stored(serving.log).get("typing", [])) == 1)
            http_port = serving.urls[1].port if dialect == "D3" else serving.port
            with RealWorker(work, synapse, serving.port, http_port) as worker:
                user = "@first:logweir.test"
                until(serving, lambda: "typing" in worker.text(), worker)
                until(serving, lambda: worker.typing_users(room, token) == [user], worker)
                synapse.activity("second")
                serving.wait(lambda: len(stored(serving.log).get("receipts", [])) == 2)
                last = stored(serving.log)["events"][-1][0]
                handled = re.compile(rf"Received rdata events .*-> {last}\b")
                until(serving, lambda: handled.search(worker.text()) is not None, worker)
                text = worker.text()
                assert text.count("Connected to replication") == 1
                assert "Lost replication" not in text
                assert "Remote reported error" not in text
                # a worker on SQLite fails at these by itself: its id generators cannot be advanced
                discarded = set(re.findall(r"Discarding RDATA for unconnected stream (\S+)", text))
                assert discarded <= {"presence", "to_device"}
            assert not positions.gaps(serving.log)


def test_oldest_kept_synapse_is_followed_over_tcp(tmp_path: Path) -> None:
    """1.12.4 (D1): what a reference follower gets, and what it missed, is stored once."""
    home = tmp_path / "home"
    home.mkdir()
    with RealSynapse(home, "1.12.4") as synapse:
        url = parse_url(f"synapse://127.0.0.1:{synapse.tcp_port}")
        reference = ReferenceFollower(synapse.tcp_port)
        reference.send("REPLICATE ALL NOW")
        reference.read_until("POSITION events")
        told = asyncio.run(fetch_status(url))
        assert (told["dialect"], len(told["positions"])) == ("D1", 16)
        with Serving(tmp_path / "data", follow=[url]) as serving:
            serving.wait(lambda: follows(serving))
            synapse.activity("first")
            reference.read_activity()
            first = wire_rows(reference.lines, Dialect.D1)
            assert len(first) > 5
            serving.wait(lambda: has_all(serving, first))
            found = stored(serving.log)
            assert {stream: found[stream] for stream in first} == first
        synapse.activity("second")
        reference.read_activity()
        both = wire_rows(reference.lines, Dialect.D1)
        reference.close()
        with Serving(tmp_path / "data", follow=[url]) as serving:
            serving.wait(lambda: follows(serving))
            serving.wait(lambda: len(stored(serving.log).get("receipts", [])) == 2)
            found = stored(serving.log)
            for stream in ("events", "receipts", "account_data", "tag_account_data"):
                assert found[stream] == both[stream]
            assert not positions.gaps(serving.log)


@pytest.mark.tarantool
def test_rows_of_a_real_synapse_reach_a_tarantool_replica_and_a_tank_consumer(
    tmp_path: Path,
) -> None:
    """One store in the middle: the same rows leave it in two other protocols."""
    home = tmp_path / "home"
    home.mkdir()
    listen = [parse_listen_url("tarantool://:0"), parse_listen_url("tank://:0")]
    with RealSynapse(home, "1.66.0") as synapse:
        url = parse_url(
            f"synapse://127.0.0.1:{synapse.tcp_port}?http=127.0.0.1:{synapse.http_port}"
        )
        options: dict[str, Any] = {"follow": [url], "listen": listen, "guest": "replicate"}
        with Serving(tmp_path / "data", **options) as serving:
            serving.wait(lambda: follows(serving))
            cfg = {"replication": f"127.0.0.1:{serving.port}", "replication_connect_timeout": 10}
            with RealTarantool(tmp_path / "replica", listen=None, cfg=cfg) as replica:
                synapse.activity("first", messages=20)
                serving.wait(lambda: len(stored(serving.log).get("receipts", [])) == 1)
                rows = [list(row) for row in serving.log.select("synapse_events")]
                assert len(rows) > 20
                serving.wait(
                    lambda: replica.eval("return box.space.synapse_events:select()") == [rows]
                )

            async def consume() -> list[Any]:
                async with Client(f"tank://127.0.0.1:{serving.urls[1].port}") as client:
                    consumer = client.consumer("space:synapse_events", start="begin")
                    async with asyncio.timeout(20), consumer:
                        found: list[Any] = []
                        async for record in consumer:
                            found.append(json.loads(record.content)["tuple"])
                            if len(found) == len(rows):
                                return found
                raise AssertionError("the consumer ended")

            assert asyncio.run(consume()) == rows


def test_restart_of_the_oldest_kept_synapse_loses_no_row(tmp_path: Path) -> None:
    """1.12.4 on SQLite counts `account_data` and others from the beginning after a restart: what a
    reference follower gets from then on is stored under the next epoch, and nothing is stopped."""
    home = tmp_path / "home"
    home.mkdir()
    back = ("account_data", "tag_account_data")
    with RealSynapse(home, "1.12.4") as synapse:
        url = parse_url(f"synapse://127.0.0.1:{synapse.tcp_port}")
        with Serving(tmp_path / "data", follow=[url]) as serving:
            serving.wait(lambda: follows(serving))
            for name in ("first", "second", "third"):
                synapse.activity(name)
            serving.wait(lambda: len(stored(serving.log).get("receipts", [])) == 3)
            first = stored(serving.log)
            synapse.stop()
            synapse.start()
            reference = ReferenceFollower(synapse.tcp_port)
            reference.send("REPLICATE ALL NOW")
            reference.read_until("POSITION events")
            serving.wait(lambda: serving.server.runners[0].status.attempts > 1)
            serving.wait(lambda: follows(serving), 60)
            synapse.activity("fourth")
            reference.read_activity()
            live = wire_rows(reference.lines, Dialect.D1)
            reference.close()

            def later(stream: str) -> list[tuple[int, Any]]:
                rows = serving.log.select(f"synapse_{stream}")
                return [(row[1], row[3]) for row in rows if row[0] != "master"]

            for stream in back:
                serving.wait(
                    lambda stream=stream: (
                        set(map(str, live[stream])) <= set(map(str, later(stream)))
                    )
                )
                assert stored(serving.log)[stream] == first[stream]
            serving.wait(lambda: stored(serving.log)["events"][-1] == live["events"][-1])
            gaps = positions.gaps(serving.log)
            assert set(back) <= {gap.stream for gap in gaps}
            assert all(gap.reason.startswith("reset: ") for gap in gaps)
