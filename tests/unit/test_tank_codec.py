"""Tank messages: golden bytes of the real programs, cut, broken and too long ones."""

from __future__ import annotations

from random import Random

import pytest

from interop.tankmodel import captures, frames
from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import TANK_FRAME_BYTES
from logweir.replication.tank.wire.codec import (
    PING,
    decode_answer,
    decode_request,
    encode_answer,
    encode_fetch_header,
    encode_request,
    publish_results,
)
from logweir.replication.tank.wire.framing import FrameBuffer
from logweir.replication.tank.wire.messages import (
    Create,
    CreateAnswer,
    CreateError,
    Fetch,
    FetchAnswer,
    FetchedPart,
    FetchPart,
    FetchStatus,
    Partitions,
    PartitionsAnswer,
    PartitionState,
    Ping,
    Publish,
    PublishAnswer,
    PublishPart,
    PublishResult,
    Reload,
    ReloadAnswer,
    ReloadError,
    Request,
    Status,
    StatusAnswer,
    Topics,
    TopicsAnswer,
    Topology,
    TopologyAnswer,
)

ONE = bytes.fromhex("040058a59ffaa10100000a68656c6c6f2074616e6b")
REQUESTS: dict[str, Request] = {
    "0300000000": Ping(),
    "013000000002000100000003632b2b000000000001066576656e747301000015"
    "040058a59ffaa10100000a68656c6c6f2074616e6b": Publish(
        1, (("events", (PublishPart("events", 0, ONE),)),), client="c++"
    ),
    "022a00000002000100000000ffffffff000000000000000001066576656e7473"
    "010000030000000000000032000000": Fetch(
        1, (("events", (FetchPart("events", 0, 3, 50),)),), max_wait_ms=2**32 - 1
    ),
    "022b00000003000d000000000000000000000000000000000101066f72646572"
    "7301000001000000000000000a000000": Fetch(
        13, (("orders", (FetchPart("orders", 0, 1, 10),)),), flags=1, version=3
    ),
    "022e000000000000000000044a43303188130000000000000000000001066576"
    "656e74730100000000000000000000e8030000": Fetch(
        0,
        (("events", (FetchPart("events", 0, 0, 1000),)),),
        max_wait_ms=5000,
        version=0,
        client="JC01",
    ),
    "060b00000001000000066576656e7473": Partitions(1, "events"),
    "060d00000016000000066576656e74730000": Partitions(22, "events", (0,)),
    "073e00000001000000046c6f6773020032726574656e74696f6e2e7365676d65"
    "6e74732e636f756e743d340a6c6f672e7365676d656e742e62797465733d3430"
    "39360a": Create(1, "logs", 2, b"retention.segments.count=4\nlog.segment.bytes=4096\n"),
    "080b00000001000000046c6f67730000": Reload(1, "logs", 0),
    "0a0400000001000000": Status(1),
    "0b050000000100000000": Topics(1),
    "0c050000000100000000": Topology(1),
}
ANSWERS = {
    "0a1e000000010000000000020000000300000002000000000000008eab006b90010000": StatusAnswer(
        1, 2, 3, 2, 0, 1795206030
    ),
    "0b1d000000010000000200000000066f7264657273010100066576656e7473010200": TopicsAnswer(
        1, (("orders", True, 1), ("events", True, 2))
    ),
    "0c0600000001000000ffff": TopologyAnswer(1),
    "062d00000001000000066576656e747302000100000000000000960100000000"
    "000000000000000000000000000000000000": PartitionsAnswer(
        1, "events", (PartitionState(1, 406), PartitionState(0, 0))
    ),
    "060d00000001000000066e6f737563680000": PartitionsAnswer(1, "nosuch", ()),
    "061e00000016000000066576656e74730100fffffffffffffffffffffffffffffffffd": PartitionsAnswer(
        22, "events", (PartitionState(0, 0, FetchStatus.NO_LEADER),)
    ),
    "070a00000001000000046c6f677300": CreateAnswer(1, "logs", CreateError.CREATED),
    "070a00000001000000046c6f677301": CreateAnswer(1, "logs", CreateError.EXISTS),
    "070e00000001000000086261642e6e616d650a": CreateAnswer(1, "bad.name", CreateError.BAD_NAME),
    "070b00000001000000056c6f67733204": CreateAnswer(1, "logs2", CreateError.BAD_CONFIG),
    "080c00000001000000046c6f6773000000": ReloadAnswer(1, "logs", 0, ReloadError.DONE),
    "01050000000100000000": PublishAnswer(1, b"\0"),
    "010800000013000000ff000100": PublishAnswer(19, b"\xff\0\1\0"),
}
FETCHED = {
    "02300000002c0000000100000001066576656e74730100000100000000000000"
    "009601000000000000000000000100000000000000": FetchedPart(
        "events", 0, FetchStatus.BOUNDARY, 0, 406, 1
    ),
    "02130000000f0000000100000001066e6f7375636801ffff": FetchedPart("nosuch", None, None),
    "0214000000100000000100000001066576656e7473010900ff": FetchedPart(
        "events", 9, FetchStatus.UNKNOWN_PARTITION
    ),
    "0228000000240000000100000001066f72646572730100000000000000000000"
    "00000000000000000000000000": FetchedPart("orders", 0, FetchStatus.FINE, 0, 0),
    "0228000000240000000100000001066576656e74730100000001000000000000"
    "00930100000000000000000000": FetchedPart("events", 0, FetchStatus.FINE, 1, 403),
}


