"""What subscribers with a name missed: redis-py in processes that are killed, and bounds."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.nursery import LOGWEIR, Program
from support.ports import free_port
from support.waiting import until

from interop.serving import Serving
from logweir.limits import MEMORY_LEAST_BYTES, REDIS_SUBSCRIBER_BYTES
from logweir.replication.protocols import parse_listen_url
from logweir.replication.redis.serve.missed import MISSED_BYTES
from logweir.replication.redis.wire import resp
from logweir.replication.service import users
from logweir.store.schema.access import Privilege

READER = """
import sys, redis
port, name, protocol, *channels = sys.argv[1:]
client = redis.Redis(port=int(port), client_name=name or None, protocol=int(protocol))
reader = client.pubsub()
reader.subscribe(*channels)
for told in reader.listen():
    print(told["type"], told["channel"].decode(), told["data"], flush=True)
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is closed at the end."""
    with ExitStack() as opened:
        yield opened


def serve(stack: ExitStack, folder: Path, options: str = "", **more: Any) -> Serving:
    """A store with a Redis listener."""
    more.setdefault("guest", "all")
    listen = [parse_listen_url(f"redis://:0{options}")]
    return stack.enter_context(Serving(folder, listen=listen, **more))


def client(stack: ExitStack, port: int, **options: Any) -> Any:
    """One of redis-py."""
    options.setdefault("retry", Retry(NoBackoff(), 0))
    return stack.enter_context(redis.Redis(port=port, **options))


class Reader:
    """A subscriber of redis-py, in a process of its own."""

    def __init__(self, port: int, name: str, *channels: str, protocol: int = 2) -> None:
        words = [sys.executable, "-c", READER, str(port), name, str(protocol), *channels]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.channels = channels

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # as a crash does
        self.process.communicate()

    def lines(self, count: int) -> list[str]:
        """The next things that it is told."""
        assert self.process.stdout is not None
        return [self.process.stdout.readline().rstrip("\n") for _ in range(count)]


def said(channel: str, *texts: str) -> list[str]:
    """Lines of messages."""
    return [f"message {channel} {text.encode()!r}" for text in texts]


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_killed_subscriber_is_sent_what_it_missed(
    tmp_path: Path, stack: ExitStack, protocol: int
) -> None:
    """In order, before what comes then, of its channels alone; one without a name, and another
    name, is not. Twice."""
    serving = serve(stack, tmp_path)
    peer = client(stack, serving.port)

    def subscribers() -> list[int]:
        return [number for _, number in peer.pubsub_numsub("a", "b")]

    def missing(*numbers: int) -> list[str]:
        return said("a", *map(str, numbers))

    for start in (0, 100):
        with (
            Reader(serving.port, "worker", "a", "b", protocol=protocol) as one,
            Reader(serving.port, "", "a", protocol=protocol) as stranger,
        ):
            first = one.lines(2 if start == 0 else 5)
            assert first[0] == "subscribe a 1"
            assert first[-1 if start == 0 else 4] == "subscribe b 2"
            assert first[1:-1] == (missing(2, 3, 4) if start else [])
            assert stranger.lines(1) == ["subscribe a 1"]
            until(lambda: subscribers() == [2, 1])
            assert peer.publish("a", start + 1) == 2
            assert one.lines(1) == missing(start + 1)
            assert stranger.lines(1) == missing(start + 1)
        until(lambda: subscribers() == [0, 0])
        assert [peer.publish("a", start + number) for number in (2, 3, 4)] == [0, 0, 0]
        assert peer.publish("c", "x") == 0
    with (
        Reader(serving.port, "worker", "b", "a", protocol=protocol) as one,
        Reader(serving.port, "other", "a", protocol=protocol) as other,
        Reader(serving.port, "", "a", protocol=protocol) as stranger,
    ):
        assert one.lines(2) == ["subscribe b 1", "subscribe a 2"]
        assert one.lines(3) == missing(102, 103, 104)
        assert other.lines(1) == stranger.lines(1) == ["subscribe a 1"]
        until(lambda: subscribers() == [3, 1])
        assert peer.publish("a", "end") == 3
        for reader in (one, other, stranger):
            assert reader.lines(1) == said("a", "end")
    text = serving.server.metrics.render().decode()
    assert "\nlogweir_redis_resent_messages_total 6.0\n" in text
    assert "\nlogweir_redis_lost_messages_total 0.0\n" in text


def test_a_place_is_of_a_user_and_ends_by_his_will(tmp_path: Path, stack: ExitStack) -> None:
    """Another user of that name gets nothing, nor who has unsubscribed, or was RESET."""
    serving = serve(stack, tmp_path, guest="none")
    for name in ("ann", "eve"):
        users.add_user(serving.log, name, password="secret")
        users.grant(serving.log, name, Privilege.READ | Privilege.WRITE, users.Target("universe"))
    peer = client(stack, serving.port, username="ann", password="secret")

    def visit(user: str, farewell: bytes = b"PING") -> bytes:
        with socket.create_connection(("127.0.0.1", serving.port), 20) as plain:
            login = b"AUTH %s secret\r\nCLIENT SETNAME n\r\n" % user.encode()
            plain.sendall(login + b"SUBSCRIBE a\r\n" + farewell + b"\r\nPING end\r\n")
            told = b""
            while not told.endswith(b"end\r\n"):
                told += plain.recv(65536)
        until(lambda: peer.pubsub_numsub("a") == [(b"a", 0)])
        return told

    visit("ann")
    peer.publish("a", "first")
    assert b"first" not in visit("eve")
    assert b"first" in visit("ann")
    assert b"first" not in visit("ann")
    peer.publish("a", "second")
    assert b"second" in visit("ann", b"UNSUBSCRIBE a")
    peer.publish("a", "third")
    assert b"third" not in visit("ann", b"RESET")
    peer.publish("a", "fourth")
    assert b"fourth" not in visit("ann")


def test_without_seconds_it_is_as_redis(tmp_path: Path, stack: ExitStack) -> None:
    """`resend=0`."""
    serving = serve(stack, tmp_path, "?resend=0")
    peer = client(stack, serving.port)
    for _ in range(2):
        with Reader(serving.port, "n", "a") as one:
            assert one.lines(1) == ["subscribe a 1"]
            until(lambda: peer.pubsub_numsub("a") == [(b"a", 1)])
            peer.publish("a", "there")
            assert one.lines(1) == said("a", "there")
        until(lambda: peer.pubsub_numsub("a") == [(b"a", 0)])
        peer.publish("a", "away")


@contextmanager
def process(folder: Path, port: int) -> Iterator[Program]:
    """A server as a process, which is killed at the end."""
    words = ["serve", str(folder), "--listen", f"redis://127.0.0.1:{port}", "--json"]
    words += ["--allow-guest", "all"]
    with LOGWEIR.begin(*words, stdout=PIPE, stderr=DEVNULL) as found:
        assert found.stdout is not None
        try:
            assert json.loads(found.stdout.readline())["ready"]
            yield found
        finally:
            found.kill()


def test_a_server_that_was_killed_begins_anew(tmp_path: Path, stack: ExitStack) -> None:
    """What was kept is gone, as with Redis; redis-py subscribes by itself, and from then on nothing
    is missed again."""
    port = free_port()
    with process(tmp_path, port):
        peer = client(stack, port)
        with Reader(port, "n", "a") as one:
            assert one.lines(1) == ["subscribe a 1"]
        until(lambda: peer.pubsub_numsub("a") == [(b"a", 0)])
        peer.publish("a", "forgotten")
    with process(tmp_path, port):
        peer = client(stack, port)
        with Reader(port, "n", "a") as one:
            assert one.lines(1) == ["subscribe a 1"]
            until(lambda: peer.pubsub_numsub("a") == [(b"a", 1)])
            peer.publish("a", "new")
            assert one.lines(1) == said("a", "new")
        until(lambda: peer.pubsub_numsub("a") == [(b"a", 0)])
        peer.publish("a", "kept")
        with Reader(port, "n", "a") as one:
            assert one.lines(2) == ["subscribe a 1", *said("a", "kept")]


def test_what_is_too_much_is_told(
    tmp_path: Path, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log and counted: the oldest make way."""
    serving = serve(stack, tmp_path)
    peer = client(stack, serving.port)
    with Reader(serving.port, "n", "a") as one:
        assert one.lines(1) == ["subscribe a 1"]
    until(lambda: peer.pubsub_numsub("a") == [(b"a", 0)])
    size = 1_000_000
    count = 2 * MISSED_BYTES // size
    for number in range(count):
        peer.publish("a", bytes((number,)) * size)
    kept = MISSED_BYTES // (size + 128)
    reader = stack.enter_context(client(stack, serving.port, client_name="n").pubsub())
    reader.subscribe("a")
    told = [reader.get_message(timeout=20) for _ in range(kept + 1)]
    assert [one["data"][:1] for one in told[1:]] == [
        bytes((number,)) for number in range(count - kept, count)
    ]
    lost = count - kept
    text = serving.server.metrics.render().decode()
    assert f"\nlogweir_redis_resent_messages_total {kept}.0\n" in text
    assert f"\nlogweir_redis_lost_messages_total {lost}.0\n" in text
    assert [one for one in caplog.messages if "redis.messages_lost" in one] == [
        f"event='redis.messages_lost' user='guest' name='n' channel='a' messages={lost}"
    ]


