"""A server of the S3 protocol, moto's, as a process on loopback, with one bucket."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.ports import free_port
from support.waiting import until

__all__ = ["object_store", "s3_url"]


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


@contextmanager
def object_store() -> Iterator[int]:
    """The server, which holds what it is given in memory. Its port."""
    port = free_port()
    words = ["-P", str(Path(__file__).with_name("objectserver.py")), str(port)]
    with subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            until(lambda: _answers(port), 60)
            request = urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT")
            urllib.request.urlopen(request, timeout=60).close()
            yield port
        finally:
            server.kill()


def s3_url(port: int, prefix: str) -> str:
    """The address of a prefix of the bucket, with keys that must never be shown."""
    options = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    return f"s3://key:hidden-secret@bucket/{prefix}?{options}"
