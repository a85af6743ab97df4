"""Reads that are answered from their bytes get what those get that know every request.

The same random bytes, in random portions, go to two servers, in one of which nothing is answered
so; among the reads are changes, odd requests, ones of spaces that may not be read, expired items
and items of other vbuckets.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random
from struct import unpack_from
from typing import Any

import pytest

from interop.serving import Serving
from logweir.replication.greenstack.serve import endpoint as greenstack_endpoint
from logweir.replication.greenstack.wire import codec as greenstack
from logweir.replication.greenstack.wire.messages import Hello, encode_bucket, encode_get
from logweir.replication.iproto.serve import instance as iproto_instance
from logweir.replication.iproto.wire.codec import frame
from logweir.replication.iproto.wire.requests import encode_request
from logweir.replication.memcached.serve import reads as memcached_reads
from logweir.replication.memcached.wire import codec as memcached
from logweir.replication.protocols import parse_listen_url
from logweir.replication.service import users
from logweir.store.engine.reader import PlainRequests
from logweir.store.schema.access import Privilege
from logweir.wal.mp import pack

READERS = (
    (iproto_instance, "SelectReader"),
    (memcached_reads, "ItemReader"),
    (greenstack_endpoint, "GetReader"),
)
SCHEMES = ("tarantool", "tap", "greenstack")
BOTH = Privilege.READ | Privilege.WRITE
LONG_AGO, FAR_AHEAD = 1_500_000_000, 4_000_000_000
KEYS = [b"k%d" % number for number in range(12)]


class Counted:
    """How many requests were answered from their bytes."""

    count = 0


def counting(reader: type[Any], counted: Counted) -> type[Any]:
    class Counting(reader):  # type: ignore[misc]
        def take(self) -> bytes:
            counted.count += self.count
            return super().take()

    return Counting


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[list[Serving], Counted]]:
    """One that answers reads from their bytes, and one that does not."""
    if issubclass(iproto_instance.SelectReader, PlainRequests):
        pytest.skip("nothing is compiled")
    counted = Counted()
    with ExitStack() as stack:
        made = []
        for is_plain in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                for module, name in READERS:
                    reader = PlainRequests if is_plain else counting(getattr(module, name), counted)
                    patch.setattr(module, name, reader)
                folder = tmp_path_factory.mktemp("reads")
                listen = [parse_listen_url(f"{scheme}://:0") for scheme in SCHEMES]
                serving = Serving(
                    folder,
                    listen=listen,
                    guest="none",
                    open_options={"durability": "none"},
                )
                stack.enter_context(serving)
            log = serving.log
            for number in (600, 601, 602):
                log.create_space(
                    f"s{number}",
                    id=number,
                    format=[("id", "unsigned"), ("a", "string")],
                    indexes={"a": {"parts": ["a"], "unique": False}},
                )
                with log.transaction() as tx:
                    for key in range(40):
                        tx.insert(number, (key, "ab"[key % 2] * (key % 5)))
            for name in ("s600", "s601", "default"):
                users.grant(log, "guest", BOTH, users.Target("space", name))
            made.append(serving)
        yield made, counted


def selects(random: Random) -> bytes:
    """A request over iproto."""
    sync, space = random.randrange(2**32), random.choice((600, 600, 601, 602, 777, 280))
    key: list[object] = [random.randrange(50)]
    index = random.choice((0, 0, 0, 1, 3))
    if index == 1 or random.random() < 0.05:
        key = [random.choice(("", "a", "bb"))]
    if random.random() < 0.2:
        key = []
    kind = random.choices((1, 3, 5, 64), (20, 1, 1, 1))[0]
    if kind == 64:
        return encode_request(64, sync)
    if kind == 3:
        return encode_request(3, sync, {0x10: space, 0x21: [random.randrange(50), "new"]})
    body: dict[int, object] = {0x10: space, 0x20: key}
    if random.random() < 0.3:
        del body[0x10]
        body[0x5E] = {280: "_space", 777: "none"}.get(space, f"s{space}")
    stream = random.choice((0, 0, 0, 5, 6))
    if kind == 1:
        if random.random() < 0.3:
            body[0x1F] = random.random() < 0.8
        if random.random() < 0.2:
            key = [random.randrange(50), "a"]
            body |= random.choice(({0x2F: key}, {0x2E: ""}, {0x2E: "kgDECTEAAAAAAAAABw"}))
        body |= {0x11: index, 0x12: random.choice((0, 1, 3, 100)), 0x13: random.choice((0, 0, 2))}
        body |= {0x14: random.choices((0, 1, 2, 3, 4, 5, 6, 9), (9, 1, 1, 1, 1, 1, 1, 0.2))[0]}
    if kind == 1 and random.random() < 0.2:
        del body[0x11]
        body[0x5F] = random.choice(("primary", "a", "none"))
    return frame(pack({0: kind, 1: sync, 10: stream}) + pack(body))


def packets(random: Random) -> bytes:
    """A request in memcached's binary protocol."""
    key, vbucket = random.choice(KEYS), random.choices((0, 1), (20, 1))[0]
    opaque = random.randrange(2**32)
    kind = random.choices(("get", "set", "delete", "noop", "old"), (20, 2, 1, 2, 1))[0]
    if kind == "get":
        opcode = random.choice((0x00, 0x09, 0x0C, 0x0D, 0xE0))
        packet = memcached.Packet(opcode, key, vbucket=vbucket, opaque=opaque)
    elif kind == "set":
        expiry = random.choice((0, 0, LONG_AGO, FAR_AHEAD))
        extras = bytes(4) + expiry.to_bytes(4, "big")
        packet = memcached.Packet(0x01, key, b"v" * random.randrange(40), extras, opaque=opaque)
    elif kind == "noop":
        packet = memcached.Packet(0x0A, opaque=opaque)
    elif kind == "old":  # what it says is told once
        packet = memcached.Packet(0xE5, key, b"", bytes(4), opaque=opaque)
    else:
        packet = memcached.Packet(0x04, key, opaque=opaque)
    return memcached.encode_request(packet)


