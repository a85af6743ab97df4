"""Redis's own programs and redis-py with our listener; rights, and those who do not read."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError
from redis.retry import Retry
from support.certificates import SERVER, SERVER_KEY
from support.waiting import until

from interop.serving import Serving
from logweir.errors import ConfigError
from logweir.limits import REDIS_CHANNELS, REDIS_NAME_BYTES, REDIS_SUBSCRIBER_BYTES
from logweir.replication.listener import server_tls
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.service import users
from logweir.replication.stream import positions
from logweir.store.schema.access import Privilege

BOTH = Privilege.READ | Privilege.WRITE


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is closed at the end."""
    with ExitStack() as opened:
        yield opened


def serve(stack: ExitStack, folder: Path, options: str = "", **more: Any) -> Serving:
    """A store with a Redis listener."""
    more.setdefault("guest", "all")
    return stack.enter_context(
        Serving(folder, listen=[parse_listen_url(f"redis://:0{options}")], **more)
    )


def client(stack: ExitStack, serving: Serving, **options: Any) -> Any:
    """One of redis-py."""
    options.setdefault("retry", Retry(NoBackoff(), 0))
    return stack.enter_context(redis.Redis(port=serving.port, **options))


def taken(subscription: Any) -> list[bytes]:
    """The next message."""
    while True:
        found = subscription.get_message(timeout=20)
        assert found is not None
        if found["type"] == "message":
            return [found["channel"], found["data"]]


def program(name: str) -> str:
    """One of Redis's own."""
    found = shutil.which(name)
    if found is None:
        pytest.skip("no redis-server on this machine")
    return found


@pytest.mark.parametrize("protocol", [2, 3])
def test_messages_reach_all_subscribers_in_one_order(
    tmp_path: Path, stack: ExitStack, protocol: int
) -> None:
    """Of two publishers; whoever leaves gets no more, and is not counted."""
    serving = serve(stack, tmp_path)
    one, two = (client(stack, serving, protocol=protocol) for _ in range(2))
    readers = [stack.enter_context(one.pubsub()) for _ in range(3)]
    for reader in readers:
        reader.subscribe("a", "b")
        for _ in range(2):
            assert reader.get_message(timeout=20)["type"] == "subscribe"
    for number in range(200):
        assert (one, two)[number % 2].publish("a", b"\r\n%d" % number) == 3
    for reader in readers:
        assert [taken(reader) for _ in range(200)] == [
            [b"a", b"\r\n%d" % number] for number in range(200)
        ]
    readers[0].unsubscribe("a")
    readers[1].close()
    until(lambda: one.pubsub_numsub("a", "b") == [(b"a", 1), (b"b", 2)])
    assert one.publish("a", "x") == 1
    assert one.publish("c", "x") == 0
    assert sorted(one.pubsub_channels()) == [b"a", b"b"]


def test_pipelines_values_and_databases(tmp_path: Path, stack: ExitStack) -> None:
    """As a homeserver uses them; the cache is not in the store."""
    serving = serve(stack, tmp_path)
    one, two = client(stack, serving), client(stack, serving, db=1)
    with one.pipeline(transaction=False) as pipe:
        for number in range(1000):
            pipe.set(f"k{number}", number, px=100_000)
            pipe.get(f"k{number}")
        found = pipe.execute()
    assert found[1::2] == [b"%d" % number for number in range(1000)]
    assert two.get("k1") is None
    one.set("short", "x", px=1)
    until(lambda: one.get("short") is None)
    big = bytes(5_000_000)
    one.set("big", big)
    assert one.get("big") == big


def test_who_may_not_is_told(tmp_path: Path, stack: ExitStack) -> None:
    """By user, by space, by channel; a right that is taken ends a subscription."""
    serving = serve(stack, tmp_path, "?space=matrix&channels=one,two*", guest="none")
    log = serving.log
    log.create_space("matrix")
    for name, bits in (("default", BOTH), ("ann", Privilege.READ)):
        users.add_user(log, name, password="secret")
        users.grant(log, name, bits, users.Target("space", "matrix"))
    users.add_user(log, "eve", password="secret")
    stranger = client(stack, serving)
    assert stranger.ping()
    for act in (
        lambda: stranger.publish("one", "x"),
        lambda: stranger.get("k"),
        lambda: stranger.pubsub_numsub("one"),
    ):
        with pytest.raises(AuthenticationError, match="required"):
            act()
    with pytest.raises(AuthenticationError, match="invalid"):
        client(stack, serving, password="wrong").ping()
    default = client(stack, serving, password="secret")
    ann = client(stack, serving, username="ann", password="secret")
    eve = client(stack, serving, username="eve", password="secret")
    assert default.publish("one", "x") == 0
    with pytest.raises(NoPermissionError):
        default.publish("three", "x")
    with pytest.raises(NoPermissionError):
        ann.publish("one", "x")
    with pytest.raises(NoPermissionError):
        ann.set("k", "x")
    with pytest.raises(NoPermissionError):
        eve.get("k")
    reader = stack.enter_context(ann.pubsub())
    reader.subscribe("two/more")
    assert reader.get_message(timeout=20)["type"] == "subscribe"
    assert default.publish("two/more", "first") == 1
    assert taken(reader) == [b"two/more", b"first"]
    users.revoke(log, "ann", Privilege.READ, users.Target("space", "matrix"))
    assert default.publish("two/more", "second") == 0
    with pytest.raises(NoPermissionError):
        taken(reader)
    assert serving.server.status()["failed_logins"] == 1


