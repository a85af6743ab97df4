"""Kernels that answer reads from their bytes, with bytes that are nothing: they end, and believe no
length. `tests/fuzz/test_statements_sanitized.py` runs this under AddressSanitizer."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

pytest.importorskip("logweir.replication.bucket.lookkernel")

import logweir
from logweir.replication.bucket.item import VBUCKETS, Item, pack_item
from logweir.replication.bucket.store import Buckets
from logweir.replication.greenstack.serve.runs import GetReader
from logweir.replication.greenstack.wire.codec import (
    Flag,
    FlexKey,
    Frame,
    Opcode,
    Status,
    encode_frame,
)
from logweir.replication.greenstack.wire.many import decode_found, encode_found, encode_get_many
from logweir.replication.greenstack.wire.messages import encode_get
from logweir.replication.iproto.wire.codec import Splitter, decode_answer, frame
from logweir.replication.iproto.wire.requests import encode_request
from logweir.replication.iproto.wire.runs import SelectReader, no_ids
from logweir.replication.memcached.serve.runs import ItemReader
from logweir.replication.memcached.wire.codec import Packet
from logweir.replication.memcached.wire.codec import encode_request as encode_packet
from logweir.store.engine.reader import Published
from logweir.wal.mp import pack, unpack

NOW = 1_700_000_000
ACTIVE = bytearray(b"\x01") * VBUCKETS
LIMIT = 1 << 20
SPACE, UNREAD = 600, 601


def gets(number: int) -> bytes:
    flex = {FlexKey.VBUCKET: bytes(2)}
    return encode_frame(Frame(Opcode.GET, number, encode_get(b"k%d" % number), flex=flex))


def many(number: int) -> bytes:
    """GET_MANYs, of which the answer to one holds ids that are not there."""
    ids = [b"k%d" % one for one in (number, number + 1, 99)[: 1 + number % 3]]
    flex = {FlexKey.VBUCKET: bytes(2)}
    return encode_frame(Frame(Opcode.GET_MANY, number, encode_get_many(ids), flex=flex))


def many_reader() -> Any:
    """Of a client that may send them."""
    reader = GetReader()
    reader.has_many = True
    return reader


def selects(number: int) -> bytes:
    body = {0x10: SPACE, 0x11: 0, 0x12: 9, 0x13: 0, 0x14: number % 7, 0x20: [number]}
    return encode_request(1, number, body)


def packets(number: int) -> bytes:
    opcode = (0x00, 0x0C, 0x09, 0xE0)[number % 4]
    return encode_packet(Packet(opcode, b"k%d" % number, opaque=number))


class Side:
    """One protocol's reader with what it reads from."""

    def __init__(self, log: logweir.Log, reader: Any, make: Callable[[int], bytes]) -> None:
        self.log = log
        self.reader = reader
        self.make = make
        self.space_id = Buckets(log).make("default").space_id

    def read(
        self,
        data: bytes,
        at: int = 0,
        states: bytearray = ACTIVE,
        most: int = 1000,
        limit: int = LIMIT,
        has_streams: bool = False,
        ids: Callable[[int, bytes], int] = no_ids,
    ) -> int:
        def ask(published: Published) -> int:
            for number in (SPACE, UNREAD, self.space_id):
                assert published.find(number)
            if isinstance(self.reader, SelectReader):
                given: tuple[Any, ...] = 80, {SPACE}, published.spaces, limit, ids, has_streams
            else:
                given = published.spaces[self.space_id], states, NOW, most, limit
            return int(self.reader.read(data, at, *given))

        return self.log.inner.committer.reader.ask(ask)