def frames(random: Random) -> bytes:
    """A request over Greenstack."""
    opaque, flags = random.randrange(2**32), random.choices((0, 16), (5, 1))[0]
    flex = {greenstack.FlexKey.VBUCKET: random.choices((b"\0\0", b"\0\1"), (20, 1))[0]}
    kind = random.choices(("get", "lane", "noop", "odd"), (20, 1, 1, 0.3))[0]
    if kind == "noop":
        return greenstack.encode_frame(greenstack.Frame(greenstack.Opcode.NOOP, opaque))
    if kind == "lane":
        flex[greenstack.FlexKey.LANE] = b"x"
    payload = b"??" if kind == "odd" else encode_get(random.choice(KEYS))
    return greenstack.encode_frame(
        greenstack.Frame(greenstack.Opcode.GET, opaque, payload, flags=flags, flex=flex)
    )


def split(data: bytes, size_of: Callable[[bytes, int], int]) -> list[bytes]:
    """The answers in some bytes."""
    found, at = [], 0
    while at < len(data):
        size = size_of(data, at)
        found.append(data[at : at + size])
        at += size
    return found


def without_cas(scheme: str, answer: bytes) -> bytes:
    """An answer without what each server gives a number of its own."""
    at = {"tap": 16, "greenstack": CAS_AT}.get(scheme, len(answer))
    if scheme == "greenstack" and answer[10] & 2:  # it has a lane
        at += 4 + 4 + len(b"x")
    return answer[:at] + bytes(min(8, max(len(answer) - at, 0))) + answer[at + 8 :]


def is_whole(data: bytes, size_of: Callable[[bytes, int], int]) -> bool:
    """Whether no answer in some bytes is cut off."""
    at = 0
    with contextlib.suppress(struct.error):  # not even its size is there
        while at < len(data):
            at += size_of(data, at)
    return at == len(data)


def exchanged(
    serving: Serving,
    scheme: str,
    sent: bytes,
    random: Random,
    is_all: Callable[[bytes], bool],
    size_of: Callable[[bytes, int], int],
) -> list[bytes]:
    """The answers to some bytes that are sent, and read, in portions."""
    url = next(url for url in serving.urls if url.scheme == scheme)
    with socket.create_connection((url.host, url.port), 30) as peer:
        if scheme == "tarantool":
            peer.recv(128, socket.MSG_WAITALL)
        elif scheme == "greenstack":
            peer.sendall(greenstack_begin())
            for _ in range(2):
                size = int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "big")
                assert len(peer.recv(size, socket.MSG_WAITALL)) == size
        while sent:
            size = random.choice((len(sent), random.randrange(1, 4000)))
            peer.sendall(sent[:size])
            sent = sent[size:]
        said = b""
        while not (is_all(said) and is_whole(said, size_of)):
            more = peer.recv(random.randrange(1, 200))
            assert more, "it was cut off"
            said += more
        return split(said, size_of)


