"""Homeservers that are followed as their own configuration says, over real Redis servers."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from support.certificates import SERVER, SERVER_KEY
from support.ports import free_port
from support.waiting import until

from interop.serving import Serving
from interop.synapsehttp import listening
from logweir.errors import ConfigError
from logweir.replication.protocols import parse_url
from logweir.replication.stream import positions
from logweir.replication.synapse.follow.catchup import Updates
from logweir.replication.synapse.follow.homeserver import read_homeserver
from logweir.replication.synapse.wire.units import Fetch

SECRET = "not to be seen"
WHOLE: dict[str, Any] = {
    "server_name": "matrix.test",
    "redis": {"enabled": True, "host": "10.0.0.1", "port": 6380, "dbid": 3, "password": SECRET},
    "instance_map": {
        "main": {"host": "10.0.0.2", "port": 9093},
        "p1": {"host": "fe80::1", "port": 9094, "tls": True},
        "p2": {"path": "/run/p2.sock"},
    },
    "stream_writers": {"events": ["p1", "p2"], "typing": "master"},
    "worker_replication_secret": SECRET,
}


def write(path: Path, settings: Any) -> Path:
    """A file as homeservers have them."""
    path.write_text(yaml.safe_dump(settings))
    return path


def read(path: Path, options: str = "") -> Any:
    """What it says."""
    return read_homeserver(parse_url(f"synapse+file://{path}{options}"))


def test_every_setting_is_read_and_no_secret_is_shown(tmp_path: Path) -> None:
    """Addresses of all writers, the Redis, and both secrets."""
    found = read(write(tmp_path / "hs.yaml", WHOLE), "?name=two&start=all&http.p1=h:1")
    url = found.url
    assert (url.host, url.port, url.path, url.password) == (
        "10.0.0.1",
        6380,
        ("matrix.test",),
        SECRET,
    )
    assert dict(url.options) == {
        "http": "http://10.0.0.2:9093",
        "http.p1": "h:1",
        "http.p2": "unix/:/run/p2.sock",
        "name": "two",
        "start": "all",
        "dbid": "3",
    }
    assert found.secret == SECRET
    assert SECRET not in f"{url} {url!r} {found!r}"
    again = read(tmp_path / "hs.yaml")
    assert again.url.option("http.p1") == "https://[fe80::1]:9094"


def test_secrets_sockets_and_certificates_are_files_beside_it(tmp_path: Path) -> None:
    """`password_path`, `worker_replication_secret_path`, `path`, `ca_file`."""
    (tmp_path / "word").write_text(f"{SECRET}\n")
    redis = {"enabled": True, "password_path": "word", "use_tls": True, "ca_file": "ca.pem"}
    settings = {
        "server_name": "matrix.test",
        "redis": {**redis, "username": "synapse"},
        "instance_map": {"main": {"path": "main.sock"}},
        "worker_replication_secret_path": str(tmp_path / "word"),
    }
    found = read(write(tmp_path / "hs.yaml", settings))
    assert (found.url.host, found.url.port) == ("localhost", 6379)
    assert (found.url.user, found.url.password, found.secret) == ("synapse", SECRET, SECRET)
    assert found.url.option("ca") == f"{tmp_path}/ca.pem"
    assert found.url.option("http") == f"unix/:{tmp_path}/main.sock"
    settings["redis"] = {"enabled": True, "path": "/run/redis.sock"}
    found = read(write(tmp_path / "hs.yaml", settings))
    assert (found.url.socket, found.url.host, found.url.port) == ("/run/redis.sock", "", 0)


def test_later_files_replace_sections_of_earlier_ones(tmp_path: Path) -> None:
    """As Debian has it: `server_name` stands in `conf.d`; a folder is read in order."""
    more = tmp_path / "conf.d"
    more.mkdir()
    bare = {key: value for key, value in WHOLE.items() if key != "server_name"}
    write(more / "b.yaml", {"server_name": "last.test"})
    write(more / "a.yaml", {"server_name": "first.test", "redis": {"enabled": True}})
    (more / "c.txt").write_text("}")
    found = read(write(tmp_path / "hs.yaml", bare), f"?with={more}")
    assert (found.url.path, found.url.host, found.url.password) == (("last.test",), "localhost", "")
    write(more / "a.yaml", WHOLE)
    assert read(more).url.path == ("last.test",)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"server_name": None}, "server_name"),
        ({"server_name": 3}, "server_name"),
        ({"redis": None}, "redis.enabled"),
        ({"redis": {"enabled": False}}, "redis.enabled"),
        ({"redis": [1]}, "redis"),
        ({"redis": {"enabled": True, "password": 12345}}, "redis.password"),
        ({"redis": {"enabled": True, "port": "6379"}}, "redis.port"),
        ({"redis": {"enabled": True, "port": 0}}, "redis.port"),
        ({"redis": {"enabled": True, "dbid": True}}, "redis.dbid"),
        ({"redis": {"enabled": True, "username": "x"}}, "redis.username"),
        ({"redis": {"enabled": True, "password_path": "none"}}, "redis.password_path"),
        (
            {"redis": {"enabled": True, "password": SECRET, "password_path": "x"}},
            "redis.password_path",
        ),
        ({"worker_replication_secret_path": "none"}, "worker_replication_secret_path"),
        ({"instance_map": None}, "instance_map.main"),
        ({"instance_map": {"main": {"host": "h"}}}, "instance_map.main"),
        ({"instance_map": {"main": "h:1"}}, "instance_map.main"),
        ({"stream_writers": {"events": "p9"}}, "instance_map.p9"),
        ({"stream_writers": {"events": {"shards": 2}}}, "stream_writers.events"),
        ({"stream_writers": ["events"]}, "stream_writers"),
    ],
)
def test_what_is_missing_or_not_understood_is_named(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    """With the setting and its file, and without any secret."""
    file = write(tmp_path / "hs.yaml", WHOLE | change)
    with pytest.raises(ConfigError) as caught:
        read(file)
    assert caught.value.key == told
    assert SECRET not in str(caught.value)
    assert "12345" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["a: [hidden", "password: *hidden", "- hidden", "\tx: hidden", "a: 2026-99-99 # hidden"]
)
def test_what_is_no_settings_is_told_without_its_lines(tmp_path: Path, text: str) -> None:
    """A line may hold a password."""
    file = tmp_path / "hs.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"synapse\+file") as caught:
        read(file)
    assert str(file) in str(caught.value)
    assert "hidden" not in str(caught.value)


@contextmanager
def broker(folder: Path, *options: object) -> Iterator[None]:
    """A real Redis with a password."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server on this machine")
    command = [program, "--save", "", "--requirepass", SECRET, *options]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, cwd=folder) as child:
        try:
            yield
        finally:
            child.terminate()


