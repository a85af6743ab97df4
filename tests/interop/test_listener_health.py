"""What a server says of its health, beside its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import os
import socket
import sys
from pathlib import Path

import pytest
from support.places import mounted
from support.ports import free_port

import logweir
from interop.serving import Serving
from logweir.errors import WriteFailed, WriterPoisoned
from logweir.limits import HTTP_BODY_BYTES, HTTP_WAITING, METRICS_CONNECTIONS
from logweir.recovery.faults import Fault, FaultyFileSystem
from logweir.replication.iproto.follow.join import join
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.urls import Url
from logweir.wal.filesystem import OS

METRICS = Url("metrics", "127.0.0.1", 0)


def asked(server: Serving, page: str, method: str = "GET") -> tuple[int, str]:
    """Status and text of one page of the metrics port."""
    (port,) = [url.port for url in server.server.listener.urls if url.scheme == "metrics"]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, page)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_server_whose_log_has_failed_is_alive_and_not_ready(tmp_path: Path) -> None:
    """It still answers, reads too, but changes are lost on it."""
    disk = FaultyFileSystem(OS)
    with Serving(tmp_path, metrics=METRICS, open_options={"filesystem": disk}) as server:
        server.log.create_space("t")
        assert asked(server, "/healthz") == (200, "alive\n")
        assert asked(server, "/readyz?x=1") == (200, "ready\n")
        assert asked(server, "/readyz", "POST")[0] == 405
        assert asked(server, "/ready")[0] == 404
        told = asked(server, "/metrics")[1]
        assert f'logweir_build_info{{version="{logweir.__version__}"}} 1.0' in told
        if sys.platform == "linux":
            assert float(told.split("\nprocess_resident_memory_bytes ")[1].split()[0]) > 1e6
        disk.fault = Fault(1, {"sync"}, errno.EIO, lasts=True)
        with pytest.raises(WriterPoisoned):
            server.log.insert("t", (1,))
        status, reason = asked(server, "/readyz")
        assert status == 503
        assert reason.startswith("the log has failed: ")
        assert reason.count("\n") == 1
        assert asked(server, "/healthz")[0] == 200


def test_requests_that_come_together_are_all_answered(tmp_path: Path) -> None:
    """More than are read at a time, behind a body that makes much be received at once; what waits
    of them is counted, until it was looked at."""
    count = 4 * HTTP_WAITING + 1
    with Serving(tmp_path, metrics=METRICS) as server:
        (port,) = [url.port for url in server.server.listener.urls if url.scheme == "metrics"]
        budget = server.server.listener.budget
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            body = bytes(HTTP_BODY_BYTES)
            client.sendall(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            client.sendall(b"GET /healthz HTTP/1.1\r\n\r\n" * count)
            got = b""
            while got.count(b"alive\n") < count:
                got += client.recv(1 << 16)
            assert got.count(b"HTTP/1.1 ") == 1 + count
            server.wait(lambda: budget.frames_bytes == 0)
            client.sendall(b"GET /healthz HT")
            server.wait(lambda: budget.frames_bytes == len(b"GET /healthz HT"))
    assert budget.frames_bytes == 0


def test_server_is_ready_while_its_upstreams_are_caught_up_with(tmp_path: Path) -> None:
    """One that cannot be reached is named, with why, and no other; it is ready again by itself."""
    port = free_port()
    listen = [parse_listen_url(f"tarantool://:{port}")]
    url = parse_url(f"tarantool://127.0.0.1:{port}")
    gone = parse_url(f"tank://127.0.0.1:{free_port()}/topic")
    with Serving(tmp_path / "one", guest="all", listen=listen):
        asyncio.run(join(url, tmp_path / "copy"))
        with Serving(tmp_path / "copy", metrics=METRICS, follow=[url, gone]) as copy:
            copy.wait(lambda: asked(copy, "/readyz")[1].startswith(f"{gone}: waiting: "))
            status, reason = asked(copy, "/readyz")
            assert (status, reason.count("\n")) == (503, 1)
    with Serving(tmp_path / "copy", metrics=METRICS, follow=[url]) as copy:
        copy.wait(lambda: "waiting: " in asked(copy, "/readyz")[1])
        assert asked(copy, "/readyz")[0] == 503
        assert asked(copy, "/healthz")[0] == 200
        with Serving(tmp_path / "one", guest="all", listen=listen):
            copy.wait(lambda: asked(copy, "/readyz") == (200, "ready\n"))
        copy.wait(lambda: asked(copy, "/readyz")[0] == 503)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_server_that_cannot_write_changes_is_not_ready(tmp_path: Path, error: int) -> None:
    """Why it refuses them, until it would take them again, though nobody tries."""
    disk = FaultyFileSystem(OS)
    with Serving(tmp_path, metrics=METRICS, open_options={"filesystem": disk}) as server:
        server.log.create_space("t")
        disk.fault = Fault(1, {"write"}, error, lasts=True)
        with pytest.raises(WriteFailed):
            server.log.insert("t", (1,))
        status, reason = asked(server, "/readyz")
        assert (status, reason.count("\n")) == (503, 1)
        assert reason.startswith("changes are refused: ")
        assert os.strerror(error).lower() in reason
        assert not list(tmp_path.rglob("probe.new"))
        disk.fault = None
        assert asked(server, "/readyz") == (200, "ready\n")
        disk.fault = Fault(1, {"write"}, error)
        with pytest.raises(WriteFailed):
            server.log.insert("t", (1,))
        server.log.insert("t", (1,))
        disk.fault = Fault(1, {"create", "write"}, error, lasts=True)  # nobody needs to look
        assert asked(server, "/readyz") == (200, "ready\n")
        disk.fault = None
        assert not list(tmp_path.rglob("probe.new"))


def test_server_on_a_full_disk_is_not_ready_before_it_refuses(tmp_path: Path) -> None:
    """Clients go elsewhere, and come back when there is room."""
    with (
        mounted(tmp_path / "small", 24 * 1024 * 1024) as folder,
        Serving(folder / "store", metrics=METRICS) as server,
    ):
        assert asked(server, "/readyz") == (200, "ready\n")
        filler = folder / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(64 * 1024)):
                pass
        status, reason = asked(server, "/readyz")
        assert (status, reason.count("\n")) == (503, 1)
        assert "no space left on device" in reason
        assert asked(server, "/healthz")[0] == 200
        filler.unlink()
        assert asked(server, "/readyz") == (200, "ready\n")


def test_health_is_told_where_all_connections_are_taken(tmp_path: Path) -> None:
    """Whoever may connect would have a well server started again otherwise; the port has some of
    its own, and no more than these."""
    with (
        Serving(tmp_path / "s", metrics=METRICS, connections=3) as server,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(3):
            taken = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 20))
            assert taken.recv(9) == b"Tarantool"
        assert asked(server, "/healthz") == (200, "alive\n")
        assert asked(server, "/readyz") == (200, "ready\n")
        port = next(url.port for url in server.server.listener.urls if url.scheme == "metrics")
        for _ in range(METRICS_CONNECTIONS):
            one = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            stack.callback(one.close)
            one.request("GET", "/healthz")
            assert one.getresponse().read() == b"alive\n"
        with pytest.raises(ConnectionError):
            asked(server, "/healthz")
        refused = socket.create_connection(("127.0.0.1", server.port), 20)
        stack.enter_context(refused)
        assert refused.recv(300) == b""