def greenstack_end(lane: bytes | None) -> bytes:
    flex = {} if lane is None else {greenstack.FlexKey.LANE: lane}
    return greenstack.encode_frame(greenstack.Frame(greenstack.Opcode.NOOP, LAST, flex=flex))


def greenstack_begin() -> bytes:
    start = Hello("test", "1").encode(), encode_bucket("default")
    opcodes = greenstack.Opcode.HELLO, greenstack.Opcode.SELECT_BUCKET
    return b"".join(
        greenstack.encode_frame(greenstack.Frame(opcode, 1, payload))
        for opcode, payload in zip(opcodes, start, strict=True)
    )


CAS_AT = 77  # in an answer to a GET of Greenstack
FIRST = {
    "tarantool": encode_request(1, 0, {0x10: 600, 0x12: 1, 0x20: [1]}),
    "tap": memcached.encode_request(memcached.Packet(0x00, KEYS[0])),
    "greenstack": greenstack.encode_frame(
        greenstack.Frame(
            greenstack.Opcode.GET,
            0,
            encode_get(KEYS[0]),
            flex={greenstack.FlexKey.VBUCKET: b"\0\0"},
        )
    ),
}
"""A read that nothing stands before: how many of the others can be answered from their bytes hangs
on how quick the changes before them are."""
EXCHANGES = 40
LAST = 0x7E57_1A57
END = LAST.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("scheme", "make"), [("tarantool", selects), ("tap", packets), ("greenstack", frames)]
)
def test_reads_are_answered_alike(
    servers: tuple[list[Serving], Counted], scheme: str, make: Callable[[Random], bytes]
) -> None:
    both, counted = servers
    random, before = Random(scheme), counted.count
    for seed in range(EXCHANGES):
        requests = [make(random) for _ in range(random.choice((1, 5, 30, 200)))]
        requests.insert(0, FIRST[scheme])
        count = len(requests)
        if scheme == "tarantool":
            size_of, is_all = answer_size, lambda said: said.count(b"\x83\x00\xce") >= count  # noqa: B023
        elif scheme == "tap":
            requests.append(memcached.encode_request(memcached.Packet(0x0A, opaque=LAST)))
            size_of, is_all = packet_size, lambda said: said[-12:-8] == END
        else:
            requests += [greenstack_end(b"x"), greenstack_end(None)]
            size_of, is_all = frame_size, lambda said: said.count(END) == 2
        sent = b"".join(requests)
        answers = []
        for one in both:
            said = exchanged(one, scheme, sent, Random(seed), is_all, size_of)
            answers.append([without_cas(scheme, answer) for answer in said])
        if scheme != "tap":  # answers may come in any order
            answers = [sorted(said) for said in answers]
        differing = [pair for pair in zip(*answers, strict=True) if pair[0] != pair[1]]
        assert not differing, seed
    assert counted.count >= before + EXCHANGES


def packet_size(data: bytes, at: int) -> int:
    return 24 + int(unpack_from(">I", data, at + 8)[0])


def frame_size(data: bytes, at: int) -> int:
    return 4 + int(unpack_from(">I", data, at)[0])


def answer_size(data: bytes, at: int) -> int:
    assert data[at] == 0xCE
    return 5 + int(unpack_from(">I", data, at + 1)[0])


def test_a_read_waits_for_changes_before_it(
    servers: tuple[list[Serving], Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it comes by itself, while the change waits to be made."""
    (serving, _), _ = servers
    url = next(url for url in serving.urls if url.scheme == "tarantool")
    change = encode_request(3, 1, {0x10: 600, 0x21: [99, "new"]})
    read = encode_request(1, 2, {0x10: 600, 0x12: 1, 0x20: [99]})
    waiting: list[tuple[Any, ...]] = []
    came = threading.Event()

    def submit(*given: Any) -> None:
        waiting.append(given)
        came.set()

    shared = serving.server.shared
    with socket.create_connection((url.host, url.port), 30) as peer:
        peer.recv(128, socket.MSG_WAITALL)
        monkeypatch.setattr(shared, "submit", submit)
        peer.sendall(change)
        assert came.wait(30)
        came.clear()
        peer.sendall(read)
        assert came.wait(30)  # it stands behind the change
        monkeypatch.undo()
        for given in waiting:
            serving._loop.call_soon_threadsafe(shared.submit, *given)
        said = b""
        while said.count(b"\x83\x00\xce") < 2:
            said += peer.recv(65536)
    assert said.count(b"\xa3new") == 2
