"""Unix sockets: every protocol is served and followed there, and what becomes of the file."""

from __future__ import annotations

import asyncio
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import bmemcached
import pytest
from redis import Redis
from support.certificates import SERVER, SERVER_KEY
from support.loops import run
from support.loops import until as until_here
from support.waiting import until

import logweir
from interop.realtarantool import RealTarantool
from interop.serving import Serving
from logweir.errors import ConfigError, Unreachable
from logweir.replication.greenstack.client import Client as GreenstackClient
from logweir.replication.iproto.client import open_client
from logweir.replication.iproto.wire.codec import RequestType
from logweir.replication.listener import Listener, server_tls
from logweir.replication.memcached.client import TapStream
from logweir.replication.memcached.wire.messages import Connect, Option
from logweir.replication.metrics import Metrics
from logweir.replication.metricsport import MetricsService
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.service import users
from logweir.replication.synapse.client import Follower, Rows
from logweir.replication.tank.client import Client as TankClient
from logweir.replication.topic.bundle import Message, encode_bundle
from logweir.replication.topic.spaces import create_topic
from logweir.replication.urls import Url

BUCKET = "b"


def serving(folder: Path, *listen: str, guest: str = "all", **more: Any) -> Serving:
    """A server on these addresses."""
    urls = [parse_listen_url(one) for one in listen]
    return Serving(folder, listen=urls, guest=guest, **more)


def refusal(folder: Path, listen: str) -> ConfigError:
    """What a server that cannot listen there says."""
    with pytest.raises(ConfigError) as caught, serving(folder, listen):
        pass
    return caught.value


