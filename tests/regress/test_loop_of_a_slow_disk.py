"""A server's event loop goes on while other threads of its program wait for their syncs."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.helddisk import WAIT_SECONDS, HeldDisk

from interop.rawclient import RawClient
from interop.serving import Serving
from logweir.replication.bucket import feed
from logweir.replication.greenstack.client import Client as GreenstackClient
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.server import Server, ServerOptions
from logweir.replication.synapse.serve.protocol import SynapseProtocol
from logweir.replication.tank.client import Client as TankClient
from logweir.replication.topic.spaces import CONSUMER_SPACE
from logweir.wal.mp import pack

SELECT, REPLACE = 1, 3
_LOOP_SECONDS = 10.0
"""Behind them a loop stands still."""


class Program:
    """A server with a space `t`, in a program whose threads use the same store."""

    def __init__(self, folder: Path, address: str) -> None:
        self.disk = HeldDisk()
        self.serving = Serving(
            folder,
            listen=[parse_listen_url(address)],
            guest="all",
            open_options={"filesystem": self.disk, "write_ahead": 0},
        )
        self.threads = ThreadPoolExecutor(4)

    def __enter__(self) -> Program:
        self.serving.__enter__()
        self.log = self.serving.log
        self.log.create_space("t", [("id", "unsigned")])
        self.log.insert("t", [0])
        return self

    def __exit__(self, *_: Any) -> None:
        self.disk.go.set()
        self.threads.shutdown()
        self.serving.__exit__(None, None, None)

    @contextmanager
    def held(self, work: Callable[[], object]) -> Iterator[None]:
        """A thread of the program does it, and its sync does not end before the block does."""
        self.disk.waits.clear()
        self.disk.go.clear()
        working = self.threads.submit(work)
        assert self.disk.waits.wait(WAIT_SECONDS)
        try:
            yield
            assert not working.done()
        finally:
            self.disk.go.set()
        working.result(WAIT_SECONDS)

    def transact(self) -> None:
        """A change of the program, whose place in line is free while it is synced."""
        with self.log.transaction() as tx:
            tx.replace("t", [1])

    def state(self) -> None:
        """One that keeps its place in line."""
        self.log.replace("t", [1])

    def retain(self) -> None:
        """What keeps logs, in a file of its own."""
        self.log.retain("somebody", self.log.vclock)

    def look(self, times: int = 3) -> None:
        """The loop goes on; what has come to it until now it has dealt with."""
        for _ in range(times):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.serving._loop).result(
                _LOOP_SECONDS
            )

    @property
    def kept(self) -> set[str]:
        """For whom logs are kept."""
        return set(self.log.inner.checkpoints._followers)

    @property
    def lined(self) -> int:
        """How many changes of clients wait."""
        return self.serving.server.shared._in_line


@pytest.fixture
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Program]:
    with Program(tmp_path, request.param) as made:
        yield made


def iproto(program: Program) -> tuple[Callable[[], None], Callable[[], object]]:
    """What sends a change, and what waits for its answer."""
    client = RawClient(program.serving.port)
    number = program.log.schema.space("t").id

    def send() -> None:
        client.send(client.frame(REPLACE, pack({0x10: number, 0x21: [7]})))

    def answered() -> None:
        assert not client.receive().is_error
        client.socket.close()

    return send, answered


def memcached(program: Program) -> tuple[Callable[[], None], Callable[[], object]]:
    client = socket.create_connection(("127.0.0.1", program.serving.port), timeout=20)

    def answered() -> None:
        assert client.recv(100) == b"STORED\r\n"
        client.close()

    return lambda: client.sendall(b"set key 0 0 1\r\nx\r\n"), answered


WRITERS = {"tarantool": iproto, "memcached": memcached}


@pytest.mark.parametrize("of", ["transact", "state"])
@pytest.mark.parametrize(
    ("program", "writer"),
    [(f"{scheme}://:0", make) for scheme, make in WRITERS.items()],
    ids=list(WRITERS),
    indirect=["program"],
)
def test_changes_of_clients_wait_for_a_program_and_nobody_else_does(
    program: Program, writer: Callable[[Program], tuple[Any, Any]], of: str
) -> None:
    """They are made behind the program's, and answered then."""
    for is_held in (False, True):
        send, answer = writer(program)
        if is_held:
            with program.held(getattr(program, of)):
                send()
                program.serving.wait(lambda: program.lined)
                program.look()
                assert program.lined == 1
        else:
            send()
        answer()
    assert program.log.count("t") >= 2


def start(program: Program, work: Awaitable[Any]) -> Any:
    """Have a client do it in a thread of its own."""

    async def run() -> Any:
        return await work

    return program.threads.submit(lambda: asyncio.run(run()))


