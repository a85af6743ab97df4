"""Debian's memcached as a process on loopback."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from support.ports import free_port


@contextmanager
def memcached(*options: str) -> Iterator[int]:
    """Its port, while it runs."""
    port = free_port()
    command = ["memcached", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-u", "root", *options]
    process = subprocess.Popen(command)
    try:
        for _ in range(1_000_000):
            try:
                socket.create_connection(("127.0.0.1", port), 20).close()
                break
            except ConnectionRefusedError:
                assert process.poll() is None
        yield port
    finally:
        process.terminate()
        process.wait(20)
