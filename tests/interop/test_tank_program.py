"""The program `logweir` serving Tank: on the command line, through a kill, followed by another."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest
from support.nursery import LOGWEIR, Program
from support.ports import free_port

from interop.tankmodel import DATA
from logweir.errors import LogweirError
from logweir.replication.tank.client.sync import Client


def logweir(*args: str) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    return subprocess.CompletedProcess(args, *LOGWEIR.run(*args, timeout=60))


@contextlib.contextmanager
def serving(folder: Path, *args: str, port: int = 0) -> Iterator[tuple[str, Program]]:
    """A server, on a free port unless told: its Tank address and its process."""
    words = ["--json", "serve", folder, "--listen", f"tank://127.0.0.1:{port}"]
    words += ["--allow-guest", "all", *args]
    process = LOGWEIR.begin(*words, stdout=PIPE, stderr=DEVNULL)
    assert process.stdout is not None
    try:
        ready = json.loads(process.stdout.readline())
        yield ready["listen"][0], process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(20)
        process.stdout.close()


def test_folder_is_imported_listed_and_served(tmp_path: Path) -> None:
    """Import, list, make, configure, delete; then the sync client against the server."""
    store = str(tmp_path / "store")
    done = logweir("--json", "topic", "import", store, str(DATA / "data"))
    assert done.returncode == 0, done.stderr
    assert {each["topic"] for each in json.loads(done.stdout)} == {"events", "logs", "orders"}
    assert logweir("topic", "create", store, "new", "--partitions", "2").returncode == 0
    assert logweir("topic", "config", store, "new", "--set", "log.retention.secs=1d").stdout == (
        "log.retention.secs=1d\n"
    )
    assert logweir("topic", "config", store, "new", "--set", "nonsense").returncode == 2
    assert logweir("topic", "delete", store, "logs").returncode == 0
    assert logweir("topic", "create", store).returncode == 2
    listed = json.loads(logweir("--json", "topic", "list", store).stdout)
    assert [each["topic"] for each in listed] == ["events", "new", "orders"]
    with serving(tmp_path / "store") as (url, _), Client(url) as client:
        remote = json.loads(logweir("--json", "topic", "list", url).stdout)
        assert [each["topic"] for each in remote] == ["events", "new", "orders"]
        assert logweir("topic", "create", url, "more").returncode == 0
        assert logweir("topic", "config", url, "new").returncode == 0
        assert logweir("topic", "delete", url, "new").returncode == 2
        assert len(client.topics()) == 4
        assert client.status().topics == 4
        with client.producer() as producer:
            outcome = producer.send("new", b"hello", key=b"k", partition=1)
        assert outcome.result(5) is None
        with client.consumer("new", [1], group="g") as consumer:
            assert consumer.get().content == b"hello"
            consumer.commit()
            assert consumer.committed() == {1: 2}
            assert consumer.get_many(wait_ms=0) == []
            consumer.seek_to_begin()
            assert consumer.position(1) == 1
            consumer.seek_to_time(2**62)
            assert consumer.position(1) == 2
            consumer.seek(1, 1)
            assert next(iter(consumer)).key == b"k"
            consumer.seek_to_end()
        events = [state.last for state in client.partitions("events")]
        assert events == [505, 7]


def test_torn_folder_is_imported_with_a_note_and_damage_has_its_exit_code(tmp_path: Path) -> None:
    """A torn tail is a note; a cut immutable segment is damage, 3."""
    base = tmp_path / "data"
    (base / "t" / "0").mkdir(parents=True)
    (whole,) = (DATA / "data" / "orders" / "0").glob("*.log")
    (base / "t" / "0" / "1.log").write_bytes(whole.read_bytes()[:-1])
    done = logweir("topic", "import", str(tmp_path / "a"), str(base))
    assert done.returncode == 0
    assert "torn" in done.stderr
    (base / "t" / "0" / "1.log").rename(base / "t" / "0" / "1-90000.ilog")
    done = logweir("topic", "import", str(tmp_path / "b"), str(base))
    assert done.returncode == 3
    assert "lost" in done.stderr
    assert (
        logweir("topic", "import", str(tmp_path / "c"), str(tmp_path / "nowhere")).returncode == 2
    )


@pytest.mark.kill
@pytest.mark.parametrize("durability", ["fsync", "write"])
def test_what_was_acknowledged_survives_a_kill(tmp_path: Path, durability: str) -> None:
    """SIGKILL in the middle of a stream of publishes, several times over."""
    stored = 0
    for round_number in range(3):
        with serving(tmp_path / "store", "--durability", durability) as (url, process):
            client = Client(url)
            with contextlib.suppress(LogweirError):
                client.create_topic("t")
            producer = client.producer(batch_messages=5, linger_seconds=0.0)
            outcomes = []
            for number in range(400):
                text = b"%d/%d" % (round_number, number)
                with contextlib.suppress(LogweirError):
                    outcomes.append(producer.send("t", text, partition=0))
                if number == 250:
                    outcomes[100].result(20)
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait(20)
            with contextlib.suppress(LogweirError):
                producer.flush()
            acknowledged = sum(each.done() and each.exception() is None for each in outcomes)
            assert acknowledged > 100
            client.close()
        with serving(tmp_path / "store") as (url, _), Client(url) as client:
            (state,) = client.partitions("t")
            with client.consumer("t") as consumer:
                found = []
                while len(found) < state.last:
                    found += consumer.get_many(10_000)
            assert [each.number for each in found] == list(range(1, state.last + 1))
            mine = [
                each.content for each in found if each.content.startswith(b"%d/" % round_number)
            ]
            assert mine == [b"%d/%d" % (round_number, n) for n in range(len(mine))]
            assert len(mine) >= acknowledged
            assert state.last >= stored + acknowledged
            stored = state.last


@pytest.mark.kill
def test_a_producer_that_may_repeat_stores_all_once_through_a_kill(tmp_path: Path) -> None:
    """SIGKILL in the middle of its publishes, and a server that comes back later: each message is
    there once, in its order."""
    port = free_port()
    with serving(tmp_path / "store", port=port) as (url, process):
        client = Client(url)
        client.create_topic("t")
        producer = client.producer(batch_messages=1, repeat_seconds=60)
        outcomes = [producer.send("t", b"%d" % number, partition=0) for number in range(400)]
        outcomes[0].result(20)
        process.kill()
        process.wait(20)
        assert not outcomes[-1].done()
    with serving(tmp_path / "store", port=port):
        for each in outcomes:
            each.result(60)
        with client.consumer("t") as consumer:
            found = []
            while len(found) < 400:
                found += consumer.get_many(10_000)
            assert consumer.get_many(wait_ms=0) == []
        client.close()
    assert [each.content for each in found] == [b"%d" % number for number in range(400)]


def test_one_server_follows_the_other(tmp_path: Path) -> None:
    """`follow --once` copies all topics; done again after more was published it takes the rest."""
    assert logweir("topic", "import", str(tmp_path / "up"), str(DATA / "data")).returncode == 0
    with serving(tmp_path / "up") as (url, _):
        done = logweir("follow", url, str(tmp_path / "down"), "--once")
        assert done.returncode == 0, done.stderr
        with Client(url) as client, client.producer() as producer:
            producer.send("orders", b"more")
        assert logweir("follow", url + "/orders", str(tmp_path / "down"), "--once").returncode == 0
        assert logweir("follow", url, str(tmp_path / "down"), "--rejoin").returncode == 2
    both = [
        json.loads(logweir("--json", "topic", "list", str(tmp_path / side)).stdout)
        for side in ("up", "down")
    ]
    for one, other in zip(*both, strict=True):
        assert one["partitions"] == other["partitions"]


def test_status_command_tells_the_lag_of_groups(tmp_path: Path) -> None:
    """`logweir status` of a server: what each partition holds and how far a group is behind."""
    tarantool = ("--listen", "tarantool://127.0.0.1:0", "--allow-guest", "all")
    words = ["--json", "serve", tmp_path / "s", *tarantool, "--listen", "tank://127.0.0.1:0"]
    process = LOGWEIR.begin(*words, stdout=PIPE, stderr=DEVNULL)
    assert process.stdout is not None
    try:
        url, tank = json.loads(process.stdout.readline())["listen"]
        with Client(tank) as client:
            client.create_topic("t")
            with client.producer() as producer:
                for number in range(7):
                    producer.send("t", b"%d" % number)
            with client.consumer("t", group="g") as consumer:
                for _ in range(3):
                    consumer.get()
                consumer.commit()
        done = logweir("--json", "status", url)
        assert done.returncode == 0, done.stderr
        (found,) = json.loads(done.stdout)["topics"]
        assert (found["topic"], found["last"], found["consumer_lag"]) == ("t", 7, {"g": 4})
        assert "consumer_lag" in logweir("status", url).stdout
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        process.stdout.close()