@pytest.fixture(scope="module", params=["iproto", "memcached", "greenstack", "many"])
def side(request: pytest.FixtureRequest, log: logweir.Log) -> Side:
    readers = {
        "iproto": (SelectReader, selects),
        "memcached": (ItemReader, packets),
        "greenstack": (GetReader, gets),
        "many": (many_reader, many),
    }
    reader, make = readers[request.param]
    return Side(log, reader(), make)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[logweir.Log]:
    """With two spaces, and a bucket in which one item has expired and one is of another vbucket."""
    with logweir.open(tmp_path_factory.mktemp("reads"), durability="none") as log:
        for number in (SPACE, UNREAD):
            log.create_space(f"s{number}", id=number, format=[("id", "unsigned"), ("a", "string")])
        bucket = Buckets(log).make("default").space_id
        with log.transaction() as tx:
            for number in range(20):
                tx.insert(SPACE, (number, "x" * number))
                item = Item(b"k%d" % number, int(number == 3), b"v" * 40 * number)
                item = replace(item, expiry=NOW if number == 4 else 0)
                tx.insert(bucket, unpack(pack_item(item)))
        yield log


def test_what_is_whole_is_answered_up_to_what_is_not(side: Side) -> None:
    parts = [side.make(number) for number in range(30)]
    data = b"".join(parts)
    assert (side.read(data), side.reader.count) == (len(data), 30)
    whole = side.reader.take()
    for size in range(len(data)):
        stop = side.read(data[:size])
        assert stop == len(b"".join(parts[: side.reader.count])) <= size
        assert size - stop < len(parts[min(side.reader.count, 29)])
        assert whole.startswith(side.reader.take())
        assert not side.reader.is_over


def test_it_ends_behind_a_turn(side: Side) -> None:
    data = b"".join([side.make(number) for number in range(5, 20)])
    first = side.read(data, limit=1)
    assert (first, side.reader.count, side.reader.is_over) == (len(side.make(5)), 1, True)
    assert side.read(data, first, limit=1) > first
    if not isinstance(side.reader, SelectReader):
        side.read(data, most=4)
        asked = 2 if side.make is many else 4  # of three ids, then of one
        assert (side.reader.count, side.reader.is_over) == (asked, True)


def test_it_begins_in_the_data(side: Side) -> None:
    with pytest.raises(IndexError, match="begins before"):
        side.read(side.make(1), -1)
    assert side.read(side.make(1), 10**9) == 10**9
    assert (side.reader.count, side.reader.take()) == (0, b"")
    if not isinstance(side.reader, SelectReader):
        with pytest.raises(IndexError, match="too short"):
            side.read(side.make(1), states=ACTIVE[:-1])


def test_bytes_that_are_nothing_end(side: Side) -> None:
    """Whatever is in them; the same is answered without what is behind."""
    random = Random(7)
    data = bytearray(b"".join([side.make(number) for number in range(8)]))
    for _ in range(1500):
        odd = data[: random.randrange(len(data))] if random.random() < 0.3 else data[:]
        for _ in range(random.randrange(1, 4)):
            if odd:
                odd[random.randrange(len(odd))] = random.choice((0, 1, 0x80, 0xFF, 0xCE, 0xDD, 16))
        stop = side.read(bytes(odd))
        count, said = side.reader.count, side.reader.take()
        assert 0 <= stop <= len(odd)
        assert bool(count) == bool(stop)
        assert side.read(bytes(odd[:stop])) == stop
        assert (side.reader.count, side.reader.take()) == (count, said)


def test_items_that_others_have_to_look_at(log: logweir.Log) -> None:
    """A vbucket whose state is not known, or that is not active, and what has expired."""
    for reader, make in ((ItemReader(), packets), (GetReader(), gets), (many_reader(), many)):
        side = Side(log, reader, make)
        data = make(3) + make(4) + make(5)
        assert side.read(data) == len(data)  # two of them are not there
        assert reader.expired == [(b"k4", 0)]
        for state, wanted in ((0, 0), (2, -1), (255, -1)):
            assert side.read(data, states=bytearray([state]) + ACTIVE[1:]) == 0
            assert (reader.wanted, reader.count) == (wanted, 0)


