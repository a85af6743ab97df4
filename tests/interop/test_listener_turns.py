"""One request that takes long is divided: others are answered between its parts.

Server and clients share one event loop, and what is asked second is answered first only if the
server gave the loop up in between.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.tapmodel import asked

import logweir
from interop.gsraw import mutation
from logweir.limits import TURN_SECONDS
from logweir.replication.bucket.item import Item
from logweir.replication.bucket.joint import look_all
from logweir.replication.bucket.store import Buckets
from logweir.replication.greenstack.client import Client as Documents
from logweir.replication.greenstack.follow.incoming import Rows as Changed
from logweir.replication.greenstack.server_session import ServerSession
from logweir.replication.greenstack.wire.codec import Flag, Frame, decode_frames, encode_frame
from logweir.replication.greenstack.wire.codec import Opcode as Green
from logweir.replication.greenstack.wire.messages import Hello, encode_bucket
from logweir.replication.iproto.wire.codec import RequestType, frame
from logweir.replication.iproto.wire.requests import encode_request
from logweir.replication.memcached.client import TapStream
from logweir.replication.memcached.serve.runs import Commands
from logweir.replication.memcached.wire.codec import Opcode, Packet
from logweir.replication.memcached.wire.messages import Connect, Option
from logweir.replication.outgoing.spacefeed import CHUNK_ITEMS, SpaceFeed
from logweir.replication.protocols import parse_listen_url
from logweir.replication.server import Server, ServerOptions
from logweir.store.commit.jobs import Job
from logweir.wal.mp import pack, unpack

ROWS = 300_000
GREETING = 128
ALL = 2
SPACE = 512
PING = encode_request(RequestType.PING, 7, {})


def select(**how: int) -> bytes:
    body = {0x10: SPACE, 0x11: 0, 0x12: 2**32 - 1, 0x13: 0, 0x14: ALL, 0x20: []}
    body |= {{"limit": 0x12, "offset": 0x13}[name]: value for name, value in how.items()}
    return encode_request(RequestType.SELECT, 1, body)


class Peer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, server: Server) -> Peer:
        url = server.listener.urls[0]
        peer = cls(*await asyncio.open_connection(url.host, url.port))
        await peer.reader.readexactly(GREETING)
        return peer

    def send(self, *requests: bytes) -> None:
        self.writer.write(b"".join(requests))

    async def answer(self) -> tuple[int, Any]:
        """The sync of the next one, and its data; of an error its text."""
        head = await self.reader.readexactly(5)
        frame = await self.reader.readexactly(int.from_bytes(head[1:], "big"))
        header, body = frame[:23], frame[23:]
        found = unpack(body) if body else {}
        return unpack(header)[1], found.get(0x30, found.get(0x31))

    async def answers(self, count: int) -> list[tuple[int, Any]]:
        """So many of the next ones."""
        return [await self.answer() for _ in range(count)]


def serve(
    folder: Path,
    main: Callable[[Server], Coroutine[Any, Any, None]],
    scheme: str = "tarantool",
) -> None:
    async def run(log: logweir.Log) -> None:
        listen = (parse_listen_url(f"{scheme}://127.0.0.1:0"),)
        server = Server(log, ServerOptions(listen=listen, guest="all"))
        await server.start()
        try:
            async with asyncio.timeout(60):
                await main(server)
        finally:
            await server.stop()

    with logweir.open(folder, durability="write") as log:
        asyncio.run(run(log))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a space of many tuples; nobody changes what is in it."""
    folder = tmp_path_factory.mktemp("turns") / "s"
    with logweir.open(folder, durability="write") as log:
        log.create_space("many", format=[("id", "unsigned"), ("text", "string")])
        rows = [(number, "x") for number in range(ROWS)]
        log.append("many", rows, one_transaction=False)
    return folder


LONG = {
    "offset": (select(offset=ROWS - 1), [[ROWS - 1, "x"]]),
    "large": (select(limit=200_000), [[number, "x"] for number in range(200_000)]),
}


