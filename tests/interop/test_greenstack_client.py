"""Our client and our source against our server, also through a proxy that breaks off."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_port

import logweir
from interop.gsraw import RawClient, mutation, vbucket
from interop.serving import Serving
from logweir.errors import PeerRefused, Unreachable
from logweir.replication.bucket.store import Buckets
from logweir.replication.greenstack.client import Client, Put, Remove
from logweir.replication.greenstack.follow.incoming import (
    CaughtUp,
    Rows,
    SnapshotBegins,
    SnapshotEnds,
)
from logweir.replication.greenstack.wire.codec import (
    Flag,
    Frame,
    FrameBuffer,
    Opcode,
    Status,
    encode_answer,
    encode_frame,
)
from logweir.replication.greenstack.wire.messages import (
    HelloAnswer,
    NoticeCode,
    Operation,
    encode_remove,
)
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.runner import SourceState, Timing
from logweir.replication.service import users
from logweir.replication.stream import positions
from logweir.store.schema.access import Privilege


def serve(folder: Path, **options: Any) -> Serving:
    """A server of buckets that lets guests do everything."""
    options.setdefault("guest", "all")
    return Serving(folder, listen=[parse_listen_url("greenstack://:0")], **options)


def with_client(port: int, work: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    """Run `work` with a client in its own loop."""

    async def main() -> None:
        url = f"greenstack://127.0.0.1:{port}/default"
        async with Client(url, **options) as client:
            await work(client)

    asyncio.run(main())


def test_documents(tmp_path: Path) -> None:
    """Every operation, CAS, transactions, quiet runs, and what is refused."""

    async def work(client: Client) -> None:
        assert await client.get(b"k") is None
        first = await client.set(b"k", b"1", flags=7, datatype=1)
        found = await client.get(b"k")
        assert found is not None
        assert (found.value, found.flags, found.datatype, found.cas) == (b"1", 7, 1, first.cas)
        with pytest.raises(PeerRefused) as refused:
            await client.set(b"k", b"2", cas=first.cas + 1)
        assert refused.value.result == Status.ALREADY_EXISTS
        await client.put(Put(b"k", b"23", Operation.APPEND))
        await client.put(Put(b"k", b"0", Operation.PREPEND), lane=b"l", priority=1)
        with pytest.raises(PeerRefused, match="no bucket"):
            await client.get(b"k", lane=b"new")
        await client.remove(b"k")
        assert await client.get(b"k") is None
        answers = await client.transaction([Put(b"a", b"1"), Put(b"b", b"2"), Remove(b"a")])
        assert len({answer.seqno for answer in answers}) == 3
        with pytest.raises(PeerRefused, match="already exists"):
            await client.transaction([Put(b"c", b"1"), Put(b"b", b"2", Operation.ADD)])
        assert await client.get(b"c") is None
        outcome = await client.set_all(
            [Put(b"d", b"1"), Put(b"b", b"", Operation.ADD), Put(b"e", b"2")]
        )
        assert [one and one.result for one in outcome] == [None, Status.ALREADY_EXISTS, None]
        await client.create_bucket("more")
        assert await client.buckets() == ("default", "more")
        await client.select("more")
        assert await client.get(b"d") is None
        await client.delete_bucket("more")

    with serve(tmp_path / "s") as server:
        with_client(server.port, work_in_lane(work))


def work_in_lane(work: Callable[[Client], Awaitable[None]]) -> Callable[[Client], Awaitable[None]]:
    """`work`, with the bucket selected in lane l, too."""

    async def main(client: Client) -> None:
        await client.select("default", lane=b"l")
        connection = await client.connection()
        assert connection.is_open
        with pytest.raises(PeerRefused):
            await client.select("nosuch", lane=b"new")
        await client.select("default", lane=b"new")
        await deselect(client)
        await work(client)

    async def deselect(client: Client) -> None:
        """A lane whose bucket is removed has none."""
        await client.create_bucket("passing")
        await client.select("passing", lane=b"new")
        await client.delete_bucket("passing")

    return main


@pytest.mark.parametrize(
    "mechanism", ["PLAIN", "CRAM-MD5", "SCRAM-SHA-1", "SCRAM-SHA-256", "SCRAM-SHA-512"]
)
def test_logins(tmp_path: Path, mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mechanism lets the right password in, and no other."""
    with logweir.open(tmp_path / "s") as log:
        Buckets(log).make("default")
        users.add_user(log, "ada", password="lovelace")
        users.grant(log, "ada", Privilege.READ | Privilege.WRITE, users.Target())
    monkeypatch.setattr("logweir.replication.service.sasl.MECHANISMS", (mechanism,))

    async def attempt(port: int, password: str) -> None:
        async with Client(f"greenstack://ada:{password}@127.0.0.1:{port}/default") as client:
            await client.set(b"k", b"v")

    with serve(tmp_path / "s", guest="none") as server:
        asyncio.run(attempt(server.port, "lovelace"))
        with pytest.raises(PeerRefused, match="authentication error"):
            asyncio.run(attempt(server.port, "wrong"))