def test_who_is_cut_off_is_sent_the_rest_when_it_comes_back(
    tmp_path: Path, stack: ExitStack
) -> None:
    """A subscriber that takes nothing: what stood unsent when it was cut off, as far as it is kept,
    and what came then; every message was taken, is sent again, or is counted as lost."""
    serving = serve(stack, tmp_path)
    peer = client(stack, serving.port)
    size = 500_000
    hello = b"CLIENT SETNAME n\r\nSUBSCRIBE a\r\n"

    def message(number: int) -> bytes:
        return number.to_bytes(4, "big") * (size // 4)

    with socket.create_connection(("127.0.0.1", serving.port), 20) as stuck:
        stuck.sendall(hello)
        until(lambda: peer.pubsub_numsub("a") == [(b"a", 1)])
        count = 0
        while count < 3 * REDIS_SUBSCRIBER_BYTES // size and peer.publish("a", message(count)):
            count += 1
        count += 1  # the one that found it cut off
        peer.publish("a", message(count))
        count += 1
        taken = b""
        while more := stuck.recv(1 << 20):
            taken += more
    whole = resp.bulk(message(0))
    begin = taken.index(b"*3\r\n$7\r\nmessage")
    sent = (len(taken) - begin) // (len(whole) + len(b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n"))
    reader = stack.enter_context(client(stack, serving.port, client_name="n").pubsub())
    reader.subscribe("a")
    peer.publish("a", b"end")
    numbers = []
    assert reader.get_message(timeout=20)["type"] == "subscribe"
    while (told := reader.get_message(timeout=20)["data"]) != b"end":
        numbers.append(int.from_bytes(told[:4], "big"))
        assert told == message(numbers[-1])
    assert numbers == list(range(numbers[0], count))
    assert len(numbers) == MISSED_BYTES // (size + 128)
    (lost,) = [
        int(float(line.split()[1]))
        for line in serving.server.metrics.render().decode().splitlines()
        if line.startswith("logweir_redis_lost_messages_total ")
    ]
    assert sent + lost == numbers[0]


def cut_off(
    stack: ExitStack, serving: Serving, peer: Any, middle: bytes = b"", *, dies: bool = False
) -> list[int]:
    """A subscriber that takes nothing of its messages on channel a, says `middle`, is cut off by
    what watches connections, here as for want of memory; or it dies. Returns which it had got
    whole."""
    with socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        stuck.connect(("127.0.0.1", serving.port))
        stuck.sendall(b"CLIENT SETNAME n\r\nSUBSCRIBE a\r\n")
        until(lambda: peer.pubsub_numsub("a") == [(b"a", 1)])
        links = serving.server.listener.links
        while not (found := [one for one in links if one.unsent_bytes]):
            peer.publish("a", b"0:" + bytes(500_000))
        for number in range(1, 6):
            assert peer.publish("a", b"%d:" % number + bytes(500_000)) == 1
        stuck.sendall(middle)
        until(lambda: found[0].unsent_bytes > 0 and peer.get("told") == (b"1" if middle else None))
        if dies:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stuck.close()
            until(lambda: peer.pubsub_numsub("a") == [(b"a", 0)])
            return []
        serving._loop.call_soon_threadsafe(found[0].give_up, "too little memory")
        until(lambda: peer.pubsub_numsub("a") == [(b"a", 0)])
        taken = b""
        while more := stuck.recv(1 << 20):
            taken += more
    whole = re.findall(rb"([0-9]+):\0{500000}", taken)
    return [int(number) for number in whole]


def come_back(stack: ExitStack, serving: Serving, peer: Any) -> list[int]:
    """The messages that it is sent when it subscribes again, with the last one, 9."""
    peer.publish("a", b"9:")
    reader = stack.enter_context(client(stack, serving.port, client_name="n").pubsub())
    reader.subscribe("a")
    assert reader.get_message(timeout=20)["type"] == "subscribe"
    numbers = [-1]
    while numbers[-1] != 9:
        numbers.append(int(reader.get_message(timeout=20)["data"].split(b":")[0]))
    return numbers[1:]


def test_whoever_cuts_it_off_nothing_is_lost(tmp_path: Path, stack: ExitStack) -> None:
    """What stood unsent is sent again."""
    serving = serve(stack, tmp_path)
    peer = client(stack, serving.port)
    taken = cut_off(stack, serving, peer)
    again = come_back(stack, serving, peer)
    assert again[-6:] == [1, 2, 3, 4, 5, 9]
    assert set(taken) == {0}
    assert set(again[:-6]) == {0}
    text = serving.server.metrics.render().decode()
    assert "\nlogweir_redis_lost_messages_total 0.0\n" in text


def test_who_dies_amid_a_message_is_sent_what_stood_unsent(
    tmp_path: Path, stack: ExitStack
) -> None:
    """In the server, which has not handed it to the system."""
    serving = serve(stack, tmp_path)
    peer = client(stack, serving.port)
    cut_off(stack, serving, peer, dies=True)
    again = come_back(stack, serving, peer)
    assert again[-6:] == [1, 2, 3, 4, 5, 9]
    assert set(again[:-6]) <= {0}


def test_who_dies_after_it_took_all_is_sent_nothing_again(tmp_path: Path, stack: ExitStack) -> None:
    """Also if something stood unsent once."""
    serving = serve(stack, tmp_path)
    peer = client(stack, serving.port)
    taken, count = b"", 0
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        one.settimeout(20)
        one.connect(("127.0.0.1", serving.port))
        one.sendall(b"CLIENT SETNAME n\r\nSUBSCRIBE a\r\n")
        until(lambda: peer.pubsub_numsub("a") == [(b"a", 1)])
        links = serving.server.listener.links
        while not (found := [each for each in links if each.unsent_bytes]):
            peer.publish("a", bytes(500_000))
            count += 1
        while taken.count(bytes(500_000)) < count:
            taken += one.recv(1 << 20)
        assert not found[0].unsent_bytes
        peer.publish("a", b"small")
        while not taken.endswith(b"small\r\n"):
            taken += one.recv(1 << 20)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: peer.pubsub_numsub("a") == [(b"a", 0)])
    assert come_back(stack, serving, peer) == [9]