@pytest.mark.parametrize("case", LONG)
@pytest.mark.parametrize("behind", [False, True], ids=["alone", "behind a change"])
def test_a_long_select_lets_others_be_answered(many: Path, case: str, behind: bool) -> None:
    """Also where it stands behind a change, which it reads; what comes behind it waits for it."""
    request, expected = LONG[case]
    change = encode_request(RequestType.REPLACE, 5, {0x10: SPACE, 0x21: [0, "x"]})

    async def main(server: Server) -> None:
        long, other = await Peer.to(server), await Peer.to(server)
        with closing(long.writer), closing(other.writer):
            long.send(*[change] * behind, request, select(limit=1))
            if behind:
                assert await long.answer() == (5, [[0, "x"]])
            answering = asyncio.ensure_future(long.answer())
            other.send(PING)
            assert await other.answer() == (7, None)
            assert not answering.done()
            assert await answering == (1, expected)
            assert await long.answer() == (1, [[0, "x"]])

    serve(many, main)


def test_many_long_selects_of_one_read_do_not_keep_the_loop(many: Path) -> None:
    """200 SELECTs that pass 300,000 tuples each come together: the other one's PINGs are answered
    between them, and so is a SELECT of it."""

    async def main(server: Server) -> None:
        long, other = await Peer.to(server), await Peer.to(server)
        with closing(long.writer), closing(other.writer):
            long.send(select(offset=ROWS) * 200)
            first = asyncio.ensure_future(long.answer())
            other.send(PING)
            assert await other.answer() == (7, None)
            assert not first.done()
            other.send(select(limit=1))
            assert await other.answer() == (1, [[0, "x"]])
            assert [await first] + [await long.answer() for _ in range(3)] == [(1, [])] * 4

    serve(many, main)


def in_stream(kind: int, body: dict[int, Any] | None = None) -> bytes:
    """A request of the first stream."""
    return frame(pack({0: kind, 1: 3, 0x0A: 1}) + pack(body or {}))


def test_a_long_select_of_a_transaction_lets_others_be_answered(many: Path) -> None:
    """It reads what the transaction has changed, counts as read at COMMIT, and its view lives on
    until its end where the transaction is to rest meanwhile. There are several: what the others
    ask for is done in another thread, which may get its turn late."""
    selects = 10
    body = {0x10: SPACE, 0x11: 0, 0x12: 2**32 - 1, 0x13: ROWS - 1, 0x14: ALL, 0x20: []}
    change = encode_request(RequestType.REPLACE, 5, {0x10: SPACE, 0x21: [0, "x"]})
    conflict = "Transaction has been aborted by conflict"

    async def main(server: Server) -> None:
        long, other = await Peer.to(server), await Peer.to(server)
        with closing(long.writer), closing(other.writer):
            for expected in (None, conflict):
                long.send(in_stream(RequestType.BEGIN))
                assert await long.answer() == (3, None)
                long.send(
                    in_stream(RequestType.REPLACE, {0x10: SPACE, 0x21: [ROWS - 1, "y"]}),
                    *[in_stream(RequestType.SELECT, body)] * selects,
                    in_stream(RequestType.COMMIT),
                )
                assert await long.answer() == (3, [[ROWS - 1, "y"]])
                answering = asyncio.ensure_future(long.answers(selects))
                if expected:
                    last = {0x10: SPACE, 0x21: [ROWS, "z"]}
                    other.send(change, encode_request(RequestType.REPLACE, 6, last))
                    assert await other.answer() == (5, [[0, "x"]])
                    assert await other.answer() == (6, [[ROWS, "z"]])
                else:
                    other.send(PING)
                    assert await other.answer() == (7, None)
                assert not answering.done()
                assert await answering == [(3, [[ROWS - 1, "y"]])] * selects
                assert await long.answer() == (3, expected)
            undo = {0x10: SPACE, 0x11: 0, 0x20: [ROWS]}
            restore = {0x10: SPACE, 0x21: [ROWS - 1, "x"]}
            other.send(encode_request(RequestType.DELETE, 8, undo))
            other.send(encode_request(RequestType.REPLACE, 9, restore))
            assert (await other.answer())[0] == 8
            assert (await other.answer())[0] == 9

    serve(many, main)


FOLLOWER = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as peer:
    peer.recv(128)
    peer.sendall(bytes.fromhex(sys.argv[2]))
    taken = 0
    while taken < 65536:
        taken += len(peer.recv(65536))
    print(flush=True)
    while peer.recv(1 << 20):
        pass