def test_guests_may_do_nothing_until_told(tmp_path: Path) -> None:
    """Not select, not list, not open streams; with write only the default bucket."""
    with (
        serve(tmp_path / "s", guest="none") as server,
        pytest.raises(PeerRefused, match="no access"),
    ):
        with_client(server.port, lambda client: client.set(b"k", b"v"))
    with serve(tmp_path / "s", guest="write") as server:
        Buckets(server.log).make("orders")

        async def work(client: Client) -> None:
            await client.set(b"k", b"v")
            assert await client.buckets() == ("default",)
            with pytest.raises(PeerRefused, match="no access"):
                await client.select("orders")

        with_client(server.port, work)


def test_a_read_only_server_refuses_changes(tmp_path: Path) -> None:
    """ReadOnly to who knows it, NoAccess to others."""
    with serve(tmp_path / "s") as server, RawClient(server.port) as client:
        client.ask(mutation(b"k"))
    with serve(tmp_path / "s", read_only=True) as server:
        with RawClient(server.port) as client:
            assert client.ask(mutation(b"k")).status == Status.READ_ONLY
        with RawClient(server.port, features=()) as client:
            assert client.ask(mutation(b"k")).status == Status.NO_ACCESS


def test_notices(tmp_path: Path) -> None:
    """Ready at the begin, buckets made and removed, and that the server stops."""
    told: list[tuple[int, str]] = []

    async def work(client: Client) -> None:
        await client.create_bucket("new")
        await client.delete_bucket("new")
        await client.buckets()
        serving.append(True)
        stopping.set()
        connection = await client.connection()
        await connection.wait_closed()

    serving: list[bool] = []
    stopping = threading.Event()
    with serve(tmp_path / "s") as server:
        thread = threading.Thread(
            target=with_client,
            args=(server.port, work),
            kwargs={"on_notice": lambda code, text: told.append((code, text))},
        )
        thread.start()
        assert stopping.wait(20)
    thread.join(20)
    codes = [code for code, _ in told]
    assert codes[0] == NoticeCode.READY
    assert (NoticeCode.CONFIGURATION_CHANGED, "new") in told
    assert (NoticeCode.BUCKET_REMOVED, "new") in told
    assert codes[-1] == NoticeCode.SHUTTING_DOWN


def test_changes_come_in_whole_transactions(tmp_path: Path) -> None:
    """A follower that begins with a snapshot holds what the server holds, step by step."""

    async def work(client: Client) -> None:
        await client.set(b"old", b"1")
        async with client.follow(b"f", snapshot=True, window_bytes=4096) as steps:
            kinds = []
            async for step in steps:
                kinds.append(type(step))
                if isinstance(step, CaughtUp):
                    break
            assert kinds == [SnapshotBegins, Rows, SnapshotEnds, CaughtUp]
            puts = [Put(b"t%d" % number, bytes(500)) for number in range(40)]
            await client.transaction(puts)
            step = await anext(steps)
            assert isinstance(step, Rows)
            assert len(step.changes) == 40
            for number in range(50):
                await client.set(b"n%d" % number, bytes(1000))
            for number in range(50):
                step = await anext(steps)
                assert isinstance(step, Rows)
                assert step.changes[0].item is not None
                assert step.changes[0].item.key == b"n%d" % number
            position = step.position
        async with client.follow(b"g", start=position, follow=False) as steps:
            assert [type(step) async for step in steps] == [CaughtUp]

    with serve(tmp_path / "s") as server:
        with_client(server.port, work)


