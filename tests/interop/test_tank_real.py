"""A real Tank broker and its `tank-cli`, where both are on the path: each side against ours.

Built from the broker's public sources, head of 2022: `make switch ext service cli-tool` with clang,
libc++ and the headers of Boost and zlib. They are in no package registry.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ports import free_port

import logweir
from interop.serving import Serving
from logweir.replication.metrics import Metrics
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.runner import Runner, SourceState
from logweir.replication.stream.positions import gaps
from logweir.replication.tank.client.sync import Client
from logweir.replication.tank.follow.importer import import_folder
from logweir.replication.tank.follow.source import TankSource
from logweir.replication.topic.bundle import decode_bundle
from logweir.replication.urls import Url

pytestmark = pytest.mark.skipif(
    shutil.which("tank") is None or shutil.which("tank-cli") is None,
    reason="no `tank` and `tank-cli` programs on this machine",
)


def cli(url: Url, *args: str, topic: str = "events") -> str:
    """Run `tank-cli` against a broker; what it prints."""
    command = ["tank-cli", "-b", f"{url.host}:{url.port}", "-t", topic, *args]
    done = subprocess.run(command, capture_output=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def listens(port: int) -> bool:
    """Whether somebody accepts connections there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[Url]:
    """A real broker with topic events of two partitions; stopped in order at the end."""
    for partition in (0, 1):
        (folder / "events" / str(partition)).mkdir(parents=True, exist_ok=True)
    port = free_port()
    with open(folder.parent / "broker.log", "ab") as output:
        process = subprocess.Popen(
            ["tank", "-p", str(folder), "-l", f"127.0.0.1:{port}"],
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + 20
        while not listens(port):
            assert process.poll() is None
            assert time.monotonic() < deadline
            os.sched_yield()
        yield parse_url(f"tank://127.0.0.1:{port}")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)


def contents(log: logweir.Log, space: str = "events") -> dict[tuple[int, int], bytes]:
    """(partition, number) → content of everything in a topic."""
    return {
        (partition, message.number): message.content
        for partition, first, _, _, bundle in log.select(space)
        for message in decode_bundle(bundle, first)
    }


async def follow(log: logweir.Log, url: Url) -> None:
    """Follow `url` until its end is reached."""
    runner = Runner(TankSource(url, log), metrics=Metrics())
    task = asyncio.create_task(runner.run())
    async with asyncio.timeout(30):
        while runner.status.state is not SourceState.FOLLOWING:
            assert runner.status.state is not SourceState.STOPPED, runner.status.last_error
            await runner.changed()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_our_client_and_a_real_broker(tmp_path: Path) -> None:
    """Batches, keys and compression there and back; `tank-cli` sees the same."""
    with broker(tmp_path / "data") as url, Client(url) as client:
        with client.producer(batch_messages=40) as producer:
            sent = [
                producer.send("events", b"message %d " % n * 20, key=b"k%d" % n, partition=n % 2)
                for n in range(200)
            ]
        assert all(future.result(10) is None for future in sent)
        states = client.partitions("events")
        assert [(state.first, state.last) for state in states] == [(1, 100), (1, 100)]
        with client.consumer("events", start="begin") as consumer:
            records = [consumer.get() for _ in range(200)]
        assert {record.content for record in records} == {
            b"message %d " % n * 20 for n in range(200)
        }
        assert all(record.key == b"k" + record.content.split()[1] for record in records)
        printed = cli(url, "consume", "-d", "0")
        assert printed.count("message") == 100 * 20
        client.create_topic("more", 3)
        assert {each[0] for each in client.topics()} == {"events", "more"}


def test_real_broker_is_followed_and_resumed(tmp_path: Path) -> None:
    """Numbers stay, a second run goes on where the first ended, its folder imports alike."""
    with (
        broker(tmp_path / "data") as url,
        logweir.open(tmp_path / "ours") as log,
    ):
        upstream = parse_url(f"tank://{url.host}:{url.port}/events")
        cli(url, "produce", *(f"first {n}" for n in range(30)))
        cli(url, "-p", "1", "produce", "other partition")
        cli(url, "produce", "-s", "3", "-S", "1000", "-a", "5", "sparse 1", "sparse 2", "sparse 3")
        asyncio.run(follow(log, upstream))
        found = contents(log)
        assert found[0, 1] == b"first 0"
        assert found[0, 30] == b"first 29"
        assert found[1, 1] == b"other partition"
        sparse = sorted(number for partition, number in found if partition == 0 and number > 30)
        assert sparse == [1000, 1005, 1010]
        cli(url, "produce", "x" * 3000, "late")
        asyncio.run(follow(log, upstream))
        assert contents(log)[0, 1012] == b"late"
        assert len(contents(log)) == len(found) + 2
        assert gaps(log) == []
    imported = tmp_path / "imported"
    with logweir.open(imported) as copy:
        import_folder(copy, tmp_path / "data")
        with logweir.open(tmp_path / "ours") as log:
            assert contents(copy) == contents(log)


def test_tank_cli_and_our_endpoint(tmp_path: Path) -> None:
    """Create, publish, explicit numbers, consume, tail, discover, status, mirror, reload."""
    options = {"listen": [parse_listen_url("tank://127.0.0.1:0")]}
    with Serving(tmp_path / "ours", **options) as served:
        (url,) = served.urls
        cli(url, "create_topic", "2", topic="events")
        cli(url, "produce", *(f"line {n}" for n in range(20)))
        cli(url, "produce", "-s", "2", "-S", "500", "-a", "3", "one", "two")
        cli(url, "produce", "-K", "key=" + "z" * 2000)
        printed = cli(url, "consume", "-d", "0").splitlines()
        assert printed[:20] == [f"line {n}" for n in range(20)]
        assert printed[20:22] == ["one", "two"]
        assert len(printed[22]) == 2000
        for command in ("discover_partitions", "discover_topics", "status", "topology"):
            cli(url, command)
        with broker(tmp_path / "data") as real:
            to = f"{real.host}:{real.port}"
            mirror = subprocess.Popen(
                ["tank-cli", "-b", f"{url.host}:{url.port}", "-t", "events", "mirror", to],
                stdout=subprocess.DEVNULL,
            )
            try:
                with Client(url) as ours, Client(real) as theirs:
                    wanted = [state.last for state in ours.partitions("events")]
                    deadline = time.monotonic() + 20
                    while [state.last for state in theirs.partitions("events")] != wanted:
                        assert time.monotonic() < deadline
            finally:
                mirror.kill()
                mirror.wait()
            assert cli(real, "consume", "-d", "0").splitlines() == printed