def test_many_are_told_what_gets_are(log: logweir.Log) -> None:
    """In one answer; what does not go into it is to be asked for again."""
    side, one = Side(log, many_reader(), many), Side(log, GetReader(), gets)
    head = 13  # of an answer
    for number in range(3, 21, 3):
        assert side.read(many(number + 2)) > 0
        told = side.reader.take()[head:]
        answers = []
        for each in (number + 2, number + 3, 99):
            assert one.read(gets(each)) > 0
            answer = one.reader.take()
            answers.append((int.from_bytes(answer[11:13]), answer[head:]))
        assert told == encode_found(answers)
    assert side.read(many(11), limit=100) > 0
    found = decode_found(side.reader.take()[head:])
    assert [status for status, _ in found] == [0, Status.TOO_BUSY, Status.TOO_BUSY]
    side.reader.has_many = False
    assert side.read(many(11)) == 0


@pytest.mark.parametrize("is_many", [False, True], ids=["get", "get many"])
def test_quiet_requests_are_not_told_what_they_found(is_many: bool, log: logweir.Log) -> None:
    """A GET of what is there is done without an answer; one that misses has the ordinary one. A
    GET_MANY is left to others."""
    reader, make = (many_reader(), many) if is_many else (GetReader(), gets)
    side = Side(log, reader, make)
    for number in (5, 99):
        loud = make(number)
        assert side.read(loud) == len(loud)
        told = reader.take()
        quiet = bytearray(loud)
        quiet[10] |= Flag.QUIET
        assert side.read(bytes(quiet)) == (0 if is_many else len(loud))
        assert reader.count == (not is_many)
        assert reader.take() == (told if number == 99 and not is_many else b"")


def test_newer_selects_are_read_as_the_older_ones(log: logweir.Log) -> None:
    """By names, which are asked for once, of streams, behind a tuple or a position, with one."""
    side = Side(log, SelectReader(), selects)
    older, newer = b"", b""
    wanted: list[tuple[int, bytes]] = []

    def ids(of: int, name: bytes) -> int:
        wanted.append((of, name))
        return {-1: SPACE, SPACE: 0}.get(of, -1)

    for number in range(20):
        body = {0x12: 9, 0x14: 5, 0x20: [number + 1]}
        older += encode_request(1, number, body | {0x10: SPACE})
        names = {0x5E: "a space", 0x5F: "an index"}
        behind = {0x2F: [number, ""]} if number % 2 else {0x2E: position_of(number)}
        body = (
            body | {0x20: [], 0x1F: number == 3} | behind | (names if number % 3 else {0x10: SPACE})
        )
        newer += frame(pack({0: 1, 1: number, 10: number % 4}) + pack(body))
    assert side.read(older) == len(older)
    told = side.reader.take()
    assert side.read(newer, ids=ids) == len(newer)
    found = side.reader.take()
    assert side.reader.count == 20
    assert wanted == [(-1, pack("a space")), (SPACE, pack("an index"))]
    spans = zip(*(Splitter().split(data)[0] for data in (told, found)), strict=True)
    for number, ((at, end), (start, stop)) in enumerate(spans):
        bodies = decode_answer(told, at, end).body, decode_answer(found, start, stop).body
        has_position = {0x35: position_of(12)} if number == 3 else {}
        assert bodies[1] == bodies[0] | has_position
    for given in ({"ids": ids, "has_streams": True}, {}):  # of streams, of names, for others
        side.read(newer, **given)
        assert side.reader.count == 1


def position_of(number: int) -> str:
    """Of the tuple with that key, by the primary index."""
    found = pack([0, b"\x31" + number.to_bytes(8, "big")])
    return base64.b64encode(found).rstrip(b"=").decode()


def test_spaces_that_are_not_given(log: logweir.Log) -> None:
    side = Side(log, SelectReader(), selects)
    other = encode_request(1, 1, {0x10: UNREAD, 0x12: 9, 0x20: [1]})
    assert side.read(selects(1) + other + selects(2)) == len(selects(1))
    assert (side.reader.count, side.reader.wanted) == (1, UNREAD)
    assert side.read(selects(1) + encode_request(64, 1)) == len(selects(1))
    assert side.reader.wanted == -1