# --- following --------------------------------------------------------------------------------


def items(server: Serving, bucket: str = "default") -> dict[bytes, tuple[Any, ...]]:
    """What a server holds."""
    if server.log.schema.get(bucket) is None:
        return {}
    return {row[0]: tuple(row) for row in server.log.select(bucket)}


def same_items(left: Serving, right: Serving) -> bool:
    """Whether two servers hold the same."""
    return bool(items(left)) and items(left) == items(right)


def follow(folder: Path, port: int, bucket: str = "default") -> Serving:
    """A server that follows another."""
    upstream = parse_url(f"greenstack://127.0.0.1:{port}/{bucket}")
    return serve(folder, follow=[upstream])


def test_a_follower_has_what_its_upstream_has(tmp_path: Path) -> None:
    """Documents before and after, removals, an emptied bucket; its own extra ones go."""
    with logweir.open(tmp_path / "b") as log:
        Buckets(log).make("default")
        log.insert("default", (b"stale", 0, b"x", 0, 0, 1, 0, 0, "", b""))
    with serve(tmp_path / "a") as upstream, RawClient(upstream.port) as client:
        client.send(*(mutation(b"k%03d" % n, b"v%d" % n, flags=Flag.QUIET) for n in range(300)))
        client.barrier()
        with follow(tmp_path / "b", upstream.port) as follower:
            follower.wait(lambda: same_items(upstream, follower))
            client.ask(mutation(b"later", b"1", expiration="2199-01-01T00:00:00Z"))
            with upstream.log.transaction() as tx:
                tx.delete("default", b"k000")
                tx.update("default", b"k001", [("=", 2, b"updated")])
            follower.wait(lambda: same_items(upstream, follower))
            assert items(follower)[b"later"][8] == "2199-01-01T00:00:00Z"
            rows = follower.log.vclock
            upstream.log.truncate("default")
            client.ask(mutation(b"end"))
            follower.wait(lambda: same_items(upstream, follower))
            assert follower.log.vclock.signature > rows.signature


def test_a_follower_goes_on_after_restarts(tmp_path: Path) -> None:
    """Nothing is taken twice, though both sides come and go."""
    with serve(tmp_path / "a") as upstream, RawClient(upstream.port) as client:
        for turn in range(3):
            client.ask(mutation(b"k%d" % turn))
            with follow(tmp_path / "b", upstream.port) as follower:
                follower.wait(lambda f=follower: same_items(upstream, f))
        with logweir.open(tmp_path / "b") as log:
            assert bucket_rows(log) == [b"k0", b"k1", b"k2"]


def bucket_rows(log: logweir.Log) -> list[bytes]:
    """The keys of all rows of the bucket in the log, in order."""
    number = log.schema.space("default").id
    rows = [row for transaction in log.rows() for row in transaction.rows]
    told = [row.decoded() for row in rows if row.body and row.space_id == number]
    return [(one.get("tuple") or one["key"])[0] for one in told]


def test_two_servers_may_follow_each_other(tmp_path: Path) -> None:
    """Changes of each are in both, and do not go round for ever."""
    port = free_port()
    with follow(tmp_path / "a", port) as left:
        source = parse_url(f"greenstack://127.0.0.1:{left.port}/default")
        listen = [parse_listen_url(f"greenstack://:{port}")]
        with Serving(tmp_path / "b", listen=listen, guest="all", follow=[source]) as right:
            sides = (left, right)
            right.wait(lambda: all(one.server.is_caught_up for one in sides), 40)
            for server, key in zip(sides, (b"here", b"there"), strict=True):
                with RawClient(server.port) as client:
                    client.ask(mutation(key))
            for one in sides:
                one.wait(lambda one=one: set(items(one)) == {b"here", b"there"})
            with RawClient(left.port) as client:
                gone = encode_remove(b"there", 0)
                client.ask(Frame(Opcode.REMOVE, payload=gone, flex=vbucket(0)))
            for one in sides:
                one.wait(lambda one=one: set(items(one)) == {b"here"})
            for one in sides:
                assert sorted(bucket_rows(one.log)) == [b"here", *[b"there"] * 3]