@pytest.mark.parametrize("text", REQUESTS)
def test_request_has_the_recorded_bytes(text: str) -> None:
    """Both ways."""
    data = bytes.fromhex(text)
    assert decode_request(data[0], data[5:]) == REQUESTS[text]
    assert encode_request(REQUESTS[text]) == data


@pytest.mark.parametrize("text", ANSWERS)
def test_answer_has_the_recorded_bytes(text: str) -> None:
    """Both ways."""
    data = bytes.fromhex(text)
    assert decode_answer(data[0], data[5:]) == ANSWERS[text]
    assert encode_answer(ANSWERS[text]) == data


@pytest.mark.parametrize("text", FETCHED)
def test_fetch_answer_has_the_recorded_bytes(text: str) -> None:
    """Both ways, one outcome each."""
    data = bytes.fromhex(text)
    part = FETCHED[text]
    assert decode_answer(data[0], data[5:]) == FetchAnswer(1, (part,))
    asked = Fetch(1, ((part.topic, (FetchPart(part.topic, 0, 0, 0),)),))
    assert encode_fetch_header(asked, [part], [0]) == data


def test_every_recorded_frame_is_written_back_equal() -> None:
    """All requests and answers of the recordings, in both directions."""
    seen = 0
    for name, item in captures().items():
        asked: dict[int, Request] = {}
        if not name.endswith("-closes"):
            for kind, payload in frames(item["c2s"]):
                request = decode_request(kind, payload)
                assert encode_request(request)[5:] == payload
                if not isinstance(request, Ping):
                    asked[request.request_id] = request
        for kind, payload in frames(item["s2c"]):
            answer = decode_answer(kind, payload)
            seen += 1
            if isinstance(answer, Ping):
                assert payload == b""
                continue
            request = asked[answer.request_id]
            if isinstance(answer, FetchAnswer):
                assert isinstance(request, Fetch)
                sizes = [len(part.chunk) for part in answer.parts]
                data = encode_fetch_header(request, answer.parts, sizes)
                data += b"".join(part.chunk for part in answer.parts)
            else:
                data = encode_answer(answer)
            assert data[5:] == payload
            if isinstance(answer, PublishAnswer):
                assert isinstance(request, Publish)
                counts = [len(parts) for _, parts in request.topics]
                assert [len(each) for each in publish_results(answer, counts)] == counts
    assert seen > 150


