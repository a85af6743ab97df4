"""TAP, both ways, while processes are killed and the disk fills up: what was acknowledged is there,
and nothing is skipped afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.places import mounted

import logweir
from interop.kvclient import KvClient, store
from interop.tapserver import Peer, TapServer
from interop.test_tap_endpoint import ACK, FUTURE, data, serve
from logweir.replication.tap.codec import (
    Connect,
    Opaque,
    Opcode,
    Option,
    Packet,
    TapMessage,
    decode_tap,
    encode_ack,
    encode_connect,
)
from logweir.replication.urls import parse_url

CODE = "from logweir.tools.cli.main import run; run()"
KEYS = 300


@contextlib.contextmanager
def process(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`logweir serve` with bucket b, and its port; killed at the end."""
    command = [sys.executable, "-c", CODE, "serve", str(folder), "--json", "--allow-guest", "all"]
    with subprocess.Popen(
        [*command, "--listen", "tap://127.0.0.1:0/b", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as running:
        assert running.stdout is not None
        try:
            ready = json.loads(running.stdout.readline())
            yield running, int(ready["listen"][0].split(":")[2].partition("/")[0])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(running.pid, signal.SIGKILL)
            running.wait(30)


def endless(acknowledged: list[int], reached: Callable[[int], None]) -> Callable[[Peer], None]:
    """A server that writes numbers into `KEYS` keys, round and round, from where it stands, and
    has each fifth one acknowledged. `acknowledged`: takes their numbers."""

    def give(peer: Peer) -> None:
        peer.connect()
        number = (acknowledged[-1] if acknowledged else 0) + 1
        while True:
            wants_ack = number % 5 == 0
            peer.send(
                TapMessage(
                    Opcode.TAP_MUTATION,
                    b"k%d" % (number % KEYS),
                    b"%d" % number,
                    cas=number,
                    wants_ack=wants_ack,
                    opaque=number,
                )
            )
            if wants_ack:
                answer = peer.receive()
                if answer is None:
                    return
                assert (answer.opaque, answer.status) == (number, 0)
                acknowledged.append(number)
                reached(number)
            number += 1

    return give


def kept(log: logweir.Log) -> dict[int, int]:
    """The highest number of each key that is there."""
    return {int(row[0][1:]): int(row[2]) for row in log.select("b")}


def check(found: dict[int, int], acknowledged: int) -> None:
    """Every key has at least the number that was acknowledged."""
    for number in range(max(1, acknowledged - KEYS + 1), acknowledged + 1):
        assert found[number % KEYS] >= number, number


@pytest.mark.kill
def test_a_follower_that_is_killed_has_what_it_acknowledged(tmp_path: Path) -> None:
    """SIGKILL behind some acknowledgement, again and again on the same folder, then the end."""
    acknowledged: list[int] = []
    kills = iter((5, 65, 700))
    running: list[int] = []
    limit = [next(kills)]

    def reached(number: int) -> None:
        if number >= limit[0] and running:
            os.kill(running.pop(), signal.SIGKILL)

    with TapServer(endless(acknowledged, reached)) as upstream:
        for following_limit in (*kills, None):
            url = f"tap://127.0.0.1:{upstream.port}/b"
            with process(tmp_path / "s", "--follow", url) as (child, _):
                running.append(child.pid)
                child.wait(60)
            with logweir.open(tmp_path / "s", create=False) as log:
                check(kept(log), acknowledged[-1])
            if following_limit is not None:
                limit[0] = following_limit
        assert acknowledged[-1] >= 700


@pytest.mark.kill
def test_a_server_that_is_killed_skips_nothing_afterwards(tmp_path: Path) -> None:
    """A named consumer of a server that is killed under writes: every change that was answered
    comes, in order, none that was acknowledged long ago comes first."""
    connect = Connect(b"n", ACK | Option.BACKFILL, backfill=FUTURE)
    written = 0
    values: list[int] = []
    for round_number in range(4):
        with process(tmp_path / "s") as (child, port), KvClient(port) as consumer:
            consumer.socket.sendall(encode_connect(connect))
            first = consumer.receive()
            assert first is not None
            consumer.socket.sendall(encode_ack(first.opcode, first.opaque))
            with KvClient(port) as client:
                for _ in range(50):
                    written += 1
                    client.ask(store(b"k", b"%d" % written))
            seen: list[int] = []
            until = written if round_number == 3 else written - 20
            while not seen or seen[-1] < until:
                packet = consumer.receive()
                assert packet is not None
                if packet.opcode == Opcode.NOOP:
                    continue
                message = decode_tap(packet)
                if message.key:
                    seen.append(int(message.value))
                if message.wants_ack:
                    consumer.socket.sendall(encode_ack(message.opcode, message.opaque))
            os.kill(child.pid, signal.SIGKILL)
        assert seen == list(range(seen[0], seen[-1] + 1))
        assert seen[0] <= (values[-1] if values else 0) + 1
        values = seen
    assert values[-1] == written


@pytest.mark.kill
def test_a_takeover_survives_the_death_of_either_side(tmp_path: Path) -> None:
    """The taker is killed before it has the vbucket; the giver keeps everything until then, and
    the second attempt has it all."""
    active = (1).to_bytes(4, "big")
    with process(tmp_path / "a") as (_, port), KvClient(port) as client:
        client.ask(Packet(Opcode.SET_VBUCKET, extras=active, vbucket=5))
        many = (store(b"k%d" % n, bytes(200), Opcode.SETQ, vbucket=5) for n in range(20_000))
        client.batch(*many)
        url = f"tap://127.0.0.1:{port}/b?takeover=1&vbuckets=5"
        with process(tmp_path / "b", "--follow", url) as (taker, taker_port):
            with KvClient(taker_port) as other:
                state = 0
                while state == 0:  # pending or active: it has begun
                    (answer,) = other.ask(Packet(Opcode.GET_VBUCKET, vbucket=5))
                    state = int.from_bytes(answer.value, "big") if not answer.status else 0
            os.kill(taker.pid, signal.SIGKILL)
            taker.wait(30)
        with (
            process(tmp_path / "b", "--follow", url) as (_, taker_port),
            KvClient(taker_port) as other,
        ):
            state = 0
            while state != 1:
                (answer,) = other.ask(Packet(Opcode.GET_VBUCKET, vbucket=5))
                state = int.from_bytes(answer.value, "big") if not answer.status else 0
            requests = (Packet(Opcode.GET, b"k%d" % n, vbucket=5) for n in range(20_000))
            assert all(answer.status == 0 for answer in other.ask(*requests))


def test_a_full_disk_costs_a_follower_nothing(tmp_path: Path) -> None:
    """It acknowledges nothing that found no room, says why, and goes on when there is room."""
    acknowledged: list[int] = []
    body = os.urandom(4000)

    def give(peer: Peer) -> None:
        peer.connect()
        peer.send(TapMessage(Opcode.TAP_OPAQUE, number=Opaque.INITIAL_VBUCKET_STREAM))
        for number in range(1, 301):
            peer.send(
                TapMessage(
                    Opcode.TAP_MUTATION,
                    b"k%d" % number,
                    body,
                    cas=number,
                    wants_ack=True,
                    opaque=number,
                )
            )
            if peer.receive() is None:
                return
            acknowledged.append(number)
        peer.send(TapMessage(Opcode.TAP_OPAQUE, number=Opaque.CLOSE_BACKFILL))
        peer.receive()

    with mounted(tmp_path / "small", 3_500_000) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(1_300_000))
        with TapServer(give) as upstream:
            follow = [parse_url(f"tap://127.0.0.1:{upstream.port}/b")]
            with serve(disk / "s", follow=follow) as server:
                runner = server.server.runners[0]
                server.wait(lambda: bool(runner.status.last_error))
                highest = max(acknowledged)
                assert 0 < highest < 300
                there = {row[0] for row in server.log.select("b")}
                assert there >= {b"k%d" % number for number in range(1, highest + 1)}
                ballast.unlink()
                server.wait(lambda: max(acknowledged) == 300)
        with logweir.open(disk / "s") as log:
            assert log.count("b") == 300


def test_a_full_disk_is_told_to_clients_and_reads_go_on(tmp_path: Path) -> None:
    """Status 86 for what was not stored; what was answered is there, also for followers."""
    body = os.urandom(4000)
    with mounted(tmp_path / "small", 3_500_000) as disk:
        (disk / "ballast").write_bytes(bytes(1_300_000))
        stored: list[bytes] = []
        with serve(disk / "s") as server, KvClient(server.port) as client:
            status = 0
            while not status:
                key = b"k%d" % len(stored)
                (answer,) = client.ask(store(key, body))
                status = answer.status
                if not status:
                    stored.append(key)
            assert status == 0x86
            assert len(stored) > 20
            assert client.ask(Packet(Opcode.GET, stored[-1]))[0].value == body
            with KvClient(server.port) as consumer:
                dump = list(consumer.stream(Connect(b"", Option.DUMP)))
            assert sorted(key for _, key in data(dump)) == sorted(stored)
            (disk / "ballast").unlink()