"""


def test_a_fast_follower_does_not_keep_the_loop(many: Path) -> None:
    """One that takes all it is sent, in a process of its own, catches up while others are
    answered."""
    body: dict[int, Any] = {0x24: str(uuid.UUID(int=1)), 0x26: {}, 0x06: 132608, 0x50: True}
    request = encode_request(RequestType.SUBSCRIBE, 1, body)

    async def main(server: Server) -> None:
        other = await Peer.to(server)
        given = str(server.listener.urls[0].port), request.hex()
        follower = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FOLLOWER, *given, stdout=asyncio.subprocess.PIPE
        )
        with closing(other.writer):
            assert follower.stdout is not None
            await follower.stdout.readline()
            other.send(PING)
            assert await other.answer() == (7, None)
        sent = max(link.sent_bytes for link in server.listener.links)
        follower.kill()
        await follower.wait()
        assert sent < ROWS * 30  # of about 40 bytes each; buffers of the system take some

    serve(many, main)


@pytest.mark.parametrize("scheme", ["memcached", "greenstack", "greenstack?unwanted"])
def test_what_a_space_holds_is_given_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """To a follower that has it in the shape of a bucket: a few rows at a time, also of those that
    it does not want."""
    count, made = 3000, [0]  # rows, in each turn of the loop
    shaped = SpaceFeed._item

    def counted(*given: Any) -> Item:
        made[-1] += 1
        return shaped(*given)

    monkeypatch.setattr(SpaceFeed, "_item", counted)
    with logweir.open(tmp_path, durability="write") as log:
        log.create_space("s", format=[("id", "unsigned"), ("text", "string")])
        log.append("s", [(number, "x") for number in range(count)])

    def followed(url: str) -> int:
        with TapStream(f"{url}/space:s", Connect(b"", Option.DUMP), idle_seconds=20) as stream:
            return sum(one.opcode == Opcode.TAP_MUTATION for one in stream)

    async def main(server: Server) -> None:
        loop = asyncio.get_running_loop()

        def turn() -> None:
            made.append(0)
            loop.call_soon(turn)

        url, got = server.listener.urls[0], 0
        loop.call_soon(turn)
        if url.scheme == "memcached":
            got = await asyncio.to_thread(followed, f"tap://{url.host}:{url.port}")
        else:
            prefix = b"no key" if scheme.endswith("unwanted") else b""
            ask = {"snapshot": True, "follow": False, "buckets": ["space:s"], "prefix": prefix}
            async with Documents(str(url)) as client, client.follow(b"f", **ask) as steps:
                async for step in steps:
                    got += len(step.changes) if isinstance(step, Changed) else 0
        assert got == (0 if scheme.endswith("unwanted") else count)

    serve(tmp_path, main, scheme.partition("?")[0])
    assert sum(made) == count
    assert max(made) <= CHUNK_ITEMS


def test_an_index_of_a_large_space_is_not_made_in_the_loop(many: Path) -> None:
    """However little is sent for it."""
    row = [SPACE, 1, "second", "tree", {"unique": False}, [[1, "string"]]]
    make = encode_request(RequestType.INSERT, 3, {0x10: 288, 0x21: row})
    drop = encode_request(RequestType.DELETE, 4, {0x10: 288, 0x11: 0, 0x20: [SPACE, 1]})

    async def main(server: Server) -> None:
        long, other = await Peer.to(server), await Peer.to(server)
        with closing(long.writer), closing(other.writer):
            long.send(make)
            making = asyncio.ensure_future(long.answer())
            answered = 0
            while not making.done():
                other.send(PING)
                assert await other.answer() == (7, None)
                answered += 1
            assert answered > 5
            assert await making == (3, [row])
            long.send(drop)
            assert await long.answer() == (4, [row])

    serve(many, main)


def burn(seconds: float = TURN_SECONDS) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_what_is_done_together_is_answered_in_turns(tmp_path: Path) -> None:
    """Who waits in the loop goes on between the answers to changes that became durable at once."""
    turns = 0
    told: list[int] = []

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main(server: Server) -> None:
        done, are_durable = asyncio.Event(), threading.Event()

        def answer(job: Job) -> None:
            burn()
            told.append(turns)
            if len(told) == 8:
                done.set()

        counting = asyncio.create_task(others())
        for number in range(8):
            job = Job(lambda group: None, quick_bytes=0)
            job.waiter = are_durable if number == 7 else None
            server.shared.submit(job, answer)
        await asyncio.sleep(0)  # they are in line then
        assert are_durable.wait(30)
        await done.wait()
        counting.cancel()
        assert len(set(told)) > 3

    serve(tmp_path / "s", main, "tank")


async def frames(reader: asyncio.StreamReader, count: int) -> list[Frame]:
    """So many of Greenstack's, all with the status of success."""
    found = []
    for _ in range(count):
        head = await reader.readexactly(4)
        data = head + await reader.readexactly(int.from_bytes(head, "big"))
        ((frame,), _, _, problem) = decode_frames(data)
        assert problem is None
        assert frame.status == 0
        found.append(frame)
    return found


