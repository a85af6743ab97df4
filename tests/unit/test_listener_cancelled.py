"""Listening that is cancelled, wherever it waits, or fails: nothing is left of it."""

from __future__ import annotations

import asyncio
import socket
from itertools import count
from pathlib import Path

import pytest
from unit.test_replication_turns import Service

import logweir
from logweir.replication.listener import Listener
from logweir.replication.metrics import Metrics
from logweir.replication.protocols import parse_listen_url
from logweir.replication.server import Server, ServerOptions
from logweir.replication.urls import Url


async def _cancelled(url: Url, steps: int) -> bool:
    """Listen, and cancel that after so many steps of the loop. Whether it came to its end."""
    listener = Listener(metrics=Metrics())
    listening = asyncio.ensure_future(
        listener.listen(url, Service(lambda conversation, data: None))
    )
    for _ in range(steps):
        await asyncio.sleep(0)
    is_done = listening.done()
    listening.cancel()
    await asyncio.wait((listening,))
    if not is_done:
        assert listening.cancelled()
        assert not listener.urls
    await listener.close()
    return is_done


def test_no_socket_is_left() -> None:
    """Each run listens at the address of the one before."""

    async def main() -> int:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        url = parse_listen_url(f"tank://127.0.0.1:{port}")
        return [await _cancelled(url, steps) for steps in range(9)].index(True)

    assert asyncio.run(main()) > 1


def test_no_file_of_a_unix_socket_is_left(tmp_path: Path) -> None:
    """A thread makes it, and is waited for at the end of each loop."""
    path = tmp_path / "socket"
    url = parse_listen_url(f"tank://unix/:{path}")
    for steps in count():
        is_done = asyncio.run(_cancelled(url, steps))
        assert not path.exists()
        if is_done:
            break
    assert steps > 1


class Broken(Server):
    """One that gets no further than its listeners."""

    async def _listen_to_browsers(self) -> None:
        raise RuntimeError("can't start new thread")


def test_a_start_that_fails_leaves_no_listener(tmp_path: Path) -> None:
    """Whatever it fails of."""

    async def main(log: logweir.Log) -> None:
        server = Broken(log, ServerOptions(listen=[parse_listen_url("tank://:0")], guest="all"))
        with pytest.raises(RuntimeError):
            await server.start()
        assert server.urls == ()

    with logweir.open(tmp_path) as log:
        asyncio.run(main(log))