def test_a_server_without_the_extension_is_told(tmp_path: Path) -> None:
    """The source stops for good, and says why."""
    with plain_server() as port, follow(tmp_path / "b", port) as follower:
        runner = follower.server.runners[0]
        follower.wait(lambda: runner.status.state == SourceState.STOPPED)
        assert "does not offer change streams" in runner.status.last_error
        assert "demo" in runner.status.last_error


def test_a_follower_whose_server_ends_is_told_only_that(tmp_path: Path) -> None:
    """Nothing that it asked for was under way: there is nothing whose end is not known."""
    with ExitStack() as stack:
        with serve(tmp_path / "a") as server:
            follower = stack.enter_context(follow(tmp_path / "b", server.port))
            runner = follower.server.runners[0]
            follower.wait(lambda: runner.status.state == SourceState.FOLLOWING)
        follower.wait(lambda: runner.status.state == SourceState.WAITING)
        assert runner.status.last_error
        assert "whether" not in runner.status.last_error


@contextmanager
def plain_server() -> Iterator[int]:
    """A Greenstack server that knows HELLO and SELECT_BUCKET only."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with listener:
            peer, _ = listener.accept()
            buffer = FrameBuffer()
            with peer:
                while data := peer.recv(65536):
                    for frame in buffer.feed(data)[0]:
                        hello = HelloAnswer("demo", "1", "").encode()
                        peer.sendall(
                            encode_answer(frame, 0, hello if frame.opcode == Opcode.HELLO else b"")
                        )

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    thread.join(10)


class Breaking:
    """A proxy that ends the n-th connection after n frames of the server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._carry(client, self.connections)

    def _carry(self, client: socket.socket, frames: int) -> None:
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            up = threading.Thread(target=_copy, args=(client, server), daemon=True)
            up.start()
            buffer = FrameBuffer()
            left = frames
            while left and (data := _read(server)):
                for frame in buffer.feed(data)[0]:
                    if left:
                        client.sendall(encode_frame(frame))
                        left -= 1
            for one in (client, server):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            up.join(5)

    def close(self) -> None:
        """Take no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _read(peer: socket.socket) -> bytes:
    try:
        return peer.recv(65536)
    except OSError:
        return b""


def _copy(source: socket.socket, target: socket.socket) -> None:
    while data := _read(source):
        try:
            target.sendall(data)
        except OSError:
            return


def test_a_connection_that_breaks_at_any_frame_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th attempt is cut after n frames: in HELLO, snapshot, transactions and between."""
    timing = Timing(first_seconds=0.01, max_seconds=0.01)
    monkeypatch.setattr("logweir.replication.server.Timing", lambda **options: timing)
    with serve(tmp_path / "a") as upstream, RawClient(upstream.port) as client:
        for number in range(10):
            client.ask(mutation(b"old%d" % number, b"1"))
        proxy = Breaking(upstream.port)
        with follow(tmp_path / "b", proxy.port) as follower:
            follower.wait(lambda: same_items(upstream, follower))
            for number in range(10):
                more = [mutation(b"t%d" % n, b"%d" % number, flags=Flag.MORE) for n in range(5)]
                client.send(*more, mutation(b"old%d" % number, b"2"))
                client.barrier()
            source = f"greenstack://127.0.0.1:{proxy.port}/default"
            place = ("greenstack", "default")
            follower.wait(lambda: positions.position(follower.log, source, *place))
            follower.wait(lambda: same_items(upstream, follower), 40)
        proxy.close()
        assert proxy.connections > 15


def test_unreachable_is_told() -> None:
    """A port where nobody listens."""
    port = free_port()
    with pytest.raises(Unreachable):
        with_client(port, lambda client: client.set(b"k", b"v"))