@pytest.mark.parametrize("program", ["tank://:0"], indirect=True)
def test_the_first_place_of_a_consumer_waits_alone(program: Program) -> None:
    """Two spaces are made for it."""
    url = f"tank://127.0.0.1:{program.serving.port}"

    async def commit(message: bool) -> Any:
        async with TankClient(url) as client:
            if message:
                await client.create_topic("events")
                async with client.producer() as producer:
                    await producer.send("events", b"one")
            async with client.consumer("events", group="g", start="begin") as consumer:
                async for _ in consumer:
                    break
                if not message:
                    begun.set()
                    await consumer.commit()
                return await consumer.committed()

    begun = threading.Event()
    assert asyncio.run(commit(message=True)) == {}
    with program.held(program.transact):
        committed = start(program, commit(message=False))
        assert begun.wait(WAIT_SECONDS)
        program.serving.wait(lambda: program.lined)
        program.look()
        assert not committed.done()
    assert committed.result(WAIT_SECONDS) == {0: 2}
    assert program.log.count(CONSUMER_SPACE) == 1


@pytest.mark.parametrize("program", ["greenstack://:0"], indirect=True)
def test_what_exists_is_given_once_its_log_is_kept(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another thread writes down whose logs are kept; the first part of it is not all."""
    monkeypatch.setattr(feed, "BACKFILL_CHUNK_ITEMS", 1)

    async def read() -> list[str]:
        async with GreenstackClient(f"greenstack://127.0.0.1:{program.serving.port}") as client:
            await client.select("default")
            await client.set(b"key", b"value")
            await client.set(b"second", b"value")
            begun.set()
            await asyncio.to_thread(go_on.wait, WAIT_SECONDS)
            async with client.follow(b"name", snapshot=True, follow=False) as steps:
                return [type(step).__name__ async for step in steps]

    begun, go_on = threading.Event(), threading.Event()

    reading = start(program, read())
    assert begun.wait(WAIT_SECONDS)
    with program.held(program.retain):
        go_on.set()
        program.serving.wait(program.serving.server.shared.retention._busy.locked)
        program.look()
        assert not reading.done()
    steps = dict.fromkeys(reading.result(WAIT_SECONDS))
    assert list(steps) == ["SnapshotBegins", "Rows", "SnapshotEnds", "CaughtUp"]
    program.serving.wait(lambda: program.kept == {"somebody"})


@pytest.mark.parametrize("program", ["synapse://:0?keep=1"], indirect=True)
def test_an_acknowledgement_is_kept_behind_others(program: Program) -> None:
    """While another thread writes down whose logs are kept."""
    protocol = program.serving.server.protocol("synapse")
    assert isinstance(protocol, SynapseProtocol)
    token = program.log.vclock.signature
    with socket.create_connection(("127.0.0.1", program.serving.port)) as client:
        with program.held(program.retain):
            client.sendall(f"NAME shop\nFEDERATION_ACK {token}\n".encode())
            program.serving.wait(protocol.made[0]._keeping.locked)
            program.look()
            assert program.kept == set()
        program.serving.wait(lambda: program.kept == {"somebody", "synapse:shop"})


@pytest.mark.parametrize("scheme", ["tap", "greenstack"])
@pytest.mark.parametrize("program", ["tarantool://:0"], indirect=True)
def test_a_source_waits_alone_for_its_bucket(program: Program, scheme: str) -> None:
    """It is made before the first connection."""
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        port = upstream.getsockname()[1]
        runner = program.serving.server.runner(parse_url(f"{scheme}://127.0.0.1:{port}/b"))
        with program.held(program.transact):
            running = asyncio.run_coroutine_threadsafe(runner.run(), program.serving._loop)
            program.look()
            assert program.log.schema.get("b") is None
        upstream.settimeout(WAIT_SECONDS)
        upstream.accept()[0].close()
        assert program.log.schema.get("b") is not None
        running.cancel()


@pytest.mark.parametrize("address", ["memcached://:0/other", "greenstack://:0"])
@pytest.mark.parametrize("program", ["tarantool://:0"], indirect=True)
def test_a_listener_that_is_added_waits_alone(program: Program, address: str) -> None:
    """Spaces are made for it; the loop serves others meanwhile, and those of the new one behind."""
    made: list[Server] = []

    async def add() -> int | None:
        made.append(Server(program.log, ServerOptions(listen=[parse_listen_url(address)])))
        (url,) = await made[0].start()
        return url.port

    client = RawClient(program.serving.port)
    number = program.log.schema.space("t").id
    with program.held(program.transact):
        adding = asyncio.run_coroutine_threadsafe(add(), program.serving._loop)
        program.look()
        client.send(client.frame(SELECT, pack({0x10: number, 0x11: 0, 0x12: 10, 0x20: [0]})))
        assert not client.receive().is_error
        assert not adding.done()
    port = adding.result(WAIT_SECONDS)
    client.socket.close()
    socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS).close()
    asyncio.run_coroutine_threadsafe(made[0].stop(), program.serving._loop).result(WAIT_SECONDS)
