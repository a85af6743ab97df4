"""Bundles: golden bytes of the real programs, and what is refused."""

from __future__ import annotations

from typing import Any

import cramjam
import pytest
from support.kernels import PLAIN_TOPIC
from support.tankserving import decode_chunk

from interop.tankmodel import DATA, captures, frames
from logweir.errors import DecodeError, LimitExceeded, LocalProtocolError
from logweir.replication.tank.follow.folder import read_folder
from logweir.replication.tank.wire.codec import decode_request
from logweir.replication.tank.wire.messages import Publish
from logweir.replication.topic import bundle as bundles
from logweir.replication.topic import kernel
from logweir.replication.topic.bundle import (
    NUMBER_MAX,
    BundleHead,
    Message,
    check_bundle,
    decode_bundle,
    encode_bundle,
    encode_varint,
    make_sparse,
    read_head,
    read_varint,
    split_chunk,
)
from logweir.wal.mp import pack

TIME = 1795206128984
ONE = bytes.fromhex("040058a59ffaa10100000a68656c6c6f2074616e6b")
FIVE = bytes.fromhex(
    "140041a69ffaa101000005616c706861020462657461020567616d6d61020564656c74610207657073696c6f6e"
)
KEYED = bytes.fromhex(
    "0c0121a79ffaa101000006757365723a3107637265617465640128a79ffaa101"
    "000006757365723a320775706461746564012fa79ffaa10100000675736572"
    "3a310764656c65746564"
)
SNAPPY = bytes.fromhex(
    "0df20ce00087a99ffaa10100009c0454686520717569636b2062726f776e"
    "20666f78206a756d7073206f76657220746865206c617a7920646f672e2054fe"
    "2d00fe2d00fe2d00fe2d00fe2d00fe2d00fe2d00b62d000402a3fe1f02fe1f02"
    "fe1f02fe1f02fe1f02fe1f02fe1f02fe1f02721f0220207365636f6e6402a2fe"
    "2602fe2602fe2602fe2602fe2602fe2602fe2602fe2602762602107468697264"
)
STEP3 = bytes.fromhex(
    "5464000000000000000b0067aa9ffaa10100000473313030"
    "020204733130330202047331303602020473313039020473313132"
)
SPARSE_RUN = bytes.fromhex(
    "50c800000000000000020044ab9ffaa10100000473323030060473323031060473323032020473323033"
)
SPARSE_ONE = bytes.fromhex("442c010000000000000022ac9ffaa1010000076f6e6c79333030")
SPARSE_SNAPPY = bytes.fromhex(
    "519001000000000000058c11e00005ad9ffaa10100009c045468652071756963"
    "6b2062726f776e20666f78206a756d7073206f76657220746865206c617a7920"
    "646f672e2054fe2d00fe2d00fe2d00fe2d00fe2d00fe2d00fe2d00b62d000802"
    "019efe2002fe2002fe2002fe2002fe2002fe2002fe2002fe2002722002042062"
    "fe2202fe2202fe2202fe2202fe2202fe2202fe2202fe2202822202046302fe43"
    "04fe4304fe4304fe4304fe4304fe4304fe4304fe43047a43040064"
)
FOX = b"The quick brown fox jumps over the lazy dog. " * 12
GOLDEN = {
    "one": (ONE, [Message(1, TIME, None, b"hello tank")]),
    "five": (
        FIVE,
        [
            Message(number, 1795206129217, None, text)
            for number, text in enumerate((b"alpha", b"beta", b"gamma", b"delta", b"epsilon"), 1)
        ],
    ),
    "keyed": (
        KEYED,
        [
            Message(1, 1795206129441, b"user:1", b"created"),
            Message(2, 1795206129448, b"user:2", b"updated"),
            Message(3, 1795206129455, b"user:1", b"deleted"),
        ],
    ),
    "snappy": (
        SNAPPY,
        [
            Message(number, 1795206130055, None, FOX + end)
            for number, end in enumerate((b"", b" second", b" third"), 1)
        ],
    ),
    "sparse by three": (
        STEP3,
        [
            Message(number, 1795206130279, None, b"s%d" % number)
            for number in (100, 103, 106, 109, 112)
        ],
    ),
    "sparse without gaps": (
        SPARSE_RUN,
        [Message(number, 1795206130500, None, b"s%d" % number) for number in range(200, 204)],
    ),
    "sparse, one": (SPARSE_ONE, [Message(300, 1795206130722, None, b"only300")]),
    "sparse and snappy": (
        SPARSE_SNAPPY,
        [
            Message(number, 1795206130949, None, FOX + end)
            for number, end in ((400, b""), (402, b" b"), (404, b" c"), (406, b" d"))
        ],
    ),
}
BY_NAME = pytest.mark.parametrize("name", GOLDEN)


