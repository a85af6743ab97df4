"""What replicas keep of the log: measured, bounded, given up, never in the way of changes."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

import pytest

import logweir
from interop.rawclient import RawClient
from interop.serving import Serving
from logweir.replication.iproto.serve.instance import follower_name
from logweir.replication.iproto.wire import codec
from logweir.replication.iproto.wire.requests import encode_request
from logweir.replication.stream.hub import Reader
from logweir.wal.xrow import RowType

INSTANCE = uuid.UUID("aaaaaaaa-0000-4000-8000-000000000001")
NAME = follower_name(INSTANCE)


def join(client: RawClient, instance: uuid.UUID = INSTANCE) -> codec.Answer:
    """Send a JOIN and read to its end. Returns the last frame, or the error."""
    client.send(encode_request(65, 0, {0x24: str(instance)}))
    ends = 0
    while True:
        answer = client.receive()
        if answer.is_error:
            return answer
        ends += answer.header.type == 0 and 0x26 in answer.body
        if ends == 3:
            return answer


def subscribe(client: RawClient, vclock: dict[int, int]) -> None:
    body = {0x24: str(INSTANCE), 0x26: vclock, 0x06: 132608}
    client.send(encode_request(66, 0, body))


def until_error(client: RawClient) -> codec.Answer:
    answer = client.receive()
    while not answer.is_error:
        answer = client.receive()
    return answer


def churn(log: logweir.Log, rounds: int) -> None:
    """Rows and snapshots, so that logs become superfluous."""
    for number in range(rounds):
        log.append("t", [(number * 100 + i, "x" * 2000) for i in range(50)])
        log.snapshot()


def grow(log: logweir.Log, pinned_bytes: int) -> None:
    """Until the follower keeps so much."""
    while log.inner.pinned_bytes().get(NAME, pinned_bytes) < pinned_bytes:
        log.append("t", [(str(uuid.uuid4()), str(uuid.uuid4()) * 50)])
        log.snapshot()


def fill(serving: Serving) -> None:
    serving.log.create_space("t", [("id", "scalar")], primary=["id"])


def test_follower_above_the_bound_is_warned_of_and_evicted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told (error 32) and disconnected; logs go; metrics and log name it."""
    options = {"guest": "all", "retain_max_bytes": 60_000, "replication_timeout_seconds": 5.0}
    with Serving(tmp_path, **options) as serving, RawClient(serving.port) as client:
        fill(serving)
        vclock = dict(join(client).body[0x26])
        subscribe(client, vclock)
        serving.wait(lambda: INSTANCE in serving.server.protocol("tarantool").instance.followers)
        metrics = serving.server.metrics
        grow(serving.log, 35_000)
        serving.wait(lambda: "retention.behind" in caplog.text)
        assert b"logweir_retention_pinned_bytes{" in metrics.render()
        assert "retention.evicted" not in caplog.text
        grow(serving.log, 65_000)
        error = until_error(client).error()
        assert int(error.code) == 32
        assert "Missing .xlog file" in error.message
        with pytest.raises(EOFError):
            client.receive()
        serving.wait(lambda: NAME not in serving.log.status()["followers"])
        serving.wait(lambda: serving.log.status()["log_files"] <= 3)
        rendered = metrics.render()
        assert b'logweir_retention_evicted_total{follower="%s"} 1.0' % NAME.encode() in rendered
        assert "retention.evicted" in caplog.text
        with RawClient(serving.port) as late:
            subscribe(late, vclock)
            assert int(until_error(late).error().code) == 32
            assert serving.log.oldest_position.covers(logweir.VClock(vclock))


def test_replica_that_leaves_the_cluster_keeps_nothing(tmp_path: Path) -> None:
    """Its row is deleted by whomever: its logs are released, the metric goes."""
    with Serving(tmp_path, guest="all") as serving, RawClient(serving.port) as client:
        fill(serving)
        join(client)
        serving.wait(lambda: NAME in serving.server.status()["pinned_bytes"])
        churn(serving.log, 4)
        assert serving.log.status()["log_files"] >= 4
        serving.log.delete("_cluster", 2)
        serving.wait(lambda: NAME not in serving.server.status()["pinned_bytes"])
        assert NAME not in serving.log.status()["followers"]
        assert serving.log.status()["log_files"] <= 3
        assert NAME.encode() not in serving.server.metrics.render()


def test_positions_survive_a_restart(tmp_path: Path) -> None:
    """What a replica acknowledged last is durable when the server has stopped."""
    with Serving(tmp_path, guest="all") as serving, RawClient(serving.port) as client:
        fill(serving)
        vclock = dict(join(client).body[0x26])
        subscribe(client, vclock)
        serving.log.insert("t", (1,))
        ack = {1: serving.log.vclock[1]}
        client.send(encode_request(0, 0, {0x26: ack}))
        follower = serving.server.protocol("tarantool").instance.followers
        serving.wait(lambda: any(dict(one.acknowledged) == ack for one in follower.values()))
    with logweir.open(tmp_path) as log:
        assert log.status()["followers"][NAME][1] == ack[1]


def test_join_by_a_slow_reader_does_not_hold_up_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the state must grow, the join is broken off with error 116, and changes go on."""
    monkeypatch.setattr("logweir.store.state.state.STATE_MAP_START_BYTES", 1024 * 1024)
    monkeypatch.setattr("logweir.replication.iproto.push.JOIN_ROOM_BYTES", 1024 * 1024)
    with Serving(tmp_path, guest="all") as serving, RawClient(serving.port) as client:
        fill(serving)
        for first in range(0, 12000, 400):
            serving.log.append("t", [(first + i, "x" * 2000) for i in range(400)])
        client.send(encode_request(65, 0, {0x24: str(INSTANCE)}))
        serving.wait(lambda: serving.open_views == 1)
        done = threading.Event()

        def change() -> None:
            for first in range(12000, 36000, 400):
                serving.log.append("t", [(first + i, "x" * 2000) for i in range(400)])
            done.set()

        threading.Thread(target=change, daemon=True).start()
        assert done.wait(60)
        with RawClient(serving.port) as other:
            assert not other.ask(3, {0x10: 512, 0x21: [1]}).is_error
        assert int(until_error(client).error().code) == 116
        assert int(join(client).header.type) == 0


def test_a_replica_hears_of_us_while_its_place_in_the_log_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a large log that takes longer than it waits for a word: it would begin anew for ever."""
    found, skip = threading.Event(), Reader.skip
    found.set()

    def slow(reader: Reader) -> None:
        assert found.wait(30)
        skip(reader)

    monkeypatch.setattr(Reader, "skip", slow)
    options = {"guest": "all", "replication_timeout_seconds": 0.5}
    with Serving(tmp_path, **options) as serving, RawClient(serving.port) as client:
        fill(serving)
        vclock = dict(join(client).body[0x26])
        found.clear()
        subscribe(client, vclock)
        heard = [client.receive() for _ in range(4)]  # the answer, and a heartbeat at once
        assert not any(one.is_error for one in heard)
        client.send(codec.encode_ack(logweir.VClock(vclock)))
        found.set()
        serving.log.insert("t", (7,))
        while (answer := client.receive()).header.type != RowType.INSERT:
            assert not answer.is_error
        assert answer.body[0x21] == [7]