def test_all_statuses_survive_a_round_trip() -> None:
    """Those of clusters too, with the address of the leader."""
    parts = (
        FetchedPart("t", 0, FetchStatus.UNREADABLE),
        FetchedPart("t", 1, FetchStatus.NO_LEADER),
        FetchedPart("t", 2, FetchStatus.OTHER_LEADER, leader=("10.1.2.3", 11011)),
        FetchedPart("t", 3, FetchStatus.SPARSE, 0, 9, chunk=b"\x04abcd"),
        FetchedPart("t", 4, FetchStatus.FINE, 7, 9, chunk=b"\x01x"),
        FetchedPart("u", None, None),
    )
    asked = Fetch(
        5,
        (
            ("t", tuple(FetchPart("t", n, 1, 1) for n in range(5))),
            ("u", (FetchPart("u", 0, 1, 1), FetchPart("u", 1, 1, 1))),
            ("v", ()),
        ),
    )
    data = encode_fetch_header(asked, parts, [len(part.chunk) for part in parts])
    data += b"\x04abcd\x01x"
    assert decode_answer(data[0], data[5:]) == FetchAnswer(5, parts)
    states = PartitionsAnswer(
        1, "t", (PartitionState(0, 0, FetchStatus.OTHER_LEADER, ("1.2.3.4", 5)),)
    )
    encoded = encode_answer(states)
    assert decode_answer(encoded[0], encoded[5:]) == states


def test_publish_results_are_matched_with_what_was_asked() -> None:
    """One byte for a whole unknown or read-only topic, one per partition else."""
    answer = PublishAnswer(1, bytes.fromhex("ff0001fe0afc0102030405000203"))
    table = PublishResult
    assert publish_results(answer, [2, 2, 1, 3, 1]) == (
        (table.UNKNOWN_TOPIC, table.UNKNOWN_TOPIC),
        (table.STORED, table.UNKNOWN_PARTITION),
        (table.READ_ONLY,),
        (table.BAD_NUMBERS, table.OTHER_LEADER, table.FAILED),
        (table.NOT_ACKNOWLEDGED,),
    )
    for raw, shape in ((b"\0\0", [1]), (b"\0", [2]), (b"\x07", [1]), (b"\xfc\1", [1])):
        with pytest.raises(DecodeError):
            publish_results(PublishAnswer(1, raw), shape)


@pytest.mark.parametrize("text", list(REQUESTS)[1:])
def test_request_cut_at_any_byte_is_refused(text: str) -> None:
    """A payload that ends early is malformed, unless what is left is a request too."""
    data = bytes.fromhex(text)
    for size in range(len(data) - 5):
        try:
            request = decode_request(data[0], data[5 : 5 + size])
        except DecodeError:
            continue
        assert isinstance(request, Partitions)  # a list of chosen partitions that got shorter


@pytest.mark.parametrize("text", [*ANSWERS, *FETCHED])
def test_answer_cut_at_any_byte_is_refused(text: str) -> None:
    """The same for answers; publish results have no length of their own."""
    data = bytes.fromhex(text)
    for size in range(len(data) - 5):
        try:
            answer = decode_answer(data[0], data[5 : 5 + size])
        except DecodeError:
            continue
        assert isinstance(answer, PublishAnswer | TopologyAnswer)