def answers(peer: Redis) -> bool:
    """Whether it is there."""
    try:
        return bool(peer.ping())
    except RedisConnectionError:
        return False


@pytest.mark.parametrize("way", ["tcp", "tls", "unix"])
def test_streams_come_by_every_way_that_the_file_says(tmp_path: Path, way: str) -> None:
    """With a password and a database; missed rows from a process that wants the secret."""
    asked: list[tuple[str, int, int]] = []

    def missed(stream: str, writer: str, after: int, upto: int) -> tuple[int, bytes]:
        asked.append((stream, after, upto))
        body = {"updates": [[2, ["missed"]]], "upto_token": upto, "limited": False}
        return 200, json.dumps(body).encode()

    port = free_port()
    ways: dict[str, tuple[list[object], dict[str, Any], dict[str, Any]]] = {
        "tcp": (["--port", port], {"host": "127.0.0.1", "port": port}, {"port": port}),
        "tls": (
            [
                *("--port", 0, "--tls-port", port, "--tls-auth-clients", "no"),
                *("--tls-cert-file", SERVER, "--tls-key-file", SERVER_KEY),
            ],
            {"host": "127.0.0.1", "port": port, "use_tls": True, "ca_file": str(SERVER)},
            {"port": port, "ssl": True, "ssl_ca_certs": str(SERVER)},
        ),
        "unix": (
            ["--port", 0, "--unixsocket", tmp_path / "redis"],
            {"path": "redis"},
            {"unix_socket_path": str(tmp_path / "redis")},
        ),
    }
    options, redis, client = ways[way]
    with ExitStack() as stack:
        home = stack.enter_context(listening(missed))
        stack.enter_context(broker(tmp_path, *options))
        peer = stack.enter_context(Redis(password=SECRET, **client))
        until(lambda: answers(peer))
        host, _, http = home.partition(":")
        settings = WHOLE | {
            "redis": {"enabled": True, "password": SECRET, "dbid": 3, **redis},
            "instance_map": {"main": {"host": host, "port": int(http)}},
            "stream_writers": {},
        }
        file = write(tmp_path / "hs.yaml", settings)
        url = parse_url(f"synapse+file://{file}?start=all")
        with Serving(tmp_path / "data", follow=[url], listen=[]) as serving:
            serving.wait(lambda: peer.pubsub_numsub("matrix.test")[0][1] == 1)
            assert {one["db"] for one in peer.client_list(_type="pubsub")} == {"3"}
            peer.publish("matrix.test", "POSITION events master 2 2")
            peer.publish("matrix.test", 'RDATA events master 3 ["live"]')
            rows = lambda: (  # noqa: E731
                [row[3] for row in serving.log.select("synapse_events")]
                if serving.log.schema.get("synapse_events")
                else []
            )
            serving.wait(lambda: rows() == [["missed"], ["live"]])
            assert asked == [("events", 0, 2)]
            assert not positions.gaps(serving.log)
            (status,) = serving.server.status()["sources"]
            assert SECRET not in str(status)
            write(file, settings | {"redis": {"enabled": False}})
            peer.client_kill_filter(_type="pubsub")
            serving.wait(lambda: "redis.enabled" in serving.server.runners[0].status.last_error)
            write(file, settings)
            serving.wait(lambda: peer.pubsub_numsub("matrix.test")[0][1] == 1)


