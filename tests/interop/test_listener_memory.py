"""Strangers that send parts of frames on every port at once: what they hold is bounded over all of
them, told, and free again when they have gone; others are served meanwhile."""

from __future__ import annotations

import ctypes
import gc
import resource
import select
import socket
import weakref
from contextlib import ExitStack
from pathlib import Path

from interop.serving import Serving
from logweir.limits import MEMORY_LEAST_BYTES, MEMORY_STRANGERS_SHARE, TURN_BYTES
from logweir.replication.memcached.push.streaming import Streaming
from logweir.replication.protocols import parse_listen_url
from logweir.replication.session import InputBuffer
from logweir.replication.tank.wire.codec import encode_request
from logweir.replication.tank.wire.messages import Topics
from logweir.wal.mp import pack

STRANGERS = 16
PART = bytes(1 << 18)
BEGINNINGS = {  # of frames of 30 MiB; memcached's and Synapse's are smaller
    "tarantool": b"\xce" + (30 << 20).to_bytes(4, "big"),
    "tank": b"\x01" + (30 << 20).to_bytes(4, "little"),
    "synapse": b"NAME ",
    "memcached": b"\x80\x01\0\x01\x08\0\0\0" + (1_000_009).to_bytes(4, "big") + bytes(12),
    "greenstack": (30 << 20).to_bytes(4, "big"),
}
LARGEST = {"synapse": 16_000, "memcached": 1_000_000}
QUESTIONS = {
    "tarantool": (b"\xce\0\0\0\x05\x82\0\x40\1\1", 128 + 5),  # PING, behind the greeting
    "tank": (encode_request(Topics(1)), 6),  # behind a ping
    "synapse": (b"", 7),
    "memcached": (b"\x80\x0b" + bytes(22), 24),
    "greenstack": (b"", 0),
}


def test_unfinished_frames_of_strangers_on_all_ports_are_bounded(tmp_path: Path) -> None:
    """Each of 80 connections sends as much of a frame as is taken of it."""
    listen = [parse_listen_url(f"{scheme}://:0") for scheme in BEGINNINGS]
    server = Serving(tmp_path / "s", listen=listen, guest="all", memory_bytes=MEMORY_LEAST_BYTES)
    with server, ExitStack() as stack:
        budget = server.server.listener.budget
        open_ones: dict[socket.socket, int] = {}
        for url in server.urls:
            for _ in range(STRANGERS):
                one = stack.enter_context(socket.create_connection((url.host, url.port), 10))
                one.sendall(BEGINNINGS[url.scheme])
                one.setblocking(False)
                open_ones[one] = LARGEST.get(url.scheme, 29 << 20)
        most = 0
        while takes := select.select([], list(open_ones), [], 1.0)[1]:
            for one in takes:
                try:
                    open_ones[one] -= one.send(PART[: open_ones[one]])
                except OSError:
                    open_ones[one] = 0
                if not open_ones[one]:
                    del open_ones[one]
            most = max(most, budget.frames_bytes)
        assert 1 << 20 < most <= MEMORY_LEAST_BYTES // MEMORY_STRANGERS_SHARE + TURN_BYTES
        for url in server.urls:
            question, size = QUESTIONS[url.scheme]
            with socket.create_connection((url.host, url.port), 10) as asking:
                asking.sendall(question)
                got = 0
                while got < size:
                    answer = asking.recv(1000)
                    assert answer, f"{url.scheme} closed the connection"
                    got += len(answer)
        told = server.server.status()
        assert told["memory"]["closed_connections"] == told["refused_connections"]["memory"] > 10
        metrics = server.server.metrics.render().decode()
        assert 'logweir_link_refused_total{reason="memory",scheme="tank"}' in metrics
    assert budget.status()["answers_bytes"] == budget.used_bytes == 0