def mode(path: Path) -> int:
    """The rights of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def store_by_memcached(path: Path) -> None:
    """A library for memcached stores k."""
    client = bmemcached.Client((str(path),))
    assert client.set("k", "v")
    client.disconnect_all()


@pytest.mark.parametrize("scheme", ["tarantool", "tank", "tap", "greenstack", "synapse"])
def test_each_protocol_is_served_and_followed_there(tmp_path: Path, scheme: str) -> None:
    """A client of ours reads what there is, and a store that follows has it."""
    path = {"tap": f":/{BUCKET}", "greenstack": f":/{BUCKET}"}.get(scheme, "")
    address = f"{scheme}://unix/:{tmp_path}/socket"
    listen = [address + (path if scheme == "tap" else "")]
    if scheme == "greenstack":
        listen.append(f"memcached://unix/:{tmp_path}/other:/{BUCKET}")
    with serving(tmp_path / "up", *listen) as up:
        create_topic(up.log, "topic", 1, now_seconds=0)
        up.log.insert("topic", (0, 1, 1, 1, encode_bundle([Message(1, 1, None, b"x")])))
        assert list(map(str, up.urls)) == listen
        status = up.server.status()
        assert status["listen"] == listen
        assert not any(one["public"] for one in status["listeners"])
        url = parse_url(address + path)

        async def main() -> None:
            if scheme == "tarantool":
                async with open_client(url) as client:
                    await client.call(RequestType.PING, {})
            elif scheme == "tank":
                async with TankClient(url) as broker:
                    assert [name for name, *_ in await broker.topics()] == ["topic"]
            elif scheme == "synapse":
                async with Follower(address, start="all") as follower:
                    async for change in follower:
                        if isinstance(change, Rows):
                            return
            elif scheme == "greenstack":
                async with GreenstackClient(url) as bucket:
                    await bucket.set(b"k", b"v")
            else:
                await asyncio.to_thread(store_by_memcached, tmp_path / "socket")

        run(main)
        if scheme == "tap":
            with TapStream(url, Connect(b"n", Option.DUMP)) as stream:
                assert [one.key for one in stream if one.key] == [b"k"]
        if scheme == "tarantool":  # it has to be joined first: see below
            return
        query = "?start=all" if scheme == "synapse" else ""
        with serving(tmp_path / "copy", follow=[parse_url(address + path + query)]) as copy:
            space = {"tank": "topic", "synapse": "synapse_topic"}.get(scheme, BUCKET)
            copy.wait(lambda: copy.log.schema.get(space) and copy.log.count(space))
    assert not (tmp_path / "socket").exists()


@pytest.mark.tarantool
def test_tarantool_connects_and_replicates_there(tmp_path: Path) -> None:
    """A real one is client, replica and master at a unix socket."""
    ours, theirs = f"unix/:{tmp_path}/ours", f"unix/:{tmp_path}/theirs"
    with serving(tmp_path / "up", f"tarantool://{ours}") as up:
        up.log.create_space("t")
        up.log.insert("t", (1, "one"))
        cfg = {"replication": ours, "replication_connect_timeout": 10}
        with RealTarantool(tmp_path / "real", listen=theirs, cfg=cfg) as real:
            until(lambda: real.eval("return box.space.t and box.space.t:count()") == [1])
            code = "return require('net.box').connect(...).space.t:replace{2, 'two'}"
            assert real.eval(code, [ours]) == [[2, "two"]]
            assert up.log.get("t", 2) == (2, "two")
            real.eval("box.schema.user.grant('guest', 'replication')")
            command = [sys.executable, "-c", "from logweir.tools.cli.main import run; run()"]
            command += ["follow", "--once"]
            address = f"tarantool://{theirs}?anonymous=1"
            subprocess.run([*command, address, str(tmp_path / "copy")], check=True)
    with logweir.open(tmp_path / "copy") as copy:
        assert list(copy.select("t")) == [(1, "one"), (2, "two")]


def test_redis_is_followed_there(tmp_path: Path) -> None:
    """A real one has our subscription."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server on this machine")
    path = tmp_path / "redis"
    command = [program, "--port", "0", "--unixsocket", str(path), "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=tmp_path) as redis:
        try:
            until(path.exists)
            address = parse_url(f"synapse+redis://unix/:{path}:/matrix.test")
            with (
                serving(tmp_path / "copy", follow=[address]),
                Redis(unix_socket_path=str(path)) as peer,
            ):
                until(lambda: peer.pubsub_numsub("matrix.test") == [(b"matrix.test", 1)])
                redis.terminate()
                redis.wait()
        finally:
            redis.kill()


def test_logins_and_grants_hold_there(tmp_path: Path) -> None:
    """Where nothing is granted to guest, one has to say who one is."""
    address = f"unix/:{tmp_path}/socket"
    with serving(tmp_path / "d", f"tarantool://{address}", guest="none") as server:
        users.add_user(server.log, "ann", password="secret")

        async def main() -> None:
            async with open_client(parse_url(f"tarantool://ann:secret@{address}")) as client:
                await client.call(RequestType.PING, {})
            with pytest.raises(logweir.errors.LogweirError):
                async with open_client(parse_url(f"tarantool://ann:wrong@{address}")):
                    pass

        run(main)
        assert server.server.status()["failed_logins"] == 1


def test_tls_is_not_spoken_there(tmp_path: Path) -> None:
    """It is for the other listeners, which need a certificate; this one says so in the status."""
    tls = server_tls(SERVER, SERVER_KEY)
    listen = [f"tarantool://unix/:{tmp_path}/socket", "tarantool://:0"]
    with serving(tmp_path / "d", *listen, tls=tls) as server:

        async def main() -> None:
            async with open_client(parse_url(listen[0])) as client:
                await client.call(RequestType.PING, {})

        run(main)
        assert [one["tls"] for one in server.server.status()["listeners"]] == [False, True]


def test_file_is_for_its_owner_unless_told(tmp_path: Path) -> None:
    """Rights as of chmod; what are none are refused before anything is made."""
    path = tmp_path / "socket"
    with serving(tmp_path / "d", f"tank://unix/:{path}"):
        assert mode(path) == 0o600
    with serving(tmp_path / "d", f"tank://unix/:{path}?mode=660"):
        assert mode(path) == 0o660
    for wrong in ("", "rw", "999", "1777", "66"):
        error = refusal(tmp_path / "d", f"tank://unix/:{path}?mode={wrong}")
        assert "mode=600 for its owner" in error.hint
        assert not path.exists()


def test_file_that_nobody_listens_on_makes_way(tmp_path: Path) -> None:
    """A crash leaves it. One that is listened on stays, and so does what is no socket."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert path.is_socket()
    with serving(tmp_path / "d", f"tarantool://unix/:{path}") as server:
        error = refusal(tmp_path / "other", f"tarantool://unix/:{path}")
        assert "another process listens there" in error.hint

        async def main() -> None:
            async with open_client(parse_url(str(server.url))) as client:
                await client.call(RequestType.PING, {})

        run(main)
    path.write_text("mine")
    error = refusal(tmp_path / "d", f"tarantool://unix/:{path}")
    assert "no socket is there" in error.message
    assert path.read_text() == "mine"


def test_file_of_another_one_is_not_removed(tmp_path: Path) -> None:
    """Who took the name meanwhile keeps it."""
    path = tmp_path / "socket"
    with serving(tmp_path / "d", f"tarantool://unix/:{path}"):
        path.unlink()
        path.write_text("another one's")
    assert path.read_text() == "another one's"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("missing/socket", "No such file", "make its folder first"),
        ("file/socket", "Not a directory", "make its folder first"),
        ("x" * 200, "too long", "name a shorter file"),
    ],
)
def test_bad_path_is_told(tmp_path: Path, name: str, message: str, hint: str) -> None:
    """Typed, with what to do."""
    (tmp_path / "file").touch()
    error = refusal(tmp_path / "d", f"tarantool://unix/:{tmp_path}/{name}")
    assert message in error.message
    assert hint in error.hint


def test_upstream_that_is_not_there_is_told(tmp_path: Path) -> None:
    """As for a host: it may come, so it is asked again."""

    async def main() -> None:
        with pytest.raises(Unreachable, match="No such file"):
            async with open_client(Url("tarantool", "", 0, socket=f"{tmp_path}/none")):
                pass

    run(main)
    with pytest.raises(Unreachable, match="No such file"):
        TapStream(f"tap://unix/:{tmp_path}/none", Connect())


def test_the_loop_of_python_does_the_same(tmp_path: Path) -> None:
    """The servers of the other tests run on uvloop, where that is installed."""
    path = tmp_path / "socket"

    async def main() -> None:
        metrics = Metrics()
        listener = Listener(metrics=metrics)
        await listener.listen(parse_listen_url(f"tank://unix/:{path}"), MetricsService(metrics))
        reader, writer = await asyncio.open_unix_connection(path)
        await until_here(lambda: listener.links)
        assert [link.peer for link in listener.links] == ["unix/:"]
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert b"200" in await reader.readline()
        writer.close()
        await listener.close()
        assert not path.exists()

    run(main)
