"""TAP, both ways, while processes are killed and the disk fills up: what was acknowledged is there,
and nothing is skipped afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest
from support.nursery import LOGWEIR, Program
from support.places import mounted
from support.ports import free_port

import logweir
from interop.kvclient import KvClient, store
from interop.tapserver import Peer, TapServer
from interop.test_memcached_endpoint import ACK, FUTURE, data, serve
from logweir.replication.memcached.wire.codec import Opcode, Packet, Status, encode_ack
from logweir.replication.memcached.wire.messages import (
    Connect,
    Opaque,
    Option,
    TapMessage,
    decode_tap,
    encode_connect,
)
from logweir.replication.protocols import parse_url

KEYS = 300


@contextlib.contextmanager
def process(folder: Path, *words: str, port: int = 0) -> Iterator[tuple[Program, int]]:
    """`logweir serve` with bucket b, and its port; killed at the end."""
    command = ["serve", folder, "--json", "--allow-guest", "all"]
    command += ["--listen", f"tap://127.0.0.1:{port}/b", *words]
    with LOGWEIR.begin(*command, stdout=PIPE, stderr=DEVNULL) as running:
        assert running.stdout is not None
        try:
            ready = json.loads(running.stdout.readline())
            yield running, int(ready["listen"][0].split(":")[2].partition("/")[0])
        finally:
            running.kill()
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


class Counter:
    """Counts in vbucket 5, at the giver until that says no, then at the taker, through whatever
    breaks. `answered`: how often it was told that it is done; `unknown`: how often it was not told;
    `moved`: how often at the taker."""

    def __init__(self, key: bytes, ports: tuple[int, int]) -> None:
        self.key = key
        self.answered = self.unknown = self.moved = 0
        self._ports = ports
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when nothing is under way any more."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        place = 0
        request = Packet(Opcode.INCREMENT, self.key, extras=struct.pack(">QQI", 1, 1, 0), vbucket=5)
        client: KvClient | None = None
        while not self._stop.is_set():
            asked = False
            try:
                client = client or KvClient(self._ports[place])
                client.send(request)
                asked = True
                answer = client.receive()
                if answer is None:
                    raise ConnectionResetError
            except OSError:
                self.unknown += asked
                if client is not None:
                    client.close()
                client = None
                self._stop.wait(0.05)
                continue
            if answer.status == 0:
                self.answered += 1
                self.moved += place
            elif answer.status == Status.NOT_MY_VBUCKET:
                client.close()
                client, place = None, 1
            else:
                assert answer.status == Status.TEMPORARY_FAILURE
        if client is not None:
            client.close()


def vbucket_state(port: int) -> int:
    """Of vbucket 5; 0: it is not there, or nobody answers."""
    try:
        with KvClient(port) as client:
            (answer,) = client.ask(Packet(Opcode.GET_VBUCKET, vbucket=5))
    except (OSError, AssertionError):
        return 0
    return 0 if answer.status else int.from_bytes(answer.value, "big")


def until_state(port: int, *states: int) -> None:
    """Ask until the vbucket has one of these states."""
    until = time.monotonic() + 60
    while vbucket_state(port) not in states:
        assert time.monotonic() < until, (states, vbucket_state(port))


@pytest.mark.kill
@pytest.mark.parametrize("victim", ["giver", "taker"])
def test_a_takeover_under_writes_survives_kills(tmp_path: Path, victim: str) -> None:
    """One side is killed when the taker has begun, and once more when the giver has given the
    vbucket up: what was answered is there, nothing is there twice, and one side serves."""
    ports = [free_port(), free_port()]
    url = f"tap://127.0.0.1:{ports[0]}/b?takeover=1&vbuckets=5"

    def start(stack: contextlib.ExitStack, place: int) -> Program:
        words = ("--follow", url) if place else ()
        folder = tmp_path / ("taker" if place else "giver")
        return stack.enter_context(process(folder, *words, port=ports[place]))[0]

    with contextlib.ExitStack() as stack:
        sides = [start(stack, 0)]
        with KvClient(ports[0]) as client:
            client.ask(Packet(Opcode.SET_VBUCKET, extras=(1).to_bytes(4, "big"), vbucket=5))
            many = (store(b"k%d" % n, bytes(500), Opcode.SETQ, vbucket=5) for n in range(20_000))
            client.batch(*many)
        counters = [Counter(b"counter%d" % n, (ports[0], ports[1])) for n in range(3)]
        sides.append(start(stack, 1))
        place = 0 if victim == "giver" else 1
        for looked_at, states in ((1, (3, 1)), (0, (4,))):
            until_state(ports[looked_at], *states)
            os.kill(sides[place].pid, signal.SIGKILL)
            sides[place].wait(30)
            sides[place] = start(stack, place)
        until_state(ports[1], 1)
        until = time.monotonic() + 60
        while min(counter.moved for counter in counters) < 50:
            assert time.monotonic() < until, [counter.moved for counter in counters]
        for counter in counters:
            counter.stop()
        assert vbucket_state(ports[0]) == 4
        with KvClient(ports[1]) as client:
            for counter in counters:
                (answer,) = client.ask(Packet(Opcode.GET, counter.key, vbucket=5))
                assert counter.answered <= int(answer.value) <= counter.answered + counter.unknown
                assert counter.unknown <= 4
            requests = (Packet(Opcode.GET, b"k%d" % n, vbucket=5) for n in range(20_000))
            assert all(answer.status == 0 for answer in client.ask(*requests))


@pytest.mark.kill
@pytest.mark.parametrize(("name", "count"), [(b"mover", 0), (b"", 100)])
def test_a_giver_that_is_killed_before_it_hears_of_the_end_gives_again(
    tmp_path: Path, name: bytes, count: int
) -> None:
    """Its vbucket is dead, whoever asks; the second attempt gets what the name has not
    acknowledged, without a name everything, and the vbucket."""
    port = free_port()
    options = ACK | Option.TAKEOVER_VBUCKETS | Option.LIST_VBUCKETS
    connect = Connect(name, options, vbuckets=(5,))

    def take(*, acknowledge_active: bool) -> list[TapMessage]:
        taken = []
        with KvClient(port) as taker:
            for message in taker.stream(connect):
                taken.append(message)
                is_active = message.opcode == Opcode.TAP_VBUCKET_SET and message.number == 1
                if is_active and not acknowledge_active:
                    return taken
        return taken

    with process(tmp_path / "a", port=port) as (_, _), KvClient(port) as client:
        client.ask(Packet(Opcode.SET_VBUCKET, extras=(1).to_bytes(4, "big"), vbucket=5))
        client.ask(*(store(b"k%d" % n, vbucket=5) for n in range(100)))
        assert len(data(take(acknowledge_active=False))) == 100
        assert client.ask(store(b"late", vbucket=5))[0].status == Status.NOT_MY_VBUCKET
    with process(tmp_path / "a", port=port) as (_, _), KvClient(port) as client:
        assert vbucket_state(port) == 4
        assert client.ask(store(b"late", vbucket=5))[0].status == Status.NOT_MY_VBUCKET
        again = take(acknowledge_active=True)
        assert len(data(again)) == count
        assert again[-1].number == Opaque.CLOSE_TAP_STREAM
        assert [m.number for m in again if m.opcode == Opcode.TAP_VBUCKET_SET] == [3, 1]


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