def test_a_large_transaction_is_answered_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Greenstack: another one is answered while its answers are made, which stay in order."""
    made = 0
    answer = ServerSession.answer

    def slowly(self: ServerSession, request: Frame, *more: Any) -> None:
        nonlocal made
        made += request.opcode == Green.MUTATION
        burn(TURN_SECONDS / 10)
        answer(self, request, *more)

    monkeypatch.setattr(ServerSession, "answer", slowly)
    hello = encode_frame(Frame(Green.HELLO, payload=Hello("test", "1", "", ()).encode()))
    select = encode_frame(Frame(Green.SELECT_BUCKET, payload=encode_bucket("default")))
    requests = [
        mutation(b"k%d" % number, opaque=number, flags=Flag.MORE if number < 999 else 0)
        for number in range(1000)
    ]

    async def main(server: Server) -> None:
        url = server.listener.urls[0]
        long = await asyncio.open_connection(url.host, url.port)
        other = await asyncio.open_connection(url.host, url.port)
        with closing(long[1]), closing(other[1]):
            for reader, writer in (long, other):
                writer.write(hello + select)
                assert len(await frames(reader, 2)) == 2
            long[1].write(b"".join(map(encode_frame, requests)))
            answered = await frames(long[0], 1)
            other[1].write(encode_frame(Frame(Green.NOOP)))
            await frames(other[0], 1)
            assert made < 1000
            answered += await frames(long[0], 999)
            assert [frame.opaque for frame in answered] == list(range(1000))

    serve(tmp_path / "s", main, "greenstack")


def test_expensive_commands_of_one_turn_are_divided(tmp_path: Path) -> None:
    """Of memcached's commands those behind a turn's work are left; each client has one answered."""

    def look(part: Commands, packet: Packet) -> bytes:
        burn()
        return b"x"

    one, other = asked([Packet(Opcode.STAT)] * 20), asked([Packet(Opcode.STAT)] * 20)
    with logweir.open(tmp_path) as log:
        buckets = Buckets(log)
        look_all([one, other], buckets, buckets.make("b"), 0.0, look, [])
    assert 1 <= len(one.fresh) < 10
    assert len(one.left) == 20 - len(one.fresh)
    assert len(other.fresh) == 1


def test_what_several_ask_for_in_one_turn_is_answered_in_the_order_of_each(tmp_path: Path) -> None:
    """Reads of memcached's clients are joined, and changes, too: neither overtakes what the same
    client asked for before; also behind a change of another client, and over a text line."""

    async def got(reader: asyncio.StreamReader) -> list[bytes]:
        lines = [await reader.readline()]
        while lines[-1] != b"END\r\n":
            lines.append(await reader.readline())
        return lines[1:-1]

    async def main(server: Server) -> None:
        url = server.listener.urls[0]
        one, other = [await asyncio.open_connection(url.host, url.port) for _ in range(2)]
        with closing(one[1]), closing(other[1]):
            for number in range(10):
                value = b"%d\r\n" % number
                other[1].write(b"set k 0 0 1\r\nx\r\n")
                one[1].write(b"get k\r\nversion\r\nset k 0 0 1\r\n" + value)
                one[1].write(b"get k\r\nversion\r\nget k\r\n")
                assert value not in await got(one[0])
                assert (await one[0].readline()).startswith(b"VERSION")
                assert await one[0].readline() == b"STORED\r\n"
                assert await got(one[0]) == [value]
                assert (await one[0].readline()).startswith(b"VERSION")
                assert await got(one[0]) == [value]
                assert await other[0].readline() == b"STORED\r\n"

    serve(tmp_path / "s", main, "tap")