def test_varints_have_the_known_bytes() -> None:
    """The shortest form, low bits first, up to 32 bits."""
    known = {
        0: "00",
        127: "7f",
        128: "8001",
        300: "ac02",
        16383: "ff7f",
        16384: "808001",
        2**32 - 1: "ffffffff0f",
    }
    for value, text in known.items():
        assert encode_varint(value).hex() == text
        assert read_varint(bytes.fromhex(text), 0) == (value, len(text) // 2)
    for bad in (b"", b"\x80", b"\xff" * 5, b"\xff" * 4 + b"\x10", b"\x80" * 4):
        with pytest.raises(DecodeError):
            read_varint(bad, 0)
    for outside in (-1, 2**32):
        with pytest.raises(LocalProtocolError):
            encode_varint(outside)


@BY_NAME
def test_recorded_bundle_decodes_to_its_messages(name: str) -> None:
    """Bytes of the real programs give what was published."""
    data, messages = GOLDEN[name]
    assert decode_bundle(data) == messages
    head, time_ms = check_bundle(data)
    assert time_ms == messages[0].time_ms
    assert head.numbers(1) == (messages[0].number, messages[-1].number)
    assert head.count == len(messages)


@BY_NAME
def test_messages_encode_to_the_recorded_bundle(name: str) -> None:
    """We write what the C++ client writes, the Snappy elements included."""
    data, messages = GOLDEN[name]
    head = read_head(data)
    assert encode_bundle(messages, sparse=head.sparse, compress=bool(head.codec)) == data


def test_every_recorded_bundle_encodes_back_to_its_bytes() -> None:
    """All published bundles of the recordings but the Java client's, which repeats times."""
    seen = 0
    for name, item in captures().items():
        for kind, payload in frames(item["c2s"]):
            if kind not in (1, 5):
                continue
            request = decode_request(kind, payload)
            assert isinstance(request, Publish)
            for _, parts in request.topics:
                for part in parts:
                    seen += 1
                    head = read_head(part.bundle)
                    messages = decode_bundle(part.bundle)
                    again = encode_bundle(messages, sparse=head.sparse, compress=bool(head.codec))
                    if name == "java-publish-keyed":
                        assert decode_bundle(again) == messages
                    else:
                        assert again == part.bundle
    assert seen >= 20


def test_every_stored_bundle_encodes_back_to_its_bytes() -> None:
    """The same for the bundles of the data folders, those of the Java client by meaning."""
    seen = 0
    for topic in read_folder(DATA / "data"):
        for partition in topic.partitions:
            for stored in partition.bundles(pytest.fail):
                head = read_head(stored.data)
                messages = decode_bundle(stored.data, stored.first)
                again = encode_bundle(messages, sparse=head.sparse, compress=bool(head.codec))
                if b"java" in stored.data:
                    assert decode_bundle(again, stored.first) == messages
                else:
                    assert again == stored.data
                seen += 1
    assert seen == 54


@BY_NAME
def test_bundle_cut_at_any_byte_is_refused(name: str) -> None:
    """No prefix of a bundle is a bundle."""
    data = GOLDEN[name][0]
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            check_bundle(data[:size])


@BY_NAME
def test_bundle_with_a_byte_too_many_is_refused(name: str) -> None:
    """The message set ends where the bundle ends."""
    with pytest.raises(DecodeError):
        check_bundle(GOLDEN[name][0] + b"\0")


@BY_NAME
def test_flipped_bits_give_a_value_or_our_error(name: str) -> None:
    """And the checking and the decoding agree on which."""
    data = GOLDEN[name][0]
    for index in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[index] ^= 1 << bit
            try:
                messages = decode_bundle(bytes(broken))
            except (DecodeError, LimitExceeded):
                with pytest.raises((DecodeError, LimitExceeded)):
                    check_bundle(bytes(broken))
                continue
            assert len(messages) == check_bundle(bytes(broken))[0].count


def test_count_that_lies_is_refused() -> None:
    """One message more or less than there are, none, and more than the bytes can hold."""
    for count in (4, 6, 15):
        with pytest.raises(DecodeError):
            check_bundle(bytes((count << 2,)) + FIVE[1:])
    for varint in ("00", "06", "ffffffff0f"):
        with pytest.raises(DecodeError):
            check_bundle(b"\0" + bytes.fromhex(varint) + FIVE[1:])


def test_flags_that_nobody_writes_are_refused() -> None:
    """Codecs 2 and 3, and bit 7."""
    for flags in (ONE[0] | 2, ONE[0] | 3, ONE[0] | 0x80):
        with pytest.raises(DecodeError, match="not assigned"):
            check_bundle(bytes((flags,)) + ONE[1:])
    with pytest.raises(DecodeError, match="empty"):
        check_bundle(b"")


def test_snappy_block_that_lies_about_its_size_is_refused_before_memory_is_taken() -> None:
    """More than the block can make, more than the limit, less than it makes."""
    block = bytes(cramjam.snappy.compress_raw(ONE[1:]))
    assert check_bundle(b"\x05" + block)[0].count == 1
    for size in (len(ONE) - 2, len(ONE), 5000):
        with pytest.raises(DecodeError):
            check_bundle(b"\x05" + encode_varint(size) + block[1:])
    with pytest.raises(LimitExceeded):
        check_bundle(b"\x05" + encode_varint(2**32 - 1) + block[1:])
    with pytest.raises(DecodeError):
        check_bundle(b"\x05" + block[:1] + b"\xff" * 8)


def test_numbers_that_do_not_fit_the_count_are_refused() -> None:
    """A sparse set needs room for its messages, a first number above 0, a last below 2^64-1."""
    head = b"\x54"

    def numbered(first: int, step: str) -> bytes:
        return head + first.to_bytes(8, "little") + bytes.fromhex(step) + STEP3[10:]

    assert check_bundle(numbered(100, "0b"))[0].last == 112
    for first, step in ((100, "02"), (0, "0b"), (NUMBER_MAX - 11, "0b"), (2**64 - 1, "0b")):
        with pytest.raises(DecodeError):
            check_bundle(numbered(first, step))
    assert check_bundle(numbered(NUMBER_MAX - 12, "0b"))[0].last == NUMBER_MAX
    with pytest.raises(DecodeError):
        check_bundle(numbered(100, "08"))  # the inner deltas pass the last number announced


def test_first_and_last_message_of_a_sparse_set_carry_no_number() -> None:
    """Clients disagree on what a number bit means there, so it is refused."""
    for index in (10, len(SPARSE_RUN) - 6):
        broken = bytearray(SPARSE_RUN)
        assert broken[index] in (0, 2)
        broken[index] |= 4
        with pytest.raises(DecodeError):
            check_bundle(bytes(broken))


def test_first_message_without_a_time_has_time_zero() -> None:
    """As the reference reads it."""
    assert decode_bundle(b"\x04\x02\x01x") == [Message(1, 0, None, b"x")]


def test_ordinary_bundle_becomes_sparse_with_the_numbers_given() -> None:
    """Messages stay, numbers are in the bundle; a sparse one is left alone."""
    for data in (ONE, FIVE, KEYED, SNAPPY):
        sparse = make_sparse(data, 1000)
        head = read_head(sparse)
        assert head.sparse
        assert head.codec == 0
        assert decode_bundle(sparse) == decode_bundle(data, 1000)
    assert make_sparse(STEP3, 7) is STEP3


def test_chunk_runs_on_and_may_end_in_a_cut_bundle() -> None:
    """Numbers go on from bundle to bundle; what follows the last whole one is left over."""
    chunk = b"".join(encode_varint(len(data)) + data for data in (FIVE, STEP3, ONE))
    numbers = [message.number for message in decode_chunk(chunk, 20)]
    assert numbers == [20, 21, 22, 23, 24, 100, 103, 106, 109, 112, 113]
    for size in range(len(chunk) - len(ONE) - 1, len(chunk)):
        found, end = split_chunk(chunk[:size])
        assert found == [FIVE, STEP3]
        assert end == len(chunk) - len(ONE) - 1
    with pytest.raises(DecodeError):
        split_chunk(b"\xff" * 8)


def test_writer_refuses_what_no_reader_takes() -> None:
    """No messages, a long key, numbers that do not rise."""
    with pytest.raises(LocalProtocolError):
        encode_bundle([])
    with pytest.raises(LocalProtocolError):
        encode_bundle([Message(1, 0, bytes(256), b"")])
    for numbers in ((2, 2), (3, 2), (0, 1), (1, NUMBER_MAX + 1)):
        with pytest.raises(LocalProtocolError):
            encode_bundle([Message(n, 0, None, b"") for n in numbers], sparse=True)


def test_compression_follows_the_client_that_the_broker_knows() -> None:
    """Above 1024 bytes or 512 messages, and a sparse bundle only when asked for."""
    small = [Message(1, 0, None, bytes(1024))]
    large = [Message(1, 0, None, bytes(1025))]
    many = [Message(n, 0, None, b"") for n in range(1, 514)]
    assert read_head(encode_bundle(small)).codec == 0
    assert read_head(encode_bundle(large)).codec == 1
    assert read_head(encode_bundle(many)).codec == 1
    assert read_head(encode_bundle(large, sparse=True)).codec == 0
    assert read_head(encode_bundle(large, sparse=True, compress=True)).codec == 1


def test_raw_size_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit itself is taken, one byte more is not."""
    data = encode_bundle([Message(1, 0, None, bytes(2000))], compress=True)
    size = read_varint(data, 1)[0]
    monkeypatch.setattr(bundles, "TANK_BUNDLE_RAW_BYTES", size)
    assert decode_bundle(data)[0].content == bytes(2000)
    monkeypatch.setattr(bundles, "TANK_BUNDLE_RAW_BYTES", size - 1)
    with pytest.raises(LimitExceeded):
        decode_bundle(data)


def test_interpreted_walk_agrees_with_the_one_in_use() -> None:
    """It gives the same on golden and on broken bytes."""
    walk = PLAIN_TOPIC.walk
    contents = (b"", b"a" * 127, b"b" * 128, b"c" * 17_000)
    long = [Message(n * 300 + 1, 7, b"k", content) for n, content in enumerate(contents)]
    made = [encode_bundle(long, sparse=sparse, compress=False)[:700] for sparse in (True, False)]
    for data in (*(data for data, _ in GOLDEN.values()), *made):
        head = read_head(data)
        if head.codec:
            continue
        first, last = head.numbers(1)
        for index in range(head.body, len(data)):
            broken = data[:index] + bytes((data[index] ^ 0x84,)) + data[index + 1 :]
            for each in (data, broken):
                mine: list[object] = []
                its: list[object] = []
                args = (each, each, head.body, head.count, head.sparse, first, last)
                assert kernel.walk(*args, mine) == walk(*args, its)
                assert mine == its


EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x100, 0xFFFF, 0x10000, 2**32 - 1, 2**32, 2**64 - 1)


def ordinary_way(data: bytes) -> object:
    """What a bundle is found to be without the short way; None for one that is malformed."""
    try:
        head = read_head(data)
        return head, bundles._walk(data, head, 1, None)
    except (DecodeError, LimitExceeded):
        return None


def test_short_way_of_checking_agrees_with_the_ordinary_one() -> None:
    """On golden bytes, each cut and each changed in every place, and on the highest numbers."""
    sound = PLAIN_TOPIC.sound
    ends = [
        b"\x44" + number.to_bytes(8, "little") + bytes(10)
        for number in (0, 1, NUMBER_MAX, NUMBER_MAX + 1)
    ]
    jumps = [
        b"\x48" + number.to_bytes(8, "little") + step + bytes(10) + b"\2\0"
        for number in (1, NUMBER_MAX - 1, NUMBER_MAX, NUMBER_MAX - 2**32)
        for step in (b"\0", b"\1", b"\xff\xff\xff\xff\x0f", b"\x80")
    ]
    many = bytes(encode_bundle(decode_bundle(FIVE) * 4))  # the count stands behind the flags
    assert kernel.sound(many) is not None
    seen = set()
    for data in (*(data for data, _ in GOLDEN.values()), many, *ends, *jumps, b"", b"\0", b"\0\0"):
        cuts = [data[:end] for end in range(len(data) + 1)]
        flips = [
            data[:at] + bytes((data[at] ^ mask,)) + data[at + 1 :]
            for at in range(len(data))
            for mask in (0x01, 0x40, 0x80, 0xFF)
        ]
        for each in (data, data + b"\0", *cuts, *flips):
            mine, its, expected = kernel.sound(each), sound(each), ordinary_way(each)
            assert mine == its
            seen.add(mine is None)
            if mine is not None:
                assert expected == (BundleHead(*mine[0]), mine[1])
            elif expected is not None:
                assert each[0] & 3  # compressed: left to the ordinary way
    assert seen == {True, False}


def test_head_of_a_tuple_is_its_msgpack() -> None:
    """At all lengths of numbers and of the bundle."""
    tuple_head = PLAIN_TOPIC.tuple_head
    for edge in EDGES:
        for numbers in ((edge, 1, 2, 3), (0, edge, edge, 0), (1, 2, 3, edge)):
            for size in (0, 1, 0xFF, 0x100, 0xFFFF, 0x10000):
                expected = pack([*numbers, bytes(size)])[: -size or None]
                assert kernel.tuple_head(*numbers, size) == expected
                assert tuple_head(*numbers, size) == expected
    assert kernel.tuple_head(0, 1, 2, 3, 2**32 - 1)[-5:] == b"\xc6\xff\xff\xff\xff"


@pytest.mark.parametrize("module", [kernel, PLAIN_TOPIC], ids=["installed", "interpreted"])
def test_a_tuple_is_read_as_it_was_written_or_refused(module: Any) -> None:
    """At each width of the bundle's length; one that is a byte short is none."""
    for size in (1, 0xFF, 0x100, 0xFFFF, 0x10000):
        head = kernel.tuple_head(7, 2**40, 2**40 + 3, TIME, size)
        data = head + bytes((4 << 2,)) + bytes(size - 1)  # it says that it has four messages
        assert module.stored(data) == (7, 2**40, 2**40 + 3, len(head))
        for cut in (data[:-1], head):
            with pytest.raises(ValueError, match="no tuple of a bundle"):
                module.stored(cut)
