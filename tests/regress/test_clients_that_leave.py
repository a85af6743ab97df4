"""Each client that merely left wrote a line: thousands of connections, thousands of lines."""

from __future__ import annotations

import logging
import socket
import struct
import urllib.request
from pathlib import Path

import pytest

from interop.kvclient import KvClient
from interop.serving import Serving
from logweir.replication.memcached.wire.codec import Opcode, Packet
from logweir.replication.protocols import parse_listen_url
from logweir.replication.urls import Url

SCHEMES = ("tarantool", "tank", "tap", "memcached", "greenstack", "synapse")


def ends(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """The ends of connections that were told at a level."""
    return [
        one.getMessage()
        for one in caplog.records
        if one.levelno == level and "link.closed" in one.getMessage()
    ]


def test_leaving_is_told_at_debug(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By closing, by QUIT, with the one answer of HTTP, and with the server."""
    caplog.set_level(logging.DEBUG, "logweir.replication")
    listen = [parse_listen_url(f"{scheme}://:0") for scheme in SCHEMES]
    metrics = Url("metrics", "127.0.0.1", 0)
    with Serving(tmp_path, listen=listen, metrics=metrics) as server:
        listener = server.server.listener
        for url in server.urls:
            with socket.create_connection((url.host, url.port), 10):
                server.wait(lambda: listener.links)
            server.wait(lambda: not listener.links)
        with KvClient(server.urls[SCHEMES.index("memcached")].port) as client:
            assert client.ask(Packet(Opcode.QUIT))[0].status == 0
            assert client.socket.recv(1) == b""
        (port,) = [url.port for url in listener.urls if url.scheme == "metrics"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            page.read()
        server.wait(lambda: not listener.links)
        staying = socket.create_connection((server.url.host, server.url.port), 10)
        server.wait(lambda: listener.links)
    staying.close()
    assert ends(caplog, logging.INFO) == []
    assert len(ends(caplog, logging.DEBUG)) == len(SCHEMES) + 3


def test_an_end_with_a_reason_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Here what is no request of the protocol; a connection that is cut is one that left."""
    caplog.set_level(logging.INFO, "logweir.replication")
    with Serving(tmp_path) as server:
        listener = server.server.listener
        with socket.create_connection((server.url.host, server.url.port), 10) as peer:
            peer.sendall(b"\xc1" * 100)
            while peer.recv(4096):
                pass
        with socket.create_connection((server.url.host, server.url.port), 10) as peer:
            server.wait(lambda: listener.links)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.wait(lambda: not listener.links)
    (told,) = ends(caplog, logging.INFO)
    assert "malformed" in told