def test_one_that_does_not_read_is_cut_off_alone(tmp_path: Path, stack: ExitStack) -> None:
    """At so many bytes; the others have every message."""
    serving = serve(stack, tmp_path)
    publisher = client(stack, serving)
    with socket.create_connection(("127.0.0.1", serving.port)) as stuck:
        stuck.sendall(b"SUBSCRIBE a\r\n")
        until(lambda: publisher.pubsub_numsub("a") == [(b"a", 1)])
        reader = stack.enter_context(client(stack, serving).pubsub())
        reader.subscribe("a")
        assert reader.get_message(timeout=20)["type"] == "subscribe"
        message = bytes(1_000_000)
        numbers = []
        for _ in range(3 * REDIS_SUBSCRIBER_BYTES // len(message)):
            numbers.append(publisher.publish("a", message))
            assert taken(reader) == [b"a", message]
        assert numbers[0] == 2
        assert numbers[-1] == 1
    links = serving.server.listener.links
    until(lambda: sum(link.unsent_bytes for link in tuple(links)) < 2 * len(message))


def test_hostile_clients_are_bounded(tmp_path: Path, stack: ExitStack) -> None:
    """Too many channels, names that are too long; a command that never ends counts as memory."""
    serving = serve(stack, tmp_path)
    peer = client(stack, serving, protocol=2)
    with pytest.raises(ResponseError, match="longer"):
        peer.publish("x" * (REDIS_NAME_BYTES + 1), "y")
    with socket.create_connection(("127.0.0.1", serving.port), 20) as one:
        names = " ".join(map(str, range(REDIS_CHANNELS + 1)))
        one.sendall(b"SUBSCRIBE " + names.encode() + b"\r\n")
        told = b""
        while b"-ERR" not in told:
            told += one.recv(65536)
        assert f"more than {REDIS_CHANNELS} channels".encode() in told
        one.sendall(b"UNSUBSCRIBE\r\n*2\r\n$3\r\nGET\r\n$1000000\r\n" + bytes(500_000))
        budget = serving.server.listener.budget
        until(lambda: budget.frames_bytes >= 500_000)
    until(lambda: budget.frames_bytes == 0)
    assert peer.pubsub_channels() == []


def test_redis_cli_and_benchmark_work(tmp_path: Path, stack: ExitStack) -> None:
    """As Debian has them."""
    serving = serve(stack, tmp_path)
    port = str(serving.port)
    cli = [program("redis-cli"), "-p", port]
    for words, wanted in (
        (["-3", "ping"], "PONG"),
        (["publish", "a", "x y"], "0"),
        (["-n", "2", "set", "k", "v"], "OK"),
        (["-n", "2", "get", "k"], "v"),
    ):
        told = subprocess.run([*cli, *words], capture_output=True, text=True, timeout=60)
        assert told.stdout.strip().strip('"') == wanted
    benchmark = [program("redis-benchmark"), "-p", port, "-q", "-n", "2000", "--csv"]
    for words in (["-t", "ping,set,get"], ["publish", "a", "x" * 200], ["-P", "16", "ping"]):
        told = subprocess.run([*benchmark, *words], capture_output=True, text=True, timeout=60)
        assert told.returncode == 0, told.stderr
        assert "rror" not in told.stdout


def test_listener_speaks_tls_and_has_a_unix_socket(tmp_path: Path, stack: ExitStack) -> None:
    """As every listener."""
    tls = server_tls(SERVER, SERVER_KEY)
    serving = serve(stack, tmp_path / "one", tls=tls)
    peer = client(stack, serving, ssl=True, ssl_ca_certs=str(SERVER))
    assert peer.ping()
    listen = [parse_listen_url(f"redis://unix/:{tmp_path}/redis")]
    stack.enter_context(Serving(tmp_path / "two", listen=listen, guest="all"))
    local = stack.enter_context(redis.Redis(unix_socket_path=str(tmp_path / "redis")))
    assert local.publish("a", "x") == 0


def test_follower_of_our_own_listener_keeps_what_is_published(
    tmp_path: Path, stack: ExitStack
) -> None:
    """One process is the Redis of a homeserver and its follower."""
    listen = [parse_listen_url("redis://:0")]
    first = stack.enter_context(Serving(tmp_path / "one", listen=listen, guest="all"))
    url = parse_url(f"synapse+redis://127.0.0.1:{first.port}/m.test")
    second = stack.enter_context(Serving(tmp_path / "two", follow=[url], listen=[]))
    peer = client(stack, first)
    until(lambda: peer.pubsub_numsub("m.test") == [(b"m.test", 1)])
    lines = [
        "POSITION events master 1 1",
        *(f'RDATA events master {n} ["{n}"]' for n in range(2, 500)),
    ]
    for line in lines:
        assert peer.publish("m.test", line) == 1
    second.wait(
        lambda: (
            second.log.schema.get("synapse_events") and second.log.count("synapse_events") == 498
        )
    )
    assert not positions.gaps(second.log)


def test_redis_is_listened_on_only() -> None:
    """Following is said where the streams are."""
    with pytest.raises(ConfigError, match="cannot be followed"):
        parse_url("redis://h")
    with pytest.raises(ConfigError, match="no option 'streams'"):
        parse_listen_url("redis://h?streams=x")