@pytest.mark.parametrize("text", [*REQUESTS, *ANSWERS, *FETCHED])
def test_flipped_bits_give_a_value_or_our_error(text: str) -> None:
    """In either direction."""
    data = bytes.fromhex(text)
    for index in range(5, len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[index] ^= 1 << bit
            for decode in (decode_request, decode_answer):
                try:
                    assert decode(broken[0], bytes(broken[5:])) is not None
                except DecodeError:
                    continue


def test_unknown_types_are_refused() -> None:
    """Every type byte outside the table, 04 and 09 with them."""
    for kind in set(range(256)) - {1, 2, 3, 5, 6, 7, 8, 10, 11, 12}:
        with pytest.raises(DecodeError):
            decode_request(kind, b"\0" * 64)
        with pytest.raises(DecodeError):
            decode_answer(kind, b"\0" * 64)


def test_bytes_behind_a_request_are_refused() -> None:
    """A frame holds one request and nothing else."""
    for text in REQUESTS:
        data = bytes.fromhex(text)
        if data[0] != 6:
            with pytest.raises(DecodeError):
                decode_request(data[0], data[5:] + b"\0")


def test_names_of_any_bytes_survive() -> None:
    """A name that is not UTF-8 comes back as it came."""
    data = encode_request(Partitions(1, "\udcff\udc80x"))
    assert b"\x03\xff\x80x" in data
    assert decode_request(data[0], data[5:]) == Partitions(1, "\udcff\udc80x")
    with pytest.raises(LimitExceeded):
        encode_request(Partitions(1, "x" * 256))


def test_frames_come_out_the_same_in_any_portions() -> None:
    """Whole feed equals byte-by-byte feed equals portions of seven bytes."""
    data = PING + b"".join(bytes.fromhex(text) for text in [*REQUESTS, *FETCHED])
    whole, problem = FrameBuffer().feed(data)
    assert problem is None
    assert len(whole) == 1 + len(REQUESTS) + len(FETCHED)
    for step in (1, 7):
        buffer = FrameBuffer()
        found = []
        for start in range(0, len(data), step):
            frames_now, problem = buffer.feed(data[start : start + step])
            assert problem is None
            found += frames_now
        assert found == whole
        assert len(buffer) == 0


def through_room(buffer: FrameBuffer, data: bytes, most: int) -> list[tuple[int, memoryview]]:
    """Receive `data` where the buffer wants it, at most so many bytes at a time."""
    found = []
    while data:
        room = buffer.room()
        assert len(room) > 0
        size = min(len(room), most, len(data))
        room[:size] = data[:size]
        data = data[size:]
        frames_now, problem = buffer.received(size)
        assert problem is None
        found += frames_now
    return found


@pytest.mark.parametrize("most", [7000, 65_536, 250_000, 10_000_000])
def test_frames_received_in_place_are_those_that_were_sent(most: int) -> None:
    """Small and large frames mixed, some larger than any buffer: what was given out stays as it is
    while more is received, and in the end nothing is held."""
    random = Random(5)
    sizes = [random.choice((0, 10, 900, 20_000, 104_000, 104_000, 300_000)) for _ in range(60)]
    sizes.insert(30, 5_000_000)
    sent = [(3, random.randbytes(size)) for size in sizes]
    data = b"".join(bytes((kind,)) + len(body).to_bytes(4, "little") + body for kind, body in sent)
    for _ in range(2):  # with buffers that were used before
        buffer = FrameBuffer()
        found = through_room(buffer, data, most)
        assert found == sent
        assert len(buffer) == buffer.held_bytes == 0
    cut = FrameBuffer()
    assert through_room(cut, data[:-1], most) == sent[:-1]
    assert len(cut) == 5 + sizes[-1] - 1
    assert cut.held_bytes >= len(cut)


def test_frame_that_only_says_that_it_is_large_holds_little() -> None:
    """256 MiB are announced: memory is taken as they come."""
    buffer = FrameBuffer()
    through_room(buffer, b"\x01" + TANK_FRAME_BYTES.to_bytes(4, "little") + bytes(100), 105)
    assert len(buffer.room()) <= 1 << 20
    assert buffer.held_bytes == 105
    assert isinstance(buffer.received(0)[1], type(None))
    over = FrameBuffer()
    room = over.room()
    room[:5] = b"\x01" + (TANK_FRAME_BYTES + 1).to_bytes(4, "little")
    assert isinstance(over.received(5)[1], LimitExceeded)


def test_frame_above_the_limit_is_seen_at_its_header() -> None:
    """The longest length is waited for, one more is refused after the frames before it."""
    buffer = FrameBuffer()
    assert buffer.feed(b"\x01" + TANK_FRAME_BYTES.to_bytes(4, "little")) == ([], None)
    buffer = FrameBuffer()
    found, problem = buffer.feed(PING + b"\x01" + (TANK_FRAME_BYTES + 1).to_bytes(4, "little"))
    assert found == [(3, b"")]
    assert isinstance(problem, LimitExceeded)
    small = FrameBuffer(limit_bytes=4)
    assert small.feed(b"\x0a\x04\0\0\0\1\0\0\0") == ([(10, b"\1\0\0\0")], None)
    assert isinstance(small.feed(b"\x0a\x05\0\0\0")[1], LimitExceeded)


def test_counts_that_do_not_fit_are_refused_when_writing() -> None:
    """An answer above the longest frame is not begun."""
    asked = Fetch(1, (("t", (FetchPart("t", 0, 1, 1),)),))
    part = FetchedPart("t", 0, FetchStatus.FINE, 1, 1)
    with pytest.raises(LimitExceeded):
        encode_fetch_header(asked, [part], [TANK_FRAME_BYTES])
    with pytest.raises(TypeError):
        encode_answer(FetchAnswer(1, (part,)))