def test_the_system_gets_back_what_a_flood_needed(tmp_path: Path) -> None:
    """The memory of answers that 40 clients did not take, once these have gone."""
    listen = [parse_listen_url("memcached://:0")]
    with Serving(tmp_path / "s", listen=listen, guest="all") as server:
        budget = server.server.listener.budget
        with socket.create_connection(("127.0.0.1", server.port), 10) as one:
            one.sendall(b"set big 0 0 900000\r\n" + bytes(900_000) + b"\r\n")
            assert one.recv(100) == b"STORED\r\n"
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what other tests in this process have left
        before = resident_bytes()
        with ExitStack() as stack:
            for _ in range(40):
                one = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 10))
                one.sendall(b"get" + b" big" * 100 + b"\r\n")
            server.wait(lambda: budget.status()["answers_bytes"] > 160 << 20)
            most = resident_bytes()
            assert most > before + (100 << 20)
        server.wait(lambda: resident_bytes() < before + (most - before) // 2)


def test_what_is_read_for_followers_that_take_nothing_is_counted(tmp_path: Path) -> None:
    """40 that ask for a dump of large items: few are read for each, and they are free, without a
    garbage collection, when they have gone."""
    listen = [parse_listen_url("memcached://:0")]
    dump = b"\x80\x40\0\0\4\0\0\0\0\0\0\4" + bytes(12) + b"\0\0\0\2"
    with Serving(tmp_path / "s", listen=listen, guest="all") as server, ExitStack() as stack:
        budget = server.server.listener.budget
        with socket.create_connection(("127.0.0.1", server.port), 10) as one:
            for number in range(30):
                one.sendall(b"set big%d 0 0 900000\r\n" % number + bytes(900_000) + b"\r\n")
                assert one.recv(100) == b"STORED\r\n"
        clients = []
        for _ in range(40):
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", server.port))
            one.sendall(dump)
            clients.append(one)
        listener = server.server.listener
        server.wait(lambda: sum(one.unsent_bytes > 0 for one in listener.links) == len(clients))
        assert max(one.held_bytes for one in listener.links) < 5 * 900_000
        gc.collect()
        gc.disable()
        try:
            for one in clients:
                one.close()
            server.wait(lambda: not listener.links)
            server.wait(lambda: not any(isinstance(one, Streaming) for one in gc.get_objects()))
        finally:
            gc.enable()
        assert budget.status()["answers_bytes"] == budget.used_bytes == 0


def test_beginnings_of_frames_go_with_their_connections(tmp_path: Path) -> None:
    """Of 150 that are closed for them, one after the other; no collection that happens to come is
    needed."""
    size, count = 900_000, 150
    with Serving(tmp_path / "s", memory_bytes=MEMORY_LEAST_BYTES) as server, ExitStack() as stack:
        gc.collect()
        gc.disable()
        try:
            for _ in range(count):
                one = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 10))
                one.sendall(BEGINNINGS["tarantool"] + bytes(size))
            budget = server.server.listener.budget
            server.wait(lambda: budget.closed >= count - 8)

            def kept_bytes() -> int:
                found = (one for one in gc.get_objects() if isinstance(one, InputBuffer))
                return sum(one.size_bytes for one in found)

            server.wait(lambda: kept_bytes() < count // 2 * size)
            assert budget.closed < count
        finally:
            gc.enable()


def test_connections_of_every_protocol_go_at_once(tmp_path: Path) -> None:
    """With what was waiting for them: no garbage collection looks for them, in which nobody would
    be answered."""
    listen = [parse_listen_url(f"{scheme}://:0") for scheme in (*BEGINNINGS, "redis")]
    with Serving(tmp_path / "s", listen=listen, guest="all") as server, ExitStack() as stack:
        server.log.create_space("t", format=[("id", "unsigned"), ("x", "string")], primary=["id"])
        server.log.insert("t", (1, "x" * 900_000))
        space_id = next(space.id for space in server.log.schema if space.name == "t")
        body = pack({0: 1}) + pack({0x10: space_id, 0x11: 0, 0x12: 9, 0x13: 0, 0x14: 2, 0x20: []})
        asked = {
            "tarantool": (b"\xce" + len(body).to_bytes(4, "big") + body) * 100,
            "memcached": b"set big 0 0 900000\r\n"
            + bytes(900_000)
            + b"\r\n"
            + b"get big\r\n" * 100,
            "greenstack": BEGINNINGS["greenstack"],
            "tank": encode_request(Topics(1)) * 100,
            "synapse": b"REPLICATE ALL NOW\n" * 100,
            "redis": b"PING\r\n" * 100,
        }
        listener = server.server.listener
        gc.collect()
        gc.disable()
        try:
            for url in server.urls:
                one = stack.enter_context(socket.create_connection((url.host, url.port), 10))
                one.sendall(asked[url.scheme])
            large = {"tarantool", "memcached"}  # of whose answers most wait
            links: dict[str, weakref.ref[object]] = {}

            def begun() -> bool:
                for one in listener.links:
                    if one.received_bytes and (one.unsent_bytes or one.scheme not in large):
                        links[one.scheme] = weakref.ref(one)
                return len(links) == len(asked)

            server.wait(begun)
            stack.close()
            server.wait(lambda: not listener.links)
            server.wait(lambda: not any(found() for found in links.values()))
        finally:
            gc.enable()
    assert links.keys() == asked.keys()


def test_what_connections_subscribe_to_is_counted(tmp_path: Path) -> None:
    """Channels and watched keys, as long as they are subscribed to."""
    listen = [parse_listen_url("redis://:0"), parse_listen_url("tarantool://:0")]
    with (
        Serving(
            tmp_path / "s", listen=listen, guest="all", memory_bytes=MEMORY_LEAST_BYTES
        ) as server,
        ExitStack() as stack,
    ):
        budget = server.server.listener.budget
        redis, tarantool = (
            [
                stack.enter_context(socket.create_connection((url.host, url.port), 10))
                for _ in range(8)
            ]
            for url in server.urls
        )
        names = b" ".join(b"%d" % number + bytes(500).replace(b"\0", b"x") for number in range(120))
        bodies = [pack({0: 74, 1: 1}) + pack({87: f"key {number}"}) for number in range(200)]
        watches = b"".join(b"\xce" + len(one).to_bytes(4, "big") + one for one in bodies)
        for one in redis:
            one.sendall(b"SUBSCRIBE " + names + b"\r\n")
        for one in tarantool:
            one.sendall(watches)
        wanted = 8 * (120 * 1500 + 200 * 500)
        server.wait(lambda: budget.status()["answers_bytes"] > wanted)
        redis[0].sendall(b"UNSUBSCRIBE\r\n")
        server.wait(lambda: budget.status()["answers_bytes"] < wanted)
        assert budget.closed == 0


def resident_bytes() -> int:
    """The memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