def test_many_that_come_back_and_do_not_read_yet_are_not_sent_all_at_once(
    tmp_path: Path, stack: ExitStack
) -> None:
    """What they missed would fill the memory twice over: it is made as they take it, so nobody is
    closed, and each has everything in order, with what came meanwhile behind it."""
    serving = serve(stack, tmp_path, memory_bytes=MEMORY_LEAST_BYTES)
    peer = client(stack, serving.port)
    names = range(2 * MEMORY_LEAST_BYTES // MISSED_BYTES)
    size, count = 500_000, MISSED_BYTES // 500_000 - 2

    def subscribe(number: int) -> socket.socket:
        one = stack.enter_context(socket.create_connection(("127.0.0.1", serving.port), 20))
        one.sendall(b"CLIENT SETNAME n%d\r\nSUBSCRIBE a\r\n" % number)
        return one

    away = [subscribe(number) for number in names]
    until(lambda: peer.pubsub_numsub("a") == [(b"a", len(names))])
    for one in away:
        one.close()
    until(lambda: peer.pubsub_numsub("a") == [(b"a", 0)])
    for number in range(count):
        peer.publish("a", number.to_bytes(4, "big") * (size // 4))
    back = [subscribe(number) for number in names]
    until(lambda: peer.pubsub_numsub("a") == [(b"a", len(names))])
    budget = serving.server.listener.budget
    until(lambda: budget.status()["answers_bytes"] > len(names) << 20)
    assert peer.publish("a", b"end") == len(names)
    for one in back:
        taken, end = bytearray(), resp.bulk(b"end")
        while not taken.endswith(end):
            more = one.recv(1 << 20)
            assert more, "closed"
            taken += more
        parts = re.findall(rb"message\r\n\$1\r\na\r\n\$500000\r\n(....)", taken, re.DOTALL)
        assert [int.from_bytes(part, "big") for part in parts] == list(range(count))
    assert budget.closed == 0


def test_a_place_that_was_given_up_is_not_sent_from(tmp_path: Path, stack: ExitStack) -> None:
    """Who subscribes again on one connection begins there, also for what it had not taken."""
    serving = serve(stack, tmp_path)
    peer = client(stack, serving.port)
    cut_off(stack, serving, peer, b"UNSUBSCRIBE a\r\nSET told 1\r\nSUBSCRIBE a\r\n")
    assert come_back(stack, serving, peer) == [9]