def test_following_ends_at_once_whenever_it_is_asked_to(tmp_path: Path) -> None:
    """Also while the library connects, which may keep a cancellation to itself."""
    port = free_port()
    with broker(tmp_path, "--port", port), Redis(port=port, password=SECRET) as peer:
        until(lambda: answers(peer))
        url = parse_url(f"synapse+redis://:{quote(SECRET)}@127.0.0.1:{port}/matrix.test")
        for number in range(15):
            with Serving(tmp_path / str(number), follow=[url], listen=[]):
                until(lambda: peer.pubsub_numsub("matrix.test")[0][1] == 1)


def test_missed_rows_come_over_a_unix_socket(tmp_path: Path) -> None:
    """As those of a process that listens at nothing else."""
    path = str(tmp_path / "main")
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(1)
    with server:

        async def ask() -> Any:
            updates = Updates(f"unix/:{path}", secret="s")
            fetch = asyncio.ensure_future(
                updates.fetch(Fetch("events", "master", 1, 2), lambda problem: None)
            )
            loop = asyncio.get_running_loop()
            server.setblocking(False)
            peer, _ = await loop.sock_accept(server)
            with peer:
                asked = await loop.sock_recv(peer, 65536)
                body = b'{"updates": [[2, ["x"]]], "upto_token": 2, "limited": false}'
                head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
                await loop.sock_sendall(peer, head + body)
                return asked, await fetch

        asked, page = asyncio.run(ask())
    assert b"Bearer s" in asked
    assert [token for token, _ in page.rows] == [2]
